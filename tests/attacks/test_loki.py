"""Loki: columns by hand, sums of several clients beside theory and beside imprint, and what sums do not tell."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import data, nets
from flfw.adversary.attack import NotApplicableError
from flfw.adversary.sums import summed
from flfw.attacks.imprint import Imprint, ImprintSettings
from flfw.attacks.loki import Loki, LokiSettings
from flfw.client.broadcast_checks import broadcast_alarms, differently_served, digest
from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.closed_form.client_columns import ClientColumns, bin_ends, client_convolution, read_columns, shared
from flfw.inversion.closed_form.imprint import expected_alone
from flfw.nets.net import Tensors
from flfw.recording.observation import Knowledge, Observation
from flfw.rng import initialising, numpy_generator, torch_generator
from flfw.runs import run as whole
from tests.support.attackable import attackable, digit_inputs, digits, fresh_net, generators, gradient, seen
from tests.support.rounds import descend
from tests.support.small_runs import ByGuess, tiny

Batch = tuple[Tensor, Tensor]


def sent_by(attack: Loki | Imprint, clients: int, net: str = "mlp", side: int = 8) -> tuple[nets.Net, list[Tensors]]:
    """A network with the attack's module, and the tensors that each client receives."""
    inputs = digit_inputs(side)
    with initialising(1, "net"):
        model = attack.network_for(nets.build(net, inputs.shape, 10), clients)
    public = inputs.normalise(torch.tensor(data.load("digits", None, side).test_x).float() / 255)
    common = {name: value.clone() for name, value in nets.tensors(model).items()}
    common |= attack.crafted(common, public)
    return model, [common | attack.personal(client, common, public) for client in range(clients)]


def batches(clients: int, batch: int, side: int = 8, seed: int = 0) -> list[Batch]:
    """A batch of digits for each client, all of them different."""
    held, rng = data.load("digits", None, side), numpy_generator(seed, "loki")
    places = rng.choice(len(held.train_y), (clients, batch), replace=False)
    return [(torch.from_numpy(held.train_x[p]).float() / 255, torch.from_numpy(held.train_y[p])) for p in places]


def observed(model: nets.Net, received: Sequence[Tensors], held: Sequence[Batch]) -> list[Observation]:
    """Each client's gradient at the numbers that it received."""
    inputs, result = digit_inputs(held[0][0].shape[-1]), []
    for client, (tensors, (x, y)) in enumerate(zip(received, held, strict=True)):
        model.load_state_dict(tensors)
        result.append(replace(seen(gradient(model, inputs, x, y), tensors, client), client=client))
    return result


def known_of(model: nets.Net, observations: Sequence[Observation], batch: int, **more: Any) -> list[Knowledge]:
    inputs = digit_inputs(model.shape[-1])
    return [Knowledge(PlainVictim(model, o.received, ("*",), inputs), batch, None, **more) for o in observations]


def found(held: Sequence[Batch], results: Sequence[Any], below: float = 1e-4) -> list[bool]:
    """Whether each example is among its client's results, by the mean square error; 1e-4 is 40 dB."""
    distances = [
        (result.samples[None] - x[:, None]).flatten(2).square().mean(2).min(1).values
        for (x, _), result in zip(held, results, strict=True)
    ]
    return [bool(value < below) for value in torch.cat(distances)]


# --- columns by hand ---


def by_hand() -> tuple[ClientColumns, Tensors, list[Tensor]]:
    """Two clients, one channel, images of 1 x 2; queries 'first pixel' and 'second pixel' with bins 0-1, 1-2, 2-3."""
    module, queries = ClientColumns((1, 1, 2), 2, 6, added=False), [torch.tensor([[[1.0, 0.0]]])]
    queries.append(torch.tensor([[[0.0, 1.0]]]))
    common = shared(queries, [torch.arange(4.0)] * 2, clients=2, scale=2.0, offset=1.0, output=0.6)
    return module, common, queries


