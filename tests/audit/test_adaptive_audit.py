"""Static and adaptive attackers stand side by side: what each is told, and what becomes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flfw.attacks.analytic import Analytic
from flfw.attacks.april import APRIL, APRILSettings
from flfw.attacks.ig import IG
from flfw.audit.adaptation import adapted, defence_operator
from flfw.audit.auditor import Auditor
from flfw.audit.jobs import EXAMPLE, AttackJob, ProbeSet
from flfw.audit.queue import Queue
from flfw.audit.threat_model import threat_model_of
from flfw.clients.defences.prune import Prune, PruneSettings
from flfw.experiment import Experiment
from flfw.inversion import evaluation
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Operator, Scaled
from flfw.nets import Tensors
from flfw.nets.net import tensors
from flfw.plans.run_plan import plan
from flfw.recording.observation import Reconstruction
from flfw.rng import torch_generator
from flfw.runs import run as whole
from flfw.task.defence import Defence
from tests.support.attackable import attackable, digits, generators
from tests.support.csv_files import read_csv
from tests.support.engine_runs import train_by_engine
from tests.support.planned import clients_and_adaptation, clients_and_attacks, clients_and_audit
from tests.support.small_runs import plug_in

TARGET = ProbeSet("target", 0, "", 1, 1, "target")


class OwnPrune(Defence):
    """Somebody's own, for which nothing is written: only the largest tenth of each tensor is sent."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return Prune(PruneSettings(ratio=0.9)).update(update, rng)


class Blurs(Defence):
    """Changes the data."""

    def batch(self, x: torch.Tensor, y: torch.Tensor, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return (x + x.mean()) / 2, y


class EachStep(Defence):
    """Acts in each local step."""

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value.round(decimals=3) for name, value in gradients.items()}


