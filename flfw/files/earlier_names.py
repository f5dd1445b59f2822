"""Names of earlier versions: where somebody's own code has one, the refusal names the one of today.

An import of an earlier name ends in one line, and so does a class with a hook of an earlier name. The tables hold
modules and names that the pages on extending, recording and Python documented; others may change without a word.
`flfw` puts the finder in front of Python's own.
"""

import re
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, final

MODULES: Mapping[str, str] = {
    "flfw.adversary.closed_form": "flfw.adversary.attack",
    "flfw.adversary.observation": "flfw.recording.observation",
    "flfw.data.download": "flfw.command.data_sets",
    "flfw.data.splits.cut": "flfw.data.splits.split_indices",
    "flfw.defence": "flfw.task.defence",
    "flfw.inversion.descent": "flfw.inversion.search_optimisers",
    "flfw.server.place": "flfw.server.context",
    "flfw.victims.local_steps": "flfw.nets.training.local_steps",
}
"""Module of today of each documented module that has another name."""

PACKAGES: Mapping[str, str] = {
    "flfw.audit.foreign": "flfw.recorded_apps",
    "flfw.training": "flfw.nets.training",
    "flfw.victims": "flfw.inversion.client_models",
}
"""Package of today of each documented one that has another name; its files went along, but for those in `MODULES`."""

NAMES: Mapping[str, Mapping[str, str]] = {
    "flfw.adversary.attack": {"Budget": "AttackCost", "NotApplicable": "NotApplicableError"},
    "flfw.audit.measures.public": {"Public": "PublicData"},
    "flfw.client.context": {"Workplace": "ClientContext"},
    "flfw.data.files.dataset": {"Arrays": "DatasetArrays"},
    "flfw.data.splits.split_indices": {"Cut": "SplitIndices"},
    "flfw.errors": {"BadInput": "InputError", "RunFailed": "RunError"},
    "flfw.inversion.automatic": {"Automatic": "DifferentiableDefence"},
    "flfw.inversion.search": {"Recipe": "SearchConfig", "Target": "SearchTarget"},
    "flfw.inversion.search_optimisers": {"AdamDescent": "AdamSearch"},
    "flfw.messages.replies": {"Unusable": "UnusableReplyError"},
    "flfw.nets.inputs": {"Inputs": "InputSpec"},
    "flfw.papers.preset": {"Figure": "ResultMetric"},
    "flfw.server.context": {"ServerPlace": "ServerContext"},
    "flfw.nets.training.optimisers": {"LastingTraining": "PersistentTraining"},
}
"""Name of today of each documented name, by module."""

FLAGS: Mapping[str, str] = {
    "attack-seconds": "attack-timeout",
    "attack-server": "attack-process",
    "cohort": "batched-clients",
    "defence-draws": "defence-randomness",
    "final": "final-eval-clients",
    "group": "sum-size",
    "keep-observations": "keep-recorded-rounds",
    "order": "example-order",
    "pictures": "show-samples",
    "side": "image-size",
    "tampered-by": "malicious-server",
    "train": "trainable",
}
"""Name of today of each flag, which is also a key of a run's configuration and, with underscores, a field."""

TASK_FLAGS: Mapping[str, str] = {
    "largest-upload-mb": "max-upload-mb",
    "most-steps": "max-steps",
    "no-pictures": "show-samples no",
    "only": "figure-names",
    "reasons": "error-detail",
}
"""Flag of today of each flag that is no setting of a run."""

VALUES: Mapping[tuple[str, str], str] = {
    ("adaptation", "automatic"): "defence_code",
    ("attack-process", "beside"): "concurrent",
    ("defence-randomness", "secret"): "secure",
    ("split", "drawn"): "sampled_on_demand",
    ("split", "everything"): "full_copy",
    ("split", "whole"): "dataset_per_client",
    ("trainable", "fixed"): "linear_probe",
}
"""Name of today of each value, by the flag's name of today."""

