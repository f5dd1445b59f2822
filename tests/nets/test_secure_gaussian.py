"""Secure Gaussian noise: its scale, its grid, and every place against arithmetic with many digits."""

import inspect
from math import inf, nan, sqrt

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.integrate import quad
from scipy.stats import chi2, kstest, norm

from flfw.errors import InputError
from flfw.nets.training import gaussian
from flfw.nets.training.gaussian import MARGIN, PER_STEP, SecureNoise, add_secure_gaussian, grid_step, shared_step
from flfw.rng import secret_bytes, secret_coins

DEVIATION = 24.0
STEP = 2.0**-8  # 24 is above 2^4, and the step is 2^-12 of that


def scripted(*words: int, more: bytes = b"") -> gaussian.Bits:
    """Words of 32 bits for the first draws, then bytes in their order, then zeros."""
    rest = bytearray(np.array(words, np.uint32).tobytes() + more)

    def bits(count: int) -> bytes:
        taken, rest[:] = bytes(rest[:count]), rest[count:]
        return taken.ljust(count, b"\0")

    return bits


def uniform(word: int, digits: int) -> mpmath.mpf:
    """The number of so many digits, and of the zeros after them."""
    with mpmath.workdps(100):
        return (mpmath.mpf(word << 192 - digits) + 0.5) / mpmath.mpf(2) ** 192


def place(value: float, std: float, radial: mpmath.mpf, angular: mpmath.mpf, wave: str) -> int:
    """What Box and Muller's formula gives with 100 digits."""
    with mpmath.workdps(100):
        noise = mpmath.sqrt(-2 * mpmath.log(radial)) * getattr(mpmath, wave)(2 * mpmath.pi * angular)
        return int(mpmath.nint((mpmath.mpf(value) + mpmath.mpf(std) * noise) / mpmath.mpf(STEP)))


def accepted(values: torch.Tensor, std: float) -> bool:
    """Whether a sum of squares is one of this deviation, but for one in 10^12: no seed holds the noise."""
    result, freedom = float(values.double().square().sum()) / std**2, values.numel()
    return bool(chi2.ppf(5e-13, freedom) < result < chi2.isf(5e-13, freedom))


def test_each_tensor_has_its_deviation_and_neither_two_thirds_nor_three_halves_of_it() -> None:
    values = {"weight": torch.zeros(40, 50), "bias": torch.zeros(3001), "one": torch.zeros(())}
    result = add_secure_gaussian(values, DEVIATION)
    for name in ("weight", "bias"):
        assert result[name].shape == values[name].shape and result[name].dtype == torch.float32
        assert accepted(result[name], DEVIATION)
        assert not accepted(result[name], DEVIATION * 2 / 3) and not accepted(result[name], DEVIATION * 3 / 2)
    assert result["one"].shape == ()
    assert all(float(value.abs().max()) == 0 for value in values.values())  # they are not changed


def test_many_are_gaussian_and_pairs_are_independent() -> None:
    drawn = add_secure_gaussian({"w": torch.full((300_000,), 5.0)}, DEVIATION)["w"].double().numpy()
    assert kstest(drawn, norm(5.0, DEVIATION).cdf).pvalue > 1e-12
    assert kstest(drawn, norm(5.0, DEVIATION * 1.05).cdf).pvalue < 1e-12  # the test sees five hundredths
    pairs = drawn.reshape(2, -1)  # of one radius and one angle
    for power in (1, 2):
        assert abs(np.corrcoef(pairs**power)[0, 1]) < 7 / sqrt(150_000)


def test_every_result_is_on_the_grid_whatever_the_values_digits() -> None:
    assert grid_step(DEVIATION) == STEP
    values = torch.rand(10_000, generator=torch.Generator().manual_seed(0))  # 24 digits after the point
    steps = add_secure_gaussian({"w": values}, DEVIATION)["w"].double() / STEP
    assert torch.equal(steps, steps.round())


