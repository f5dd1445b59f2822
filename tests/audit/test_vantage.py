"""Where an attacker stands: at the server, at what a client sends, or at one example's gradient in local training."""

import dataclasses
import json
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file
from torch import Tensor

import sim
from flfw import data
from flfw.attacks.analytic import Analytic
from flfw.audit import probe
from flfw.audit.auditor import Auditor
from flfw.audit.controls import TARGET_CONTROLS
from flfw.audit.jobs import AttackJob
from flfw.client.site import Site
from flfw.engines import apps, federation
from flfw.errors import InputError, RunError
from flfw.experiment import VANTAGES, Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.nets import Tensors
from flfw.nets.inputs import InputSpec
from flfw.plans.run_plan import plan, without_auto
from flfw.recording import client_examples as examples
from flfw.recording.observation import Knowledge, Observation, Reconstruction, Vantage
from flfw.recording.reader import Recordings
from flfw.recording.retention import keep_last, purge
from flfw.runs import results, timed_phases
from flfw.runs import run as whole
from flfw.server.checkpoint import Checkpoints
from flfw.task.defence import Defence
from tests.support import capability
from tests.support.attackable import fresh_net
from tests.support.csv_files import read_csv
from tests.support.planned import clients_and_audit
from tests.support.poison import poisoner
from tests.support.silent_defences import Blanks, SendsNothing
from tests.support.small_runs import ByGuess, Generators, Observations, plug_in, tiny

SERVER, UPDATE, EXAMPLE = VANTAGES[:3]

attacked: list[tuple[Vantage, int, str, int]] = []
"""Vantage, round, point and slot of every observation that `Counted` was handed."""


class Counted(ByGuess):
    """The closed form, which notes what it is handed."""

    def run(self, observations: Observations, knowledge: Sequence[Knowledge], rngs: Generators) -> list[Reconstruction]:
        attacked.extend((o.vantage, o.round, o.point, o.slot) for o in observations)
        return Analytic().run(observations, knowledge, rngs)


