"""Verdicts: pure functions from the results of an attack to one of five words and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

CONTROL_DB = 40.0
EASY_SHARE = 0.5
FAILED_SHARE = 0.5


@dataclass(frozen=True)
class Rung:
    """Result of a rung of the ladder below an audit.

    Attributes:
        rung: ``control`` or ``easy``.
        psnr: mean over the probes in dB.
        passed: the control found every example (at least 40 dB); the attack recovered half of the easy ones.
        seconds: run time of the attack.
        stopped: why the attack gave no result; None if it gave one.
    """

    rung: str
    psnr: float
    passed: bool
    seconds: float = 0.0
    stopped: str | None = None


def verdict(
    control: Rung,
    easy: Rung,
    share_recovered: float,
    adaptive: bool,
    share_failed: float = 0.0,
    size: str = "",
    outdone: str = "",
) -> tuple[str, str]:
    """Return the verdict and its reason.

    Args:
        control: the closed form on softmax regression.
        easy: the same attack on the same network and data, fresh, undefended, wholly shared.
        share_recovered: share of the target probes that were recovered, in [0, 1].
        adaptive: whether the attack knew every operation between the data and the sent tensors.
        share_failed: share of the target probes without any result, in [0, 1].
        size: size of the target in words, where it is larger than the easy rung's one example and one step.
        outdone: in words, by how much the same attack got further without knowing the defence, if it did.

    >>> passed = Rung("control", 150.0, True)
    >>> verdict(passed, Rung("easy", 9.0, False), 0.0, True)[0]
    'inconclusive'
    """
    if not control.passed:
        return "attack broken", (
            f"The closed form found its examples at {control.psnr:.1f} dB where it must reach {CONTROL_DB:.0f}: "
            "the measurement is faulty, and this says nothing about the method."
        )
    if share_recovered > 0:
        return "leaks", f"{share_recovered:.0%} of the attacked examples were reconstructed."
    if not easy.passed:
        if easy.stopped:
            return "inconclusive", (
                f"The attack gave nothing on the undefended network with fresh weights ({easy.stopped}), so that its "
                "failure means nothing."
            )
        return "inconclusive", (
            f"The attack does not even work on the undefended network with fresh weights ({easy.psnr:.1f} dB on "
            "average): a stronger attack or a larger budget is needed before its failure means anything."
        )
    if share_failed >= FAILED_SHARE:
        return "inconclusive", f"The attack gave no result for {share_failed:.0%} of the attacked examples."
    if not adaptive:
        return "static only", (
            "The attack did not know, or made no use of, all that stands between the data and what was sent: its "
            "failure is not evidence of protection."
        )
    if outdone:
        return "inconclusive", (
            f"The attack reconstructed nothing, but not knowing of the defence it got further ({outdone}): it makes "
            "poor use of what it knows, and its failure means nothing."
        )
    larger = f" That was with one example and one step; here it had {size}." if size else ""
    return "no leak found", (
        "The attack works on the undefended network, knew all that stands between the data and what was sent, and "
        f"reconstructed nothing within its budget.{larger}"
    )
