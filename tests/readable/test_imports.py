"""Imports that the pages of today name: each works, or the old place names a new one that does."""

import importlib
import re
import sys
import types
import warnings

import pytest

from tests.readable.outside import HERE, require_one_line

IMPORTS = [line for line in (HERE / "imports.txt").read_text().split("\n") if line and not line.startswith("#")]


def found(place: str) -> object:
    """Import ``module:name`` or a module."""
    module, _, name = place.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # an old place may warn
        there = importlib.import_module(module)
        return getattr(there, name) if name else there


def require_kept(place: str) -> None:
    """Fail unless an import works, or is refused in one line with the place or the name that it has now."""
    try:
        found(place)
    except (ImportError, AttributeError) as error:
        refusal = str(error)
    else:
        return None
    require_one_line(refusal)
    module, _, name = place.rpartition(":")
    for other in re.findall(r"\b\w+(?:\.\w+)+(?::\w+)?", refusal.split(", got ")[0]):
        into, _, new = other.replace(":", ".").rpartition(".")
        moved = module and f"its earlier name {module};" in refusal  # then the module's name is given
        for spelling in (f"{other}:{name}",) if moved else (f"{into}:{new}",):
            if new == name or moved or f"its earlier name {name};" in refusal:
                try:
                    return require_kept(spelling) if moved else require_found(spelling)
                except AssertionError:
                    continue
    raise AssertionError(f"{place} is gone, and names no new place: {refusal}")


def require_found(place: str) -> None:
    """Fail unless an import works."""
    try:
        found(place)
    except (ImportError, AttributeError) as error:
        raise AssertionError(f"{place} is not there: {error}") from error


@pytest.mark.parametrize("place", IMPORTS)
def test_an_import_of_today_works(place: str) -> None:
    require_kept(place)


def test_a_place_that_moved_says_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with a refusal in it, and one without."""
    old = types.ModuleType("flfw.old_place")
    monkeypatch.setitem(sys.modules, "flfw.old_place", old)

    def moved(name: str) -> object:
        raise AttributeError(f"Expected flfw.errors:{name}, got flfw.old_place:{name}; import it from there.")

    with pytest.raises(AssertionError, match="names no new place"):
        require_kept("flfw.old_place:InputError")
    old.__getattr__ = moved  # type: ignore[method-assign]
    require_kept("flfw.old_place:InputError")
    for gone in ("flfw.old_place:Nothing", "flfw.no_place:InputError", "flfw.no_place"):
        with pytest.raises(AssertionError, match="names no new place"):
            require_kept(gone)
