"""The comparison of batches with breaching: both sides get the same work, and our side of it is what users run."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks import attack_victims, breaching_env
from benchmarks.attack_victims import matched_psnrs, pictures, trained, victims
from benchmarks.their_search import Theirs
from flfw import nets
from flfw.attacks.imprint import Imprint, ImprintSettings
from flfw.data.files.cache import user_cache
from flfw.nets.net import Tensors
from flfw.rng import initialising
from research.measurements import batch_parity
from research.measurements.batch_parity import CASES, compared, imprint, imprinted, lines, searched, shallow

# The tests' own cache is empty; breaching's environment lies in the user's, if anywhere.
BREACHING = user_cache() / f"breaching-{breaching_env.VERSION}"


@pytest.fixture(autouse=True)
def _random_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLFW_DATA", str(tmp_path / "none"))


def python() -> Path:
    """The environment's Python; skips without one."""
    made_for = BREACHING / "made-for.txt"
    if not made_for.exists() or made_for.read_text() != "\n".join([sys.version, *breaching_env.packages()]):
        pytest.skip("breaching has no environment here; `python -m benchmarks.breaching_env` makes one")
    return BREACHING / "bin" / "python"


def crafted(attack: Imprint) -> Tensors:
    """A module whose quantiles are those of random images."""
    plain = victims("cnn2", 1)
    named = dict(attack.network(plain.net).named_parameters())
    public = plain.inputs.normalise(attack_victims.pictures(400, first=0)[0])
    return attack.crafted({name: value.detach() for name, value in named.items()}, public)


def test_without_images_it_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(breaching_env, "required", lambda: Path("nowhere"))
    monkeypatch.setattr(sys, "argv", ["batch_parity", "--quick"])
    with pytest.raises(SystemExit) as stopped:
        batch_parity.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "Expected the files of cifar10, found none; set FLFW_DATA.\n"


def test_a_seed_chooses_the_network_and_the_first_guess() -> None:
    first, second = (victims("cnn2", 1, seed=seed) for seed in (0, 1))
    assert not torch.equal(first.start, second.start)
    assert not torch.equal(next(first.net.parameters()), next(second.net.parameters()))
    assert torch.equal(first.start, victims("cnn2", 1).start)


def test_in_training_mode_the_gradient_is_by_the_batch_s_statistics() -> None:
    case = CASES["gradinversion_shallow"]
    by_batch = victims(case.network, 1, batch=4, training=True)
    x, y = by_batch.inputs.normalise(by_batch.truth[0]), by_batch.labels[0]
    net = by_batch.net.train()
    cross_entropy(net(x), y).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(by_batch.observed[0][name], parameter.grad, rtol=1e-4, atol=1e-6)
    running = victims(case.network, 1, batch=4)
    assert not torch.allclose(running.observed[0]["classifier.weight"], by_batch.observed[0]["classifier.weight"])


def test_the_revealed_statistics_are_those_of_the_batch() -> None:
    case = replace(CASES["gradinversion_shallow"], batch=2, side=4, reveals=True)
    attacked = case.victims(0)
    x = attacked.inputs.normalise(attacked.truth[0])
    with torch.no_grad():
        first = attacked.net.extractor.get_submodule("0")(x).transpose(0, 1).flatten(1)  # 16 maps of 2 x 4 x 4 numbers
    (revealed,) = attacked.revealed
    torch.testing.assert_close(revealed["extractor.1.running_mean"], first.mean(1))
    torch.testing.assert_close(revealed["extractor.1.running_var"], first.var(1))  # unbiased
    assert not bool(attacked.net.get_buffer("extractor.1.running_mean").any()), "the network keeps its own"


