"""Policy of a site: its allowed code, settings and answers, in a file that no app can change.

A missing, damaged or invalid file stops the site's launcher: there is no default policy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

from flwr.app import Message

from flfw.bounds import BoundedSettings, NonNegativeFloat, NonNegativeInt, PositiveFinite, PositiveFloat
from flfw.deploy.allowed_settings import BY_PATH, SHOWN, AllowedSettings, may_mean_others, plugins_of
from flfw.dp.budget import BUDGET_REASON, METRICS, PRIVATE_METRICS, BudgetExceededError, EpsilonBudget, Metrics
from flfw.errors import DIED, InputError, require
from flfw.files.earlier_names import renames
from flfw.files.tensor_names import matches
from flfw.files.typed import read_toml
from flfw.messages.client_info import is_plain
from flfw.messages.reasons import RequestDeclinedError
from flfw.messages.sharing import SharingViolationError
from flfw.privacy.claims import Unit

Reasons: TypeAlias = Literal["own", "all"]

ANY = "any"
_OWN = "this site's policy "  # beginning of every reason of a policy
_APPS = "<class '{0.__module__}.{0.__qualname__}'>:<'"  # as Flower puts an app's exception
_NOT_ON_DATA = "|".join(  # beginnings of exceptions whose words hold nothing of the data
    re.escape(_APPS.format(kind) + words)
    for kind, words in ((BudgetExceededError, BUDGET_REASON), (RequestDeclinedError, ""), (SharingViolationError, ""))
)
_OF_THE_SITE = re.compile(rf"{re.escape(DIED)}|{_OWN}[^\n]*|(?:{_NOT_ON_DATA})[^\n]*'>")
"""Reasons of a failure that are about the message, the policy or the budget, and not about the data."""
_NUMBERS_AT_MOST = 100
_WORDS_AT_MOST = 1000  # characters of the words that introduce a site, of a reason, and of the names of numbers

_COMMENTS = {
    "allowed_apps": "SHA-256 of the app bundles that may run here: python -m flfw.deploy hash",
    "allowed_uploads": "names of the tensors that may leave",
    "max_upload_mb": "of one answer, in MB (1e6 bytes)",
    "epsilon": "that all messages may take together, over all runs; inf: nothing is counted",
    "delta": "probability with which that epsilon may fail",
    "unit": "whose presence it is for: example, patient or client (the whole site)",
    "patient_examples": "largest number of examples of a patient, for unit=patient",
    "metrics": "numbers that may leave beside the tensors: all, private or none",
    "error_detail": "words of a failure that may leave: own (no exception's) or all",
    "min_examples": "training examples below which nothing is answered",
    "max_messages": "answered over all runs; inf: they are not counted",
    "allowed_plugins": "package.module:Class outside the app that a run may name",
    "allow_recording": "whether the server may record what this site sends",
    "allow_malicious_server": "whether a run may have a network that its server changed",
    "allow_seeded_defence": "whether a defence may draw from the server's seed",
    "reject_suspicious_weights": "whether suspicious weights are refused",
    "audit_examples": "own training examples to give away for an audit, by their positions",
}


@dataclass(frozen=True)
class Policy(BoundedSettings):
    """Rules of a site.

    Attributes:
        allowed_apps: SHA-256 of the app bundles that may run; ``any``: every app of the server may run.
        allowed_uploads: patterns of the tensors that may leave.
        max_upload_mb: largest size of an answer with all its parts, in MB (1e6 bytes), > 0.
        epsilon: epsilon that all messages of the site may take together, > 0; inf: no budget, and nothing is counted.
        delta: probability in (0, 1) with which that epsilon may fail.
        unit: whose presence that epsilon is for.
        patient_examples: largest number of examples of a patient, >= 1; for unit=patient alone.
        metrics: numbers beside the tensors that a run's clients may send at most.
        error_detail: words of a failure that may leave; own: those on the message, the policy or the budget; all: those
            of any exception, too, which may hold data.
        min_examples: number of training examples below which the site answers no message, >= 0.
        max_messages: number of messages that the site answers, over all runs, >= 0; inf: they are not counted.
        allowed_plugins: methods, defences and attacks outside the accepted app that a run may name, as
            package.module:Class.
        allow_recording: whether the server may record what this site sends.
        allow_malicious_server: whether a run may change the network as a malicious server would, for an audit of one.
        allow_seeded_defence: whether a run's defence may draw from the run's seed, which the server knows.
        reject_suspicious_weights: whether a message is refused whose weights an honest server would hardly send.
        audit_examples: training examples that this site gives away for an audit, as positions in its own order, >= 0.
        run: settings that a run may have; None: all of them.
    """

    allowed_apps: tuple[str, ...]
    allowed_uploads: tuple[str, ...]
    max_upload_mb: PositiveFinite
    epsilon: PositiveFloat = inf
    delta: float = 1e-5
    unit: Unit = "example"
    patient_examples: NonNegativeInt = 0
    metrics: Metrics = "all"
    error_detail: Reasons = "own"
    min_examples: NonNegativeInt = 0
    max_messages: NonNegativeFloat = inf
    allowed_plugins: tuple[str, ...] = ()
    allow_recording: bool = False
    allow_malicious_server: bool = False
    allow_seeded_defence: bool = False
    reject_suspicious_weights: bool = False
    audit_examples: tuple[int, ...] = ()
    run: AllowedSettings | None = None

    def __post_init__(self) -> None:
        apps, given = self.allowed_apps, " ".join(self.allowed_apps)
        known = all(app == ANY or (len(app) == 64 and set(app) <= set("0123456789abcdef")) for app in apps)
        require(bool(apps) and known, f"allowed_apps as SHA-256 in hexadecimal, or {ANY}", allowed_apps=given)
        super().__post_init__()
        if self.budget:
            mine = "allowed_apps as SHA-256 with an epsilon, as the accepted app's code counts it"
            require(ANY not in apps, mine, allowed_apps=given)
            counted = "metrics=none or private with an epsilon, as bare numbers cannot be counted"
            require(self.metrics != "all", counted, metrics=self.metrics)
        else:
            known = "an epsilon with metrics=private, whose noise nothing else bounds"
            require(self.metrics != "private", known, epsilon=self.epsilon)
        secret = "error_detail=own with an epsilon, as an exception's words cannot be counted"
        require(self.error_detail == "own" or self.budget is None, secret, error_detail=self.error_detail)
        outside = all(re.fullmatch(r"[\w.]+:\w+", name) for name in self.allowed_plugins)
        require(outside, "allowed_plugins as package.module:Class", allowed_plugins=" ".join(self.allowed_plugins))
        places = self.audit_examples
        fits = all(place >= 0 for place in places) and len(set(places)) == len(places)
        require(fits, "audit_examples >= 0, each once", audit_examples=" ".join(map(str, places)))
        agreed = "allow_recording = true with audit_examples, which is for nothing else"
        require(self.allow_recording or not places, agreed, allow_recording=self.allow_recording)

    @property
    def budget(self) -> EpsilonBudget | None:
        """Budget of the site; None: none."""
        if self.epsilon == inf:
            return None
        return EpsilonBudget(self.epsilon, self.delta, self.unit, self.patient_examples)

    def text(self) -> str:
        """Return the text of the policy file, with a comment on each line."""
        lines = []
        for name, comment in _COMMENTS.items():
            value = getattr(self, name)
            lines.append(f"{name} = {value if isinstance(value, float) else json.dumps(value)}  # {comment}\n")
        return "".join(lines) + (f"\n{self.run.text()}" if self.run else "")

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read the policy of a site.

        Raises:
            InputError: there is no such file, or it is not a valid policy.
        """
        try:
            rules = read_toml(path)
        except InputError as error:
            raise InputError(f"Expected a policy in {path}, got none that can be read: {error.__cause__}.") from error
        way_out = f"epsilon, delta and unit in {path} in place of least_noise, which bounds no epsilon"
        require("least_noise" not in rules, way_out, least_noise=rules.get("least_noise"))
        rules, written = _of_today(rules, path)
        try:
            return cls._of(rules, path)
        except InputError as error:
            raise InputError(_as_written(str(error), written)) from error

    @classmethod
    def _of(cls, rules: dict[str, Any], path: Path) -> Policy:
        """Build a policy from the rules of a file under their names of today."""
        names = {field.name for field in fields(cls)}
        if unknown := sorted(set(rules) - names):
            raise InputError(f"Expected {', '.join(sorted(names))} in {path}, got {unknown[0]}.")
        missing = [name for name in ("allowed_apps", "allowed_uploads", "max_upload_mb") if name not in rules]
        require(not missing, f"allowed_apps, allowed_uploads and max_upload_mb in {path}", missing=", ".join(missing))
        for name in ("allowed_apps", "allowed_uploads", "allowed_plugins"):
            words = rules.get(name, [])
            listed = isinstance(words, list) and all(isinstance(word, str) for word in words)
            require(listed, f"a list of words for {name} in {path}", **{name: words})
            rules[name] = tuple(words)
        for name in ("max_upload_mb", "epsilon", "delta", "max_messages"):
            number = isinstance(rules.get(name, 0), int | float) and not isinstance(rules.get(name), bool)
            require(number, f"a number for {name} in {path}", **{name: rules.get(name)})
        for name in ("patient_examples", "min_examples"):
            require(type(rules.get(name, 0)) is int, f"a whole number in {path}", **{name: rules.get(name)})
        for name in ("allow_recording", "allow_malicious_server", "allow_seeded_defence", "reject_suspicious_weights"):
            require(isinstance(rules.get(name, False), bool), f"true or false in {path}", **{name: rules.get(name)})
        given = rules.get("audit_examples", [])
        whole = isinstance(given, list) and all(type(place) is int for place in given)
        require(whole, f"a list of whole numbers for audit_examples in {path}", audit_examples=given)
        rules["audit_examples"] = tuple(given)
        if "run" in rules:
            rules["run"] = AllowedSettings.read(rules["run"], path)
        return cls(**rules)

    def app_rejection(self, bundle: bytes) -> str | None:
        """Return why an app may not run here; None: it may.

        Args:
            bundle: bytes of the app as received; its hash is computed here, never taken from a message.
        """
        digest = hashlib.sha256(bundle).hexdigest()
        return (
            None if ANY in self.allowed_apps or digest in self.allowed_apps else f"{_OWN}does not accept app {digest}"
        )

    def run_rejection(self, run_config: Mapping[str, Any]) -> str | None:
        """Return why an app may not run here with this configuration; None: it may."""
        metrics = str(run_config.get("metrics", METRICS[0]))  # a run without the key sends all
        if metrics not in METRICS[METRICS.index(self.metrics) :]:
            return f"{_OWN}accepts at most metrics={self.metrics}, the run has metrics={metrics[:SHOWN]}"
        if not self.allow_recording and run_config.get("record", False):
            return f"{_OWN}does not let its messages be recorded, and the run records them"
        by = str(run_config.get("malicious-server", ""))
        if by and not self.allow_malicious_server:
            return f"{_OWN}lets no server change the network, and the run's is changed by {by[:SHOWN]}"
        if foreign := [name for name in plugins_of(run_config) if name not in self.allowed_plugins]:
            way_out = "name it in allowed_plugins to trust it"
            return f"{_OWN}lets no code run but the accepted app's, such as {foreign[0][:SHOWN]}; {way_out}"
        dataset = str(run_config.get("dataset", ""))
        if dataset.startswith(BY_PATH) and not (self.run and "dataset" in self.run.rules):
            way_out = "what lies in its data folder is site:CxHxW:CLASSES; else pin the dataset in [run]"
            return f"{_OWN}lets no server choose what is read, such as {dataset[:SHOWN]}; {way_out}"
        if self.audit_examples and run_config.get("record", False) and (other := may_mean_others(dataset, self.run)):
            return f"{_OWN}gives away the examples that it chose, and {other}"
        if self.run and (refused := self.run.refusal(run_config)):
            return f"{_OWN}pins the run, which has {refused}"
        defence, draws = (str(run_config.get(key, "")) for key in ("defence", "defence-randomness"))
        if defence in ("", "none") or draws == "secure" or self.allow_seeded_defence:
            return None
        way_out = f"and {defence[:SHOWN]} does in the run; run with defence-randomness=secure"
        return f"{_OWN}lets no defence draw from the seed, which the server knows, {way_out}"

    def reply_rejection(self, reply: Message, kind: str, size: int) -> str | None:
        """Return why a message may not leave; None: it may.

        An allowed tensor can hold any data. Only the accepted hash of the app excludes an app that hides data there.

        Args:
            reply: the answer with its content.
            kind: type of the request; the answer to ``query`` introduces a site and alone may hold words.
            size: number of bytes of all its parts.
        """
        if size > self.max_upload_mb * 1e6:
            return f"{_OWN}lets {self.max_upload_mb:g} MB leave, the answer has {size / 1e6:.1f} MB"
        if reply.has_error():
            return self._refuses_reason(reply.error.reason or "")
        content = reply.content
        names = [name for record in content.array_records.values() for name in record]
        if named := [name for name in names if not matches(name, self.allowed_uploads)]:
            return f"{_OWN}does not let {named[0][:SHOWN]} leave"
        numbers = [item for record in content.metric_records.values() for item in record.items()]
        if numbers and self.metrics == "none":
            return f"{_OWN}lets no numbers leave beside the tensors, such as {numbers[0][0][:SHOWN]}"
        if self.metrics == "private" and (others := [name for name, _ in numbers if name not in PRIVATE_METRICS]):
            return f"{_OWN}lets no number leave that has no noise, such as {others[0][:SHOWN]}"
        if len(numbers) > _NUMBERS_AT_MOST:
            return f"{_OWN}lets at most {_NUMBERS_AT_MOST} numbers leave beside the tensors"
        if any(isinstance(value, list) for _, value in numbers):
            return f"{_OWN}lets no lists of numbers leave beside the tensors"
        if sum(len(name) for name in [*content, *(name for name, _ in numbers)]) > _WORDS_AT_MOST:
            return f"{_OWN}lets no numbers leave whose names are so long"
        if kind == "query" and self.error_detail == "own" and not is_plain(content):
            return f"{_OWN}lets no words leave in an introduction but the known ones"
        words = sum(len(str(pair)) for record in content.config_records.values() for pair in record.items())
        if words > (_WORDS_AT_MOST if kind == "query" else 0):
            return f"{_OWN}lets no words leave but those that introduce it"
        return None

    def _refuses_reason(self, reason: str) -> str | None:
        """Return why the reason of a failure may not leave: an exception's words may hold data that nobody counts."""
        if len(reason) > _WORDS_AT_MOST:
            return f"{_OWN}lets no reason leave that is so long"
        if self.error_detail == "all" or _OF_THE_SITE.fullmatch(reason):
            return None
        return f"{_OWN}lets no other reason of a failure leave; its log has it"


def _of_today(rules: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the rules of a file under their names of today, and the earlier name of each that has one there.

    Raises:
        InputError: a rule stands under both of its names: one of them would be dropped.
    """
    keys = renames().policy_keys
    written = {today: earlier for earlier, today in keys.items() if earlier in rules}
    if both := sorted(set(written) & set(rules)):
        raise InputError(f"Expected {both[0]} alone in {path}, got its earlier name {written[both[0]]} beside it.")
    return {keys.get(name, name): rule for name, rule in rules.items()}, written


def _as_written(message: str, written: Mapping[str, str]) -> str:
    """Return a message with the names that the file has."""
    for today, earlier in written.items():
        message = re.sub(rf"\b{today}\b", f"{earlier} (today {today})", message)
    return message
