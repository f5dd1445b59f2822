"""Defences under attackers with and without knowledge of them: docs/attacked_defences.md, printed from a matrix."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flfw.comparisons.rows import read_matrix
from flfw.comparisons.tables import markdown
from flfw.errors import InputError
from flfw.files.sealed import write_atomic

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parents[1] / "docs" / "attacked_defences.md"
DATASETS = ("mnist", "cifar10")
AXES = (
    "methods=fedavg",
    "defences=none,prune,dp_gaussian,ats,soteria,dcs2,precode",
    "attacks=ig,dcs2",
    "seeds=0,1,2",
    f"datasets={','.join(DATASETS)}",
)
FLAGS = """--net lenet --clients 2 --rounds 1 --local-epochs 1 --batch-size 64 --lr 0.01 --split sampled --images 50
--audit-rounds 0 --engine inproc --set sampled.train=64 ig.iterations=500 dcs2.search_iterations=4000 dcs2.stop=never
prune.ratio=0.7 soteria.ratio=0.5 ig.searches=own"""

_OPENING = """# Defences under attack, static and adaptive

Each defence is attacked with 50 images of three seeds on two data sets. An observation is the gradient of one image at
the network's initial weights: an easy case for the attacker.

`ig` is the search for an image whose gradient has the observed direction, in two forms: *static*, not told of the
defence, and told of it, with [that defence's adaptation](adaptations.md). Both forms have the same observations,
images, restarts and 500 iterations. `dcs2` is the [attack on DCS^2](attacks/dcs2.md), which computes features from the
last layer's gradient and then searches for an image with these, in 4,000 iterations. It is *built against* DCS^2, and
knows no other defence; undefended gradients are a case of its equations.

{summary}

In each cell is the attack that recovered most images, or else came closest; so two cells may have unlike budgets. The
tables below have each attack. An attacker takes the better of the two cells: one that is told is not always better. On
CIFAR-10 few images are recovered even without a defence, so its columns say less. Told and not told, `ig` searches
differently here (`ig.searches=own`), so part of a difference may be the search's and not the knowledge's; a matrix of
today makes both searches everywhere unless it is asked for this.

```
{command}
python -m research.attacked runs/attacked
```

The first command writes a report for each run and a page for each data set. The second prints this page from their
`matrix.json`, which lie in `research/attacked/`. *Recovered* is the number of images, with its exact 95 % interval;
beside a mean PSNR stands its interval over seeds and images, which is too narrow with three seeds. *Identified* is the
share of results that point to the true image among look-alikes. Accuracy is after one round: it says nothing about a
defence's price; [the tables](papers.md) `dcs2.1` and `dcs2.2` do. A defence does as well as it is set: DCS^2 never
stops its search early, Soteria prunes half of the features, `prune` 0.7 of the entries; `ats` has its paper's policy
for CIFAR-100, `precode` its paper's width, and `dp_gaussian` a deviation of 0.01. [Verdicts](audit.md) are explained
with the audit.
"""


def text(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page from the contents of matrix.json of each data set."""
    command = shlex.join(["python", "sim.py", "--matrix", *AXES, *FLAGS.split(), "--out", "runs/attacked"])
    return "\n".join([_OPENING.format(command=_in_lines(command), summary=_summary(records)), markdown(records)])


def _summary(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of recovered images and mean PSNR, without and with knowledge of the defence."""
    titles = [f"{name}, {word}" for name in records for word in ("not told", "told or built against")]
    rows = [["defence", *titles], ["---"] * (1 + len(titles))]
    for defence in AXES[1].partition("=")[2].split(","):
        cells: list[str] = []
        for record in records.values():
            (combination,) = (one for one in record["combinations"] if one["defence"] == defence)
            leaks = combination["attacks"]
            informed = [leak for leak in leaks if leak["kind"].startswith(("told of", "built against"))]
            cells += [_best([leak for leak in leaks if leak not in informed]), _best(informed)]
        rows.append([defence, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _best(leaks: Sequence[Mapping[str, Any]]) -> str:
    """Return the result of the attack that recovered most, or else came closest."""
    given = [leak for leak in leaks if leak["psnr"]]
    if not given:
        return "–"
    best = max(given, key=lambda leak: (leak["recovered"], leak["psnr"]["mean"]))
    failures = f" ({best['failures']} failed)" if best["failures"] else ""
    return f"{best['attack']}: {best['recovered']} of {best['images']}, {best['psnr']['mean']:.1f} dB{failures}"


def read(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Read the records of a folder, by data set."""
    return {name: read_matrix(folder / f"{name}.json") for name in DATASETS}


def take(finished: Path, folder: Path = FOLDER) -> None:
    """Copy the records of a finished matrix.

    Raises:
        InputError: a data set is missing or has cells that are not complete.
    """
    for name in DATASETS:
        path = finished / name / "matrix.json"
        if not path.is_file():
            raise InputError(
                f"Expected a folder with matrices of {', '.join(DATASETS)}, got {finished} without {path}."
            )
        record = read_matrix(path)
        states = [cell["state"] for cell in record["cells"]]
        missing = [state for state in states if state != "complete"]
        if missing:
            raise InputError(f"Expected complete runs, got {len(missing)} of {len(states)} in {path} that are not.")
        write_atomic(folder / f"{name}.json", (json.dumps(record, indent=1) + "\n").encode())


def _in_lines(command: str) -> str:
    """Split a command into lines of at most 110 characters, at its blanks."""
    lines = [""]
    for word in command.split(" "):
        if len(lines[-1]) + len(word) > 110:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)
