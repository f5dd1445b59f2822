"""An ordinary app, one epoch of shuffled batches: what the check of its description sees without their order."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.audit.measures.public import PublicData
from flfw.recorded_apps import TrainingDescription
from flfw.recorded_apps.case import ForeignCase, Victim
from flfw.recorded_apps.consistency import Consistency
from flfw.recorded_apps.knowledge import input_space
from flfw.recording.observation import Truth
from flfw.rng import initialising, torch_generator
from tests.support.foreign_apps import as_seen

COUNT = 200
PLAIN = TrainingDescription(0.01, batch_size=32)
FAST = replace(PLAIN, momentum=0.9)
ADAM = TrainingDescription(1e-3, "adam", batch_size=32)


def cnn() -> nn.Module:
    first = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, 10))


def digits(start: int, count: int) -> Truth:
    x, y = load_digits(return_X_y=True)
    at = torch.arange(start, start + count)
    return Truth(torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8)[at] / 16, torch.tensor(y)[at], at)


sgd = partial(torch.optim.SGD, lr=0.01)
momentum = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
adam = partial(torch.optim.Adam, lr=1e-3)


def normalised(x: Tensor) -> Tensor:
    return (x - 0.5) / 0.5


Case = tuple[Callable[..., torch.optim.Optimizer], Callable[[Tensor], Tensor], TrainingDescription, str]
CASES: dict[str, Case] = {
    "plain": (sgd, normalised, PLAIN, ""),
    "momentum": (momentum, normalised, FAST, ""),
    "adam": (adam, normalised, ADAM, ""),
    "momentum unsaid": (momentum, normalised, PLAIN, "momentum 0.9 ("),
    "adam unsaid": (adam, normalised, replace(PLAIN, lr=1e-3), "Adam ("),
    "flipped": (momentum, lambda x: normalised(x.flip(-1)), FAST, "images flipped left to right ("),
    "not normalised": (momentum, lambda x: x, FAST, "inputs left in [0, 1] ("),
}


LONG = ("momentum unsaid", "adam unsaid", "not normalised")


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in LONG)) for name in CASES])
def test_wrong_descriptions_are_seen_although_the_order_is_unknown(name: str) -> None:
    optimiser, prepared, training, cause = CASES[name]
    truth = digits(0, COUNT)
    with initialising(0, "shuffled"):
        net = cnn()
    received = {key: value.clone() for key, value in net.state_dict().items()}
    chosen = optimiser(net.parameters())
    for indices in torch.randperm(COUNT, generator=torch_generator(3, "the app's own")).split(32):
        chosen.zero_grad()
        cross_entropy(net(prepared(truth.samples[indices])), truth.labels[indices]).backward()
        chosen.step()
    observation = replace(as_seen(received, dict(net.state_dict())), client=0)
    public = digits(COUNT, 50)
    space = input_space(((1, 8, 8), (0.5,), (0.5,)))
    public_data = PublicData.from_arrays(public.samples.numpy(), public.labels.numpy())
    case = ForeignCase(cnn, space, public_data, lambda seen: training, 0)
    checks = Consistency(case, case.fresh("attacker"), {0: truth, 1: digits(COUNT, COUNT)}, 3600.0)
    control, (check,) = checks.checked([Victim({"client": 0}, 0, truth, truth)], [observation])
    assert check.outcome == ("failed" if cause else "passed") and control.passed == (not cause), check.words
    assert check.cause.startswith(f"Another description explains it: {cause}" if cause else ""), check.cause
    assert check.numbers is not None and 0.75 <= check.numbers.least_cosine <= 0.95
