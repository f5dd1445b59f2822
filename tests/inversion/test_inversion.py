"""The attack engine: the victim's gradient, its cheap form for generated extractors, distances, and the search."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cosine_similarity

from flfw.errors import InputError
from flfw.inversion import evaluation, graph
from flfw.inversion.client_models.victim import GeneratedVictim, PlainVictim, VictimModel
from flfw.inversion.closed_form.linear import linear_inputs
from flfw.inversion.matching import cosine_distance, gaussian_likelihood, squared_distance
from flfw.inversion.priors import Prior, energy, none, total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, Stage, invert
from flfw.inversion.search_optimisers import AdamSearch, Best, SearchOptimiser
from flfw.nets import Net, Tensors, build, tensors
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.rng import initialising, numpy_generator, torch_generator
from tests.support.attackable import gradient

INPUTS = InputSpec.from_constants((2, 6, 6), (0.4, 0.5), (0.2, 0.3))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(0, "randn", seed))


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand((count, *INPUTS.shape), generator=torch_generator(0, "images", seed))


def tiny_net() -> Net:
    """Two channels of 6x6 -> 3 channels of 4x4 -> 5 features -> 4 classes; smooth, so that rounding stays small."""
    extractor = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, 5), nn.Tanh())
    return Net(extractor, nn.Linear(5, 4))


def plain(seed: int = 0) -> Net:
    with initialising(seed, "plain"):
        return tiny_net()


def generated(seed: int = 0) -> GeneratedNet:
    with initialising(seed, "generated"):
        return GeneratedNet(tiny_net(), embedding=6, hidden=16, head_init="fan_in")


def autograd(model: nn.Module, x: Tensor, y: Tensor, prefix: str = "", inputs: InputSpec = INPUTS) -> Tensors:
    """The gradient by the ordinary way, for the parameters whose names start with ``prefix``."""
    return {n: v for n, v in gradient(model, inputs, x, y).items() if n.startswith(prefix)}


def flat(many: Tensors) -> Tensor:
    return torch.cat([value.reshape(-1) for value in many.values()])


# --- inputs ---


def test_inputs_are_normalised_channel_by_channel_or_feature_by_feature() -> None:
    x = torch.tensor([[[[1.0]], [[0.5]]]])
    assert InputSpec.from_constants((2, 1, 1), (0.5, 0.0), (0.25, 2.0)).normalise(x).flatten().tolist() == [2.0, 0.25]
    rows = InputSpec.from_constants((3,), (0.0, 1.0, 0.5), (1.0, 0.5, 0.25))
    assert rows.normalise(torch.tensor([[0.5, 0.5, 1.0]])).tolist() == [[0.5, -1.0, 2.0]]


# --- the dense victim ---


def test_gradient_with_everything_shared_is_the_ordinary_gradient_of_raw_inputs() -> None:
    net, x, y = plain(), images(3), torch.tensor([0, 3, 1])
    victim = PlainVictim(plain(1), tensors(net), ("*",), INPUTS)
    assert victim.unknown == {}
    result = victim.gradient(x, y, {}, {})
    expected = autograd(net, x, y)
    assert list(result) == list(expected)
    torch.testing.assert_close(result, expected)


def test_gradient_with_a_private_head_uses_the_guessed_head_and_speaks_of_the_extractor_alone() -> None:
    net, x, y = plain(), images(3), torch.tensor([0, 3, 1])
    known = {n: v for n, v in tensors(net).items() if n.startswith("extractor.")}
    attackers = plain(1)
    victim = PlainVictim(attackers, known, ("extractor.*",), INPUTS)
    assert set(victim.unknown) == {"classifier.weight", "classifier.bias"}
    assert torch.equal(victim.unknown["classifier.weight"], tensors(attackers)["classifier.weight"])
    guess = {"classifier.weight": randn(4, 5), "classifier.bias": randn(4)}
    result = victim.gradient(x, y, guess, {})
    net.classifier.load_state_dict({n.removeprefix("classifier."): v for n, v in guess.items()})
    expected = autograd(net, x, y, "extractor.")
    assert list(result) == list(expected)
    torch.testing.assert_close(result, expected)


def test_raw_inputs_are_normalised_before_the_network_sees_them() -> None:
    net, x, y = plain(), images(2), torch.tensor([1, 2])
    as_it_is = InputSpec.from_constants(INPUTS.shape, (0.0, 0.0), (1.0, 1.0))
    raw, bare = (PlainVictim(plain(), tensors(net), ("*",), inputs) for inputs in (INPUTS, as_it_is))
    normalised = (x - torch.tensor([0.4, 0.5]).view(2, 1, 1)) / torch.tensor([0.2, 0.3]).view(2, 1, 1)
    result = flat(raw.gradient(x, y, {}, {}))
    torch.testing.assert_close(result, flat(bare.gradient(normalised, y, {}, {})))
    assert float((result - flat(bare.gradient(x, y, {}, {}))).norm()) > 0.1 * float(result.norm())


def test_class_probabilities_serve_as_labels() -> None:
    victim = PlainVictim(plain(), tensors(plain()), ("*",), INPUTS)
    x, y = images(2), torch.tensor([2, 0])
    hard = victim.gradient(x, y, {}, {})
    soft = victim.gradient(x, torch.nn.functional.one_hot(y, 4).float(), {}, {})
    torch.testing.assert_close(flat(soft), flat(hard))


def test_what_is_observed_is_restricted_to_what_is_shared() -> None:
    net = plain()
    victim = PlainVictim(net, tensors(net), ("extractor.*",), INPUTS)
    observed, constants = victim.observed(autograd(net, images(1), torch.tensor([0])))
    assert set(observed) == {n for n in tensors(net) if n.startswith("extractor.")} and constants == {}


# --- the generated victim ---


def known_part(model: GeneratedNet) -> Tensors:
    return {name: value for name, value in tensors(model).items() if name.startswith("hypernet.")}


def both_victims() -> tuple[GeneratedVictim, VictimModel]:
    """The cheap and the dense victim of one broadcast hypernetwork, the attacker's own private tensors inside."""
    known = known_part(generated())
    return GeneratedVictim(generated(7), known, INPUTS), PlainVictim(generated(7), known, ("hypernet.*",), INPUTS)


