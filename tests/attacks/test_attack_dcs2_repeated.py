"""DCS^2 asked several times: the undefended gradient out of the same weights, and better images out of other ones."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sim
from flfw import nets
from flfw.attacks.dcs2 import DCS2Inversion, DCS2InversionSettings
from flfw.attacks.ig import IG, IGSettings
from flfw.client.federated_client import ProbeResponder
from flfw.clients.defences.dcs2 import DCS2, DCS2Settings, Search
from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.closed_form.concealed import SOLVED, Separated, rank, separate, solvable
from flfw.nets.inputs import InputSpec
from flfw.nets.representation import representation
from flfw.recording.observation import Knowledge, Observation
from flfw.rng import initialising, torch_generator
from flfw.task.defence import LocalStep
from tests.support.attackable import db, digit_inputs, digits, fresh_net, generators, gradient, seen
from tests.support.repeated_answers import answers_needed, joined

INPUTS = InputSpec.from_constants((1, 16, 16), (0.5,), (0.25,))


def network(name: str, seed: int) -> nn.Module:
    with initialising(seed, name):
        return nets.build(name, INPUTS.shape, 10)


def batch(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Random images, of as many classes as there are."""
    return torch.rand(count, *INPUTS.shape, generator=torch_generator(seed, "asked again")), torch.arange(count) % 10


def undefended(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return gradient(net, INPUTS, x, y)


def answers(
    net: nn.Module, x: Tensor, y: Tensor, times: int, first: int = 0, **settings: object
) -> list[dict[str, Tensor]]:
    """Messages of the defence; each has a generator of its own, as each round of a client has."""
    public = torch.rand(40, *INPUTS.shape, generator=torch_generator(0, "public")), torch.arange(40) % 10
    step = LocalStep(undefended(net, x, y), x, y, net, INPUTS, lambda: public, torch.arange(len(y)))
    defence = DCS2(DCS2Settings(**{"steps": 10, "stop": "never", **settings}))  # type: ignore[arg-type]
    return [defence.step(step, torch_generator(ask, "answer")) for ask in range(first, first + times)]


def layer(message: dict[str, Tensor], name: str = "classifier") -> Tensor:
    """A layer's gradient, that of its bias as the last column."""
    return torch.cat([message[f"{name}.weight"], message[f"{name}.bias"][:, None]], 1)


def asked(net: nn.Module, x: Tensor, y: Tensor, times: int, **settings: object) -> Tensor:
    return torch.stack([layer(message) for message in answers(net, x, y, times, 0, **settings)])


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def features(net: nn.Module, gradient: Tensor, y: Tensor) -> Separated:
    """Features out of an undefended gradient of the last layer."""
    last = net.get_submodule("classifier")
    assert isinstance(last, nn.Linear)
    given = gradient[:, :-1], gradient[:, -1], last.weight.detach(), last.bias.detach(), y, torch.zeros_like(y) > 0
    return separate(*given, torch_generator(0, "separated"), starts=100)


def worst(guess: Tensor, truth: Tensor) -> float:
    return max(apart(a, b) for a, b in zip(guess, truth, strict=True))


@pytest.mark.slow
def test_five_examples_that_no_message_gives_away_come_out_of_a_few() -> None:
    """Three messages give the gradient, but not on every processor so exactly that its features pass the limit."""
    net, (x, y) = network("lenet", 0), batch(0, 5)
    messages = asked(net, x, y, 4)
    assert rank(messages[0][:, :-1]) == 9 and not solvable(5, 5, 10)  # one message: 9 directions of 10 samples
    three, result = joined(messages[:3], 5, 5, 9), joined(messages, 5, 5, 9)
    assert three.error < SOLVED and apart(3 * three.gradient, layer(undefended(net, x, y))) < 1e-4
    assert result.error < SOLVED and apart(3 * result.gradient, layer(undefended(net, x, y))) < 1e-5
    separated = features(net, 3 * result.gradient, y)
    assert separated.error < SOLVED
    assert worst(separated.examples, representation(net, "classifier", INPUTS.normalise(x))) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("count", "times", "settings"), [(2, 2, {}), (6, 4, {}), (20, 4, {"sensitive": "last:3"})])
