"""Hook of MkDocs: whatever docs/ links outside itself becomes a page of the site.

On GitHub a page of docs/ may link `../papers/hyperfl.py` or `../deploy`. The site has only docs/. So each such file
gets a page under `source/` that shows it, each folder one that lists it, and the links lead there.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_FENCED = re.compile(r"(^ *```.*?^ *```[^\S\n]*$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(\))")
_ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md")  # pages of the site that no other page needs to link
_DOCS = PurePosixPath("docs")
_FOUND = {"extending.md": 40.0, "privacy.md": 40.0, "api": 0.02, "source": 0.02, "tables": 0.1}  # weights in a search
_LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file and folder outside docs/ that some page links; those pages may link further ones."""
    root = Path(config.config_file_path).parent
    pages = [(_DOCS / file.src_uri, Path(str(file.abs_src_path)).read_text()) for file in files.documentation_pages()]
    waiting = [PurePosixPath(name) for name in _ALWAYS]
    for place, text in pages:
        waiting += outside(place, text)
    known: set[str] = set()
    while waiting:
        place = waiting.pop()
        page = site_place(root, place)
        if str(page) in known or not (root / place).exists():  # a link to nowhere is reported where it stands
            continue
        known.add(str(page))
        text = shown(root, place)
        files.append(File.generated(config, str(page), content=text))
        waiting += outside(text_place(root, place), text)
    return files


def on_page_markdown(markdown: str, /, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page that lead out of docs/ into links to the pages that were added."""
    root, here = Path(config.config_file_path).parent, PurePosixPath(page.file.src_uri)
    page.meta["search"] = {"boost": _FOUND.get(here.parts[0], 1.0)}
    origin = repository_place(here)

    def at_site(target: PurePosixPath) -> str:
        return os.path.relpath(site_place(root, target), here.parent)

    return rewritten(markdown, origin, lambda target: at_site(target) if (root / target).exists() else None)


def outside(path: PurePosixPath, text: str) -> list[PurePosixPath]:
    """List the places outside docs/ that a page links.

    Args:
        path: the page's, from the checkout.
        text: its Markdown.
    """
    targets: list[PurePosixPath] = []

    def note(target: PurePosixPath) -> None:
        targets.append(target)

    rewritten(text, path, note)
    return [target for target in targets if not target.is_relative_to(_DOCS)]


def rewritten(text: str, path: PurePosixPath, link: Callable[[PurePosixPath], str | None]) -> str:
    """Replace the relative links of a page outside its blocks of code.

    Args:
        text: Markdown.
        path: place of the page, from the checkout.
        link: returns the new link for a target, a place from the checkout; None: the link stays.
    """

    def replaced(found: re.Match[str]) -> str:
        target = PurePosixPath(os.path.normpath(path.parent / found[2]))
        return f"{found[1]}{link(target) or found[2]}{found[3] or ''}{found[4]}"

    parts = _FENCED.split(text)
    return "".join(part if part.lstrip().startswith("```") else _LINK.sub(replaced, part) for part in parts)


def text_place(root: Path, path: PurePosixPath) -> PurePosixPath:
    """Return the file whose text stands for a place: a folder's README, if it has one."""
    readme = path / "README.md"
    return readme if (root / readme).is_file() else path / "index.md" if (root / path).is_dir() else path


def site_place(root: Path, path: PurePosixPath) -> PurePosixPath:
    """Return the place in the site's sources of a place in the checkout."""
    if path.is_relative_to(_DOCS):
        return path.relative_to(_DOCS)
    file = text_place(root, path)
    return PurePosixPath("source") / (file if file.suffix == ".md" else f"{file}.md")


def repository_place(page: PurePosixPath) -> PurePosixPath:
    """Return the place in the checkout of a page of the site, by which its links are read."""
    return page.relative_to("source") if page.is_relative_to("source") else _DOCS / page


def shown(root: Path, location: PurePosixPath) -> str:
    """Return the Markdown that shows a file, or lists a folder."""
    file = text_place(root, location)
    if (root / file).is_file() and file.suffix == ".md":
        return (root / file).read_text()
    if (root / location).is_dir():
        names = sorted(
            path.name + "/" * path.is_dir() for path in (root / location).iterdir() if path.name[0] not in "._"
        )
        return "\n".join([f"# {location}/", "", *(f"- `{name}`" for name in names), ""])
    return f"# {location}\n\n````{_LANGUAGES.get(location.suffix, 'text')}\n{(root / location).read_text()}\n````\n"