class ReadsOtherClients(ByGuess):
    """Lets another client's example into its guess."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        other = Path.cwd().parent / "examples" / f"client-{1 - observation.client:03d}"
        file = next(other.glob("round-0001/*"))
        return torch.full(knowledge.model.inputs.shape, float(load_file(file)["classifier.bias"].abs().mean()))


class SilentGradients(Defence):
    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        return {name: torch.zeros_like(value) for name, value in gradients.items()}


def asked(folder: Path, **changes: Any) -> Experiment:
    """Two clients, softmax regression; client 0 has the probes 0 and 2, client 1 has probe 1."""
    return tiny(folder, **{"images": 3, "attack": (plug_in(Counted),), "vantage": (SERVER, UPDATE, EXAMPLE), **changes})


def audit(folder: Path, **details: Any) -> list[dict[str, Any]]:
    """The entries of a run that have these values."""
    entries = json.loads((folder / "result.json").read_text())["audit"]
    return [entry for entry in entries if all(entry[key] == value for key, value in details.items())]


def rows(folder: Path, **details: str) -> list[dict[str, str]]:
    return read_csv(folder / "audit.csv", **details)


def without_times(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = [{k: v for k, v in e.items() if k not in ("seconds", "scoring_seconds")} for e in entries]
    return [{**e, "ladder": [{**control, "seconds": 0} for control in e["ladder"]]} for e in kept]


def examples_of(folder: Path, server_round: int) -> list[Observation]:
    return Recordings(folder / "examples").probes("target", server_round, point="example")


@dataclasses.dataclass
class Watched:
    """A run; what each of its probes on the client was answered with; what its attack was handed."""

    folder: Path
    replies: list[Message]
    attacked: list[tuple[Vantage, int, str, int]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """All three vantages, probes of two examples, and a curve."""
    replies: list[Message] = []
    answer = InProcessGrid._answer

    def listening(grid: InProcessGrid, message: Message) -> Message:
        reply = answer(grid, message)
        if message.metadata.message_type == "train.probe" and "vantage" in message.content["config"]:  # type: ignore[operator]
            replies.append(reply)
        return reply

    folder = tmp_path_factory.mktemp("watched") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcessGrid, "_answer", listening)
        attacked.clear()
        whole.run(asked(folder, victim_batch=2, curve=("steps=3",)))
    yield Watched(folder, replies, attacked.copy())


# --- type 2: one example on the client ---


@pytest.mark.slow
def test_one_example_read_on_the_client_leaks(watched: Watched) -> None:
    result = audit(watched.folder, vantage=EXAMPLE)
    assert [(e["round"], e["verdict"], e["share_recovered"]) for e in result] == [(0, "leaks", 1.0), (1, "leaks", 1.0)]
    for entry in result:
        assert (entry["source"], entry["batch"], entry["steps"], entry["curve"]) == ("probe", 1, 1, None)
        assert (entry["images"], entry["failures"], entry["adaptive"]) == (3, 0, True)
        assert "the gradient of one example, read on the client during local training" in entry["granted"]
        assert not any("one local step" in sentence for sentence in entry["granted"])
    for row in rows(watched.folder, vantage=EXAMPLE):
        assert (watched.folder / row["truth"]).exists() and (watched.folder / row["reconstruction"]).exists()
    assert len(rows(watched.folder, vantage=EXAMPLE)) == 6


@pytest.mark.slow
def test_it_is_the_first_example_of_the_targets_probe_and_its_gradient(watched: Watched) -> None:
    digits = data.load("digits", None, None)
    inputs = InputSpec.from_constants(digits.shape, digits.mean, digits.std)
    observed = Recordings(watched.folder / "observations")
    for server_round in (0, 1):
        seen = examples_of(watched.folder, server_round)
        assert [(o.slot, o.client) for o in seen] == [(0, 0), (1, 1), (2, 0)]
        for at_client, at_server in zip(seen, observed.probes("target", server_round, point="target"), strict=True):
            one, two = (load_file(watched.folder / "truth" / f"{o.key}.safetensors") for o in (at_client, at_server))
            assert len(one["indices"]) == 1 and len(two["indices"]) == 2
            assert one["indices"][0] == two["indices"][0] and one["samples"].equal(two["samples"][:1])
            assert all(value.equal(at_server.received[name]) for name, value in at_client.received.items())
            net = fresh_net("linear", inputs.shape)
            net.load_state_dict(at_client.received)
            loss = torch.nn.functional.cross_entropy(net(inputs.normalise(one["samples"])), one["labels"])
            by_hand = torch.autograd.grad(loss, list(net.parameters()))
            assert at_client.vantage is Vantage.CLIENT_EXAMPLE and at_server.vantage is Vantage.SERVER
            for (name, _), gradient in zip(net.named_parameters(), by_hand, strict=True):
                torch.testing.assert_close(at_client.sent[name], gradient)


@pytest.mark.slow
def test_nothing_of_it_is_on_the_wire_or_in_the_servers_record(watched: Watched) -> None:
    assert len(watched.replies) == 6
    for reply in watched.replies:
        assert reply.has_content() and not any(reply.content.array_records.values())
        assert {name for r in reply.content.metric_records.values() for name in r} == {"num-examples", "partition"}
    lines = Recordings(watched.folder / "observations").lines
    assert len(lines) == 2 * 3 + 2 * 2 * 3  # the fresh controls; target and curve in both rounds
    assert not any("vantage" in line["config"] or line["config"]["point"] == "example" for line in lines)


@pytest.mark.slow
def test_only_their_owner_can_read_them(watched: Watched) -> None:
    paths = [watched.folder / "examples", *(watched.folder / "examples").rglob("*")]
    assert len([path for path in paths if path.is_file()]) == 2 * 2 + 2 * 2 + 2 * 3  # manifests, received, gradients
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600, 0o700}


@pytest.mark.slow
@pytest.mark.parametrize("defence", [SendsNothing, SilentGradients, Blanks])
def test_what_the_clients_defence_stops_depends_on_where_it_acts(tmp_path: Path, defence: type) -> None:
    """The finished update is of no matter to who reads gradients; what local steps themselves follow is."""
    whole.run(asked(tmp_path / "run", defence=plug_in(defence), audit_rounds="0"))
    recovered = {e["vantage"]: e["share_recovered"] for e in audit(tmp_path / "run")}
    assert recovered == {SERVER: 0.0, UPDATE: 0.0, EXAMPLE: 1.0 if defence is SendsNothing else 0.0}
    for entry in audit(tmp_path / "run"):
        assert (entry["verdict"] == "leaks") == (entry["share_recovered"] > 0)
        assert entry["defence"] == plug_in(defence)
        # What does nothing to a single step's gradient hides nothing there that an attacker would have to know of.
        assert entry["adaptive"] == (defence is SendsNothing and entry["vantage"] == EXAMPLE)


# --- type 1: the same update, on the client ---


@pytest.mark.slow
def test_the_update_on_the_client_is_what_the_server_saw(watched: Watched) -> None:
    at_server, on_client = (without_times(audit(watched.folder, vantage=v)) for v in (SERVER, UPDATE))
    same = "the same update, read on the client before it is sent"
    assert len(at_server) == 4  # target and three steps, in two rounds
    for entry in on_client:
        assert entry["granted"].pop(entry["granted"].index(same))
    assert [{**entry, "vantage": SERVER} for entry in on_client] == at_server
    assert not any(same in entry["granted"] for entry in at_server)
    one, other = (rows(watched.folder, rung="target", vantage=v) for v in (SERVER, UPDATE))
    assert len(one) == 2 * (3 * 2 + 3 * 2) and [{**row, "vantage": SERVER} for row in other] == one


@pytest.mark.slow
def test_the_same_bytes_are_attacked_once_and_so_are_the_controls(watched: Watched) -> None:
    kinds = [(Vantage.SERVER, point) for point in ("target", "steps-3")] + [(Vantage.CLIENT_EXAMPLE, "example")]
    expected = [(Vantage.SERVER, 0, "easy", slot) for slot in range(3)]
    expected += [(vantage, r, point, slot) for r in (0, 1) for vantage, point in kinds for slot in range(3)]
    assert watched.attacked == expected
    assert {row["vantage"] for row in rows(watched.folder, rung="easy")} == {SERVER}
    assert len(rows(watched.folder, rung="easy")) == 3


@pytest.mark.slow
def test_asked_for_alone_each_is_attacked_from_there(watched: Watched, tmp_path: Path) -> None:
    for vantage in (UPDATE, EXAMPLE):
        attacked.clear()
        out = tmp_path / vantage
        assert sim.main(["--from", str(watched.folder), "--vantage", vantage, "--out", str(out)]) == 0
        assert without_times(audit(out)) == without_times(audit(watched.folder, vantage=vantage))
        assert {v for v, _, point, _ in attacked if point != "easy"} == {Vantage(vantage)}
        assert len(attacked) == 3 + (12 if vantage == UPDATE else 6)


# --- asking ---


def test_the_flag_and_the_vantages_of_observations_are_the_same_words() -> None:
    assert set(VANTAGES) == {vantage.value for vantage in Vantage}
    assert sim.parse(["--vantage", "server", "client_example"]).experiment.vantage == (SERVER, EXAMPLE)
    assert Experiment().vantage == (SERVER,)


@pytest.mark.parametrize("words", [["telepathy"], ["server", "server"], [], ["server", "wire"]], ids=" ".join)
def test_other_vantages_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    quick = ["--method", "fedavg", "--net", "linear", "--engine", "inproc", "--rounds", "1", "--attack", "none"]
    assert sim.main([*quick, "--vantage", *words, "--out", str(tmp_path / "run")]) == 2
    got = f"got vantage={' '.join(words)}."
    assert capsys.readouterr().err == f"sim.py: Expected vantage among {', '.join(VANTAGES)}, each once, {got}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_nothing_is_written_unless_the_audit_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although the site names a folder; and what was not recorded cannot be asked for later, but the update can."""
    monkeypatch.setenv("FLFW_EXAMPLES", str(tmp_path / "examples"))
    folder = whole.run(asked(tmp_path / "run", vantage=(SERVER,), audit_rounds="0"))
    assert not (tmp_path / "examples").exists() and not (folder / "examples").exists()
    assert sim.main(["--from", str(folder), "--vantage", UPDATE, "--out", str(tmp_path / "again")]) == 0
    assert [e["vantage"] for e in audit(tmp_path / "again")] == [UPDATE]
    capsys.readouterr()
    assert sim.main(["--from", str(folder), "--vantage", SERVER, EXAMPLE]) == 2
    message = f"Expected recordings of client_example at round 0 in {folder}, got none; only a run with that --vantage"
    assert capsys.readouterr().err == f"sim.py: {message} records them.\n"