def test_what_several_answers_have_in_common_is_the_undefended_gradient(
    count: int, times: int, settings: dict[str, object]
) -> None:
    """Also of a batch with more examples than classes, where few are sensitive: no rule, no label, no mixture."""
    net, (x, y) = network("lenet", 0), batch(0, count)
    result = joined(asked(net, x, y, times, **settings), count, 3 if settings else count, 9)
    assert result.error < SOLVED and apart(3 * result.gradient, layer(undefended(net, x, y))) < 1e-4


@pytest.mark.slow
def test_two_answers_give_away_a_wide_layer_below_the_last() -> None:
    net, (x, y) = network("mlp", 0), batch(0, 12)
    first = next(name for name, part in net.named_modules() if isinstance(part, nn.Linear))
    messages = torch.stack([layer(message, first) for message in answers(net, x, y, 2)])
    assert answers_needed(12, 12, messages.shape[1]) == 2
    result = joined(messages, 12, 12, messages.shape[1])
    assert apart(3 * result.gradient, layer(undefended(net, x, y), first)) < 1e-4


@pytest.mark.slow
def test_answers_about_different_examples_have_nothing_in_common() -> None:
    net = network("lenet", 0)
    others = [asked(net, *batch(seed, 5), times=1)[0] for seed in range(3)]
    assert joined(torch.stack(others), 5, 5, 9).error > 20 * SOLVED


def test_what_else_all_messages_have_in_common_shows_in_the_gain_and_not_in_the_error() -> None:
    """Three examples and three concealed samples a message, one of which is the same in all; random numbers."""
    rng = torch_generator(0, "in common")

    def part(rank: int) -> Tensor:
        a = torch.randn(10, rank, generator=rng)
        return (a - a.mean(0)) @ torch.randn(rank, 100, generator=rng)

    batch_part, shared = part(3), part(1)
    genuine = joined(torch.stack([batch_part + part(3) for _ in range(4)]), 3, 3, 9)
    assert genuine.error < 1e-6 and genuine.gain < 100 and apart(genuine.gradient, batch_part) < 1e-5
    spoilt = joined(torch.stack([batch_part + shared + part(2) for _ in range(4)]), 3, 3, 9)
    assert spoilt.error < 1e-6 and spoilt.gain > 1e6 and apart(spoilt.gradient, batch_part) > 0.1


@pytest.mark.slow
def test_the_same_answer_again_tells_nothing() -> None:
    """A generator of the same round and probe draws the same proxies, so a repeated ask must be another round's."""
    net, (x, y) = network("lenet", 0), batch(0, 5)
    (message,), (again,) = asked(net, x, y, 1), asked(net, x, y, 1)
    assert torch.equal(message, again)
    result = joined(torch.stack([message] * 3), 5, 5, 9)
    assert apart(3 * result.gradient, layer(undefended(net, x, y))) > 1e-2


@pytest.mark.nightly
def test_weights_that_move_between_the_answers_spoil_it() -> None:
    net, (x, y) = network("lenet", 0), batch(0, 5)
    errors = []
    for moved in (1e-6, 1e-4, 1e-2):
        messages = []
        for ask in range(3):
            other = network("lenet", 0)
            with torch.no_grad():
                for part in other.parameters():
                    part += ask * moved * torch.randn(part.shape, generator=torch_generator(ask, "moved"))
            messages.append(layer(answers(other, x, y, 1, first=ask)[0]))
        errors.append(apart(3 * joined(torch.stack(messages), 5, 5, 9).gradient, layer(undefended(net, x, y))))
    assert errors[0] < 1e-3 and errors[1] > 30 * errors[0] and errors[2] > 0.05


@pytest.mark.parametrize(
    ("count", "times", "line"),
    [
        (5, 2, "at least 3 messages, got messages=2"),
        (9, 40, "at least no number of messages, got messages=40"),
        (5, 6, "at most 5 messages for a layer of 30 inputs, got messages=6"),
    ],
)
def test_too_few_messages_and_too_many_for_the_layer_are_refused(count: int, times: int, line: str) -> None:
    with pytest.raises(InputError, match=line):
        joined(torch.zeros(times, 10, 30), count, count, 9)


