"""The generator attack: images that a generator can make are found, and those beside them in wider spaces only."""

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flfw.adversary.attack import NotApplicableError
from flfw.attacks.adaptations.dp_gaussian import DPGaussianAdaptation
from flfw.attacks.adaptations.prune import PruneAdaptation
from flfw.attacks.generator import GenerativeInversion, GenerativeInversionSettings
from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from flfw.clients.defences.prune import Prune, PruneSettings
from flfw.errors import InputError
from flfw.inversion import image_generator
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.image_generator import ImageGenerator, Learning, Lesson, learnt
from flfw.plans.run_plan import plan
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction, Truth
from flfw.rng import torch_generator
from flfw.runs import run as whole
from flfw.task.defence import Defence
from tests.support.attackable import attackable, db, digits, generators
from tests.support.small_runs import tiny
from tests.support.tables import attackable_rows

SMALL = Learning(latent=8, width=4, learning_iterations=150, learning_rate=1e-2)
FEW = {**vars(SMALL), "iterations": 80, "restarts": 2, "further_iterations": 60}


@cache
def public() -> Examples:
    return Examples(*digits(400, 600, side=8))


@cache
def made() -> ImageGenerator:
    return learnt(Lesson(public().samples, public().labels, 10, SMALL))


def of_the_generator(label: int) -> tuple[Tensor, Tensor]:
    """An image that the generator makes of some z, and its label."""
    z = torch.randn(1, 8, generator=torch_generator(0, "z", label))
    y = torch.tensor([label])
    return made()(z, y), y


def observed(net: str, *batches: tuple[Tensor, Tensor]) -> tuple[list[Observation], list[Knowledge]]:
    observations, knowledge = attackable(net, 8, *batches)
    return observations, [dataclasses.replace(known, public=public()) for known in knowledge]


def attacked(toy: tuple[list[Observation], list[Knowledge]], **settings: Any) -> list[Reconstruction]:
    attack = GenerativeInversion(GenerativeInversionSettings(**{**FEW, **settings}))
    return attack.run(*toy, generators(len(toy[0])))


@pytest.mark.slow
def test_an_image_that_the_generator_can_make_is_found() -> None:
    inside, other = of_the_generator(3), of_the_generator(4)
    result, of_another = attacked(observed("mlp", inside, other), space="latent")
    assert db(inside[0], result) > 30 and db(other[0], of_another) > 30
    assert db(inside[0], of_another) < 25


@pytest.mark.nightly
@pytest.mark.parametrize("space", ["features", "weights"])
def test_an_image_beside_them_is_found_in_wider_spaces_only(space: str) -> None:
    real = digits(0, side=8)
    toy = observed("linear", real)
    latent, wider = attacked(toy, space="latent")[0], attacked(toy, space=space)[0]
    assert db(real[0], latent) < 25 and db(real[0], latent) + 5 < db(real[0], wider)
    assert (latent.matching_loss or 0.0) > (wider.matching_loss or 0.0)


@pytest.mark.slow
def test_an_evolution_strategy_finds_it_without_derivatives() -> None:
    inside = of_the_generator(3)
    toy = observed("mlp", inside)
    (evolved,) = attacked(toy, space="latent", search="cma", restarts=1, candidates=16)
    (unmoved,) = attacked(toy, space="latent", search="cma", restarts=1, candidates=16, iterations=1)
    assert db(inside[0], evolved) > 30 > db(inside[0], unmoved)


@pytest.mark.slow
def test_a_batch_is_found_with_labels_read_off() -> None:
    x, y = (torch.cat(parts) for parts in zip(of_the_generator(7), of_the_generator(2), strict=True))
    observations, knowledge = observed("mlp", (x, y))
    blind = [dataclasses.replace(known, labels=None) for known in knowledge]
    (result,) = attacked((observations, blind), space="latent", labels="recovered", iterations=150)
    assert result.labels is not None and result.labels.tolist() == [2, 7]
    assert db(x, dataclasses.replace(result, samples=result.samples.flip(0))) > 25