def test_units_are_on_in_their_bin_alone_for_each_client_and_the_rest_is_silent() -> None:
    module, common, _ = by_hand()
    x = torch.tensor([[[[0.25, 2.5]]]])
    for client in (0, 1):
        module.load_state_dict({**common, **client_convolution(1, 2, client, 2.0, 1.0)})
        spread = torch.relu(module.spread(x))
        assert spread[0, 1 - client].abs().max() == 0
        assert spread[0, client].tolist() == [[2.0] * 4, [2.0, 2.5, 7.0, 2.0], [2.0] * 4]  # 2 (x + 1), and a ring of 2
        units = torch.nn.functional.hardtanh(module.measure(spread.flatten(1)), 0.0, 1.0)[0]
        torch.testing.assert_close(units, torch.tensor([0.25, 0, 0, 1, 1, 0.5]))
        torch.testing.assert_close(module(x), torch.full((1, 1, 1, 2), 0.1 * 2.75 - 0.3))


def summed_by_hand(images: Sequence[tuple[int, list[float], float]]) -> Tensor:
    """The sum of the measuring layer's gradients for (client, image, slope), by a loop over units and columns."""
    total = torch.zeros(6, 2, 3, 4)
    for client, pixels, slope in images:
        for query, pixel in enumerate(pixels):
            unit = 3 * query + int(pixel)
            total[unit, client] += slope * 2.0  # the ring, and all
            for index, value in enumerate(pixels):
                total[unit, client, 1, 1 + index] += slope * 2.0 * value
    return total.flatten(1)


def test_each_client_s_images_are_read_off_the_sum_whatever_the_others_hold() -> None:
    """Client 0 has two images alone; client 1 two that share a bin of the first query, and not of the second."""
    _, common, _ = by_hand()
    images = [(0, [0.25, 2.5], 0.5), (0, [1.5, 1.25], -1.0), (1, [0.5, 0.5], 3.0), (1, [0.75, 1.5], -4.0)]
    for client, expected in ((0, [[0.25, 2.5], [1.5, 1.25]]), (1, [[0.5, 0.5], [0.75, 1.5]])):
        sent = {**common, **client_convolution(1, 2, client, 2.0, 1.0)}
        readings = read_columns(summed_by_hand(images), sent, (1, 1, 2))
        best = sorted(readings.best(2).flatten(1).tolist())
        assert best == [pytest.approx(one, abs=1e-5) for one in expected]
        # The mixture of the first query is (3 a - 4 b) / -1 = [1.5, 4.5]: outside of its own bin.
        assert sorted(readings.verified.tolist()) == ([3, 3] if client == 0 else [0, 2, 2])


def test_an_image_comes_once_and_before_a_mixture_of_larger_slope() -> None:
    """Slopes of one sign leave a mixture in its own bin: only the other query tells that no image is like it."""
    _, common, _ = by_hand()
    images = [(0, [0.2, 0.2], 5.0), (0, [0.6, 2.8], 5.0), (0, [1.5, 2.5], 0.1)]
    readings = read_columns(summed_by_hand(images), {**common, **client_convolution(1, 2, 0, 2.0, 1.0)}, (1, 1, 2))
    mixture = pytest.approx([0.4, 1.5], abs=1e-5)
    assert readings.images.flatten(1).tolist()[0] == mixture and readings.verified.tolist()[0] == 1
    assert readings.best(3).flatten(1).tolist()[-1] != mixture


def test_images_of_three_colours_are_read_off_the_module_s_gradient() -> None:
    """Two clients, each with three images; the sum of what torch gives for both."""
    attack, rng = Loki(LokiSettings(bins=64)), torch_generator(0, "colours")
    public, held = torch.randn(400, 3, 4, 5, generator=rng), torch.randn(2, 3, 3, 4, 5, generator=rng)
    net = attack.network_for(nets.build("linear", (3, 4, 5), 10), 2)
    module = net.get_submodule("extractor.imposed")
    tensors = {n.removeprefix("extractor.imposed."): v.clone() for n, v in nets.tensors(net).items() if "imposed" in n}
    common = attack.crafted(tensors, public)
    sent = [{**common, **attack.personal(client, tensors, public)} for client in (0, 1)]
    total = torch.zeros_like(common["measure.weight"])
    for client in (0, 1):
        module.load_state_dict(sent[client])
        loss = (module(held[client]) * torch.tensor([1.0, -2.0, 0.5])[:, None, None, None]).sum()
        total += torch.autograd.grad(loss, module.get_parameter("measure.weight"))[0]
    for client in (0, 1):
        images = read_columns(total, sent[client], (3, 4, 5)).best(3)
        distance = (images[None] - held[client][:, None]).flatten(2).abs().amax(2).min(1).values
        assert float(distance.max()) < 1e-3


