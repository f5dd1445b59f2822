"""The server behind secure aggregation: an audit on sums over groups of clients."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flfw.audit.reconstruction.reconstruction_evidence import (
    ControlResult,
    ControlResults,
    ReconstructionEvidence,
    SumFacts,
)
from flfw.audit.sums import with_min_safe_sum_size
from flfw.audit.verdict import verdict_on
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.outcomes import concluded, outcome
from flfw.runs import run as whole
from tests.support.small_runs import tiny


def asked(folder: Path, **changes: Any) -> Experiment:
    wanted = {"clients": 4, "images": 4, "audit_rounds": "0", "vantage": ("server", "aggregate"), **changes}
    return tiny(folder, **wanted)


def entries(folder: Path) -> dict[tuple[str, int | None], dict[str, Any]]:
    audited = json.loads((folder / "result.json").read_text())["audit"]
    return {(entry["attack"], entry["sum_size"]): entry for entry in audited}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sums") / "run"
    return whole.run(asked(out, net="mlp", attack=("spear", "analytic"), victim_batch=2, curve=("sum_size=1,2",)))


@pytest.mark.slow
def test_a_sum_is_a_batch_of_all_its_clients_examples(folder: Path) -> None:
    audited = entries(folder)
    assert {(group, e["batch"], e["images"], e["curve"]) for (_, group), e in audited.items()} == {
        (None, 2, 8, None), (1, 2, 8, "sum_size"), (2, 4, 8, "sum_size"), (4, 8, 8, None),
    }  # fmt: skip
    assert all(e["vantage"] == ("aggregate" if group else "server") for (_, group), e in audited.items())
    words = " ".join(audited["spear", 2]["granted"])
    assert "sum over groups of 2 clients" in words and "SecAgg+ with clipping to 8 and 4,194,304 steps" in words
    assert "one local step on 4 examples" in words


@pytest.mark.slow
def test_what_a_batch_of_eight_gives_a_sum_of_four_clients_with_two_gives(folder: Path, tmp_path: Path) -> None:
    audited = entries(folder)
    assert [audited["spear", group]["share_recovered"] for group in (None, 1, 2, 4)] == [1.0] * 4
    assert audited["spear", 4]["min_safe_sum_size"] is None and audited["spear", None]["min_safe_sum_size"] is None
    assert audited["analytic", 4]["share_recovered"] < 1.0


def test_a_sum_is_by_default_over_as_many_clients_as_take_part(tmp_path: Path) -> None:
    assert asked(tmp_path).groups == (4,) and asked(tmp_path, images=3).groups == (3,)
    assert asked(tmp_path, sample=2, curve=("sum_size=1,2",)).groups == (2, 1)


def test_the_verdict_needs_many_clients_and_the_same_attack_on_one() -> None:
    def verdict(described: bool = True, short: bool = False, sums: int = 8, **changes: Any) -> tuple[str, str]:
        facts = SumFacts(**{"group": 11, "colluding": 1, "alone": 1.0, **changes})
        return verdict_on(facts.findings(described, short, sums))[:2]

    assert verdict() == verdict(group=10, colluding=0) == ("no leak found", "nothing")
    assert verdict(group=10) == ("undecided", "group") and verdict(sums=7) == ("undecided", "few")
    assert verdict(alone=None) == verdict(alone=0.4) == ("undecided", "alone")
    assert verdict(described=False) == ("undecided", "consistency")
    assert verdict(short=True) == ("undecided", "search")
    assert verdict(group=1, colluding=0) == ("undecided", "undefended")
    assert verdict(untried=("search",)) == ("undecided", "untried")


def test_a_sum_of_few_prints_how_many_clients_are_left() -> None:
    reason = verdict_on(SumFacts(10, 2, 1.0).findings(True, False, 8)).reason
    assert (
        "sums over 10 clients, of which 2 may work with the attacker (--expert colluding_clients): 8 are left."
        in reason
    )
    untried = SumFacts(12, 2, 1.0, ("closed form", "attack on membership"))
    reason = verdict_on(untried.findings(True, False, 8)).reason
    assert "ran no closed form and no attack on membership" in reason


@pytest.mark.parametrize(
    ("evidence", "facts", "word"),
    [
        ({}, {"hidden_alone": True}, "no leak found"),
        ({}, {}, "static"),
        ({}, {"group": 1, "hidden_alone": True}, "static"),  # this is the message itself, seen untold
        ({"failed": 1.0}, {"hidden_alone": True}, "no leak found"),  # a closed form that reads one example alone
        ({"recovered": 1}, {"hidden_alone": True}, "reconstructed"),
    ],
)
def test_a_sum_shows_no_more_than_its_messages(evidence: dict[str, Any], facts: dict[str, Any], word: str) -> None:
    controls = ControlResults(ControlResult(150.0, True), ControlResult(60.0, True))
    sums = SumFacts(**{"group": 3, **facts})
    seen = replace(ReconstructionEvidence(controls, 0, 8, 8, defended=True, sums=sums), **evidence)
    assert outcome(concluded(*verdict_on(seen.findings()))) == word


def sized(group: int, word: str, **changes: Any) -> dict[str, Any]:
    usual = {"attack": "a", "vantage": "aggregate", "adaptive": group == 1, "adaptation": None, "defence": "none"}
    more = {"round": 0, "steps": 1, "curve": "sum_size", "cause": "", "failure_reason": None, "messages": 8}
    return {**usual, **more, "sum_size": group, "verdict": word, **changes}


@pytest.mark.parametrize(
    ("entries", "needed"),
    [
        ([sized(1, "leaks"), sized(2, "undecided", cause="static"), sized(5, "undecided", cause="static")], 2),
        ([sized(1, "undecided"), sized(2, "undecided")], None),
        ([sized(1, "leaks"), sized(2, "undecided", failure_reason="crashed: ValueError: x"), sized(5, "undecided")], 5),
        ([sized(1, "leaks"), sized(2, "undecided", failure_reason="not applicable: too large")], 2),
        ([sized(1, "leaks"), sized(2, "undecided", cause="analytic"), sized(5, "undecided", messages=7)], None),
        ([sized(1, "leaks"), sized(2, "undecided", cause="chance"), sized(5, "undecided")], 5),
        ([sized(1, "leaks"), sized(2, "undecided", vantage="peer")], None),
    ],
    ids=[
        "adaptive only alone",
        "fails alone too",
        "crashed at two",
        "cannot work on two",
        "no answer",
        "luck",
        "vantages",
    ],
)
def test_the_smallest_group_is_one_in_which_the_attack_itself_reached_nothing(
    entries: list[dict[str, Any]], needed: int | None
) -> None:
    judged = with_min_safe_sum_size(entries)
    assert {one["min_safe_sum_size"] for one in judged if one["vantage"] == "aggregate"} == {needed}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vantage": ("server",), "sum_size": 2}, "--vantage aggregate or peer with sum-size"),
        ({"sum_size": 5}, "groups of 1 to 4 clients, as many as are probed and take part in a round, got sum_size=5"),
        ({"sum_size": 3, "sample": 2}, "groups of 1 to 2 clients, as many as are probed and take part in a round"),
        ({"audit_source": "both"}, "audit-source=probe with --vantage aggregate"),
        ({"defence": "prune", "defended": "1"}, "all clients or none defended"),
    ],
    ids=["vantage", "size", "sample", "source", "defended"],
)
def test_sums_that_cannot_be_made_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        asked(tmp_path, **changes)
