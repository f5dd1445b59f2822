"""Pipelines of defences: their order, the settings of each stage, their controls, and who adapts to all of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sim
from flfw import nets
from flfw.attacks.adaptations.dp_gaussian import DPGaussianAdaptation
from flfw.attacks.adaptations.low_precision import LowPrecisionAdaptation
from flfw.attacks.adaptations.precode import PrecodeAdaptation
from flfw.attacks.adaptations.prune import PruneAdaptation
from flfw.attacks.adaptations.soteria import SoteriaAdaptation
from flfw.audit.adaptation import Protection, adapted, defence_operator, departure_of_noise, protection_of
from flfw.audit.controls import UNDEFENDED, WEAK_DEFENCE, under_control
from flfw.audit.jobs import EXAMPLE, ProbeSet
from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings
from flfw.clients.defences.precode import PrecodeSettings
from flfw.clients.defences.prune import Prune, PruneSettings
from flfw.clients.defences.soteria import Soteria, SoteriaSettings
from flfw.comparisons.question import Matrix
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import Composed, Operator, Scaled, fitted
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets import Net, Tensors, tensors
from flfw.nets.bottleneck import bottlenecks
from flfw.nets.inputs import InputSpec
from flfw.plans.run_plan import RunPlan, plan, without_auto
from flfw.rng import initialising, torch_generator
from flfw.runs import run as whole
from flfw.task.defence import Defence, LocalStep
from flfw.task.pipeline import DefenceStage, Pipeline, PipelineSettings, refuse_beside_factors
from tests.support.attackable import Unchanged, gradient
from tests.support.method_rounds import make_client
from tests.support.planned import checked, clients_and_adaptation
from tests.support.small_runs import plug_in

INPUTS = InputSpec.from_constants((1, 12, 12), (0.5,), (0.25,))
TARGET = ProbeSet("target", 0, "", 1, 1, "target")


class Halves(Defence):
    """Somebody's own, for which nothing is written: sends half of the update, and counts its calls."""

    @classmethod
    def weakest_settings(cls, settings: Any) -> Any:
        return settings

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        self.measures = {"calls": self.measures.get("calls", 0.0) + 1}
        return {name: value / 2 for name, value in update.items()}


class Adds(Defence):
    """Adds 1 at the hook of the gradients, and counts."""

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        self.measures = {"calls": 7.0}
        return {name: value + 1 for name, value in gradients.items()}


