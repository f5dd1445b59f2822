"""What a federation is made of: certificates, keys, its folder, commands and processes; no network."""

import base64
import datetime
import hashlib
import ipaddress
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

import flfw
from flfw.deploy import files
from flfw.deploy.__main__ import main
from flfw.deploy.files import Pair
from flfw.deploy.node_config import note_policy
from flfw.deploy.policy import Policy
from flfw.dp.budget import EpsilonBudget
from flfw.dp.site_ledger import FILE, MessageEntry, charge
from flfw.engines import processes, superlink
from flfw.engines.layout import FederationLayout, environment, registered_nodes, registration_file, transport
from flfw.errors import InputError, RunError
from flfw.privacy.filter import spent
from flfw.privacy.mechanism import Mechanism
from flfw.privacy.rounding import at_most
from tests.support.clock import wait_for
from tests.support.paths import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's, when it builds


# --- certificates and keys -----------------------------------------------------------------------------------------

HOSTS = ("fed.example.org", "127.0.0.1", "10.1.2.3")


@pytest.fixture(scope="module")
def authority() -> Pair:
    return files.make_authority()


def verify(server: Pair, by: Pair, host: str) -> int:
    """As strictly as the web does; how many certificates lead from the server's to the authority's."""
    subject = x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
    store = Store([x509.load_pem_x509_certificate(by.public)])
    verifier = PolicyBuilder().store(store).build_server_verifier(subject)
    return len(verifier.verify(x509.load_pem_x509_certificate(server.public), []))


@pytest.mark.parametrize("host", HOSTS)
def test_the_authority_vouches_for_the_server_under_each_of_its_names(authority: Pair, host: str) -> None:
    assert verify(files.make_server(authority, HOSTS), authority, host) == 2


def test_nobody_vouches_for_another_name_or_another_authoritys_server(authority: Pair) -> None:
    server, other = files.make_server(authority, HOSTS), files.make_authority()
    with pytest.raises(VerificationError):
        verify(server, authority, "example.org")
    with pytest.raises(VerificationError):
        verify(server, other, HOSTS[0])
    with pytest.raises(VerificationError):
        verify(files.make_server(other, HOSTS), authority, HOSTS[0])


def test_a_servers_key_signs_no_servers(authority: Pair) -> None:
    server = files.make_server(authority, HOSTS)
    forged = files.make_server(server, HOSTS)
    leaf, between = (x509.load_pem_x509_certificate(one.public) for one in (forged, server))
    store = Store([x509.load_pem_x509_certificate(authority.public)])
    with pytest.raises(VerificationError):
        PolicyBuilder().store(store).build_server_verifier(x509.DNSName(HOSTS[0])).verify(leaf, [between])


def test_an_authority_with_damage_is_refused(authority: Pair) -> None:
    """No UTF-8, an unknown type of text, and an unknown version, in which no end is read either."""
    der, public = x509.load_pem_x509_certificate(authority.public).public_bytes(Encoding.DER), b""
    damages = {b"flfw": b"f\x8cfw", b"\x0c\x0fflfw": b"\xfc\x0fflfw", b"\xa0\3\2\1\2": b"\xa0\3\2\1\n"}
    for written, damaged in damages.items():
        text = base64.encodebytes(der.replace(written, damaged)).decode()
        public = f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n".encode()
        with pytest.raises(InputError, match="the authority's key and certificate"):
            files.make_server(replace(authority, public=public), HOSTS)
    with pytest.raises(InputError, match="the server's certificate"):
        files.ends(public)


def handshake(server: Pair, by: Pair, host: str, folder: Path) -> str | None:
    """The protocol that two ends agree on, over a pair of sockets and in OpenSSL's words."""
    for name, data in {"s.pem": server.public, "s.key": server.private, "ca.crt": by.public}.items():
        (folder / name).write_bytes(data)
    there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(folder / "ca.crt"))
    here.verify_flags |= ssl.VERIFY_X509_STRICT
    there.load_cert_chain(folder / "s.pem", folder / "s.key")
    to_there, to_here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [here.wrap_bio(to_here, to_there, server_hostname=host), there.wrap_bio(to_there, to_here, server_side=True)]
    for _ in range(6):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].version()


