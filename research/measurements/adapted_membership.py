"""Gain of knowing what hides the data.

``python -m research.measurements.adapted_membership [--json] [--quick] [--only prune]``.

One step over 40 of scikit-learn's digits from fresh weights of the MLP, hidden as a client does it; these members and
as many others are the candidates, 400 more digits are public. Each figure is the mean AUC of ``whitened`` over draws
with its standard error: ``static``, as ``membership`` scores without any knowledge; ``not_told``, the adaptive form
without the mechanism, whose ridge is chosen by public examples; ``told``, with it. ``gain`` is the mean of the
differences of the last two within draws: what the knowledge alone gives.

- open: nothing hides the data; who is told has nothing to adapt to.
- prune: the largest tenth of each tensor is sent.
- rounding: 4 bits for each entry.
- clip: each example's gradient is clipped to half of the usual length.
- faint and loud: no clipping in effect, and noise of a tenth of, and as loud as, the mean gradient in all its length.
- hyperfl: a hypernetwork's gradient; embedding and classifier are private.
- dcs2: gradients of concealed samples are mixed in. Nothing is written for it, so that nobody is told.

The last line of the output is one JSON object.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from math import sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor

from benchmarks import output
from flfw import data, nets
from flfw.adversary.membership.gradients import norm
from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.attacks.adaptations.fed_cdp import FedCDPAdaptation
from flfw.attacks.adaptations.low_precision import LowPrecisionAdaptation
from flfw.attacks.adaptations.prune import PruneAdaptation
from flfw.attacks.membership import Membership, MembershipSettings
from flfw.clients.defences.dcs2 import DCS2, DCS2Settings
from flfw.clients.defences.low_precision import LowPrecision
from flfw.clients.defences.prune import Prune
from flfw.inversion.client_models.operator import Circumstances, Operator, Scaled
from flfw.inversion.client_models.victim import GeneratedVictim, PlainVictim, VictimModel
from flfw.inversion.clipped import clipped
from flfw.inversion.private.surrogate import SurrogateTraining, trained_upon
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.nets.training.optimisers import loss_and_grad
from flfw.recording.observation import Examples
from flfw.rng import initialising, numpy_generator, torch_generator
from flfw.strategies.fed_cdp import FedCDPSettings
from flfw.task.defence import LocalStep
from research.measurements.membership_attack import auc, means

_MEMBERS, _PUBLIC, _WIDTH, _LR = 40, 400, 256, 0.1
_WIDE = 1e6  # a bound that clips nothing


@dataclass(frozen=True)
class ClientStep:
    """Step of one client, with the examples that are scored.

    Attributes:
        x: (N, ...) raw inputs: the members, as many others, and the public ones.
        y: (N,) their classes.
        seed: number of the draw.
    """

    x: Tensor
    y: Tensor
    seed: int

    @property
    def members(self) -> tuple[Tensor, Tensor]:
        """The examples of the step."""
        return self.x[:_MEMBERS], self.y[:_MEMBERS]

    @property
    def candidates(self) -> Examples:
        """Members, then others."""
        return Examples(self.x[: 2 * _MEMBERS], self.y[: 2 * _MEMBERS])

    @property
    def public(self) -> Examples:
        """Examples of nobody."""
        return Examples(self.x[2 * _MEMBERS :], self.y[2 * _MEMBERS :])


@dataclass(frozen=True)
class Hidden:
    """Message of one step, and the knowledge of an informed attacker.

    Attributes:
        received: tensors before the step.
        sent: tensors after it.
        mechanism: what hides the data, as it is modelled; None: it is not, or there is nothing.
        replaced: private part with a stand-in; empty: none.
        informed: whether there is an informed attacker.
    """

    received: Tensors
    sent: Tensors
    mechanism: Operator | None = None
    replaced: str = ""
    informed: bool = True


Client: TypeAlias = Callable[[ClientStep, VictimModel], Hidden]
"""Function of a draw and the client's model for its message."""


@cache
def inputs() -> InputSpec:
    """Return the input space of the digits."""
    dataset = data.load("digits", None)
    return InputSpec.from_constants(dataset.shape, dataset.mean, dataset.std)


