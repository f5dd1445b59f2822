"""Labels read off the last layer: by hand, on small networks, and how often the counts are right on MNIST."""

import os
from collections import Counter
from pathlib import Path
from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.inversion.closed_form.labels import NoLabels, counts, recovered, single, unique
from flfw.nets import Net, Tensors, build, tensors
from flfw.nets.inputs import InputSpec
from flfw.rng import initialising, torch_generator

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))
ROWS = InputSpec.from_constants((6,), (0.0,) * 6, (1.0,) * 6)
RNG = torch_generator(0, "no draws")  # where none should be made


def net(bias: bool = True, classes: int = 4) -> Net:
    """Six inputs -> five features in (0, 1) -> classes."""
    with initialising(0, "labels"):
        return Net(nn.Sequential(nn.Linear(6, 5), nn.Sigmoid()), nn.Linear(5, classes, bias=bias))


def victim(model: Net, shared: tuple[str, ...] = ("*",)) -> PlainVictim:
    return PlainVictim(model, tensors(model), shared, ROWS)


def sent(given: VictimModel, y: Tensor) -> Tensors:
    x = torch.rand((len(y), *given.inputs.shape), generator=torch_generator(0, "examples"))
    return {name: value.detach() for name, value in given.gradient(x, y, {}, {}).items()}


def overlap(result: Tensor, y: Tensor) -> float:
    return (Counter(result.tolist()) & Counter(y.tolist())).total() / len(y)


# --- a single example ---


@pytest.mark.parametrize("y", range(3))
def test_the_label_has_the_one_negative_entry(y: int) -> None:
    delta = torch.tensor([0.2, 0.5, 0.3]) - torch.eye(3)[y]  # softmax - one-hot
    features = torch.tensor([1.0, 0.0, 3.0])
    assert single(torch.outer(delta, features), delta).tolist() == [y]
    assert single(torch.outer(delta, features), None).tolist() == [y]


def test_the_bias_serves_for_any_features_and_the_rows_for_those_with_a_positive_sum() -> None:
    delta, features = torch.tensor([0.2, -0.5, 0.3]), torch.tensor([1.0, -3.0])
    weight = torch.outer(delta, features)  # row sums -0.4, 1, -0.6
    assert single(weight, delta).tolist() == [1]
    assert single(weight, None).tolist() == [2]


@pytest.mark.parametrize("bias", [True, False])
def test_idlg_is_exact_for_every_class_of_a_network(bias: bool) -> None:
    client = victim(net(bias))
    for y in range(4):
        assert recovered(client, sent(client, torch.tensor([y])), 1, "single", RNG).tolist() == [y]


# --- several that differ ---


def test_unique_labels_are_the_rows_with_the_smallest_entries() -> None:
    weight = torch.tensor([[0.9, -0.2], [0.1, 0.1], [-0.4, 0.3], [-0.1, -0.1]])
    assert unique(weight, 1).tolist() == [2]
    assert unique(weight, 3).tolist() == [0, 2, 3]  # the sums of rows 0 and 2 are among the larger ones


def test_unique_labels_of_a_network() -> None:
    client, y = victim(net(classes=8)), torch.tensor([6, 1, 3])
    assert recovered(client, sent(client, y), 3, "unique", RNG).tolist() == [1, 3, 6]
    with pytest.raises(NoLabels, match="as many classes as examples, 9, and got 8"):
        recovered(client, sent(client, y), 9, "unique", RNG)


def test_labels_that_repeat_are_not_taken_for_unique_ones() -> None:
    client, y = victim(net(classes=8)), torch.tensor([6, 1, 6])
    with pytest.raises(NoLabels, match="3 labels that all differ, and only 2 rows of the last weight's gradient"):
        recovered(client, sent(client, y), 3, "unique", RNG)


# --- counts ---


def test_counts_are_exact_where_the_probabilities_are() -> None:
    p, y = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([3, 0, 3, 3, 1])
    gradient = p - torch.bincount(y, minlength=4) / 5
    assert counts(gradient, p, 5).tolist() == [0, 1, 3, 3, 3]