def one_step(seed: int = 0, count: int = 1) -> Tensors:
    """What a client with private tensors of its own sends after one step."""
    client = generated()
    with torch.no_grad():
        client.embedding.copy_(randn(6, seed=100 + seed))
        client.get_parameter("classifier.weight").copy_(randn(4, 5, seed=200 + seed))
    return autograd(client, images(count, seed=50 + seed), torch.arange(count) % 4, "hypernet.")


def full_rank(seed: int = 0) -> Tensors:
    """The same with noise of about its own size, which no one direction of h explains."""
    sent = one_step(seed)
    return {n: v + v.square().mean().sqrt() * randn(*v.shape, seed=300 + i) for i, (n, v) in enumerate(sent.items())}


def a_guess(given: int) -> tuple[Tensor, Tensor, Tensors]:
    unknown = {
        "embedding": randn(6, seed=400 + given),
        "classifier.weight": randn(4, 5, seed=500 + given),
        "classifier.bias": randn(4, seed=600 + given),
    }
    return images(1, seed=10 + given), torch.tensor([1 + given]), unknown


@pytest.mark.parametrize("sent", [one_step(), one_step(count=3), full_rank()], ids=["one step", "batch of 3", "noisy"])
def test_generated_victim_keeps_inner_products_norms_and_squared_distances(sent: Tensors) -> None:
    cheap, dense = both_victims()
    (seen, constants), (seen_densely, none) = cheap.observed(sent), dense.observed(sent)
    assert none == {}
    observed, observed_densely = flat(seen), flat(seen_densely)
    torch.testing.assert_close(observed @ observed, observed_densely @ observed_densely, rtol=1e-5, atol=0)
    for given in range(2):
        x, y, unknown = a_guess(given)
        a, b = flat(cheap.gradient(x, y, unknown, constants)), flat(dense.gradient(x, y, unknown, {}))
        size = float(b.norm() * observed_densely.norm())
        torch.testing.assert_close(a @ a, b @ b, rtol=1e-5, atol=0)
        torch.testing.assert_close(a @ observed, b @ observed_densely, rtol=0, atol=1e-5 * size)
        torch.testing.assert_close(
            (a - observed).square().sum(), (b - observed_densely).square().sum(), rtol=1e-5, atol=0
        )


def test_generated_victim_needs_one_direction_after_one_step_and_all_under_noise() -> None:
    cheap, _ = both_victims()
    hidden = {name: cheap.observed(sent)[1]["basis"] for name, sent in (("step", one_step()), ("noise", full_rank()))}
    assert hidden["step"].shape == (16, 1) and hidden["noise"].shape == (16, 16)
    torch.testing.assert_close(hidden["noise"].T @ hidden["noise"], torch.eye(16))


def test_generated_victim_of_the_true_guess_matches_what_was_sent() -> None:
    client, x, y = generated(), images(1), torch.tensor([2])
    sent = autograd(client, x, y, "hypernet.")
    cheap, _ = both_victims()
    seen, constants = cheap.observed(sent)
    private = {n: v for n, v in tensors(client).items() if not n.startswith("hypernet.")}
    assert set(private) == set(cheap.unknown)
    assert float(cosine_distance(cheap.gradient(x, y, private, constants), seen)) < 1e-6


