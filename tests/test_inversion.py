"""The attack engine: the victim's gradient, its cheap form for generated extractors, distances, and the search."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cosine_similarity, cross_entropy

from flfw.inversion.closed_form import linear_inputs
from flfw.inversion.generated import GeneratedVictim
from flfw.inversion.matching import cosine_distance, total_variation
from flfw.inversion.search import Problem, Schedule, search
from flfw.inversion.victim import Inputs, PlainVictim, VictimModel
from flfw.nets import Net, Tensors, build, tensors
from flfw.nets.hypernetwork import GeneratedNet
from flfw.rng import initialising, numpy_generator, torch_generator

INPUTS = Inputs.of((2, 6, 6), (0.4, 0.5), (0.2, 0.3))


def randn(*shape: int, of: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(0, "randn", of))


def images(count: int, of: int = 0) -> Tensor:
    return torch.rand((count, *INPUTS.shape), generator=torch_generator(0, "images", of))


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


def autograd(model: nn.Module, x: Tensor, y: Tensor, prefix: str = "", inputs: Inputs = INPUTS) -> Tensors:
    """The gradient by the ordinary way, for the parameters whose names start with ``prefix``."""
    model.zero_grad()
    mean, std = inputs.mean, inputs.std
    cross_entropy(model((x - mean) / std), y).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if n.startswith(prefix) and p.grad is not None}


def flat(several: Tensors) -> Tensor:
    return torch.cat([value.reshape(-1) for value in several.values()])


# --- inputs ---


def test_inputs_are_normalised_channel_by_channel_or_feature_by_feature() -> None:
    x = torch.tensor([[[[1.0]], [[0.5]]]])
    assert Inputs.of((2, 1, 1), (0.5, 0.0), (0.25, 2.0)).normalise(x).flatten().tolist() == [2.0, 0.25]
    rows = Inputs.of((3,), (0.0, 1.0, 0.5), (1.0, 0.5, 0.25))
    assert rows.normalise(torch.tensor([[0.5, 0.5, 1.0]])).tolist() == [[0.5, -1.0, 2.0]]


# --- the dense victim ---


def test_gradient_with_everything_shared_is_the_ordinary_gradient_of_raw_inputs() -> None:
    net, x, y = plain(), images(3), torch.tensor([0, 3, 1])
    victim = PlainVictim(plain(1), tensors(net), ("*",), INPUTS)
    assert victim.unknown == {}
    found = victim.gradient(x, y, {}, {})
    expected = autograd(net, x, y)
    assert list(found) == list(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


def test_gradient_with_a_private_head_uses_the_guessed_head_and_speaks_of_the_extractor_alone() -> None:
    net, x, y = plain(), images(3), torch.tensor([0, 3, 1])
    known = {n: v for n, v in tensors(net).items() if n.startswith("extractor.")}
    attackers = plain(1)
    victim = PlainVictim(attackers, known, ("extractor.*",), INPUTS)
    assert set(victim.unknown) == {"classifier.weight", "classifier.bias"}
    assert torch.equal(victim.unknown["classifier.weight"], attackers.classifier.weight)
    guess = {"classifier.weight": randn(4, 5), "classifier.bias": randn(4)}
    found = victim.gradient(x, y, guess, {})
    net.classifier.load_state_dict({n.removeprefix("classifier."): v for n, v in guess.items()})
    expected = autograd(net, x, y, "extractor.")
    assert list(found) == list(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


def test_raw_inputs_are_normalised_before_the_network_sees_them() -> None:
    net, x, y = plain(), images(2), torch.tensor([1, 2])
    as_it_is = Inputs.of(INPUTS.shape, (0.0, 0.0), (1.0, 1.0))
    raw, bare = (PlainVictim(plain(), tensors(net), ("*",), inputs) for inputs in (INPUTS, as_it_is))
    normalised = (x - torch.tensor([0.4, 0.5]).view(2, 1, 1)) / torch.tensor([0.2, 0.3]).view(2, 1, 1)
    found = flat(raw.gradient(x, y, {}, {}))
    torch.testing.assert_close(found, flat(bare.gradient(normalised, y, {}, {})))
    assert float((found - flat(bare.gradient(x, y, {}, {}))).norm()) > 0.1 * float(found.norm())


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


def one_step(of: int = 0, count: int = 1) -> Tensors:
    """What a client with private tensors of its own sends after one step."""
    client = generated()
    with torch.no_grad():
        client.embedding.copy_(randn(6, of=100 + of))
        client.classifier.weight.copy_(randn(4, 5, of=200 + of))
    return autograd(client, images(count, of=50 + of), torch.arange(count) % 4, "hypernet.")


def full_rank(of: int = 0) -> Tensors:
    """The same with noise of about its own size, which no one direction of h explains."""
    sent = one_step(of)
    return {n: v + v.square().mean().sqrt() * randn(*v.shape, of=300 + i) for i, (n, v) in enumerate(sent.items())}


def a_guess(of: int) -> tuple[Tensor, Tensor, Tensors]:
    unknown = {
        "embedding": randn(6, of=400 + of),
        "classifier.weight": randn(4, 5, of=500 + of),
        "classifier.bias": randn(4, of=600 + of),
    }
    return images(1, of=10 + of), torch.tensor([1 + of]), unknown


@pytest.mark.parametrize("sent", [one_step(), one_step(count=3), full_rank()], ids=["one step", "batch of 3", "noisy"])
def test_generated_victim_keeps_inner_products_norms_and_squared_distances(sent: Tensors) -> None:
    cheap, dense = both_victims()
    (seen, constants), (seen_densely, none) = cheap.observed(sent), dense.observed(sent)
    assert none == {}
    observed, observed_densely = flat(seen), flat(seen_densely)
    torch.testing.assert_close(observed @ observed, observed_densely @ observed_densely, rtol=1e-5, atol=0)
    for of in range(2):
        x, y, unknown = a_guess(of)
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
            x: Tensor,
            free: Tensors,
            victim: VictimModel = victim,
            seen: Tensors = seen,
            constants: Tensors = constants,
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


def stacked(several: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([tensors[name] for tensors in several]) for name in several[0]}


def test_gradients_of_two_victims_at_once_are_those_of_each_alone() -> None:
    cheap, _ = both_victims()
    bases = [cheap.observed(one_step(of))[1] for of in range(2)]
    guesses = [a_guess(of) for of in range(2)]
    x, y = (torch.stack([guess[i] for guess in guesses]) for i in range(2))
    together = vmap(cheap.gradient)(x, y, stacked([guess[2] for guess in guesses]), stacked(bases))
    for i, guess in enumerate(guesses):
        for name, value in cheap.gradient(*guess, bases[i]).items():
            torch.testing.assert_close(together[name][i], value, msg=name)


def dead() -> Tensors:
    """What a client sends whose hidden layer has died: h = 0, so only the heads' biases have a gradient."""
    sent = {name: torch.zeros_like(value) for name, value in one_step().items()}
    biases = [name for name in sent if "heads" in name and name.endswith("bias")]
    return sent | {name: one_step()[name] for name in biases}


