"""The house's rules notice a breach, leave what keeps them alone, and hold for this checkout (`make lint`)."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house.rules import (
    MAX_FILE_LINES,
    ROOT,
    TAKES_THE_WHOLE,
    Rule,
    Source,
    classes_of_one_name,
    dead_references,
    empty_names,
    missing_cards,
    plugins_named_in_the_core,
    read,
    subclassed_concrete,
    too_long,
    whole_experiments,
)

PLUGIN = Source("clients/defences/peek.py", "")
"""A plug-in of which the core must not speak."""
METHOD_CARD = '"""X.\n\nPaper      a\nDown  a\nPrivate  a\nClient  a\nA probe  a\nDepartures  a\n"""\n'


def found(rule: Rule, **files: str) -> list[str]:
    """What a rule finds in files whose names have ``__`` for ``/``."""
    return list(rule([PLUGIN, *(Source(f"{name.replace('__', '/')}.py", text) for name, text in files.items())]))


def function(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


def test_a_name_that_says_nothing() -> None:
    assert found(empty_names, flfw__utils="", flfw__helpers__peek="", flfw__baseline="") == [
        "flfw/utils.py: utils says nothing",
        "flfw/helpers/peek.py: helpers says nothing",
    ]


def test_what_is_too_long() -> None:
    assert found(too_long, flfw__peek=f"\n{function(71)}") == ["flfw/peek.py:2: f has 71 lines, at most 70"]
    assert found(too_long, flfw__peek="x = 1\n" * 601) == ["flfw/peek.py: 601 lines, at most 600"]
    assert found(too_long, flfw__a=function(70), flfw__b="x = 1\n" * MAX_FILE_LINES) == []


def test_what_takes_a_whole_experiment() -> None:
    way = "takes a whole experiment; give it the group or the value that it needs"
    text = (
        "def f(one: int, *, run: RunPlan | None) -> int: ...\nclass C:\n    x: Experiment\n    def g(self) -> C: ...\n"
    )
    assert found(whole_experiments, flfw__audit__peek=text) == [
        f"flfw/audit/peek.py:1: f {way}",
        f"flfw/audit/peek.py:2: C {way}",
    ]
    assert found(whole_experiments, flfw__runs__peek=text, papers__peek=text, sim="") == []
    assert len(TAKES_THE_WHOLE) <= 15


def test_a_reference_to_a_name_that_no_file_has() -> None:
    text = '"""See `flfw.nets.net.Net.width`, `flfw.attacks.ig` and `flfw.gone.Net`, `flfw.nets.net.lost`."""'
    net = "class Net:\n    width: int\n"
    assert found(dead_references, flfw__nets__net=net, attacks__ig="", flfw__peek=text) == [
        "flfw/peek.py:1: `flfw.gone.Net` is no name of today",
        "flfw/peek.py:1: `flfw.nets.net.lost` is no name of today",
    ]


def test_a_card_that_lacks_a_line() -> None:
    way = "begin a line of the file's docstring with it, as"
    assert found(missing_cards, strategies__peek=METHOD_CARD, clients__peek="") == [
        f"strategies/peek.py: its card lacks Up; {way} strategies/fedavg.py does"
    ]
    text = '"""Paper  a\n"""\n'
    assert found(missing_cards, attacks__peek=text, attacks__adaptations__peek=text, attacks__whole=GRANTED) == [
        f"attacks/peek.py: its card lacks Departures, Granted or Needs; {way} attacks/ig.py does"
    ]


GRANTED = '"""Paper  a\nDepartures  a\nGranted  a\n"""\n'


def test_a_plugin_named_in_the_core() -> None:
    named = "is the name of clients/defences/peek.py; the core names no plug-in; if it means something else here, "
    named += "add it to OTHER_MEANINGS"
    assert found(plugins_named_in_the_core, flfw__a='x = 1\nif method == "peek":\n    pass\n') == [
        f"flfw/a.py:2: 'peek' {named}"
    ]
    assert found(plugins_named_in_the_core, flfw__experiment__a='class A:\n    x = "peek"\n') == [
        f"flfw/experiment/a.py:2: 'peek' {named}"
    ]
    assert found(plugins_named_in_the_core, flfw__experiment__a='class A:\n    x: str = "peek"\n') == []
    assert (
        found(plugins_named_in_the_core, flfw__a='"""peek"""\nx = "peeks"\ny = peek.peek\n', attacks__a='"peek"') == []
    )
    assert found(plugins_named_in_the_core, flfw__command__a='x = "peek"\n') == []


@pytest.mark.slow
def test_words_that_the_core_uses_for_something_else_may_name_a_plugin() -> None:
    plugins = [Source(f"clients/defences/{name}.py", "") for name in ("sign", "clip", "noise", "median", "topk")]
    assert list(plugins_named_in_the_core([*read(ROOT), *plugins])) == []


def test_a_concrete_class_that_is_inherited_from() -> None:
    concrete, heir = "class A:\n    pass\n", "class B(A):\n    pass\n"
    assert found(subclassed_concrete, flfw__a=concrete, flfw__b=heir) == ["flfw/b.py:1: B inherits from the concrete A"]
    for parent in (
        "class A(ABC):\n    pass\n",
        "class A(ValueError):\n    pass\n",
        "@dataclass(frozen=True)\nclass A:\n    x: int\n",
        "class A:\n    @abstractmethod\n    def f(self): ...\n",
    ):
        assert found(subclassed_concrete, flfw__a=parent, flfw__b=heir) == []


def test_two_classes_of_one_name() -> None:
    twice = "class A:\n    pass\n"
    assert found(classes_of_one_name, flfw__a=twice, flfw__b="\n" + twice) == [
        "flfw/a.py:1, flfw/b.py:2: two classes are called A"
    ]


def test_the_rules_look_at_every_layer() -> None:
    seen = {source.name for source in read(ROOT)}
    assert {"sim.py", "flfw/errors.py", "papers/hyperfl.py", "strategies/hyperfl.py", "attacks/ig.py"} <= seen
    assert {"clients/sgd.py", "clients/defences/__init__.py"} <= seen


WRONG_IMPORTS = {
    "flfw/errors.py": "from flfw.task.task import Task",
    "flfw/task/pipeline.py": "def f():\n    from flfw.strategies import fedavg",
    "clients/sgd.py": "import flfw.attacks.ig as a",
    "flfw/experiment/curves.py": "import benchmarks.dp",
    "flfw/data/files/columns.py": "import flfw.data.tables.listing",
    "flfw/task/task.py": "import cloudpickle",
    "papers/hyperfl.py": "import attacks.ig",
}


@pytest.mark.slow
def test_wrong_imports_break_the_contracts(tmp_path: Path) -> None:
    """Each contract of pyproject.toml is kept by the sources, and names each import that breaks it."""
    for name in ("flfw", "strategies", "clients", "attacks", "papers", "benchmarks", "research"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    contracts = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert all(f"{contract['name']} KEPT" in lint_imports(tmp_path) for contract in contracts)
    for file, line in WRONG_IMPORTS.items():
        with (tmp_path / file).open("a") as source:
            source.write(f"\n{line}\n")
    (tmp_path / "flfw" / "attic.py").touch()
    printed = lint_imports(tmp_path)
    assert [contract["name"] for contract in contracts if f"{contract['name']} BROKEN" not in printed] == []
    for line in (
        "flfw.errors -> flfw.task.task",
        "flfw.clients.sgd -> flfw.attacks.ig",
        "flfw.papers.hyperfl -> attacks",
    ):
        assert line in printed
    assert "flfw.attic" in printed


def lint_imports(folder: Path) -> str:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([program, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
def test_a_client_process_imports_nothing_heavy() -> None:
    heavy = ("torchvision", "sklearn", "flwr_datasets", "pandas", "scipy", "matplotlib", "torch._dynamo", "ray")
    modules = [
        ".".join(("flfw", *source.parts))
        for source in read(ROOT)
        if source.parts[0] in ("strategies", "clients") and source.parts[-1] != "__init__"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in ['flfw.engines.apps', *{modules}]: importlib.import_module(name)\n"
        f"print([name for name in {heavy} if name in sys.modules], 'flfw.clients.sgd' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


FOLDERS = set(".ci attacks benchmarks clients deploy docs examples flfw papers research strategies tests".split())


def test_nothing_that_a_test_or_a_run_wrote_is_tracked() -> None:
    """Every folder at the top is one of the project's."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    assert {line.partition("/")[0] for line in listed.stdout.splitlines() if "/" in line} == FOLDERS