@pytest.mark.parametrize("sent", [one_step(), full_rank()], ids=["one step", "noisy"])
def test_cosine_distance_has_the_dense_derivative_in_image_and_unknown_tensors(sent: Tensors) -> None:
    derivatives = []
    x, y, unknown = a_guess(0)
    for victim in both_victims():
        seen, constants = victim.observed(sent)

        def loss(
            x: Tensor, free: Tensors, victim: VictimModel = victim, seen: Tensors = seen, constants: Tensors = constants
        ) -> Tensor:
            return cosine_distance(victim.gradient(x, y, free, constants), seen)

        derivatives.append(grad(loss, argnums=(0, 1))(x, unknown))
    (image, free), (image_densely, free_densely) = derivatives
    assert float(image_densely.norm()) > 0
    torch.testing.assert_close(image, image_densely, rtol=1e-3, atol=1e-5 * float(image_densely.norm()))
    for name in unknown:
        size = float(free_densely[name].norm())
        assert size > 0
        torch.testing.assert_close(free[name], free_densely[name], rtol=1e-3, atol=1e-5 * size)


def stacked(many: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([tensors[name] for tensors in many]) for name in many[0]}


def test_gradients_of_two_victims_at_once_are_those_of_each_alone() -> None:
    cheap, _ = both_victims()
    bases = [cheap.observed(one_step(given))[1] for given in range(2)]
    guesses = [a_guess(given) for given in range(2)]
    x, y = torch.stack([x for x, _, _ in guesses]), torch.stack([y for _, y, _ in guesses])
    together = vmap(cheap.gradient)(x, y, stacked([guess[2] for guess in guesses]), stacked(bases))
    for i, guess in enumerate(guesses):
        for name, value in cheap.gradient(*guess, bases[i]).items():
            torch.testing.assert_close(together[name][i], value, msg=name)


def dead() -> Tensors:
    """What a client sends whose hidden layer has died: h = 0, so only the heads' biases have a gradient."""
    sent = {name: torch.zeros_like(value) for name, value in one_step().items()}
    biases = [name for name in sent if "heads" in name and name.endswith("bias")]
    return sent | {name: one_step()[name] for name in biases}


def start_of(given: int) -> torch.Generator:
    """That from which a search starts where `randn` does."""
    return torch_generator(0, "randn", given)


def target(sent: Tensors, y: Tensor, given: int) -> SearchTarget:
    return SearchTarget(sent, y, start_of(700 + given))


def run(victim: VictimModel, targets: Sequence[SearchTarget], descent: AdamSearch) -> list[SearchResult]:
    return invert(victim, targets, SearchConfig(cosine_distance, descent, weighted((1e-3, total_variation))))


def assert_found_alike(result: SearchResult, other: SearchResult, atol: float = 1e-4) -> None:
    torch.testing.assert_close(result.samples, other.samples, rtol=0, atol=atol)
    assert result.matching_loss == pytest.approx(other.matching_loss, abs=1e-5)


@pytest.mark.slow
def test_search_pads_bases_of_different_widths_without_changing_any_result() -> None:
    cheap, _ = both_victims()
    many = (one_step(), full_rank(1), dead())
    assert [cheap.observed(sent)[1]["basis"].shape[1] for sent in many] == [1, 16, 0]

    def targets() -> list[SearchTarget]:
        return [target(sent, torch.tensor([1 + i]), i) for i, sent in enumerate(many)]

    together = run(cheap, targets(), AdamSearch(4, 0.1))
    for i in (0, 2):  # those that were padded
        assert_found_alike(together[i], run(cheap, targets()[i : i + 1], AdamSearch(4, 0.1))[0])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one by one", "in chunks"])