@pytest.mark.parametrize(
    ("changes", "vantage"),
    [
        ({"vantage": "server"}, EXAMPLE),
        ({"point": "target"}, EXAMPLE),
        ({"batch": 2}, EXAMPLE),
        ({"steps": 2}, EXAMPLE),
        ({"control": "easy"}, EXAMPLE),
        ({}, SERVER),
    ],
    ids=str,
)
def test_a_client_lets_nobody_read_what_its_audit_does_not(
    tmp_path: Path, changes: dict[str, Any], vantage: str
) -> None:
    experiment = without_auto(asked(tmp_path, vantage=(vantage,)))
    config = {"control": "target", "round": 0, "slot": 0, "own_slot": 0, "batch": 1, "steps": 1}
    config |= {"point": "example", "vantage": EXAMPLE, **changes}
    site, task = Site(truth=tmp_path / "truth", examples=tmp_path / "examples"), plan(experiment).task.load(None)
    with pytest.raises(RuntimeError, match="asked for a probe that does not exist"):
        stored = partial(task.examples, "train")
        audit = plan(experiment).audit
        probe.answer(config, {}, task, experiment.seed, audit, 0, site, stored, lambda *_: {}, lambda *_: {})
    assert not list(tmp_path.iterdir())


def test_a_site_without_a_folder_answers_no_such_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = without_auto(asked(tmp_path / "run", vantage=(EXAMPLE,), audit_rounds="0"))
    monkeypatch.setenv("FLFW_TRUTH", str(tmp_path / "truth"))
    with pytest.raises(RunError, match=r"lets nobody read its local training: its site names no examples folder$"):
        federation.federate(InProcessGrid(apps.client, 2, experiment.to_run_config()), plan(experiment))
    assert not list((tmp_path / "truth").glob("*example*"))


