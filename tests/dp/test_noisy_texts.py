"""Noisy clients of a language model: an example is a text, whose loss is the mean over its places."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import final

import pytest
import torch
from torch.nn.functional import cross_entropy

from flfw.dp.client import DPClient
from flfw.dp.private_metrics import loss_bound
from flfw.dp.run_accountant import RunAccountant
from flfw.experiment import Experiment
from flfw.nets.net import tensors
from flfw.plans.run_plan import plan, without_auto
from tests.support.method_rounds import make_client


@final
class TextClient(DPClient):
    """A plug-in's client, which says that it follows the labels of all places."""

    place_labels = True


def client(folder: Path) -> TextClient:
    (folder / "text.txt").write_text("".join(f"line {number} of a text. " for number in range(12)))
    name = f"text:{folder / 'text.txt'}@6"
    experiment = Experiment(
        method="dp_fedavg", dataset=name, net="gpt_next", clients=2, set=("unit=example", "clip=0.5")
    )
    return TextClient(make_client(without_auto(replace(experiment, split="iid")), 0, folder).ctx)


def test_each_text_s_gradient_is_clipped_as_a_whole(tmp_path: Path) -> None:
    noisy = client(tmp_path)
    x, y = noisy.examples("train", noisy.indices("train")[:3])
    result = noisy.clipped_sum(x, y, 0.5)
    total = {name: torch.zeros_like(value) for name, value in noisy.per_example._parameters.items()}
    for text, last, value in zip(x, y, result.losses, strict=True):
        scores = noisy.model(text[None])[0].T  # (6, 256)
        loss = cross_entropy(scores, torch.tensor([*(255 * text[1:]).round().long().tolist(), int(last)]))
        assert float(value) == pytest.approx(float(loss.detach()), rel=1e-5)
        grad = dict(zip(total, torch.autograd.grad(loss, [noisy.model.get_parameter(n) for n in total]), strict=True))
        norm = torch.cat([slope.flatten() for slope in grad.values()]).norm()
        assert norm > 0.5
        total = {name: value + grad[name] * 0.5 / norm for name, value in total.items()}
    for name, value in total.items():
        torch.testing.assert_close(result.sums[name], value, rtol=1e-3, atol=1e-6)


def test_private_metrics_count_the_places_of_a_text(tmp_path: Path) -> None:
    noisy = client(tmp_path)
    x, y = noisy.ctx.task.examples("train", noisy.indices("train"))
    noisy.model.eval()
    following = torch.cat([(255 * x[:, 1:]).round().long(), y[:, None]], 1)
    with torch.no_grad():
        scores = noisy.model(x)
    right = (scores.argmax(1) == following).double().mean(1)
    lost = torch.stack([cross_entropy(one.T, row) for one, row in zip(scores, following, strict=True)])
    assert len(tensors(noisy.model)) and noisy.right("train").shape == (len(x), 1)
    torch.testing.assert_close(noisy.right("train")[:, 0], right)
    shares = lost.double() / loss_bound(256)
    torch.testing.assert_close(noisy.losses()[:, 0], shares, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("unit", ["example", "client"])
def test_a_claim_says_that_the_classes_are_known(tmp_path: Path, unit: str) -> None:
    """Of labelled text, the only example of its class decides on the shape of the model that everybody sees."""
    lines, classes = [f"{'ab'[number % 2]}\tline {number}" for number in range(20)], []
    for name, more in (("without", []), ("with", ["c\tthe only one"])):
        (tmp_path / name).write_text("\n".join([*lines, *more]))
        text = f"text:{tmp_path / name}@8"
        experiment = Experiment(method="dp_fedavg", dataset=text, net="gpt_tiny", clients=2, set=(f"unit={unit}",))
        run_plan = plan(replace(experiment, split="iid"))
        classes.append(run_plan.task.input_space[1])
        claims = RunAccountant(run_plan.client, run_plan.task.load(None).split).claims()
        finite = [one for one in claims if one.epsilon < inf]
        assert finite and all("Everybody is taken to know the classes" in " ".join(one.assumptions) for one in finite)
    assert classes == [2, 3]