GONE: Mapping[str, tuple[object, str]] = {
    "accounting": ("exact", "write --expert accountant=paper"),
    "attack-compile": (False, "write --expert attack_precision=float32_compiled"),
    "attack-memory-gb": (4, "leave it out: a search takes what it needs, if the machine has it"),
    "attack-retries": (1, "leave it out: an attack that crashed is tried once more"),
    "byzantine-clients": (0, "write --expert robust=krum:2"),
    "colluding": (1, "write --expert colluding_clients=2"),
    "colluding-attackers": (1, "write --expert colluding_clients=2"),
    "colour": ("auto", "write --expert own_images=64x64,grey"),
    "compression": ("predictive", "leave it out: recordings are stored compactly, to the bit"),
    "fit": ("auto", "write --expert own_images=64x64,letterbox"),
    "join-deadline": (120, "leave it out: it follows from --clients and --expert round_deadline"),
    "max-recordings-gb": (20, "leave it out: it is 20; --expert keep_recorded_rounds keeps fewer"),
    "metrics-noise": (10, "leave it out: it is 10"),
    "metrics-noise-multiplier": (10, "leave it out: it is 10"),
    "min-clients": (1, "write --expert on_client_failure=drop:8"),
    "observations-gb": (20, "leave it out: it is 20; --expert keep_recorded_rounds keeps fewer"),
    "patient-clients": (1, "write --expert patient_examples=3x2, examples at each of so many clients"),
    "resize": ("", "write --expert own_images=64x64"),
    "resize-mode": ("auto", "write --expert own_images=64x64,letterbox"),
    "server-device": ("cpu", "leave it out: --gpus-per-client counts for the server, too"),
    "skip-damaged": (False, "write --expert own_images=skip_damaged"),
}
"""Value of each setting that is gone where nobody gave it, and what to do in place of it."""

_WITHOUT_NUMBERS = (
    "attack-memory-gb",
    "attack-retries",
    "compression",
    "join-deadline",
    "max-recordings-gb",
    "observations-gb",
)
"""Settings that are gone and decided no numbers: of what is stored any value is read."""

WORDS: Mapping[tuple[str, str], str] = {
    ("curve", "group="): "sum_size=",
    ("curve", "ladder="): "size=",
    ("set", "drawn."): "sampled_on_demand.",
}
"""Beginning of today of each word of a flag of several words."""


KEYS: Mapping[str, str] = {
    "accounting": "counted",
    "adaptive_gain": "knowing_gains",
    "anonymity_set_size": "hidden_among",
    "attempts": "tries",
    "candidate_test": "candidates",
    "correct": "right",
    "ended_at": "ended",
    "external_plugins": "outside",
    "failure_reason": "stopped",
    "label_accuracy": "labels_found",
    "label_separable": "unlike",
    "lower_bound": "lower",
    "malicious_server": "tampered_by",
    "max_guess_accuracy": "certainty",
    "min_safe_sum_size": "group_needed",
    "native_resolution": "reduced",
    "noise_source": "noise",
    "num_colluding": "colluding",
    "probe_slot": "victim",
    "protected_by": "hidden_by",
    "reason": "why",
    "recording_sessions": "recorded_in",
    "requested_rounds": "asked",
    "search_limit": "reach",
    "secure_aggregation": "sums",
    "sessions": "sittings",
    "started_at": "began",
    "sum_size": "group",
    "unconverged": "short",
}
"""Earlier name of each key of result.json, training.json and matrix.json that had another one."""

POLICY_KEYS: Mapping[str, str] = {
    "apps": "allowed_apps",
    "check_broadcast": "reject_suspicious_weights",
    "fewest_examples": "min_examples",
    "largest_upload_mb": "max_upload_mb",
    "most_messages": "max_messages",
    "plugins": "allowed_plugins",
    "reasons": "error_detail",
    "record": "allow_recording",
    "seeded_draws": "allow_seeded_defence",
    "tampered": "allow_malicious_server",
    "uploads": "allowed_uploads",
    "volunteered": "audit_examples",
}
"""Name of today of each key of a site's policy that has another one; one with both is refused."""

RULE_ENDS: Mapping[str, str] = {"least": "min", "most": "max"}
"""Name of today of each end of a range in a policy's table ``run``."""

COLUMNS: Mapping[str, str] = {
    "by_chance": "chance_match",
    "group": "sum_size",
    "labels_found": "label_accuracy",
    "told": "informed",
    "victim": "probe_slot",
}
"""Name of today of each column of a run's CSV that has another one."""


CONTROLS: Mapping[str, str] = {"control": "analytic", "matched": "undefended", "told": "weak_defence"}
"""Name of today of each control that earlier messages, recordings and results name otherwise."""

CAUSES: Mapping[str, str] = {**CONTROLS, "matched": "undefended_control"}
"""Name of today of each cause of a verdict that earlier results name otherwise."""

VERDICTS: Mapping[str, tuple[str, str]] = {
    "identifies": ("leaks", "identified"),
    "malicious server only": ("leaks", "tampered"),
    "inconclusive": ("undecided", ""),
    "static only": ("undecided", "static"),
    "attack broken": ("undecided", "analytic"),
}
"""Verdict of today, and its cause where an earlier result has none, of each earlier one."""


