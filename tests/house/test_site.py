"""The site of docs/, and the same pages as GitHub shows them: each is found, and each link leads somewhere."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import flfw
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
FENCED = re.compile(r"^ *```.*?^ *```[^\S\n]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")
ADDED = ("source/CHANGELOG.md",)  # pages of the site that its hook adds


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def settings() -> dict[str, Any]:
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def in_nav(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from in_nav(value)
    else:
        for one in entry:
            yield from in_nav(one)


def test_every_page_stands_in_the_nav_once() -> None:
    listed = [name for name in in_nav(settings()["nav"]) if name not in ADDED]
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def without_code(text: str) -> str:
    return FENCED.sub("", text)


def anchors(text: str) -> set[str]:
    """Name the anchors of a page's headings as GitHub does."""
    names: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", without_code(text), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        count = 0
        while (numbered := f"{name}-{count}" if count else name) in names:
            count += 1
        names.add(numbered)
    return names


def dead_links(page: Path) -> list[str]:
    """List the links of a page that lead to no file, or to no heading of one."""
    dead = []
    for target, anchor in LINK.findall(without_code(page.read_text())):
        file = page.parent / target if target else page
        leads = file.exists() and (not anchor or (file.suffix == ".md" and anchor in anchors(file.read_text())))
        dead += [] if leads else [f"{target}#{anchor}" if anchor else target]
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere_on_github(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One: `a.b`, and c\n## Two\n## Two\n```\n# Three\n[x](no.md)\n```\n")
    page = tmp_path / "page.md"
    page.write_text("# Here\n[1](other.md#one-ab-and-c) [2](other.md#two-1) [3](other.md#two-2) [4](other.md#three)\n")
    assert dead_links(page) == ["other.md#two-2", "other.md#three"]
    page.write_text("[5](#here) [6](gone.md) [7](https://example.org/#x) [8](other.md)\n")
    assert dead_links(page) == ["#here", "gone.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, where a download would fail."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https")}
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    variables = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|link(?![^>]*rel=.?(?:canonical|next|prev)))[^>]*(?:src|href)=.?(?:https?:)?//"
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    assert [str(page.relative_to(site)) for page in pages if loading.search(page.read_text())] == []
    styles = [path.name for path in site.rglob("*.css") if re.search(r"(?:@import|url\()\W*https?:", path.read_text())]
    assert styles == []


@pytest.mark.slow
def test_the_site_has_the_docstrings_and_what_pages_link_outside_docs(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    weights = {one["location"]: one.get("boost", 1.0) for one in found}
    assert weights["privacy.html"] > weights["rehearsal.html"] > weights["api/experiment.html"]
    experiment = (site / "api" / "experiment.html").read_text()
    assert "local_epochs" in experiment and "Passes over a client's own data in each round." in experiment
    assert "Hooks of a client-side defence" in (site / "api" / "defences.html").read_text()
    assert 'href="source/strategies/hyperfl.py.html"' in (site / "code.html").read_text()
    assert "Guo et al." in (site / "source" / "strategies" / "hyperfl.py.html").read_text()
    assert 'href="../running.html#engines"' in (site / "source" / "CHANGELOG.html").read_text()


def test_the_citation_has_what_github_needs() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    needed = {"cff-version", "message", "title", "authors"}
    known = needed | {*"abstract type version license keywords repository-code".split()}  # of the format 1.2.0, as used
    assert needed <= cited.keys() <= known
    assert (cited["cff-version"], cited["type"], cited["license"]) == ("1.2.0", "software", "Apache-2.0")
    assert cited["version"] == flfw.__version__
    assert all(author.keys() == {"name"} and author["name"] for author in cited["authors"])
    assert f"version = {{{flfw.__version__}}}" in (DOCS / "citing.md").read_text()
