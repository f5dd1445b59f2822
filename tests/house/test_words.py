"""The words of the house: how docstrings begin, which names say nothing, and that no two classes share one."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sources import nodes, trees_are_given_back  # noqa: F401  # the last is a fixture

LAYERS = ("flfw", "strategies", "clients", "attacks", "papers", "benchmarks", "examples", "tests")
EMPTY_NAMES = {"of", "found", "about", "said", "told", "own", "several"}
SETTINGS = {
    ("attacks/fedcg.py", "own"),
    ("flfw/matrix/rows.py", "told"),
    ("flfw/audit/verdicts/evidence.py", "told"),
    ("flfw/audit/verdicts/evidence.py", "found"),
    ("flfw/formats/result_entries.py", "found"),
}
"""Fields that are keys of ``--set`` or of a file, which scripts rely on."""

VERBS = frozenset((ROOT / "tests" / "house" / "verbs.txt").read_text().split())
"""Verbs in base form with which functions' docstrings begin."""

NO_NOUN = frozenset(
    [
        "all",
        "as",
        "by",
        "each",
        "ends",
        "everything",
        "find",
        "from",
        "how",
        "keep",
        "makes",
        "maps",
        "of",
        "one",
        "passes",
        "reads",
        "run",
        "sends",
        "that",
        "those",
        "what",
        "when",
        "where",
        "whether",
        "which",
        "who",
        "whose",
        "why",
        "with",
        "yields",
    ]
)
"""Words with which no class, module or property begins its docstring: it begins with a noun of the field."""

HEADLESS = re.compile(r"(?:^|[\s(,;:])(what|who|whoever|whatever)\b", re.IGNORECASE)
HELP_TEXTS = {
    *("flfw/command/record.py", "flfw/command/data_sets.py"),
    *("flfw/rehearse/__main__.py", "flfw/deploy/__main__.py", "flfw/data/download.py"),
}
"""Their docstrings are printed by ``--help``."""

Rule = Callable[[Path], list[str]]


def sources(root: Path) -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    """Every source file: its path from the root, and the nodes of its tree."""
    paths = [path for layer in LAYERS for path in sorted((root / layer).rglob("*.py"))]
    for path in [*paths, *root.glob("sim.py")]:
        yield str(path.relative_to(root)), nodes(path.read_text())


def empty_names(root: Path) -> list[str]:
    """Variables, parameters and fields whose name says nothing of what they hold."""
    return [
        f"{place}:{node.lineno}: {name} says nothing; name what it holds"
        for place, its_nodes in sources(root)
        for node in its_nodes
        for name in bound(node)
        if name in EMPTY_NAMES and (place, name) not in SETTINGS
    ]


def bound(node: ast.AST) -> list[str]:
    """The names that a node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.alias(name=name, asname=other):
            return [other or name]
    return []


def twice_named(root: Path) -> list[str]:
    """Classes that share their name with another one outside the tests."""
    places: dict[str, list[str]] = defaultdict(list)
    for place, its_nodes in sources(root):
        for node in its_nodes:
            if isinstance(node, ast.ClassDef) and not place.startswith("tests/"):
                places[node.name].append(f"{place}:{node.lineno}")
    return [f"{', '.join(where)}: two classes are called {name}" for name, where in places.items() if len(where) > 1]


def is_property(node: ast.AST) -> bool:
    """Whether it is read like an attribute."""
    return any("property" in ast.unparse(one) for one in getattr(node, "decorator_list", []))


def docstrings(root: Path) -> Iterator[tuple[str, ast.AST, str]]:
    """The first paragraph of every docstring outside the tests, with its place."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for place, its_nodes in sources(root):
        if place.startswith("tests/"):
            continue
        for node in its_nodes:
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                if place in HELP_TEXTS and isinstance(node, ast.Module | ast.ClassDef):
                    continue
                paragraph = text.partition("\n\n")[0].replace("\n", " ")
                yield f"{place}:{getattr(node, 'lineno', 1)}", node, paragraph


def no_verb(root: Path) -> list[str]:
    """Functions whose docstring does not begin with a verb in base form."""
    breaches = []
    for place, node, text in docstrings(root):
        word = re.split(r"[\s,.;:]", text)[0]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node) and word not in VERBS:
            way = "begin with a verb of tests/house/verbs.txt, or add it"
            breaches.append(f"{place}: {word!r} begins a function's docstring; {way}")
    return breaches


def no_noun(root: Path) -> list[str]:
    """Classes, modules and properties whose docstring does not begin with a noun."""
    breaches = []
    for place, node, text in docstrings(root):
        word = re.split(r"[\s,.;:]", text)[0]
        if (isinstance(node, ast.ClassDef | ast.Module) or is_property(node)) and word.lower() in NO_NOUN:
            breaches.append(f"{place}: {word!r} begins the docstring of a class, module or property; begin with a noun")
    return breaches


def headless(root: Path) -> list[str]:
    """First paragraphs with a relative clause that has no noun before it."""
    return [
        f"{place}: {clause[1]!r} has no noun before it in {text[:60]!r}; write the noun"
        for place, node, text in docstrings(root)
        if not isinstance(node, ast.Module) and (clause := HEADLESS.search(text)) and not after_a_noun(text, clause)
    ]


def after_a_noun(text: str, clause: re.Match[str]) -> bool:
    """Whether ``who`` follows its noun: ``an attacker who``; ``what`` never does."""
    before = text[: clause.start(1)].rstrip().rpartition(" ")[2]
    return clause[1].lower() == "who" and before.isalpha() and before.lower() not in VERBLESS


VERBLESS = {"and", "or", "of", "for", "to", "by", "from", "with", "how", "that", "if", "whether"}
RULES: list[Rule] = [empty_names, twice_named, no_verb, no_noun, headless]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_words_of_the_house(rule: Rule) -> None:
    breaches = rule(ROOT)
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize(
    ("rule", "source", "complaint"),
    [
        (empty_names, "def f(of):\n    pass\n", "flfw/a.py:1: of says nothing; name what it holds"),
        (empty_names, "\nfound = 1\n", "flfw/a.py:2: found says nothing; name what it holds"),
        (twice_named, "class A:\n    pass\nclass A:\n    pass\n", "flfw/a.py:1, flfw/a.py:3: two classes are called A"),
        (
            no_verb,
            'def f():\n    """The loss."""\n',
            "flfw/a.py:1: 'The' begins a function's docstring; begin with a verb of tests/house/verbs.txt, or add it",
        ),
        (
            no_noun,
            'class A:\n    """What is sent."""\n',
            "flfw/a.py:1: 'What' begins the docstring of a class, module or property; begin with a noun",
        ),
        (
            headless,
            'def f():\n    """Return what is sent."""\n',
            "flfw/a.py:1: 'what' has no noun before it in 'Return what is sent.'; write the noun",
        ),
    ],
)
def test_a_breach_is_named_with_its_place(tmp_path: Path, rule: Rule, source: str, complaint: str) -> None:
    (tmp_path / "flfw").mkdir()
    (tmp_path / "flfw" / "a.py").write_text(source)
    assert rule(tmp_path) == [complaint]


def test_plain_words_are_left_alone(tmp_path: Path) -> None:
    method = '    def f(self, x):\n        """Return x."""\n'
    source = f'"""Losses."""\n\n\nclass A:\n    """Loss of an attacker who knows x."""\n\n{method}'
    (tmp_path / "flfw").mkdir()
    (tmp_path / "flfw" / "a.py").write_text(source)
    assert [rule(tmp_path) for rule in RULES] == [[], [], [], [], []]
