"""Every attack succeeds on an undefended toy first, and sees nothing but its observation and its knowledge."""

import dataclasses
import math
import os
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flfw import nets, plugins
from flfw.adversary.attack import Attack, AttackCost, AttackPlugin, NotApplicableError
from flfw.attacks.analytic import Analytic
from flfw.attacks.ig import IG, IGSettings
from flfw.attacks.imprint import Imprint
from flfw.attacks.loki import Loki
from flfw.attacks.spear import SPEAR
from flfw.errors import InputError
from flfw.inversion.client_models.victim import GeneratedVictim, PlainVictim
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction, Truth, Vantage
from flfw.rng import initialising
from tests.support.attackable import attackable, db, digit_inputs, digits, fresh_net, generators, gradient, seen
from tests.support.small_runs import ByGuess
from tests.support.tables import attackable_rows

pytestmark = pytest.mark.early

# --- the undefended toys ---


@pytest.mark.parametrize("side", [8, 28])
def test_analytic_reads_a_digit_off_softmax_regression(side: int) -> None:
    batches = [digits(i, side=side) for i in range(3)]
    observations, knowledge = attackable("linear", side, *batches)
    for (x, _), one in zip(batches, Analytic().run(observations, knowledge, generators(3)), strict=True):
        assert one.samples.dtype == torch.float32 and one.samples.shape == x.shape
        assert db(x, one) > 100
        assert one.matching_loss is None


def test_analytic_reads_the_first_layer_of_a_deeper_net() -> None:
    x, y = digits(5, side=8)
    observations, knowledge = attackable("mlp", 8, (x, y))
    assert db(x, Analytic().run(observations, knowledge, generators(1))[0]) > 100


def test_analytic_needs_no_labels() -> None:
    x, y = digits(5, side=8)
    observations, knowledge = attackable("linear", 8, (x, y))
    blind = [dataclasses.replace(knowledge[0], labels=None)]
    assert db(x, Analytic().run(observations, blind, generators(1))[0]) > 100


def test_analytic_does_not_find_two_digits_exactly() -> None:
    x, y = digits(5, count=2, side=8)
    observations, knowledge = attackable("linear", 8, (x, y))
    result = Analytic().run(observations, knowledge, generators(1))[0]
    assert result.samples.shape == x.shape
    assert db(x, result) < 60


def test_analytic_does_not_apply_to_a_convolution_or_to_a_silent_first_layer() -> None:
    observations, knowledge = attackable("cnn1", 28, digits(0))
    with pytest.raises(NotApplicableError, match=r"fully connected first layer, got extractor\.0 \(Conv2d\)"):
        Analytic().run(observations, knowledge, generators(1))
    observations, knowledge = attackable("linear", 8, digits(0, side=8))
    silent = dataclasses.replace(observations[0], sent={"classifier.weight": observations[0].sent["classifier.weight"]})
    with pytest.raises(NotApplicableError):
        Analytic().run([silent], knowledge, generators(1))


def test_analytic_needs_a_unit_for_each_example() -> None:
    observations, knowledge = attackable("linear", 8, digits(0, count=11, side=8))
    with pytest.raises(NotApplicableError, match=r"first layer with 11 units or more, .*, got \w+ \(Linear\) with 10$"):
        Analytic().run(observations, knowledge, generators(1))


def test_analytic_says_grey_where_nothing_was_sent() -> None:
    observations, knowledge = attackable("linear", 8, digits(0, side=8))
    nothing = {name: torch.zeros_like(value) for name, value in observations[0].sent.items()}
    result = Analytic().run([dataclasses.replace(observations[0], sent=nothing)], knowledge, generators(1))[0]
    assert bool((result.samples == 0.5).all())


@pytest.mark.slow
def test_ig_recovers_two_digits_from_the_sigmoid_lenet() -> None:
    batches = [digits(0), digits(1)]
    observations, knowledge = attackable("lenet", 28, *batches)
    result = IG(IGSettings(iterations=500)).run(observations, knowledge, generators(2))
    for (x, _), one in zip(batches, result, strict=True):
        assert db(x, one) > 25, [db(x, one) for (x, _), one in zip(batches, result, strict=True)]
        assert one.matching_loss is not None and one.matching_loss < 1e-3
    assert db(batches[0][0], result[1]) < 20  # each is its own digit, not a digit