@pytest.mark.nightly
@pytest.mark.parametrize(("count", "times"), [(5, 3), (5, 4), (6, 4), (7, 6), (8, 12)])
def test_rates_of_the_joined_answers(count: int, times: int) -> None:
    """Rates in research/attack_dcs2_measurements.md, for three networks; near the limit rounding decides."""
    errors, solved = [], []
    for seed in range(3):
        net, (x, y) = network("lenet", seed), batch(seed, count)
        common = 3 * joined(asked(net, x, y, times), count, count, 9).gradient
        errors.append(apart(common, layer(undefended(net, x, y))))
        separated = features(net, common, y)
        if separated.error < SOLVED:
            solved.append(worst(separated.examples, representation(net, "classifier", INPUTS.normalise(x))))
    off = f"features of {len(solved)} of 3, off by at most {max(solved, default=torch.nan):.0e}"
    print(f"{count} examples, {times} answers: gradient off by at most {max(errors):.0e}; {off}")
    assert max(errors) < 1e-3 and max(solved, default=0.0) < 1e-3 and solved


def after_steps(x: Tensor, y: Tensor, rounds: int, steps: int, lr: float) -> tuple[Observation, Knowledge]:
    """An undefended answer after training, and the knowledge of those of earlier rounds."""
    inputs, net, answered = digit_inputs(16), fresh_net("lenet", (1, 16, 16)), []
    for server_round in range(rounds):
        held = {name: value.clone() for name, value in nets.tensors(net).items()}
        victim = PlainVictim(fresh_net("lenet", inputs.shape, seed=9), held, ("*",), inputs)
        answered.append((seen(gradient(net, inputs, x, y), victim.known), Knowledge(victim, len(y), y)))
        for step in range(steps):
            moved = gradient(net, inputs, *digits(100 + 64 * (step + server_round), 64, side=16))
            with torch.no_grad():
                for name, part in net.named_parameters():
                    part -= lr * moved[name]
    *before, (observation, knowledge) = answered
    return observation, replace(knowledge, earlier=tuple(before))


@pytest.mark.slow
def test_two_rounds_with_other_weights_give_the_image_more_exactly_than_one() -> None:
    x, y = digits(0, side=16)
    observation, knowledge = after_steps(x, y, 2, 20, 0.3)
    qualities = {}
    for earlier in (0, 1):
        attack = DCS2Inversion(DCS2InversionSettings(search_iterations=300, earlier=earlier))
        assert attack.uses == (frozenset({"earlier"}) if earlier else frozenset())
        qualities[earlier] = db(x, attack.run([observation], [knowledge], generators(1))[0])
    assert qualities[1] > qualities[0] + 3


def defended(x: Tensor, y: Tensor, **settings: object) -> tuple[LocalStep, DCS2]:
    """A fresh network's step on real digits, with others as public examples."""
    net, inputs = fresh_net("lenet", (1, 16, 16)), digit_inputs(16)
    step = LocalStep(gradient(net, inputs, x, y), x, y, net, inputs, lambda: digits(500, 200, side=16))
    return step, DCS2(DCS2Settings(**settings))  # type: ignore[arg-type]


@pytest.mark.nightly
def test_gain_of_the_mean_answer_for_a_search_that_is_not_told() -> None:
    """Figures in research/attack_dcs2_measurements.md: the concealed samples are all near one place."""
    qualities: dict[int, list[float]] = {1: [], 16: [], 0: []}
    for image in range(3):
        x, y = digits(image, side=16)
        step, defence = defended(x, y, steps=100, stop="never")
        sent = [defence.step(step, torch_generator(ask, "answer")) for ask in range(16)]
        for times in qualities:
            mean = {name: torch.stack([one[name] for one in sent[: times or 1]]).mean(0) for name in sent[0]}
            victim = PlainVictim(fresh_net("lenet", (1, 16, 16), 9), nets.tensors(step.model), ("*",), step.inputs)
            observation = seen(mean if times else dict(step.gradients), victim.known)
            attack = IG(IGSettings(iterations=500))
            qualities[times].append(db(x, attack.run([observation], [Knowledge(victim, 1, y)], generators(1))[0]))
    print({times: f"{sum(one) / len(one):.1f} dB" for times, one in qualities.items()}, "0: undefended")
    assert sum(qualities[1]) < sum(qualities[0])


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [{}, {"stop": "never"}, {"stop": "never", "boxed": True}], ids=str)
def test_range_of_the_concealed_features(settings: dict[str, object]) -> None:
    """Figures in research/attack_dcs2_measurements.md: shares of features outside those of public examples."""
    shares: dict[str, list[float]] = {"examples": [], "concealed": []}
    for image in range(6):
        step, _ = defended(*digits(image, side=16))
        public = representation(step.model, "classifier", step.inputs.normalise(step.public()[0]))
        minimum, maximum = public.min(0).values, public.max(0).values
        search = Search(DCS2Settings(**{"steps": 400, **settings}), step, torch.ones(1) > 0, list(step.gradients))  # type: ignore[arg-type]
        concealed, _ = search.concealed(torch_generator(image, "answer"))
        for name, x in {"examples": step.inputs.normalise(step.x), "concealed": concealed}.items():
            f = representation(step.model, "classifier", x)
            shares[name].append(float(((f < minimum) | (f > maximum)).float().mean()))
    means = {name: f"{min(values):.1%} to {max(values):.1%}" for name, values in shares.items()}
    print(settings, means)
    assert min(shares["concealed"]) > 2 * max(shares["examples"])


