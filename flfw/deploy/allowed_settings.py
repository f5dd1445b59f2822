"""Pins of a run: the settings that a site's policy allows, in the policy's table ``run``.

    [run]
    method = "hyperfl"                  this value
    net = ["cnn1", "lenet"]             one of these
    rounds = {min = 1, max = 200}       a number in this range

The table is closed: a setting that it does not name must have its default. Settings that change nothing at a site are
free: `FREE`. Names in other settings by which a server could choose what a site reads, executes or gives away are
told here as well.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.experiment.experiment import FREE_ON_RESUME
from flfw.files.earlier_names import renames, settings_of_today

_OF_THE_POLICY = ("metrics", "record", "defence-randomness")  # it has rules of its own for them
_OF_THE_SERVER = ("seed", "ema", "final-eval-clients", "epsilon-budget")
_OF_THE_AUDIT = (
    "attack", "audit-rounds", "audit-source", "victim-batch", "victim-steps", "images", "curve",
    "sum-size", "vantage", "adaptation", "attack-precision",
)  # fmt: skip
FREE = frozenset(
    (*(name.replace("_", "-") for name in FREE_ON_RESUME), *_OF_THE_POLICY, *_OF_THE_SERVER, *_OF_THE_AUDIT)
)
"""Keys of a run's configuration that need no pin.

Those of the audit matter with ``allow_recording = true`` alone, where probes are about the site's audit examples. The
seed draws shuffles, first weights and the halves of a site's test part, and a server can choose it for them: which
examples come last in a pass, or which are in which half. It must not be secret. A share of a GPU chooses the device.
"""

SHOWN = 80
"""Characters of a name that a server chose, in a reason."""
BY_PATH = ("csv:", "folder:", "hf:", "parquet:", "text:")
"""Beginnings of data sets of which the server says where they lie on this machine."""
DATA_PREFIXES = (
    "celeba", "csv", "digit5", "domainnet", "folder", "hf", "office_caltech", "parquet", "site", "synthetic",
    "synthetic_images", "text",
)  # fmt: skip
"""Words before the colon of the project's data sets; a test keeps them complete."""

# They may name any class installed at the site.
_PLUGGED = ("method", "defence", "attack", "malicious-server", "net", "split")

_IN_WORDS = ("set",)  # keys of which a run reads the words, so that quotes make no difference

_ENDS = {"min": "at least", "max": "at most"}
_SPLIT = 10_000  # characters of a value that is split into words: a megabyte would take half a minute


@final
@dataclass(frozen=True)
class AllowedSettings:
    """Pins of one policy.

    Attributes:
        rules: for each named key of a run's configuration a value, a list of values, or a table with ``min``,
            ``max`` or both.
    """

    rules: Mapping[str, Any]

    @classmethod
    def read(cls, table: object, path: Path) -> AllowedSettings:
        """Read the table ``run`` of a policy.

        Raises:
            InputError: it is no table, or names an unknown or free key, or a rule of another form.
        """
        if not isinstance(table, dict):
            raise InputError(f"Expected a table [run] in {path}, got run={table}.")
        table = {key: _of_today(rule) for key, rule in settings_of_today(table).items()}
        pinned = [key for key in Experiment().to_run_config() if key not in FREE]
        for key, rule in table.items():
            if key not in pinned:
                raise InputError(f"Expected a key among {', '.join(pinned)} in [run] of {path}, got {key}.")
            if not _is_rule(rule):
                forms = "a value, a list of values or {min = ..., max = ...}"
                raise InputError(f"Expected {forms} for {key} in [run] of {path}, got {rule}.")
        return cls(dict(table))

    def refusal(self, run_config: Mapping[str, Any]) -> str | None:
        """Return the first setting of a run that is not allowed, with the allowed values; None: all are allowed.

        Args:
            run_config: the configuration by its flat keys; one that lacks a key has its default.
        """
        return next(self.refusals(run_config), None)

    def refusals(self, run_config: Mapping[str, Any]) -> Iterator[str]:
        """Yield all settings of a run that are not allowed, as `refusal` says the first."""
        known = Experiment().to_run_config()
        for key, default in known.items():
            value, rule = run_config.get(key, default), self.rules.get(key, default)
            if key not in FREE and not _allows(rule, value, words=key in _IN_WORDS):
                yield f"{key}={str(value)[:SHOWN] or 'nothing'}, and {_words(key, rule)}"
        for key in run_config:
            if key not in known:
                yield f"{key[:SHOWN]}, which is no setting here"

    def allowed(self, key: str) -> Any:
        """Return a value that a setting may have."""
        rule = self.rules.get(key, Experiment().to_run_config()[key])
        if isinstance(rule, dict):
            return next(rule[end] for end in _ENDS if end in rule)
        return rule[0] if isinstance(rule, list) else rule

    def text(self) -> str:
        """Return the table as it stands in the policy's file."""
        return "\n".join(["[run]", *(f"{key} = {_toml(rule)}" for key, rule in self.rules.items())]) + "\n"


