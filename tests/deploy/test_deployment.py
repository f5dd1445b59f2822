"""Real sites: a SuperLink and three SuperNodes as processes of their own, on the loopback interface, with TLS and keys.

The same app, the same numbers; what is killed goes on; who has no key or another authority is not let in.
"""

import io
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import flfw
import sim
from flfw import nets
from flfw.deploy import __main__ as deployment
from flfw.deploy import files
from flfw.dp import site_ledger
from flfw.engines import processes
from flfw.engines.layout import FederationLayout, environment, transport
from flfw.nets.training.devices import one_thread
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.filter import spent
from flfw.privacy.mechanism import GaussianEvent, Mechanism
from flfw.privacy.rounding import at_most
from tests.support.clock import wait_for
from tests.support.sites_at_work import free_ports

pytestmark = [
    pytest.mark.early,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]

ROOT = Path(flfw.__file__).parent.parent
SITES = 3
COMMON = ("--clients", str(SITES), "--local-epochs", "1", "--attack", "none", "--expert", "round_deadline=120")
COMMON += ("--split", "sampled", "--set", "sampled.train=50")  # what follows it at once is also set
SMALL = ("hidden=16", "embedding=8")  # of 60 MB, a hypernetwork takes half a minute to go round
HYPERFL = ("--method", "hyperfl", "--rounds", "3", *COMMON)


MISBEHAVING = """
import dataclasses, os, time
from pathlib import Path
from typing import final
import torch
from flfw.server.aggregation import weighted_mean
from flfw.client.federated_client import FederatedClient
from flfw.task.defence import Defence
from flfw.server.strategy import FederatedStrategy


@final
class EachRoundOtherwise(Defence):
    def update(self, update, rng):
        mark = Path("..") / "rounds-so-far"  # the site's folder
        done = int(mark.read_text()) if mark.exists() else 0
        mark.write_text(str(done + 1))
        if done == 0:
            return {name: value * float("nan") for name, value in update.items()}
        if done == 1:
            raise ValueError("the shield fell")
        if done == 2:
            os._exit(9)
        if done == 3:
            time.sleep(600)
        return update


@final
class HeldInRoundTwo(Defence):
    # It changes nothing, and waits in its second update for as long as the site has the file `hold`.
    def update(self, update, rng):
        hold = Path("..") / "hold"
        while hold.exists() and hold.read_text() == "now":
            time.sleep(0.05)
        if hold.exists():
            hold.write_text("now")
        return update


@final
class Thief(FederatedClient):
    def __init__(self, at):
        super().__init__(at)
        # Behind the validator is the site's policy.
        self.validator = dataclasses.replace(self.validator, factor_names=("patient",))

    def train(self):
        return {"loss": 1.0}

    def upload_tensors(self):
        x, _ = self.ctx.task.examples("train", self.indices("train")[:1])
        return {**super().upload_tensors(), "patient": x}


@final
class Theft(FederatedStrategy):
    client = "misbehaving:Thief"
    uploads = ("*",)

    def aggregate(self, updates):
        return weighted_mean(updates)
"""


def command(*text: str) -> list[str]:
    return [sys.executable, *text]


