"""Table of claims in docs/privacy.md: every row is made here from the claims of the ledger."""

from math import isinf
from pathlib import Path
from typing import Any

import pytest

import flfw
from flfw import plugins
from flfw.dp.settings import DPSGDSettings
from flfw.plans.run_plan import plan
from flfw.privacy.claims import Claim
from flfw.task.method import Method
from tests.dp.test_run_accountant import asked, claims

PAGE = Path(flfw.__file__).parent.parent / "docs" / "privacy.md"
HIDDEN: dict[str, Any] = {"sampling": "poisson", "sample": 1, "on_client_failure": "drop"}
ON_COHORTS = "dp_fedavg unit=client --sampling poisson"
METHODS = (
    *("fed_cdp", "fed_cdp batches=poisson", "fed_cdp bound=median", "fed_cdp compress=before"),
    *("fed_sdp", "fed_sdp noise_shares=2", "fed_sdp noised_by=server"),
    *("dp_fedavg", "dp_fedavg batches=poisson", "dp_fedavg batches=balls", "dp_fedavg unit=client"),
    *("dp_fedavg unit=client quantile=0.5", ON_COHORTS, "dp_ftrl"),
    *("centaur", "centaur unit=client", "ppsgd", "ppsgd unit=client"),
)
ROWS: dict[str, dict[str, Any]] = {words: HIDDEN if words == ON_COHORTS else {} for words in METHODS}
RESTS_ON = {
    "coins": "is drawn by a coin of its own, and the adversary never learns who was drawn.",
    "balls": "by a uniform choice of its own that the adversary never learns",
    "cohorts": "Nobody but the server learns who was drawn, or how many were",
    "count": "it then follows a count, with noise",
    "bands": "The noise of a step is added to a weighted sum of the last",
    "sums": "A sum has the noise of",
    "number": "Everybody is taken to know each client's number of training examples",
}
WHY_NOT = {
    "server's noise": "The server adds the noise ",
    "bare bound": "The bound is the median of a client's own gradient norms",
    "bare mask": "Which entries are zeroed before the noise depends on all examples",
    "bare head": "The head learns from the same examples without noise",
}
ALWAYS = (
    "AES-256 under keys of the operating system",
    "Sums of clipped vectors are computed with rounding errors",
    "Outside the count: the answers to an audit's probes",
    "Inside a client the gradients are bare",
)


def cell(one: Claim) -> str:
    """Yes, or the reason why nothing is claimed."""
    if not isinf(one.epsilon):
        return "yes"
    (why,) = [name for name, words in WHY_NOT.items() if one.assumptions[0].startswith(words)]
    return f"no: {why}"


def row(phrase: str) -> str:
    """A row of the table by the ledger's claims on two clients, with secure noise and no numbers beside the tensors."""
    method, *chosen = [word for word in phrase.split() if "-" not in word and word != "poisson"]
    secure = "noise_source=secure"
    given = claims(asked(method, *chosen, secure, patient_examples="3", metrics="none", **ROWS[phrase]))
    units = {unit: [cell(given[unit, who]) for who in ("server", "aggregate", "another client")] for unit in UNITS}
    assert units["example"] == units["patient"] == units["client"]
    assert all(cell(given[unit, "outsider"]) == cell(given[unit, "another client"]) for unit in UNITS)
    finite = [one for one in given.values() if not isinf(one.epsilon)]
    texts = [" ".join(one.assumptions) for one in finite]
    assert all(phrase in text for phrase in ALWAYS for text in texts)
    rests = [name for name, sentence in RESTS_ON.items() if any(sentence in text for text in texts)]
    run_plan = plan(asked(method, *chosen, secure, **ROWS[phrase]))
    clips = "examples" if any("Each example's gradient is clipped" in text for text in texts) else "updates"
    clips = clips if texts else "examples" if isinstance(run_plan.client.settings, DPSGDSettings) else "updates"
    return f"| `{phrase}` | {clips} | {' | '.join(units['example'])} | {', '.join(rests) or '-'} |"


UNITS = ("example", "patient", "client")


@pytest.mark.parametrize("text", ROWS)
def test_the_page_says_what_is_claimed_and_on_what_it_rests(text: str) -> None:
    assert row(text) in PAGE.read_text().splitlines()


def test_the_page_has_no_other_row() -> None:
    table = PAGE.read_text().split("## What each method claims")[1].split("\n## ")[0]
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert named == [*ROWS, *RESTS_ON, *WHY_NOT]


def test_of_all_other_methods_nothing_is_claimed() -> None:
    others = set(plugins.names(plugins.METHOD)) - {words.split()[0] for words in ROWS}
    assert {"fedavg", "fedcg", "hyperfl"} <= others
    for name in others:
        cls = plugins.load_class(plugins.METHOD, name, Method)
        assert cls.mechanism.__func__ is Method.mechanism.__func__, name  # which returns None
