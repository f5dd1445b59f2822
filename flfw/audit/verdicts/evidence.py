"""Evidence for a verdict: the results of an attack on its targets, and the ladder of easier cases below them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from flfw.audit.measures.identification import Identified

CONTROL_DB = 40.0
EASY_SHARE = 0.5
FAILED_SHARE = 0.5
MESSAGES = 8  # least number of independent messages for "no leak found": they exclude, at 95 %, that 32 % leak


class Verdict(NamedTuple):
    """Verdict of an attack on a target.

    Attributes:
        verdict: ``leaks``, ``identifies``, ``no leak found``, ``static only``, ``inconclusive`` or ``attack broken``.
        cause: what decided it, in one word.
        reason: what decided it, in sentences.
    """

    verdict: str
    cause: str
    reason: str


@dataclass(frozen=True)
class ControlResult:
    """Result of a rung of the ladder below an audit.

    Attributes:
        rung: ``control``, ``easy``, ``consistency``, ``matched`` or ``told``.
        psnr: mean over the probes in dB; None: no example was reconstructed, or this rung has none.
        passed: whether the attack, or the measurement, does here what it must; None: the rung was not climbed.
        seconds: run time of the attack.
        failure_reason: why there is no result; None if there is one.
        reason: the result in words, where numbers alone do not tell it.
    """

    rung: str
    psnr: float | None
    passed: bool | None
    seconds: float = 0.0
    failure_reason: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class ControlResults:
    """Easier cases below an audited case.

    Attributes:
        control: the closed form on softmax regression; it checks the measurement.
        easy: the attack on the same network and data, fresh, undefended, wholly shared, one example, one step.
        consistency: whether the attacker's model of the client, at the true data, gives the recorded message.
        undefended: the attack on the same clients, weights, batch and steps, undefended.
        weak_defence: the adapted attack on the same, behind the same defence in its mildest form.
    """

    analytic: ControlResult
    easy: ControlResult
    consistency: ControlResult = ControlResult("consistency", None, None, failure_reason="it was not checked")
    undefended: ControlResult = ControlResult("undefended", None, None)
    weak_defence: ControlResult = ControlResult("weak_defence", None, None)

    def climbed(self) -> Iterator[dict[str, Any]]:
        """Yield the rungs that have a result, or a reason for having none, as result.json holds them."""
        for field in fields(self):
            control: ControlResult = getattr(self, field.name)
            if control.passed is not None or control.failure_reason:
                yield asdict(control) | {"rung": field.name}


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
        pointed: messages that their true data explain better than candidates do, where it was tested.
        settings: number of these tests in the run.
        searched: values of the objective, where the attack has one.
        assumes: whether the attack took a defence's randomness for independent noise, which the defence does not claim.
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
    pointed: Identified | None = None
    settings: int = 1
    searched: Searched | None = None
    assumes: bool = False
