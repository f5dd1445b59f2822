"""Quantisation of SecAgg+ against Flower's own functions, to the bit, and the error of the recovered mean."""

import numpy as np
import pytest
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_multiply
from flwr.common.secure_aggregation.quantization import dequantize, quantize

from flfw.adversary.secure_aggregation import Quantised, Quantiser
from flfw.errors import InputError
from flfw.rng import numpy_generator

SHAPES = ((3, 4), (5,), ())


def _parameters(client: int, scale: float = 1.0) -> list[np.ndarray]:
    rng = numpy_generator(0, "parameters", client)
    return [np.asarray(scale * rng.normal(size=shape), np.float32) for shape in SHAPES]


def _flowers(parameters: list[np.ndarray], examples: int, seed: int) -> tuple[int, list[np.ndarray]]:
    """The steps of flwr's secaggplus_mod between training and the masks; its rounding uses NumPy's global state."""
    ratio = round(examples / 1000.0 * 4194304)
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    arrays = quantize(parameters_multiply(parameters, ratio / 4194304), 8.0, 4194304)
    np.random.set_state(before)  # noqa: NPY002
    return ratio, arrays


@pytest.mark.parametrize(("examples", "scale"), [(1, 1.0), (37, 1.0), (1000, 1.0), (1000, 30.0)])
def test_a_client_sends_flowers_numbers_to_the_bit(examples, scale):
    parameters = _parameters(0, scale)
    seen = Quantiser().quantise(parameters, examples, np.random.RandomState(5))
    ratio, arrays = _flowers(parameters, examples, 5)
    assert seen.ratio == ratio
    for one, other in zip(seen.arrays, arrays, strict=True):
        assert np.array_equal(one, other)
        assert one.dtype == np.asarray(other).dtype


def test_the_server_recovers_flowers_mean_to_the_bit():
    rng = np.random.RandomState(0)
    sent = [Quantiser().quantise(_parameters(client), 10 * (client + 1), rng) for client in range(3)]
    recovered = Quantiser().recover(sent)
    sums = [sum(client.arrays[index].astype(np.int64) for client in sent) & 4294967295 for index in range(3)]
    expected = dequantize([np.asarray(array) for array in sums], 8.0, 4194304)
    for one, vector in zip(recovered, expected, strict=True):
        vector = np.asarray(vector)  # as flwr's workflow goes on
        vector = (vector + -(len(sent) - 1) * 8.0) * (4194304 / sum(client.ratio for client in sent))
        assert np.array_equal(one, vector)


def test_the_recovered_mean_is_the_weighted_mean_within_the_rounding():
    rng, weights = np.random.RandomState(1), [10, 200, 55, 1000]
    clients = [_parameters(client) for client in range(4)]
    sent = [Quantiser().quantise(each, weight, rng) for each, weight in zip(clients, weights, strict=True)]
    bound = Quantiser().step * len(sent) * 4194304 / sum(client.ratio for client in sent)  # each rounds by a step
    exact = [np.average([each[index] for each in clients], axis=0, weights=weights) for index in range(3)]
    errors = [np.abs(one - other).max() for one, other in zip(Quantiser().recover(sent), exact, strict=True)]
    assert 0 < max(errors) < bound < 2e-5


def test_rounding_is_right_on_average():
    rng, quantiser = np.random.RandomState(2), Quantiser(quantization_range=16)
    sent = quantiser.quantise([np.full(40_000, 0.3, np.float32)], 1000, rng)
    steps = (0.3 + 8) / quantiser.step
    assert set(np.unique(sent.arrays[0]).tolist()) == {int(steps), int(steps) + 1}
    assert sent.arrays[0].mean() == pytest.approx(steps, abs=4 * 0.5 / 40_000**0.5)


def test_parameters_are_clipped():
    quantiser, rng = Quantiser(), np.random.RandomState(0)
    sent = quantiser.quantise([np.array([100.0, -100.0, 1.0])], 1000, rng)
    np.testing.assert_allclose(quantiser.recover([sent])[0], [8, -8, 1], atol=2 * quantiser.step)


def test_values_out_of_range_are_refused():
    rng = np.random.RandomState(0)
    for call, words in (
        (lambda: Quantiser(clipping_range=0), "clipping_range > 0"),
        (lambda: Quantiser(quantization_range=1), "quantization_range > 1"),
        (lambda: Quantiser(modulus_range=4194304), "modulus_range to be a power of two above 4194304"),
        (lambda: Quantiser(modulus_range=4294967295), "modulus_range to be a power of two"),
        (lambda: Quantiser(max_weight=0), "max_weight > 0"),
        (lambda: Quantiser().quantise([], 0, rng), "1 <= examples <= 1000, got examples=0"),
        (lambda: Quantiser().quantise([], 1001, rng), "1 <= examples <= 1000, got examples=1001"),
        (lambda: Quantiser().recover([]), "at least one client"),
        (lambda: Quantiser().recover([Quantised(1, [np.zeros(1)]), Quantised(1, [])]), "arrays of the same shapes"),
    ):
        with pytest.raises(InputError, match=words):
            call()