class Mirrors(Defence):
    """Doubles a batch by its mirror image."""

    def batch(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.cat([x, x.flip(-1)]), y.repeat(2)


HALVES, ADDS, MIRRORS = plug_in(Halves), plug_in(Adds), plug_in(Mirrors)


def asked(defence: str, **changes: Any) -> Experiment:
    given: dict[str, Any] = {"method": "fedavg", "net": "lenet", "clients": 2, "attack": ("none",)} | changes
    return without_auto(Experiment(dataset="digits", defence=defence, **given))


def resolved(defence: str, **changes: Any) -> RunPlan:
    return plan(asked(defence, **changes))


def pipeline(*stages: Defence) -> Pipeline:
    named = (DefenceStage(type(one).__name__, type(one), one.settings) for one in stages)
    return Pipeline(PipelineSettings(tuple(named)))


def noise(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(seed, "pipeline"))


# --- clients ---


def test_order_matters_for_noise_and_pruning() -> None:
    sent, drawn = {"w": torch.tensor([1.0, -4.0, 2.0, 3.0])}, 2 * noise((4,))
    noisy, pruned = DPGaussian(DPGaussianSettings(std=2.0)), Prune(PruneSettings(0.5))
    last = pipeline(pruned, noisy).update(sent, torch_generator(0, "pipeline"))["w"]
    torch.testing.assert_close(last, torch.tensor([0.0, -4.0, 0.0, 3.0]) + drawn)
    first = pipeline(noisy, pruned).update(sent, torch_generator(0, "pipeline"))["w"]
    both = sent["w"] + drawn
    kept = both.abs() >= both.abs().sort().values[2]
    torch.testing.assert_close(first, both * kept)
    assert int((first == 0).sum()) == 2 and not bool((last == 0).any())


def test_every_hook_calls_the_stages_in_order_and_their_figures_are_merged() -> None:
    one = pipeline(Halves(), Mirrors(), Adds())
    x, y = one.batch(torch.tensor([[1.0, 2.0]]), torch.tensor([3]), torch.Generator())
    assert x.tolist() == [[1, 2], [2, 1]] and y.tolist() == [3, 3]
    assert one.active_hooks == {"batch", "gradients", "update"}
    step = LocalStep({"w": torch.tensor([4.0])}, x, y, nn.Identity(), INPUTS)
    assert one.step(step, torch.Generator())["w"].item() == 5 == one.gradients(step.gradients, torch.Generator())["w"]
    assert one.update({"w": torch.tensor([4.0])}, torch.Generator())["w"].item() == 2
    assert one.measures == {"calls": 1.0, "Adds_calls": 7.0}


def test_a_stage_of_steps_sees_the_gradients_of_the_stage_before() -> None:
    step = example(network())
    sent = pipeline(Adds(), Soteria(SoteriaSettings(0.5))).step(step, torch.Generator())
    hidden = (Soteria(SoteriaSettings(0.5)).step(step, torch.Generator())["classifier.weight"] == 0).all(0)
    expected = (step.gradients["classifier.weight"] + 1).masked_fill(hidden, 0.0)
    assert torch.equal(sent["classifier.weight"], expected) and bool(hidden.any())
    after = pipeline(Soteria(SoteriaSettings(0.5)), Adds()).step(step, torch.Generator())["classifier.weight"]
    assert bool((after[:, hidden] == 1).all())


def test_each_stage_has_its_own_settings() -> None:
    given = ("prune.ratio=0.7", "soteria.ratio=0.3", "Halves.x=1")
    stages = resolved("soteria+prune", set=given[:2]).client.defences.stages
    assert [stage.settings for stage in stages] == [SoteriaSettings(0.3), PruneSettings(0.7)]
    with pytest.raises(InputError, match=r"none; got Halves\.x"):
        checked(resolved(f"prune+{HALVES}", set=given[2:]))
    with pytest.raises(InputError, match=r"prune, soteria; got dp_gaussian\.std"):
        checked(resolved("soteria+prune", set=("dp_gaussian.std=1",)))


def test_a_client_builds_and_follows_a_pipeline(tmp_path: Path) -> None:
    experiment = asked("precode+soteria+prune", set=("prune.ratio=0.5", "precode.width=8"))
    defence = plan(experiment).client.defences.of_client(0)
    client = plan(experiment).client_class(replace(make_client(experiment, 0, tmp_path).ctx, defence=defence))
    assert len(bottlenecks(client.model)) == 1
    x, y = client.examples("train", client.indices("train")[:4])
    sent = client.gradient(x, y)
    for name, value in sent.items():
        assert int((value == 0).sum()) >= value.numel() // 2, name
    columns = (sent["classifier.layer.weight"] == 0).all(0)
    assert int(columns.sum()) >= len(columns) // 2
    assert not torch.equal(*(client.local_gradient(x, y, torch_generator(s, "probe"))[name] for s in (0, 1)))


def test_each_stage_checks_the_model_and_factors_are_refused() -> None:
    with pytest.raises(InputError, match="among the shared tensors for soteria, got none"):
        checked(resolved("prune+soteria", method="fedper"))
    with pytest.raises(
        InputError, match="follow one loss of a batch with defence=prune\\+precode, got method=dp_fedavg"
    ):
        checked(resolved("prune+precode", method="dp_fedavg"))
    with pytest.raises(InputError, match="defence=soteria\\+prune"):
        refuse_beside_factors("soteria+prune", pipeline(Soteria(), Prune()))
    refuse_beside_factors("soteria", pipeline(Soteria(), Adds()))


def test_no_epsilon_is_claimed_beside_a_stage_that_sees_the_batch() -> None:
    def claims(defence: str) -> list[Any]:
        given = asked(defence, method="fed_cdp", net="mlp")
        return RunAccountant(plan(given).client, plan(given).task.load(None).split).claims()

    for defence, words in (("prune+soteria", "soteria looks at"), (f"soteria+{MIRRORS}", f"{MIRRORS} changes")):
        voided = claims(defence)
        assert voided and all(claim.epsilon == float("inf") for claim in voided)
        assert any(words in str(claim.as_dict()) for claim in voided)
    assert any(claim.epsilon < float("inf") for claim in claims(f"prune+{HALVES}"))


# --- the command line ---


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["prune", "prune"], "Expected each defence of a pipeline once, got defence=prune+prune."),
        ([HALVES, f"x:{Halves.__name__}"], "Expected each defence of a pipeline once"),
        (["none", "prune"], "Expected a name other than none on each side of +, got defence=none+prune."),
        (["prune+"], "Expected a name other than none on each side of +, got defence=prune+."),
        (["prune", "moat"], "or package.module:Class; got defence=moat."),
        (["prune", "soteria", "--set", "soteria.ratio=1"], "Expected 0 <= ratio < 1, got ratio=1.0."),
        (["prune", "soteria", "--matrix", "methods=fedavg"], "such as prune+soteria, or an axis as defences=A,B."),
    ],
)
def test_wrong_pipelines_end_with_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--method", "fedavg", "--defence", *words]) == 2
    complaint = capsys.readouterr().err.strip()
    assert line in complaint and complaint.count("\n") == 0