@pytest.mark.slow
def test_ig_begins_where_its_settings_say() -> None:
    (x, y), (other, _) = digits(0, side=8), digits(1, side=8)
    observations, knowledge = attackable("lenet", 8, (x, y))
    public = Examples(torch.cat([x, x / 2, other]), torch.tensor([int(y), int(y), 99]))
    still = IG(IGSettings(iterations=1, lr=1e-6, start="class_mean"))
    assert still.uses == {"public"} and IG().uses == frozenset()
    (result,) = still.run(observations, [dataclasses.replace(knowledge[0], public=public)], generators(1))
    torch.testing.assert_close(result.samples, 0.75 * x, atol=1e-4, rtol=0)
    of_another = Examples(public.samples, torch.full((3,), 99))
    (result,) = still.run(observations, [dataclasses.replace(knowledge[0], public=of_another)], generators(1))
    torch.testing.assert_close(result.samples[0], public.samples.mean(0), atol=1e-4, rtol=0)
    with pytest.raises(NotApplicableError, match="needs public data"):
        still.run(observations, knowledge, generators(1))
    with pytest.raises(InputError, match="restarts=1 with start=class_mean, as all would start alike, got restarts=2"):
        IGSettings(restarts=2, start="class_mean")


def test_ig_needs_labels() -> None:
    observations, knowledge = attackable("lenet", 8, digits(0, side=8))
    with pytest.raises(NotApplicableError, match="labels"):
        IG().run(observations, [dataclasses.replace(knowledge[0], labels=None)], generators(1))


def of_a_shared_extractor() -> tuple[Any, Tensor, nets.Tensors, nets.Tensors]:
    """The inputs, the labels of a digit, what its client sends, and what it was sent."""
    inputs = digit_inputs(8)
    net, (x, y) = fresh_net("lenet", inputs.shape), digits(0, side=8)
    sent = {n: v for n, v in gradient(net, inputs, x, y).items() if n.startswith("extractor.")}
    known = {n: v for n, v in nets.tensors(net).items() if n.startswith("extractor.")}
    return inputs, y, sent, known


@pytest.mark.slow
def test_ig_searches_for_a_private_head_together_with_the_image() -> None:
    inputs, y, sent, known = of_a_shared_extractor()
    victim = PlainVictim(fresh_net("lenet", inputs.shape, seed=9), known, ("extractor.*",), inputs)
    (few,), (many,) = (
        IG(IGSettings(iterations=n)).run([seen(sent, known)], [Knowledge(victim, 1, y)], generators(1)) for n in (1, 60)
    )
    assert few.matching_loss is not None and many.matching_loss is not None
    assert many.matching_loss < few.matching_loss / 2


@pytest.mark.nightly
def test_ig_with_a_random_head_is_ig_that_knows_that_head() -> None:
    inputs, y, sent, known = of_a_shared_extractor()
    other = fresh_net("lenet", inputs.shape, seed=9)
    head = {n: v for n, v in nets.tensors(other).items() if n.startswith("classifier.")}
    hidden, granted = (PlainVictim(other, held, ("extractor.*",), inputs) for held in (known, {**known, **head}))
    random, searching = IG(IGSettings(iterations=20, private="random")), IG(IGSettings(iterations=20))

    def samples(attack: IG, victim: PlainVictim) -> Tensor:
        return attack.run([seen(sent, known)], [Knowledge(victim, 1, y)], generators(1))[0].samples

    torch.testing.assert_close(samples(random, hidden), samples(searching, granted))
    assert not torch.allclose(samples(random, hidden), samples(searching, hidden), atol=0.05)
    assert (random.private(other, 1), searching.private(other, 1)) == ("guessed", "searched for")


# --- restarts ---


@pytest.mark.nightly  # several searches
def test_ig_keeps_the_restart_with_the_lowest_distance() -> None:
    observations, knowledge = attackable("lenet", 8, digits(0, side=8), digits(1, side=8))
    published: dict[str, Any] = {"iterations": 25, "tv": 1e-6, "schedule": "constant"}
    one_start, four_starts = IG(IGSettings(**published)), IG(IGSettings(**published, restarts=4))
    rngs = generators(2, seed=1)  # drawn from four times in a row, as four restarts do
    single = [one_start.run(observations, knowledge, rngs) for _ in range(4)]
    best = four_starts.run(observations, knowledge, generators(2, seed=1))
    choices = set()
    for i in range(2):
        distances = [float(run[i].matching_loss or 0) for run in single]
        chosen = min(range(4), key=distances.__getitem__)
        choices.add(chosen)
        assert sorted(distances)[1] > min(distances) + 3e-4, "the choice must be visible"
        assert best[i].matching_loss == pytest.approx(distances[chosen], abs=1e-5)
        torch.testing.assert_close(best[i].samples, single[chosen][i].samples, rtol=0, atol=1e-3)
    assert choices not in ({0}, {3}), "always keeping the first or the last must be visible too"