def drawn(seed: int, public: int = _PUBLIC) -> ClientStep:
    """Draw distinct digits."""
    dataset = data.load("digits", None)
    order = numpy_generator(seed, "draw").permutation(len(dataset.train_x))[: 2 * _MEMBERS + public]
    x = torch.tensor(dataset.train_x[order]).float() / 255
    return ClientStep(x, torch.tensor(dataset.train_y[order]).long(), seed)


def plain(seed: int) -> PlainVictim:
    """Build the MLP at fresh weights, all of which are shared."""
    with initialising(seed, "net"):
        net = nets.build("mlp", inputs().shape, 10)
    return PlainVictim(net, net.state_dict(), ("*",), inputs())


def step(victim: VictimModel, gradient: Tensors) -> Tensors:
    """Return the known tensors after one step along a gradient."""
    return {name: value - _LR * gradient[name] if name in gradient else value for name, value in victim.known.items()}


def mean_gradient(draw: ClientStep, victim: VictimModel) -> Tensors:
    """Compute the members' mean gradient."""
    return {name: value.detach() for name, value in victim.gradient(*draw.members, victim.unknown, {}).items()}


def undefended(draw: ClientStep, victim: VictimModel) -> Hidden:
    """Send the step as it is."""
    return Hidden(victim.known, step(victim, mean_gradient(draw, victim)))


def defended(defence: Prune | LowPrecision, written: type[Operator]) -> Client:
    """Return a client that passes its change through a defence."""

    def client(draw: ClientStep, victim: VictimModel) -> Hidden:
        change = {name: -_LR * value for name, value in mean_gradient(draw, victim).items()}
        changed = defence.update(change, torch_generator(draw.seed, "defence"))
        sent = {name: value + changed[name] for name, value in victim.known.items()}
        return Hidden(victim.known, sent, Scaled(written(asdict(defence.settings)), -_LR))

    return client


def noisy(share: float, clip: float) -> Client:
    """Return a client of Fed-CDP.

    Args:
        share: length of the noise over that of the mean gradient.
        clip: bound over the mean length of an example's gradient; 0: a bound that clips nothing.
    """

    def client(draw: ClientStep, victim: VictimModel) -> Hidden:
        x, y = draw.members
        each = [victim.gradient(x[i : i + 1], y[i : i + 1], victim.unknown, {}) for i in range(len(x))]
        bound = clip * float(torch.stack([norm(one) for one in each]).mean()) or _WIDE
        parts = [clipped(one, bound, "flat") for one in each]
        mean = {name: torch.stack([one[name] for one in parts]).mean(0).detach() for name in parts[0]}
        numbers = sum(value.numel() for value in mean.values())
        std = share * float(norm(mean)) / sqrt(numbers)
        rng = torch_generator(draw.seed, "noise")
        sent = {name: value + std * torch.randn(value.shape, generator=rng) for name, value in mean.items()}
        settings = FedCDPSettings(clip=bound, noise_multiplier=std * _MEMBERS / bound, grouping="flat")
        operator = FedCDPAdaptation(asdict(settings), Circumstances(lr=_LR, batch=_MEMBERS, round=1, rounds=1))
        return Hidden(victim.known, step(victim, sent), operator)

    return client


def generated(draw: ClientStep, victim: VictimModel) -> Hidden:
    """Send the step of a hypernetwork whose client has fitted its own classifier before."""
    model = victim.model
    assert isinstance(model, GeneratedNet), "built so"
    with initialising(draw.seed, "client"):
        held = GeneratedNet(nets.build("mlp", inputs().shape, 10), 8, 16, "fan_in")
    held.load_state_dict(victim.known, strict=False)
    x, y = inputs().normalise(draw.members[0]), draw.members[1]
    with torch.no_grad():
        features = held.features(x, held.extractor_weights())
    held.classifier = trained_upon(
        features, y, held.classifier, SurrogateTraining(), torch_generator(draw.seed, "classifier")
    )
    shared = {name: p for name, p in held.named_parameters() if name.startswith("hypernet.")}
    _, gradient = loss_and_grad(torch.nn.functional.cross_entropy(held(x), y), shared)
    return Hidden(victim.known, step(victim, gradient), replaced="classifier")


