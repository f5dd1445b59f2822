"""Ledgers of sites: today's is read with its epsilon, and none that is not understood ever counts as nothing."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from math import exp, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import norm

from flfw.deploy.quota import Quota
from tests.readable.sites import budget, site, status

MU = sqrt(2 * 2 * 3 + 3 + 2**2 * 3 / 2**2 + 1 / 9**2)
"""Of one Gaussian for the five messages: 1 / z^2 adds up, with z the noise over how far one example moves a sum.

Two rounds of two noisy steps on three layers (z^2 = 1 / 3), one step of a probe (likewise), one update with a third of
the noise (z^2 = 4 / 3), which an example exchanges for another, so twice as far; numbers beside it (z = 9); no data.
"""


def epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian (Balle and Wang, 2018), by halving."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        is_more = norm.cdf(mu / 2 - middle / mu) - exp(middle) * norm.cdf(-mu / 2 - middle / mu) > delta
        low, high = (middle, high) if is_more else (low, middle)
    return high


SPENT = epsilon(MU, 1e-5 / 2)  # the other half of delta is for sampled steps


def charge(folder: Path) -> str:
    """Enter one more message, as the app at a site does; the refusal, or nothing.

    This alone is inside: where it moves to, this function follows.
    """
    from flfw.dp.budget import BudgetExceededError, EpsilonBudget
    from flfw.dp.site_ledger import FILE, MessageEntry
    from flfw.dp.site_ledger import charge as enter
    from flfw.privacy.mechanism import Mechanism

    entry = MessageEntry("e5f6", 1, "train", "fed_cdp", Mechanism(1.0, 1), examples=120)
    try:
        enter(folder / FILE, EpsilonBudget(80.0, 1e-5), entry)
    except BudgetExceededError as refusal:
        return str(refusal)
    return ""


def lines(folder: Path) -> Path:
    return folder / "ledger" / "messages.jsonl"


def head(folder: Path) -> Path:
    return folder / "ledger" / "messages.head"


def test_a_ledger_of_today_has_spent_what_it_had(tmp_path: Path) -> None:
    folder = site(tmp_path)
    words, spent, messages, runs = budget(folder)
    assert (words, messages, runs) == ("epsilon 80 at delta 1e-05 for one example", 5, 2)
    assert spent == pytest.approx(SPENT, abs=0.06)  # of three digits


def test_another_message_is_added_to_a_ledger_of_today(tmp_path: Path) -> None:
    folder = site(tmp_path)
    before = lines(folder).read_bytes()
    assert charge(folder) == ""
    _, spent, messages, runs = budget(folder)
    assert (messages, runs) == (6, 3) and SPENT < spent < SPENT + 5
    assert lines(folder).read_bytes().startswith(before)


def test_the_unit_counts_for_the_messages_of_today(tmp_path: Path) -> None:
    """Three examples of a patient count more than one."""
    assert budget(site(tmp_path, "patients"))[1] > 2 * SPENT


def test_a_line_that_was_written_without_its_head_counts(tmp_path: Path) -> None:
    """As a power cut leaves it: the first line alone, with no head or with one of no lines."""
    folder = site(tmp_path)
    lines(folder).write_bytes(lines(folder).read_bytes().splitlines(keepends=True)[0])
    for text in (None, {"lines": 0, "sha256": "0" * 64}):
        head(folder).unlink()
        if text:
            head(folder).write_text(json.dumps(text))
        _, spent, messages, _ = budget(folder)
        assert messages == 1 and 0 < spent < SPENT
        head(folder).touch()


# --- what never counts as nothing ------------------------------------------------------------------------------------

Row = dict[str, Any]


def rewritten(folder: Path, rows: list[Row], **more: Any) -> None:
    """Write lines and head anew, so that all of the chain fits; only the content is another."""
    before, written = "0" * 64, []
    for row in rows:
        line = json.dumps({**row, "before": before}).encode()
        before = hashlib.sha256(line).hexdigest()
        written.append(line + b"\n")
    lines(folder).write_bytes(b"".join(written))
    head(folder).write_text(json.dumps({"lines": len(written), "sha256": before, **more}))


def rows(folder: Path) -> list[Row]:
    return [json.loads(line) for line in lines(folder).read_text().splitlines()]


def each(change: Callable[[Row], object]) -> Callable[[Path], object]:
    """Change every line, in a chain that fits."""

    def changed(folder: Path) -> None:
        those = rows(folder)
        for row in those:
            change(row)
        rewritten(folder, those)

    return changed


def noise(**changes: Any) -> Callable[[Path], object]:
    return each(lambda row: row["mechanism"] and row["mechanism"].update(changes))


def without(name: str) -> Callable[[Path], object]:
    return each(lambda row: row.pop(name))


def renamed(old: str, new: str) -> Callable[[Path], object]:
    return each(lambda row: row.update({new: row.pop(old)}))


def alone(data: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Put other bytes in place of the lines, and remove the head."""

    def changed(folder: Path) -> None:
        lines(folder).write_bytes(data(lines(folder).read_bytes()))
        head(folder).unlink()

    return changed