def test_tls_is_spoken_with_the_authoritys_server_alone(authority: Pair, tmp_path: Path) -> None:
    server = files.make_server(authority, HOSTS)
    assert handshake(server, authority, "10.1.2.3", tmp_path) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, files.make_authority(), "10.1.2.3", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, authority, "10.1.2.4", tmp_path)


def test_certificates_end(authority: Pair) -> None:
    for certificate, days in ((authority, 3650), (files.make_server(authority, HOSTS), 730)):
        left = files.ends(certificate.public) - datetime.datetime.now(datetime.UTC)
        assert datetime.timedelta(days=days - 1) < left < datetime.timedelta(days=days + 1)


def test_a_sites_key_is_one_that_flower_takes() -> None:
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes, uses_nist_ec_curve

    one, other = files.make_node(), files.make_node()
    private, public = load_ssh_private_key(one.private, None), load_ssh_public_key(one.public)
    assert private.public_key() == public  # type: ignore[union-attr]
    assert uses_nist_ec_curve(bytes_to_public_key(public_key_to_bytes(public)))  # type: ignore[arg-type]
    assert one.public != other.public


# --- the folder ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of two sites, never started, in a folder whose name takes quoting."""
    folder = tmp_path_factory.mktemp("deploy") / "it's a folder"
    assert main(["init", str(folder), "--clients", "2", "--host", "fed.example.org", "--methods", "fedavg"]) == 0
    return folder


@pytest.mark.slow
def test_private_keys_are_their_owners_alone(made: Path) -> None:
    keys = [made / "ca" / "ca.key", made / "superlink" / "server.key", *made.glob("site-*/node-key")]
    assert len(keys) == 4
    assert [stat.S_IMODE(key.stat().st_mode) for key in keys] == [0o600] * 4
    folders = [made, made / "ca", made / "superlink", *made.glob("site-*"), *made.glob("site-*/*/")]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders if folder.is_dir()} == {0o700}
    assert b"PRIVATE" not in b"".join(p.read_bytes() for p in made.rglob("*") if p.is_file() and p not in keys)


@pytest.mark.slow
def test_a_site_knows_its_own_key_and_the_authority_and_has_its_own_policy(made: Path) -> None:
    for number in (0, 1):
        site = FederationLayout.read(made).site(number)
        names = {"ca.crt", "node-key", "node-key.pub", "policy.toml", "data", "state", "home"}
        assert {path.name for path in site.iterdir()} == names
        assert (site / "ca.crt").read_bytes() == (made / "ca" / "ca.crt").read_bytes()
        policy = Policy.read(site / "policy.toml")
        assert policy.allowed_apps == (superlink.bundle_hash(),) and policy.allowed_uploads == (
            "extractor.*",
            "classifier.*",
        )
    assert (made / "site-0" / "node-key").read_bytes() != (made / "site-1" / "node-key").read_bytes()


def test_the_servers_certificate_is_for_the_name_the_sites_use(made: Path) -> None:
    server, by = ((made / part).read_bytes() for part in ("superlink/server.pem", "ca/ca.crt"))
    for host in ("fed.example.org", "localhost", "127.0.0.1"):
        assert verify(Pair(b"", server), Pair(b"", by), host) == 2


def test_git_leaves_the_keys_alone(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "checkout" / "fed")
    git = partial(subprocess.run, cwd=tmp_path / "checkout", capture_output=True, text=True, check=True)
    git(["git", "init", "-q"])
    assert git(["git", "status", "--porcelain"]).stdout == ""
    (tmp_path / "checkout" / "fed" / ".gitignore").unlink()
    assert "fed" in git(["git", "status", "--porcelain"]).stdout


def test_the_folder_says_what_it_is(made: Path) -> None:
    assert FederationLayout.read(made) == FederationLayout(made, 2, "fed.example.org")


