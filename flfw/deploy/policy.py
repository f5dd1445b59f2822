"""What a site allows, in a file of its own that no app can change: which code, which settings, which answers.

A file that is missing, damaged or says something else stops the site's launcher: there is no policy by default.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from flwr.app import Message

from flfw import plugins
from flfw.errors import BadInput, require
from flfw.experiment import Experiment
from flfw.messages.sharing import matches

ANY = "any"
_SHOWN = 80  # characters of a name that an app chose
_NUMBERS_AT_MOST = 100
_WORDS_AT_MOST = 1000  # characters of all that introduces a site, of a reason, and of the numbers' names


@dataclass(frozen=True)
class Policy:
    """A site's own rules.

    Attributes:
        apps: SHA-256 of the app bundles that may run; ``any``: whatever the server sends runs here.
        uploads: patterns of the tensors that may leave.
        largest_upload_mb: of all that an answer is made of, > 0.
        least_noise: smallest ``noise_multiplier`` of a run, >= 0; see `noise_of`.
        record: whether the server may record what this site sends.
        volunteered: training examples that this site gives away for an audit, as places in its own order, >= 0.
    """

    apps: tuple[str, ...]
    uploads: tuple[str, ...]
    largest_upload_mb: float
    least_noise: float = 0.0
    record: bool = False
    volunteered: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        known = all(app == ANY or (len(app) == 64 and set(app) <= set("0123456789abcdef")) for app in self.apps)
        require(bool(self.apps) and known, f"apps as SHA-256 in hexadecimal, or {ANY}", apps=" ".join(self.apps))
        require(
            0 < self.largest_upload_mb < inf, "0 < largest_upload_mb < inf", largest_upload_mb=self.largest_upload_mb
        )
        require(0 <= self.least_noise < inf, "0 <= least_noise < inf", least_noise=self.least_noise)
        places = all(place >= 0 for place in self.volunteered) and len(set(self.volunteered)) == len(self.volunteered)
        require(places, "volunteered >= 0, each once", volunteered=" ".join(map(str, self.volunteered)))
        agreed = self.record or not self.volunteered
        require(agreed, "record = true with volunteered, which is for nothing else", record=self.record)

    def text(self) -> str:
        """Its file, with what each line is for."""
        lists = {name: json.dumps(list(getattr(self, name))) for name in ("apps", "uploads")}
        return (
            f"apps = {lists['apps']}  # SHA-256 of the app bundles that may run here: python -m flfw.deploy hash\n"
            f"uploads = {lists['uploads']}  # names of the tensors that may leave\n"
            f"largest_upload_mb = {self.largest_upload_mb}  # of one answer, in MB (1e6 bytes)\n"
            f"least_noise = {self.least_noise}  # smallest noise_multiplier of a run, with noise_source=system\n"
            f"record = {json.dumps(self.record)}  # whether the server may record what this site sends\n"
            f"volunteered = {list(self.volunteered)}  # own training examples to give away for an audit, as places\n"
        )

    @classmethod
    def read(cls, path: Path) -> Policy:
        """A site's policy.

        Raises:
            BadInput: there is none, or it is not one.
        """
        try:
            said: dict[str, Any] = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadInput(f"Expected a policy in {path}, got none that can be read: {error}.") from error
        names = {field.name for field in fields(cls)}
        if unknown := sorted(set(said) - names):
            raise BadInput(f"Expected {', '.join(sorted(names))} in {path}, got {unknown[0]}.")
        missing = [name for name in ("apps", "uploads", "largest_upload_mb") if name not in said]
        require(not missing, f"apps, uploads and largest_upload_mb in {path}", missing=", ".join(missing))
        for name in ("apps", "uploads"):
            listed = isinstance(said[name], list) and all(isinstance(word, str) for word in said[name])
            require(listed, f"a list of words for {name} in {path}", **{name: said[name]})
            said[name] = tuple(said[name])
        for name in ("largest_upload_mb", "least_noise"):
            number = isinstance(said.get(name, 0), int | float) and not isinstance(said.get(name), bool)
            require(number, f"a number for {name} in {path}", **{name: said.get(name)})
        require(isinstance(said.get("record", False), bool), f"true or false in {path}", record=said.get("record"))
        given = said.get("volunteered", [])
        whole = isinstance(given, list) and all(type(place) is int for place in given)
        require(whole, f"a list of whole numbers for volunteered in {path}", volunteered=given)
        said["volunteered"] = tuple(given)
        return cls(**said)

    def refuses_app(self, bundle: bytes) -> str | None:
        """Why an app may not run here; None: it may.

        Args:
            bundle: its bytes as they came, never what somebody says their hash is.
        """
        found = hashlib.sha256(bundle).hexdigest()
        return None if ANY in self.apps or found in self.apps else f"this site's policy does not accept app {found}"

    def refuses_run(self, run_config: Mapping[str, Any]) -> str | None:
        """Why an app may not run here with this configuration; None: it may."""
        noise = noise_of(run_config) if self.least_noise else 0.0
        if noise < self.least_noise:
            asked = f"this site's policy asks for noise_multiplier >= {self.least_noise:g} with noise_source=system"
            return f"{asked}, the run has {noise:g}"
        if not self.record and run_config.get("record", False):
            return "this site's policy does not let its messages be recorded, and the run is to be"
        return None

    def refuses_answer(self, answer: Message, kind: str, size: int) -> str | None:
        """Why a message may not leave; None: it may.

        Tensors that may leave can hold anything: that an app is not one that hides something there, its hash says.

        Args:
            answer: with its content.
            kind: of what was asked: ``query`` introduces a site, and only that is done in words.
            size: bytes of all its parts.
        """
        if size > self.largest_upload_mb * 1e6:
            return f"this site's policy lets {self.largest_upload_mb:g} MB leave, the answer has {size / 1e6:.1f} MB"
        if answer.has_error():
            long = len(answer.error.reason or "") > _WORDS_AT_MOST
            return "this site's policy lets no reason leave that is so long" if long else None
        content = answer.content
        names = [name for record in content.array_records.values() for name in record]
        if named := [name for name in names if not matches(name, self.uploads)]:
            return f"this site's policy does not let {named[0][:_SHOWN]} leave"
        numbers = [item for record in content.metric_records.values() for item in record.items()]
        if len(numbers) > _NUMBERS_AT_MOST:
            return f"this site's policy lets at most {_NUMBERS_AT_MOST} numbers leave beside the tensors"
        if any(isinstance(value, list) for _, value in numbers):
            return "this site's policy lets no lists of numbers leave beside the tensors"
        if sum(len(name) for name in [*content, *(name for name, _ in numbers)]) > _WORDS_AT_MOST:
            return "this site's policy lets no numbers leave whose names are so long"
        words = sum(len(str(pair)) for record in content.config_records.values() for pair in record.items())
        if words > (_WORDS_AT_MOST if kind == "query" else 0):
            return "this site's policy lets no words leave but those that introduce it"
        return None


def noise_of(run_config: Mapping[str, Any]) -> float:
    """The ``noise_multiplier`` of a run's method, of noise that clients add and the server cannot repeat; else 0.

    It is 0 too of a configuration that is no experiment's, and of a method that is not one of the installed: what
    somebody names is not imported here.
    """
    from flfw import resolve as parts  # which imports PyTorch, for sites that ask for noise

    try:
        experiment = Experiment.from_run_config(run_config)
        if experiment.method not in plugins.names(plugins.METHOD):
            return 0.0
        settings: Any = parts.method(experiment)[1]
    except (BadInput, KeyError, TypeError, ValueError):
        return 0.0
    secret = (
        getattr(settings, "noise_source", "seed") == "system" and getattr(settings, "noised_by", "client") == "client"
    )
    return float(getattr(settings, "noise_multiplier", 0.0)) if secret else 0.0
