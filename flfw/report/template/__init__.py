"""Jinja templates of the report's page: HTML, and the style and script in it.

Their names end in ``.md`` because Flower's app bundles hold no HTML, CSS or JavaScript.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template


def page_template(path: Path, **filters: Callable[..., Any]) -> Template:
    """Return the template of a page; it may include files of its own folder and of this one.

    Args:
        path: the page's file.
        filters: functions that the page calls, by their names there.
    """
    folders = [path.parent, Path(__file__).parent]
    jinja = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,  # of an included file, too
    )
    jinja.filters.update(filters)
    return jinja.get_template(path.name)