@pytest.mark.parametrize("words", [["soteria", "prune"], ["soteria+prune"], ["soteria", "prune", "--rounds", "2"]])
def test_several_names_are_one_pipeline_in_their_order(words: list[str]) -> None:
    assert sim.parse(["--defence", *words]).experiment.defences == ("soteria", "prune")
    assert sim.parse([f"--defence={words[0]}", *words[1:]]).experiment.defence == "soteria+prune"
    assert sim.parse(["--defence", "prune", "--rounds", "2"]).experiment.defence == "prune"
    assert asked("soteria+prune") == Experiment.from_run_config(asked("soteria+prune").to_run_config())


def test_in_a_matrix_a_pipeline_is_one_value_and_each_cell_keeps_the_settings_of_its_stages(tmp_path: Path) -> None:
    given = asked("none", set=("prune.ratio=0.7", "soteria.ratio=0.3"))
    matrix = Matrix(defences=("none", "prune", "soteria+prune", "prune+soteria")).filled(given)
    cells = {cell.defence: cell for cell in matrix.cells(given, tmp_path)}
    assert [cell.set for cell in cells.values()] == [(), given.set[:1], given.set, given.set]
    assert cells["soteria+prune"].out.name == "fedavg-soteria-prune-s0"
    for cell in cells.values():
        checked(plan(cell))


# --- the controls beside an audit ---


def test_the_controls_of_a_pipeline() -> None:
    given = resolved("soteria+prune", set=("prune.ratio=0.7",), defended="1").client
    matched, mild = under_control(given, UNDEFENDED), under_control(given, WEAK_DEFENCE)
    assert matched is not None and mild is not None
    assert matched.defence is None and matched.defences.name == "none"
    assert [stage.settings for stage in mild.defences.stages] == [SoteriaSettings(0.1), PruneSettings(0.1)]
    assert mild.defences.partitions == given.defences.partitions == asked("prune", defended="1").defended_partitions
    assert 0 < len(mild.defences.partitions) < given.rounds.clients


def test_of_a_pipeline_that_changes_the_network_that_stage_stays_and_hides_nothing() -> None:
    given = resolved("prune+precode", set=("prune.ratio=0.7",)).client
    matched, mild = under_control(given, UNDEFENDED), under_control(given, WEAK_DEFENCE)
    assert matched is not None and mild is not None
    assert [(stage.name, stage.settings) for stage in matched.defences.stages] == [
        ("precode", PrecodeSettings(scale=0.0))
    ]
    assert list(matched.model.state_dict()) == list(given.model.state_dict())
    assert [stage.settings for stage in mild.defences.stages] == [PruneSettings(0.1), PrecodeSettings(scale=0.01)]


def test_a_stage_without_a_mildest_form_leaves_none_to_the_pipeline() -> None:
    assert under_control(resolved(f"prune+{ADDS}").client, WEAK_DEFENCE) is None
    assert under_control(resolved(f"prune+{ADDS}").client, UNDEFENDED) is not None
    assert under_control(resolved(f"prune+{HALVES}").client, WEAK_DEFENCE) is not None