def beside(data: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Put other bytes in place of the lines, and leave the head."""
    return lambda folder: lines(folder).write_bytes(data(lines(folder).read_bytes()))


def elsewhere(folder: Path) -> None:
    """The ledger lies on a disk that is not mounted."""
    shutil.rmtree(folder / "ledger")
    (folder / "ledger").symlink_to(folder / "disk" / "ledger")


FOREIGN = b"not a ledger"
VERSIONS: Mapping[str, Callable[[Path], object]] = {
    "another format in a line": each(lambda row: row.update(format=99)),
    "another format in the head": lambda folder: rewritten(folder, rows(folder), format=99),
    "a line of a later version": each(lambda row: row.update(epsilon=3.0)),
    "a field by another name": renamed("mechanism", "mechanisms"),
    "no mechanism": without("mechanism"),
    "no number of examples": without("examples"),
    "a mechanism of a later version": noise(cost=3.0),
    "a mechanism by its name": each(lambda row: row.update(mechanism="gaussian")),
    "an unknown word": noise(clipped="patient"),
    "a list of mechanisms": each(lambda row: row.update(mechanism=[])),
    "an empty mechanism": each(lambda row: row.update(mechanism={})),
    "fewer examples than none": each(lambda row: row.update(examples=-1)),
    "fewer steps than none": noise(steps=-6),
    "noise in words": noise(noise_multiplier="1"),
}
DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "a changed line": beside(lambda data: data.replace(b'"steps": 6', b'"steps": 0', 1)),
    "no last line": beside(lambda data: b"".join(data.splitlines(keepends=True)[:-1])),
    "half of the last line": beside(lambda data: data[:-40]),
    "no lines": beside(lambda _: b""),
    "other words": beside(lambda _: FOREIGN),
    "no file of lines": lambda folder: lines(folder).unlink(),
    "a folder in place of the lines": lambda folder: (lines(folder).unlink(), lines(folder).mkdir()),
    "no head": lambda folder: head(folder).unlink(),
    "an empty head": lambda folder: head(folder).write_bytes(b""),
    "a head of another file": lambda folder: head(folder).write_bytes((folder / "policy.toml").read_bytes()),
    "a head of fewer lines": lambda folder: head(folder).write_text(json.dumps({"lines": 0, "sha256": "0" * 64})),
    "no head, and no lines": alone(lambda _: b""),
    "no head, and half of the first line": alone(lambda data: data[:100]),
    "no head, and other words": alone(lambda _: FOREIGN),
    "no head, and other words with an end": alone(lambda _: FOREIGN + b"\n"),
    "no head, and other ends of lines": alone(lambda data: data.replace(b"\n", b"\r")),
    "no head, and a list": alone(lambda _: b"[]\n"),
    "no lines, and a head of fewer than none": lambda folder: (
        lines(folder).write_bytes(b""),
        head(folder).write_text(json.dumps({"lines": -1, "sha256": "0" * 64})),
    ),
    "a disk that is not mounted": elsewhere,
    "a file in place of the folder": lambda folder: (
        shutil.rmtree(folder / "ledger"),
        (folder / "ledger").write_bytes(FOREIGN),
    ),
}


@pytest.mark.parametrize("change", {**VERSIONS, **DAMAGE}.values(), ids=[*VERSIONS, *DAMAGE])
def test_what_is_not_understood_never_counts_as_nothing(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Status says so in one line, and no message is answered."""
    folder = site(tmp_path)
    change(folder)
    ended = status(folder)
    ended.require_refused("restore it")
    assert "is spent" not in ended.out + ended.err
    assert charge(folder).startswith("this site's budget: its ledger is damaged, and nothing is answered")


def test_a_count_of_answers_that_is_not_understood_never_counts_as_nothing(tmp_path: Path) -> None:
    for number, data in enumerate((b"", FOREIGN)):
        folder = site(tmp_path / str(number))
        (folder / "ledger" / "answers.jsonl").write_bytes(data)
        status(folder).require_refused("restore it")
        (folder / "ledger" / "answers.head").unlink()
        status(folder).require_refused("restore it")
    folder = site(tmp_path / "lost")
    taken: Any = Quota(folder / "ledger" / "answers.jsonl", 99)
    message = SimpleNamespace(metadata=SimpleNamespace(message_type="train", run_id=1))
    assert taken.refuses(message) is None
    shutil.rmtree(folder / "ledger")
    status(folder).require_refused("restore it")
    assert "until its damaged count of answers is restored" in taken.refuses(message)


GONE: dict[str, Callable[[Path], object]] = {
    "lines": lambda folder: lines(folder).unlink(),
    "head": lambda folder: head(folder).unlink(),
    "both": lambda folder: (lines(folder).unlink(), head(folder).unlink()),
    "folder": lambda folder: shutil.rmtree(folder / "ledger"),
    "empty lines": lambda folder: lines(folder).write_bytes(b""),
    "empty lines, no head": lambda folder: (lines(folder).write_bytes(b""), head(folder).unlink()),
    "both empty": lambda folder: (lines(folder).write_bytes(b""), head(folder).write_bytes(b"")),
}


@pytest.mark.parametrize("loss", GONE.values(), ids=GONE)
def test_a_ledger_that_is_lost_is_missed(tmp_path: Path, loss: Callable[[Path], object]) -> None:
    """Once a message of today was entered; the owner may restore it, or remove what says that there was one."""
    folder = site(tmp_path)
    assert charge(folder) == ""
    kept = shutil.copytree(folder / "ledger", tmp_path / "kept")
    loss(folder)
    for _ in range(2):  # a refusal begins no new ledger
        status(folder).require_refused("restore it")
        assert charge(folder).startswith("this site's budget: its ledger is damaged, and nothing is answered")
    shutil.rmtree(folder / "ledger")
    status(folder).require_refused(f"it is lost; restore it, or remove {folder / 'ledger.messages.begun'} to count")
    shutil.copytree(kept, folder / "ledger")
    assert budget(folder)[2] == 6
    shutil.rmtree(folder / "ledger")
    (folder / "ledger.messages.begun").unlink()
    assert budget(folder)[2] == 0 and charge(folder) == "" and budget(folder)[2] == 1


def test_a_ledger_that_was_never_used_since_may_go_unnoticed(tmp_path: Path) -> None:
    """A limit: before the first message of today nothing else at a site says that there was one. The page says so."""
    folder = site(tmp_path)
    shutil.rmtree(folder / "ledger")
    assert budget(folder)[1:] == (0.0, 0, 0)


def test_an_older_copy_of_both_files_counts_what_it_has(tmp_path: Path) -> None:
    """A limit: who may write the folder can bring back an earlier state. The page says so."""
    folder = site(tmp_path)
    older = shutil.copytree(folder / "ledger", tmp_path / "older")
    assert charge(folder) == ""
    shutil.rmtree(folder / "ledger")
    older.rename(folder / "ledger")
    assert budget(folder)[2] == 5
