"""List of what a run's results rest on, to be cited: ``python -m flfw.comparisons.figures.cite runs/NAME``.

A plug-in's card names its paper; a run's `result.json` names its plug-ins and its data.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flfw
from flfw import data, plugins
from flfw.adversary.attack import AttackPlugin
from flfw.files.exit_code import exit_code
from flfw.files.result_file import read_result
from flfw.task.defence import Defence
from flfw.task.method import Method

_PAPER = re.compile(r"^Paper[^\S\n]+(.*(?:\n[^\S\n]+.*)*)", re.MULTILINE)


def citations(config: Mapping[str, Any]) -> list[str]:
    """Return a line for this project, and one for each plug-in and the data of a run, each with its source.

    Args:
        config: of the run, as in ``result.json``.

    Raises:
        InputError: a plug-in of the run does not exist here.
    """
    lines = [f"flfw {flfw.__version__}: the file CITATION.cff, or docs/citing.md"]
    for kind, name, base in _used(config):
        lines.append(f"{kind.noun} {name}: {paper(inspect.getmodule(plugins.load_class(kind, name, base)))}")
    dataset = str(config["dataset"])
    users = dataset.partition(":")[0] not in data.names()
    return [*lines, f"data set {dataset}: {'your own' if users else data.describe(dataset).source}"]


def paper(module: object) -> str:
    """Return the paper that the card of a plug-in's module names, as one line.

    >>> from flfw import errors
    >>> paper(errors)
    'its card names no paper'
    """
    named = _PAPER.search(inspect.getdoc(module) or "")
    return " ".join(named[1].split()) if named else "its card names no paper"


def _used(config: Mapping[str, Any]) -> Iterator[tuple[plugins.PluginKind, str, type]]:
    yield plugins.METHOD, str(config["method"]), Method
    defence = str(config.get("defence") or "none")
    yield from ((plugins.DEFENCE, name, Defence) for name in defence.split("+") if name != "none")
    attacks = [name for name in config.get("attack") or [] if name not in ("none", "auto")]
    attacks += [config["malicious_server"]] if config.get("malicious_server") else []
    yield from ((plugins.ATTACK, name, AttackPlugin) for name in dict.fromkeys(attacks))


def main(arguments: list[str]) -> int:
    """Print the citations of a finished run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flfw.comparisons.figures.cite", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="folder of a finished run")
    folder = parser.parse_args(arguments).folder
    return exit_code(parser.prog, lambda: print(*citations(read_result(folder)["config"]), sep="\n") or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