# --- attackers ---


def network() -> Net:
    with initialising(0, "pipeline"):
        return nets.build("lenet", INPUTS.shape, 10)


def example(net: nn.Module, batch: int = 1, seed: int = 0) -> LocalStep:
    rng = torch_generator(seed, "pipeline's example")
    x, y = torch.rand(batch, *INPUTS.shape, generator=rng), torch.randint(10, (batch,), generator=rng)
    return LocalStep(gradient(net, INPUTS, x, y), x, y, net, INPUTS)


def sent_by(built: Pipeline, step: LocalStep) -> Tensors:
    rng = torch_generator(0, "pipeline")
    return built.update(built.step(step, rng), rng)


def test_the_composed_operator_is_the_operators_one_after_the_other_and_agrees_with_the_truth() -> None:
    net = network()
    step, other = example(net), example(net, seed=1).gradients
    sent = sent_by(pipeline(Soteria(SoteriaSettings(0.5)), Prune(PruneSettings(0.7))), step)
    operator = defence_operator(*clients_and_adaptation(resolved("soteria+prune")), TARGET, "server", 1.0)
    assert isinstance(operator, Composed) and operator.noise is None
    seen, constants = operator.undo(sent), operator.read(sent)
    again = operator.apply(step.gradients, seen, constants)
    assert all(torch.equal(again[name], value) for name, value in sent.items())
    stages = SoteriaAdaptation({"ratio": 0.5, "layer": ""}), PruneAdaptation({"ratio": 0.7})
    by_hand = other
    for one in stages:
        by_hand = one.apply(by_hand, sent, one.read(sent))
    assert all(torch.equal(value, by_hand[name]) for name, value in operator.apply(other, seen, constants).items())
    assert {name.partition(".")[0] for name in constants} == {"0", "1"}


@pytest.mark.parametrize("named", ["prune+soteria", "soteria+prune"])
@pytest.mark.parametrize("factor", [1.0, -0.2])
def test_operators_stand_in_the_order_of_the_hooks_and_in_the_units_of_each(named: str, factor: float) -> None:
    given = resolved(f"{named}+low_precision", set=("low_precision.bits=2", "prune.ratio=0.5"))
    operator = defence_operator(*clients_and_adaptation(given), TARGET, "server", factor)
    assert isinstance(operator, Composed)
    step = example(network())
    rng, composed = torch.Generator(), given.client.defences.build()
    assert composed is not None
    on_update = composed.update({n: factor * g for n, g in composed.step(step, rng).items()}, rng)
    sent = {name: value / factor for name, value in on_update.items()}
    torch.testing.assert_close(operator.apply(step.gradients, operator.undo(sent), operator.read(sent)), sent)


class Shifted(Unchanged):
    """Adds a constant to each entry that is undone in the observation."""

    def undo(self, sent: Tensors) -> Tensors:
        return {name: value - self.settings["by"] for name, value in sent.items()}


def test_later_stages_are_undone_before_an_earlier_one_is_read() -> None:
    pruned = torch.tensor([0.0, 3.0])
    operator = Composed([PruneAdaptation({}), Shifted({"by": 5.0})])
    sent = {"w": pruned + 5}
    assert operator.read(sent)["0.support.w"].tolist() == [0, 1]
    assert torch.equal(operator.undo(sent)["w"], pruned)
    assert fitted([PruneAdaptation({}), Shifted({"by": 5.0})]) is None  # it does not say that it leaves zeros alone


def gaussian(std: float, clip: float = 0.0) -> DPGaussianAdaptation:
    return DPGaussianAdaptation({"std": std, "clip": clip})


def rounded(bits: int, rounding: str = "nearest") -> LowPrecisionAdaptation:
    return LowPrecisionAdaptation({"bits": bits, "rounding": rounding})


MASK, COLUMNS = PruneAdaptation({"ratio": 0.5}), SoteriaAdaptation({"ratio": 0.5, "layer": ""})
BOTTLENECK = PrecodeAdaptation({"scale": 1.0})