@pytest.mark.parametrize(
    ("share", "batch", "expected"),
    [
        ([0.5, 0.3, 0.2], 4, [0, 0, 1, 2]),  # 2, 1.2, 0.8: the place left goes to the largest remainder
        ([0.5, 0.3, 0.2], 2, [0, 1]),  # 1, 0.6, 0.4
        ([0.25, 0.25, 0.25, 0.25], 2, [0, 1]),  # equal remainders: the lower classes
        ([0.9, -0.3, 0.6], 5, [0, 0, 0, 2, 2]),  # 3, 0, 2: what is negative counts as 0, and 1.5 as the whole
        ([0.98, 0.01, 0.01], 3, [0, 0, 0]),
    ],
)
def test_shares_are_apportioned_by_largest_remainders(share: list[float], batch: int, expected: list[int]) -> None:
    p = torch.full((len(share),), 1 / len(share))
    assert counts(p - torch.tensor(share), p, batch).tolist() == expected


def test_counts_of_nothing_are_no_labels() -> None:
    with pytest.raises(NoLabels, match="a class that occurs"):
        counts(torch.ones(3), torch.full((3,), 1 / 3), 2)


def test_counts_of_a_network_use_its_mean_softmax_on_normal_inputs() -> None:
    """Its probabilities hardly depend on the input, but differ between classes, so that they must be looked at."""
    model = net()
    head = model.classifier
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.mul_(0.05)
        head.bias.copy_(torch.tensor([2.0, 0.0, 0.0, 1.0]))
    client, y = victim(model), torch.tensor([2, 2, 1, 2, 0, 1, 1])
    result = recovered(client, sent(client, y), 7, "counts", torch_generator(0, "softmax"))
    assert result.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert counts(sent(client, y)["classifier.bias"], torch.full((4,), 0.25), 7).tolist() != result.tolist()


