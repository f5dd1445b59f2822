"""The floors of the house: each room imports only from floors below its own, and nothing imports in a circle.

A room is a file or a package directly in flfw/, or a top-level package. All imports count: those inside functions and
those for types alone, too.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

FLOORS = (
    "errors rng",
    "imports",
    "terminal formats",
    "curves nets data privacy",
    "experiment",
    "plugins messages membership",
    "defence spelling",
    "pipeline",
    "task storage victims",
    "method training report",
    "client server inversion aggregates",
    "adversary",
    "recording resolve attacks",
    "combinations provenance",
    "dp audit sums tracking",
    "engines clients strategies",
    "deploy apps",
    "runs",
    "matrix rehearse verification",
    "api",
    "papers",
    "command",
    "sim __main__",
    "benchmarks",
)
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor.split()}
TOP_LEVEL = ("flfw", "attacks", "clients", "strategies", "papers", "benchmarks")
MOST_IN_ROOT, MOST_IN_PACKAGE = 13, 18


class Arrow(NamedTuple):
    """One import: ``path:line`` of the module ``source`` imports the module ``target``."""

    path: Path
    line: int
    source: str
    target: str


def modules(root: Path) -> dict[str, Path]:
    """Every module of the house by its dotted name; a package stands for its ``__init__.py``."""
    paths = [path for top in TOP_LEVEL for path in sorted((root / top).rglob("*.py"))]
    paths += [root / "sim.py"] if (root / "sim.py").exists() else []
    return {_module(path.relative_to(root)): path for path in paths}


def _module(path: Path) -> str:
    """The name by which a file is imported: those of the folders beside flfw/, too, are modules of flfw."""
    within = path if path.parts[0] in ("flfw", "benchmarks", "sim.py") else "flfw" / path
    return ".".join(within.with_suffix("").parts).removesuffix(".__init__")


@cache
def arrows(root: Path) -> list[Arrow]:
    """Every import of one module of the house by another."""
    known = modules(root)
    return [
        Arrow(path, node.lineno, source, target)
        for source, path in known.items()
        for node in ast.walk(ast.parse(path.read_text()))
        for target in _targets(node, known)
        if target != source
    ]


def _targets(node: ast.AST, known: Mapping[str, Path]) -> list[str]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        whole = (f"{node.module}.{alias.name}" for alias in node.names)
        names = [name if name in known else node.module for name in whole]
    return [name for name in dict.fromkeys(names) if name in known]


def room(module: str) -> str:
    """The room of a module: its file or package in flfw/, or its top-level package."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "flfw" and rest else top


def package(module: str, path: Path) -> str:
    """The folder of a module; a file in the root of flfw/ stands for itself."""
    folder = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return module if folder in ("flfw", "") else folder


def wrong_floor(root: Path) -> list[str]:
    """Every import that does not lead down, with its file and line."""
    wrong = []
    for arrow in arrows(root):
        source, target = room(arrow.source), room(arrow.target)
        if source == target or target == "flfw":  # flfw/__init__.py holds the version alone
            continue
        place = f"{arrow.path.relative_to(root)}:{arrow.line}: {arrow.source} imports {arrow.target}"
        unknown = [name for name in (source, target) if name not in FLOOR_OF]
        if unknown:
            wrong.append(f"{place}, but {unknown[0]} has no floor; give it one in FLOORS")
        elif FLOOR_OF[target] >= FLOOR_OF[source]:
            wrong.append(f"{place}, which is not on a lower floor")
    return wrong


