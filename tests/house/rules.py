"""Rules of the house that no linter has: ``python -m tests.house.rules`` prints each breach with its line.

What ruff, import-linter and pyright check stands in pyproject.toml.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("flfw", "strategies", "clients", "attacks", "papers")
PLUGINS = ("strategies", "clients", "clients/defences", "attacks")
MAX_FUNCTION_LINES, MAX_FILE_LINES = 70, 600

EMPTY_NAMES = re.compile(r"(utils?|commons?|helpers?|base|managers?|misc)")
OTHER_MEANINGS = {"analytic", "clip", "mean", "median", "membership", "noise", "sgd", "sign", "topk"}
"""Words that the core uses for something else (an optimiser, a bound, a control, a result): plug-ins may bear them."""

WHOLE = ("Experiment", "RunPlan", "TrainingSettings", "AuditSettings")
"""Records of more than twelve fields: code below flfw/runs takes the group or the value that it needs."""
ABOVE = ("command", "comparisons", "deploy", "experiment", "papers", "plans", "recorded_apps", "runs")
"""Packages of flfw/ that vary or store whole experiments, or make and read the plan of one."""
TAKES_THE_WHOLE = (
    "flfw/dp/resolve_noise.py:_assigned",
    "flfw/dp/resolve_noise.py:_with_noise_for",
    "flfw/dp/resolve_noise.py:_with_secret_noise",
    "flfw/dp/resolve_noise.py:resolve_noise",  # finds settings, and plans the experiment anew
    "flfw/engines/apps.py:_plan_of",
    "flfw/engines/federation.py:Federation.__init__",
    "flfw/engines/federation.py:_strategy",
    "flfw/engines/federation.py:federate",
    "flfw/engines/superlink.py:check_federation",
    "flfw/engines/superlink.py:run_in_federation",
    "flfw/server/checkpoint.py:Checkpoints.__init__",
    "flfw/server/checkpoint.py:ensure_experiment",  # what is stored of a run is its experiment
    "flfw/server/checkpoint.py:Stored",
    "flfw/server/checkpoint.py:Stored.require_same",
)
"""The places below that do all the same; at most fifteen."""

REFERENCE = re.compile(r"(?<!`)`((?:flfw|strategies|clients|attacks|papers)(?:\.[A-Za-z_]\w*)+)(?:\(\))?`(?!`)")

METHOD_CARD = ("Paper", "Down", "Up", "Private", "Client", "A probe", "Departures")
ATTACK_CARD = ("Paper", "Departures")
EXAMPLES = {"strategies": "strategies/fedavg.py", "attacks": "attacks/ig.py"}


@dataclass(frozen=True)
class Source:
    """One source file, parsed and walked once for all rules.

    Attributes:
        name: path from the root.
        text: content.
    """

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""
        return tuple(ast.walk(self.tree))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its folders and its own, without the suffix."""
        return Path(self.name).with_suffix("").parts

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Place of a node, as ``path:line``."""
        return f"{self.name}:{node.lineno}"


Rule: TypeAlias = Callable[[Sequence[Source]], Iterator[str]]


def read(root: Path) -> list[Source]:
    """Read every source file of the product."""
    paths = [path for layer in LAYERS for path in sorted((root / layer).rglob("*.py"))]
    return [Source(str(path.relative_to(root)), path.read_text()) for path in [*paths, *root.glob("sim.py")]]


def empty_names(sources: Sequence[Source]) -> Iterator[str]:
    """Find files and folders whose name does not say what they hold."""
    for source in sources:
        for part in source.parts:
            if EMPTY_NAMES.fullmatch(part):
                yield f"{source.name}: {part} says nothing"


def too_long(sources: Sequence[Source]) -> Iterator[str]:
    """Find files and functions that are longer than a reader can overlook."""
    for source in sources:
        lines = len(source.text.splitlines())
        if lines > MAX_FILE_LINES:
            yield f"{source.name}: {lines} lines, at most {MAX_FILE_LINES}"
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    yield f"{source.at(node)}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"


def missing_cards(sources: Sequence[Source]) -> Iterator[str]:
    """Find methods and attacks whose docstring lacks a line of the card."""
    for source in sources:
        folder, name = source.parts[0], source.parts[-1]
        if folder not in EXAMPLES or len(source.parts) != 2 or name == "__init__":
            continue
        card = ast.get_docstring(source.tree) or ""
        wanted = METHOD_CARD if folder == "strategies" else ATTACK_CARD
        missing = [label for label in wanted if not _has(card, label)]
        if folder == "attacks" and not (_has(card, "Granted") or _has(card, "Needs")):
            missing.append("Granted or Needs")
        if missing:
            way = f"begin a line of the file's docstring with it, as {EXAMPLES[folder]} does"
            yield f"{source.name}: its card lacks {', '.join(missing)}; {way}"


def _has(card: str, label: str) -> bool:
    return bool(re.search(rf"^{label}\s", card, re.MULTILINE))


def plugins_named_in_the_core(sources: Sequence[Source]) -> Iterator[str]:
    """Find string constants of flfw/ that are the name of a plug-in.

    Docstrings, the command line, figures and the defaults of the experiment may name plug-ins.
    """
    plugins = {
        source.parts[-1]: source.name
        for source in sources
        if "/".join(source.parts[:-1]) in PLUGINS and source.parts[-1] != "__init__"
    }
    for source in sources:
        if source.parts[0] != "flfw" or source.parts[1] == "command" or source.parts[1:3] == ("comparisons", "figures"):
            continue
        docstrings = {node.value for node in source.nodes if isinstance(node, ast.Expr)}
        allowed = docstrings | (_defaults(source) if source.parts[1] == "experiment" else set())
        for node in source.nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in allowed:
                continue
            if node.value in plugins.keys() - OTHER_MEANINGS:
                way = "the core names no plug-in; if it means something else here, add it to OTHER_MEANINGS"
                yield f"{source.at(node)}: {node.value!r} is the name of {plugins[node.value]}; {way}"


def _defaults(source: Source) -> set[ast.AST]:
    classes = (node for node in source.nodes if isinstance(node, ast.ClassDef))
    values = (field.value for cls in classes for field in cls.body if isinstance(field, ast.AnnAssign) and field.value)
    return {node for value in values for node in ast.walk(value)}


def subclassed_concrete(sources: Sequence[Source]) -> Iterator[str]:
    """Find classes that inherit from a concrete one of the project; records and exceptions may be inherited from."""
    classes = {
        node.name: (source, node) for source in sources for node in source.nodes if isinstance(node, ast.ClassDef)
    }
    for source, cls in classes.values():
        if _is_abstract(cls):
            continue
        for name in (_dotted(parent).rpartition(".")[2] for parent in cls.bases):
            if name in classes and not _may_be_inherited(classes[name][1]):
                yield f"{source.at(cls)}: {cls.name} inherits from the concrete {name}"


def _may_be_inherited(cls: ast.ClassDef) -> bool:
    error = any(_dotted(parent).endswith(("Error", "Exception")) for parent in cls.bases)
    return error or _is_abstract(cls) or _is_record(cls)


def _is_abstract(cls: ast.ClassDef) -> bool:
    marks = [_dotted(mark) for node in cls.body if isinstance(node, ast.FunctionDef) for mark in node.decorator_list]
    return bool({_dotted(parent).rpartition(".")[2] for parent in cls.bases} & {"ABC", "Protocol"}) or any(
        mark.endswith("abstractmethod") for mark in marks
    )


def _is_record(cls: ast.ClassDef) -> bool:
    calls = (mark for mark in cls.decorator_list if isinstance(mark, ast.Call) and _dotted(mark.func) == "dataclass")
    return any(keyword.arg == "frozen" for call in calls for keyword in call.keywords)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def classes_of_one_name(sources: Sequence[Source]) -> Iterator[str]:
    """Find names that two classes bear."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(source.at(node))
    yield from (
        f"{', '.join(found)}: two classes are called {name}" for name, found in places.items() if len(found) > 1
    )


