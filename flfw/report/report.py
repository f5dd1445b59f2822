"""The report of a run: one HTML file that answers "how much does this leak" and shows the pictures behind the answer.

It reads only the output of a run (`result.json`, `audit.csv` and the tensors that these name) and computes no score of
its own, so the page cannot differ from the machine-readable results. The words of the page are in `template/`,
its figures in `charts.py`.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template

from flfw import data
from flfw.data.tables import plan_file
from flfw.errors import InputError
from flfw.files import outcomes
from flfw.files.result_file import read_result
from flfw.files.sealed import write_atomic
from flfw.report import page_data, ranking
from flfw.report.causes import because, of_search, plainly
from flfw.report.findings import LEGEND, number, read_settings
from flfw.report.formats import (
    above,
    below,
    capital,
    command,
    decimals,
    digits,
    flags,
    percent,
    percent_above,
    plain,
    sentence,
)
from flfw.report.questions import compared, decisive, membership_first, questions, rounds_read, seen_by
from flfw.report.recommendations import UNASKED, opinion_facts, recommendations, untested
from flfw.report.run_verdict import decision
from flfw.report.template import page_template

_PASSING = ("queue", "training.json", "tidying.json")  # of a run that is not tidied yet
# A user's own data: only the user decides that pictures of them leave the machine.
_OWN_DATA = ("csv:", "folder:", "hf:", "parquet:", "text:")


def write_report(folder: Path, pictures: bool | None = None) -> Path:
    """Read a finished run's folder and write its `report.html`: one file that loads nothing from elsewhere.

    Args:
        folder: the run's folder.
        pictures: whether samples are shown; None leaves it to the run's configuration, where ``auto`` shows none
            of a user's own data.

    Returns:
        The file's path.

    Raises:
        InputError: the folder holds no ``result.json``, or a damaged one.
    """
    written = folder / "report.html"
    write_atomic(written, render(folder, pictures))
    return written


def render(folder: Path, pictures: bool | None = None) -> bytes:
    """Return the report of a finished run's folder as `write_report` writes it; nothing is written.

    Raises:
        InputError: the folder holds no ``result.json``, or a damaged one.
    """
    from flfw.report import charts  # matplotlib takes long to load: whoever writes no report does without

    if not (folder / "result.json").is_file():
        raise InputError(f"{folder} holds no result.json: a report is written from a finished run.")
    result = read_result(folder)
    config = result.get("config") or {}
    absence = "this copy was asked for without them" if pictures is False else why_no_pictures(config)
    if pictures:
        absence = ""
    settings = read_settings(folder, result.get("audit") or [], pictures=not absence)
    worst, elsewhere = ranking.answers(settings)
    targets = ranking.together([setting for setting in settings if not setting.entry["curve"]] or settings)
    failures = page_data.read_failures(folder, result.get("recordings"), settings)
    rounds = result.get("rounds") or []
    regression = page_data.is_regression(result)
    membership, schema = membership_first(result.get("membership") or []), plan_file.kept(folder)
    requested = page_data.scope(settings, "samples" if schema is None else "records")
    page = _template().render(
        result=result,
        config=config,
        dataset=data.title(str(config.get("dataset"))),
        rounds=rounds,
        settings=settings,
        targets=targets,
        gallery=ranking.together(ranking.worst_first(settings)),
        groups=ranking.group_by_grant(targets),
        pairs=ranking.side_by_side(targets),
        beside_uploads=ranking.probes_beside_uploads(targets),
        attributes=page_data.attribute_tables(targets),
        twins=ranking.twins(settings),
        aside=ranking.set_aside(targets),
        scope=requested,
        membership=membership,
        told=decisive(membership),
        questions=questions(settings, membership, requested.unit, result.get("secure_aggregation")),
        decided=decision(settings, membership, result, requested.unit),
        asks=recommendations(settings, membership, result, requested),
        untested=untested(settings, membership, result, requested),
        opinion=opinion_facts(settings, membership, result.get("inference") or [], requested.unit),
        unasked=UNASKED,
        **page_data.grants(worst),
        worst=worst,
        elsewhere=elsewhere,
        absence=absence,
        plan=schema,
        regression=regression,
        legend=LEGEND,
        failures=failures,
        failed=page_data.first_screen(failures),
        overview=charts.overview(rounds, regression, targets, worst),
        curves=charts.curves_of(settings),
        training=charts.training(rounds, regression),
        files=files_of(folder),
    )
    return page.removesuffix("\n").encode(errors="backslashreplace")  # half a surrogate pair, in a damaged result.json


@cache
def _template() -> Template:
    functions = (above, because, below, capital, command, compared, digits, flags, number, of_search, plain, plainly)
    functions += (rounds_read, seen_by, sentence, page_data.caveats, page_data.most_missed, page_data.who)
    filters = {"above_pct": percent_above, "num": decimals, "pct": percent, "verdict": outcomes.in_words}
    filters |= {function.__name__: function for function in functions}
    return page_template(Path(__file__).with_name("template") / "page.html.md", **filters)


def why_no_pictures(config: Mapping[str, Any]) -> str:
    """Return in words why the page shows no sample; an empty string if it shows them."""
    requested = config.get("show_samples") or "auto"
    if requested == "no":
        return "the run was asked for without them"
    local = str(config.get("dataset")).startswith(_OWN_DATA)
    return "the data are your own" if local and requested != "yes" else ""


def files_of(folder: Path) -> list[tuple[str, int, int]]:
    """List the contents of the run folder: name, number of files and bytes; the report itself is left out."""
    listed = []
    for path in sorted(path for path in folder.iterdir() if path.name not in _PASSING):
        inside = [part for part in (path.rglob("*") if path.is_dir() else [path]) if part.is_file()]
        if not path.name.startswith((".", "report.html")):
            listed.append((path.name + "/" * path.is_dir(), len(inside), sum(part.stat().st_size for part in inside)))
    return listed
