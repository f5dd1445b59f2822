"""Printed bounds: what is printed holds wherever the number does."""

from math import inf

import numpy as np
import pytest

from flfw.privacy.rounding import at_least, at_most
from flfw.report.formats import above, below, percent_above
from tests.support.paths import ROOT


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_an_upper_bound_is_never_printed_smaller_nor_a_lower_one_larger(digits: int) -> None:
    for value in np.random.default_rng(0).lognormal(0, 5, 2000).tolist():
        high, low = float(at_most(value, digits)), float(at_least(value, digits))
        assert low * (1 - 1e-8) <= value <= high * (1 + 1e-8)
        assert high - low <= 1.01 * 10 ** (1 - digits) * value


def test_what_has_few_digits_is_printed_as_it_is() -> None:
    for value in (0.0, 0.25, 1.0, 2.75, 40.0, 0.1 + 0.2, 1e-5):
        assert at_most(value) == at_least(value) == f"{value:.3g}"
    assert (at_most(inf), above("inf"), above(None), below(None)) == ("inf", "∞", "–", "–")


def test_the_report_rounds_no_bound_to_nothing() -> None:
    assert (above(0.0012341), below(0.0012349)) == ("0.00124", "0.00123")
    assert [percent_above(share) for share in (0.5, 0.50001, 0.7314, 1.0)] == [
        "50.0\xa0%",
        "50.1\xa0%",
        "73.2\xa0%",
        "100.0\xa0%",
    ]
    assert percent_above(None) == "–"


def test_no_bound_of_the_report_is_formatted_as_a_measurement() -> None:
    """A small bound would be 0.00 there."""
    texts = {path.name: path.read_text() for path in (ROOT / "flfw" / "report" / "template").glob("*.html.md")}
    for text in (texts["figures.html.md"], texts["privacy.html.md"]):
        assert "line.epsilon|above" in text
    assert not [name for name, text in texts.items() if "line.epsilon|num(2)" in text]
    for bound in ("lower_bound or {}).epsilon|below", "line.max_guess_accuracy|above_pct"):
        assert bound in texts["privacy.html.md"]