def test_a_renewed_certificate_is_another_one_by_the_same_authority(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "f")
    paths = [tmp_path / "f" / "superlink" / name for name in ("server.pem", "server.key")]
    before = [path.read_bytes() for path in paths]
    assert main(["renew", str(tmp_path / "f")]) == 0
    assert all(path.read_bytes() != old for path, old in zip(paths, before, strict=True))
    verify(Pair(b"", paths[0].read_bytes()), Pair(b"", (made / "ca" / "ca.crt").read_bytes()), "fed.example.org")
    assert stat.S_IMODE(paths[1].stat().st_mode) == 0o600
    (tmp_path / "f" / "ca" / "ca.key").unlink()
    assert main(["renew", str(tmp_path / "f")]) == 2


def test_apps_are_submitted_from_the_servers_own_machine(made: Path) -> None:
    layout = FederationLayout.read(made)
    command = layout.superlink_command()
    assert layout.connection.count("127.0.0.1:9093") == 1
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--enable-supernode-auth" in command and "--insecure" not in command


def commands(script: Path, folder: Path, path: Path) -> list[list[str]]:
    """What a script runs, as its shell hands it over, in a folder where Flower's programs only say what they got."""
    path.mkdir()
    for name in ("flower-superlink", "flwr", "python"):
        (path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$FLWR_HOME" "$(basename "$0")" "$@" ""\n')
        (path / name).chmod(0o755)
    message = subprocess.run(
        [str(script)], env={"PATH": f"{path}:{os.defpath}"}, capture_output=True, text=True, check=True, cwd="/"
    )
    assert message.stderr == ""
    return [part.splitlines() for part in message.stdout.removesuffix("\n\n").split("\n\n")]


def test_scripts_run_the_same_commands_wherever_the_folder_was_copied(made: Path, tmp_path: Path) -> None:
    there = tmp_path / "another's place"
    shutil.copytree(made, there)
    layout, start = FederationLayout.read(there), there / "start"
    (server,) = commands(start / "1-superlink.sh", there, tmp_path / "1")
    assert server == [str(there / "superlink" / "home"), *layout.superlink_command()]
    config = tomllib.loads((there / "superlink" / "home" / "config.toml").read_text())
    assert config["superlink"]["federation"]["root-certificates"] == str(there / "ca" / "ca.crt")
    assert commands(start / "2-register.sh", there, tmp_path / "2") == [[]]  # what Flower answers lands in files
    keys = [registration_file(there, n).read_text().rstrip("\n").splitlines() for n in (0, 1)]
    assert [key[1:] for key in keys] == [[*layout.register_command(n), "--format", "json"] for n in (0, 1)]
    (site,) = commands(start / "3-site-1.sh", there, tmp_path / "3")
    assert site == [str(there / "site-1" / "home"), *layout.supernode_command(1)]
    assert {path.name for path in start.iterdir()} == {
        "1-superlink.sh", "2-register.sh", "3-site-0.sh", "3-site-1.sh"
    }  # fmt: skip


def test_registrations_are_read_as_up_and_as_flower_write_them(tmp_path: Path) -> None:
    assert registered_nodes(None, 3) == registered_nodes(tmp_path, 3) == {}
    (tmp_path / "superlink").mkdir()
    answers = ["17\n", '{"success": true, "node-id": "18446744073709551615"}', '{"success": false}', "", "no JSON"]
    for client, answer in enumerate(answers):
        registration_file(tmp_path, client).write_text(answer)
    assert registered_nodes(tmp_path, 6) == {17: 0, 18446744073709551615: 1}


REFUSED = {
    "--clients 0": "clients >= 1",
    "--port 80": "1024 <= port < 65536",
    "--control-port 65536": "1024 <= control-port < 65536",
    "--port 9093": "ports that all differ",
    "--clients 3 --port 9202": "ports that all differ",
    "--site-port 65535 --clients 2": "ports that all differ, below 65536",
    "--methods fedavg,nothing": "nothing",
    "--max-upload-mb 0": "0 < max_upload_mb < inf",
    "--metrics private": "an epsilon with metrics=private",
    "--epsilon 2 --metrics all": "metrics=none or private with an epsilon",
    "--host=": "host as a name or address of 1 to 64 characters, got host=nothing",
    f"--host {'h' * 65}": "host as a name or address of 1 to 64 characters",
    "--listen a;b": "listen as a name or address of 1 to 64 characters, got listen=a;b",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_init_refuses_what_cannot_be(tmp_path: Path, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "new"), *flags.split()]) == 2
    message = capsys.readouterr().err
    assert message.startswith("flfw.deploy: Expected ") and REFUSED[flags] in message and message.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_init_touches_no_folder_that_holds_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    assert main(["init", str(tmp_path)]) == 2
    assert "choose another" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_init_writes_a_budget_and_status_says_what_is_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--clients", "2", "--methods", "fed_cdp", "--epsilon", "2", "--delta", "1e-6", "--unit", "patient"]
    assert main(["init", str(tmp_path / "fed"), *flags, "--patient-examples", "3", "--min-examples", "9"]) == 0
    sites = [FederationLayout.read(tmp_path / "fed").site(number) for number in (0, 1)]
    policies = [Policy.read(site / "policy.toml") for site in sites]
    budgets = [policy.budget for policy in policies if policy.min_examples == 9]
    assert budgets == [EpsilonBudget(2.0, 1e-6, "patient", 3)] * 2
    assert budgets[1] is not None
    charge(sites[1] / FILE, budgets[1], MessageEntry("run1", 1, "train", "fed_cdp", Mechanism(9.0, 1), 50))
    capsys.readouterr()
    assert main(["status", str(tmp_path / "fed")]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("budget")]
    whole, taken = "epsilon 2 at delta 1e-06 for one patient", spent([(Mechanism(3.0, 1), 1)], 2.0, 1e-6)
    assert lines == [
        f"budget      site 0: {whole}; 0 is spent, messages 0, runs 0",
        f"budget      site 1: {whole}; {at_most(taken)} is spent, messages 1, runs 1",
    ]
    assert not (sites[0] / FILE).exists()


