"""Files of a federation as ``init`` writes them: certificates, keys, folders, policies and start scripts.

A federation has its own authority, the server's certificate, and a key for each site. All keys are ECDSA on P-384, as
Flower's authentication of nodes requires.
"""

import datetime
import ipaddress
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flfw.engines.layout import FederationLayout, registration_file, shell, transport
from flfw.errors import InputError

_HERE = 'here=$(cd "$(dirname "$0")/.." && pwd)'
_CA = """sed -i "s|^root-certificates = .*|root-certificates = \\"$here/ca/ca.crt\\"|" """  # Flower needs it absolute
_HOME = _CA + '"$here/superlink/home/config.toml"'
_YEARS, _AUTHORITY_YEARS = 2, 10


@dataclass(frozen=True)
class Pair:
    """Private key with its public part, a certificate or a public key; both as bytes of a file."""

    private: bytes
    public: bytes


def make_authority() -> Pair:
    """Make a certificate authority (PEM), which signs only servers."""
    key, name = _key(), _name("flfw federation")
    signed = (
        _certificate(name, name, key.public_key(), _AUTHORITY_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Pair(_pem(key), signed.public_bytes(serialization.Encoding.PEM))


def make_server(by: Pair, hosts: Sequence[str]) -> Pair:
    """Make a server's key and certificate (PEM), signed by an authority.

    Args:
        by: the authority.
        hosts: names and addresses under which clients reach the server; at least one.

    Raises:
        InputError: the authority's key or certificate cannot be read.
    """
    try:
        issuer = x509.load_pem_x509_certificate(by.public).subject  # which is decoded here alone
        signer = serialization.load_pem_private_key(by.private, None)
    # A TypeError comes of a key with a password, a KeyError of a name in an unknown type of text.
    except (ValueError, TypeError, KeyError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise InputError(
            "Expected the authority's key and certificate as init wrote them, got others; restore them."
        ) from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"Expected an authority with a key of ECDSA, got {type(signer).__name__}; restore the folder ca."
        )
    key = _key()
    signed = (
        _certificate(_name(hosts[0]), issuer, key.public_key(), _YEARS)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return Pair(_pem(key), signed.public_bytes(serialization.Encoding.PEM))


def make_node() -> Pair:
    """Make the key of a site, which identifies it to the server, in OpenSSH's format."""
    key = _key()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Pair(private, public + b"\n")


def ends(certificate: bytes) -> datetime.datetime:
    """Return the time at which a certificate (PEM) expires.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except (ValueError, x509.InvalidVersion) as error:
        raise InputError(
            "Expected the server's certificate in PEM, got a damaged one; make it anew with renew."
        ) from error


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    others += ("encipher_only", "decipher_only")
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **dict.fromkeys(others, False)
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=365 * years))
    )


def make(layout: FederationLayout, policy: str) -> None:
    """Make a federation's folder.

    Args:
        layout: folder and addresses of the federation.
        policy: text of the initial policy of each site.

    Raises:
        InputError: the folder exists and is not empty, or cannot be made.
    """
    require_new(layout.folder)
    missing = [folder for folder in (layout.folder, *layout.folder.parents) if not os.path.lexists(folder)]
    try:
        layout.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _fill(layout, policy)
    except OSError as error:
        for path in layout.folder.iterdir() if os.path.isdir(layout.folder) else ():  # noqa: PTH112 - it was empty
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise InputError(f"Expected a folder that can be made, got {layout.folder} ({error.strerror}).") from error


def require_new(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        InputError: see above.
    """
    if os.path.isdir(folder) and any(folder.iterdir()):  # noqa: PTH112 - a name that is too long is no error here
        raise InputError(f"Expected a new folder, got {folder}, which holds something; choose another.")


def _fill(layout: FederationLayout, policy: str) -> None:
    for folder in (layout.folder / "ca", layout.superlink, layout.superlink / "home"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(layout.folder / ".gitignore", b"*\n")  # the folder holds keys and may be inside a checkout
    authority = make_authority()
    _write(layout.folder / "ca" / "ca.key", authority.private, secret=True)
    _write(layout.folder / "ca" / "ca.crt", authority.public)
    _write_server(layout, authority)
    _write(layout.superlink / "home" / "config.toml", layout.connection.encode())
    for number in range(layout.clients):
        _make_site(layout.site(number), authority.public, policy)
    _write_scripts(layout)
    layout.write()


def renew(layout: FederationLayout) -> None:
    """Give the server a new key and certificate by the same authority; sites need no change.

    Raises:
        InputError: the authority's key is not here.
    """
    try:
        private, public = (layout.folder / "ca" / name for name in ("ca.key", "ca.crt"))
        authority = Pair(private.read_bytes(), public.read_bytes())
    except OSError as error:
        raise InputError(f"Expected the authority's key and certificate, got {error}.") from error
    _write_server(layout, authority)


def _write_server(layout: FederationLayout, authority: Pair) -> None:
    server = make_server(authority, layout.hosts)
    _write(layout.superlink / "server.key", server.private, secret=True)
    _write(layout.superlink / "server.pem", server.public)


def _make_site(folder: Path, authority: bytes, policy: str) -> None:
    for part in (folder, folder / "data", folder / "state", folder / "home"):
        part.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = make_node()
    _write(folder / "node-key", key.private, secret=True)
    _write(folder / "node-key.pub", key.public)
    _write(folder / "ca.crt", authority)
    _write(folder / "policy.toml", policy.encode())


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    path.touch(0o600 if secret else 0o644)  # the mode is set before the data are written
    path.write_bytes(data)


def _write_scripts(layout: FederationLayout) -> None:
    """Write a script for each machine; it works in any folder to which the federation was copied."""
    folder = layout.folder / "start"
    folder.mkdir()
    line = partial(shell, folder=layout.folder)
    home = layout.superlink / "home"
    scripts = {"1-superlink.sh": [_HOME, line(layout.superlink_command(), home=home)]}
    scripts["2-register.sh"] = [
        f'{line([*layout.register_command(n), "--format", "json"], home=home)} > "$here"/{registration_file(Path(), n)}'
        for n in range(layout.clients)
    ]
    for number in range(layout.clients):
        scripts[f"3-site-{number}.sh"] = [line(layout.supernode_command(number), home=layout.site(number) / "home")]
    for name, lines in scripts.items():
        path = folder / name
        path.write_text("\n".join(["#!/bin/sh", f"# {transport()}", "set -e", _HERE, *lines]) + "\n")
        path.chmod(0o755)