def test_bases_of_different_widths_serve_where_not_all_is_done_together(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap, _ = both_victims()

    def targets() -> list[SearchTarget]:
        return [target(sent, torch.tensor([1 + i]), i) for i, sent in enumerate((one_step(), full_rank(1)))]

    together = run(cheap, targets(), AdamSearch(4, 0.1))
    if way == "one by one":
        monkeypatch.setattr(graph, "LIGHT", -1)
    else:
        monkeypatch.setattr(evaluation, "fitting", lambda needed, batch, compute: 1)
    for result, other in zip(run(cheap, targets(), AdamSearch(4, 0.1)), together, strict=True):
        assert_found_alike(result, other)


@pytest.mark.slow
def test_search_finds_the_same_with_the_cheap_and_with_the_dense_victim() -> None:
    cheap, dense = (run(v, [target(one_step(), torch.tensor([1]), 0)], AdamSearch(8, 0.1))[0] for v in both_victims())
    assert_found_alike(cheap, dense, atol=1e-3)


# --- distances and priors ---


def two_gradients() -> tuple[Tensors, Tensors]:
    return {"a": randn(3, 4), "b": randn(5, seed=1)}, {"a": randn(3, 4, seed=2), "b": randn(5, seed=3)}


def test_cosine_distance_by_hand() -> None:
    a, b = {"v": torch.tensor([3.0]), "w": torch.tensor([4.0])}, {"v": torch.tensor([1.0]), "w": torch.tensor([0.0])}
    assert float(cosine_distance(a, b)) == pytest.approx(1 - 3 / 5)
    assert float(cosine_distance(a, {n: -v for n, v in a.items()})) == pytest.approx(2.0)


def test_cosine_distance_is_torchs_on_all_tensors_as_one_vector() -> None:
    a, b = two_gradients()
    expected = 1 - cosine_similarity(flat(a), flat(b), dim=0)
    torch.testing.assert_close(cosine_distance(a, b), expected)
    by_tensor = torch.stack([1 - cosine_similarity(a[n].flatten(), b[n].flatten(), dim=0) for n in a]).mean()
    assert float((expected - by_tensor).abs()) > 1e-2  # the mean over tensors is another distance


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1e4])
def test_cosine_distance_does_not_see_the_scale_of_either_gradient(scale: float) -> None:
    a, b = two_gradients()
    scaled = {name: scale * value for name, value in a.items()}
    torch.testing.assert_close(cosine_distance(scaled, b), cosine_distance(a, b), rtol=0, atol=1e-3)
    torch.testing.assert_close(cosine_distance(b, scaled), cosine_distance(b, a), rtol=0, atol=1e-3)


def test_cosine_distance_of_the_small_gradients_of_a_trained_client() -> None:
    a, _ = two_gradients()
    small = {name: 1e-7 * value for name, value in a.items()}
    assert float(cosine_distance(small, small)) < 1e-3


def test_cosine_distance_to_nothing_is_one_and_has_a_finite_derivative() -> None:
    zero = torch.zeros(4)
    assert float(cosine_distance({"a": zero}, {"a": torch.ones(4)})) == 1.0
    derivative = grad(lambda t: cosine_distance({"a": t}, {"a": torch.ones(4)}))(zero)
    assert bool(torch.isfinite(derivative).all())
    derivative = grad(lambda t: cosine_distance({"a": t}, {"a": zero}))(torch.ones(4))
    assert derivative.tolist() == [0.0] * 4


def test_total_variation_is_a_loop_over_neighbours() -> None:
    x = numpy_generator(0, "tv").random((2, 3, 4, 5))
    down = [abs(x[b, c, i + 1, j] - x[b, c, i, j]) for b, c, i, j in np.ndindex(2, 3, 3, 5)]
    right = [abs(x[b, c, i, j + 1] - x[b, c, i, j]) for b, c, i, j in np.ndindex(2, 3, 4, 4)]
    assert float(total_variation(torch.from_numpy(x))) == pytest.approx(np.mean(down) + np.mean(right))


def test_total_variation_is_zero_for_flat_images_and_for_rows() -> None:
    assert float(total_variation(torch.full((1, 3, 4, 4), 0.7))) == 0.0
    assert float(total_variation(randn(2, 30))) == 0.0


def test_priors_are_added_by_weight() -> None:
    z = torch.tensor([[[0.0, 2.0]]])  # differences of 2 in the rows and none in the columns
    x = torch.cat([z, z], dim=1)
    assert (float(total_variation(x)), float(energy(x)), float(none(x))) == (2.0, 2.0, 0.0)
    assert float(weighted((0.5, total_variation), (3.0, energy))(x)) == 7.0
    assert float(weighted((0.0, lambda x: x.sum() * torch.nan), (1.0, energy))(x)) == 2.0
    assert float(weighted()(x)) == 0.0


def test_squared_distance_and_the_likelihood_of_noise_by_hand() -> None:
    a = {"v": torch.tensor([3.0, 1.0]), "w": torch.tensor([4.0])}
    b = {"v": torch.tensor([1.0, 1.0]), "w": torch.ones(1)}
    assert float(squared_distance(a, b)) == 4 + 9
    assert float(gaussian_likelihood(2.0)(a, b)) == 13 / 8


# --- the closed form ---