@pytest.mark.slow
def test_a_trained_network_has_the_running_statistics_of_its_images() -> None:
    small = replace(victims("cnn2", 1).inputs, shape=(3, 4, 4))
    with initialising(0, "net"):
        net = shallow(small.shape, 10)
    before = net.get_parameter("classifier.weight").clone()
    trained(net, small, "cifar10", 60, seed=0)  # of the first statistics remain 0.9 ** 60 = 0.2 %
    assert not net.training and not torch.equal(net.get_parameter("classifier.weight"), before)
    with torch.no_grad():
        x = small.normalise(pictures(1000, first=20_000, side=4)[0])
        variance = net.extractor.get_submodule("0")(x).transpose(0, 1).flatten(1).var(1)
    off = (net.get_buffer("extractor.1.running_var") / variance).log().abs()
    assert float(off.max()) < 0.5 < 4 < float(variance.log().abs().min())  # that of 1, the first value


def test_equal_weights_are_those_of_the_half_squared_distance() -> None:
    case = replace(CASES["gradinversion_shallow"], scale=0.5)
    one, other = {"w": torch.tensor([3.0, 1.0])}, {"w": torch.tensor([1.0, 1.0])}
    assert float(case.recipe().distance(one, other)) == 0.5 / 2 * 4
    assert float(replace(case, scale=None).recipe().distance(one, other)) == 2


@pytest.mark.slow
def test_our_search_begins_at_the_first_guess_and_comes_nearer() -> None:
    case = CASES["gradinversion_shallow"]
    attacked = victims(case.network, 1, batch=2, training=True)
    steps = replace(case, iterations=1).recipe()
    assert steps.restarts == 1 and steps.model_prior is not None
    moved = searched(attacked, steps) - attacked.start.clamp(*_ends(attacked))
    assert 0 < float(moved.abs().max()) < 0.11  # one step of at most 0.1, or none for the best


def _ends(attacked: attack_victims.Victims) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = (attacked.inputs.normalise(torch.full(attacked.inputs.shape, end)) for end in (0.0, 1.0))
    return low, high


@pytest.mark.slow
def test_it_comes_much_nearer_to_an_image_whose_statistics_the_network_has() -> None:
    case = replace(CASES["gradinversion_own"], side=8, iterations=300)
    attacked = case.victims(0)
    (psnr,), (start_psnr,) = (attacked.each_psnr(x) for x in (searched(attacked, case.recipe()), attacked.start))
    assert psnr > start_psnr + 6, "random images of 8 pixels are nearly grey, so that grey is no measure"


def test_the_gradient_behind_a_module_gives_both_images_of_a_batch() -> None:
    attack = Imprint(ImprintSettings(64))
    truth, observation, knowledge = imprinted(attack, crafted(attack), seed=1, size=2)
    (result,) = attack.run([observation], [knowledge], [torch.Generator()])
    assert min(matched_psnrs(truth, result.samples)) > 60
    net = victims("cnn2", 1, seed=1).net
    assert torch.equal(observation.received["classifier.weight"], nets.tensors(net)["classifier.weight"])


def test_lines_say_what_was_missed_and_where_nothing_was_recovered() -> None:
    row = {"ours_mean": 9.0, "theirs_mean": 11.0, "apart": -2.0, "within": False, "above_grey": False}
    row |= {"start_mean": 8.0, "grey_mean": 12.0}
    (line,) = lines("gradinversion_eval", row)
    assert "-2.0 dB (goal: at least -1.0: missed)" in line and line.endswith("neither recovers anything")
    (line,) = lines("gradinversion_eval", {**row, "within": True, "above_grey": True})
    assert "missed" not in line and "neither" not in line


@pytest.mark.nightly
def test_both_sides_read_and_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_parity, "_PUBLIC", 500)
    rows = imprint(python(), tmp_path, 1, seeds=1)
    assert [(row["module"], row["batch"]) for row in rows] == [(who, n) for who in ("ours", "theirs") for n in (8, 32)]
    assert all(0 <= row[side] <= row["images"] for row in rows for side in ("ours", "theirs"))
    for name in ("gradinversion_shallow", "gradinversion_sent", "gradinversion_own_equal"):
        case = replace(CASES[name], network=CASES["gradinversion_shallow"].network, iterations=3)
        row = compared(Theirs(python(), 1), tmp_path, case, seeds=1)
        assert row["of"] == 3 and len(row["ours"]) == len(row["theirs"]) == 1