class _Reciprocal(nn.Module):
    """Softmax regression on 1/x: where a search touches 0, everything it computes is NaN from there on."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(1 / x)


@pytest.mark.slow
def test_ig_does_not_keep_a_restart_that_ended_in_nan() -> None:
    inputs = InputSpec.from_constants((2,), (0.0, 0.0), (1.0, 1.0))
    with initialising(0, "reciprocal"):
        net = _Reciprocal()
    x, y = torch.tensor([[0.5, 0.8]]), torch.tensor([1])
    victim = PlainVictim(net, nets.tensors(net), ("*",), inputs)
    observation = seen(gradient(net, inputs, x, y), nets.tensors(net))
    attack = IG(IGSettings(iterations=1, lr=1e-3, restarts=8))
    single, rngs = IG(IGSettings(iterations=1, lr=1e-3)), generators(1)
    alone = [single.run([observation], [Knowledge(victim, 1, y)], rngs)[0].matching_loss for _ in range(8)]
    finite = [loss for loss in alone if loss is not None and math.isfinite(loss)]
    assert 0 < len(finite) < 8, "some starts must fail and some must not"
    result = attack.run([observation], [Knowledge(victim, 1, y)], generators(1))[0]
    assert result.matching_loss == pytest.approx(min(finite), abs=1e-5)


def test_ig_budget_is_what_was_set() -> None:
    assert IG(IGSettings(iterations=7, restarts=3)).cost == AttackCost(7, 3, "lowest cosine distance")
    assert IG().cost == AttackCost(1000, 1, "lowest cosine distance")
    assert Analytic().cost == AttackCost(0, 1, "closed form") and Analytic().labels == "not used"
    assert SPEAR().cost == AttackCost(0, 1, "proof by the network") and SPEAR().labels == "not used"


@pytest.mark.nightly  # several searches
def test_ig_without_the_sign_and_with_less_total_variation_are_other_searches() -> None:
    observations, knowledge = attackable("lenet", 8, digits(0, side=8))
    variants = [IGSettings(10), IGSettings(10, signed=False), IGSettings(10, tv=1e-3), IGSettings(10, lr=0.01)]
    variants.append(IGSettings(10, schedule="constant"))
    result = [IG(v).run(observations, knowledge, generators(1))[0].samples for v in variants]
    for one, other in combinations(result, 2):
        assert float((one - other).abs().max()) > 1e-2


@pytest.mark.nightly  # several searches
def test_ig_attacks_victims_of_different_models_and_batches_in_one_call() -> None:
    first, first_known = attackable("lenet", 8, digits(0, side=8), digits(3, count=2, side=8))
    second, second_known = attackable("linear", 8, digits(1, side=8))
    attack = IG(IGSettings(iterations=4, signed=False))
    observations, knowledge = [first[0], second[0], first[1]], [first_known[0], second_known[0], first_known[1]]
    together = attack.run(observations, knowledge, generators(3))
    assert [len(result.samples) for result in together] == [1, 1, 2]
    for i in range(3):
        (alone,) = attack.run([observations[i]], [knowledge[i]], [generators(3)[i]])
        torch.testing.assert_close(together[i].samples, alone.samples, rtol=0, atol=1e-4)


# --- the contract, for every attack there is ---


def situation(kind: str) -> tuple[tuple[Observation, ...], tuple[Knowledge, ...], tuple[Tensor, ...]]:
    """Two victims of one model, new each time, so that no attack sees what another one wrote."""
    if kind == "table":
        both = [attackable_rows(1, seed) for seed in (0, 2)]
        knowledge = [dataclasses.replace(both[0][1][0], labels=known[0].labels) for _, known, _ in both]
        return tuple(o[0] for o, _, _ in both), tuple(knowledge), tuple(x for _, _, x in both)
    if kind == "text":
        return texts()
    batches = [digits(0, side=8), digits(1, side=8)]
    if kind == "generated":
        inputs = digit_inputs(8)
        with initialising(0, "client"):
            client = GeneratedNet(nets.build("lenet", inputs.shape, 10), 4, 8, "fan_in")
        with initialising(0, "attacker"):
            model = GeneratedNet(nets.build("lenet", inputs.shape, 10), 4, 8, "fan_in")
        known = {n: v for n, v in nets.tensors(client).items() if n.startswith("hypernet.")}
        victim = GeneratedVictim(model, known, inputs)
        shared = [
            {n: v for n, v in gradient(client, inputs, x, y).items() if n.startswith("hypernet.")} for x, y in batches
        ]
        observations = [seen(sent, known, i) for i, sent in enumerate(shared)]
        knowledge = [Knowledge(victim, 1, y) for _, y in batches]
    elif kind in ("imprinted", "columns"):  # by a malicious server, whose crafted numbers need public data
        inputs, malicious = digit_inputs(8), Imprint() if kind == "imprinted" else Loki()
        net = malicious.network(fresh_net("lenet", inputs.shape))
        public = inputs.normalise(digits(500, 100, side=8)[0])
        net.load_state_dict(malicious.crafted(nets.tensors(net), public), strict=False)
        net.load_state_dict(malicious.personal(0, nets.tensors(net), public), strict=False)
        received = {name: value.clone() for name, value in nets.tensors(net).items()}
        victim = PlainVictim(net, received, ("*",), inputs)
        observations = [seen(gradient(net, inputs, x, y), received, i) for i, (x, y) in enumerate(batches)]
        knowledge = [Knowledge(victim, 1, y) for _, y in batches]
    elif kind == "public":  # beside public data
        public = Examples(*digits(500, 100, side=8))
        observations, knowledge = attackable("linear", 8, *batches)
        knowledge = [dataclasses.replace(known, public=public) for known in knowledge]
    else:
        observations, knowledge = attackable(kind, 8, *batches)
    return tuple(observations), tuple(knowledge), tuple(x for x, _ in batches)


def texts() -> tuple[tuple[Observation, ...], tuple[Knowledge, ...], tuple[Tensor, ...]]:
    """Two victims with a text of four bytes each, and a transformer."""
    inputs = InputSpec.from_constants((4,), (0.0,) * 4, (1.0,) * 4)
    net, victims = fresh_net("gpt_tiny", (4,)), [torch.tensor([list(word)]) / 255 for word in (b"fox.", b"dogs")]
    received, labels = nets.tensors(net), torch.tensor([0])
    model = PlainVictim(fresh_net("gpt_tiny", (4,), seed=9), received, ("*",), inputs)
    observations = [seen(gradient(net, inputs, x, labels), received, i) for i, x in enumerate(victims)]
    return tuple(observations), tuple(Knowledge(model, 1, labels) for _ in victims), tuple(victims)


Situation = tuple[Sequence[Observation], Sequence[Knowledge]]


def tensors_of(situation: Situation) -> list[list[Tensor]]:
    """All that is observed and known."""
    observations, knowledge = situation
    kept = [[*o.sent.values(), *o.received.values()] for o in observations]
    return [*kept, *([*k.model.known.values(), *k.model.unknown.values()] for k in knowledge)]


@dataclasses.dataclass(frozen=True)
class Attacked:
    """One run of an attack in the first situation that it applies to.

    Attributes:
        attack: with a budget of a few steps.
        situation: what it was run on.
        before: copies of what was observed and known, from before that run.
        result: reconstructions by generators of seed 0.
    """

    attack: Attack
    situation: Situation
    before: list[list[Tensor]]
    result: list[Reconstruction]


KINDS = ("linear", "lenet", "generated", "mlp", "table", "imprinted", "columns", "text", "vit_plain", "public")


def breach(name: str, missing: str, way: str) -> str:
    """The message of a failure: the attack's file, what is wrong with it, and what to do."""
    return f"attacks/{name}.py: {missing}; {way}. The contract is in docs/developing.md, 'An attack'."