@pytest.mark.parametrize(("sizes", "pairs"), [((400,), 2**16), ((6, 0, 1, 16), 4)])
def test_places_are_those_of_arithmetic_with_many_digits(
    sizes: tuple[int, ...], pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry has its own tensor's value and its own words, also over the ends of tensors and draws."""
    monkeypatch.setattr(gaussian, "_PAIRS", pairs)
    rng, count = np.random.default_rng(0), sum(sizes)
    half = (count + 1) // 2
    words = [int(word) for word in rng.integers(0, 2**32, 2 * half)]
    values = torch.tensor(rng.normal(0, 30, count))
    named = {str(index): value for index, value in enumerate(values.split(sizes))}
    result = torch.cat(list(add_secure_gaussian(named, DEVIATION, scripted(*words)).values())) / STEP
    drawn = np.concatenate([np.reshape(words[2 * at : 2 * at + 2 * pairs], (2, -1)) for at in range(0, half, pairs)], 1)
    for at in range(count):
        radial, angular = (uniform(int(word), 32) for word in drawn[:, at % half])
        expected = place(float(values[at]), DEVIATION, radial, angular, "cos" if at < half else "sin")
        assert int(result[at]) == expected


@pytest.mark.parametrize("part", [1 / 4, 1 / 16])  # a sixteenth is seen to be too little
def test_errors_of_float32_are_below_a_quarter_of_what_is_allowed(part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, signed, error, *rest = gaussian._SINGLE
    monkeypatch.setattr(gaussian, "_SINGLE", (dtype, signed, part * error, *rest))
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (2, 500_000), dtype=np.uint32)
    words[0, ::2] = 2 ** rng.uniform(20, 32, 250_000)  # large radii
    values = 8000 * STEP * rng.uniform(-1, 1, (2, 500_000))
    bits = scripted(more=b"".join(piece.tobytes() for piece in np.split(words, range(2**16, 500_000, 2**16), axis=1)))
    places = add_secure_gaussian({"w": torch.tensor(values)}, DEVIATION, bits)["w"].numpy() / STEP
    radius, angle = np.sqrt(-2 * np.log((words[0] + 2.0**-161) * 2.0**-32)), words[1] * (2 * np.pi * 2.0**-32)
    sums = (values + DEVIATION * radius * np.stack([np.cos(angle), np.sin(angle)])) / STEP
    certain = np.abs(sums - np.floor(sums) - 0.5) > 1e-6
    assert (places == np.rint(sums))[certain].all() == (part == 1 / 4)


def test_a_zero_has_no_sign_that_rounding_errors_decide() -> None:
    drawn = add_secure_gaussian({"w": torch.zeros(20_000)}, 1.0, min_step=2.0)["w"]
    zeros = drawn[drawn == 0]
    assert 10_000 < len(zeros) < 16_000 and not torch.signbit(zeros).any()


@pytest.mark.parametrize("digits", [1, 2**127, 2**128 - 1])
def test_a_first_number_near_zero_is_told_apart_by_its_further_digits(digits: int) -> None:
    """Without further digits it could be any radius above 8."""
    turned = 2**30  # a quarter of the circle: the sine is 1, and the cosine's sign is that of the further digits
    more = bytes(8) + digits.to_bytes(16, "big") + (2**100).to_bytes(16, "big")
    result = add_secure_gaussian({"w": torch.zeros(2)}, DEVIATION, scripted(0, turned, more=more))["w"] / STEP
    radial, angular = uniform(digits, 192), uniform(turned * 2**160 + 2**100, 192)
    assert [int(n) for n in result] == [place(0.0, DEVIATION, radial, angular, wave) for wave in ("cos", "sin")]
    assert int(result[1]) * STEP > 8 * DEVIATION


def test_a_sum_between_two_places_is_told_apart_by_further_digits() -> None:
    word, turn = 2**31 + 12345, 2**29
    with mpmath.workdps(60):
        radius = mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(word * 2**32) + 0.5) / 2**64))
        noise = radius * mpmath.cos(2 * mpmath.pi * (mpmath.mpf(turn * 2**32) + 0.5) / 2**64) * DEVIATION
        between = float((mpmath.floor(noise / STEP) + 0.5) * STEP - noise)  # the sum's middle is the border
    values, low, high = {"w": torch.tensor([between, 0.0], dtype=torch.float64)}, b"\0" * 16, b"\xff" * 16
    results = []
    for more in (low + high, high + low):  # a small first number is a large radius; a small angle a large cosine
        result = add_secure_gaussian(values, DEVIATION, scripted(word, turn, more=bytes(8) + more))["w"] / STEP
        further = int.from_bytes(more[:16]), int.from_bytes(more[16:])
        radial, angular = (uniform(w * 2**160 + extra, 192) for w, extra in zip((word, turn), further, strict=True))
        assert int(result[0]) == place(between, DEVIATION, radial, angular, "cos")
        results.append(int(result[0]))
    for shift in (-1, 1):  # less than the errors of float64 that are allowed, and zeros for further digits
        bits, calls = scripted(word, turn), list[int]()
        near = {"w": values["w"] + shift * 4 * 2.0**-44 * DEVIATION}
        add_secure_gaussian(near, DEVIATION, lambda count, bits=bits, calls=calls: calls.append(count) or bits(count))
        assert calls == [8, 8, 16, 16]
    bits = scripted(word, turn, more=bytes(8) + low + high)
    one_on = add_secure_gaussian({"w": values["w"] + STEP}, DEVIATION, bits)["w"][0]
    assert one_on == pytest.approx((results[0] + 1) * STEP)


