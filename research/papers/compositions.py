"""Composition theorems beside accountants, for Fed-CDP's steps: ``python -m research.papers.compositions``.

It prints a Markdown table of the epsilons of the same noisy steps. The defaults are Fed-CDP's on MNIST: sigma 6,
q = 0.01, T L = 10,000 steps, delta 1e-5. Like the paper's own count, it takes q for granted and counts one clipped
group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from flfw.errors import require
from flfw.files.exit_code import exit_code
from flfw.files.parser import Parser
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.compositions import advanced, basic, concentrated, optimal
from flfw.privacy.mechanism import GaussianEvent

_MOST = 10**9

BOUNDS: dict[str, Callable[[GaussianEvent, float], float]] = {
    "basic composition": basic,
    "advanced composition": advanced,
    "optimal composition": optimal,
    "zCDP, no credit for sampling": concentrated,
    "moments accountant": lambda part, delta: compute_epsilon([part], delta, "moments").epsilon,
    "PRV accountant": lambda part, delta: compute_epsilon([part], delta, "prv").epsilon,
}
"""Bounds by their names in the table; each takes the steps and delta."""


def compared(parts: Sequence[GaussianEvent], delta: float) -> dict[str, list[float]]:
    """Compute the epsilon of each phase alone by each of the `BOUNDS`.

    Args:
        parts: at least one phase.
        delta: in (0, 1).

    Raises:
        InputError: a value out of range, or Opacus is not installed.
    """
    require(len(parts) >= 1, "at least one phase", phases=len(parts))
    return {name: [bound(part, delta) for part in parts] for name, bound in BOUNDS.items()}


def table(parts: Sequence[GaussianEvent], delta: float) -> str:
    """Format the comparison in Markdown, a column for each phase; epsilons are rounded to four digits.

    Args:
        parts: as for `compared`.
        delta: as for `compared`.
    """
    rows = [["bound", *(f"{part.steps:,} steps" for part in parts)], ["---"] * (1 + len(parts))]
    rows += [[name, *(f"{value:.4g}" for value in values)] for name, values in compared(parts, delta).items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: list[str]) -> int:
    """Run the command; return 0, or 2 if a value is out of range."""
    return exit_code("compositions", lambda: _do(arguments))


def _do(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m research.papers.compositions", description="Compare bounds on the privacy spent by noisy steps."
    )
    parser.add_argument("--sigma", type=float, default=6.0, help="noise multiplier, >= 0")
    parser.add_argument("--rate", type=float, default=0.01, help="q, probability to be drawn in a step, in (0, 1]")
    parser.add_argument("--steps", type=int, nargs="+", default=[10_000], help="one column for each number")
    parser.add_argument("--delta", type=float, default=1e-5, help="of all steps together, in (0, 1)")
    args = parser.parse_args(arguments)
    require(max(args.steps) <= _MOST, f"steps <= {_MOST:,}", steps=max(args.steps))
    print(table([GaussianEvent(args.sigma, args.rate, steps) for steps in args.steps], args.delta))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
