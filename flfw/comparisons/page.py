"""Page of a matrix; its sentences are in the Jinja template beside it."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from flfw import data
from flfw.comparisons.findings import Combination, Comparison
from flfw.comparisons.significance import CombinationRanking, listed
from flfw.comparisons.utility import Utility, claimed, family, shown
from flfw.files import outcomes
from flfw.report.formats import decimals, percent
from flfw.report.template import page_template


def render(
    record: Mapping[str, Any],
    combinations: Sequence[Combination],
    compared: Sequence[Comparison],
    ranking: CombinationRanking,
) -> str:
    """Render the page: one file that loads no other file and needs no script."""
    by_name = {one.name: one for one in combinations}
    utility, (local, received, *_) = shown(record["combinations"]), family(record["combinations"])
    attacked = sorted((c for c in combinations if c.worst), key=lambda c: c.worst.severity if c.worst else ())
    records = bool(attacked) and all(row.psnr is None for c in attacked for run in c.runs for row in run.rows)
    page = _template().render(
        about=record,
        dataset=data.title(str(record["question"]["experiment"]["dataset"])),
        combinations=combinations,
        most=[by_name[name] for name in ranking.most],
        least=[by_name[name] for name in ranking.least],
        standing={one.combination: one for one in ranking.standings},
        ranking=ranking,
        worst=attacked[-1] if attacked else None,
        recovered=sum(leak.recovered for c in combinations for leak in c.leaks),
        compared=compared,
        records=records,
        ssim=any(leak.ssim is not None for c in combinations for leak in c.leaks),
        identified=any(leak.identified is not None for c in combinations for leak in c.leaks),
        utility=utility,
        local=local,
        received=received,
        heading=f"{utility.name} after" if utility == local else utility.words,
        central=any(cell["acc_central"] is not None and cell["acc_local"] is None for cell in record["cells"]),
        panels=_panels(attacked, utility, records),
        panels_received=_panels(attacked, received, records) if utility == local else "",
    )
    return page.removesuffix("\n")


@cache
def _template() -> Template:
    filters = {"verdict": outcomes.in_words, "num": decimals, "pct": percent, "claimed": claimed, "listed": listed}
    return page_template(Path(__file__).with_name("matrix.html.md"), **filters)


def _panels(attacked: Sequence[Combination], utility: Utility, records: bool) -> Markup:
    """Draw both scatter plots against one utility; a mark shows the attack and round that recovered most.

    A combination without that utility has no mark.
    """
    from flfw.comparisons.picture import PlotMark, Scatter, draw  # matplotlib takes long to load

    share, close = [], []
    for combination in reversed(attacked):  # the worst leak is first, so its name gets the best place
        worst, values = combination.worst, combination.measured(utility.key)
        assert worst is not None, "only what was attacked is drawn"
        if not values:
            continue
        x, across = sum(values) / len(values), (min(values), max(values))
        leaks = outcomes.outcome(worst.concluded) in outcomes.POSITIVE
        share.append(PlotMark(combination.name, x, across, worst.severity[0], worst.share, leaks))
        if worst.psnr:
            low, high = worst.psnr.low, worst.psnr.high
            along = None if low is None or high is None else (low, high)
            close.append(PlotMark(combination.name, x, across, worst.psnr.mean, along, leaks))
    panels = (
        Scatter(f"{'Records' if records else 'Images'} recovered", utility, tuple(share), percent=True),
        Scatter("Closeness, −20 log RMSD, dB" if records else "PSNR, dB", utility, tuple(close), percent=False),
    )
    return Markup("").join(Markup("<div>{}</div>").format(draw(panel)) for panel in panels if panel.marks)
