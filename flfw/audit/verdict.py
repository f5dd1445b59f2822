"""Verdict on single messages: a pure function from an attack's results to one of three, its cause and a sentence.

A reconstruction is evidence by itself. A failure is evidence only if the same attack succeeds on the case itself, where
nothing hides the data, and through the same defence where it is weak. `ControlResults` holds these easier cases.

`flfw.audit.conclude` adds what sums, unread statistics and a malicious server change. Members and
classes have rules of their own, in `flfw.audit.membership.verdict` and `flfw.audit.measures.class_inference`. What
counts as recovered is in `flfw.audit.measures.recovery`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from flfw.audit.measures.identification import Identified
from flfw.audit.measures.statistics import most_missed, significant
from flfw.files.verdicts import LEAKS, NO_LEAK_FOUND, UNDECIDED

_TO_SHOW = {
    "consistency": ("consistency", "the attacker's model of the client explains the message"),
    "weak_defence": ("weak_defence", "the attack works through this defence where it is weak"),
    "undefended": ("undefended_control", "the attack works on this case without the defence"),
}
"""Controls that a failure must pass to count, with the cause where one does not, and what it shows."""

_UNEXPLAINED = "The description does not explain the message, so that a better one may lead to more."
CONTROL_DB = 40.0
EASY_SHARE = 0.5
FAILED_SHARE = 0.5
MESSAGES = 8  # least number of independent messages for "no leak found": they exclude, at 95 %, that 32 % leak


class Verdict(NamedTuple):
    """Verdict of an attack on a target.

    Attributes:
        verdict: ``leaks``, ``no leak found`` or ``undecided``; what was found follows from the cause.
        cause: what decided it, in one word.
        reason: what decided it, in sentences.
    """

    verdict: str
    cause: str
    reason: str


@dataclass(frozen=True)
class ControlResult:
    """Result of a control below an audit.

    Attributes:
        psnr: mean over the probes in dB; None: no example was reconstructed, or this control has none.
        passed: whether the attack, or the measurement, does here what it must; None: it was not tried.
        seconds: run time of the attack.
        failure_reason: why there is no result; None if there is one.
        reason: the result in words, where numbers alone do not tell it.
    """

    psnr: float | None
    passed: bool | None
    seconds: float = 0.0
    failure_reason: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class ControlResults:
    """Easier cases below an audited case.

    Attributes:
        analytic: the closed form on softmax regression; it checks the measurement.
        easy: the attack on the same network and data, fresh, undefended, wholly shared, one example, one step.
        consistency: whether the attacker's model of the client, at the true data, gives the recorded message.
        undefended: the attack on the same clients, weights, batch and steps, undefended.
        weak_defence: the adapted attack on the same, behind the same defence in its weakest form.
    """

    analytic: ControlResult
    easy: ControlResult
    consistency: ControlResult = ControlResult(None, None, failure_reason="it was not checked")
    undefended: ControlResult = ControlResult(None, None)
    weak_defence: ControlResult = ControlResult(None, None)

    def tried(self) -> Iterator[dict[str, Any]]:
        """Yield the controls that have a result, or a reason for having none, as result.json holds them."""
        for field in fields(self):
            control: ControlResult = getattr(self, field.name)
            if control.passed is not None or control.failure_reason:
                yield {"rung": field.name, **asdict(control)}


@dataclass(frozen=True)
class Searched:
    """Values of an attack's objective, which it minimises, over the messages of a setting.

    Attributes:
        truth: median at the true data.
        found: median at the reconstructions, failed ones apart.
        random: median at random guesses.
        unconverged: messages in which the search ended above the truth, or failed.
        total: messages with a value at the truth and at a random guess.
    """

    truth: float
    found: float
    random: float
    unconverged: int
    total: int


@dataclass(frozen=True)
class Evidence:
    """Results of an attack on its targets.

    Attributes:
        recovered: examples that were reconstructed.
        attacked: examples that were attacked.
        messages: independent messages among them; a batch is one.
        failed: share of the examples without any result, in [0, 1].
        adaptive: whether the attack knew every operation between the data and the sent tensors.
        private: whether clients keep tensors of the model private.
        defended: whether a defence, or the method's own mechanism, changed what was sent.
        size: size of the target in words, where it is larger than one example and one step.
        outdone: in words, by how much the same attack got further without knowing the defence, if it did.
        chance_match: examples that were as close as reconstructed ones, but no closer than by chance.
        identified: identification among look-alikes by the attack's results, where it was tested.
        candidate_test: messages that their true data explain better than candidates do, where it was tested.
        num_tests: number of these tests in the run.
        searched: values of the objective, where the attack has one.
        noise: in words, what tells a defence's randomness from the noise that the attack took it for; empty: nothing.
        constant: number of messages, where those to clients with equal weights are the same for different data; 0: some
            differ.
    """

    recovered: int
    attacked: int
    messages: int
    failed: float
    adaptive: bool
    private: bool
    defended: bool
    size: str = ""
    outdone: str = ""
    chance_match: int = 0
    identified: Identified | None = None
    candidate_test: Identified | None = None
    num_tests: int = 1
    searched: Searched | None = None
    noise: str = ""
    constant: int = 0


def verdict_on_messages(controls: ControlResults, evidence: Evidence) -> Verdict:
    """Return the verdict, its cause and its reason.

    >>> controls = ControlResults(ControlResult(150.0, True), ControlResult(9.0, False))
    >>> verdict_on_messages(controls, Evidence(0, 8, 8, 0.0, adaptive=True, private=False, defended=True))[:2]
    ('undecided', 'easy')
    """
    return (
        _broken_measurement(controls.analytic)  # undecided
        or _positive(evidence, controls.consistency)  # leaks
        or _constant(evidence.constant)  # no leak found
        or _invalid(controls)  # undecided: the message is not what its description says
        or _incapable(controls.easy, evidence)  # undecided: the attack fails on an easy case
        or _unearned(controls, evidence)  # undecided: nothing shows that it would work in this case
        or _nothing_found(evidence)  # no leak found
    )


def _broken_measurement(analytic: ControlResult) -> Verdict | None:
    if analytic.passed:
        return None
    reached = "nothing" if analytic.psnr is None else f"{analytic.psnr:.1f} dB"
    return Verdict(
        UNDECIDED,
        "analytic",
        f"The closed form found its examples at {reached} where it must reach {CONTROL_DB:.0f}: the measurement is "
        "faulty, and this says nothing about the method.",
    )


def _positive(evidence: Evidence, consistency: ControlResult) -> Verdict | None:
    """Conclude from reconstruction or identification; this needs only a sound measurement."""
    identified, test = evidence.identified, evidence.candidate_test
    if evidence.recovered:
        share = f"{evidence.recovered / evidence.attacked:.0%} of the"
        share = f"{evidence.recovered} of {evidence.attacked}" if share == "0% of the" else share
        beside = f" {_UNEXPLAINED} {consistency.reason}".rstrip() * (consistency.passed is False)
        return Verdict(LEAKS, "recovered", f"{share} attacked examples were reconstructed.{beside}")
    if identified and significant(identified.p, evidence.num_tests):
        return Verdict(
            LEAKS,
            "identified",
            f"Nothing was reconstructed, but {identified.count} of {identified.compared} results point to the true one "
            f"among look-alikes of its class; guesses that saw nothing do so in {identified.chance or 0:.1%} "
            f"(p = {identified.p:.1g}, one of {evidence.num_tests} tests).",
        )
    if test and significant(test.p, evidence.num_tests):
        return Verdict(
            LEAKS,
            "candidates",
            f"Nothing was reconstructed, but {test.count} of {test.compared} messages are explained better by "
            "their true data than by any other data of the same client and classes; messages that do not depend on the "
            f"data are so in {test.chance or 0:.1%} (p = {test.p:.1g}, one of {evidence.num_tests} tests). Who "
            "holds a client's records can tell which were used, without any search.",
        )
    return None


def _constant(messages: int) -> Verdict | None:
    """Conclude that nothing leaks from messages that are the same to the byte, whatever the data."""
    if messages < MESSAGES:
        return None
    return Verdict(
        NO_LEAK_FOUND,
        "constant",
        f"Each of {messages} messages is the same to the byte as those of other data at the same weights, so that no "
        f"attack reads data off it. Up to {most_missed(messages):.0%} of such messages could differ and none be seen. "
        "It says nothing of later rounds, nor of metrics that clients report.",
    )


def _invalid(controls: ControlResults) -> Verdict | None:
    if controls.consistency.passed is not False:
        return None
    return Verdict(
        UNDECIDED,
        "description",
        f"The description does not explain the message. {controls.consistency.reason} What was attacked is not what "
        "the audit takes it for, and this says nothing about the method.",
    )


def _incapable(easy: ControlResult, evidence: Evidence) -> Verdict | None:
    """Conclude that the attack is too weak, gave no result or luck's, or makes too little use of its knowledge."""
    if evidence.chance_match:
        return Verdict(
            UNDECIDED,
            "chance",
            f"{evidence.chance_match} of {evidence.attacked} examples are as close as reconstructed ones. But the "
            "results for other messages fit them as well as chance allows: these data are too much alike, or too few, "
            "to tell a reconstruction from a lucky guess.",
        )
    if easy.failure_reason and not easy.passed:
        return Verdict(
            UNDECIDED,
            "easy",
            f"The attack gave nothing on the undefended network with fresh weights ({easy.failure_reason}), so that "
            "its failure means nothing.",
        )
    if not easy.passed:
        return Verdict(
            UNDECIDED,
            "easy",
            f"The attack does not even work on the undefended network with fresh weights ({easy.psnr or 0:.1f} dB on "
            "average): a stronger attack or a larger budget is needed before its failure means anything.",
        )
    if evidence.failed >= FAILED_SHARE:
        reason = f"The attack gave no result for {evidence.failed:.0%} of the attacked examples."
        return Verdict(UNDECIDED, "failures", reason)
    if not evidence.adaptive and (evidence.private or evidence.defended):
        return Verdict(
            UNDECIDED,
            "static",
            "The attack did not know, or made no use of, all that stands between the data and what was sent: its "
            "failure is not evidence of protection.",
        )
    if not evidence.defended:
        larger = f", here with {evidence.size}" if evidence.size else ""
        return Verdict(
            UNDECIDED,
            "undefended",
            f"No defence hides the data in what was sent{larger}: the attack is too weak for this case, and its "
            "failure is not evidence of protection.",
        )
    return None