def test_a_convolution_of_another_make_is_refused() -> None:
    _, common, _ = by_hand()
    sent = {**common, **client_convolution(1, 2, 0, 2.0, 1.0)}
    sent["spread.bias"] = torch.ones(2)
    with pytest.raises(ValueError, match="expected 1 channels of the client's own, got 2"):
        read_columns(torch.zeros(6, 24), sent, (1, 1, 2))


def test_bins_of_equal_measurements_have_a_width() -> None:
    ends = bin_ends(torch.tensor([-9.0, 1.0, 1.0, 1.0, 2.0]))
    assert len(ends) == 6 and float(ends.diff().min()) >= 0.0024 and float(ends[-1]) > 10
    torch.testing.assert_close(ends[1:5], torch.tensor([1.0, 1.0, 1.0, 2.0]), atol=0.01, rtol=0)
    assert bin_ends(torch.tensor([-1.0, 0.0])).tolist() == [-1.0, 0.0, 1.0]


# --- sums of clients ---


@pytest.mark.parametrize(("net", "side"), [("linear", 8), ("mlp", 8), ("lenet", 8), ("cnn1", 28)])
def test_it_reads_single_digits_of_three_clients_in_front_of_any_network(net: str, side: int) -> None:
    model, received = sent_by(Loki(), 3, net, side)
    held = batches(3, 4, side)
    observations = summed(observed(model, received, held), weights=False)
    assert sum(found(held, Loki().run(observations, known_of(model, observations, 4), generators(3)))) >= 11


@pytest.mark.parametrize(("clients", "batch"), [(10, 8), (4, 32)])
def test_as_many_are_found_in_the_sum_as_theory_expects_of_one_client(clients: int, batch: int) -> None:
    """The number of clients is not in the formula; the queries of digits of 64 pixels are less fine than it takes."""
    attack = Loki()
    model, received = sent_by(attack, clients)
    held = batches(clients, batch)
    observations = summed(observed(model, received, held), weights=False)
    exact = found(held, attack.run(observations, known_of(model, observations, batch), generators(clients)))
    expected, total = attack.expected_share(batch), clients * batch
    assert expected == pytest.approx(1 - (1 - expected_alone(128, batch)) ** 2)
    std = (expected * (1 - expected) / total) ** 0.5
    assert abs(sum(exact) / total - expected) < 4 * std + 0.05
    if batch == 32:
        assert sum(exact) / total > expected_alone(128, batch)  # of one query


def test_imprint_mixes_in_the_same_sum() -> None:
    """Its bins, as many as loki has units, hold the examples of all clients: 54 % of 160 are alone in one of 256."""
    held, shares = batches(10, 16), {}
    for attack in (Imprint(ImprintSettings(bins=256)), Loki()):
        model, received = sent_by(attack, 10)
        observations = summed(observed(model, received, held), weights=False)
        batch = 160 if isinstance(attack, Imprint) else 16  # all that a place of its readings may hold
        results = attack.run(observations, known_of(model, observations, batch), generators(10))
        shares[type(attack)] = sum(found(held, results)) / 160
    assert shares[Imprint] < 0.6 and shares[Loki] > 0.9


def share_after_training(attack: Loki, lr: float, epochs: int, step: float = 0.0) -> float:
    """The share that is found of three clients with 32 digits, batches of 8 and plain SGD, in the sum of the changes.

    Args:
        attack: with its settings.
        lr: of local training.
        epochs: of local training.
        step: to multiples of which all weights are rounded before they are added; 0: they are not.
    """
    inputs, held, observations = digit_inputs(8), batches(3, 32), []
    model, received = sent_by(attack, 3)
    for client, (x, y) in enumerate(held):
        model.load_state_dict(received[client])
        steps = torch.optim.SGD(model.parameters(), lr=lr)
        for first in list(range(0, 32, 8)) * epochs:
            descend(steps, cross_entropy(model(inputs.normalise(x[first : first + 8])), y[first : first + 8]))
        sent = {name: value.clone() for name, value in nets.tensors(model).items()}
        if step:
            sent = {name: value.clamp(-8, 8).div(step).round() * step for name, value in sent.items()}
        observations.append(replace(seen(sent, received[client], client), client=client))
    observations = summed(observations, weights=True)
    known = known_of(model, observations, 32, steps=4 * epochs, weights=True, lr=lr)
    return sum(found(held, attack.run(observations, known, generators(3)))) / 96