def test_further_digits_are_rarely_needed() -> None:
    rng, calls = np.random.default_rng(0), list[int]()

    def counted(count: int) -> bytes:
        calls.append(count)
        return rng.bytes(count)

    for _ in range(10):
        add_secure_gaussian({"w": torch.from_numpy(rng.random(100_000, np.float32))}, DEVIATION, counted)
    assert calls.count(16) < 6  # 128 digits more: of a million entries one needs them in about one in twenty such tests
    usual = [count for count in calls if count != 16]
    assert len(usual) == 20 and sum(usual[1::2]) < 0.1 * sum(usual[::2])  # 32 digits more for one pair in some twenty


@pytest.mark.parametrize(
    ("dtype", "std"), [("float64", 24.0), ("bfloat16", 24.0), ("float32", 1e-36), ("float32", 1e37)]
)
def test_all_types_and_scales_have_their_deviation(dtype: str, std: float) -> None:
    drawn = add_secure_gaussian({"w": torch.zeros(2001, dtype=getattr(torch, dtype))}, std)["w"]
    assert drawn.dtype == getattr(torch, dtype) and accepted(drawn.double() / std, 1.0)


def test_draws_of_one_call_and_of_the_next_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "_PAIRS", 2**14)
    drawn = [add_secure_gaussian({"a": torch.zeros(2**15), "b": torch.zeros(3 * 2**15)}, 1.0) for _ in range(2)]
    rows = torch.cat([torch.cat([one["a"], one["b"]]) for one in drawn]).view(-1, 2**14).double()
    for power in (1, 2):  # sixteen rows: of four draws each, in cosines and sines
        assert float((torch.corrcoef(rows**power) - torch.eye(16)).abs().max()) < 8 / sqrt(2**14)


@pytest.mark.parametrize("value", [nan, inf, 1e20])
def test_values_that_noise_cannot_hide_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="finite values within"):
        add_secure_gaussian({"w": torch.tensor([0.0, value])}, DEVIATION)


@pytest.mark.parametrize("std", [0.0, -1.0, inf, nan])
def test_a_deviation_out_of_range_is_refused(std: float) -> None:
    with pytest.raises(InputError, match="0 < std < inf"):
        add_secure_gaussian({"w": torch.zeros(1)}, std)


@pytest.mark.parametrize("std", [5e-324, 1e-251, 1e251])
def test_a_deviation_whose_grid_float64_cannot_hold_is_refused(std: float) -> None:
    with pytest.raises(InputError, match="a step in the range of float64"):
        add_secure_gaussian({"w": torch.zeros(1)}, std)


def test_nothing_stays_nothing() -> None:
    assert add_secure_gaussian({}, 1.0) == {}
    assert add_secure_gaussian({"w": torch.zeros(0, 3)}, 1.0)["w"].shape == (0, 3)