def call(*text: str, code: int = 0, limit: float = 200) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(command(*text), cwd=ROOT, env=quiet(), capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{' '.join(text)} is not over after {limit:g} s; it said {late.stdout!r} {late.stderr!r}")
    assert done.returncode == code, done.stdout + done.stderr
    return done


def quiet() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def deploy(*text: str, code: int = 0) -> str:
    """What ``python -m flfw.deploy`` says."""
    with redirect_stdout(io.StringIO()) as message:
        assert deployment.main(text) == code
    return message.getvalue()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationLayout]:
    """Three sites at work."""
    folder = tmp_path_factory.mktemp("deployment") / "federation"
    (folder.parent / "misbehaving.py").write_text(MISBEHAVING)
    ports = free_ports(2 + SITES + 2)
    flags = ["--port", str(ports[0]), "--control-port", str(ports[1]), "--site-port", str(ports[2])]
    flags += ["--plugins", *(f"misbehaving:{name}" for name in ("EachRoundOtherwise", "HeldInRoundTwo", "Theft"))]
    deploy("init", str(folder), "--methods", "hyperfl,fedcg,fed_cdp", *flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.syspath_prepend(str(folder.parent))
        try:
            up(folder)
            yield FederationLayout.read(folder)
        finally:
            deploy("down", str(folder))


def up(folder: Path) -> None:
    message = deploy("up", str(folder))
    assert message.startswith(f"transport   {transport()} with TLS") and message.count(": process ") == 1 + SITES


def deployed(layout: FederationLayout, out: Path, *flags: str) -> list[str]:
    return command("sim.py", "--federation", str(layout.folder), "--out", str(out), *flags)


@contextmanager
def begun(layout: FederationLayout, out: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A run of its own process, which ends with this."""
    words = deployed(layout, out, *flags)
    with subprocess.Popen(words, cwd=ROOT, env=quiet(), stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def numbers(out: Path) -> dict[str, Any]:
    result = json.loads((out / "result.json").read_text())
    rounds = [{key: value for key, value in row.items() if key != "seconds"} for row in result["rounds"]]
    return {"rounds": rounds, "final": result["final"]}


def last_model(out: Path) -> dict[str, torch.Tensor]:
    (path,) = (out / "checkpoint").glob("round-*.safetensors")
    return load_file(path)


def private(folder: Path, client: int) -> dict[str, torch.Tensor]:
    """The newest version of a client's private tensors, of the newest experiment."""
    return load_file(max(folder.glob(f"*/*/client-{client:04d}/round-*"), key=lambda path: path.stat().st_mtime))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def simulated(out: Path, *flags: str) -> Path:
    """The same settings in this process."""
    with one_thread():
        assert sim.main(["--engine", "inproc", "--out", str(out), "--expert", "keep_state=true", *flags]) == 0
    return out


def require_same(layout: FederationLayout, out: Path, other: Path, rounds: int, private_tensors: bool = True) -> None:
    there, here = numbers(out), numbers(other)
    assert len({row["round"] for row in there["rounds"]}) == rounds and there == here
    assert equal(last_model(out), last_model(other))
    assert (other / "state").exists() == private_tensors
    for client in range(SITES if private_tensors else 0):
        assert equal(private(layout.site(client) / "state", client), private(other / "state", client))


def failures(out: Path) -> list[list[dict[str, Any]]]:
    """Who failed and why in each round so far, the lines that are written whole."""
    path = out / "checkpoint" / "history.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [row["failed"] for line in lines for row in json.loads(line)["rounds"]]


# --- runs ----------------------------------------------------------------------------------------------------------


HELD = ("--defence", "misbehaving:HeldInRoundTwo", "--defended", "0")


@contextmanager
def held_in_round_two(layout: FederationLayout, out: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A run between its first checkpoint and its second one, however slow or quick this machine is."""
    hold = layout.site(0) / "hold"
    hold.touch()
    try:
        with begun(layout, out, *flags, *HELD) as running:
            wait_for(lambda: any((out / "checkpoint").glob("round-00001-*")))
            yield running
    finally:
        hold.unlink()


@pytest.mark.slow
def test_what_was_killed_goes_on_and_loses_nothing(federation: FederationLayout, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with held_in_round_two(federation, out, *HYPERFL, *SMALL) as running:
        kill(federation.superlink, "superlink")
        _, message = running.communicate(timeout=150)
    last = message.splitlines()[-1]
    assert running.returncode == 1 and last.startswith("sim.py: Flower's SuperLink was lost during run "), message
    assert "Traceback" not in message
    kill(federation.site(0), "supernode")
    assert deploy("status", str(federation.folder), code=1).count("not at work") == 2
    assert "server at work" in call("sim.py", "--resume", str(out), code=1).stderr
    here = simulated(tmp_path / "here", *HYPERFL, *SMALL, *HELD)  # meanwhile the server misses the site's heartbeats
    up(federation.folder)
    call("sim.py", "--resume", str(out))
    require_same(federation, out, here, 3)
    resumed = json.loads((out / "result.json").read_text())["provenance"]["resumed"]
    assert len(resumed) == 1 and resumed[0]["after_round"] >= 1


def kill(folder: Path, name: str) -> None:
    pid = processes.alive(folder, name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: processes.alive(folder, name) is None)


@pytest.mark.nightly
def test_deployments_equal_their_simulations_bit_for_bit_two_at_once(
    federation: FederationLayout, tmp_path: Path
) -> None:
    """With noise that repeats, and numbers that are reported: neither is the default of real clients."""
    methods = {"fed_cdp": ("noise_source=seed",), "fedcg": ("iterations=10",)}
    chosen_by_all = ("--rounds", "2", "--metrics", "all")
    flags = {method: (*chosen_by_all, "--method", method, *COMMON, *more) for method, more in methods.items()}
    with ExitStack() as ends:
        running = [ends.enter_context(begun(federation, tmp_path / name, *chosen)) for name, chosen in flags.items()]
        here = {name: simulated(tmp_path / f"here-{name}", *chosen) for name, chosen in flags.items()}
        for process in running:
            _, message = process.communicate(timeout=280)
            assert process.returncode == 0, message
            progress = [line[:9] for line in message.splitlines() if line.startswith("round")]
            assert progress == ["round 1/2", "round 2/2"]
    for method in methods:
        require_same(federation, tmp_path / method, here[method], 2, private_tensors=method == "fedcg")


@pytest.mark.nightly
def test_a_large_model_too(federation: FederationLayout, tmp_path: Path) -> None:
    call(*deployed(federation, tmp_path / "there", *HYPERFL)[1:], limit=280)
    require_same(federation, tmp_path / "there", simulated(tmp_path / "here", *HYPERFL), 3)


@pytest.mark.nightly
def test_each_site_is_sent_a_network_of_its_own(federation: FederationLayout, tmp_path: Path) -> None:
    chosen = ("--rounds", "2", "--metrics", "all", "--method", "pfedhn_pc", *COMMON, "hidden=8")
    call(*deployed(federation, tmp_path / "there", *chosen)[1:], limit=280)
    require_same(federation, tmp_path / "there", simulated(tmp_path / "here", *chosen), 2)


@pytest.mark.nightly
def test_a_frozen_body_too_and_sites_refuse_another_one(federation: FederationLayout, tmp_path: Path) -> None:
    chosen = ("--rounds", "2", "--metrics", "all", "--method", "hyperfl_lpm", "--net", "resnet18_imagenet", *COMMON)
    chosen += ("hidden=4", "embedding=4")
    call(*deployed(federation, tmp_path / "there", *chosen)[1:], limit=280)
    require_same(federation, tmp_path / "there", simulated(tmp_path / "here", *chosen), 2)
    body = nets.build("resnet18_imagenet", (1, 8, 8), 10).extractor.get_submodule("body")
    with torch.no_grad():
        body.get_parameter("conv1.weight").add_(1e-3)
    torch.save(body.state_dict(), tmp_path / "other.pth")
    words = deployed(federation, tmp_path / "refused", *chosen, "--expert", f"weights={tmp_path / 'other.pth'}")
    message = call(*words[1:], code=1, limit=280).stderr.splitlines()[-1]
    assert re.search(r"client \d", message), message
    log = (federation.site(0) / "supernode.log").read_text()
    assert "Expected weights of net=resnet18_imagenet with the SHA-256 " in log
    assert not (tmp_path / "refused" / "result.json").exists()


# --- who gets in ---------------------------------------------------------------------------------------------------


def over_tls(layout: FederationLayout, authority: Path, protocols: list[str]) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(protocols)
    plain = socket.create_connection(("127.0.0.1", layout.port), timeout=20)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.slow
@pytest.mark.skipif(transport() != "gRPC", reason="later SuperNodes speak HTTP")
def test_the_port_for_sites_speaks_http_2_over_tls(federation: FederationLayout) -> None:
    with closing(over_tls(federation, federation.site(0) / "ca.crt", ["h2", "http/1.1"])) as wire:
        assert wire.selected_alpn_protocol() == "h2"
        wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        head = wire.recv(9)
        assert (head[3], head[5:9]) == (4, b"\x00\x00\x00\x00")  # SETTINGS, of the connection
    with socket.create_connection(("127.0.0.1", federation.port), timeout=20) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert plain.recv(9)[3:4] != b"\x04"  # nothing is said in the clear


@pytest.mark.slow
def test_the_server_is_known_by_its_own_authority_alone(federation: FederationLayout, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(files.make_authority().public)
    with pytest.raises(ssl.SSLCertVerificationError):
        over_tls(federation, tmp_path / "ca.crt", ["h2"])


def as_site_0(layout: FederationLayout, folder: Path, changed: dict[str, Path]) -> tuple[int, str]:
    """Starts another SuperNode in place of site 0's, with other files; how it ended and what it said."""
    words = layout.supernode_command(0)
    for option, value in changed.items():
        words[words.index(option) + 1] = str(value)
    words[words.index("--port") + 1] = str(layout.site_port + SITES)
    words += ["--max-retries", "2", "--max-wait-time", "5"]
    folder.mkdir(exist_ok=True)
    pid = processes.start(words, folder, "supernode", environment(folder))
    try:
        wait_for(lambda: processes.alive(folder, "supernode") is None, 60)
    finally:
        processes.stop(folder, "supernode")
    return pid, (folder / "supernode.log").read_text(errors="replace")


@pytest.mark.slow
def test_a_key_that_is_not_registered_is_refused(federation: FederationLayout, tmp_path: Path) -> None:
    key = tmp_path / "node-key"
    key.touch(0o600)
    key.write_bytes(files.make_node().private)
    _, message = as_site_0(federation, tmp_path / "other", {"--auth-supernode-private-key": key})
    assert "SuperNode ID" not in message and "305" in message


@pytest.mark.slow
def test_a_supernode_with_another_authority_is_not_connected(federation: FederationLayout, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(files.make_authority().public)
    _, message = as_site_0(federation, tmp_path / "other", {"--root-certificates": tmp_path / "ca.crt"})
    assert "SuperNode ID" not in message


# --- what sites refuse ---------------------------------------------------------------------------------------------


@contextmanager
def other_policy(layout: FederationLayout, number: int, change: Callable[[str], str]) -> Iterator[None]:
    """A site at work under another policy, and under its own again."""
    chosen = (layout.site(number) / "policy.toml").read_text()
    try:
        under(layout, number, change(chosen))
        yield
    finally:
        under(layout, number, chosen)


def under(layout: FederationLayout, number: int, policy: str) -> None:
    site = layout.site(number)
    (site / "policy.toml").write_text(policy)
    processes.stop(site, "supernode")
    up(layout.folder)


@pytest.mark.nightly
def test_a_site_that_accepts_another_app_says_so(federation: FederationLayout, tmp_path: Path) -> None:
    other = "allowed_apps = ['" + "0" * 64 + "']\nallowed_uploads = ['*']\nmax_upload_mb = 1\n"
    with other_policy(federation, 1, lambda chosen: other):
        done = call(*deployed(federation, tmp_path / "run", *HYPERFL)[1:], code=1)
    assert "this site's policy does not accept app " in done.stderr.splitlines()[-1]


@pytest.mark.nightly
def test_a_site_whose_policy_lets_nothing_leave_stops_the_run(federation: FederationLayout, tmp_path: Path) -> None:
    """As a hostile app finds it: what is no upload by the site's own list stays, whatever the app says of it."""
    with other_policy(
        federation, 2, lambda chosen: re.sub("allowed_uploads = .*", 'allowed_uploads = ["nothing.*"]', chosen)
    ):
        done = call(*deployed(federation, tmp_path / "run", *HYPERFL, *SMALL)[1:], code=1)
    assert "client 2 failed in round 1: this site's policy does not let hypernet." in done.stderr.splitlines()[-1]


@pytest.mark.nightly
def test_what_an_app_would_take_along_does_not_leave(federation: FederationLayout, tmp_path: Path) -> None:
    """A hostile server, to a site that accepts any app: its own list of uploads is what counts."""
    with other_policy(federation, 2, lambda chosen: re.sub("allowed_apps = .*", 'allowed_apps = ["any"]', chosen)):
        flags = ("--method", "misbehaving:Theft", "--net", "lenet", "--rounds", "1", *COMMON)
        done = call(*deployed(federation, tmp_path / "run", *flags)[1:], code=1)
        message = (federation.site(2) / "supernode.log").read_text()
    assert "this site's policy does not let patient leave" in done.stderr.splitlines()[-1]
    assert "guard: this site's policy does not let patient leave" in message
    assert not list((tmp_path / "run" / "checkpoint").glob("round-00001-*"))  # nothing was aggregated


UNDEFENDED = ("--method", "fedavg", "--net", "linear", "--rounds", "1", "--metrics", "all", *COMMON)
DEFENDED = ("--defence", "dp_gaussian", *UNDEFENDED, "dp_gaussian.std=0.3")
REFUSED = (
    "this site's policy lets no defence draw from the seed, which the server knows, and dp_gaussian does in the run"
)


@pytest.mark.nightly
def test_no_server_takes_a_sites_noise_off_unless_all_policies_let_it(
    federation: FederationLayout, tmp_path: Path
) -> None:
    """The server knows the seed, so it can simulate the noise; the clients of a round train before they add it."""
    bare, guess = simulated(tmp_path / "bare", *UNDEFENDED), simulated(tmp_path / "guess", *DEFENDED)
    call(*deployed(federation, tmp_path / "secret", *DEFENDED)[1:])
    noise, guessed = (
        torch.cat([model[name].flatten() - last_model(bare)[name].flatten() for name in sorted(model)])
        for model in map(last_model, (tmp_path / "secret", guess))
    )
    assert float(noise.std()) == pytest.approx(0.3 / SITES**0.5, rel=0.2)
    assert float(guessed.std()) == pytest.approx(0.3 / SITES**0.5, rel=0.2)
    assert abs(float(torch.corrcoef(torch.stack([noise, guessed]))[0, 1])) < 0.3  # of 650
    result = json.loads((tmp_path / "secret" / "result.json").read_text())
    assert result["config"]["defence_randomness"] == "secure"
    assert any("nobody can repeat them" in note for note in result["notes"])
    log = (federation.site(1) / "supernode.log").read_text()
    assert "the run has the defence dp_gaussian, whose draws come from this machine and are secret" in log
    seeded = ("--expert", "defence_randomness=seed", *DEFENDED)
    done = call(*deployed(federation, tmp_path / "refused", *seeded)[1:], code=1)
    assert REFUSED in done.stderr.splitlines()[-1]
    assert not (tmp_path / "refused" / "result.json").exists()
    with ExitStack() as ends:
        for site in range(SITES):
            allowing = lambda policy: policy.replace("seeded_defence = false", "seeded_defence = true")  # noqa: E731
            ends.enter_context(other_policy(federation, site, allowing))
        call(*deployed(federation, tmp_path / "seeded", *seeded)[1:])
        log = (federation.site(1) / "supernode.log").read_text()
        assert "can repeat what the run's defence dp_gaussian draws" in log
    require_same(federation, tmp_path / "seeded", guess, 1, private_tensors=False)
    notes = json.loads((tmp_path / "seeded" / "result.json").read_text())["notes"]
    assert any("the server knows it, and can repeat them and take added noise off" in note for note in notes)


# --- what a budget allows ------------------------------------------------------------------------------------------

WITHOUT_NUMBERS = ("--metrics", "none")
NOISY = ("--net", "linear", *WITHOUT_NUMBERS, *COMMON, "noise_source=secure")


def spends(layout: FederationLayout, number: int) -> str:
    lines = deploy("status", str(layout.folder)).splitlines()
    return next(line for line in lines if line.startswith(f"budget      site {number}: ")).partition("; ")[2]


def ask_again(out: Path) -> None:
    """As a server does that forgets the first round: its checkpoint is gone, and so is what followed from it."""
    (out / "checkpoint" / "history.jsonl").unlink()
    for path in [*out.glob("checkpoint/round-*"), *out.glob("*.json"), *out.glob("*.html"), *out.glob("*.csv")]:
        path.unlink()
    call("sim.py", "--resume", str(out))


@pytest.mark.nightly
def test_a_budget_ends_what_a_server_asks_for_in_every_way(federation: FederationLayout, tmp_path: Path) -> None:
    """Of rounds with mu = 1 / 6 the site allows three: one, the same again, and the first of a thousand."""
    three, four = (spent([(Mechanism(6.0, rounds), 1)], 100.0, 1e-5) for rounds in (3, 4))
    rules = f'epsilon = {1.001 * three}\nmetrics = "none"\n'
    with other_policy(federation, 1, lambda chosen: re.sub("(epsilon|metrics) = .*\n", "", chosen) + rules):
        first, long = tmp_path / "first", tmp_path / "long"
        call(*deployed(federation, first, "--method", "fed_cdp", "--rounds", "1", *NOISY)[1:])
        assert spends(federation, 1).endswith("messages 1, runs 1")  # nobody asks for numbers
        ask_again(first)
        assert spends(federation, 1).endswith("messages 2, runs 1")
        done = call(*deployed(federation, long, "--method", "fed_cdp", "--rounds", "1000", *NOISY)[1:], code=1)
        refusal = (
            f"this site's budget: epsilon {1.001 * three:g} at delta 1e-05 for one example; {at_most(three)} is spent, "
        )
        refusal += f"and this message would make it {at_most(four)}"
        ends = [done.stderr.splitlines()[-1]]
        for _ in range(2):
            ends.append(call("sim.py", "--resume", str(long), code=1).stderr.splitlines()[-1])
        expected = f"sim.py: client 1 failed in round 2: {refusal}"
        assert [end.rstrip(".") for end in ends] == [expected] * 3
        around = ("unit=client", "noise_multiplier=100", "clip=1e6")
        flags = ("--method", "dp_fedavg", "--rounds", "1", "--expert", "on_client_failure=drop", *NOISY, *around)
        call(*deployed(federation, tmp_path / "around", *flags)[1:])
        (row,) = json.loads((tmp_path / "around" / "result.json").read_text())["rounds"]
        reason = "this site's budget: the server is to add the noise of dp_fedavg, so the message leaves without any"
        assert [(failure["client"], failure["reason"]) for failure in row["failed"]] == [(1, reason)]
        assert spends(federation, 1) == f"{at_most(three)} is spent, messages 3, runs 2"


@pytest.mark.nightly
def test_a_site_that_says_private_counts_noisy_numbers_and_refuses_bare_ones(
    federation: FederationLayout, tmp_path: Path
) -> None:
    """A round and an evaluation are a line each; the server claims something against itself."""
    rules = 'epsilon = 50.0\nmetrics = "private"\n'
    noisy = ("--method", "fed_cdp", "--rounds", "1", "--net", "linear", *COMMON, "noise_source=secure")
    with other_policy(federation, 0, lambda chosen: re.sub("(epsilon|metrics) = .*\n", "", chosen) + rules):
        call(*deployed(federation, tmp_path / "run", "--metrics", "private", *noisy)[1:])
        ledger = federation.site(0) / site_ledger.FILE
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        assert [(line["kind"], line["metrics"]["noise_multiplier"]) for line in lines] == [
            ("train", 10.0), ("evaluate", 10.0)
        ]  # fmt: skip
        claimed = json.loads((tmp_path / "run" / "result.json").read_text())["privacy"]
        (epsilon,) = {e["epsilon"] for e in claimed if (e["unit"], e["adversary"]) == ("example", "server")}
        steps, answered = GaussianEvent(6.0, 1.0, 1), GaussianEvent(10.0, 1.0, 2)
        assert epsilon == compute_epsilon((steps, answered), 1e-5).epsilon
        done = call(*deployed(federation, tmp_path / "bare", "--metrics", "all", *noisy)[1:], code=1)
    assert (
        done.stderr.splitlines()[-1]
        .rstrip(".")
        .endswith("this site's policy accepts at most metrics=private, the run has metrics=all")
    )


# --- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_client_that_fails_in_every_way_is_dropped_by_name_and_comes_back(
    federation: FederationLayout, tmp_path: Path
) -> None:
    flags = ("--method", "fedavg", "--net", "lenet", "--rounds", "5", *COMMON, "--expert", "round_deadline=20")
    flags += ("--defence", "misbehaving:EachRoundOtherwise", "--defended", "1", "--expert", "on_client_failure=drop")
    call(*deployed(federation, tmp_path / "run", *flags)[1:], limit=400)
    rounds = json.loads((tmp_path / "run" / "result.json").read_text())["rounds"]
    failed = [[(f["client"], f["reason"]) for f in row["failed"]] for row in rounds]
    late = (1, "did not answer within 20 s")
    ((who, what),) = failed[0]
    assert who == 1 and what.startswith("sent ") and what.endswith(" with NaN or infinite values")
    reason = "this site's policy lets no other reason of a failure leave; its log has it"
    assert failed[1] == [(1, reason)]
    assert f"{reason}: <class 'ValueError'>:<'the shield fell'>" in (federation.site(1) / "supernode.log").read_text()
    assert failed[2:] == [[(1, "its process died")], [late], []]


@pytest.mark.nightly
def test_a_site_that_says_it_is_another_one_is_left_out_by_its_key(
    federation: FederationLayout, tmp_path: Path
) -> None:
    """Site 1 tells that it is client 0: it loses its own place, and client 0 keeps its own."""
    words = [word.replace("partition-id=1 ", "partition-id=0 ") for word in federation.supernode_command(1)]
    assert words != federation.supernode_command(1)
    site = federation.site(1)
    processes.stop(site, "supernode")
    try:
        processes.start(words, site, "supernode", environment(site / "home"))
        up(federation.folder)
        flags = (*"--method fedavg --net linear --rounds 1".split(), *COMMON, "--expert", "on_client_failure=drop")
        call(*deployed(federation, tmp_path / "run", *flags)[1:])
    finally:
        processes.stop(site, "supernode")
        up(federation.folder)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    lie = [{"client": 1, "reason": "says that it is client 0, and holds another key"}]
    assert [row["failed"] for row in result["rounds"]] == [lie]
    assert [row["client"] for row in result["final"]["per_client"]] == [0, 2]


@pytest.mark.nightly
def test_a_site_that_comes_late_takes_part_and_one_that_was_killed_comes_back(
    federation: FederationLayout, tmp_path: Path
) -> None:
    """Site 2 is away at the start; when it has joined, site 1 is killed; when that is back, the run is stopped."""
    out, late, killed = tmp_path / "run", federation.site(2), federation.site(1)
    flags = ("--method", "fedavg", "--net", "lenet", "--rounds", "4000", *COMMON, "--expert", "on_client_failure=drop")
    flags += ("--expert", "round_deadline=30")
    processes.stop(late, "supernode")
    try:
        with begun(federation, out, *flags) as running:
            wait_for(lambda: len(failures(out)) >= 2)
            deploy("up", str(federation.folder))
            wait_for(lambda: failures(out)[-1] == [])
            joined = len(failures(out))
            kill(killed, "supernode")
            wait_for(lambda: any(failures(out)[joined:]))
            deploy("up", str(federation.folder))
            wait_for(lambda: failures(out)[-1] == [])
            running.send_signal(signal.SIGTERM)
            _, message = running.communicate(timeout=60)
    finally:
        deploy("up", str(federation.folder))
    assert running.returncode == 143 and message.count("client 2 has joined") == 1
    rounds = failures(out)
    first = rounds.index([])
    assert first >= 2 and [[failure["client"] for failure in failed] for failed in rounds[:first]] == [[2]] * first
    reasons = {failure["reason"] for (failure,) in rounds[:first]}  # the second until Flower misses a heartbeat
    assert all(reason.startswith(("did not join within 30 s", "Error: Node Unavailable")) for reason in reasons)
    assert {failure["client"] for failed in rounds[first:] for failure in failed} == {1} and rounds[-1] == []


@pytest.mark.nightly
def test_with_too_few_clients_the_run_ends(federation: FederationLayout, tmp_path: Path) -> None:
    flags = (*COMMON, "--method", "fedavg", "--rounds", "2", "--expert", "on_client_failure=drop:3")
    with other_policy(
        federation, 0, lambda chosen: re.sub("allowed_uploads = .*", 'allowed_uploads = ["nothing.*"]', chosen)
    ):
        done = call(*deployed(federation, tmp_path / "run", *flags)[1:], code=1)
    assert "Expected at least 3 clients in round 1, got 2: client 0: this site's policy" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_an_interrupted_run_is_stopped_and_can_be_resumed(federation: FederationLayout, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ("--method", "fedavg", "--net", "lenet", "--rounds", "4", *COMMON)
    with held_in_round_two(federation, out, *flags) as running:
        running.send_signal(signal.SIGTERM)
        _, message = running.communicate(timeout=60)
    assert running.returncode == 143 and message.splitlines()[-1] == "sim.py: terminated"
    variables = environment(federation.superlink / "home")
    listed = subprocess.check_output(["flwr", "ls", "--format", "json"], env=variables, text=True)
    statuses = [run["status"] for run in json.loads(listed)["runs"]]
    assert "finished:stopped" in statuses and not any(status.startswith("running") for status in statuses)
    call("sim.py", "--resume", str(out))
    assert [row["round"] for row in numbers(out)["rounds"]] == list(range(1, 5))


@pytest.mark.nightly
def test_a_resumed_run_goes_on_without_a_site_that_stays_away(federation: FederationLayout, tmp_path: Path) -> None:
    out, absentee = tmp_path / "run", federation.site(2)
    flags = ("--method", "hyperfl", "--net", "lenet", "--rounds", "12", *COMMON, *SMALL)
    flags += ("--expert", "on_client_failure=drop", "round_deadline=30")
    with held_in_round_two(federation, out, *flags) as running:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    processes.stop(absentee, "supernode")
    try:
        call("sim.py", "--resume", str(out))
    finally:
        deploy("up", str(federation.folder))
    rounds = json.loads((out / "result.json").read_text())["rounds"]
    absent = [row["round"] for row in rounds if row["failed"]]
    assert absent and absent == list(range(absent[0], 13)) and absent[0] >= 2
    expected = [{"client": 2, "reason": "did not join within 30 s"}]
    assert all(row["failed"] == expected for row in rounds[absent[0] - 1 :])


# --- what is recorded ----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_recorded_run_is_announced_at_both_ends_and_audited_with_what_sites_hand_over(
    federation: FederationLayout, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    recorded = "--images 3 --expert record=true membership_pairs=5"
    flags = (*"--method fedavg --net lenet --rounds 1".split(), *COMMON, *recorded.split())
    refused = call(*deployed(federation, tmp_path / "refused", *flags)[1:], code=1)
    assert "this site's policy does not let its messages be recorded" in refused.stderr.splitlines()[-1]

    def volunteering(chosen: str) -> str:
        return chosen.replace("allow_recording = false", "allow_recording = true").replace(
            "audit_examples = []", "audit_examples = [2]"
        )

    with ExitStack() as policies:
        for number in range(SITES):
            policies.enter_context(other_policy(federation, number, volunteering))
        done = call(*deployed(federation, out, *flags)[1:])
        for number in range(SITES):
            message = (federation.site(number) / "supernode.log").read_text()
            assert "guard: the server records what this site sends" in message
            (truth,) = (federation.site(number) / "truth").iterdir()
            shutil.copytree(truth, out / "truth", dirs_exist_ok=True)
    assert "is recorded in" in done.stderr
    call("sim.py", "--from", str(out), "--attack", "analytic", "--engine", "inproc")
    entries = json.loads((out / "audit-1" / "result.json").read_text())["audit"]
    assert entries and all(entry["images"] == 3 for entry in entries)
    small = ("--set", "sampled.train=50", "membership.public=40", "membership.width=16")
    call("sim.py", "--from", str(out), "--attack", "membership", *small, "--engine", "inproc", "--audit-rounds", "1")
    items = json.loads((out / "audit-2" / "result.json").read_text())["membership"]
    assert items and all((item["clients"], item["pairs"]) == (3, 15) for item in items)