def generated_problem(sent: Tensors, of: int) -> Problem:
    _, y, unknown = a_guess(of)
    return Problem(sent, y, randn(1, *INPUTS.shape, of=700 + of), unknown)


def run(
    victim: VictimModel, problems: Sequence[Problem], schedule: Schedule, box: tuple[float, float] = (0.0, 1.0)
) -> tuple[Tensor, Tensor]:
    return search(victim, problems, cosine_distance, lambda z: 1e-3 * total_variation(z), schedule, box)


def test_search_pads_bases_of_different_widths_without_changing_any_result() -> None:
    cheap, _ = both_victims()
    problems = [generated_problem(sent, i) for i, sent in enumerate((one_step(), full_rank(1), dead()))]
    schedule = Schedule(4, 0.1, signed=False)
    samples, distances = run(cheap, problems, schedule)
    assert [cheap.observed(p.sent)[1]["basis"].shape[1] for p in problems] == [1, 16, 0]
    for i, problem in enumerate(problems):
        alone, distance = run(cheap, [problem], schedule)
        torch.testing.assert_close(samples[i], alone[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(distances[i], distance[0], rtol=0, atol=1e-5)


def test_search_finds_the_same_with_the_cheap_and_with_the_dense_victim() -> None:
    results = [run(v, [generated_problem(one_step(), 0)], Schedule(8, 0.1, signed=False)) for v in both_victims()]
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-3)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-4)


# --- distances and priors ---


