"""Policies of sites: every key of today is read, and what is not understood stops the site in one line."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.readable.outside import HERE
from tests.readable.sites import budget, site, status

KEYS = [key for key in tomllib.loads((HERE / "policies" / "page.toml").read_text()) if key != "run"]


def test_the_policies_have_every_key_that_the_page_of_today_names() -> None:
    assert len(KEYS) == 17
    assert {"apps", "epsilon", "most_messages", "seeded_draws", "volunteered"} <= set(KEYS)


@pytest.mark.parametrize("policy", ["page", "budget", "patients"])
def test_a_policy_of_today_is_read(tmp_path: Path, policy: str) -> None:
    ended = status(site(tmp_path, policy))
    assert (ended.code, ended.err) == (1, "")  # nothing is at work
    assert ("budget" in ended.out) == (policy != "page")


def test_epsilon_delta_unit_and_messages_are_the_policys(tmp_path: Path) -> None:
    folder = site(tmp_path / "one", "budget")
    assert budget(folder)[0] == "epsilon 80 at delta 1e-05 for one example"
    assert "site 0: 5 of 50 answered" in status(folder).out
    patients = site(tmp_path / "two", "patients")
    assert budget(patients)[0] == "epsilon 4000 at delta 1e-06 for one patient"


def changed(file: Path, key: str, value: str) -> None:
    """Write another value behind a key of the policy."""
    text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", file.read_text(), flags=re.M)
    assert count == 1, key
    file.write_text(text)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_read_by_its_name_and_type(tmp_path: Path, key: str) -> None:
    """A table fits no key; the same key under another name is none."""
    folder = site(tmp_path, "patients" if key == "unit" else "page")
    file = folder / "policy.toml"
    text = file.read_text()
    changed(file, key, "{ odd = 1 }")
    status(folder).require_refused(key)
    file.write_text(text.replace(f"{key} =", f"new_{key} ="))
    status(folder).require_refused(f"new_{key}")


def test_an_app_of_another_version_finds_the_budget_by_its_names(tmp_path: Path) -> None:
    """A policy may accept older code beside newer: the site's launcher hands both the same entries of a node config.

    An app that does not find them keeps no ledger. This alone is inside: where it moves to, this test follows.
    """
    from flfw.deploy.node_config import entries
    from flfw.deploy.policy import Policy

    folder = site(tmp_path, "budget")
    config = entries(Policy.read(folder / "policy.toml"), folder)
    assert config == {
        "budget": "80.0 1e-05 example 0",
        "ledger": str(folder / "ledger" / "messages.jsonl"),
        "truth": str(folder / "truth"),
        "volunteered": "0 3",
        "fewest-examples": "20",
        "check-broadcast": "true",
        "quiet": "true",
    }


UNREADABLE = {
    "a key of a later version": ('cohorts = "large"\n', "got cohorts"),
    "a format": ("format = 2\n", "got format"),
    "the key of an earlier version": ("least_noise = 1.0\n", "epsilon, delta and unit"),
    "no TOML": ("apps = [\n", "Expected a policy in"),
}


@pytest.mark.parametrize(("line", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_policy_that_is_not_understood_is_refused(tmp_path: Path, line: str, words: str) -> None:
    folder = site(tmp_path, "page")
    file = folder / "policy.toml"
    file.write_text(line + file.read_text())
    status(folder).require_refused(words, str(file))


PINS = {
    "a setting that no run has": ("method =", "methods =", "methods"),
    "an unknown bound": ("least = 1,", "fewest = 1,", "rounds"),
    "a number in words": ("least = 1,", 'least = "one",', "rounds"),
}


@pytest.mark.parametrize(("old", "new", "words"), PINS.values(), ids=PINS)
def test_a_setting_that_is_pinned_in_other_words_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    folder = site(tmp_path, "page")
    file = folder / "policy.toml"
    file.write_text(file.read_text().replace(old, new))
    status(folder).require_refused(words)