def test_secure_noise_is_a_little_larger_and_has_a_scale_for_each_tensor() -> None:
    many = {"a": torch.zeros(400_000), "b": torch.zeros(400_000)}
    result = SecureNoise().add(many, 2.0, {"a": 1.0, "b": 3.0})
    for name, std in (("a", 2.0), ("b", 6.0)):
        assert float(result[name].std()) == pytest.approx(std * (1 + MARGIN), rel=7 / sqrt(2 * 400_000))
    assert list(SecureNoise().add({"b": torch.ones(1), "a": torch.ones(1)}, 0.0)) == ["b", "a"]


def test_the_margin_is_in_every_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth is too little for a sample to show."""
    requested: list[float] = []

    def noted(values: dict[str, torch.Tensor], std: float) -> dict[str, torch.Tensor]:
        requested.append(std)
        return values

    monkeypatch.setattr(gaussian, "add_secure_gaussian", noted)
    SecureNoise().add({"a": torch.zeros(1), "b": torch.zeros(1)}, 2.0, {"a": 1.0, "b": 3.0})
    assert requested == [2.0 * (1 + 2**-10), 6.0 * (1 + 2**-10)]


# --- sums of what several clients send ---


def rounded(mean: float, std: float, indices: np.ndarray) -> np.ndarray:
    """Probabilities of a Gaussian's places on the grid of whole numbers."""
    return np.diff(norm.cdf(np.append(indices - 0.5, indices[-1] + 0.5), mean, std))


def sum_of_rounded(means: list[float], std: float, indices: np.ndarray) -> np.ndarray:
    """Probabilities of the sum of several such places, added up pair by pair."""
    total = rounded(means[0], std, indices)
    for mean in means[1:]:
        total = np.convolve(total, rounded(mean, std, indices), mode="same")
    return total


def rounded_sum(means: list[float], std: float, indices: np.ndarray) -> np.ndarray:
    """Probabilities of the places of one Gaussian plus a uniform number for each client but one."""
    uniforms = len(means) - 1
    wide = std * sqrt(len(means))

    def density(u: float) -> float:  # of the sum of one or two uniform numbers
        return 1.0 if uniforms == 1 else 1 - abs(u)

    def at(index: float) -> float:
        def share(u: float) -> float:
            low, high = norm.cdf([index - 0.5 - u, index + 0.5 - u], sum(means), wide)
            return density(u) * (high - low)

        end = uniforms / 2
        return sum(quad(share, a, b, epsabs=1e-14)[0] for a, b in ((-end, 0), (0, end)))

    return np.array([at(index) for index in indices])


def aliasing(std: float, clients: int) -> float:
    """The bound on the difference of both, with every shift of up to 3 of up to two further clients."""
    shifts = np.array(np.meshgrid(*[np.arange(-3, 4)] * (clients - 1))).reshape(clients - 1, -1)
    v = (shifts**2).sum(0) - shifts.sum(0) ** 2 / clients
    terms = np.exp(-2 * np.pi**2 * std**2 * v)[(shifts != 0).any(0)]
    return terms.sum() / (std * sqrt(2 * np.pi * clients))


@pytest.mark.parametrize("means", [[0.0, 0.0], [0.3, 0.45], [0.5, -0.2, 0.1]])
def test_a_sum_of_rounded_noises_is_a_rounded_gaussian_up_to_its_bound(means: list[float]) -> None:
    """The difference falls as exp(-pi^2 s^2) and faster: where a deviation has a step and more, nothing is left."""
    indices = np.arange(-30.0, 31.0)
    apart = {}
    for std in (0.25, 0.5, 1.0, 2.0):
        largest = np.abs(sum_of_rounded(means, std, indices) - rounded_sum(means, std, indices)).max()
        assert largest <= aliasing(std, len(means)) + 1e-12
        apart[std] = largest
    assert apart[0.25] > apart[0.5] > 1e-3 > 1e-4 > apart[1.0]  # the test sees a grid that is too coarse
    assert apart[2.0] < 1e-12
    assert aliasing(PER_STEP, len(means)) < 1e-60