class Noisy(Defence):
    """Adds a fixed amount of noise."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value + 0.1 * torch.randn(value.shape, generator=rng) for name, value in update.items()}


def asked(**changes: Any) -> Experiment:
    details = {"method": "fedavg", "net": "lenet", "image_size": 8, "engine": "inproc", "clients": 2, "rounds": 1}
    details |= {"local_epochs": 1, "images": 2, "audit_rounds": "0", "set": ("ig.iterations=150",)}
    return Experiment(**{**details, **changes})


def audited(out: Path, **changes: Any) -> list[dict[str, Any]]:
    return json.loads((whole.run(asked(out=out, **changes)) / "result.json").read_text())["audit"]


@pytest.mark.nightly
def test_who_is_told_of_the_defence_finds_what_who_is_not_told_does_not(tmp_path: Path) -> None:
    static, adaptive = audited(tmp_path / "run", defence=plug_in(OwnPrune), set=("ig.iterations=300",))
    assert (static["adaptive"], static["adaptation"]) == (False, None)
    assert (adaptive["adaptive"], adaptive["adaptation"]) == (True, "automatic")
    assert static["granted"][-1] == f"not granted: that the client uses {plug_in(OwnPrune)}"
    assert adaptive["granted"][-1].startswith(f"that the client uses {plug_in(OwnPrune)} ()")
    assert adaptive["psnr"]["mean"] > static["psnr"]["mean"] + 2
    assert static["ladder"][:2] == adaptive["ladder"][:2]
    rows = read_csv(tmp_path / "run" / "audit.csv", rung="target")
    assert [row["adaptive"] for row in rows] == ["False", "False", "True", "True"]
    assert len({row["reconstruction"] for row in rows}) == 4


@pytest.mark.nightly
def test_of_a_partly_defended_run_the_adaptive_attack_is_on_the_defended_alone(tmp_path: Path) -> None:
    entries = audited(tmp_path / "run", defence="prune", defended="1", set=("ig.iterations=3",))
    details = [(e["defence"], e["adaptation"], e["images"]) for e in entries]
    assert details == [("prune", None, 1), ("none", None, 1), ("prune", "written", 1)]
    assert [e["adaptive"] for e in entries] == [False, True, True]
    (tuned,) = json.loads((tmp_path / "run" / "result.json").read_text())["provenance"]["tuned_on"]
    assert tuned == f"ig: {IG.tuned_on}"


@pytest.mark.slow
def test_an_attack_that_makes_nothing_of_a_defence_runs_once(tmp_path: Path) -> None:
    """So does one that could search but is told to use its closed form."""
    closed = {"attack": ("analytic", "april", "rog"), "set": ("rog.private=closed_form", "rog.iterations=1")}
    entries = audited(tmp_path / "run", net="linear", defence="prune", **closed)
    assert [entry["attack"] for entry in entries] == ["analytic", "april", "rog"]
    for entry in entries:
        assert not entry["adaptive"] and entry["adaptation"] is None
        assert "not granted: the labels, of which it makes no use" in entry["granted"]
        assert entry["granted"][-1] == "not granted: that the client uses prune"


def test_a_closed_form_of_one_step_is_static_behind_several() -> None:
    two_steps = ProbeSet("target", 0, "", 1, 2, "target")
    job = AttackJob("april", two_steps, (), Path("none"), {}, (1, 8, 8), 10, (0.5,), (0.5,), vantage="server")
    run = plan(asked(net="vit_plain"))
    closed, search = (
        threat_model_of(*clients_and_attacks(run), job, APRIL(APRILSettings(way=way)), False)
        for way in ("closed_form", "search")
    )
    assert not closed.adaptive and any("their mean gradient is attacked" in words for words in closed.granted)
    assert search.adaptive and any("through all of which it searches" in words for words in search.granted)


def test_who_normalises_by_the_batch_is_seen_through_by_who_does_so_too() -> None:
    job = AttackJob("ig", TARGET, (), Path("none"), {}, (1, 32, 32), 10, (0.5,), (0.5,), vantage="server")
    colour = {"dataset": "cifar10", "image_size": 0}
    lenet, convnet = (plan(asked(net=net, **colour)) for net in ("lenet", "convnet32"))
    plain, normalised = (threat_model_of(*clients_and_attacks(net), job, IG(), False) for net in (lenet, convnet))
    assert plain.adaptive and normalised.adaptive
    assert not any("BatchNorm" in words for words in plain.granted)
    assert any(words.startswith("that BatchNorm takes the batch's statistics") for words in normalised.granted)
    by_running = threat_model_of(*clients_and_attacks(convnet), job, Analytic(), False)
    assert threat_model_of(*clients_and_attacks(lenet), job, Analytic(), False).adaptive and not by_running.adaptive
    assert any(words.startswith("not made use of: that BatchNorm") for words in by_running.granted)


@pytest.mark.nightly
def test_a_search_in_bfloat16_is_static_and_closed_forms_are_as_they_were(tmp_path: Path) -> None:
    (rough,) = audited(tmp_path / "run", method="fedavg", attack_precision="bf16", set=("ig.iterations=3",))
    assert not rough["adaptive"] and rough["verdict"] != "no leak found" and not rough["failures"]
    assert "not made use of: single precision; searches compute in bfloat16" in rough["granted"]
    (exact,) = audited(tmp_path / "exact", net="linear", attack=("analytic",), attack_precision="bf16", set=())
    assert exact["adaptive"] and not any("bfloat16" in words for words in exact["granted"])
    generated = audited(tmp_path / "generated", method="hyperfl", attack_precision="bf16", set=("ig.iterations=3",))
    stopped = {entry["attack"]: str(entry["failure_reason"]) for entry in generated}
    refusal = "not possible: Expected --expert attack_precision=float32 for anything but one step"
    assert all(words.startswith(refusal) for words in stopped.values()), stopped


def test_a_search_in_tensorfloat_is_static_as_well() -> None:
    job = AttackJob("ig", TARGET, (), Path("none"), {}, (1, 32, 32), 10, (0.5,), (0.5,), vantage="server")
    lower, exact = (plan(asked(net="lenet", attack_precision=precision)) for precision in ("tf32", "float32"))
    assert threat_model_of(*clients_and_attacks(exact), job, IG(), False).adaptive
    rough = threat_model_of(*clients_and_attacks(lower), job, IG(), False)
    assert (
        not rough.adaptive and "not made use of: single precision; searches compute in TensorFloat-32" in rough.granted
    )
    assert (
        threat_model_of(*clients_and_attacks(lower), job, Analytic(), False).granted
        == threat_model_of(*clients_and_attacks(exact), job, Analytic(), False).granted
    )


@pytest.mark.slow
def test_a_search_that_does_not_fit_is_said_once_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "machine_gb", lambda: 1e-6)
    (entry,) = audited(tmp_path / "run", set=("ig.iterations=3",))
    assert entry["verdict"] == "undecided" and entry["failures"] == 2 and entry["attempts"] == 1
    assert entry["failure_reason"].startswith(
        "not possible: Expected a search whose step fits into 1e-06 GB, got a batch of"
    )
    notes = json.loads((tmp_path / "run" / "result.json").read_text())["notes"]
    assert any("--victim-steps." in note and not note.endswith("..") for note in notes)


def test_how_one_adapts() -> None:
    prune, foreign = asked(defence="prune"), asked(defence=plug_in(OwnPrune))
    assert adapted(*clients_and_adaptation(plan(prune)), TARGET, "server") == "written"
    assert (
        adapted(*clients_and_adaptation(plan(asked(defence="prune", adaptation="defence_code"))), TARGET, "server")
        == "automatic"
    )
    assert adapted(*clients_and_adaptation(plan(asked(defence="prune", adaptation="none"))), TARGET, "server") == "none"
    assert adapted(*clients_and_adaptation(plan(foreign)), TARGET, "server") == "automatic"
    example = ProbeSet("target", 0, "", 1, 1, EXAMPLE)
    assert adapted(*clients_and_adaptation(plan(prune)), example, "client_example") == "nothing to adapt to"
    each = asked(defence=plug_in(EachStep))
    assert adapted(*clients_and_adaptation(plan(each)), example, "client_example") == "automatic"
    assert adapted(*clients_and_adaptation(plan(each)), ProbeSet("target", 0, "", 1, 4, "target"), "server") == "none"
    assert adapted(*clients_and_adaptation(plan(asked(defence=plug_in(Blurs)))), TARGET, "server") == "none"


def test_what_stands_in_the_objective() -> None:
    assert isinstance(
        defence_operator(*clients_and_adaptation(plan(asked(defence="prune"))), TARGET, "server", 1.0), Operator
    )
    assert isinstance(
        defence_operator(*clients_and_adaptation(plan(asked(defence="prune"))), TARGET, "server", -0.5), Scaled
    )
    assert isinstance(
        defence_operator(*clients_and_adaptation(plan(asked(defence=plug_in(OwnPrune)))), TARGET, "server", 1.0),
        DifferentiableDefence,
    )
    assert defence_operator(*clients_and_adaptation(plan(asked(defence=plug_in(Blurs)))), TARGET, "server", 1.0) is None


@pytest.mark.slow
def test_a_defence_that_changes_the_data_is_attacked_statically_and_that_is_said(tmp_path: Path) -> None:
    (entry,) = audited(tmp_path / "run", defence=plug_in(Blurs), set=("ig.iterations=2",))
    assert not entry["adaptive"]


@pytest.mark.nightly
def test_local_steps_are_unrolled_where_the_method_says_how_they_are_made(tmp_path: Path) -> None:
    given = {"victim_steps": 3, "lr": 0.1, "set": ("ig.iterations=2",)}
    (plain,) = audited(tmp_path / "plain", **given)
    assert plain["adaptive"]
    assert any("how these steps are made (fedavg's optimiser)" in sentence for sentence in plain["granted"])
    (hidden,) = audited(tmp_path / "hidden", **{**given, "method": "fedper"})
    assert not hidden["adaptive"]  # the head is hidden
    (closed,) = audited(tmp_path / "closed", **{**given, "net": "linear", "attack": ("analytic",), "set": ()})
    assert not closed["adaptive"] and any("their mean gradient is attacked" in s for s in closed["granted"])


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedper"])
def test_unrolled_steps_are_those_of_the_client(method: str, tmp_path: Path) -> None:
    """The true examples explain what was sent, through momentum, weight decay and the proximal term."""
    from flfw.audit.knowledge import grant
    from flfw.audit.uploads import read_truth
    from flfw.recording.reader import Recordings

    given = ("ig.iterations=1", "momentum=0.5", "weight_decay=0.1", *(["mu=5"] if method == "fedprox" else []))
    run_plan, task, _ = whole.check(asked(method=method, victim_steps=4, lr=0.1, set=given, out=tmp_path / "run"))
    experiment = run_plan.experiment
    train_by_engine(experiment, tmp_path / "run")
    auditor = Auditor(*clients_and_audit(run_plan), task, tmp_path / "run", tmp_path / "run")
    (job,) = auditor.jobs(auditor.probe_sets()[1])
    seen = [o for o in Recordings(job.recordings).observations([e.id for e in job.exchanges]) if o is not None]
    told = clients_and_adaptation(run_plan.with_input_space(job.shape, job.classes))
    observations, knowledge = grant(job, *told, IG(), seen)
    for o, known in zip(observations, knowledge, strict=True):
        truth = read_truth(tmp_path / "run" / "truth", o.key)
        assert truth is not None and known.unrolled
        private = {n: v for n, v in tensors(client_model(experiment, task)).items() if n in known.model.unknown}
        expected, constants = known.model.observed(o.sent)
        result = known.model.gradient(truth.samples, truth.labels, private, constants)
        assert set(result) == set(expected)
        for name in expected:
            torch.testing.assert_close(result[name], expected[name], rtol=1e-3, atol=1e-5)


def client_model(experiment: Experiment, task: Any) -> torch.nn.Module:
    """What a client that has not trained yet holds."""
    from flfw.client.context import ClientContext

    ctx = ClientContext(plan(experiment).client, task, 0, 0, None, None)
    return plan(experiment).client_class(ctx).model


@pytest.mark.nightly
def test_labels_that_an_attack_recovers_are_counted(tmp_path: Path) -> None:
    (entry,) = audited(tmp_path / "run", attack=("idlg",), set=("idlg.iterations=1", "idlg.restarts=1"))
    assert entry["label_accuracy"] == 1.0
    assert "not granted: the labels, which it reads off the last layer's gradient" in entry["granted"]
    (given,) = audited(tmp_path / "given", set=("ig.iterations=1",))
    assert given["label_accuracy"] is None and "the true labels" in given["granted"]


def test_labels_that_are_not_granted_are_not_in_the_job(tmp_path: Path) -> None:
    given = ("ig.iterations=1", "idlg.iterations=1", "idlg.restarts=1")
    run_plan, task, _ = whole.check(asked(attack=("ig", "idlg"), set=given, out=tmp_path / "run"))
    experiment = run_plan.experiment
    train_by_engine(experiment, tmp_path / "run")
    auditor = Auditor(*clients_and_audit(run_plan), task, tmp_path / "run", tmp_path / "run")
    granted = {job.attack: [e.labels for e in job.exchanges] for job in auditor.jobs(auditor.probe_sets()[1])}
    assert granted["idlg"] == [None, None]
    assert all(labels is not None and len(labels) == 1 for labels in granted["ig"])


def test_labels_of_a_reconstruction_survive_the_queue(tmp_path: Path) -> None:
    from flfw.audit.jobs import AttackJob, Exchange, solved

    exchanges = (Exchange("a", 0, 0, None), Exchange("b", 1, 1, None))
    config = asked().to_run_config()
    job = AttackJob("idlg", TARGET, exchanges, tmp_path, config, (2,), 3, (0.0,), (1.0,))
    queue = Queue(tmp_path / "queue")
    queue.put(job)
    result = [Reconstruction(torch.zeros(2, 2), 0.5, 3, torch.tensor([2, 0])), Reconstruction(torch.ones(2, 2))]
    queue.solve(job, solved(job, result, 1.0))
    solution = queue.solution(job)
    assert solution is not None and solution.reconstructions[0] is not None and solution.reconstructions[1] is not None
    assert solution.reconstructions[0].labels is not None and solution.reconstructions[0].labels.tolist() == [2, 0]
    assert solution.reconstructions[1].labels is None


@pytest.mark.slow
def test_no_two_probes_bear_the_same_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Tensor] = []

    def noted(self: Noisy, update: Tensors, rng: torch.Generator) -> Tensors:
        drawn.append(torch.randn(4, generator=rng))
        return update

    monkeypatch.setattr(Noisy, "update", noted)
    audited(tmp_path / "run", clients=1, defence=plug_in(Noisy), attack=("analytic",), set=(), curve=("steps=2",))
    trials = {tuple(torch.randn(4, generator=torch_generator(seed, "trial")).tolist()) for seed in (0, 1)}
    sent = [tuple(one.tolist()) for one in drawn if tuple(one.tolist()) not in trials]  # of whether a defence draws
    assert len(sent) == 5  # one round of training, two probes of one step, two of two steps
    assert len(set(sent)) == 5


@pytest.mark.slow
def test_an_attack_that_is_told_keeps_to_one_model_of_what_stands_between() -> None:
    """Two victims with a mechanism and two without are four searches in two calls, and do not mix."""
    import dataclasses

    observations, knowledge = attackable("lenet", 8, digits(0, side=8), digits(1, side=8))
    informed = [dataclasses.replace(known, operator=DifferentiableDefence(OwnPrune())) for known in knowledge]
    own_prune = OwnPrune()
    pruned = [dataclasses.replace(o, sent=own_prune.update(o.sent, torch_generator(0, "x"))) for o in observations]
    attack = IG(IG.Settings(iterations=5))
    both = attack.run([*pruned, *pruned], [*knowledge, *informed], [*generators(2), *generators(2)])
    for one, other in zip(both[2:], attack.run(pruned, informed, generators(2)), strict=True):
        torch.testing.assert_close(one.samples, other.samples, rtol=0, atol=1e-4)
    assert not torch.equal(both[0].samples, both[2].samples)
