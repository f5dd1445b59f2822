"""The search for a transformation policy: both scores against loops, the ranking by hand, and the command."""

import json
from itertools import pairwise
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flfw import nets
from flfw.rng import initialising, numpy_generator, torch_generator
from research.papers.transformation_search import Scored, accuracy_score, candidates, main, privacy_scores, ranked


def network(name: str = "lenet") -> nn.Module:
    with initialising(0, name):
        return nets.build(name, (1, 8, 8), 10).eval()


def images(count: int, purpose: str) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch_generator(0, purpose))


def gradient(net: nn.Module, x: Tensor, label: Tensor) -> list[Tensor]:
    loss = nn.functional.cross_entropy(net(x[None]), label[None])
    return list(torch.autograd.grad(loss, list(net.parameters())))


def test_the_privacy_score_is_the_area_below_the_mean_cosines() -> None:
    net, x, noise, y = network(), images(3, "x"), images(3, "noise"), torch.tensor([1, 0, 7])
    expected = []
    for one, u, label in zip(x, noise, y, strict=True):
        sent, values = gradient(net, one, label), []
        for k in range(21):
            trial = gradient(net, k / 20 * one + (20 - k) / 20 * u, label)
            cosines = [float((a * b).sum() / (a.norm() * b.norm())) for a, b in zip(trial, sent, strict=True)]
            values.append(sum(cosines) / len(cosines))
        expected.append(sum((before + after) / 2 / 20 for before, after in pairwise(values)))
    assert privacy_scores(net, x, y, noise).tolist() == pytest.approx(expected, abs=1e-5)
    assert privacy_scores(net, x, y, x).tolist() == pytest.approx([1.0] * 3)  # no way to go: all cosines are 1


def test_the_accuracy_score_is_that_of_the_jacobians_correlations() -> None:
    net, x = network(), images(6, "x")
    rows = []
    for one in x:
        at = one[None].clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(at).sum(), at)
        rows.append(slope.flatten().double().numpy())
    values = np.linalg.eigvals(np.corrcoef(rows)).real
    expected = -sum(log(max(v, 0) + 1e-5) + 1 / (max(v, 0) + 1e-5) for v in values)
    assert accuracy_score(net, x) == pytest.approx(expected, rel=1e-3)


def test_the_accuracy_score_by_hand() -> None:
    class Rows(nn.Module):
        """Each image's Jacobian is that image times two."""

        def forward(self, x: Tensor) -> Tensor:
            return x.square().flatten(1)

    one, two = torch.tensor([[1.0, -1, 0, 0]]), torch.tensor([[0.0, 0, 1, -1]])
    assert accuracy_score(Rows(), torch.cat([one, two])) == pytest.approx(-2, abs=1e-6)  # eigenvalues 1 and 1
    alike = -(log(2 + 1e-5) + 1 / (2 + 1e-5) + log(1e-5) + 1e5)
    assert accuracy_score(Rows(), torch.cat([one, one])) == pytest.approx(alike, rel=1e-6)
    assert accuracy_score(Rows(), torch.cat([one, 0 * one])) == -torch.inf


def test_policies_below_the_threshold_fall_out_and_the_others_are_ranked() -> None:
    scores = [
        Scored("low", 0.1, 0.0, -86.0),
        Scored("a", 0.2, 0.05, -85.0),
        Scored("b", 0.3, 0.01, -80.0),
        Scored("c", 0.6, 0.03, -10.0),
    ]
    both = ranked(scores, -85.0)  # 0.7 * (0, 1/4, 1) + 0.3 * (1, 0, 1/2)
    assert [(one.policy, pytest.approx(value)) for value, one in both] == [("b", 0.175), ("a", 0.3), ("c", 0.85)]
    assert [one.policy for _, one in ranked(scores, -85.0, "mean")] == ["a", "b", "c"]
    assert ranked(scores, 0.0) == [] and ranked(scores[:1], -90.0)[0][0] == 0


def test_candidates_are_up_to_three_ids_that_exist() -> None:
    drawn = candidates(5000, numpy_generator(0, "draws"))
    ids = [[int(number) for number in policy.split("-")] for policy in drawn]
    assert len(set(drawn)) == len(drawn) <= 5000
    assert {len(one) for one in ids} == {1, 2, 3}
    assert {number for one in ids for number in one} == set(range(50))
    assert drawn == candidates(5000, numpy_generator(0, "draws"))


@pytest.mark.slow
def test_the_command_prints_a_table_and_a_last_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--dataset digits --net lenet --candidates 3 --epochs 1 --threshold -1000000"
    out = tmp_path / "search.json"
    assert main([*words.split(), "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    last, stored = json.loads(printed[-1]), json.loads(out.read_text())
    assert printed[0].startswith("| policy |") and len(printed) == 2 + 3 + 1 + 1
    assert last["best"] == stored["ranked"][0] and last["ranked"] == len(stored["ranked"]) == 3
    assert last["untransformed"]["policy"] == "28" and 0 < last["untransformed"]["privacy"] <= 1
    assert main(words.split()) == 0 and capsys.readouterr().out.splitlines()[-1] == printed[-1]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("--dataset cancer --net mlp", "Expected images, got dataset=cancer."),
        ("--dataset digits --net lenet --candidates 0", "Expected 1 candidate or more, got candidates=0."),
        ("--dataset digits --net lenet --lr 0", "Expected epochs >= 0 and lr > 0, got epochs=100, lr=0.0."),
    ],
)
def test_what_does_not_fit_is_one_line(text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(text.split()) == 2
    assert capsys.readouterr().err == f"transformation_search: {line}\n"