def test_a_client_that_sends_it_all_the_same_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = probe.answer

    def chatty(config: dict[str, Any], *rest: Any) -> Tensors:
        sent = answer(config, *rest)
        return {"classifier.bias": torch.zeros(10)} if "vantage" in config else sent

    monkeypatch.setattr(probe, "answer", chatty)
    with pytest.raises(RunError, match=r"^client 0 failed in a probe at round 0: sent arrays, which were to"):
        whole.run(asked(tmp_path / "run", audit_rounds="0"))
    assert not any("vantage" in i["config"] for i in Recordings(tmp_path / "run" / "observations").lines)


# --- the clients' record ---


def written(
    folder: Path, server_round: int, slot: int, value: float, compression: str = "none", client: int = 0, **more: str
) -> str:
    """Record one number for a slot, which is the client's own too; the name of its file."""
    config = {"control": "target", "round": server_round, "slot": slot, "own_slot": slot, "point": "example", **more}
    received = {"w": np.full(2, server_round, dtype=np.float32)}
    examples.record_gradient(folder, client, config, received, {"w": torch.tensor([value, 0.0])}, compression)
    suffix = ".gz" if compression == "gzip" else ""
    return f"client-{client:03d}/round-{server_round:04d}/client-{client:03d}-{slot:03d}.safetensors{suffix}"


def numbers(folder: Path) -> list[tuple[int, int, float]]:
    result = Recordings(folder)
    seen = result.observations([line["id"] for line in result.lines])
    assert not result.refused
    return sorted((o.round, o.slot, float(o.sent["w"][0])) for o in seen if o is not None)