@pytest.mark.parametrize(
    ("stages", "fit"),
    [
        ([COLUMNS, MASK], True),
        ([gaussian(0.1), MASK], True),  # noise stays in the sent entries
        ([MASK, gaussian(0.1)], False),  # no zero is left to be read
        ([COLUMNS, gaussian(0.1)], False),
        ([MASK, gaussian(0.0, 1.0)], True),  # a bound alone leaves zeros
        ([gaussian(0.1), gaussian(0.0, 1.0)], False),  # the bound scales the noise
        ([gaussian(0.1), gaussian(0.2)], True),
        ([MASK, rounded(4)], True),
        ([MASK, rounded(1, "stochastic")], False),
        ([gaussian(0.1), rounded(4)], True),  # rounding errors are more noise
        ([gaussian(0.1), rounded(2)], False),  # but not where hardly more than signs is left
        ([Scaled(gaussian(0.1), -0.1), Scaled(rounded(4), -0.1)], True),
        ([rounded(4), gaussian(0.1)], False),
        ([rounded(4), MASK], True),
        ([rounded(2), gaussian(0.1)], True),  # the trial itself is rounded
        ([BOTTLENECK, COLUMNS, MASK, gaussian(0.1)], False),
        ([BOTTLENECK, COLUMNS, MASK, rounded(4)], True),
        ([BOTTLENECK, gaussian(0.1)], True),
        ([BOTTLENECK, gaussian(0.1, 1.0)], False),  # a bound takes the norm of the layers that are left out, too
        ([BOTTLENECK, BOTTLENECK], False),
        ([Scaled(MASK, -0.1), Scaled(gaussian(0.1), -0.1)], False),
        ([Scaled(gaussian(0.1), -0.1), Scaled(MASK, -0.1)], True),
    ],
)
def test_which_operators_fit_together(stages: list[Operator], fit: bool) -> None:
    assert (fitted(stages) is not None) is fit


def test_the_noise_of_all_stages_adds_up_in_squares() -> None:
    assert Composed([gaussian(3.0), MASK, gaussian(4.0)]).noise == pytest.approx(5.0)
    assert Composed([Scaled(gaussian(0.3), -0.1), MASK]).noise == pytest.approx(3.0)
    assert Composed([COLUMNS, MASK]).noise is None
    drawn = noise((2000,)) * 3 + noise((2000,), 1) * 4  # what the stages add
    assert float(drawn.std()) == pytest.approx(5.0, rel=0.05)


def test_the_victim_is_that_of_the_stage_with_one() -> None:
    given = resolved("precode+prune", set=("precode.width=8",))
    with initialising(0, "pipeline"):
        net = given.with_input_space(INPUTS.shape, 10).task.build_net()
    plain = PlainVictim(net, tensors(net), ("*",), INPUTS)
    operator = defence_operator(*clients_and_adaptation(given), TARGET, "server", 1.0)
    assert isinstance(operator, Composed) and operator.has_victim
    victim = operator.victim(plain, tensors(net), None)
    assert isinstance(victim, PlainVictim) and victim.reads is not None
    assert Composed([COLUMNS, MASK]).victim(plain, tensors(net), None) is plain


@pytest.mark.parametrize(
    ("defence", "how"),
    [
        ("soteria+prune", "written"),
        ("prune+soteria", "written"),
        ("precode+soteria+prune", "written"),
        ("dp_gaussian+prune", "written"),
        ("prune+dp_gaussian", "automatic"),  # the written ones do not fit together
        ("soteria+dp_gaussian", "none"),
        (f"prune+{HALVES}", "automatic"),
        (f"{ADDS}+prune", "automatic"),
        (f"soteria+{HALVES}", "none"),
        (f"precode+{HALVES}", "none"),
        ("dcs2+prune", "none"),
        (f"prune+{MIRRORS}", "none"),
    ],
)
def test_a_pipeline_is_adapted_to_as_a_whole_or_not_at_all(defence: str, how: str) -> None:
    assert adapted(*clients_and_adaptation(resolved(defence)), TARGET, "server") == how
    assert adapted(*clients_and_adaptation(resolved(defence, adaptation="none")), TARGET, "server") == "none"
    known = defence_operator(*clients_and_adaptation(resolved(defence)), TARGET, "server", 1.0)
    kinds = {"written": Composed, "automatic": DifferentiableDefence, "none": type(None)}
    assert isinstance(known, kinds[how])