@cache  # what most tests of an attack begin with, and what takes longest
def attacked(name: str, victims: int = 2) -> Attacked:
    attack = with_few_steps(name)
    reasons = []
    for kind in KINDS:
        observations, knowledge, _ = (part[:victims] for part in situation(kind))
        before = [[tensor.clone() for tensor in tensors] for tensors in tensors_of((observations, knowledge))]
        try:
            result = attack.run(observations, knowledge, generators(victims))
        except NotApplicableError as error:
            reasons.append(f"{kind}: {error}")
            continue
        return Attacked(attack, (observations, knowledge), before, result)
    way = "add a kind on which it works to `KINDS` and `situation` in tests/attacks/test_attacks.py"
    raise AssertionError(breach(name, f"it applies to none of the tests' situations ({'; '.join(reasons)})", way))


def with_few_steps(name: str) -> Attack:
    try:
        cls = plugins.load_class(plugins.ATTACK, name, Attack)
    except InputError as error:
        way = "define one class that derives from Attack and has its `cost` and its `run` (of a search: its `recipe`)"
        raise AssertionError(breach(name, str(error).rstrip("."), way)) from error
    frozen = dataclasses.is_dataclass(cls.Settings)
    assert frozen, breach(name, "its `Settings` is no dataclass", "write @dataclass(frozen=True) above it")
    few = {field.name: 3 for field in dataclasses.fields(cls.Settings) if field.name.endswith("iterations")}
    try:
        return cls(cls.Settings(**few))
    except InputError as error:
        way = "allow 3 in fields whose names end in 'iterations' (the tests set it), or name the field otherwise"
        raise AssertionError(breach(name, str(error).rstrip("."), way)) from error