def circles(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Names that lead back to themselves, a sorted list for each circle.

    >>> circles([("a", "b"), ("b", "a"), ("b", "c")])
    [['a', 'b']]
    """
    leads: dict[str, set[str]] = defaultdict(set)
    for source, target in pairs:
        leads[source].add(target)
    reached = {name: _reached(name, leads) for name in leads}
    around = (frozenset(other for other in there if name in reached.get(other, ())) for name, there in reached.items())
    return sorted(sorted(circle) for circle in set(around) if circle)


def _reached(start: str, leads: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        fresh = leads.get(todo.pop(), set()) - seen
        seen |= fresh
        todo += fresh
    return seen


def file_circles(root: Path) -> list[list[str]]:
    """Circles of modules."""
    return circles((arrow.source, arrow.target) for arrow in arrows(root))


def package_circles(root: Path) -> list[list[str]]:
    """Circles of folders, sub-packages told apart from the packages that hold them."""
    known = modules(root)
    pairs = ((package(a.source, known[a.source]), package(a.target, known[a.target])) for a in arrows(root))
    return circles((source, target) for source, target in pairs if source != target)


def crowded(root: Path) -> list[str]:
    """Packages with more files than a reader can overlook."""
    inside = Counter(path.parent for path in modules(root).values() if path.name != "__init__.py")
    limits = {folder: MOST_IN_ROOT if folder == root / "flfw" else MOST_IN_PACKAGE for folder in inside}
    of_the_core = {folder: count for folder, count in inside.items() if folder.is_relative_to(root / "flfw")}
    return [f"{f.relative_to(root)}: {n} files, at most {limits[f]}" for f, n in of_the_core.items() if n > limits[f]]


RULES = (wrong_floor, file_circles, package_circles, crowded)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_has_floors_and_no_circles(rule) -> None:
    assert rule(ROOT) == []


def test_the_counts_of_the_house(capsys: pytest.CaptureFixture[str]) -> None:
    known, all_arrows = modules(ROOT), arrows(ROOT)
    core = {name: path for name, path in known.items() if room(name) != name.partition(".")[0] or name == "flfw"}
    inside = Counter(path.parent for path in core.values() if path.name != "__init__.py")
    largest = max((count, str(folder.relative_to(ROOT))) for folder, count in inside.items() if folder != ROOT / "flfw")
    rooms = {room(name) for name in core} - {"flfw"}
    between = {(room(a.source), room(a.target)) for a in all_arrows if {a.source, a.target} <= core.keys()}
    with capsys.disabled():
        print(
            f"\nflfw/: {inside[ROOT / 'flfw']} files in the root, {len(rooms)} rooms on {len(FLOORS)} floors, "
            f"{sum(source != target for source, target in between)} arrows between rooms; "
            f"largest package {largest[1]} with {largest[0]} files; {len(file_circles(ROOT))} circles of files, "
            f"{len(package_circles(ROOT))} of packages; {len(wrong_floor(ROOT))} imports that do not lead down"
        )
    assert rooms <= FLOOR_OF.keys() and len(core) > 150 and len(all_arrows) > 500


HOUSE = {
    "flfw/__init__.py": "",
    "flfw/errors.py": "",
    "flfw/data/__init__.py": "",
    "flfw/data/files.py": "from flfw.errors import BadInput\n",
    "flfw/task.py": "from flfw import data\n",
    "strategies/mean.py": "import flfw.task\n",
}


def built(folder: Path, **more: str) -> Path:
    """A small house with some files more, whose names have ``__`` for ``/``."""
    for name, text in {**HOUSE, **{name.replace("__", "/") + ".py": text for name, text in more.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_house_in_order_is_left_alone(tmp_path: Path) -> None:
    assert all(rule(built(tmp_path)) == [] for rule in RULES)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("flfw__errors", "import flfw.task\n", "flfw/errors.py:1: flfw.errors imports flfw.task, which is not"),
        ("flfw__rng", "def f():\n    from flfw import errors\n", "flfw/rng.py:2: flfw.rng imports flfw.errors, which"),
        (
            "flfw__curves",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flfw.task import Task\n",
            "flfw/curves.py:3: flfw.curves imports flfw.task, which is not on a lower floor",
        ),
        ("flfw__task", "from flfw.strategies import mean\n", "flfw/task.py:1: flfw.task imports flfw.strategies.mean,"),
        (
            "flfw__attic",
            "from flfw.task import Task\n",
            "flfw/attic.py:1: flfw.attic imports flfw.task, but attic has no",
        ),
    ],
)
def test_an_import_that_leads_up_is_named_with_its_line(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    (wrong,) = wrong_floor(built(tmp_path, **{name: text}))
    assert wrong.startswith(complaint)


def test_circles_are_found_within_a_package_and_between_a_package_and_one_inside_it(tmp_path: Path) -> None:
    one = {
        "flfw__data__cut": "def f():\n    from flfw.data.feed import x\n",
        "flfw__data__feed": "import flfw.data.cut\n",
    }
    assert file_circles(built(tmp_path / "files", **one)) == [["flfw.data.cut", "flfw.data.feed"]]
    two = {
        "flfw__data__inner__deep": "from flfw.data.files import x\n",
        "flfw__data__outer": "import flfw.data.inner.deep\n",
    }
    house = built(tmp_path / "packages", **two)
    assert file_circles(house) == [] and package_circles(house) == [["flfw.data", "flfw.data.inner"]]


def test_a_crowded_package_is_named(tmp_path: Path) -> None:
    house = built(tmp_path, **{f"flfw__data__set{i}": "" for i in range(MOST_IN_PACKAGE)})
    assert crowded(house) == [f"flfw/data: {MOST_IN_PACKAGE + 1} files, at most {MOST_IN_PACKAGE}"]