def test_a_shared_grid_is_held_exactly_and_has_four_steps_in_a_deviation() -> None:
    for largest in (0.0, 1e-6, 1.0, 3.0, 5000.0, 1e6):
        for std in (1.0, 24.0, 1e3):
            step = shared_step(largest, std, torch.float32)
            assert grid_step(std) <= step <= std / PER_STEP
            last = torch.tensor((largest + 16 * std) / step).double().ceil()
            farthest = step * (last - torch.arange(100))
            assert torch.equal(farthest.float().double(), farthest)
    assert shared_step(1e6, 1.0, torch.float64) == grid_step(1.0)


@pytest.mark.parametrize("largest", [5e6, 1e30, inf, nan])
def test_numbers_whose_digits_end_above_the_noise_are_refused(largest: float) -> None:
    with pytest.raises(InputError, match=r"values within 2.1e\+06 deviations|finite values to add noise to"):
        shared_step(largest, 1.0, torch.float32)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e6])
def test_what_all_clients_send_is_on_one_grid_whatever_their_changes(size: float) -> None:
    rng = torch.Generator().manual_seed(0)
    start = {"w": size * torch.rand(2000, generator=rng), "b": torch.rand(300, generator=rng)}
    changes = [{n: scale * (torch.rand(v.shape, generator=rng) - 0.5) for n, v in start.items()} for scale in (0, 1, 8)]
    step = shared_step(size + 4 * (1 + MARGIN), 2.0 * (1 + MARGIN), torch.float32)
    for change in changes:
        sent = SecureNoise().add_to_update(start, change, 4.0, 2.0)
        assert all(value.dtype == torch.float32 for value in sent.values())
        for value in sent.values():
            places = value.double() / step
            assert torch.equal(places, places.round())
        noise = torch.cat([(sent[n].double() - start[n] - change[n]).flatten() for n in start])
        assert accepted(noise, 2.0) and not accepted(noise, 2.0 * 2 / 3) and not accepted(noise, 2.0 * 3 / 2)


def test_without_noise_a_change_is_added_as_it_is() -> None:
    start, change = {"w": torch.tensor([0.1, 7.0])}, {"w": torch.tensor([1e-3, -0.5])}
    assert torch.equal(SecureNoise().add_to_update(start, change, 1.0, 0.0)["w"], start["w"] + change["w"])
    assert SecureNoise().add_to_update({}, {}, 1.0, 1.0) == {}
    assert SecureNoise().add_to_update({"w": torch.zeros(0)}, {"w": torch.zeros(0)}, 1.0, 1.0)["w"].shape == (0,)


def test_secret_bytes_differ_in_each_call_and_coins_have_their_probability() -> None:
    one, two = secret_bytes(1000), secret_bytes(1000)
    assert len(one) == len(two) == 1000 and one != two
    assert [len(secret_bytes(count)) for count in (0, 1, 15, 17)] == [0, 1, 15, 17]
    counts = np.bincount(np.frombuffer(secret_bytes(256_000), np.uint8), minlength=256)
    assert chi2.sf(((counts - 1000) ** 2 / 1000).sum(), 255) > 1e-12
    for probability in (0.02, 0.5):
        heads = secret_coins(200_000, probability).sum()
        assert abs(heads - 200_000 * probability) < 7 * sqrt(200_000 * probability * (1 - probability))


def test_each_call_has_a_key_of_the_system_and_is_counter_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[bytes] = []

    def key(count: int) -> bytes:
        keys.append(bytes([len(keys)]) * count)
        return keys[-1]

    monkeypatch.setattr("secrets.token_bytes", key)
    for count in (0, 1, 15, 17, 1000):
        drawn = secret_bytes(count)
        cipher = Cipher(algorithms.AES256(keys[-1]), modes.CTR((2).to_bytes(16, "big")))
        assert bytes(drawn) == cipher.encryptor().update(bytes(count))
    assert len(set(keys)) == 5


def test_the_default_bits_are_secret() -> None:
    assert inspect.signature(add_secure_gaussian).parameters["bits"].default is secret_bytes