def _unearned(controls: ControlResults, evidence: Evidence) -> Verdict | None:
    """Conclude that a failure on the case itself does not count."""
    searched, messages = evidence.searched, evidence.messages
    if evidence.outdone:
        return Verdict(
            UNDECIDED,
            "outdone",
            f"The attack reconstructed nothing, but not knowing of the defence it got further ({evidence.outdone}): it "
            "makes poor use of what it knows, and its failure means nothing.",
        )
    for name, (cause, shown) in _TO_SHOW.items():
        step: ControlResult = getattr(controls, name)
        if not step.passed:
            why = step.failure_reason or step.reason or f"{step.psnr or 0:.1f} dB"
            return Verdict(UNDECIDED, cause, f"It was not shown that {shown} ({why}): its failure means nothing.")
    if searched and 2 * searched.unconverged > searched.total:
        at_truth, at_result = _apart(searched.truth, searched.found)
        return Verdict(
            UNDECIDED,
            "search",
            f"The search ended short in {searched.unconverged} of {searched.total} messages: the true data explain "
            f"these better (median of its objective {at_truth}) than its results do ({at_result}; a random guess has "
            f"{searched.random:.3g}). A longer or better search is needed.",
        )
    if evidence.noise:
        return Verdict(
            UNDECIDED,
            "noise",
            "The attack took the defence's randomness for normal noise, independent in each entry and message. It is "
            f"not: {evidence.noise}. Somebody who knows its law may take it off, as by an adaptation written for it.",
        )
    if messages < MESSAGES:
        return Verdict(
            UNDECIDED,
            "few",
            f"Nothing was reconstructed from {messages} independent messages, but at least {MESSAGES} are needed: "
            f"{most_missed(max(1, messages)):.0%} of such messages could leak and none of these be seen to.",
        )
    return None


def _nothing_found(evidence: Evidence) -> Verdict:
    test = evidence.candidate_test
    held = "Candidates were compared with its results, not with the message itself, which may tell more."
    if test:
        held = (
            f"Other data of the same clients and classes were held against {test.compared} messages: the true data "
            f"explain {test.count} of them best (p = {test.p:.2g}, no finding among {evidence.num_tests} tests)."
        )
    return Verdict(
        NO_LEAK_FOUND,
        "nothing",
        "The attack reconstructs the same clients' data without the defence and through its weakest form. It knew all "
        "that stands between the data and what was sent, but no seed of random draws, and reconstructed nothing within "
        "its budget. Up to "
        f"{most_missed(evidence.messages):.0%} of such messages could leak to this attack and none have been seen to. "
        f"{held}",
    )


def _apart(one: float, other: float) -> tuple[str, str]:
    """Print two values with as many digits, 3 to 9, as tell them apart."""
    pairs = [(f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(3, 10)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])