def verdict_of_today(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of results with its verdict of today.

    >>> verdict_of_today({"verdict": "attack broken", "cause": "consistency"})
    {'verdict': 'undecided', 'cause': 'description'}
    """
    earlier, cause = entry.get("verdict"), entry.get("cause")
    if not isinstance(earlier, str) or earlier not in VERDICTS:
        return dict(entry)
    verdict, usual = VERDICTS[earlier]
    cause = "description" if earlier == "attack broken" and cause == "consistency" else cause or usual
    return {**entry, "verdict": verdict} | ({"cause": cause} if cause else {})


_OF_CONTROLS = re.compile(rf"(?<![^-])({'|'.join(CONTROLS)})$")


def probe_of_today(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded message's scalars, with its control and its point under their names of today.

    >>> probe_of_today({"rung": "told", "point": "batch-4-told", "slot": 2})
    {'control': 'weak_defence', 'point': 'batch-4-weak_defence', 'slot': 2}
    """
    today = {"control" if name == "rung" else name: value for name, value in config.items()}
    words = {name: today[name] for name in ("control", "point") if isinstance(today.get(name), str)}
    return today | {name: _OF_CONTROLS.sub(lambda found: CONTROLS[found[1]], word) for name, word in words.items()}


def earlier_key(key: str) -> str:
    """Return the earlier name of a file with the truth of a probe, such as ``r0000-control-000``.

    >>> earlier_key("r0002-target-undefended-003")
    'r0002-target-matched-003'
    """
    for earlier, today in CONTROLS.items():
        key = key.replace(f"-{today}-", f"-{earlier}-")
    return key


CURVES: Mapping[str, str] = {"group": "sum_size"}
"""Name in results of each curve that earlier results name otherwise."""


@final
class _Refusing(SourceFileLoader):
    """Loader of a module with `NAMES`: an earlier name that is asked of it is refused with the one of today."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        of_today, inner = NAMES[module.__name__], getattr(module, "__getattr__", None)

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
            raise ImportError(_moved(PACKAGES[module.__name__], module.__name__), name=module.__name__)

        vars(module)["__getattr__"] = get


def _moved(of_today: str, module: str) -> str:
    return f"Expected {of_today}, got its earlier name {module}; rename it"


def _of_today(module: str) -> str | None:
    """Return the name of today of a module; None: it has no other."""
    parent, _, stem = module.rpartition(".")
    if module in MODULES or parent not in PACKAGES:
        return MODULES.get(module)
    return f"{PACKAGES[parent]}.{stem}"


@final
class EarlierNames(MetaPathFinder):
    """Finder of modules that answers for those in `MODULES`, `PACKAGES` and `NAMES` alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module some of whose names are earlier ones.

        Raises:
            ModuleNotFoundError: the module has another name today.
        """
        if fullname in PACKAGES:
            return ModuleSpec(fullname, _Emptied(), is_package=True)
        if of_today := _of_today(fullname):
            raise ModuleNotFoundError(_moved(of_today, fullname), name=fullname)
        if fullname not in NAMES:
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
        flag = FLAGS.get(flag, flag)
        today = flag.replace("-", "_") if fields else flag
        # One that stands under both of its names keeps the earlier one, which the reader does not know.
        renamed[name if today in stored else today] = _value_of_today(flag, value)
    if not fields:
        return _joined(renamed)
    joined = _joined({name.replace("_", "-"): value for name, value in renamed.items()})
    return {name.replace("-", "_"): value for name, value in joined.items()}


def _joined(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, by their flags, without those that are `GONE`; one that no setting of today can say stays."""
    settings = {
        flag: value
        for flag, value in stored.items()
        if flag not in GONE or (flag not in _WITHOUT_NUMBERS and value != GONE[flag][0])
    }
    if "resize" in stored:
        settings.setdefault("own-images", "")
    for flag in [flag for flag in settings if flag in GONE]:
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
    """Return the setting of today that says what one of `GONE` said beside others; None: there is none."""
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
    for (of, earlier), today in WORDS.items():
        if of == flag:  # several words stand in one text, with marks around those that a shell would read otherwise
            value = re.sub(rf"(^|[\s'\"]){re.escape(earlier)}", rf"\g<1>{today}", value)
    return VALUES.get((flag, value), value)


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
    if flag in GONE:
        return f"Expected a flag of today, got --{flag}, which is gone; {GONE[flag][1]}"
    if today := FLAGS.get(flag) or TASK_FLAGS.get(flag):
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