def test_random_inputs_reach_the_network_as_they_are_drawn() -> None:
    """Of mean 0 and deviation 1 where the network sees them, whatever the normalisation; and from the generator."""

    @final
    class Ear(nn.Module):
        """Notes what it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)
            self.heard: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.heard.append(x)
            return self.linear(x)

    with initialising(0, "ear"):
        model = Ear()
    client = PlainVictim(
        model, dict(model.state_dict()), ("*",), InputSpec.from_constants((6,), (5.0,) * 6, (0.1,) * 6)
    )
    there = {"linear.weight": torch.zeros(4, 6), "linear.bias": torch.tensor([0.1, -0.1, 0.0, 0.0])}
    heard = []
    assert client.classes == 4  # asks the network, once
    for seed in (0, 0, 1):
        model.heard.clear()
        recovered(client, there, 3, "counts", torch_generator(seed, "softmax"))
        heard.append(torch.cat(model.heard))
    assert float(heard[0].mean().abs()) < 0.1 and float((heard[0].std() - 1).abs()) < 0.1
    assert torch.equal(heard[0], heard[1]) and not torch.equal(heard[0], heard[2])


def test_recovered_is_the_sign_for_one_example_and_the_counts_for_several() -> None:
    client = victim(net())
    for y in (torch.tensor([2]), torch.tensor([3, 3, 0, 3])):
        way = "single" if len(y) == 1 else "counts"
        there = sent(client, y)
        many = [recovered(client, there, len(y), how, torch_generator(0, "r")) for how in (way, "recovered")]
        assert torch.equal(*many) and len(many[0]) == len(y)
    bare = victim(net(bias=False))  # of one example the rows serve, of several there are no counts
    assert recovered(bare, sent(bare, torch.tensor([2])), 1, "recovered", RNG).tolist() == [2]
    with pytest.raises(NoLabels, match="bias"):
        recovered(bare, sent(bare, torch.tensor([2, 1])), 2, "recovered", RNG)


# --- where they are found, and where not ---


@final
class Summed(VictimModel):
    """Sees the weights after a step of 0.5, as a victim of local steps does, and speaks of gradients."""

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        return {name: (self.known[name] - sent[name]) / 0.5 for name in self.shared}, {}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        return victim(net()).gradient(x, y, unknown, constants)


def test_what_is_read_is_what_the_victim_makes_of_what_was_sent() -> None:
    client = Summed(net(), tensors(net()), ("*",), ROWS)
    after = {name: client.known[name] - 0.5 * value for name, value in sent(client, torch.tensor([3])).items()}
    assert recovered(client, after, 1, "single", RNG).tolist() == [3]
    assert single(after["classifier.weight"], after["classifier.bias"]).tolist() != [3]  # weights are no gradient


def test_the_last_layer_is_the_last_matrix_with_a_row_for_each_class() -> None:
    with initialising(0, "square"):
        square = nn.Sequential(nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.LayerNorm(4))
    client = PlainVictim(square, dict(square.state_dict()), ("*",), ROWS)
    there = {name: torch.zeros_like(value) for name, value in square.named_parameters()}
    there["0.bias"], there["2.bias"] = torch.tensor([-1.0, 0.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, -1.0, 0.0])
    assert recovered(client, there, 1, "single", RNG).tolist() == [2]


def test_a_head_that_is_not_shared_gives_no_labels() -> None:
    client = victim(net(), ("extractor.*",))
    with pytest.raises(NoLabels, match="dense last layer with a row for each class, which"):
        recovered(client, sent(client, torch.tensor([1])), 1, "single", RNG)


def test_a_bias_that_is_not_shared_leaves_the_rows() -> None:
    client = victim(net(), ("extractor.*", "classifier.weight"))
    there = sent(client, torch.tensor([1]))
    assert set(there) == {"extractor.0.weight", "extractor.0.bias", "classifier.weight"}
    assert recovered(client, there, 1, "single", RNG).tolist() == [1]
    with pytest.raises(NoLabels, match="last layer's bias, which was not sent"):
        recovered(client, there, 1, "counts", RNG)


def test_a_head_that_is_a_convolution_gives_no_labels() -> None:
    with initialising(0, "convolution"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())
    client = PlainVictim(model, dict(model.state_dict()), ("*",), InputSpec.from_constants((1, 3, 3), (0.0,), (1.0,)))
    with pytest.raises(NoLabels, match="dense last layer"):
        recovered(client, sent(client, torch.tensor([1])), 1, "single", RNG)


def test_several_examples_are_more_than_idlg_can_tell() -> None:
    client = victim(net())
    with pytest.raises(NoLabels, match="batch of 1, and this one has 2"):
        recovered(client, sent(client, torch.tensor([1, 2])), 2, "single", RNG)


@pytest.mark.parametrize("how", ["single", "unique", "counts"])
@pytest.mark.parametrize("name", ["classifier.weight", "classifier.bias"])
def test_numbers_that_are_not_finite_are_refused(how: str, name: str) -> None:
    client = victim(net())
    there = sent(client, torch.tensor([1]))
    there[name].view(-1)[0] = torch.nan
    with pytest.raises(InputError, match=f"Expected finite numbers in {name}"):
        recovered(client, there, 1, how, RNG)


def test_another_way_is_refused() -> None:
    with pytest.raises(InputError, match="Expected how in recovered, single, unique, counts, got how=guess"):
        recovered(victim(net()), {}, 1, "guess", RNG)


# --- on pictures ---


def mnist(picked: Tensor) -> tuple[Tensor, Tensor]:
    """Training images in [0, 1] and their labels, straight from the files."""
    raw = REAL / "MNIST" / "raw"
    images = np.memmap(raw / "train-images-idx3-ubyte", np.uint8, "r", offset=16).reshape(-1, 1, 28, 28)
    labels = np.memmap(raw / "train-labels-idx1-ubyte", np.uint8, "r", offset=8)
    return torch.from_numpy(images[picked.numpy()] / np.float32(255)), torch.from_numpy(labels[picked.numpy()]).long()


def overlaps(batch: int, nets: int) -> list[list[float]]:
    """Of counts and of labels drawn at random, for untrained sigmoid LeNets and random digits."""
    both = []
    for given in range(nets):
        with initialising(given, "lenet"):
            model = build("lenet", (1, 28, 28), 10)
        client = PlainVictim(model, tensors(model), ("*",), InputSpec.from_constants((1, 28, 28), (0.1307,), (0.3081,)))
        rng = torch_generator(given, "digits")
        x, y = mnist(torch.randint(60_000, (batch,), generator=rng))
        there = {name: value.detach() for name, value in client.gradient(x, y, {}, {}).items()}
        result = recovered(client, there, batch, "counts", rng)
        both.append([overlap(result, y), overlap(torch.randint(10, (batch,), generator=rng), y)])
    return [list(many) for many in zip(*both, strict=True)]


@pytest.mark.skipif(not (REAL / "MNIST" / "raw").is_dir(), reason="real data are not here: set FLFW_DATA")
@pytest.mark.parametrize(("batch", "minimum"), [(8, 0.92), (32, 0.88)])
def test_counts_are_nearly_right_on_mnist(batch: int, minimum: float) -> None:
    """40 nets gave a mean of .969 (batch of 8, none below .875) and .934 (32, .81); at random .46 and .69."""
    ours, at_random = overlaps(batch, nets=10)
    assert sum(ours) / 10 > minimum
    assert sum(at_random) / 10 < 0.75
