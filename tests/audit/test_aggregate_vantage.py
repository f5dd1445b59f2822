"""The server behind secure aggregation: an audit on sums over groups of clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flfw.audit.measures.sum_conclusion import SumEvidence, conclude_on_sums
from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.runs import run as whole
from tests.support.small_runs import tiny


def asked(folder: Path, **changes: Any) -> Experiment:
    wanted = {"clients": 4, "images": 4, "audit_rounds": "0", "vantage": ("server", "aggregate"), **changes}
    return tiny(folder, **wanted)


def entries(folder: Path) -> dict[tuple[str, int | None], dict[str, Any]]:
    audited = json.loads((folder / "result.json").read_text())["audit"]
    return {(entry["attack"], entry["group"]): entry for entry in audited}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sums") / "run"
    return whole.run(asked(out, net="mlp", attack=("spear", "analytic"), victim_batch=2, curve=("group=1,2",)))


def test_a_sum_is_a_batch_of_all_its_clients_examples(folder: Path) -> None:
    audited = entries(folder)
    assert {(group, e["batch"], e["images"], e["curve"]) for (_, group), e in audited.items()} == {
        (None, 2, 8, None), (1, 2, 8, "group"), (2, 4, 8, "group"), (4, 8, 8, None),
    }  # fmt: skip
    assert all(e["vantage"] == ("aggregate" if group else "server") for (_, group), e in audited.items())
    words = " ".join(audited["spear", 2]["granted"])
    assert "sum over groups of 2 clients" in words and "SecAgg+ with clipping to 8 and 4,194,304 steps" in words
    assert "one local step on 4 examples" in words


def test_what_a_batch_of_eight_gives_a_sum_of_four_clients_with_two_gives(folder: Path, tmp_path: Path) -> None:
    audited = entries(folder)
    assert [audited["spear", group]["share_recovered"] for group in (None, 1, 2, 4)] == [1.0] * 4
    assert audited["spear", 4]["group_needed"] is None and audited["spear", None]["group_needed"] is None
    assert audited["analytic", 4]["share_recovered"] < 1.0


def test_the_verdict_needs_many_clients_and_the_same_attack_on_one() -> None:
    def verdict(**changes: Any) -> tuple[str, str]:
        usual = {"group": 10, "alone": 1.0, "described": True, "short": False, "sums": 8}
        return conclude_on_sums(SumEvidence(**{**usual, **changes}), 0.5)[:2]

    assert verdict() == ("no leak found", "nothing")
    assert verdict(group=9) == ("inconclusive", "group") and verdict(sums=7) == ("inconclusive", "few")
    assert verdict(alone=None) == verdict(alone=0.4) == ("inconclusive", "alone")
    assert verdict(described=False) == ("inconclusive", "consistency")
    assert verdict(short=True) == ("inconclusive", "search") and verdict(group=1) == ("inconclusive", "undefended")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vantage": ("server",), "group": 2}, "--vantage aggregate with group"),
        ({"group": 5}, "groups of 1 to 4 clients, as many as are probed, got group=5"),
        ({"audit_source": "both"}, "audit-source=probe with --vantage aggregate"),
        ({"defence": "prune", "defended": "1"}, "all clients or none defended"),
    ],
    ids=["vantage", "size", "source", "defended"],
)
def test_sums_that_cannot_be_made_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        asked(tmp_path, **changes)