CLASSES = {name: plugins.load_class(plugins.ATTACK, name, AttackPlugin) for name in plugins.names(plugins.ATTACK)}
RECONSTRUCTING = [name for name, cls in CLASSES.items() if issubclass(cls, Attack) and cls.reconstructs]
every_attack = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in RECONSTRUCTING])


def test_the_attacks_there_are_include_the_two_this_file_knows() -> None:
    assert {"analytic", "ig"} <= set(plugins.names(plugins.ATTACK))


@every_attack
def test_budget_is_stated(name: str) -> None:
    cost = attacked(name).attack.cost
    way = "return Budget(iterations >= 0, restarts >= 1, the rule that chooses a result, in words)"
    stated = cost.iterations >= 0 and cost.restarts >= 1 and cost.selection
    assert stated, breach(name, f"its `cost` is {cost}", way)


@every_attack
def test_reconstructions_are_finite_raw_inputs_in_the_box(name: str) -> None:
    run = attacked(name)
    count = f"`run` returned {len(run.result)} results for 2 observations"
    assert len(run.result) == 2, breach(name, count, "return a Reconstruction for each, in their order")
    for one, knowledge in zip(run.result, run.situation[1], strict=True):
        shape, got = (knowledge.batch, *knowledge.model.inputs.shape), tuple(one.samples.shape)
        way = "return `known.batch` raw inputs of `known.model.inputs.shape`"
        assert got == shape, breach(name, f"its samples have the shape {got} in place of {shape}", way)
        plain = one.samples.dtype == torch.float32 and not one.samples.requires_grad
        assert plain, breach(name, "its samples are not plain float32", "end with .detach().float()")
        finite, way = bool(torch.isfinite(one.samples).all()), "replace such values, for example by nan_to_num(nan=0.5)"
        assert finite, breach(name, "its samples are not all finite", way)
        ends = float(one.samples.min()), float(one.samples.max())
        outside = f"its samples span {ends}, outside of the box {knowledge.box}"
        way = "undo the normalisation, then clamp"
        assert knowledge.box[0] <= ends[0] and ends[1] <= knowledge.box[1], breach(name, outside, way)


@every_attack
def test_a_narrower_box_is_kept_to(name: str) -> None:
    run = attacked(name)
    observations, knowledge = run.situation
    narrow = [dataclasses.replace(known, box=(0.25, 0.5)) for known in knowledge]
    for one in run.attack.run(observations, narrow, generators(2)):
        ends = float(one.samples.min()), float(one.samples.max())
        wide = f"its samples span {ends} where `known.box` is (0.25, 0.5)"
        assert ends[0] >= 0.25 and ends[1] <= 0.5, breach(name, wide, "clamp to `known.box`, not to 0 and 1")


def same(a: Sequence[Reconstruction], b: Sequence[Reconstruction]) -> bool:
    return all(torch.equal(x.samples, y.samples) for x, y in zip(a, b, strict=True))


