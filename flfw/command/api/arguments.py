"""Experiments and folders from the arguments of a call."""

import dataclasses
import os
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

from flfw.errors import InputError, require, suggestion
from flfw.experiment import Experiment
from flfw.files.earlier_names import earlier_setting
from flfw.files.folders import from_home
from flfw.files.typed import SchemaMismatchError, fit

T = TypeVar("T")

_FIELDS = tuple(field.name for field in dataclasses.fields(Experiment))


def experiment_of(given: Experiment | None, fields: dict[str, Any]) -> Experiment:
    """Return the experiment of a call: the given one, or the defaults, with the fields that were given beside it.

    As on the command line, ``metrics`` is ``auto`` with secure noise, and ``defence_randomness``, too, for a federation
    of real sites, if nothing else is asked for; but an experiment that was made before is taken as it is.

    Raises:
        InputError: a field does not exist, or does not fit.
    """
    require(given is None or isinstance(given, Experiment), "an Experiment or its fields", given=type(given).__name__)
    require_fields(fields, _FIELDS)
    if given is None and fields.get("federation") is not None:
        fields = {"metrics": "auto", "defence_randomness": "auto", **fields}
    experiment = dataclasses.replace(given or Experiment(), **fields)
    secure = given is None and any(word.endswith("noise_source=secure") for word in experiment.set)
    return dataclasses.replace(experiment, metrics="auto") if secure and "metrics" not in fields else experiment


def changed(stored: Experiment, fields: dict[str, Any]) -> Experiment:
    """Return the experiment of an earlier run with other values of some fields.

    Raises:
        InputError: a field does not exist, or does not fit.
    """
    require_fields(fields, _FIELDS)
    return dataclasses.replace(stored, **fields)


def require_fields(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are no fields.

    Raises:
        InputError: names the first of them, and a field that it resembles.
    """
    known = list(known)
    for name in given:
        if name not in known:
            if refused := earlier_setting(name.replace("_", "-")):
                raise InputError(f"{refused}.")
            question = suggestion(name, known) or "; see help(flfw.Experiment)."
            raise InputError(f"Expected a field of Experiment, got {name}{question}")


def folder_of(run: str | os.PathLike[str], name: str = "folder") -> Path:
    """Return the absolute folder of a run that is given as its result or by its path.

    Raises:
        InputError: it is neither; the message has the argument's name.
    """
    return path_of(run, name).absolute()


def path_of(given: str | os.PathLike[str], name: str) -> Path:
    """Return a path that is given as text, as a path or as a result.

    Raises:
        InputError: it is something else; the message has the argument's name.
    """
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(path, str):
        raise InputError(f"Expected {name} as a path or a result, got {given!r:.80}.")
    return from_home(Path(path))


def words_of(given: str | Iterable[str], name: str) -> tuple[str, ...]:
    """Return words that are given as one or several.

    Raises:
        InputError: they are something else; the message has the argument's name.
    """
    return _several(given, str, str, name, "words")


def numbers_of(given: int | Iterable[int], name: str) -> tuple[int, ...]:
    """Return whole numbers, Python's or NumPy's, that are given as one or several.

    Raises:
        InputError: they are something else; the message has the argument's name.
    """
    return _several(given, Integral, int, name, "whole numbers")


def word_of(given: str, name: str) -> str:
    """Return one word.

    Raises:
        InputError: it is something else; the message has the argument's name.
    """
    return _fitted(given, str, name)


def number_of(given: int, name: str) -> int:
    """Return a whole number, Python's or NumPy's.

    Raises:
        InputError: it is something else; the message has the argument's name.
    """
    return _fitted(given, int, name)


def _several(given: Any, one: type, kind: type[T], name: str, text: str) -> tuple[T, ...]:
    """Return one value, or several, as a tuple of a type."""
    if isinstance(given, one):
        return (_fitted(given, kind, name),)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"Expected {name} as {text}, got {given!r}.")
    return tuple(_fitted(value, kind, f"{name}[{at}]") for at, value in enumerate(given))


def _fitted(value: Any, kind: type[T], name: str) -> T:
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)
    try:
        return fit(value, kind, name)
    except SchemaMismatchError as error:
        raise InputError(f"Expected {error}.") from error


def experiment_from(config: dict[str, Any]) -> Experiment:
    """Return the experiment behind the ``config`` of a result.json, without its folder.

    Raises:
        InputError: a value does not fit, as in the result of another version, or the result is of another app's audit.
    """
    if missing := [name for name in ("clients", "rounds", "engine") if name not in config]:
        raise InputError(f"Expected the settings of a run, got one without {missing[0]}, as of another app's audit.")
    fields = {name: value for name, value in config.items() if name in _FIELDS}
    return dataclasses.replace(Experiment(**fields), out=None)