def test_status_says_that_a_policy_written_after_the_start_does_not_hold_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fed = tmp_path / "fed"
    assert main(["init", str(fed), "--clients", "1", "--epsilon", "1"]) == 0
    site = FederationLayout.read(fed).site(0)
    policy = site / "policy.toml"
    processes.start(["sleep", "60"], site, "supernode", {})
    try:
        printed = []
        for seconds in (-1, 1):
            at = (site / "supernode.pid").stat().st_mtime + seconds
            os.utime(policy, (at, at))
            capsys.readouterr()
            main(["status", str(fed)])
            printed.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("policy")])
    finally:
        processes.stop(site, "supernode")
    later = f"policy      site 0: {policy} was written after the site's start, and holds from its next one"
    assert printed == [[], [later]]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["an older file", "a link", "none"])
def test_status_says_that_a_policy_which_was_put_in_place_of_the_one_of_the_start_does_not_hold_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """Neither a file that was moved there nor a link to it was written after the start."""
    fed = tmp_path / "fed"
    assert main(["init", str(fed), "--clients", "1"]) == 0
    site, other = FederationLayout.read(fed).site(0), tmp_path / "other.toml"
    policy = site / "policy.toml"
    other.write_text(policy.read_text().replace("max_messages = inf", "max_messages = 3"))
    for file in (policy, other):
        os.utime(file, (1e9, 1e9))
    note_policy(site)  # as up does, before it starts the site
    processes.start(["sleep", "60"], site, "supernode", {})

    def said() -> list[str]:
        capsys.readouterr()
        main(["status", str(fed)])
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("policy")]

    try:
        before = said()
        policy.unlink()
        if how == "an older file":
            other.rename(policy)
        elif how == "a link":
            policy.symlink_to(other)
        after = said()
    finally:
        processes.stop(site, "supernode")
    later = f"policy      site 0: {policy} is not the one of the site's start, and holds from its next one"
    assert (before, after) == ([], [later])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "metrics"),
    [("", "all"), ("--metrics none", "none"), ("--epsilon 2", "none"), ("--epsilon 2 --metrics private", "private")],
)
def test_init_writes_what_may_leave_beside_the_tensors(tmp_path: Path, flags: str, metrics: str) -> None:
    assert main(["init", str(tmp_path / "fed"), "--clients", "1", *flags.split()]) == 0
    assert Policy.read(FederationLayout.read(tmp_path / "fed").site(0) / "policy.toml").metrics == metrics