def hypernetwork(seed: int) -> GeneratedVictim:
    """Build a fresh hypernetwork of the MLP's extractor, which is known, and nothing else."""
    with initialising(seed, "net"):
        model = GeneratedNet(nets.build("mlp", inputs().shape, 10), 8, 16, "fan_in")
    return GeneratedVictim(model, {n: v for n, v in model.state_dict().items() if n.startswith("hypernet.")}, inputs())


def concealed(draw: ClientStep, victim: VictimModel) -> Hidden:
    """Send the step of a client with DCS^2."""
    defence = DCS2(DCS2Settings(steps=50))
    x, y = draw.members
    public = draw.public
    local = LocalStep(
        mean_gradient(draw, victim), x, y, victim.model, inputs(), lambda: (public.samples, public.labels)
    )
    return Hidden(victim.known, step(victim, defence.step(local, torch_generator(draw.seed, "dcs2"))), informed=False)


CLIENTS: dict[str, tuple[str, Client, Callable[[int], VictimModel]]] = {
    "open": ("nothing hides the data", undefended, plain),
    "prune": ("a tenth of the entries", defended(Prune(), PruneAdaptation), plain),
    "rounding": ("4 bits", defended(LowPrecision(), LowPrecisionAdaptation), plain),
    "clip": ("clipped examples", noisy(0.0, 0.5), plain),
    "faint": ("faint noise", noisy(0.1, 0.0), plain),
    "loud": ("loud noise", noisy(1.0, 0.0), plain),
    "hyperfl": ("a hypernetwork", generated, hypernetwork),
    "dcs2": ("concealed samples", concealed, plain),
}
"""What hides the data, in words; the client; and what builds its model."""
PARTS = {name: output.BenchmarkPart(words, 30, 3) for name, (words, *_) in CLIENTS.items()}


def scored(name: str, draw: ClientStep) -> dict[str, float]:
    """Return the AUC of ``whitened`` in one draw, by kind of knowledge."""
    _, client, build = CLIENTS[name]
    hidden = client(draw, build(draw.seed))
    attack = Membership(MembershipSettings(width=_WIDTH))
    by_kind = {}
    for kind in ("static", "not_told", "told")[: 2 + hidden.informed]:
        operator, replaced = (hidden.mechanism, hidden.replaced) if kind == "told" else (None, "")
        one = MembershipRound(1, hidden.received, {0: hidden.sent}, _LR, 1, operator)
        facts: dict[str, Any] = {"adaptive": kind != "static", "replaced": replaced, "examples": _MEMBERS}
        view = MembershipView(0, (one,), draw.candidates, draw.public, lambda received: build(draw.seed), **facts)
        by_kind[kind] = auc(attack.scores(view, torch_generator(draw.seed, "attack"))["whitened"])
    return by_kind


def measured(name: str, draws: int, public: int = _PUBLIC) -> dict[str, dict[str, float]]:
    """Return mean and standard error over draws, of both AUCs and of their difference."""
    rows = [scored(name, drawn(seed, public)) for seed in range(draws)]
    return means([{**row, "gain": row["told"] - row["not_told"]} if "told" in row else row for row in rows], "mean")


def lines(results: dict[str, Any]) -> list[str]:
    """Return the results in words."""
    rows = {part: results[part].items() for part in PARTS if part in results}
    words = {part: (f"{key} {one['mean']:.3f} ({one['error']:.3f})" for key, one in row) for part, row in rows.items()}
    return [f"{part}: {', '.join(row)}" for part, row in words.items()]


def main() -> None:
    """Run the benchmark."""
    run = output.start(output.parser(__doc__), PARTS)
    torch.set_num_threads(1)
    draws, public = run.amount(20, 1), run.amount(_PUBLIC, 100)
    results: dict[str, Any] = {"data": "digits", "draws": draws}
    for part in run.parts():
        results[part] = measured(part, draws, public)
    run.report(results, lines(results))


if __name__ == "__main__":
    main()