PRUNE, ONE_BIT = Prune(PruneSettings(0.95)), LowPrecision(LowPrecisionSettings(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "defence", "mechanism"),
    [
        ("adam", PRUNE, PruneAdaptation({"ratio": 0.95})),
        ("cma", ONE_BIT, DifferentiableDefence(ONE_BIT)),
        pytest.param("cma", PRUNE, PruneAdaptation({"ratio": 0.95}), marks=pytest.mark.nightly),
        pytest.param("adam", ONE_BIT, DifferentiableDefence(ONE_BIT), marks=pytest.mark.nightly),
    ],
    ids=["written", "automatic", "written, by cma", "automatic, by adam"],
)
def test_a_defence_that_it_is_told_of_stands_in_the_objective(search: str, defence: Defence, mechanism: Any) -> None:
    inside = of_the_generator(3)
    observations, knowledge = observed("mlp", inside)
    sent = DifferentiableDefence(defence).defended(observations[0].sent, torch_generator(0, "defence"))
    informed = dataclasses.replace(knowledge[0], operator=mechanism)
    seen = [dataclasses.replace(observations[0], sent=sent)]
    settings = {"space": "latent", "search": search, "distance": "l2", "candidates": 16, "kl": 0.0}
    without, within = (attacked((seen, [known]), **settings)[0] for known in (knowledge[0], informed))
    assert db(inside[0], without) + 4 < db(inside[0], within)


@pytest.mark.slow
def test_known_noise_is_met_by_its_likelihood_and_the_prior_of_z() -> None:
    inside = of_the_generator(3)
    observations, knowledge = observed("mlp", inside)
    rng, mechanism = torch_generator(0, "noise"), DPGaussianAdaptation({"std": 0.02, "clip": 0.0})
    sent = {n: v + 0.02 * torch.randn(v.shape, generator=rng) for n, v in observations[0].sent.items()}
    informed = dataclasses.replace(knowledge[0], operator=mechanism)
    noisy = [dataclasses.replace(observations[0], sent=sent)], [informed]
    settings = {"search": "cma", "restarts": 1, "candidates": 16}
    (result,), (further,) = (attacked(noisy, space=space, **settings) for space in ("latent", "features"))
    made_of = sum(value.numel() for value in sent.values())
    assert result.matching_loss == pytest.approx(made_of / 2, rel=0.05)  # nats of noise alone: half of each entry
    assert db(inside[0], result) > 25
    assert further.matching_loss == result.matching_loss  # a nearer guess would fit the noise


def test_what_it_cannot_work_on_is_said() -> None:
    observations, knowledge = attackable("linear", 8, digits(0, side=8))
    with pytest.raises(NotApplicableError, match="public data"):
        attacked((observations, knowledge))
    rows, known, _ = attackable_rows(1)
    with pytest.raises(NotApplicableError, match="images"):
        attacked((rows, [dataclasses.replace(known[0], public=public())]))
    with pytest.raises(InputError, match="candidates >= 2"):
        GenerativeInversionSettings(candidates=1)
    with pytest.raises(InputError, match="learning_iterations >= 1"):
        GenerativeInversionSettings(learning_iterations=0)


@pytest.mark.nightly
def test_the_generator_is_learnt_from_public_images_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored_batches: list[Lesson] = []
    learn = image_generator.learnt.__wrapped__

    def spied(lesson: Lesson) -> ImageGenerator:
        scored_batches.append(lesson)
        return learn(lesson)

    monkeypatch.setattr("flfw.attacks.generator.learnt", spied)
    few = tuple(
        f"generator.{name}=2" for name in ("iterations", "further_iterations", "learning_iterations", "restarts")
    )
    run = tiny(tmp_path / "run", attack=("generator",), dataset="digits", image_size=8, set=("generator.width=4", *few))
    folder = whole.run(run)
    entry = next(one for one in json.loads((folder / "result.json").read_text())["audit"])
    assert 5 < entry["floors"]["unguided"] < 20 and entry["identification_rate"] is not None
    assert "makes without the message" in (folder / "report.html").read_text()
    task = plan(run).task.load(None)
    allowed = {image.tobytes() for image in task.dataset.test_x[task.split.public]}
    victims = [Truth.read(folder / "truth", path.stem).samples for path in (folder / "truth").glob("*.safetensors")]
    shown = {image.tobytes() for lesson in scored_batches for image in (lesson.samples * 255).round().byte().numpy()}
    assert shown == allowed and len(victims) > 0
    for victim in victims:
        assert not shown & {image.tobytes() for image in (victim * 255).round().byte().numpy()}
