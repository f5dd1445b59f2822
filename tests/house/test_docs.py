"""The pages a reader opens: there is one for each plug-in, and the commands on them are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import sim
from flfw import data, nets, plugins
from flfw.data.splits import partition
from papers.published import table
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLUGINS = [
    (kind.noun, name) for kind in (plugins.METHOD, plugins.ATTACK, plugins.DEFENCE) for name in plugins.names(kind)
]


@pytest.mark.parametrize(("noun", "name"), PLUGINS)
def test_every_plugin_has_a_page_that_the_readme_links(noun: str, name: str) -> None:
    page = f"docs/{noun}s/{name}.md"
    assert (ROOT / page).read_text().startswith(f"# {name}\n")
    assert f"[{name}]({page})" in (ROOT / "README.md").read_text()


def test_every_data_set_and_split_is_explained() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    assert [name for name in (*data.names(), *partition.schemes()) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_the_pages_parse(page: Path) -> None:
    for block in re.findall(r"```\n(.*?)```", page.read_text(), re.DOTALL):
        for line in re.findall(r"^python sim\.py(.*)$", block.replace("\\\n", " "), re.MULTILINE):
            command = sim.parse(shlex.split(line, comments=True))
            experiment = command.experiment
            if ":" not in experiment.method:
                assert experiment.method in plugins.names(plugins.METHOD)
            assert experiment.dataset.partition(":")[0] in (*data.names(), "folder", "hf", "site")
            assert experiment.net in ("auto", *nets.names())
            assert experiment.split in ("auto", *partition.schemes())
            if command.table or command.cell:
                table(command.table or command.cell.partition("/")[0]).select(command.cell)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links {target}"
