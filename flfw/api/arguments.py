"""Experiments and folders from the arguments of a call."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flfw.errors import BadInput, meant, require
from flfw.experiment import Experiment

_FIELDS = tuple(field.name for field in dataclasses.fields(Experiment))


def experiment_of(given: Experiment | None, fields: dict[str, Any]) -> Experiment:
    """Return the experiment of a call: the given one, or the defaults, with the fields that were given beside it.

    As on the command line, ``metrics`` is ``auto`` for a federation of real sites if nothing else is asked for; but an
    experiment that was made before is taken as it is.

    Raises:
        BadInput: a field does not exist, or does not fit.
    """
    require(given is None or isinstance(given, Experiment), "an Experiment or its fields", given=type(given).__name__)
    require_fields(fields, _FIELDS)
    if given is None and fields.get("federation") is not None:
        fields = {"metrics": "auto", **fields}
    return dataclasses.replace(given or Experiment(), **fields)


def changed(stored: Experiment, fields: dict[str, Any]) -> Experiment:
    """Return the experiment of an earlier run with other values of some fields.

    Raises:
        BadInput: a field does not exist, or does not fit.
    """
    require_fields(fields, _FIELDS)
    return dataclasses.replace(stored, **fields)


def require_fields(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are no fields.

    Raises:
        BadInput: names the first of them, and a field that it resembles.
    """
    known = list(known)
    for name in given:
        if name not in known:
            question = meant(name, known) or "; see help(flfw.Experiment)."
            raise BadInput(f"Expected a field of Experiment, got {name}{question}")


def folder_of(run: str | os.PathLike[str]) -> Path:
    """Return the absolute folder of a run that is given as its result or by its path."""
    return Path(os.fspath(run)).absolute()


def experiment_from(config: dict[str, Any]) -> Experiment:
    """Return the experiment behind the ``config`` of a result.json, without its folder.

    Raises:
        BadInput: a value does not fit, as in the result of another version, or the result is of another app's audit.
    """
    if missing := [name for name in ("clients", "rounds", "engine") if name not in config]:
        raise BadInput(f"Expected the settings of a run, got one without {missing[0]}, as of another app's audit.")
    fields = {name: value for name, value in config.items() if name in _FIELDS}
    return dataclasses.replace(Experiment(**fields), out=None)
