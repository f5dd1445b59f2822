"""Statistics of BatchNorm's inputs: by hand, inferred from what a step sends, and as a prior."""

import pytest
import torch
from torch import Tensor, nn

from flfw.inversion.client_models.batch_statistics import normalise_by_batch
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.matching import tensor_distances
from flfw.inversion.priors import LayerStatistics, batch_statistics, received_statistics, sent_statistics
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.inputs import InputSpec
from flfw.nets.net import tensors
from flfw.rng import initialising, torch_generator

SPACE = InputSpec.from_constants((2,), (0.0,) * 2, (1.0,) * 2)
X = torch.tensor([[1.0, 0.0], [3.0, 4.0]])


def layered(momentum: float | None = 0.1) -> nn.Sequential:
    with initialising(0, "layers"):
        first, second = (nn.BatchNorm1d(2, momentum=momentum) for _ in range(2))
        return nn.Sequential(first, nn.Linear(2, 2), second, nn.Linear(2, 3))


def victim(model: nn.Module) -> PlainVictim:
    result = PlainVictim(model, tensors(model), ("*",), SPACE)
    normalise_by_batch(result)
    return result


def test_the_statistics_of_a_batch_by_hand() -> None:
    model = victim(layered()).model
    mean, variance = batch_statistics(model, tensors(model), X)["0"]
    assert mean.tolist() == [2, 2] and variance.tolist() == [2, 8]  # unbiased
    assert list(batch_statistics(model, tensors(model), X)) == ["0", "2"]
    assert batch_statistics(model, tensors(model), X[:1]) == {}  # one number has no variance
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_one_step_reveals_the_statistics_of_its_batch(momentum: float) -> None:
    client = layered(momentum).train()
    for name, buffer in client.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(0.3)
    received = {name: value.clone() for name, value in tensors(client).items()}
    true = batch_statistics(client, {n: v.clone() for n, v in received.items()}, X)
    client.load_state_dict(received)
    client(X)
    inferred = sent_statistics(client, received, client.state_dict())
    assert len(inferred) == 4
    for name, (mean, variance) in true.items():
        torch.testing.assert_close(inferred[f"batch_norm.mean.{name}"], mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(inferred[f"batch_norm.variance.{name}"], variance, rtol=1e-5, atol=1e-5)
    running = received_statistics(client, received)
    assert running.keys() == inferred.keys()
    assert torch.equal(running["batch_norm.mean.2"], torch.full((2,), 0.3))


def test_of_two_steps_no_batch_is_revealed() -> None:
    """The limit of the inference: a second batch is mixed in, and the result is that of neither."""
    client = layered().train()
    received = {name: value.clone() for name, value in tensors(client).items()}
    client(X)
    client(10 * X)
    mean = sent_statistics(client, received, client.state_dict())["batch_norm.mean.0"]
    assert mean.tolist() == pytest.approx([0.9 * 2 + 20] * 2)


def test_a_cumulative_mean_and_what_was_not_sent_reveal_nothing() -> None:
    client = layered(momentum=None)
    state = client.state_dict()
    assert sent_statistics(client, state, state) == {}
    model = layered()
    kept = {name: value for name, value in model.state_dict().items() if not name.startswith("2.")}
    assert set(sent_statistics(model, model.state_dict(), kept)) == {"batch_norm.mean.0", "batch_norm.variance.0"}
    assert received_statistics(model, {}) == {}


def prior(one: LayerStatistics, constants: dict[str, Tensor], x: Tensor = X) -> float:
    return float(one(victim(layered()), x, {}, constants))


def test_the_prior_by_hand() -> None:
    off = {"batch_norm.mean.0": torch.tensor([5.0, 6.0]), "batch_norm.variance.0": torch.tensor([2.0, 6.0])}
    assert prior(LayerStatistics(0.5, first=10), off) == pytest.approx(0.5 * 10 * (5 + 2))
    assert prior(LayerStatistics(0.5), off) == pytest.approx(0.5 * (5 + 2))
    right = {"batch_norm.mean.0": torch.tensor([2.0, 2.0]), "batch_norm.variance.0": torch.tensor([2.0, 8.0])}
    assert prior(LayerStatistics(0.5), right) == pytest.approx(0, abs=1e-5)
    second = {name.replace(".0", ".2"): value for name, value in off.items()}
    assert prior(LayerStatistics(0.5, first=10), second) == pytest.approx(prior(LayerStatistics(0.5), second))
    assert prior(LayerStatistics(0.5), {}) == 0 and prior(LayerStatistics(0.5), off, X[:1]) == 0


@pytest.mark.slow
def test_a_search_by_the_statistics_alone_finds_a_batch_with_these() -> None:
    """Two examples are determined by mean and variance of each feature, up to their order in each."""
    model = victim(layered())
    wanted = torch.tensor([[0.2, 0.9], [0.6, 0.3]])
    beside = {"batch_norm.mean.0": wanted.mean(0), "batch_norm.variance.0": wanted.var(0)}
    nothing = {name: torch.zeros_like(value) for name, value in model.known.items()}
    target = SearchTarget(nothing, torch.tensor([0, 1]), torch_generator(0, "start"), prior_constants=beside)
    recipe = SearchConfig(
        lambda trial, observed: 0 * tensor_distances(trial, observed),
        AdamSearch(200, 0.05, schedule="cosine"),
        model_prior=LayerStatistics(1.0),
        boxed=False,  # else both examples may start on one corner, where nothing parts them
    )
    (result,) = invert(model, [target], recipe)
    torch.testing.assert_close(result.samples.sort(0).values, wanted.sort(0).values, rtol=0, atol=0.01)
