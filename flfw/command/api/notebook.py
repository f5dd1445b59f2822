"""Verdicts of a result in a word for each question, and its views in a notebook: a summary, and the framed report."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flfw.command.api.summary import summary
from flfw.errors import InputError
from flfw.files import outcomes
from flfw.report.findings import AuditEntry, Sample, read_settings
from flfw.report.questions import decisive
from flfw.report.ranking import answers, seriousness
from flfw.report.report import why_no_pictures


def conclusions(folder: Path, result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the entries with the verdicts on reconstruction, membership and inference, of those that were asked.

    That on reconstruction is the headline's or, where a point of a curve leaks more, that point's.

    Args:
        folder: the run's folder, with ``audit.csv``.
        result: content of result.json.
    """
    settings = read_settings(folder, result.get("audit") or [], pictures=False)
    reached = [setting.entry for setting in answers(settings) if setting is not None]
    statistic = decisive(result.get("membership") or [])
    requested = {
        "reconstruction": reached,
        "membership": [statistic] if statistic else [],
        "inference": result.get("inference") or [],
    }
    return {
        question: min(entries, key=lambda one: seriousness(outcomes.outcome(one)))
        for question, entries in requested.items()
        if entries
    }


_MOST_PICTURES = 6
_LINES = Markup("<style>.flfw-strips .line { font-family: monospace; white-space: break-spaces; }</style>")
"""Style of texts, whose own is in the report."""
_PICTURE = 'style="height:64px;image-rendering:pixelated;margin:2px"'


def html(folder: Path, result: Mapping[str, Any]) -> str:
    """Return a summary: the worst attack's pictures, if any are shown, the verdicts, and the lines of the command line.

    Pictures are those that the report may show: none of a user's own data unless it was asked for them.

    Args:
        folder: the run's folder.
        result: content of result.json.
    """
    concluded = conclusions(folder, result).items()
    words = "; ".join(f"{question}: {outcomes.in_words(entry)}" for question, entry in concluded) or "not audited"
    shown = [_pictures(worst.samples)] if (worst := _worst(folder, result)) is not None else []
    shown += [Markup("<p><strong>{}</strong></p>").format(words)]
    shown += [Markup("<p style='margin:0'>{}</p>").format(line) for line in summary(folder).splitlines()]
    return str(Markup("<div>{}</div>").format(Markup("").join(shown)))


def show(folder: Path, height: int) -> None:
    """Show a run's report in a frame of the notebook; in a terminal, print the path of the report.

    Args:
        folder: the run's folder.
        height: of the frame, in pixels.

    Raises:
        InputError: there is no report.
    """
    report = folder / "report.html"
    if not report.is_file():
        raise InputError(f"Expected {report}, got none; restore it, or run anew.")
    if not _in_notebook():
        print(report)
        return
    from IPython.display import HTML, display

    frame = Markup('<div><iframe srcdoc="{}" width="100%" height="{}" style="border:1px solid #ccc"></iframe></div>')
    display(HTML(str(frame.format(report.read_text(encoding="utf-8"), height))))


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def _worst(folder: Path, result: Mapping[str, Any]) -> AuditEntry | None:
    """Return the attack of the report's headline with its pictures, where these may be shown."""
    shown = not why_no_pictures(result.get("config") or {})
    return answers(read_settings(folder, result.get("audit") or [], pictures=shown))[0]


def _pictures(samples: Iterable[Sample]) -> Markup:
    """Return the worst samples, each original with its reconstruction."""
    shown = [sample for sample in samples if sample.reconstruction or sample.strip][:_MOST_PICTURES]
    if not shown:
        return Markup()
    cells, style = Markup("").join(map(_cell, shown)), _LINES if shown[0].is_text else ""
    page = "{}<p style='margin:0'>{}:</p><div class='flfw-strips' style='display:flex;flex-wrap:wrap'>{}</div>"
    return Markup(page).format(style, _legend(shown[0]), cells)


def _legend(sample: Sample) -> str:
    """Return the words above samples, which tell the originals from the reconstructions."""
    made = "what the attack made of the messages"
    if sample.strip and "<svg" in sample.strip:
        return f"Rings are the original records, dots {made}"
    if sample.strip and not sample.is_text:
        return f"Original rows, and beside them {made}"
    return f"Originals, and below them {made}"


def _cell(sample: Sample) -> Markup:
    if sample.strip:
        return Markup("<div style='margin:4px'>{}</div>").format(sample.strip)
    score = sample.scores.get("psnr")
    images = [
        Markup("<img alt='{}' src='{}' {}><br>").format(name, source, Markup(_PICTURE))
        for name, source in (("original", sample.original), ("reconstruction", sample.reconstruction))
        if source
    ]
    word = "recognisable" if sample.recovered else "not recovered"
    words = Markup("<b>{}</b><br>{:.1f} dB").format(word, score) if score is not None else Markup()
    return Markup("<div style='text-align:center'>{}{}</div>").format(Markup("").join(images), words)
