"""Names of earlier versions: where somebody's own code has one, the refusal names the one of today.

An import of an earlier name ends in one line, and so does a class with a hook of an earlier name. The tables are in
``earlier_names.toml``. They hold modules and names that the pages on extending, recording and Python documented; others
may change without a word.
`flfw` puts the finder in front of Python's own.
"""

import re
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final


class GoneSetting(NamedTuple):
    """Setting that is gone: its value where nobody gave it, and what to do in place of it."""

    usual: object
    instead: str
    decided_numbers: bool = True


class Renames(NamedTuple):
    """Tables of ``earlier_names.toml``, which says what is in each: a name of today by each earlier one."""

    modules: Mapping[str, str]
    packages: Mapping[str, str]
    names: Mapping[str, Mapping[str, str]]
    flags: Mapping[str, str]
    task_flags: Mapping[str, str]
    values: Mapping[str, Mapping[str, str]]
    words: Mapping[str, Mapping[str, str]]
    gone: Mapping[str, GoneSetting]
    keys: Mapping[str, str]
    policy_keys: Mapping[str, str]
    rule_ends: Mapping[str, str]
    columns: Mapping[str, str]
    controls: Mapping[str, str]
    causes: Mapping[str, str]
    verdicts: Mapping[str, Sequence[str]]
    curves: Mapping[str, str]


@cache
def renames() -> Renames:
    """Read the tables, when the first of them is asked for."""
    import tomllib

    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    gone = {name: GoneSetting(**about) for name, about in tables.pop("gone").items()}
    return Renames(gone=gone, **tables)


