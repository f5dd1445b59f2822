"""Defences under attackers with and without knowledge of them, printed from a matrix.

The page is docs/attacked_defences.md, each attack stands in docs/tables/attacked_defences.md.
"""

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
TABLES = PAGE.parent / "tables" / PAGE.name
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

_PAGE = """# Defences under attack, static and adaptive

**Do six defences still protect images when the attacker knows them?** Each defence is attacked with 50 images of three
seeds, on two data sets:

{summary}

A cell has the recovered images, the mean PSNR and the attack that recovered most or, of equal ones, came closest. On
MNIST, five of six defences do worse against a told attack. `ats` lets no image through, but 61 % of the told results
point to the true image among look-alikes. On CIFAR-10 few images are recovered even without a defence, so its columns
say less. An attacker takes the better of the two cells: a told attack is not always better.
[Each attack](tables/attacked_defences.md) has its interval, its verdict and more.

## How it was measured

```
{command}
python -m research.attacked runs/attacked
```

The first command writes a report for each run and a page for each data set. The second prints this page from their
`matrix.json`, which lie in `research/attacked/`.

An observation is the gradient of one image at the network's initial weights. That is an easy case for the attacker.

- `ig`, not told, searches in 500 iterations for an image whose gradient has the observed direction. It ignores the
  defence.
- `ig`, told, has the same observations, images, restarts and iterations, and [the adaptation](adaptations.md) to the
  defence.
- [`dcs2`](attacks/dcs2.md) computes features from the last layer's gradient, then searches for an image with these in
  4,000 iterations. It is built against DCS^2 and knows no other defence. Undefended gradients are a case of its
  equations.

| defence | setting |
| --- | --- |
| `prune` | drops 0.7 of the entries |
| `dp_gaussian` | noise of deviation 0.01 |
| `ats` | its paper's policy for CIFAR-100 |
| `soteria` | prunes half of the features |
| `dcs2` | never stops its search early |
| `precode` | its paper's width |

## What limits the figures

- A defence does as well as it is set.
- Two cells may have unequal budgets, since the attacks differ.
- Told and not told, `ig` searches differently here (`ig.searches=own`). So part of a difference may come from the
  search and not from the knowledge. A [matrix](matrix.md) makes both searches everywhere unless it is asked for this.
- The accuracy in the tables is that after one round. It says nothing of a defence's price; [the tables](papers.md)
  `dcs2.1` and `dcs2.2` do.
"""

_TABLES = """<!-- Written by python -m research.attacked -->
# Defences under attack: each attack

[Defences under attack](../attacked_defences.md) has the commands and the settings. *Recovered* is the number of images,
with its exact 95 % interval. Beside a mean PSNR stands its interval over seeds and images; with three seeds it is too
narrow. *Identified* is the share of results that point to the true image among look-alikes. *Verdict* is explained in
[How to read an audit](../audit.md), with the number of seeds that had it.
"""


def text(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page from the contents of matrix.json of each data set."""
    command = shlex.join(["python", "sim.py", "--matrix", *AXES, *FLAGS.split(), "--out", "runs/attacked"])
    return _PAGE.format(command=_in_lines(command), summary=_summary(records))


def tables(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of all attacks from the same contents."""
    return "\n".join([_TABLES, markdown(records)])


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