@pytest.mark.slow
def test_init_says_whose_uploads_may_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "fed"), "--clients", "1", "--methods", "hyperfl,fedavg"]) == 0
    assert "policies          let the uploads of hyperfl, fedavg leave;" in capsys.readouterr().out


def test_the_page_makes_a_federation_whose_policies_fit_its_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    lines = page.splitlines()
    made = next(line for line in lines if line.startswith("python -m flfw.deploy init fed"))
    run = {line.split("--method ")[1].split()[0] for line in lines if line.startswith("python sim.py --federation")}
    assert run <= set(made.split("--methods ")[1].split()[0].split(","))


@pytest.mark.parametrize(("flag", "value"), [("--epsilon", "0"), ("--delta", "1"), ("--epsilon", "nan")])
def test_init_makes_no_budget_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    assert main(["init", str(tmp_path / "fed"), "--epsilon", "2", flag, value]) == 2
    assert "Expected" in capsys.readouterr().err and not (tmp_path / "fed").exists()


@pytest.mark.parametrize("command", ["up", "status", "down"])
def test_a_folder_that_is_no_federation_is_refused(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (None, "clients = [", 'clients = "three"\n', "clients = 3\nsites = 4\n", "port = 9092\n"):
        if text is not None:
            (tmp_path / "federation.toml").write_text(text)
        assert main([command, str(tmp_path)]) == 2
        message = capsys.readouterr().err
        assert message.startswith("flfw.deploy: Expected ") and message.count("\n") == 1


@pytest.mark.slow
def test_status_needs_no_torch_and_two_seconds_at_most(made: Path) -> None:
    code = "import sys; from flfw.deploy.__main__ import main; "
    code += "code = main(sys.argv[1:]); print('torch' in sys.modules, code)"
    before = os.times()
    words = [sys.executable, "-c", code, "status", str(made)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    after = os.times()
    assert done.stdout.splitlines()[-1] == "False 1"  # nothing is at work
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert seconds < 2.0


def test_status_says_that_nothing_is_at_work(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(made)]) == 1
    message = capsys.readouterr().out.splitlines()
    assert message[0].startswith(f"transport   {transport()} with TLS (certificate until 20")
    assert len(message) == 4 and all("not at work" in line for line in message[1:])
    assert main(["down", str(made)]) == 0
    assert "ended 0 processes" in capsys.readouterr().out


@pytest.mark.slow
def test_up_says_why_a_server_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--port", str(port), "--control-port", str(port + 1 if port < 65000 else port - 1)]
        assert main(["init", str(tmp_path / "f"), "--clients", "1", *flags]) == 0
        capsys.readouterr()
        assert main(["up", str(tmp_path / "f")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("flfw.deploy: Flower's SuperLink did not start: ") and message.count("\n") == 1
    assert main(["down", str(tmp_path / "f")]) == 0


@pytest.mark.parametrize(
    ("flower", "way"),
    [("1.39.0", "gRPC"), ("1.38", "gRPC"), ("1.40.0", "HTTPS"), ("1.42.1", "HTTPS"), ("2.0", "HTTPS")],
)
def test_the_transport_is_told_from_flowers_version(flower: str, way: str) -> None:
    assert transport(flower) == way


def test_flowers_programs_report_home_about_nothing_and_install_nothing(tmp_path: Path) -> None:
    result = environment(tmp_path)
    assert result["FLWR_HOME"] == str(tmp_path)
    assert (result["FLWR_TELEMETRY_ENABLED"], result["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]) == ("0", "1")
    assert "127.0.0.1" in result["no_proxy"].split(",")


# --- the app -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_code_has_the_same_hash(capsys: pytest.CaptureFixture[str]) -> None:
    result = superlink.bundle_hash()
    assert result == hashlib.sha256(superlink.bundle()).hexdigest()
    time.sleep(2.1)  # a zip file's clock ticks every two seconds
    assert main(["hash"]) == 0
    assert capsys.readouterr().out == f"{result}\n"


@pytest.mark.slow
def test_one_other_character_is_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("flfw", "strategies", "clients", "attacks"):
        shutil.copytree(ROOT / package, tmp_path / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(flfw, "__file__", str(tmp_path / "flfw" / "__init__.py"))
    assert superlink.bundle_hash() == (before := superlink.bundle_hash())
    changed = tmp_path / "clients" / "sgd.py"
    changed.write_text(changed.read_text().replace(".", ",", 1))
    assert superlink.bundle_hash() != before


# --- processes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Path]:
    """A program's folder; what was started there ends with the test."""
    yield tmp_path
    processes.stop(tmp_path, "part")


def begin(folder: Path, script: str = "echo begun; exec sleep 60") -> int:
    return processes.start(["sh", "-c", script], folder, "part", os.environ)


@pytest.mark.slow
def test_a_program_is_started_once_found_again_and_ended(part: Path) -> None:
    assert processes.alive(part, "part") is None
    pid = begin(part)
    assert processes.alive(part, "part") == pid and begin(part) == pid
    assert os.getsid(pid) == pid != os.getsid(0)
    wait_for(lambda: processes.last_line(part, "part") == "begun")
    assert processes.stop(part, "part") and not processes.stop(part, "part")
    assert processes.alive(part, "part") is None and not (part / "part.pid").exists()
    assert begin(part) != pid


def test_a_process_that_got_an_old_id_is_nobodys(part: Path) -> None:
    """Such as the one of this test, whose id stands in a file from before the machine was started anew."""
    (part / "part.pid").write_text(f"{os.getpid()} 1\n")
    assert processes.alive(part, "part") is None
    assert not processes.stop(part, "part")
    for text in ("", "12", "one two\n", f"{os.getpid()} soon"):
        (part / "part.pid").write_text(text)
        assert processes.alive(part, "part") is None


@pytest.mark.slow
def test_a_program_that_has_ended_is_not_alive_though_nobody_looked(part: Path) -> None:
    begin(part, "echo 'no luck' >&2; exit 3")
    wait_for(lambda: processes.alive(part, "part") is None)
    assert processes.last_line(part, "part") == "no luck"


NESTED = "(setsid sh -c 'trap \"\" TERM; sleep 61 & sleep 61' &); sleep 61 & "


def sleeping(mark: Path) -> int:
    result = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            result += (process / "cwd").readlink() == mark and (process / "cmdline").read_bytes() == b"sleep\x0061\0"
    return result


def test_with_a_program_ends_all_that_it_started(part: Path) -> None:
    begin(part, NESTED + "trap '' TERM; sleep 61")
    wait_for(lambda: sleeping(part / "neutral") == 4)
    processes._GRACE_S, before = 0.2, processes._GRACE_S
    try:
        assert processes.stop(part, "part")
    finally:
        processes._GRACE_S = before
    assert sleeping(part / "neutral") == 0


@pytest.mark.parametrize("again", [True, False], ids=["start", "stop"])
def test_what_a_killed_program_left_behind_ends(part: Path, again: bool) -> None:
    pid = begin(part, NESTED + "exec sleep 60")
    wait_for(lambda: sleeping(part / "neutral") == 3)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: processes.alive(part, "part") is None)
    assert sleeping(part / "neutral") == 3
    if again:
        begin(part)
    else:
        assert not processes.stop(part, "part")
    assert sleeping(part / "neutral") == 0


def test_other_programs_of_the_same_kind_are_left_alone(part: Path, tmp_path: Path) -> None:
    other = tmp_path / "part-2"
    other.mkdir()
    begin(part)
    begin(other)
    processes.stop(part, "part")
    assert processes.alive(other, "part") is not None
    assert processes.stop(other, "part")


def test_a_program_outlives_whoever_started_it(part: Path) -> None:
    code = (
        "import os, pathlib\nfrom flfw.engines import processes\n"
        f"processes.start(['sleep', '60'], pathlib.Path({str(part)!r}), 'part', os.environ)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=240)
    assert processes.alive(part, "part") is not None
    assert processes.stop(part, "part")


def test_a_program_that_is_not_there_is_said(part: Path) -> None:
    with pytest.raises(RunError, match="no-such-program"):
        processes.start(["no-such-program"], part, "part", os.environ)
    with pytest.raises(InputError):
        FederationLayout.read(part)