def pins_of(experiment: Experiment, dataset: str) -> AllowedSettings:
    """Pin a run to its settings: so many rounds or fewer, and any number of clients.

    Args:
        experiment: the settings.
        dataset: name of the data set by which the server asks for the site's own data.
    """
    default = Experiment().to_run_config()
    chosen = {key: value for key, value in experiment.to_run_config().items() if key not in FREE}
    rules: dict[str, Any] = {key: value for key, value in chosen.items() if value != default[key]}
    rules |= {"method": experiment.method, "dataset": dataset, "clients": {"min": 1}}
    return AllowedSettings({**rules, "rounds": {"min": 1, "max": experiment.rounds}})


def _of_today(rule: Any) -> Any:
    """Return a rule with today's names of its ends; one that stands under both keeps the earlier, which is refused."""
    if not isinstance(rule, dict):
        return rule
    ends = renames().rule_ends
    return {end if ends.get(end, end) in rule else ends.get(end, end): number for end, number in rule.items()}


def _is_rule(rule: object) -> bool:
    if isinstance(rule, dict):
        return bool(rule) and set(rule) <= set(_ENDS) and all(_is_number(end) for end in rule.values())
    values = rule if isinstance(rule, list) else [rule]
    return bool(values) and all(isinstance(value, str | int | float | bool) for value in values)


def _allows(rule: Any, value: object, words: bool) -> bool:
    if isinstance(rule, dict):
        return _is_number(value) and rule.get("min", value) <= value <= rule.get("max", value)
    return any(_same(one, value, words) for one in (rule if isinstance(rule, list) else [rule]))


def _same(one: object, other: object, words: bool) -> bool:
    """Compare two values; a truth value is no number.

    Args:
        one: a value.
        other: another.
        words: whether texts are compared word by word, without regard to their quotes; else to the character.
    """
    if isinstance(one, bool) or isinstance(other, bool) or isinstance(one, str) != isinstance(other, str):
        return one is other
    if words and isinstance(one, str) and isinstance(other, str):
        return _split(one) == _split(other)
    return one == other


def _split(text: str) -> list[str]:
    if len(text) > _SPLIT:
        return [text]
    try:
        return shlex.split(text)
    except ValueError:  # quotes that do not end
        return [text]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(key: str, rule: Any) -> str:
    if isinstance(rule, dict):
        return f"{key} is to be {' and '.join(f'{text} {rule[end]}' for end, text in _ENDS.items() if end in rule)}"
    values = rule if isinstance(rule, list) else [rule]
    return f"{key} is to be {' or '.join(str(value) or 'nothing' for value in values)}"


def _toml(rule: Any) -> str:
    if isinstance(rule, dict):
        return "{" + ", ".join(f"{end} = {number!r}" for end, number in rule.items()) + "}"
    return json.dumps(rule)


def plugins_of(run_config: Mapping[str, Any]) -> list[str]:
    """Return the classes that a run names as ``package.module:Class``, which are no part of its app."""
    words = [word for key in _PLUGGED for word in re.split(r"[\s,+]+", str(run_config.get(key, "")))]
    dataset = str(run_config.get("dataset", ""))
    words += [] if dataset.partition(":")[0] in DATA_PREFIXES else [dataset]
    return [word for word in words if ":" in word]


def may_mean_others(dataset: str, allowed: AllowedSettings | None) -> str | None:
    """Return why a server could choose the examples that a site volunteers of its own data; None: it cannot.

    Places count in the order of the run's training part. Of the site's own data the name decides that, such as one with
    patients; of data in a path or of a plug-in the seed does. Published data are nobody's own.

    Args:
        dataset: name of the run's data set.
        allowed: the site's pins of runs; None: it pins nothing.
    """
    prefix = dataset.partition(":")[0]
    if prefix == "site":
        rule = allowed.rules.get("dataset") if allowed else None
        pinned = rule in (dataset, [dataset])
        return None if pinned else "another dataset could mean others; pin this one alone in [run]"
    if dataset.startswith(BY_PATH) or (":" in dataset and prefix not in DATA_PREFIXES):
        return f"a seed decides which those are in {dataset[:SHOWN]}; volunteer examples of site: data"
    return None
