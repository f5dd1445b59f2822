"""The pages a reader opens: there is one for each plug-in, and commands, flags, files and keys on them exist."""

import importlib
import importlib.util
import re
import shlex
import types
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest

import sim
from docs.hooks import renames
from flfw import data, nets, plugins
from flfw.command.flags import declared, expert, flags
from flfw.command.rehearse import DEFAULT, RehearsalCommand
from flfw.data.splits import schemes
from flfw.files.outcomes import Cause
from flfw.files.result_entries import ResultModel
from flfw.files.result_file import ResultFields
from flfw.papers.frontier.points import NAME
from flfw.papers.frontier.points import table as frontier
from flfw.papers.published import table
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_NAMES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "examples").rglob("README.md"))]
TOPS = "flfw|strategies|clients|attacks|papers|benchmarks|research|tests|docs|examples"
DOTTED = re.compile(rf"(?<![\w./:-])(?:{TOPS}|sim)(?:\.[A-Za-z_]\w*)+(?::\w+)?(?![\w/*])")
PLACE = re.compile(rf"(?<![\w./:-])(?:{TOPS})/[\w./*-]*[\w*/]")
RUN = re.compile(r"python3? -m ([\w.]+)")
FILES = (".py", ".md", ".csv", ".json")
FORMER = re.compile(r"\(was [^)]*\)")
EXPERT = re.compile(r"--expert ([a-z]\w+)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
ADDED = re.compile(r"\.add_argument\([^)]*?\"(--[a-z][a-z0-9-]*)\"")
OTHERS_FLAGS = {
    "flwr": "--federation-config --run-config --stream",
    "ray": "--address --head --num-cpus",
    "docker": "--detach --file --tag",
    "systemd": "--now --offline --shell --system",
    "chromium, uv": "--headless --print-to-pdf --torch-backend",
    "trackers": "--append --logdir",
    "pytest": "--hypothesis-profile --durations",
}
"""Flags of other programs that the pages name."""
KEY = re.compile(rf"`((?:{'|'.join(ResultFields.model_fields)})(?:\[\])?(?:\.\w+(?:\[\])?)+)`")
WRITTEN = re.compile(r"^```\w+\n(?:#|<!--) (\S+\.\w+)(?: -->)?$", re.MULTILINE)
PLUGINS = [
    (kind.noun, name) for kind in (plugins.METHOD, plugins.ATTACK, plugins.DEFENCE) for name in plugins.names(kind)
]


def test_every_plugin_has_a_page_that_the_readme_links() -> None:
    readme, missing = (ROOT / "README.md").read_text(), []
    for noun, name in PLUGINS:
        path = f"docs/{noun}s/{name}.md"
        if not (ROOT / path).exists() or not (ROOT / path).read_text().startswith(f"# {name}\n"):
            missing.append(f"write {path}, the page of the {noun}, and begin it with '# {name}'")
        if f"[{name}]({path})" not in readme:
            missing.append(f"link [{name}]({path}) in README's table")
    assert missing == []


def test_every_data_set_and_split_is_explained() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    assert [name for name in (*data.names(), *schemes.schemes()) if f"`{name}`" not in page] == []
    assert f"[{len(data.names())} sets](docs/data.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_on_the_pages_lead_somewhere_and_commands_parse(page: Path) -> None:
    text = page.read_text()
    assert [to for to in re.findall(r"\]\((?!https?:)([^)#]+)\)", text) if not (page.parent / to).exists()] == []
    written = {Path(file).stem for file in WRITTEN.findall(text)}  # plug-ins that the reader writes
    written |= {file.removesuffix(".py").replace("/", ".") for file in WRITTEN.findall(text)}  # in a package
    for block in re.findall(r"^```(?:\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in re.findall(r"^python sim\.py(.*)$", block.replace("\\\n", " "), re.MULTILINE):
            command = sim.parse(shlex.split(line, comments=True))
            experiment = command.experiment
            if ":" not in experiment.method:
                assert experiment.method in {*plugins.names(plugins.METHOD), *written}
            assert experiment.dataset.partition(":")[0] in {*data.names(), *data.PREFIXES, *written}
            assert experiment.net.partition(":")[0] in {"auto", *nets.names(), *written}
            assert experiment.split.partition(":")[0] in {"auto", *schemes.schemes(), *written}
            if (command.table or command.cell) and command.table.partition(":")[0] not in written:
                name = command.table or command.cell.partition("/")[0]
                (frontier() if name == NAME else table(name)).select(command.cell)


def test_each_name_on_the_page_on_code_is_defined_in_a_file_that_it_links() -> None:
    text = (ROOT / "docs" / "code.md").read_text()
    linked = "\n".join((ROOT / file).read_text() for file in re.findall(r"\]\(\.\./([^)]+\.py)\)", text))
    named = {name.rpartition(".")[2] for name in re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)`", text)}
    files = {"py", "toml", "flwr", "clients", "attacks", "papers"}
    assert {name for name in named - files if not is_defined(name, linked)} == set()
    for name, file in re.findall(r"`([\w.]+)` of (?:its )?\[[^]]+\]\(\.\./([^)]+\.py)\)", text):
        assert is_defined(name.rpartition(".")[2], (ROOT / file).read_text()), (name, file)
    for owner, method in re.findall(r"`([A-Z]\w+)\.(\w+)`", text):
        bodies = re.findall(rf"^class {owner}\b.*?(?=^\S|\Z)", linked, re.DOTALL | re.MULTILINE)
        assert any(is_defined(method, body) for body in bodies), (owner, method)


def test_each_cause_of_a_verdict_is_explained_on_a_page() -> None:
    pages = [ROOT / "docs" / f"{page}.md" for page in ("verdicts", "membership", "attacks/label_distribution")]
    text = "".join(page.read_text() for page in pages)
    causes = [cause for group in get_args(Cause) for cause in get_args(group) or [group]]
    assert len(causes) > 30
    assert [cause for cause in causes if f"`{cause}`" not in text] == []


def is_defined(name: str, code: str) -> bool:
    return re.search(rf"(def|class) {name}\b|self\.{name} =|^{name}\b.* =", code, re.MULTILINE) is not None


def reachable(name: str) -> bool:
    """Tell whether a dotted name is a module, or an attribute of one."""
    parts = name.replace(":", ".").split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        try:
            if importlib.util.find_spec(module) is None:
                continue
        except ModuleNotFoundError:
            continue
        reached = importlib.import_module(module)
        for attribute in parts[count:]:
            try:
                reached = getattr(reached, attribute)
            except (AttributeError, ImportError):  # there is none, or it has another name today
                return False
        return True
    return False


def runnable(module: str) -> bool:
    """Tell whether ``python -m`` can run a module; it is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return False
    return bool(spec and not spec.submodule_search_locations) or runnable(f"{module}.__main__")


def here(place: str, page: Path) -> bool:
    """Tell whether a path, from the checkout or the page's folder, exists; a pattern or a NAME must match something."""
    return any(ROOT.glob(re.sub(r"[A-Z]{3,}", "*", place.rstrip("/")))) or (page.parent / place).exists()


def unknown_names(page: Path, root: Path) -> Iterator[str]:
    """List what a page names that does not exist, each with page and line; former names, "(was ...)", are free."""
    text = page.read_text()
    examples = set(WRITTEN.findall(text))  # files that the reader writes
    for number, line in enumerate(text.splitlines(), 1):
        line, at = FORMER.sub("", line), f"{page.relative_to(root)}:{number}"
        commands = RUN.findall(line)
        yield from (f"{at}: no module to run, {name}" for name in commands if not runnable(name))
        names = [name for name in DOTTED.findall(line) if not name.endswith(FILES) and name not in commands]
        modules = {f"{top}{file.removesuffix('.py').replace('/', '.')}" for file in examples for top in ("", "flfw.")}
        names = [name for name in names if name.partition(":")[0] not in modules]
        yield from (f"{at}: no name {name}" for name in names if not reachable(name))
        places = [index for index in PLACE.findall(line) if index not in examples]
        yield from (f"{at}: no file {index}" for index in places if not here(index, page))


@cache
def known_flags() -> frozenset[str]:
    """Flags of this project's commands, and of others' that the pages name."""
    sources = [
        path
        for top in ("flfw", "papers", "benchmarks", "research", "tests/campaigns", "examples")
        for path in (ROOT / top).rglob("*.py")
    ]
    parsed = {flag for path in sources for flag in ADDED.findall(path.read_text())}
    fields = {f"--{name}" for name in (*flags(), *(flag.name for flag in declared(RehearsalCommand(DEFAULT))))}
    return frozenset({"--help", "--help-all", *parsed, *fields, *" ".join(OTHERS_FLAGS.values()).split()})


def has(kind: Any, keys: Sequence[str]) -> bool:
    """Tell whether a type of result.json has a field within a field; of unnamed fields every one is there."""
    if not keys or kind is Any:
        return True
    parts = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return any(has(part, keys) for part in parts)
    if get_origin(kind) in (list, dict):
        return has(parts[-1], keys if get_origin(kind) is list else keys[1:])
    if not (isinstance(kind, type) and issubclass(kind, ResultModel)):
        return False
    return keys[0] in kind.model_fields and has(kind.model_fields[keys[0]].annotation, keys[1:])


def unknown_flags_and_keys(text: str) -> Iterator[str]:
    """List flags of no command, and keys such as ``rounds[].loss`` that result.json does not have, with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from (f"{number}: no flag {flag}" for flag in FLAG.findall(line) if flag not in known_flags())
        keys = [key for key in KEY.findall(line) if not key.startswith("flfw.") and not key.endswith((*FILES, ".txt"))]
        yield from (
            f"{number}: no key {key}" for key in keys if not has(ResultFields, key.replace("[]", "").split("."))
        )


@pytest.mark.parametrize("page", WITH_NAMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_keys_names_and_files_on_the_pages_exist(page: Path) -> None:
    assert list(unknown_flags_and_keys(page.read_text())) == []
    assert list(unknown_names(page, ROOT)) == []


def test_settings_behind_expert_exist_on_the_pages_and_in_messages() -> None:
    known = {flag.name.replace("-", "_") for flag in expert()}
    sources = sorted(path for kind in ("*.py", "*.toml") for path in (ROOT / "flfw").rglob(kind))
    named = {(path.name, name) for path in [*WITH_NAMES, *sources] for name in EXPERT.findall(path.read_text())}
    assert {(place, name) for place, name in named if name not in known} == set()


def test_the_page_of_earlier_names_has_those_of_the_code() -> None:
    assert renames.PAGE.read_text() == renames.page(), "run python -m docs.hooks.renames"


def test_a_flag_or_key_that_does_not_exist_is_reported_with_its_line() -> None:
    text = (
        "`--rounds 3`, `--engin ray`, `provenance.data.md5_ok`, `rounds[].failed`, `audit.csv`, a -- dash\n"
        "`--local-epoch`, `--write-policy`, `rounds[].loses`, `provenance.data.md6`, `sums.peer.verdict`\n"
    )
    assert list(unknown_flags_and_keys(text)) == [
        "1: no flag --engin",
        "2: no flag --local-epoch",
        "2: no key rounds[].loses",
        "2: no key provenance.data.md6",
    ]


def test_a_name_that_does_not_exist_is_reported_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`flfw.server.FederatedStrategy`, `flfw.engines.apps:client`, flfw/engines/apps.py, docs/methods/*.md (was "
        "`flfw.gone`).\n"
        "`flfw.server.Nobody`, `flfw.nowhere.at_all`, `flfw.engines.apps:nobody`,\n"
        "flfw/nowhere.py, docs/nothing/*.md, `python -m flfw.server`, `python -m benchmarks.data`\n"
    )
    assert list(unknown_names(page, tmp_path)) == [
        "page.md:2: no name flfw.server.Nobody",
        "page.md:2: no name flfw.nowhere.at_all",
        "page.md:2: no name flfw.engines.apps:nobody",
        "page.md:3: no module to run, flfw.server",
        "page.md:3: no file flfw/nowhere.py",
        "page.md:3: no file docs/nothing/*.md",
    ]