def two_gradients() -> tuple[Tensors, Tensors]:
    return {"a": randn(3, 4), "b": randn(5, of=1)}, {"a": randn(3, 4, of=2), "b": randn(5, of=3)}


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
    found = linear_inputs(weight, bias, 3)
    expected = {0: [2.0, -1.0], 1: [-1.0, 2.0], 2: [0.5, 0.5]}
    order = bias.abs().topk(3).indices.tolist()
    assert order[0] == 2
    torch.testing.assert_close(found, torch.tensor([expected[k] for k in order]).double())


# --- the search ---

ROW = Inputs.of((5,), (0.0,) * 5, (1.0,) * 5)
WIDE = (-1000.0, 1000.0)


def linear_victim(inputs: Inputs = ROW) -> VictimModel:
    with initialising(3, "linear victim"):
        net = build("linear", inputs.shape, 3)
    return PlainVictim(net, tensors(net), ("*",), inputs)


def linear_problem(victim: VictimModel, of: int = 0) -> tuple[Tensor, Problem]:
    """An example and the search for it from what softmax regression sent."""
    x = torch.rand((1, *victim.inputs.shape), generator=torch_generator(0, "row", of))
    y = torch.tensor([of % 3])
    sent = {n: v.detach() for n, v in victim.gradient(x, y, {}, {}).items()}
    return x, Problem(sent, y, randn(1, *victim.inputs.shape, of=of), {})


def walk(schedule: Schedule, slope: Tensor, box: tuple[float, float] = WIDE, inputs: Inputs = ROW) -> Tensor:
    """Where a search ends that only follows a prior of constant slope, from 0 in normalised units."""
    victim = linear_victim(inputs)
    _, problem = linear_problem(victim)
    start = Problem(problem.sent, problem.labels, torch.zeros(1, *inputs.shape), {})
    samples, _ = search(
        victim, [start], lambda a, b: 0 * cosine_distance(a, b), lambda z: (slope * z).sum(), schedule, box
    )
    return samples[0, 0]


def test_steps_fall_to_a_tenth_at_three_five_and_seven_eighths() -> None:
    slope = torch.tensor([-1.0, 1.0, -5.0, 1e-3, -1e-3])
    # Adam on a constant sign steps by the learning rate: of 8 steps 3 of 0.1, 2 of 0.01, 2 of 0.001, 1 of 0.0001.
    expected = 0.3221 * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    torch.testing.assert_close(walk(Schedule(8, 0.1, signed=True), slope), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(walk(Schedule(16, 0.1, signed=True), slope), 2 * expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        walk(Schedule(8, 0.1, signed=True, drops=()), slope), 0.8 * expected.sign(), rtol=1e-5, atol=0
    )


def test_steps_are_in_deviations_of_the_normalised_input() -> None:
    inputs = Inputs.of((1, 1, 1), (0.5,), (0.25,))
    found = walk(Schedule(8, 0.1, signed=True), torch.tensor(-1.0), inputs=inputs)
    assert float(found) == pytest.approx(0.5 + 0.25 * 0.3221, rel=1e-5)  # from the mean, which is 0 normalised


def test_the_sign_hides_how_the_slope_changes_and_the_gradient_does_not() -> None:
    victim = linear_victim()
    _, problem = linear_problem(victim)
    start = Problem(problem.sent, problem.labels, torch.full((1, 5), 0.5), {})
    found = {}
    for signed in (True, False):
        samples, _ = search(
            victim,
            [start],
            lambda a, b: 0 * cosine_distance(a, b),
            lambda z: (z**4).sum(),
            Schedule(3, 0.1, signed, drops=()),
            WIDE,
        )
        found[signed] = float(samples[0, 0, 0])
    assert found[True] == pytest.approx(0.2, rel=1e-5)
    # Adam's averages of the shrinking slopes 4 z^3, by its formulas.
    z, m, v = 0.5, 0.0, 0.0
    for t in (1, 2, 3):
        slope = 4 * z**3
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        z -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
    assert found[False] == pytest.approx(z, rel=1e-4)
    assert abs(found[False] - found[True]) > 1e-3


def test_search_stays_in_the_box() -> None:
    slope = torch.tensor([-1.0, 1.0, -1.0, 1.0, -1.0])
    assert walk(Schedule(8, 1.0, signed=True), slope, box=(0.0, 1.0)).tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert walk(Schedule(8, 1.0, signed=True), slope, box=(0.2, 0.6)).tolist() == pytest.approx([0.6, 0.2] * 2 + [0.6])
    inputs = Inputs.of((5,), (0.3,) * 5, (0.7,) * 5)
    found = walk(Schedule(8, 1.0, signed=True), slope, box=(0.0, 1.0), inputs=inputs)
    assert float(found.min()) >= 0.0 and float(found.max()) <= 1.0
    assert found.tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0, 1.0], abs=1e-6)