def test_what_did_not_act_on_the_observation_needs_no_adaptation() -> None:
    on_client = ProbeSet("target", 0, "", 1, 1, EXAMPLE)
    for defence in ("soteria+prune", f"{HALVES}+soteria"):
        assert adapted(*clients_and_adaptation(resolved(defence)), on_client, "client_example") == "written"
        known = defence_operator(*clients_and_adaptation(resolved(defence)), on_client, "client_example", 1.0)
        assert isinstance(known, SoteriaAdaptation)
    how = adapted(*clients_and_adaptation(resolved(f"prune+{HALVES}")), on_client, "client_example")
    assert how == "nothing to adapt to"
    for defence, how in (("soteria+prune", "none"), ("dp_gaussian+prune", "written")):
        assert adapted(*clients_and_adaptation(resolved(defence)), replace(TARGET, steps=4), "server") == how


def test_the_automatic_adaptation_calls_the_whole_pipeline() -> None:
    known = defence_operator(
        *clients_and_adaptation(resolved(f"prune+{HALVES}", set=("prune.ratio=0.5",))), TARGET, "server", -0.1
    )
    assert isinstance(known, DifferentiableDefence)
    trial = {"w": torch.tensor([1.0, -4.0, 2.0, 3.0])}
    assert known.defended(trial, torch.Generator())["w"].tolist() == pytest.approx([0.0, -2.0, 0.0, 1.5])


def test_the_noise_of_a_pipeline_is_judged_as_it_is_sent() -> None:
    def departure(defence: str) -> str:
        return departure_of_noise(clients_and_adaptation(resolved(defence))[0], "server")

    assert (
        not departure(f"prune+{HALVES}") and not departure(f"dp_gaussian+{HALVES}") and departure("dp_gaussian+prune")
    )


def test_the_words_name_every_stage_and_its_settings() -> None:
    def words(how: Any, adaptive: bool = True) -> list[str]:
        given = resolved("soteria+prune", set=("prune.ratio=0.7",))
        return list(Protection(*clients_and_adaptation(given), TARGET, "server", how, "soteria+prune").words(adaptive))

    both = "that the client uses soteria (ratio=0.5, layer=), then prune (ratio=0.7), to which it adapts "
    assert words("written") == [f"{both}with what is written for each"]
    assert words("automatic") == [f"{both}with its own code in the objective"]
    assert words("none", adaptive=False) == ["not granted: that the client uses soteria+prune"]
    assert protection_of(*clients_and_adaptation(resolved("soteria+prune")), TARGET, "server", True).how == "written"


@pytest.mark.nightly  # a whole audited run
def test_an_audited_run_names_the_pipeline(tmp_path: Path) -> None:
    experiment = asked(
        "soteria+prune",
        image_size=8,
        engine="inproc",
        rounds=1,
        local_epochs=1,
        images=2,
        audit_rounds="0",
        attack=("ig",),
    )
    assigned = ("ig.iterations=5", "prune.ratio=0.3", "soteria.ratio=0.2")
    folder = whole.run(replace(experiment, set=assigned, out=tmp_path / "run"))
    result = json.loads((folder / "result.json").read_text())
    assert result["config"]["defence"] == "soteria+prune"
    static, informed = result["audit"]
    assert [entry["defence"] for entry in (static, informed)] == ["soteria+prune"] * 2
    assert (static["adaptation"], informed["adaptation"]) == (None, "written") and informed["adaptive"]
    assert "soteria (ratio=0.2, layer=), then prune (ratio=0.3)" in informed["granted"][-1]
    assert "soteria+prune" in (folder / "report.html").read_text()


def test_a_pipeline_has_every_hook_and_check_of_a_defence() -> None:
    open_to_all = {name: value for name, value in vars(Defence).items() if not name.startswith("_")}
    hooks = {
        name for name, value in open_to_all.items() if callable(value) or isinstance(value, classmethod | property)
    }
    assert len(hooks) >= 12 and hooks <= set(vars(Pipeline))


def test_a_stage_that_takes_images_only_refuses_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method fedavg --net mlp --dataset cancer --attack none --engine inproc --clients 2 --defence ats prune"
    assert sim.main([*flags.split(), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "run").exists()
