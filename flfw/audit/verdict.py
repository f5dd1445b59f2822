"""What may be concluded: pure functions from what happened to one of five words and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

CONTROL_DB = 40.0
EASY_SHARE = 0.5
FAILED_SHARE = 0.5


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder below an audit.

    Attributes:
        rung: ``control`` or ``easy``.
        psnr: mean over the probes in dB.
        passed: the control found every example (at least 40 dB); the attack recovered half of the easy ones.
        seconds: that the attack took.
    """

    rung: str
    psnr: float
    passed: bool
    seconds: float = 0.0


def verdict(
    control: Rung, easy: Rung, share_recovered: float, adaptive: bool, share_failed: float = 0.0
) -> tuple[str, str]:
    """The verdict and its reason.

    Args:
        control: the closed form on softmax regression.
        easy: the same attack on the same network and data, fresh, undefended, wholly shared.
        share_recovered: of the target probes, in [0, 1].
        adaptive: whether the attack knew all that stands between the data and what was sent.
        share_failed: of the target probes, those for which the attack gave no result at all.

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
        reached = f"{easy.psnr:.1f} dB on average" if easy.psnr else "it gave nothing there"
        return "inconclusive", (
            f"The attack does not even work on the undefended network with fresh weights ({reached}): "
            "a stronger attack or a larger budget is needed before its failure means anything."
        )
    if share_failed >= FAILED_SHARE:
        return "inconclusive", f"The attack gave no result for {share_failed:.0%} of the attacked examples."
    if not adaptive:
        return "static only", (
            "No attack that makes use of what it knows of the method or defence has run: this is not evidence of "
            "protection."
        )
    return "no leak found", (
        "The attack works on the undefended network, knew all that stands between the data and what was sent, and "
        "reconstructed nothing within its budget."
    )
