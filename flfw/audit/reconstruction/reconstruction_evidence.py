"""Evidence of attacks that reconstruct, and the findings in it: of single messages, and of sums over clients.

A reconstruction is evidence by itself. A failure is evidence only if the same attack succeeds on the case itself, where
nothing hides the data, and through the same defence where it is weak. `ControlResults` holds these easier cases. What
counts as recovered is in `flfw.audit.measures.recovery`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, final

from flfw.audit.measures.identification import Identified
from flfw.audit.measures.statistics import most_missed, significant
from flfw.audit.verdict import MESSAGES, Findings
from flfw.files.outcomes import Cause

_TO_SHOW: Mapping[str, tuple[Cause, str]] = {
    "consistency": ("consistency", "the attacker's model of the client explains the message"),
    "weak_defence": ("weak_defence", "the attack works through this defence where it is weak"),
    "undefended": ("undefended_control", "the attack works on this case without the defence"),
}
"""Controls that a failure must pass to count, with the cause where one does not, and what it shows."""

_UNEXPLAINED = "The description does not explain the message, so that a better one may lead to more."
CONTROL_DB = 40.0
EASY_SHARE = 0.5
FAILED_SHARE = 0.5
MIN_SUM_CLIENTS = 10
"""Least number of clients in a sum for ``no leak found``, those that work together with the attacker not counted."""


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


@final
@dataclass(frozen=True)
class SumFacts:
    """Facts of a sum that an attacker sees.

    A sum hides single clients' data behind the other clients'. That an attack fails on it counts only if the same
    attack works on groups of one client in the same audit, and only for groups of `MIN_SUM_CLIENTS` clients or more.

    Attributes:
        group: number of clients in the sum.
        colluding: clients among them whose own messages the attacker knows.
        alone: share recovered by the same attack where one client is left; None: this was not attacked.
        untried: in words, the kinds of attacks that were not run in the same audit.
        peer: whether another client sees it, so that the own parts of those that collude are taken off already.
        lost: whether the rounding of the model may be as large as all that a peer has left.
        hidden_alone: whether the same attack, told of what hides a message, found no leak where one client is left.
    """

    group: int
    colluding: int = 0
    alone: float | None = None
    untried: tuple[str, ...] = ()
    peer: bool = False
    lost: bool = False
    hidden_alone: bool = False

    @property
    def left(self) -> int:
        """Number of clients that hide one another."""
        return self.group - self.colluding

    def exposed(self, defended: bool) -> Findings:
        """Yield what a sum shows, or hides, whatever an attack reached in it.

        Args:
            defended: whether more than the sum hides the messages.
        """
        if self.peer and self.left == 1 and not self.lost and not defended:
            members = (
                f"{self.group} clients, of which {self.colluding} {'works' if self.colluding == 1 else 'work'} with it"
            )
            yield (
                "peer",
                f"In a round of {members}, a client takes the own part off and has the other client's update, but for "
                "the rounding of the model. That this attack reconstructs nothing from it protects nobody.",
            )
        if self.group > 1 and self.hidden_alone:
            yield (
                "nothing",
                "Where one client is left, the same attack, told of all that hides its message, found no leak. A sum "
                f"of {self.group} shows no more than its messages, each hidden by itself, if clients draw their noise "
                "independently.",
            )

    def findings(self, described: bool, short: bool, sums: int) -> Findings:
        """Yield what decides where nothing came out of undefended sums.

        Args:
            described: whether the attacker's model, at the true data, gives the sums.
            short: whether the search ended short in most of the sums.
            sums: number of independent sums.
        """
        size, alone, first = self.group, self.alone, f"sum_size={1 + self.colluding * self.peer}"
        if self.lost:
            why = "The rounding of the model may be as large as all that is left of the sums, or no sum was seen"
            yield "rounding", f"{why}: nothing was reconstructed, and larger steps may leave more."
        if size == 1:
            yield "undefended", "A sum over one client is its own message, which nothing hides."
        if alone is None:
            why = f"Sums with one client left were not attacked (`--curve {first}`)"
            yield "alone", f"{why}: it was not shown that the attack works without the sum."
        elif alone < EASY_SHARE:
            why = f"The attack reconstructs {alone:.0%} of the examples at {first}, where one client is left"
            yield "alone", f"{why}: too few for its failure on sums to mean anything."
        if not described:
            why = "It was not shown that the attacker's model of the clients explains the sums"
            yield "consistency", f"{why}: its failure means nothing."
        if short:
            why = "The search ended short in most sums: the true data explain them better than its results do"
            yield "search", f"{why}. A longer or better search is needed."
        nothing = f"Nothing was reconstructed from sums over {size} clients"
        if self.left < MIN_SUM_CLIENTS:
            beside = (
                f", of which {self.colluding} may work with the attacker (--expert colluding_clients): "
                f"{self.left} are left"
            ) * bool(self.colluding)
            needed = f"At least {MIN_SUM_CLIENTS} are needed: a stronger attack may separate so few."
            yield "group", f"{nothing}{beside}. {needed}"
        if sums < MESSAGES:
            why = f"Nothing was reconstructed from {sums} sums, but at least {MESSAGES} are needed"
            yield "few", f"{why}: up to {most_missed(max(1, sums)):.0%} of them could leak unseen."
        if self.untried:
            ran = " and ".join(f"no {kind}" for kind in self.untried)
            yield "untried", f"{nothing}, but this audit ran {ran}, which may find more in them."
        yield (
            "nothing",
            f"The attack reconstructs {alone or 0:.0%} of the examples where one client is left ({first}), and nothing "
            f"from sums over {size}. Up to {most_missed(sums):.0%} of such sums could leak to this attack and none "
            "have been seen to. It says nothing about a server that changes the network, or that sends clients "
            "different ones.",
        )


@final
@dataclass(frozen=True)
class ReconstructionEvidence:
    """Evidence of an attack on its targets: the controls, the facts of the targets and the attack's results.

    Attributes:
        controls: easier cases below.
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
        identified: identification among look-alikes by the attack's results; None: nothing was compared.
        static_identified: for an attack that adapts to a defence, identification by its static form on the same images.
        candidate_test: messages that their true data explain better than candidates do; None: no candidates were held
            against them.
        candidates: the candidates in words.
        num_tests: number of these tests in the run.
        searched: values of the objective, where the attack has one.
        noise: in words, what tells a defence's randomness from the noise that the attack took it for; empty: nothing.
        constant: number of messages, where those to clients with equal weights are the same for different data; 0: some
            differ.
        sums: facts of the sums; None: single messages were attacked.
        columns: of a table, for each column how often it was recovered, and by guessing.
        expected: share of the examples that the attack's theory expects to be found; None: there is none for the case.
        bounded: whether no result can be nearer to the truth than the rows' ceiling.
        tampered_by: the attack whose malicious server changed the network; empty: the server followed the protocol.
        unread: in words, statistics of their data that clients send and that no attack reads; empty: there are none.
    """

    controls: ControlResults
    recovered: int = 0
    attacked: int = 0
    messages: int = 0
    failed: float = 0.0
    adaptive: bool = False
    private: bool = False
    defended: bool = False
    size: str = ""
    outdone: str = ""
    chance_match: int = 0
    identified: Identified | None = None
    static_identified: Identified | None = None
    candidate_test: Identified | None = None
    candidates: str = "any other data of the same client and classes"
    num_tests: int = 1
    searched: Searched | None = None
    noise: str = ""
    constant: int = 0
    sums: SumFacts | None = None
    columns: Sequence[Mapping[str, float | None]] | None = None
    expected: float | None = None
    bounded: bool = True
    tampered_by: str = ""
    unread: str = ""

    def findings(self) -> Findings:
        """Yield what decides the verdict, the first first.

        >>> controls = ControlResults(ControlResult(150.0, True), ControlResult(9.0, False))
        >>> next(ReconstructionEvidence(controls, 0, 8, 8, adaptive=True, defended=True).findings())[0]
        'easy'
        """
        yield from self._broken_measurement()  # undecided
        yield from self._positive()  # leaks
        yield from self._constant()  # no leak found
        yield from self._invalid()  # undecided: the message is not what its description says
        yield from self.sums.exposed(self.defended) if self.sums else ()  # leaks, or no leak found
        yield from self._too_weak()  # undecided: the attack fails on an easy case
        yield from self._undefended()  # undecided but for sums
        yield from self._controls_failed()  # undecided: nothing shows that it would work in this case
        yield from self._nothing_found()  # no leak found

    def _broken_measurement(self) -> Findings:
        analytic = self.controls.analytic
        if not analytic.passed:
            reached = "nothing" if analytic.psnr is None else f"{analytic.psnr:.1f} dB"
            yield (
                "analytic",
                f"The closed form found its examples at {reached} where it must reach {CONTROL_DB:.0f}: the "
                "measurement is faulty, and this says nothing about the method.",
            )

    def _positive(self) -> Findings:
        """Conclude from reconstruction or identification; this needs only a sound measurement."""
        identified, test, consistency = self.identified, self.candidate_test, self.controls.consistency
        if self.recovered:
            beside = f" {_UNEXPLAINED} {consistency.reason}".rstrip() * (consistency.passed is False)
            yield "recovered", f"{self.recovered} of {self.attacked} attacked examples were reconstructed.{beside}"
        if identified and significant(identified.p, self.num_tests):
            yield (
                "identified",
                f"Nothing was reconstructed, but {identified.count} of {identified.compared} results point to the true "
                f"one among look-alikes of its class; guesses that saw nothing do so in {identified.chance or 0:.1%} "
                f"(p = {identified.p:.1g}, one of {self.num_tests} tests).",
            )
        if test and significant(test.p, self.num_tests):
            yield (
                "candidates",
                f"Nothing was reconstructed, but {test.count} of {test.compared} messages are explained better by "
                f"their true data than by {self.candidates} (by chance {test.chance or 0:.1%}; p = {test.p:.1g}, one "
                f"of {self.num_tests} tests). Who holds a client's records can tell which were used without a search.",
            )

    def _constant(self) -> Findings:
        """Conclude that nothing leaks from messages that are the same to the byte, whatever the data."""
        if self.constant >= MESSAGES:
            yield (
                "constant",
                f"Each of {self.constant} messages is the same to the byte as those of other data at the same weights, "
                f"so that no attack reads data off it. Up to {most_missed(self.constant):.0%} of such messages could "
                "differ and none be seen. It says nothing of later rounds, nor of metrics that clients report.",
            )

    def _invalid(self) -> Findings:
        if self.controls.consistency.passed is False:
            yield (
                "description",
                f"The description does not explain the message. {self.controls.consistency.reason} What was attacked "
                "is not what the audit takes it for, and this says nothing about the method.",
            )

    def _too_weak(self) -> Findings:
        """Conclude that the attack is too weak, gave no result or luck's, or makes too little use of its knowledge."""
        easy = self.controls.easy
        if self.chance_match:
            yield (
                "chance",
                f"{self.chance_match} of {self.attacked} examples are as close as reconstructed ones. But the results "
                "for other messages fit them as well as chance allows: these data are too much alike, or too few, to "
                "tell a reconstruction from a lucky guess.",
            )
        if easy.failure_reason and not easy.passed:
            yield (
                "easy",
                f"The attack gave nothing on the undefended network with fresh weights ({easy.failure_reason}), so "
                "that its failure means nothing.",
            )
        if not easy.passed:
            yield (
                "easy",
                "The attack does not even work on the undefended network with fresh weights "
                f"({easy.psnr or 0:.1f} dB on average): a stronger attack or a larger budget is needed before its "
                "failure means anything.",
            )
        if self.failed >= FAILED_SHARE:
            yield "failures", f"The attack gave no result for {self.failed:.0%} of the attacked examples."
        if not self.adaptive and (self.private or self.defended):
            yield (
                "static",
                "The attack did not know, or made no use of, all that stands between the data and what was sent: its "
                "failure is not evidence of protection.",
            )

    @property
    def _short(self) -> bool:
        """True if the search ended short in most of the messages."""
        return self.searched is not None and 2 * self.searched.unconverged > self.searched.total

    def _undefended(self) -> Findings:
        if self.defended:
            return
        if self.sums:
            yield from self.sums.findings(bool(self.controls.consistency.passed), self._short, self.messages)
        larger = f", here with {self.size}" if self.size else ""
        yield (
            "undefended",
            f"No defence hides the data in what was sent{larger}: the attack is too weak for this case, and its "
            "failure is not evidence of protection.",
        )

    def _controls_failed(self) -> Findings:
        """Conclude that a failure on the case itself does not count."""
        searched, messages = self.searched, self.messages
        if self.outdone:
            yield (
                "outdone",
                "The attack reconstructed nothing, but not knowing of the defence it got further "
                f"({self.outdone}): it makes poor use of what it knows, and its failure means nothing.",
            )
        for name, (cause, shown) in _TO_SHOW.items():
            step: ControlResult = getattr(self.controls, name)
            if not step.passed:
                why = step.failure_reason or step.reason or f"{step.psnr or 0:.1f} dB"
                yield cause, f"It was not shown that {shown} ({why}): its failure means nothing."
        if searched and self._short:
            at_truth, at_result = _apart(searched.truth, searched.found)
            yield (
                "search",
                f"The search ended short in {searched.unconverged} of {searched.total} messages: the true data explain "
                f"these better (median of its objective {at_truth}) than its results do ({at_result}; a random guess "
                f"has {searched.random:.3g}). A longer or better search is needed.",
            )
        if self.noise:
            yield (
                "noise",
                "The attack took the defence's randomness for normal noise, independent in each entry and message. It "
                f"is not: {self.noise}. Somebody who knows its law may take it off, as by an adaptation written for "
                "it.",
            )
        if messages < MESSAGES:
            yield (
                "few",
                f"Nothing was reconstructed from {messages} independent messages, but at least {MESSAGES} are needed: "
                f"{most_missed(max(1, messages)):.0%} of such messages could leak and none of these be seen to.",
            )

        for test, seen in ((self.identified, "results"), (self.candidate_test, "messages")):
            if test and significant(test.p, 1):
                yield (
                    "few",
                    f"Nothing was reconstructed, but {test.count} of {test.compared} {seen} point to the true data "
                    f"(p = {test.p:.1g}). Alone this would be a leak; as one of {self.num_tests} tests it may be "
                    "chance. Twice as many messages decide.",
                )

    def _nothing_found(self) -> Findings:
        test = self.candidate_test
        held = "Candidates were compared with its results, not with the message itself, which may tell more."
        if test:
            held = (
                f"The true data explain {test.count} of {test.compared} messages better than {self.candidates} (p = "
                f"{test.p:.2g}, no finding among {self.num_tests} tests)."
            )
        yield (
            "nothing",
            "The attack reconstructs the same clients' data without the defence and through its weakest form. It knew "
            "all that stands between the data and what was sent, but no seed of random draws, and reconstructed "
            f"nothing within its budget. Up to {most_missed(self.messages):.0%} of such messages could leak to this "
            f"attack and none have been seen to. {held}",
        )


def _apart(one: float, other: float) -> tuple[str, str]:
    """Print two values with as many digits, 3 to 9, as tell them apart."""
    pairs = [(f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(3, 10)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])