def verdict_of_today(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of results with its verdict of today.

    >>> verdict_of_today({"verdict": "attack broken", "cause": "consistency"})
    {'verdict': 'undecided', 'cause': 'description'}
    """
    earlier, cause = entry.get("verdict"), entry.get("cause")
    if not isinstance(earlier, str) or earlier not in renames().verdicts:
        return dict(entry)
    verdict, usual = renames().verdicts[earlier]
    cause = "description" if earlier == "attack broken" and cause == "consistency" else cause or usual
    return {**entry, "verdict": verdict} | ({"cause": cause} if cause else {})


def probe_of_today(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded message's scalars, with its control and its point under their names of today.

    >>> probe_of_today({"rung": "told", "point": "batch-4-told", "slot": 2})
    {'control': 'weak_defence', 'point': 'batch-4-weak_defence', 'slot': 2}
    """
    today = {"control" if name == "rung" else name: value for name, value in config.items()}
    words = {name: today[name] for name in ("control", "point") if isinstance(today.get(name), str)}
    controls = renames().controls
    earlier = re.compile(rf"(?<![^-])({'|'.join(controls)})$")
    return today | {name: earlier.sub(lambda found: controls[found[1]], word) for name, word in words.items()}


def earlier_key(key: str) -> str:
    """Return the earlier name of a file with the truth of a probe, such as ``r0000-control-000``.

    >>> earlier_key("r0002-target-undefended-003")
    'r0002-target-matched-003'
    """
    for earlier, today in renames().controls.items():
        key = key.replace(f"-{today}-", f"-{earlier}-")
    return key


@final
class _Refusing(SourceFileLoader):
    """Loader of a module with earlier names: an earlier name that is asked of it is refused with the one of today."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        of_today, inner = renames().names[module.__name__], getattr(module, "__getattr__", None)

        def get(name: str) -> Any:
            if name in of_today:
                raise ImportError(refusal(f"{module.__name__}.{of_today[name]}", name), name=module.__name__)
            if inner is not None:
                return inner(name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module)["__getattr__"] = get


@final
class _Emptied(Loader):
    """Loader of an earlier package: it holds nothing, and refuses what is asked of it with the name of today."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        def get(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            raise ImportError(_moved(renames().packages[module.__name__], module.__name__), name=module.__name__)

        vars(module)["__getattr__"] = get


def _moved(of_today: str, module: str) -> str:
    return f"Expected {of_today}, got its earlier name {module}; rename it"


def _of_today(module: str) -> str | None:
    """Return the name of today of a module; None: it has no other."""
    parent, _, stem = module.rpartition(".")
    if module in renames().modules or parent not in renames().packages:
        return renames().modules.get(module)
    return f"{renames().packages[parent]}.{stem}"


@final
class EarlierNames(MetaPathFinder):
    """Finder of modules that answers for those alone that have earlier names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module some of whose names are earlier ones.

        Raises:
            ModuleNotFoundError: the module has another name today.
        """
        if not fullname.startswith("flfw."):
            return None
        if fullname in renames().packages:
            return ModuleSpec(fullname, _Emptied(), is_package=True)
        if of_today := _of_today(fullname):
            raise ModuleNotFoundError(_moved(of_today, fullname), name=fullname)
        if fullname not in renames().names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Refusing(fullname, spec.origin)
        return spec


def refusal(of_today: str, earlier: str) -> str:
    """Return the line that refuses an earlier name."""
    return f"Expected {of_today}, got its earlier name {earlier.rpartition('.')[2]}; rename it"


def settings_of_today(stored: Mapping[str, Any], *, fields: bool = False) -> dict[str, Any]:
    """Return stored settings, or a policy's rules for them, under their names of today.

    Args:
        stored: the settings by their names of any version.
        fields: whether the names are those of fields, with underscores, and not of flags.

    >>> settings_of_today({"keep-observations": 2, "split": "whole", "curve": "'group=1,2'", "rounds": 3})
    {'keep-recorded-rounds': 2, 'split': 'dataset_per_client', 'curve': "'sum_size=1,2'", 'rounds': 3}
    >>> settings_of_today({"defence_draws": "secret", "set": ["drawn.train=5"]}, fields=True)
    {'defence_randomness': 'secure', 'set': ['sampled_on_demand.train=5']}
    >>> settings_of_today({"robust": "krum", "byzantine-clients": 2, "attack-retries": 1})
    {'robust': 'krum:2'}
    """
    renamed: dict[str, Any] = {}
    for name, value in stored.items():
        flag = name.replace("_", "-") if fields else name
        flag = renames().flags.get(flag, flag)
        today = flag.replace("-", "_") if fields else flag
        # One that stands under both of its names keeps the earlier one, which the reader does not know.
        renamed[name if today in stored else today] = _value_of_today(flag, value)
    if not fields:
        return _joined(renamed)
    joined = _joined({name.replace("_", "-"): value for name, value in renamed.items()})
    return {name.replace("-", "_"): value for name, value in joined.items()}


def _joined(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, by their flags, without those that are gone; one that no setting of today can say stays."""
    gone = renames().gone
    settings = {
        flag: value
        for flag, value in stored.items()
        if flag not in gone or (gone[flag].decided_numbers and value != gone[flag].usual)
    }
    if "resize" in stored:
        settings.setdefault("own-images", "")
    for flag in [flag for flag in settings if flag in gone]:
        if not isinstance(settings[flag], list | dict) and (said := _said_today(flag, settings[flag], settings)):
            del settings[flag]
            settings |= said
    if isinstance(examples := settings.get("patient-examples"), int):
        settings["patient-examples"] = str(examples)
    return settings


_NUMBERED = {
    "byzantine-clients": ("robust", ":"),
    "min-clients": ("on-client-failure", ":"),
    "patient-clients": ("patient-examples", "x"),
}


def _said_today(flag: str, value: object, settings: Mapping[str, Any]) -> dict[str, str | int] | None:
    """Return the setting of today that says what one that is gone said beside others; None: there is none."""
    if flag in _NUMBERED:
        today, sign = _NUMBERED[flag]
        return {today: f"{settings.get(today)}{sign}{value}"}
    if flag in ("resize", "resize-mode", "fit", "colour", "skip-damaged"):
        word = "skip_damaged" if flag == "skip-damaged" else value
        return {"own-images": ",".join(filter(None, [settings.get("own-images"), str(word)]))}
    if flag == "attack-compile":
        return {"attack-precision": f"{settings.get('attack-precision')}_compiled"}
    if flag == "accounting" and settings.get("accountant", "prv") == "prv":
        return {"accountant": "paper"}
    if (
        flag in ("colluding", "colluding-attackers")
        and settings.get("colluding-clients", 0) == 0
        and isinstance(value, int)
    ):
        return {"colluding-clients": value}
    return None


def _value_of_today(flag: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_value_of_today(flag, one) for one in value]
    if not isinstance(value, str):
        return value
    for earlier, today in renames().words.get(flag, {}).items():
        # Several words stand in one text, with marks around those that a shell would read otherwise.
        value = re.sub(rf"(^|[\s'\"]){re.escape(earlier)}", rf"\g<1>{today}", value)
    return renames().values.get(flag, {}).get(value, value)


def earlier_setting(flag: str, words: Iterable[object] = ()) -> str | None:
    """Return the line that refuses an earlier name of a flag, or of one of its values; None: all are of today.

    Args:
        flag: the flag without hyphens before it.
        words: its values.

    >>> earlier_setting("tampered-by"), earlier_setting("split", ["iid"])
    ('Expected a flag of today, got --tampered-by; it is called --malicious-server now', None)
    >>> earlier_setting("curve", ["batch=1,4", "group=1"])
    'Expected --curve sum_size=1, got its earlier name group=1; rename it'
    """
    if gone := renames().gone.get(flag):
        return f"Expected a flag of today, got --{flag}, which is gone; {gone.instead}"
    if today := renames().flags.get(flag) or renames().task_flags.get(flag):
        return f"Expected a flag of today, got --{flag}; it is called --{today} now"
    for word in words:
        if (today := _value_of_today(flag, word)) != word:
            return f"Expected --{flag} {today}, got its earlier name {word}; rename it"
    return None


class EarlierHooks(ABC):
    """Base of what others write: an attribute under an earlier name is refused with the one of today.

    A class that defines one is refused when it is made, and so when its module is imported. One that is only read is
    refused when it is read.
    """

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for earlier, of_today in cls.EARLIER_HOOKS.items():
            if earlier in vars(cls):
                raise TypeError(refusal(f"{cls.__name__}.{of_today}", earlier))

    if not TYPE_CHECKING:  # a type checker would take every attribute for known

        def __getattr__(self, name: str) -> Any:
            if name in self.EARLIER_HOOKS:
                raise AttributeError(refusal(f"{type(self).__name__}.{self.EARLIER_HOOKS[name]}", name))
            return object.__getattribute__(self, name)  # the error of Python, or of a property