def test_what_is_recorded_again_takes_the_place_of_what_was(tmp_path: Path) -> None:
    for args in ((0, 0, 1.0), (0, 1, 2.0), (1, 0, 3.0), (0, 1, 4.0)):
        written(tmp_path, *args)
    file = written(tmp_path, 0, 0, 5.0, "gzip")
    assert numbers(tmp_path) == [(0, 0, 5.0), (0, 1, 4.0), (1, 0, 3.0)]
    assert (tmp_path / file).exists() and not (tmp_path / file.removesuffix(".gz")).exists()
    assert len(list(tmp_path.glob("*/received/*"))) == 3  # of round 0 in both compressions, of round 1


def test_a_run_that_goes_on_forgets_what_came_after(tmp_path: Path) -> None:
    examples.forget_after(tmp_path / "nowhere", 0)
    for client, server_round, control in product((0, 1), (0, 1, 2), ("target", *TARGET_CONTROLS)):
        written(tmp_path, server_round, client, float(server_round), client=client, control=control)
    examples.forget_after(tmp_path, 1)
    assert numbers(tmp_path) == sorted([(0, 0, 0.0), (0, 1, 0.0), (1, 0, 1.0), (1, 1, 1.0)] * 3)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 16
    examples.forget_after(tmp_path, -1)
    assert numbers(tmp_path) == [] and not list(tmp_path.rglob("*.safetensors"))


def test_every_check_of_recordings_is_made_of_them(tmp_path: Path) -> None:
    for client in (0, 1):
        file = written(tmp_path, 0, client, 1.0, client=client)
    damaged = tmp_path / file
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with (tmp_path / "client-000" / "manifest.jsonl").open("a") as manifest:
        manifest.write("{cut")
    result = Recordings(tmp_path)
    assert result.refused == [
        "client-000/Line 3 of manifest.jsonl was left out: it was cut short, or is being written."
    ]
    assert [o and o.client for o in result.observations([line["id"] for line in result.lines])] == [0, None]
    assert result.refused[1].startswith("client-001/round-0000/client-001-001 was left out: round-0000/client-001-001")
    one, two = Recordings(tmp_path).probes("target", 0), result.probes("target", 0)
    assert len(one) == len(two) == 1


def test_clients_that_received_the_same_share_it(tmp_path: Path) -> None:
    for client in (0, 1):
        written(tmp_path, 0, client, 1.0, client=client)
    one, two = Recordings(tmp_path).probes("target", 0)
    assert one.received is two.received and one.sent is not two.sent


# --- what becomes of it ---


