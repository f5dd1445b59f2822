"""DCS^2: against a loop over the printed formulas, its stop, its samples, its projection, and bad input."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sim
from flfw import nets
from flfw.clients.defences.dcs2 import DCS2, DCS2Settings, Search, projected
from flfw.data.sensitive import SensitiveSamples
from flfw.errors import InputError
from flfw.nets.inputs import InputSpec
from flfw.rng import initialising, torch_generator
from flfw.task.defence import DefendedData, LocalStep
from flfw.task.pipeline import DefenceStage, Pipeline, PipelineSettings
from tests.support import rounds
from tests.support.csv_files import read_csv

INPUTS = InputSpec.from_constants((1, 12, 12), (0.5,), (0.25,))
FEW: dict[str, Any] = {"steps": 8}


def network() -> nn.Module:
    with initialising(0, "dcs2"):
        return nets.build("lenet", INPUTS.shape, 10)


def batch(net: nn.Module, labels: tuple[int, ...] = (3, 1)) -> LocalStep:
    rng, dtype = torch_generator(0, "dcs2"), torch.get_default_dtype()
    x, y = torch.rand(len(labels), *INPUTS.shape, generator=rng, dtype=dtype), torch.tensor(labels)
    public = torch.rand(6, *INPUTS.shape, generator=rng, dtype=dtype), torch.tensor([0, 1, 3, 5, 1, 3])
    named = dict(net.named_parameters())
    gradients = torch.autograd.grad(cross_entropy(net(normalised(x)), y), list(named.values()))
    return LocalStep(dict(zip(named, gradients, strict=True)), x, y, net, INPUTS, lambda: public)


def normalised(x: Tensor) -> Tensor:
    return (x - 0.5) / 0.25


def slope(net: nn.Module, x: Tensor, y: Tensor, graph: bool = False) -> Tensor:
    each = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()), create_graph=graph)
    return torch.cat([one.flatten() for one in each])


def by_the_formulas(step: LocalStep, settings: DCS2Settings, x_c: Tensor, y_c: Tensor) -> tuple[Tensor, Tensor]:
    """The sent gradient as one vector, and x_c; every line a line of the paper."""
    net, x_s, y_s = step.model, normalised(step.x), step.y
    g_s, z_s = slope(net, x_s, y_s), net(x_s).detach()
    x, m, v = x_c.clone(), torch.zeros(()), torch.zeros(())
    for t in range(settings.steps):
        at = x.clone().requires_grad_()
        g_c, z = slope(net, at, y_c, graph=True), net(at)
        far = ((at - x_s).flatten(1) ** 2).sum(1).sqrt().mean()
        gap = (((z - z_s) ** 2).sum(1).sqrt() / (z_s**2).sum(1).sqrt()).mean()
        loss = 1 - g_c @ g_s / (g_c.norm() * g_s.norm()) + (-0.01 * far).exp() + 0.01 * (gap - 0.01)
        (g,) = torch.autograd.grad(loss, [at])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        lr = 0.1 * 0.1 ** sum(t >= round(settings.steps * share) for share in (3 / 8, 5 / 8, 7 / 8))
        x = x - lr * (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
        if settings.stop == "threshold" and far > settings.threshold:
            break
    g = torch.cat([one.flatten() for one in step.gradients.values()])
    mixed = (0.7 * slope(net, x, y_c) + 0.3 * slope(net, x, y_s) + g) / 3
    along = mixed @ g
    share = 0.0 if along >= 0 else max(0.5, float(-along / (g @ g + 1e-3)))
    return mixed + share * g, x


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["never", "threshold"])
def test_the_sent_gradient_is_the_papers(stop: str) -> None:
    with rounds.exactly():
        step = batch(network())
        settings = DCS2Settings(steps=8, stop=stop, threshold=8.0)  # type: ignore[arg-type]
        search = Search(settings, step, torch.ones(2, dtype=torch.bool), list(step.gradients))
        x_c, y_c = search._start(torch_generator(1, "start"))
        expected, x = by_the_formulas(step, settings, x_c, y_c)
        ended, labels = search.concealed(torch_generator(1, "start"))
        torch.testing.assert_close(ended, x, rtol=1e-6, atol=1e-8)
        assert torch.equal(labels, y_c) and not (y_c == step.y).any()
        sent = DCS2(settings).step(step, torch_generator(1, "start"))
        torch.testing.assert_close(torch.cat([one.flatten() for one in sent.values()]), expected, rtol=1e-6, atol=1e-10)
        moved = float((ended - x_c).flatten(1).norm(dim=1).mean())
        assert (stop == "never") or moved > 0


@pytest.mark.slow
def test_the_search_ends_once_the_samples_are_far_apart() -> None:
    step, chosen = batch(network()), torch.ones(2, dtype=torch.bool)
    never, soon = (
        Search(DCS2Settings(steps=30, stop="threshold", threshold=far), step, chosen, list(step.gradients))
        for far in (1e9, 1e-3)
    )
    (x, _), (early, _) = (search.concealed(torch_generator(1, "s")) for search in (never, soon))
    start, _ = soon._start(torch_generator(1, "s"))
    assert float((early - start).abs().max()) == pytest.approx(0.1, rel=1e-3)  # Adam's first step, and no second
    assert float((x - start).abs().max()) > 0.3 and never.cosine > soon.cosine


@pytest.mark.slow
def test_only_sensitive_samples_are_concealed() -> None:
    step = batch(network(), (3, 1, 7))
    assert DCS2(DCS2Settings(sensitive="0,9", **FEW)).step(step, torch_generator(1, "s")) is step.gradients
    some, all_of_them = DCS2Settings(sensitive="3", **FEW), DCS2Settings(**FEW)
    chosen = some.samples.mask(step.y, step.positions)
    assert chosen.tolist() == [True, False, False] and all_of_them.samples.mask(step.y, step.positions).all()
    x, y = Search(some, step, chosen, list(step.gradients)).concealed(torch_generator(1, "s"))
    assert len(x) == len(y) == 1 and int(y) != 3


@pytest.mark.slow
def test_a_later_step_searches_with_its_own_weights_and_samples() -> None:
    net, defence = network(), DCS2(DCS2Settings(stop="never", **FEW))
    sent = [defence.step(batch(net), torch_generator(1, "s"))]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.5)
    later = batch(net, (5, 0))
    sent.append(defence.step(later, torch_generator(2, "s")))
    assert len(defence._traced) == 1  # one trace for both
    for name, value in DCS2(defence.settings).step(later, torch_generator(2, "s")).items():
        torch.testing.assert_close(sent[1][name], value)
        assert not torch.allclose(sent[0][name], value)


@pytest.mark.parametrize("start", ["proxy", "noise", "mixed"])
def test_starts_are_of_other_classes(start: str) -> None:
    step = batch(network(), (3, 1) * 20)
    search = Search(DCS2Settings(start=start), step, torch.ones(40, dtype=torch.bool), list(step.gradients))  # type: ignore[arg-type]
    x, y = search._start(torch_generator(1, "s"))
    assert not (y == step.y).any() and x.shape == step.x.shape
    public, labels = step.public()
    if start == "noise":
        assert abs(float(x.mean())) < 0.1 and abs(float(x.std()) - 1) < 0.1
    else:
        share = 1.0 if start == "proxy" else 0.7
        proxies = (x - (1 - share) * normalised(step.x)) / share
        distance = (proxies[:, None] - normalised(public)).flatten(2).norm(dim=2)
        assert float(distance.min(1).values.max()) < 1e-4 and torch.equal(labels[distance.argmin(1)], y)


@pytest.mark.slow
def test_a_box_and_the_features_change_the_search() -> None:
    step, chosen = batch(network()), torch.ones(2, dtype=torch.bool)
    results = {}
    for name, more in {
        "plain": {},
        "boxed": {"boxed": True},
        "features": {"latent": "features", "weight_z": 1.0},
    }.items():
        settings = DCS2Settings(steps=40, stop="never", **more)  # type: ignore[arg-type]
        results[name], _ = Search(settings, step, chosen, list(step.gradients)).concealed(torch_generator(1, "s"))
    raw = {name: x * 0.25 + 0.5 for name, x in results.items()}
    assert float(raw["plain"].max()) > 1.01 and 0 <= float(raw["boxed"].min()) <= float(raw["boxed"].max()) <= 1 + 1e-6
    assert not torch.equal(results["plain"], results["features"])


def test_what_points_away_is_projected() -> None:
    g = {"a": torch.tensor([2.0, 0.0]), "b": torch.tensor([0.0])}
    assert projected({"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([5.0])}, g)["a"].tolist() == [0.0, 1.0]
    weak = projected({"a": torch.tensor([-0.1, 1.0]), "b": torch.tensor([5.0])}, g)
    assert weak["a"].tolist() == pytest.approx([-0.1 + 0.5 * 2, 1.0])  # 0.2 / 4.001 is less than a half
    strong = projected({"a": torch.tensor([-4.0, 1.0]), "b": torch.tensor([5.0])}, g)
    assert strong["a"].tolist() == pytest.approx([-4 + 8 / 4.001 * 2, 1.0], abs=1e-5)


@pytest.mark.slow
def test_with_no_mixture_the_divisor_is_two() -> None:
    step = batch(network())
    sent = {
        share: DCS2(DCS2Settings(mixture=share, steps=1, start="mixed", lr=1e-9)).step(step, torch_generator(1, "s"))
        for share in (0.0, 1e-6)
    }
    # With lambda 0 the concealed samples are the sensitive ones, under their own labels.
    for name, value in step.gradients.items():
        torch.testing.assert_close(sent[0.0][name], value, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(sent[1e-6][name], value * 2 / 3, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"mixture": 1.5}, "0 <= mixture <= 1, got mixture=1.5"),
        ({"steps": 0}, "steps >= 1, got steps=0"),
        ({"sensitive": "some"}, "at:P,P for training positions; got sensitive=some"),
        ({"threshold": 0.0}, "threshold > 0"),
    ],
)
def test_settings_out_of_range_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        DCS2Settings(**given)


@pytest.mark.parametrize(
    ("rule", "mask"),
    [
        ("all", [True] * 4), ("3, 9", [True, False, False, True]), ("last:1", [False, False, False, True]),
        ("last:9", [True] * 4), ("at:11,13", [False, True, False, True]),
    ],
)  # fmt: skip
def test_sensitive_samples_by_class_by_place_in_the_batch_and_by_list(rule: str, mask: list[bool]) -> None:
    y, positions = torch.tensor([3, 1, 7, 9]), torch.tensor([10, 11, 12, 13])
    assert SensitiveSamples.parse(rule).mask(y, positions).tolist() == mask


def test_other_rules_are_refused() -> None:
    for rule in ("", "some", "last:0", "last:1,2", "last:", "at:", "at:x", "of:3", "3,-1", "1:at:2"):
        with pytest.raises(InputError, match=re.escape(f"got sensitive={rule}.")):
            SensitiveSamples.parse(rule)


def test_a_batch_without_positions_is_refused_where_they_are_asked_for() -> None:
    with pytest.raises(InputError, match="a batch without positions"):
        DCS2(DCS2Settings(sensitive="at:0", **FEW)).step(batch(network()), torch_generator(1, "s"))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"sensitive": "last:9"}, "last:M with M <= 8, the batch size, got sensitive=last:9"),
        ({"sensitive": "4"}, "sensitive classes in 0..3, got sensitive=4"),
        ({"sensitive": "at:5,99"}, "positions of the defended clients' training examples, got absent=[99]"),
        ({"sensitive": "2"}, "public examples of other classes than 2 for dcs2, got none; set dcs2.start=noise"),
        ({"sensitive": "at:6"}, "other classes than 2"),
        ({"sensitive": "last:8"}, "other classes than 2"),
        ({}, "other classes than 2"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_a_run(given: dict[str, Any], line: str) -> None:
    defended = DefendedData(torch.tensor([1, 2]), torch.tensor([5, 6]), 4, 8, torch.tensor([2, 2]))
    alone = DCS2(DCS2Settings(**given))
    for defence in (alone, Pipeline(PipelineSettings((DefenceStage("dcs2", DCS2, alone.settings),)))):
        with pytest.raises(InputError, match=re.escape(line)):
            defence.check_data(defended)


@pytest.mark.parametrize("given", [{"sensitive": "1"}, {"sensitive": "at:5"}, {"start": "noise"}])
def test_data_that_fit_are_not_refused(given: dict[str, Any]) -> None:
    defended = DefendedData(torch.tensor([1, 2]), torch.tensor([5, 6]), 4, 8, torch.tensor([2, 2]))
    DCS2(DCS2Settings(**given)).check_data(defended)


@pytest.mark.slow
def test_listed_examples_alone_are_concealed_in_probes(tmp_path: Path) -> None:
    flags = "--method fedavg --dataset digits --net linear --clients 1 --rounds 1 --local-epochs 1 --batch-size 1000"
    flags += " --engine inproc --images 2 --audit-rounds 0 --attack analytic --defence dcs2"

    def attacked(rule: str) -> tuple[list[str], list[float]]:
        out = tmp_path / re.sub(r"\W", "-", rule)
        assert sim.main([*flags.split(), "--set", "dcs2.steps=2", f"dcs2.sensitive={rule}", "--out", str(out)]) == 0
        rows = read_csv(out / "audit.csv", rung="target")
        return [row["index"] for row in rows], [float(row["psnr"]) for row in rows]

    places, concealed = attacked("all")
    places_again, listed = attacked(f"at:{places[0]}")
    assert places_again == places and listed[0] == pytest.approx(concealed[0])
    assert listed[1] > 60 > max(concealed)


def test_a_run_with_bad_samples_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method fedavg --dataset digits --net linear --clients 2 --engine inproc --attack none --defence dcs2"
    assert sim.main([*flags.split(), "--set", "dcs2.sensitive=last:65", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_a_pool_of_one_class_is_refused() -> None:
    step = batch(network())
    alone = LocalStep(
        step.gradients, step.x, step.y, step.model, INPUTS, lambda: (torch.rand(2, *INPUTS.shape), torch.tensor([3, 3]))
    )
    with pytest.raises(InputError, match="public examples of other classes than 3 for dcs2, got none"):
        DCS2(DCS2Settings(**FEW)).step(alone, torch_generator(1, "s"))


@pytest.mark.slow
def test_a_run_logs_the_cosine_and_its_audit_claims_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method fedavg --dataset digits --net lenet --clients 2 --rounds 1 --local-epochs 1 --batch-size 200"
    flags += " --engine inproc --attack analytic --images 1 --audit-rounds 0 --defence dcs2 --set dcs2.steps=3"
    assert sim.main([*flags.split(), "--out", str(tmp_path / "run")]) == 0
    assert "no leak found" not in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert -1 <= result["rounds"][0]["extra"]["concealed_cosine"] <= 1
    assert 0 <= result["rounds"][0]["extra"]["concealed_outside"] <= 1
    assert result["audit"][0]["verdict"] != "no leak found"