def test_search_recovers_the_input_of_softmax_regression() -> None:
    victim = linear_victim()
    cases = [linear_problem(victim, of) for of in range(3)]
    samples, distances = search(
        victim, [p for _, p in cases], cosine_distance, total_variation, Schedule(400, 0.1, signed=True), (0.0, 1.0)
    )
    for (x, problem), found in zip(cases, samples, strict=True):
        assert float((problem.start.clamp(0, 1) - x).abs().max()) > 0.2
        assert float((found - x).abs().max()) < 0.01
    assert float(distances.max()) < 1e-4


def test_search_reports_the_distance_at_the_samples_without_the_prior() -> None:
    victim = linear_victim()
    _, problem = linear_problem(victim)
    samples, distances = search(
        victim, [problem], cosine_distance, lambda z: z.sum(), Schedule(5, 0.1, signed=True), (0.0, 1.0)
    )
    expected = cosine_distance(victim.gradient(samples[0], problem.labels, {}, {}), problem.sent)
    assert float(distances[0]) == pytest.approx(float(expected), abs=1e-5)


def test_search_reports_the_distance_in_the_box_however_far_a_step_would_lead_out_of_it() -> None:
    victim = linear_victim()
    _, problem = linear_problem(victim)
    slope = torch.tensor([9.0, -9.0, -9.0, 9.0, -9.0])
    samples, distances = search(
        victim,
        [problem],
        cosine_distance,
        lambda z: (slope * z).sum(),
        Schedule(4, 5.0, signed=True, drops=()),
        (0.0, 1.0),
    )
    assert samples[0, 0].tolist() == [0.0, 1.0, 1.0, 0.0, 1.0]
    expected = cosine_distance(victim.gradient(samples[0], problem.labels, {}, {}), problem.sent)
    assert float(distances[0]) == pytest.approx(float(expected), abs=1e-5)


def test_search_starts_in_the_box() -> None:
    victim = linear_victim()
    _, problem = linear_problem(victim)
    outside = Problem(problem.sent, problem.labels, torch.full((1, 5), 5.0), {})
    samples, _ = search(
        victim,
        [outside],
        lambda a, b: 0 * cosine_distance(a, b),
        lambda z: -((z - 3) ** 2).sum(),  # leads down from 1 and up from 5
        Schedule(1, 0.1, signed=True, drops=()),
        (0.0, 1.0),
    )
    assert samples[0, 0].tolist() == pytest.approx([0.9] * 5)


def test_search_does_not_depend_on_what_else_is_searched_for() -> None:
    net = plain()
    victim = PlainVictim(net, tensors(net), ("*",), INPUTS)
    problems = []
    for of in range(3):
        sent, y = autograd(net, images(2, of), torch.tensor([of, 0])), torch.tensor([of, 0])
        problems.append(Problem(sent, y, randn(2, *INPUTS.shape, of=of), {}))
    schedule = Schedule(6, 0.1, signed=False)
    together, distances = run(victim, problems, schedule)
    for i in (2, 0):
        alone, distance = run(victim, [problems[i]], schedule)
        torch.testing.assert_close(together[i], alone[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(distances[i], distance[0], rtol=0, atol=1e-5)


def test_search_moves_unknown_tensors_from_the_given_guess_and_leaves_it_alone() -> None:
    net = plain()
    known = {n: v for n, v in tensors(net).items() if n.startswith("extractor.")}
    victim = PlainVictim(plain(1), known, ("extractor.*",), INPUTS)
    sent = autograd(net, images(1), torch.tensor([2]), "extractor.")
    start, guess = randn(1, *INPUTS.shape), {n: v.clone() for n, v in victim.unknown.items()}
    problem = Problem(sent, torch.tensor([2]), start, victim.unknown)
    samples, distances = run(victim, [problem], Schedule(30, 0.1, signed=True))
    at_guess = cosine_distance(victim.gradient(samples[0], problem.labels, guess, {}), sent)
    assert float(distances[0]) < float(at_guess) - 0.01  # the head has moved too, and towards the client's
    assert torch.equal(start, randn(1, *INPUTS.shape))
    for name in guess:
        assert torch.equal(victim.unknown[name], guess[name])