@pytest.mark.parametrize(("lr", "epochs"), [(1e-4, 1), (1e-2, 3)])
def test_local_training_is_read_as_well(lr: float, epochs: int) -> None:
    assert share_after_training(Loki(), lr, epochs) > 0.8


def test_a_published_scale_reads_less_of_local_training() -> None:
    assert share_after_training(Loki(LokiSettings(scale=500.0)), 1e-4, 1) < 0.7


def test_the_rounding_of_secure_aggregation_hides_small_changes() -> None:
    """Flower's SecAgg+ clips weights to 8 and rounds them to 2^22 levels by default: a larger scale is read again."""
    step = 16 / 2**22
    assert share_after_training(Loki(LokiSettings(scale=500.0)), 1e-2, 1, step) < 0.1
    assert share_after_training(Loki(), 1e-4, 1, step) < 0.5
    assert share_after_training(Loki(), 1e-2, 1, step) > 0.8


# --- what the attack sees ---


def test_a_sum_is_that_of_a_loop_and_groups_are_by_turns() -> None:
    """Two probes of each of two clients, in the order of their slots; weights count by their changes."""
    one = {"w": torch.tensor([1.0]), "n": torch.tensor(2)}
    requested = [
        replace(seen({"w": one["w"] * value, "n": one["n"]}, {"w": torch.tensor([10.0 * client])}, slot), client=client)
        for slot, client, value in ((2, 0, 100.0), (0, 0, 1.0), (3, 1, 1000.0), (1, 1, 10.0))
    ]
    assert [float(o.sent["w"]) for o in summed(requested, weights=False)] == [1100.0, 11.0, 1100.0, 11.0]
    assert int(summed(requested, weights=False)[0].sent["n"]) == 4
    # changes: 100 - 0 and 1000 - 10; 1 - 0 and 10 - 10
    assert [float(o.sent["w"]) for o in summed(requested, weights=True)] == [1090.0, 1.0, 1100.0, 11.0]
    assert [o.slot for o in summed(requested, weights=True)] == [2, 0, 3, 1]