@every_attack
def test_the_same_generators_give_the_same_result(name: str) -> None:
    run = attacked(name)
    torch.manual_seed(1)  # the global generator is nobody's business
    again = run.attack.run(*run.situation, generators(2))
    way = "draw from the observation's own generator in `rngs` only, and keep nothing from one run to the next"
    assert same(run.result, again), breach(name, "a second run with the same generators had another result", way)


@every_attack
def test_what_is_observed_and_known_is_left_as_it_was(name: str) -> None:
    run = attacked(name, victims=1)  # a search is traced anew for two
    for before, after in zip(run.before, tensors_of(run.situation), strict=True):
        kept = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        wrote = "it wrote into tensors of an Observation or of a Knowledge"
        assert kept, breach(name, wrote, "clone them first, and use no operation that ends in _ on them")


# --- capabilities ---


def bookkeeping_poisoned(observation: Observation) -> Observation:
    """The same arrays with everything else about the exchange falsified."""
    nonsense: Any = float("nan")
    return dataclasses.replace(
        observation,
        vantage=Vantage.CLIENT_EXAMPLE,
        source="poison",
        control="poison",
        round=nonsense,
        client=nonsense,
        slot=nonsense,
    )


def sees_more_than_it_may(attack: Attack, situation: Situation, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the result changes with the truth on disk or with the bookkeeping of the observation."""
    observations, knowledge = situation
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FLFW_TRUTH", str(folder / "truth"))
    write_truth(situation, folder / "truth", 0.3)
    honest = attack.run(observations, knowledge, generators(2))
    write_truth(situation, folder / "truth", math.nan)
    poisoned = [bookkeeping_poisoned(o) for o in observations]
    unexplained = [dataclasses.replace(known, granted=("poison",)) for known in knowledge]
    try:
        return not same(honest, attack.run(poisoned, unexplained, generators(2)))
    except (TypeError, ValueError, KeyError, OSError):
        return True


def write_truth(situation: Situation, folder: Path, fill: float) -> None:
    observations, knowledge = situation
    samples = torch.full((1, *knowledge[0].model.inputs.shape), fill)
    for observation in observations:
        Truth(samples, torch.tensor([0]), torch.tensor([0])).write(folder, observation.key)


@every_attack
def test_an_attack_sees_nothing_but_its_observation_and_its_knowledge(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = attacked(name)
    more = sees_more_than_it_may(run.attack, run.situation, tmp_path, monkeypatch)
    reads = "its result depends on the truth on disk, or on the vantage, source, control, round, client or slot"
    way = "use only `sent` and `received` of an Observation, and of a Knowledge all but `granted`"
    assert not more, breach(name, reads, way)


class _Cheat(ByGuess):
    """Opens the truth."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        return Truth.read(Path(os.environ["FLFW_TRUTH"]), observation.key).samples


class _Bookkeeper(ByGuess):
    """Uses the client's number, which its threat model does not grant."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        return torch.full(knowledge.model.inputs.shape, float(observation.client) / 10)


@pytest.mark.parametrize("attack", [_Cheat(), _Bookkeeper()], ids=["truth", "bookkeeping"])
def test_a_cheating_attack_is_found_out(attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sees_more_than_it_may(attack, situation("linear")[:2], tmp_path, monkeypatch)


@every_attack
def test_a_result_depends_on_what_was_sent(name: str) -> None:
    run = attacked(name)
    observations, knowledge = run.situation
    swapped = [dataclasses.replace(a, sent=b.sent) for a, b in zip(observations, reversed(observations), strict=True)]
    unmoved = same(run.result, run.attack.run(swapped, knowledge, generators(2)))
    way = "use `sent`; where it gives the attack nothing to work on, raise NotApplicableError"
    assert not unmoved, breach(name, "its result is the same when other tensors were sent", way)


@every_attack
def test_a_result_does_not_depend_on_what_else_is_attacked(name: str) -> None:
    run = attacked(name)
    observations, knowledge = run.situation
    (alone,) = run.attack.run(observations[1:], knowledge[1:], generators(2)[1:])
    way = "take for each observation its own generator, and no sum, batch or random number of all together"
    broken = breach(name, "an observation's result is another one if it is attacked alone", way)
    torch.testing.assert_close(
        alone.samples, run.result[1].samples, rtol=0, atol=1e-4, msg=lambda by: f"{broken}\n{by}"
    )