@pytest.mark.slow
def test_a_run_that_was_cut_short_writes_the_round_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut between the probes of round 1 and its checkpoint; one probe more lies there than will be asked again."""
    straight = whole.run(asked(tmp_path / "straight", vantage=(EXAMPLE,)))
    save = Checkpoints.save

    def dies(kept: Checkpoints, snapshot: Any, details: dict[str, Any]) -> None:
        if snapshot.round == 1:
            raise RunError("killed")
        save(kept, snapshot, details)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", dies)
        with pytest.raises(RunError, match="killed"):
            whole.run(asked(tmp_path / "run", vantage=(EXAMPLE,)))
    assert len(examples_of(tmp_path / "run", 1)) == 3
    written(tmp_path / "run" / "examples", 1, 2, 9.0, client=1)
    whole.resume(whole.stored(tmp_path / "run"))
    for r in (0, 1):
        before, after = (examples_of(folder, r) for folder in (straight, tmp_path / "run"))
        assert [(o.client, o.slot) for o in after] == [(0, 0), (1, 1), (0, 2)]
        for one, other in zip(after, before, strict=True):
            assert one.sent["classifier.weight"].equal(other.sent["classifier.weight"])
    assert without_times(audit(tmp_path / "run")) == without_times(audit(straight))


@pytest.mark.slow
def test_it_is_kept_thinned_out_and_purged_like_all_recordings(watched: Watched, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(watched.folder, folder)
    (folder / "tidying.json").touch()
    results.tidy(dataclasses.replace(asked(folder), keep_recorded_rounds=1))
    assert not examples_of(folder, 0) and len(examples_of(folder, 1)) == 3
    assert {path.parent.name for path in (folder / "examples").glob("*/*/*")} == {"received", "round-0001"}
    assert len(keep_last(folder / "examples", 0)) == 5  # three gradients, and what each client received
    assert "examples/: 4 files" in " ".join(purge(folder)) and not (folder / "examples").exists()


@pytest.mark.slow
def test_a_client_that_wrote_nothing_is_a_failure_and_no_crash(watched: Watched, tmp_path: Path) -> None:
    shutil.copytree(watched.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "examples" / "client-001")
    run_plan, task, _ = whole.check(whole.stored(tmp_path / "run"), new=False)
    experiment = run_plan.experiment
    with Auditor(*clients_and_audit(plan(experiment)), task, tmp_path / "run", tmp_path / "run") as auditor:
        entries = [e for e in auditor.run()[0] if e["vantage"] == EXAMPLE]
    assert [(e["images"], e["failures"], e["share_recovered"]) for e in entries] == [(3, 1, 1.0)] * 2
    shutil.rmtree(tmp_path / "run" / "examples")
    with Auditor(*clients_and_audit(plan(experiment)), task, tmp_path / "run", tmp_path / "run") as auditor:
        entries = [e for e in auditor.run()[0] if e["vantage"] == EXAMPLE]
    assert [(e["failures"], e["failure_reason"]) for e in entries] == [(3, "none of its recordings could be used")] * 2


@pytest.mark.slow
def test_poison_covers_other_clients_examples(watched: Watched, tmp_path: Path) -> None:
    """Of what is recorded on the clients, a job's own exchanges are whole, and nothing else is."""
    copy = tmp_path / "run"
    shutil.copytree(watched.folder, copy)
    jobs = capability._jobs(whole.stored(watched.folder), watched.folder)
    on_clients = [job for job in jobs if job.vantage == EXAMPLE]
    assert len(on_clients) == 2 and {job.recordings.name for job in jobs} == {"observations", "examples"}
    heal = poisoner(watched.folder, copy)

    def usable(name: str, job: AttackJob) -> int:
        ids = [exchange.id for exchange in job.exchanges]
        return sum(observation is not None for observation in Recordings(copy / name).observations(ids))

    first, second = on_clients
    at_server = next(job for job in jobs if job.vantage == SERVER)
    heal(first)
    assert (usable("examples", first), usable("examples", second)) == (3, 0)
    heal(dataclasses.replace(second, exchanges=second.exchanges[:1]))
    assert (usable("examples", first), usable("examples", second)) == (0, 1)
    lines = Recordings(copy / "examples").lines
    assert {line["config"]["own_slot"] for line in lines} == {"poisoned"} and all("place" in line for line in lines)
    heal(at_server)
    assert usable("observations", at_server) == 3
    assert all(path.read_bytes() == b"poisoned\n" for path in (copy / "examples").glob("*/manifest.jsonl"))


@pytest.mark.nightly
def test_an_attack_that_reads_other_clients_examples_is_caught(watched: Watched) -> None:
    result = {one.attack: one for one in capability.check(watched.folder, [plug_in(ReadsOtherClients), "analytic"])}
    assert result["analytic"].same and result["analytic"].compared == 21
    assert not result[plug_in(ReadsOtherClients)].same


@pytest.mark.slow
def test_the_estimate_counts_its_probes_and_its_files(tmp_path: Path) -> None:
    """Beside three probes of a round there are three gradients on clients, and both clients' broadcasts."""
    without, beside = (
        timed_phases.audit_phase(plan(asked(tmp_path, vantage=vantage)), tmp_path / vantage[1], 0.0)
        for vantage in ((SERVER, UPDATE), (SERVER, EXAMPLE))
    )
    assert (without.messages, beside.messages) == (3, 6)
    assert beside.round_bytes > 1.5 * without.round_bytes > 0


def test_bad_input_is_the_error_of_a_vantage_nobody_knows() -> None:
    with pytest.raises(InputError, match=r"^Expected vantage among .*, got vantage=wire\.$"):
        Experiment(vantage=("wire",))
