"""Keys and certificates of a federation: its own authority, the server's certificate, and a key for each site.

All keys are ECDSA on P-384, as Flower's authentication of nodes requires.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flfw.errors import InputError

_YEARS, _AUTHORITY_YEARS = 2, 10


@dataclass(frozen=True)
class Pair:
    """Private key with its public part, a certificate or a public key; both as bytes of a file."""

    private: bytes
    public: bytes


def authority() -> Pair:
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


def server(by: Pair, hosts: Sequence[str]) -> Pair:
    """Make a server's key and certificate (PEM), signed by an authority.

    Args:
        by: the authority.
        hosts: names and addresses under which clients reach the server; at least one.

    Raises:
        InputError: the authority's key or certificate cannot be read.
    """
    try:
        issuer, signer = x509.load_pem_x509_certificate(by.public), serialization.load_pem_private_key(by.private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key has a password
        raise InputError(
            "Expected the authority's key and certificate as init wrote them, got others; restore them."
        ) from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"Expected an authority with a key of ECDSA, got {type(signer).__name__}; restore the folder ca."
        )
    key = _key()
    signed = (
        _certificate(_name(hosts[0]), issuer.subject, key.public_key(), _YEARS)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return Pair(_pem(key), signed.public_bytes(serialization.Encoding.PEM))


def node() -> Pair:
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
    except ValueError as error:
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
