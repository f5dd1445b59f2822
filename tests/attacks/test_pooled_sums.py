"""Sums over groups of clients: the mean gradient of one larger batch, but for what secure aggregation rounds."""

import pytest
import torch
from torch import nn

from flfw.adversary.sums import Protocol, groups_of, pooled
from flfw.errors import InputError
from flfw.nets.net import Tensors
from flfw.recording.observation import Observation, Vantage


def seen(client: int, sent: Tensors, received: Tensors) -> Observation:
    return Observation(Vantage.AGGREGATE, "probe", "target", 0, client, client, sent, received)


def test_two_clients_of_four_send_the_gradient_of_one_batch_of_eight() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    x, y = torch.rand(8, 5), torch.arange(8) % 3
    received = {name: value.detach() for name, value in net.named_parameters()}

    def gradient(rows: slice) -> Tensors:
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        return dict(zip(received, torch.autograd.grad(loss, list(net.parameters())), strict=True))

    clients = [seen(0, gradient(slice(0, 4)), received), seen(1, gradient(slice(4, 8)), received)]
    exact, rounded = (pooled(clients, False, protocol).sent for protocol in (None, Protocol(3)))
    torch.testing.assert_close(exact, gradient(slice(0, 8)))
    torch.testing.assert_close(rounded, gradient(slice(0, 8)), rtol=0, atol=16 / 4194304 + 1e-6)
    assert not torch.equal(exact["0.weight"], rounded["0.weight"])


def test_of_weights_the_mean_is_left_and_large_numbers_are_clipped() -> None:
    received = {"w": torch.tensor([1.0, 2.0])}
    clients = [seen(c, {"w": torch.tensor([1.0 + c, 20.0])}, received) for c in (0, 1)]
    assert pooled(clients, True, None).sent["w"].tolist() == [1.5, 20.0]
    torch.testing.assert_close(
        pooled(clients, True, Protocol(0)).sent["w"], torch.tensor([1.5, 8.0]), rtol=0, atol=1e-5
    )


def test_a_protocol_says_that_it_cuts_numbers() -> None:
    assert Protocol(0).cuts([{"w": torch.tensor([1.0])}, {"w": torch.tensor([0.0, -8.5])}])
    assert not Protocol(0).cuts([{"w": torch.tensor([8.0, -8.0])}])


def test_clients_with_weights_of_their_own_have_no_sum_of_one_model() -> None:
    clients = [seen(c, {"w": torch.ones(1)}, {"w": torch.tensor([float(c)])}) for c in (0, 1)]
    with pytest.raises(InputError, match="the same weights received by all clients of a sum"):
        pooled(clients, False, None)


def test_a_client_is_in_a_group_once_and_what_is_left_over_in_none() -> None:
    assert groups_of(8, 5, 3) == [(0, 1, 2), (5, 6, 7)]
    assert groups_of(4, 2, 1) == [(0,), (1,), (2,), (3,)]
    assert groups_of(2, 5, 3) == []