def whole_experiments(sources: Sequence[Source]) -> Iterator[str]:
    """Find functions and classes below the runs that take, return or carry a record of more than twelve fields."""
    for source in sources:
        if source.parts[0] in ("papers", "sim") or (source.parts[:1] == ("flfw",) and source.parts[1] in ABOVE):
            continue
        for name, node in _annotated(source.tree.body, ""):
            place = f"{source.name}:{name}"
            if _names_the_whole(node) and place not in TAKES_THE_WHOLE:
                way = "give it the group or the value that it needs"
                yield f"{source.at(node)}: {name} takes a whole experiment; {way}"


def _annotated(body: Sequence[ast.stmt], above: str) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield above + node.name, node
            yield from _annotated(node.body, f"{above}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield above + node.name, node


def _names_the_whole(node: ast.FunctionDef | ast.ClassDef) -> bool:
    if isinstance(node, ast.ClassDef):
        given = [field.annotation for field in node.body if isinstance(field, ast.AnnAssign)]
    else:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        given = [one.annotation for one in every] + [node.returns]
    names = (part for one in given if one is not None for part in ast.walk(one))
    return any(isinstance(part, ast.Name) and part.id in WHOLE for part in names)


def dead_references(sources: Sequence[Source]) -> Iterator[str]:
    """Find names in backticks, as ``flfw.audit.verdict.Verdict``, that no file has."""
    named = {".".join(part for part in source.parts if part != "__init__"): _names(source) for source in sources}
    named |= {f"flfw.{module}": names for module, names in named.items() if not module.startswith("flfw")}  # links
    for source in sources:
        for match in REFERENCE.finditer(source.text):
            parts = match[1].split(".")
            end = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in named), 0)
            if not end or not set(parts[end:]) <= named[".".join(parts[:end])]:
                line = source.text.count("\n", 0, match.start()) + 1
                yield f"{source.name}:{line}: `{match[1]}` is no name of today"


def _names(source: Source) -> set[str]:
    """Return the names that a file defines or hands on."""
    imported = {name.asname or name.name for n in source.nodes if isinstance(n, ast.ImportFrom) for name in n.names}
    strings = {
        n.value for n in source.nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }  # made on demand
    stored = {node.id for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    attributes = {node.attr for node in source.nodes if isinstance(node, ast.Attribute)}
    defined = {n.name for n in source.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return stored | attributes | defined | imported | strings


RULES: tuple[Rule, ...] = (
    empty_names,
    too_long,
    missing_cards,
    plugins_named_in_the_core,
    subclassed_concrete,
    classes_of_one_name,
    whole_experiments,
    dead_references,
)


def breaches(root: Path) -> list[str]:
    """Return every breach of every rule, with its place."""
    sources = read(root)
    return [breach for rule in RULES for breach in rule(sources)]


if __name__ == "__main__":
    for line in (found := breaches(ROOT)):
        print(line)
    sys.exit(bool(found))
