"""TabLeak: categories of a table, the join of several searches, and rows that it finds."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import sim
from flfw.adversary.attack import NotApplicableError
from flfw.attacks.tableak import Categories, RelaxedRows, TabLeak, TabLeakSettings, agreement, aligned
from flfw.audit.measures.recovery import agreed_features
from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.matching import tensorwise_cosine_distance
from flfw.inversion.search import SearchResult
from flfw.recording.observation import Reconstruction
from tests.support import capability
from tests.support.attackable import generators, seen
from tests.support.tables import ROWS_NAME, TABLE, attackable_rows, rows_of


def test_categories_are_groups_of_columns_that_exclude_each_other() -> None:
    assert Categories.of_rows(rows_of(200, seed=3)) == TABLE
    # A category's first value that only rows without the category before have joins that one.
    rows = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    assert Categories.of_rows(rows).groups == ((0, 1, 2), (3,))
    assert Categories.of_rows(torch.rand(5, 3)) == Categories((), (), (0, 1, 2))


def test_relaxed_numbers_are_rows_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0, 1.0, 2.0, -1.0, 3.0]])
    e = torch.exp(torch.tensor([1.0, 1.0, 2.0]))
    f = torch.exp(torch.tensor([-1.0, 3.0]))
    expected = torch.cat([torch.tensor([0.5]), e / e.sum(), f / (f.sum() + 1)])
    torch.testing.assert_close(TABLE.relaxed(x), expected[None])
    assert TABLE.rounded(TABLE.relaxed(x)).tolist() == [[0.5, 0, 0, 1, 0, 1]]
    low = torch.tensor([[0.0, 1.0, 1.0, 2.0, -3.0, -3.0]])
    assert TABLE.rounded(TABLE.relaxed(low)).tolist() == [[0.5, 0, 0, 1, 0, 0]]  # the open category has no value


def test_the_join_takes_the_value_of_the_highest_median_and_none_has_a_median_of_its_own() -> None:
    table = Categories(((0, 1),), (True,), (2,))
    searches = [[0.8, 0.05, 0.1], [0.8, 0.05, 0.2], [0.2, 0.7, 0.3], [0.2, 0.7, 0.9], [0.2, 0.1, 0.9]]
    rows = torch.tensor(searches)[:, None]
    # Medians: 0.2 and 0.1, and of none (0.15, 0.15, 0.1, 0.1, 0.7) 0.15, which is not 1 - 0.2 - 0.1.
    assert table.joined(rows).tolist() == [[1.0, 0.0, pytest.approx(0.3)]]
    assert table.joined(rows[:1]).tolist() == table.rounded(rows[0]).tolist()


def test_the_gradient_of_relaxed_rows_is_that_of_the_rows() -> None:
    (observation,), (knowledge,), _ = attackable_rows(2)
    x = torch.randn(2, 6)
    relaxed = RelaxedRows(knowledge.model, TABLE).gradient(x, knowledge.labels, {}, {})  # type: ignore[arg-type]
    plain = knowledge.model.gradient(TABLE.relaxed(x), knowledge.labels, {}, {})  # type: ignore[arg-type]
    assert set(relaxed) == set(observation.sent)
    torch.testing.assert_close(relaxed, plain, rtol=0, atol=0)


def test_the_distance_is_the_mean_over_the_tensors() -> None:
    a, b = ({n: torch.randn(3, 2) for n in ("w", "b", "c")} for _ in range(2))
    each = [1 - torch.cosine_similarity(a[n].flatten(), b[n].flatten(), dim=0) for n in a]
    torch.testing.assert_close(tensorwise_cosine_distance(a, b), sum(each) / 3)


def result(rows: Tensor, labels: list[int]) -> SearchResult:
    """Scores that give such rows, almost."""
    return SearchResult(torch.logit(rows, 1e-6), 0.0, torch.tensor(labels), None)


def test_searches_are_aligned_with_the_first_one_within_a_label() -> None:
    numbers = Categories((), (), (0, 1))
    first = torch.tensor([[0.1, 0.1], [0.9, 0.9], [0.2, 0.2]])
    second = torch.tensor([[0.88, 0.9], [0.12, 0.1], [0.1, 0.1]])
    both = aligned(numbers, [result(first, [0, 0, 1]), result(second, [0, 0, 1])])
    torch.testing.assert_close(both[1], second[[1, 0, 2]], atol=1e-4, rtol=0)  # not [2, 0, 1], which is nearer


def test_agreement_by_hand() -> None:
    rows = torch.tensor([[0.5, 1.0, 0.0, 0.0, 0.0, 1.0]])
    near = torch.tensor([[0.54, 1.0, 0.0, 0.0, 0.0, 1.0]])
    far = torch.tensor([[0.6, 0.0, 1.0, 0.0, 0.0, 1.0]])
    shares = agreement(TABLE, [rows, near, far, far], rows, 0.05)
    assert shares.tolist() == [[0.5, 0.5, 0.5, 0.5, 1.0, 1.0]]  # a category's values agree or differ together


def test_what_searches_agree_on_is_counted_by_hand() -> None:
    truth, guess = np.array([1.0, 0.0, 0.5, 0.2]), np.array([1.0, 1.0, 0.5, 0.9])
    binary, agreement = np.array([True, True, False, False]), np.array([1.0, 0.9, 0.95, 0.4])
    counted = agreed_features(truth, guess, binary, agreement)
    assert counted == {"agreed": 0.75, "agreed_exact": 2 / 3}
    assert agreed_features(truth, guess, binary, 0 * agreement) == {"agreed": 0.0, "agreed_exact": None}


def found(truth: Tensor, result: Reconstruction) -> bool:
    """Whether some order of the rows has every feature right."""
    unlike = (torch.cdist(truth, result.samples, p=torch.inf) > 0.05).int()
    return bool((unlike.min(1).values == 0).all())


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["given", "counts"])
def test_it_finds_the_rows_of_an_undefended_client(labels: str) -> None:
    (observation,), (knowledge,), x = attackable_rows(3)
    attack = TabLeak(TabLeakSettings(iterations=200, restarts=3, labels=labels))  # type: ignore[arg-type]
    granted = knowledge if labels == "given" else dataclasses.replace(knowledge, labels=None)
    (one,) = attack.run([observation], [granted], generators(1))
    assert found(x, one), (x, one.samples)
    assert one.agreement is not None and one.agreement.shape == x.shape and one.agreement.mean() > 0.5
    (of_others,), _, _ = attackable_rows(3, seed=5)
    (other,) = attack.run([of_others], [granted], generators(1))
    assert not found(x, other)


@pytest.mark.slow
def test_a_single_search_has_no_agreement() -> None:
    (observation,), (knowledge,), _ = attackable_rows(1)
    (one,) = TabLeak(TabLeakSettings(iterations=2, restarts=1)).run([observation], [knowledge], generators(1))
    assert one.agreement is None and one.samples.isfinite().all()


@pytest.mark.slow
def test_a_private_head_is_searched_for() -> None:
    (observation,), (knowledge,), _ = attackable_rows(1)
    sent = {n: v for n, v in observation.sent.items() if n.startswith("extractor.")}
    held = {n: v for n, v in knowledge.model.known.items() if n.startswith("extractor.")}
    hidden = PlainVictim(knowledge.model.model, held, ("extractor.*",), knowledge.model.inputs)
    attack = TabLeak(TabLeakSettings(iterations=3, restarts=2))
    (one,) = attack.run([seen(sent, held)], [dataclasses.replace(knowledge, model=hidden)], generators(1))
    assert one.samples.isfinite().all()


def test_images_and_no_public_rows_are_refused() -> None:
    (observation,), (knowledge,), _ = attackable_rows(1)
    with pytest.raises(NotApplicableError, match="needs public rows"):
        TabLeak().run([observation], [dataclasses.replace(knowledge, public=None)], generators(1))
    assert TabLeak().uses == {"public"}


def test_an_upload_of_nan_gives_nothing_and_does_not_crash() -> None:
    (observation,), (knowledge,), _ = attackable_rows(1)
    broken = dataclasses.replace(observation, sent={n: v * torch.nan for n, v in observation.sent.items()})
    with pytest.raises(InputError, match="finite"):
        TabLeak(TabLeakSettings(iterations=2)).run([broken], [knowledge], generators(1))


FLAGS = f"--method fedavg --dataset {ROWS_NAME} --clients 2 --rounds 1 --local-epochs 1 --engine inproc --images 4"


@pytest.mark.nightly
def test_an_audit_of_a_table_ends_with_the_rows(tmp_path: Path) -> None:
    few = "--attack tableak --victim-batch 2 --audit-rounds 0 --set tableak.iterations=200 tableak.restarts=3"
    assert sim.main([*FLAGS.split(), *few.split(), "--out", str(tmp_path / "run")]) == 0
    entries = json.loads((tmp_path / "run" / "result.json").read_text())["audit"]
    (entry,) = (one for one in entries if one["attack"] == "tableak")
    assert entry["exact_match"]["rows"] == 1.0 and entry["verdict"] == "leaks"
    assert entry["exact_match"]["agreed"] > 0.5 and entry["exact_match"]["agreed_exact"] == 1.0
    assert "exact where the searches agree" in (tmp_path / "run" / "report.html").read_text()
    (check,) = capability.check(tmp_path / "run", ["tableak"], ("tableak.iterations=20", "tableak.restarts=2"))
    assert check.same and check.compared > 0