@pytest.mark.nightly
@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_gain_of_earlier_rounds(lr: float) -> None:
    """Figures in research/attack_dcs2_measurements.md, for four images and five steps of training between rounds."""
    quality = {}
    for rounds in (1, 2, 4):
        attack, qualities = DCS2Inversion(DCS2InversionSettings(search_iterations=1000)), []
        for image in range(4):
            x, y = digits(image, side=16)
            observation, knowledge = after_steps(x, y, 4, 5, lr)
            knowledge = replace(knowledge, earlier=knowledge.earlier[4 - rounds :])
            qualities.append(db(x, attack.run([observation], [knowledge], generators(1))[0]))
        quality[rounds] = sum(qualities) / len(qualities)
    print(f"lr {lr}: " + ", ".join(f"{rounds} rounds {mean:.1f} dB" for rounds, mean in quality.items()))
    assert quality[4] > quality[2] > quality[1]


@pytest.mark.slow
def test_an_earlier_answer_that_cannot_be_read_or_ordered_is_not_joined() -> None:
    attack = DCS2Inversion(DCS2InversionSettings(search_iterations=3, starts=20, separation_iterations=20))
    observation, knowledge = after_steps(*digits(0, side=16), 2, 1, 0.1)
    (before, known), alone = knowledge.earlier[0], replace(knowledge, earlier=())
    noise = {name: torch.randn(value.shape, generator=torch_generator(0, name)) for name, value in before.sent.items()}
    spoilt = replace(knowledge, earlier=((replace(before, sent=noise), known),))
    (one,), (other,) = (attack.run([observation], [k], generators(1)) for k in (spoilt, alone))
    assert torch.equal(one.samples, other.samples)
    x, _ = digits(0, 2, side=16)
    _, alike = after_steps(x, torch.tensor([4, 4]), 2, 1, 0.1)
    assert attack._of_earlier_rounds(alike, generators(1)[0]) == []
    _, apart = after_steps(x, torch.tensor([4, 7]), 2, 1, 0.1)
    assert len(DCS2Inversion()._of_earlier_rounds(apart, generators(1)[0])) == 1


@pytest.mark.slow
def test_a_run_grants_the_answers_after_earlier_rounds(tmp_path: Path) -> None:
    flags = "--method fedavg --dataset digits --net lenet --clients 2 --rounds 1 --local-epochs 1 --batch-size 400"
    flags += " --engine inproc --attack dcs2 --images 2 --audit-rounds 0,1 --set dcs2.search_iterations=5 --out"
    assert sim.main([*flags.split(), str(tmp_path / "run")]) == 0
    entries = json.loads((tmp_path / "run" / "result.json").read_text())["audit"]
    granted = {entry["round"]: any("after earlier rounds" in line for line in entry["granted"]) for entry in entries}
    assert granted == {0: False, 1: True}


@pytest.mark.slow
def test_a_client_that_dropped_out_of_a_round_takes_no_answer_of_another_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answered a probe after an earlier round: that is granted, but there is nothing of it to attack."""
    answering = ProbeResponder.gradient

    def failing(self: ProbeResponder, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        if self.ctx.partition == 1 and self.ctx.round == 1:
            raise ValueError("has dropped out for the test")
        return answering(self, x, y)

    monkeypatch.setattr(ProbeResponder, "gradient", failing)
    flags = "--method fedavg --dataset digits --net lenet --clients 2 --rounds 1 --local-epochs 1 --batch-size 400"
    flags += " --expert on_client_failure=drop --engine inproc --attack dcs2 --images 2 --audit-rounds 0,1"
    assert sim.main([*flags.split(), "--set", "dcs2.search_iterations=5", "--out", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert not [note for note in result["notes"] if "crashed" in note]
    assert {entry["round"]: entry["failures"] for entry in result["audit"]} == {0: 0, 1: 1}