def softmax_gradient(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean gradient of softmax regression with all weights zero: probabilities are 1/3, so dL/db = 1/3 - [k = y]."""
    delta = 1 / 3 - torch.nn.functional.one_hot(y, 3).double()
    return delta.T @ x.double() / len(x), delta.mean(0)


def test_closed_form_is_exact_for_one_example_and_reads_the_unit_with_the_largest_bias_gradient() -> None:
    x = torch.tensor([[0.2, 0.9, 0.0]])
    weight, bias = softmax_gradient(x, torch.tensor([1]))
    torch.testing.assert_close(linear_inputs(weight, bias, 1), x.double())
    torch.testing.assert_close(linear_inputs(weight, bias, 3), x.double().expand(3, 3))
    weight[0], bias[0] = 0.0, 1e-9  # units that say nothing are not read, though their gradients are the positive ones
    weight[2], bias[2] = 0.0, 1e-9
    torch.testing.assert_close(linear_inputs(weight, bias, 1), x.double())


def test_closed_form_gives_a_mixture_for_two_examples() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    weight, bias = softmax_gradient(x, torch.tensor([0, 1]))
    # Twice the sums: unit 0 has -2/3 a + 1/3 b over -1/3, unit 1 the other way round, unit 2 (a + b)/3 over 2/3.
    result = linear_inputs(weight, bias, 3)
    expected = {0: [2.0, -1.0], 1: [-1.0, 2.0], 2: [0.5, 0.5]}
    order = bias.abs().topk(3).indices.tolist()
    assert order[0] == 2
    torch.testing.assert_close(result, torch.tensor([expected[k] for k in order]).double())


# --- the search ---

ROW = InputSpec.from_constants((5,), (0.0,) * 5, (1.0,) * 5)
WIDE = (-1000.0, 1000.0)


def linear_victim(inputs: InputSpec = ROW) -> VictimModel:
    with initialising(3, "linear victim"):
        net = build("linear", inputs.shape, 3)
    return PlainVictim(net, tensors(net), ("*",), inputs)


def linear_target(victim: VictimModel, seed: int = 0) -> tuple[Tensor, SearchTarget]:
    """An example, and what softmax regression sent of it."""
    x = torch.rand((1, *victim.inputs.shape), generator=torch_generator(0, "row", seed))
    y = torch.tensor([seed % 3])
    sent = {n: v.detach() for n, v in victim.gradient(x, y, {}, {}).items()}
    return x, SearchTarget(sent, y, start_of(seed))


def nowhere(simulated: Tensors, observed: Tensors) -> Tensor:
    """A distance that says nothing."""
    return 0 * cosine_distance(simulated, observed)


def led(
    prior: Prior,
    descent: AdamSearch,
    start: float = 0.0,
    box: tuple[float, float] = WIDE,
    inputs: InputSpec = ROW,
    boxed: bool = True,
) -> SearchResult:
    """Where a search ends that only follows a prior, from one value everywhere in normalised units."""
    victim = linear_victim(inputs)
    _, target = linear_target(victim)
    begin = lambda shape, rng: torch.full(shape, start)  # noqa: E731
    (result,) = invert(victim, [target], SearchConfig(nowhere, descent, prior, begin, boxed=boxed), box=box)
    return result


def walk(descent: AdamSearch, slope: Tensor, box: tuple[float, float] = WIDE, inputs: InputSpec = ROW) -> Tensor:
    """The same for a prior of constant slope."""
    return led(lambda z: (slope * z).sum(), descent, box=box, inputs=inputs).samples[0]


def signed(iterations: int, lr: float, drops: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)) -> AdamSearch:
    return AdamSearch(iterations, lr, signed=True, drops=drops)


@pytest.mark.slow
def test_steps_fall_to_a_tenth_at_three_five_and_seven_eighths() -> None:
    slope = torch.tensor([-1.0, 1.0, -5.0, 1e-3, -1e-3])
    # Adam on a constant sign steps by the learning rate: of 8 steps 3 of 0.1, 2 of 0.01, 2 of 0.001, 1 of 0.0001.
    expected = 0.3221 * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    torch.testing.assert_close(walk(signed(8, 0.1), slope), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(walk(signed(16, 0.1), slope), 2 * expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(walk(signed(8, 0.1, drops=()), slope), 0.8 * expected.sign(), rtol=1e-5, atol=0)


def test_steps_are_in_deviations_of_the_normalised_input() -> None:
    inputs = InputSpec.from_constants((1, 1, 1), (0.5,), (0.25,))
    result = walk(signed(8, 0.1), torch.tensor(-1.0), inputs=inputs)
    assert float(result) == pytest.approx(0.5 + 0.25 * 0.3221, rel=1e-5)  # from the mean, which is 0 normalised


def test_the_sign_hides_how_the_slope_changes_and_the_gradient_does_not() -> None:
    result = {
        way: float(led(lambda z: (z**4).sum(), AdamSearch(3, 0.1, way, drops=()), start=0.5).samples[0, 0])
        for way in (True, False)
    }
    assert result[True] == pytest.approx(0.2, rel=1e-5)
    # Adam's averages of the shrinking slopes 4 z^3, by its formulas.
    z, m, v = 0.5, 0.0, 0.0
    for t in (1, 2, 3):
        slope = 4 * z**3
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        z -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
    assert result[False] == pytest.approx(z, rel=1e-4)
    assert abs(result[False] - result[True]) > 1e-3


@pytest.mark.slow
def test_search_stays_in_the_box() -> None:
    slope = torch.tensor([-1.0, 1.0, -1.0, 1.0, -1.0])
    assert walk(signed(8, 1.0), slope, box=(0.0, 1.0)).tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert walk(signed(8, 1.0), slope, box=(0.2, 0.6)).tolist() == pytest.approx([0.6, 0.2] * 2 + [0.6])
    inputs = InputSpec.from_constants((5,), (0.3,) * 5, (0.7,) * 5)
    result = walk(signed(8, 1.0), slope, box=(0.0, 1.0), inputs=inputs)
    assert float(result.min()) >= 0.0 and float(result.max()) <= 1.0
    assert result.tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0, 1.0], abs=1e-6)


def test_search_starts_in_the_box_unless_it_is_left_free() -> None:
    def downhill_on_both_sides(z: Tensor) -> Tensor:
        return -((z - 3) ** 2).sum()

    inside = led(downhill_on_both_sides, signed(1, 0.1, drops=()), start=5.0, box=(0.0, 1.0))
    assert inside.samples[0].tolist() == pytest.approx([0.9] * 5)  # down from 1, where 5 was put
    free = led(downhill_on_both_sides, signed(1, 0.1, drops=()), start=5.0, box=(0.0, 1.0), boxed=False)
    assert free.samples[0].tolist() == [1.0] * 5  # up from 5, and into the box at the end


def test_the_best_guess_so_far_is_found_and_not_the_last() -> None:
    def around(z: Tensor) -> Tensor:
        return ((z - 0.1) ** 2).sum()

    # Signs lead from 0.5 to 0.2 and to -0.1, which is farther from 0.1.
    assert led(around, signed(2, 0.3, drops=()), start=0.5).samples[0].tolist() == pytest.approx([0.2] * 5)
    assert led(around, signed(1, 0.3, drops=()), start=0.5).samples[0].tolist() == pytest.approx([0.2] * 5)


@pytest.mark.slow
def test_a_search_that_never_gets_below_its_start_found_nothing() -> None:
    ways: dict[str, Prior] = {
        "flat": none,
        "over the bottom": lambda z: ((z - 0.1) ** 2).sum(),  # from 0.2 to -0.3, farther from 0.1
        "infinite": lambda z: (z + torch.inf).sum(),
        "not a number": lambda z: (z + torch.nan).sum(),
    }
    for name, prior in ways.items():
        result = led(prior, signed(1, 0.5, drops=()), start=0.2)
        assert bool(result.samples.isnan().all()) and result.matching_loss == inf, name
        assert result.samples.shape == (1, 5) and result.labels.tolist() == [0], name


def test_what_breaks_down_on_its_way_leaves_the_best_guess_before() -> None:
    def cliff(z: Tensor) -> Tensor:
        return z.sum() + torch.where(z.sum() < -1, torch.nan, 0.0)

    result = led(cliff, signed(6, 0.1, drops=()))  # -0.1, -0.2, and beyond it nothing is finite
    assert result.samples[0].tolist() == pytest.approx([-0.2] * 5)


@pytest.mark.slow
def test_search_recovers_the_input_of_softmax_regression() -> None:
    victim = linear_victim()
    cases = [linear_target(victim, given) for given in range(3)]
    recipe = SearchConfig(cosine_distance, signed(400, 0.1), total_variation)
    result = invert(victim, [target for _, target in cases], recipe, box=(0.0, 1.0))
    for given, ((x, _), one) in enumerate(zip(cases, result, strict=True)):
        assert float((randn(1, 5, seed=given).clamp(0, 1) - x).abs().max()) > 0.2
        assert float((one.samples - x).abs().max()) < 0.01
        assert one.matching_loss < 1e-4
        assert one.labels.tolist() == [given]


def test_what_counts_as_solved_at_zero_is_never_solved() -> None:
    """Rounding may put a cosine distance at 0 or below."""
    victim = linear_victim()
    x, target = linear_target(victim)

    def rounded(simulated: Tensors, observed: Tensors) -> Tensor:
        return squared_distance(simulated, observed) - 1.0

    (result,) = invert(victim, [target], SearchConfig(rounded, signed(7, 0.01), start=lambda shape, rng: x + 0.05))
    assert result.matching_loss < 0 and result.iterations is None


def test_the_iterations_of_an_opening_count() -> None:
    victim = linear_victim()
    x, target = linear_target(victim)
    opening = Stage(squared_distance, signed(3, 0.01))
    recipe = SearchConfig(
        squared_distance, signed(60, 1e-3), start=lambda shape, rng: x + 0.05, solved=1e-3, opening=(opening,)
    )
    (result,) = invert(victim, [target], recipe)
    assert result.iterations is not None and 3 < result.iterations < 63


def test_search_reports_the_distance_at_the_samples_without_the_prior() -> None:
    victim = linear_victim()
    _, target = linear_target(victim)
    (result,) = invert(victim, [target], SearchConfig(cosine_distance, signed(5, 0.1), lambda z: z.sum()))
    expected = cosine_distance(victim.gradient(result.samples, result.labels, {}, {}), target.sent)
    assert result.matching_loss == pytest.approx(float(expected), abs=1e-5)


def test_search_reports_the_distance_in_the_box_however_far_a_step_would_lead_out_of_it() -> None:
    victim = linear_victim()
    _, target = linear_target(victim)
    slope = torch.tensor([9.0, -9.0, -9.0, 9.0, -9.0])
    recipe = SearchConfig(cosine_distance, signed(4, 5.0, drops=()), lambda z: (slope * z).sum())
    (result,) = invert(victim, [target], recipe)
    assert result.samples[0].tolist() == [0.0, 1.0, 1.0, 0.0, 1.0]
    expected = cosine_distance(victim.gradient(result.samples, result.labels, {}, {}), target.sent)
    assert result.matching_loss == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.slow
def test_of_several_starts_the_one_with_the_lowest_distance_counts() -> None:
    victim = linear_victim()
    once, twice = (SearchConfig(squared_distance, signed(3, 0.05), restarts=n) for n in (1, 2))

    def targets() -> list[SearchTarget]:
        return [linear_target(victim, given)[1] for given in range(6)]

    same = targets()
    first, second = invert(victim, same, once), invert(victim, same, once)  # the generators draw on
    better = [b.matching_loss < a.matching_loss for a, b in zip(first, second, strict=True)]
    assert set(better) == {True, False}  # not always the first, nor always the last
    for result, a, b, later in zip(invert(victim, targets(), twice), first, second, better, strict=True):
        assert_found_alike(result, b if later else a)


@pytest.mark.slow
def test_what_is_solved_is_not_searched_for_again() -> None:
    victim, starts = linear_victim(), []
    (x, easy), (_, hard) = (linear_target(victim, given) for given in range(2))
    easy_rng, hard_rng = easy.rng, hard.rng

    def noted(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        starts.append("easy" if rng is easy_rng else "hard")
        return (x if rng is easy_rng else torch.zeros(shape)) + 0.01 * torch.randn(shape, generator=rng)

    assert hard_rng is not easy_rng
    recipe = SearchConfig(squared_distance, signed(60, 1e-3), start=noted, restarts=3, solved=1e-4)
    result = invert(victim, [easy, hard], recipe)
    assert starts == ["easy", "hard", "hard", "hard"]
    assert result[0].matching_loss < 1e-4 < result[1].matching_loss
    assert result[0].iterations is not None and result[0].iterations < 60
    assert result[1].iterations is None  # it was never solved


@pytest.mark.parametrize(("lost", "result"), [(0.5, False), (3.0, True)])
def test_a_search_that_ends_too_far_off_found_nothing(lost: float, result: bool) -> None:
    """The distance only grows, by 1 at least, while the prior falls: by its objective the search goes on well."""
    victim = linear_victim()
    _, target = linear_target(victim)

    def far(simulated: Tensors, observed: Tensors) -> Tensor:
        return 1.0 + squared_distance(simulated, observed) * 1e-6

    (one,) = invert(victim, [target], SearchConfig(far, signed(3, 0.01), lambda z: z.sum(), failed_above=lost))
    assert bool(one.samples.isfinite().all()) is result
    assert (one.matching_loss < inf) is result


@pytest.mark.slow
def test_stages_go_on_from_where_the_last_one_ended_and_the_last_alone_is_reported() -> None:
    victim = linear_victim()
    x, target = linear_target(victim)
    seen: list[float] = []

    def noted(simulated: Tensors, observed: Tensors) -> Tensor:
        return squared_distance(simulated, observed)

    class Watched(SearchOptimiser):
        iterations = 2

        def descend(self, evaluate: Any, guess: Any, box: Any, solved: float) -> Best:
            seen.append(float(guess["x"].mean()))
            return AdamSearch(2, 0.5, signed=True, schedule="constant").descend(evaluate, guess, None, solved)

    upwards, downwards = (lambda z: -z.sum()), (lambda z: z.sum())
    opening = Stage(noted, Watched(), upwards, strength=1e6), Stage(noted, Watched(), upwards, strength=1e6)
    recipe = SearchConfig(
        noted, Watched(), downwards, lambda shape, rng: torch.zeros(shape), boxed=False, opening=opening
    )
    (result,) = invert(victim, [target], recipe)
    # Two signed steps of 0.5 in each stage; of the last guess of a stage the next one starts.
    assert seen == pytest.approx([0.0, 1.0, 2.0], abs=1e-4)
    expected = squared_distance(victim.gradient(result.samples, result.labels, {}, {}), target.sent)
    assert result.matching_loss == pytest.approx(float(expected), rel=1e-3)
    assert x.shape == result.samples.shape


@pytest.mark.slow
def test_labels_that_nobody_granted_are_searched_for() -> None:
    victim = linear_victim()
    cases = [linear_target(victim, given) for given in range(3)]
    targets = [SearchTarget(target.sent, None, target.rng) for _, target in cases]
    result = invert(victim, targets, SearchConfig(squared_distance, AdamSearch(500, 0.1)))
    assert [one.labels.tolist() for one in result] == [[0], [1], [2]]
    for (x, _), one in zip(cases, result, strict=True):
        assert float((one.samples - x).abs().max()) < 0.05


def test_a_batch_without_labels_is_as_large_as_is_said() -> None:
    victim = linear_victim()
    target = SearchTarget(linear_target(victim)[1].sent, None, start_of(0), batch=3)
    (result,) = invert(victim, [target], SearchConfig(squared_distance, AdamSearch(5, 0.1)))
    assert result.samples.shape == (3, 5) and result.labels.shape == (3,)


@pytest.mark.slow
def test_search_does_not_depend_on_what_else_is_searched_for() -> None:
    net = plain()
    victim = PlainVictim(net, tensors(net), ("*",), INPUTS)

    def targets() -> list[SearchTarget]:
        many = []
        for given in range(3):
            y = torch.tensor([given, 0])
            many.append(SearchTarget(autograd(net, images(2, given), y), y, start_of(given)))
        return many

    together = run(victim, targets(), AdamSearch(6, 0.1))
    for i in (2, 0):
        assert_found_alike(together[i], run(victim, targets()[i : i + 1], AdamSearch(6, 0.1))[0])


def test_search_moves_unknown_tensors_from_the_given_guess_and_leaves_it_alone() -> None:
    net = plain()
    known = {n: v for n, v in tensors(net).items() if n.startswith("extractor.")}
    victim = PlainVictim(plain(1), known, ("extractor.*",), INPUTS)
    sent = autograd(net, images(1), torch.tensor([2]), "extractor.")
    start, guess = randn(1, *INPUTS.shape), {n: v.clone() for n, v in victim.unknown.items()}
    recipe = SearchConfig(
        cosine_distance, signed(30, 0.1), weighted((1e-3, total_variation)), start=lambda shape, rng: start
    )
    (result,) = invert(victim, [SearchTarget(sent, torch.tensor([2]), start_of(0))], recipe)
    at_guess = cosine_distance(victim.gradient(result.samples, result.labels, guess, {}), sent)
    assert result.matching_loss < float(at_guess) - 0.01  # the head has moved too, and towards the client's
    assert torch.equal(start, randn(1, *INPUTS.shape))
    torch.testing.assert_close(victim.unknown, guess, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"classifier.bias": None}, r"Expected classifier.bias, which Net shares, got .*"),
        ({"classifier.bias": torch.zeros(5)}, r"Expected classifier.bias of shape \(4,\), got \(5,\): .*"),
        ({"classifier.bias": torch.tensor([0.0, torch.nan, 0.0, 0.0])}, "Expected finite numbers in classifier.bias"),
    ],
    ids=["missing", "another shape", "not finite"],
)
def test_what_no_client_of_the_model_sent_is_refused(changes: dict[str, Tensor | None], line: str) -> None:
    net = plain()
    victim = PlainVictim(net, tensors(net), ("*",), INPUTS)
    sent = {**autograd(net, images(1), torch.tensor([0])), **changes}
    there = {name: value for name, value in sent.items() if value is not None}
    with pytest.raises(InputError, match=line):
        run(victim, [SearchTarget(there, torch.tensor([0]), start_of(0))], AdamSearch(1, 0.1))
