"""The house's rules: which way imports point, what may bear which name, how long things get."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sources import nodes, parsed, trees_are_given_back  # noqa: F401  # the last is a fixture

PLUGINS = {"strategies", "clients", "attacks"}
MAY_IMPORT = {
    "flfw": set(),
    "strategies": {"flfw"},
    "clients": {"flfw"},
    "attacks": {"flfw"},
    "papers": {"flfw", *PLUGINS},
    "sim": {"flfw", "papers", *PLUGINS},
}
BESIDE = {*PLUGINS, "papers"}
OURS = {*MAY_IMPORT, "benchmarks", "examples", "tests"}

EMPTY_WORDS = re.compile(r"(utils?|commons?|helpers?|base|managers?|misc)")
EXAMPLES = {"strategies": "strategies/fedavg.py", "attacks": "attacks/ig.py"}
METHOD_CARD = ("Paper", "Down", "Up", "Private", "Client", "A probe", "Departures")
MOST_FUNCTION_LINES, MOST_FILE_LINES = 70, 320
SEEDING = re.compile(r"(.*\.)?(manual_seed(_all)?|default_rng|RandomState|SeedSequence)|((np|numpy)\.)?random\.seed")

OTHER_MEANINGS = {"clip", "mean", "median", "membership", "noise", "sgd", "sign", "topk"}
"""Words that the core uses for something else (an optimiser, a bound, a part of a result): plug-ins may bear them."""

Checker = Callable[[Path], list[str]]


def sources(root: Path) -> Iterator[tuple[str, Path, str]]:
    """Every source file of the house: its layer, its path, its text; the command line stands with sim.py, above all."""
    for layer in MAY_IMPORT:
        for path in sorted((root / layer).rglob("*.py")):
            at_the_top = path.parent == root / "flfw" / "command"
            yield "sim" if at_the_top else layer, path, path.read_text()
    if (root / "sim.py").exists():
        yield "sim", root / "sim.py", (root / "sim.py").read_text()


def at(root: Path, path: Path, node: ast.AST | None = None) -> str:
    place = str(path.relative_to(root))
    line = getattr(node, "lineno", None)
    return f"{place}:{line}" if line else place


def imported(node: ast.AST) -> list[str]:
    """The absolute modules an import statement names, ``flfw.attacks.ig`` as attacks.ig, which is its file's place.

    A relative one cannot leave its package.
    """
    names = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"flfw.{alias.name}" for alias in node.names] if node.module == "flfw" else [node.module or ""]
    return [
        name.removeprefix("flfw.") if name.split(".")[1:2] and name.split(".")[1] in BESIDE else name for name in names
    ]


def loose_imports(root: Path) -> list[str]:
    """Imports of a folder beside flfw/ by its bare name: outside a checkout there is no such package."""
    return [
        f"{at(root, path, node)}: import flfw.{module}"
        for _, path, text in sources(root)
        for node in nodes(text)
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
        for module in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if module.partition(".")[0] in BESIDE
    ]


def wrong_imports(root: Path) -> list[str]:
    return [
        f"{at(root, path, node)}: {layer} imports {module}"
        for layer, path, text in sources(root)
        for node in nodes(text)
        for module in imported(node)
        if module.partition(".")[0] in OURS - MAY_IMPORT[layer] - {layer}
    ]


def pickles(root: Path) -> list[str]:
    return [
        f"{at(root, path, node)}: {module}"
        for _, path, text in sources(root)
        if path != root / "flfw" / "data" / "readers" / "cifar.py"
        for node in nodes(text)
        for module in imported(node)
        if module.partition(".")[0] in {"pickle", "cloudpickle", "dill"}
    ]


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def seedings(root: Path) -> list[str]:
    return [
        f"{at(root, path, node)}: {dotted(node.func)}"
        for _, path, text in sources(root)
        if path != root / "flfw" / "rng.py"
        for node in nodes(text)
        if isinstance(node, ast.Call) and SEEDING.fullmatch(dotted(node.func))
    ]


def plugin_stems(root: Path) -> dict[str, str]:
    """The names of plug-ins, each with the file that bears it."""
    folders = [root / "strategies", root / "clients", root / "clients" / "defences", root / "attacks"]
    paths = [path for folder in folders for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
    return {path.stem: str(path.relative_to(root)) for path in paths}


def strings(text: str) -> Iterator[tuple[ast.Constant, str]]:
    """Every string constant that is no docstring, and no default of the experiment's own record."""
    prose = {node.value for node in nodes(text) if isinstance(node, ast.Expr)}
    for node in nodes(text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield node, node.value


def defaults(place: str, text: str) -> set[ast.AST]:
    """The defaults of the experiment's fields, which may name plug-ins."""
    if not place.startswith("flfw/experiment/"):
        return set()
    fields = [n for c in nodes(text) if isinstance(c, ast.ClassDef) for n in c.body if isinstance(n, ast.AnnAssign)]
    return {node for field in fields if field.value for node in ast.walk(field.value)}


def plugins_named_in_the_core(root: Path) -> list[str]:
    """Strings and imports of the core that are the name of a plug-in; names of variables and functions are free."""
    stems, breaches = plugin_stems(root), []
    for layer, path, text in sources(root):
        if layer != "flfw":
            continue
        allowed = defaults(str(path.relative_to(root)), text)
        named = [(node, word) for node, word in strings(text) if node not in allowed]
        named = [(node, word) for node, word in named if word in stems.keys() - OTHER_MEANINGS]
        named += [(n, m) for n in nodes(text) for m in imported(n) if m.partition(".")[0] in PLUGINS]
        for node, word in named:
            plugin = stems.get(word.rpartition(".")[2])
            way = "the core names no plug-in; if it means something else here, add it to OTHER_MEANINGS in this test"
            breaches.append(f"{at(root, path, node)}: {word!r} is the name of {plugin}; {way}")
    return breaches


def empty_names(root: Path) -> list[str]:
    parts = [(path, part) for _, path, _ in sources(root) for part in path.relative_to(root).with_suffix("").parts]
    return [f"{at(root, path)}: {part} says nothing" for path, part in parts if EMPTY_WORDS.fullmatch(part)]


def missing_cards(root: Path) -> list[str]:
    result = []
    for layer, path, text in sources(root):
        if path.parent not in (root / "strategies", root / "attacks") or path.stem == "__init__":
            continue
        card = ast.get_docstring(parsed(text)) or ""
        have = {label for label in ("Granted", "Needs", *METHOD_CARD) if re.search(rf"^{label}\s", card, re.MULTILINE)}
        if layer == "strategies":
            lacking = [label for label in METHOD_CARD if label not in have]
        else:
            lacking = [label for label in ("Paper", "Departures") if label not in have]
            lacking += [] if have & {"Granted", "Needs"} else ["Granted or Needs"]
        way = f"begin a line of the file's docstring with it, as {EXAMPLES[layer]} does"
        result += [f"{at(root, path)}: its card lacks {', '.join(lacking)}; {way}"] if lacking else []
    return result


def too_long(root: Path) -> list[str]:
    result = []
    for _, path, text in sources(root):
        lines = len(text.splitlines())
        result += [f"{at(root, path)}: {lines} lines"] if lines >= MOST_FILE_LINES else []
        for node in nodes(text):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                result += [f"{at(root, path, node)}: {node.name} has {lines} lines"] * (lines >= MOST_FUNCTION_LINES)
    return result


def is_abstract(cls: ast.ClassDef) -> bool:
    """Whether it is declared abstract: a direct base ABC or Protocol, or an abstract method of its own."""
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    marks = [dotted(d) for method in methods for d in method.decorator_list]
    return bool({dotted(b).rpartition(".")[2] for b in cls.bases} & {"ABC", "Protocol"} or "abstractmethod" in marks)


def is_record(cls: ast.ClassDef) -> bool:
    """A frozen dataclass: values, such as settings that another plug-in's settings go on from."""
    return any(
        isinstance(d, ast.Call) and dotted(d.func) == "dataclass" and any(k.arg == "frozen" for k in d.keywords)
        for d in cls.decorator_list
    )


def subclassed_concrete(root: Path) -> list[str]:
    classes = {
        node.name: (path, node)
        for _, path, text in sources(root)
        for node in nodes(text)
        if isinstance(node, ast.ClassDef)
    }
    result = []
    for path, cls in classes.values():
        for name in (dotted(base).rpartition(".")[2] for base in cls.bases):
            if name not in classes or is_abstract(cls):
                continue
            parent = classes[name][1]
            error = any(dotted(base).endswith(("Error", "Exception")) for base in parent.bases)
            if not (is_abstract(parent) or is_record(parent) or error):
                result.append(f"{at(root, path, cls)}: {cls.name} goes on from the concrete {name}")
    return result


RULES: list[Checker] = [
    wrong_imports,
    pickles,
    seedings,
    plugins_named_in_the_core,
    empty_names,
    missing_cards,
    too_long,
    subclassed_concrete,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rules(rule: Checker) -> None:
    breaches = rule(ROOT)
    assert not breaches, "\n".join(breaches)


def test_the_rules_look_at_every_layer_that_there_is() -> None:
    seen = {str(path.relative_to(ROOT)) for _, path, _ in sources(ROOT)}
    assert {"sim.py", "flfw/messages/wire.py", "flfw/audit/probe.py", "strategies/hyperfl.py", "attacks/ig.py"} <= seen
    assert {"clients/sgd.py", "clients/defences/__init__.py"} <= seen


NAMED = (
    "is the name of clients/defences/peek.py; the core names no plug-in; if it means something else here, add it to "
    "OTHER_MEANINGS in this test"
)
AS_IN = "begin a line of the file's docstring with it, as"
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 69
ALL_BUT_UP = '"""X.\n\nPaper      a\nDown  a\nPrivate  a\nClient  a\nA probe  a\nDepartures  a\n"""\n'
BREACHES: list[tuple[Checker, str, str, str]] = [
    (
        wrong_imports,
        "attacks/peek.py",
        "import os\nfrom flfw.clients.sgd import X\n",
        ":2: attacks imports clients.sgd",
    ),
    (wrong_imports, "clients/peek.py", "import flfw.attacks.ig as a\n", ":1: clients imports attacks.ig"),
    (wrong_imports, "clients/defences/peek.py", "from flfw.strategies import a\n", ":1: clients imports strategies"),
    (wrong_imports, "strategies/peek.py", "from flfw.clients import sgd\n", ":1: strategies imports clients"),
    (wrong_imports, "flfw/deep/peek.py", "def f():\n    from flfw import attacks\n", ":2: flfw imports attacks"),
    (loose_imports, "papers/peek.py", "\nimport attacks.ig as a\n", ":2: import flfw.attacks.ig"),
    (wrong_imports, "flfw/peek.py", "import sim\n", ":1: flfw imports sim"),
    (wrong_imports, "papers/peek.py", "from sim import main\n", ":1: papers imports sim"),
    (wrong_imports, "sim.py", "import tests.house.test_house\n", ":1: sim imports tests.house.test_house"),
    (pickles, "flfw/data/peek.py", "\nfrom pickle import loads\n", ":2: pickle"),
    (seedings, "attacks/peek.py", "import torch\ntorch.manual_seed(0)\n", ":2: torch.manual_seed"),
    (seedings, "flfw/peek.py", "np.random.seed(0)\n", ":1: np.random.seed"),
    (seedings, "clients/peek.py", "import random\n\nrandom.seed(1)\n", ":3: random.seed"),
    (plugins_named_in_the_core, "flfw/peek.py", 'x = 1\nif method == "peek":\n    pass\n', f":2: 'peek' {NAMED}"),
    (
        plugins_named_in_the_core,
        "flfw/peek.py",
        "\nimport clients.defences.peek\n",
        f":2: 'clients.defences.peek' {NAMED}",
    ),
    (plugins_named_in_the_core, "flfw/experiment/a.py", 'class Training:\n    x = "peek"\n', f":2: 'peek' {NAMED}"),
    (empty_names, "flfw/utils.py", "", ": utils says nothing"),
    (empty_names, "flfw/helpers/peek.py", "", ": helpers says nothing"),
    (missing_cards, "strategies/peek.py", ALL_BUT_UP, f": its card lacks Up; {AS_IN} strategies/fedavg.py does"),
    (
        missing_cards,
        "attacks/peek.py",
        '"""Paper  a\nGranted  a\n"""\n',
        f": its card lacks Departures; {AS_IN} attacks/ig.py does",
    ),
    (
        missing_cards,
        "attacks/peek.py",
        '"""Paper  a\nDepartures  a\n"""\n',
        f": its card lacks Granted or Needs; {AS_IN} attacks/ig.py does",
    ),
    (too_long, "flfw/peek.py", f"\n{LONG_FUNCTION}", ":2: f has 70 lines"),
    (too_long, "flfw/peek.py", "x = 1\n" * 320, ": 320 lines"),
    (
        subclassed_concrete,
        "flfw/peek.py",
        "class A:\n    pass\nclass B(A):\n    pass\n",
        ":3: B goes on from the concrete A",
    ),
]


@pytest.mark.parametrize(("rule", "file", "source", "complaint"), BREACHES)
def test_a_breach_is_named_with_its_place(tmp_path, rule, file, source, complaint) -> None:
    # The plug-in of which the core must not speak.
    (tmp_path / "clients" / "defences").mkdir(parents=True)
    (tmp_path / "clients" / "defences" / "peek.py").touch()
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(source)
    assert rule(tmp_path) == [file + complaint]


@pytest.mark.parametrize(
    ("rule", "file", "source"),
    [
        (wrong_imports, "attacks/fine.py", "import torch\nfrom flfw.messages.wire import pack\nfrom . import ig\n"),
        (wrong_imports, "papers/fine.py", "from flfw.strategies.fedavg import FedAvg\n"),
        (loose_imports, "papers/fine.py", "from flfw.attacks import ig\nfrom . import attacks\n"),
        (wrong_imports, "flfw/fine.py", "from simplejson import x\nimport attackscli\n"),
        (pickles, "flfw/data/readers/cifar.py", "import pickle\n"),
        (seedings, "flfw/rng.py", "torch.manual_seed(0)\n"),
        (seedings, "flfw/fine.py", "from flfw.rng import torch_generator\ntorch_generator(0, 'x')\nself.seed(1)\n"),
        (plugins_named_in_the_core, "flfw/fine.py", '"""peek"""\nspeaks = "peeks"\n'),
        (plugins_named_in_the_core, "flfw/experiment/a.py", 'class Training:\n    x: str = "peek"\n'),
        (
            plugins_named_in_the_core,
            "flfw/fine.py",
            "def peek(sign: int):\n    from x import peek\n    return peek.peek\n",
        ),
        (plugins_named_in_the_core, "attacks/fine.py", 'x = "peek"\n'),
        (empty_names, "flfw/baseline.py", ""),
        (too_long, "flfw/fine.py", LONG_FUNCTION.replace("    x = 1\n", "", 1)),
        (subclassed_concrete, "flfw/fine.py", "class A(ABC):\n    pass\nclass B(A):\n    pass\n"),
        (subclassed_concrete, "flfw/fine.py", "class A(ValueError):\n    pass\nclass B(A):\n    pass\n"),
        (
            subclassed_concrete,
            "flfw/fine.py",
            "@dataclass(frozen=True)\nclass A:\n    x: int\nclass B(A):\n    y: int\n",
        ),
    ],
)
def test_what_keeps_the_rules_is_left_alone(tmp_path, rule, file, source) -> None:
    (tmp_path / "clients" / "defences").mkdir(parents=True)
    (tmp_path / "clients" / "defences" / "peek.py").touch()
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(source)
    assert rule(tmp_path) == []


def test_defences_may_bear_words_that_the_core_uses_for_something_else(tmp_path) -> None:
    for folder in ("flfw", "clients"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("sign", "clip", "noise", "median", "topk"):
        (tmp_path / "clients" / "defences" / f"{name}.py").touch()
    assert plugins_named_in_the_core(tmp_path) == []


def test_a_client_process_imports_nothing_heavy() -> None:
    heavy = ("torchvision", "sklearn", "flwr_datasets", "pandas", "scipy", "matplotlib", "torch._dynamo", "ray")
    modules = [
        ".".join(("flfw", *path.relative_to(ROOT).with_suffix("").parts))
        for layer, path, _ in sources(ROOT)
        if layer in ("strategies", "clients") and path.stem != "__init__"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in ['flfw.apps', *{modules}]: importlib.import_module(name)\n"
        f"print([name for name in {heavy} if name in sys.modules], 'flfw.clients.sgd' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


FOLDERS = {
    ".ci",
    "attacks",
    "benchmarks",
    "clients",
    "deploy",
    "docs",
    "examples",
    "flfw",
    "papers",
    "strategies",
    "tests",
}


def test_nothing_that_a_test_or_a_run_wrote_is_tracked() -> None:
    """Every folder at the top is one of the project's."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    assert {line.partition("/")[0] for line in listed.stdout.splitlines() if "/" in line} == FOLDERS