def test_nothing_but_the_sum_matters_to_the_result() -> None:
    """All of it sent by client 0, and nothing by the others, gives the same images."""
    model, received = sent_by(Loki(), 3)
    true = observed(model, received, batches(3, 4))
    total = summed(true, weights=False)[0].sent
    nothing = {name: torch.zeros_like(value) for name, value in total.items()}
    moved = [replace(o, sent=total if o.client == 0 else nothing) for o in true]
    results = []
    for observations in (true, moved):
        one = summed(observations, weights=False)
        results.append(Loki().run(one, known_of(model, one, 4), generators(3)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a.samples, b.samples)


class SeesOneSum(ByGuess):
    """Gives a picture of what it sees."""

    of_sums = True

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        return torch.full(knowledge.model.inputs.shape, float(observation.sent["classifier.bias"].abs().sum()) % 1)


class SeesMessages(SeesOneSum):
    """Gives the same of each client's own."""

    of_sums = False


@pytest.mark.slow
def test_an_audit_gives_an_attack_on_sums_no_message_of_a_client(tmp_path: Path) -> None:
    attacks = tuple(f"{__name__}:{cls.__name__}" for cls in (SeesOneSum, SeesMessages))
    out = whole.run(tiny(tmp_path / "run", attack=attacks, audit_rounds="0", image_size=8))
    for name, alike in ((attacks[0], True), (attacks[1], False)):
        places = sorted((out / "reconstructions").glob(f"*{name.partition(':')[2]}-r0000-target-*"))
        one, other = (load_file(index)["samples"] for index in places)
        assert torch.equal(one, other) == alike
    entries = {e["attack"]: e for e in json.loads((out / "result.json").read_text())["audit"]}
    words = [any("only their sum, as behind secure aggregation" in g for g in e["granted"]) for e in entries.values()]
    assert words == [True, False]


def test_a_client_that_dropped_out_of_the_sum_has_no_image_in_it() -> None:
    model, received = sent_by(Loki(), 3)
    observations = observed(model, received, batches(3, 4))
    rest = summed(observations[:2], weights=False)[0].sent
    absent = [replace(observations[2], sent=rest)]
    (result,) = Loki().run(absent, known_of(model, absent, 4), generators(1))
    torch.testing.assert_close(result.samples, digit_inputs(8).mean.expand(4, 1, 8, 8), atol=1e-6, rtol=0)


def test_noise_on_the_sum_hides_most_images() -> None:
    """A limit: every bin then has a slope, and few of the readings are images."""
    model, received = sent_by(Loki(), 3)
    held = batches(3, 8)
    (first, *others), rng = summed(observed(model, received, held), weights=False), torch_generator(0, "noise")
    shares = []
    for noise in (0.0, 1e-1):
        name = "extractor.imposed.measure.weight"
        value = first.sent[name]
        noisy = value + noise * value.abs().max() * torch.randn(value.shape, generator=rng)
        observations = [replace(o, sent={**first.sent, name: noisy}) for o in (first, *others)]
        results = Loki().run(observations, known_of(model, observations, 8), generators(3))
        shares.append(sum(found(held, results, 10**-2.5)) / 24)
    assert shares[0] > 0.9 and shares[1] == 0


# --- what clients can notice ---


def test_clients_that_compare_hashes_notice_it_and_each_alone_sees_crafted_weights() -> None:
    _, received = sent_by(Loki(), 4)
    arrays = [{name: value.numpy() for name, value in tensors.items()} for tensors in received]
    assert differently_served(dict(enumerate(map(digest, arrays)))) == [0, 1, 2, 3]
    differ = {name for name in received[0] if not torch.equal(received[0][name], received[1][name])}
    assert differ == {"extractor.imposed.spread.weight", "extractor.imposed.spread.bias"}
    alarms = broadcast_alarms(arrays[0])
    for trait in ("rows parallel", "columns parallel", "a gain of"):
        assert any(trait in alarm for alarm in alarms), alarms


def test_many_clients_leave_dead_channels() -> None:
    _, received = sent_by(Loki(LokiSettings(bins=2)), 8)
    convolution = received[0]["extractor.imposed.spread.weight"]
    wide = convolution.expand(-1, 2, -1, -1)  # of two colours, as rows of more than one number
    assert broadcast_alarms({"w": wide.numpy()})[0] == "w has 7 of 8 rows of zeros"


# --- refusals ---


def test_an_honest_network_is_refused_as_is_a_private_module() -> None:
    with pytest.raises(NotApplicableError, match="--malicious-server loki"):
        Loki().run(*attackable("lenet", 8, digits(0, side=8)), generators(1))
    model, received = sent_by(Loki(), 1)
    (whole_one,) = observed(model, received, batches(1, 2))
    kept = replace(whole_one, sent={n: v for n, v in whole_one.sent.items() if ".measure." not in n})
    with pytest.raises(NotApplicableError, match="in a shared part"):
        Loki().run([kept], known_of(model, [kept], 2), generators(1))
    name = "extractor.imposed.spread.bias"  # zeros: no channel is the client's own
    other = replace(whole_one, received=whole_one.received | {name: torch.zeros_like(whole_one.received[name])})
    with pytest.raises(NotApplicableError, match=r"that its server sends: expected 1 channels .*, got 0"):
        Loki().run([other], known_of(model, [other], 2), generators(1))


def test_rows_of_a_table_and_a_mode_that_an_image_does_not_have_are_refused() -> None:
    with pytest.raises(InputError, match=r"Expected images \(C, H, W\) with --malicious-server loki, got shape="):
        Loki().network(fresh_net("mlp", (30,)))
    with pytest.raises(InputError, match=r"Expected loki.mode < 64, got mode=64\."):
        Loki(LokiSettings(mode=64)).network(fresh_net("linear", (1, 8, 8)))


def test_the_rest_of_the_network_keeps_its_numbers_and_an_added_image_passes_through() -> None:
    honest, changed = fresh_net("mlp", (1, 8, 8)), Loki().network_for(fresh_net("mlp", (1, 8, 8)), 3)
    named = {name.replace(".honest", ""): value for name, value in nets.tensors(changed).items()}
    assert all(torch.equal(named[name], value) for name, value in nets.tensors(honest).items())
    assert isinstance(changed.extractor, nn.Sequential) and changed.shape == (1, 8, 8)
    module, x = ClientColumns((1, 2, 2), 2, 4, added=True), torch.rand(2, 1, 2, 2)
    module.load_state_dict({name: torch.zeros_like(value) for name, value in module.state_dict().items()})
    assert torch.equal(module(x), x)
