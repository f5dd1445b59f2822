"""The border: a message crosses it if, and only if, it holds what the method shares, in its form, all of it finite."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.engines import apps
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.reasons import RequestDeclinedError
from flfw.messages.sharing import Form, MessageValidator, Sharing, SharingViolationError
from flfw.messages.wire import forms, pack, views
from flfw.nets.net import Tensors
from flfw.plans.run_plan import plan
from tests.properties.message_changes import changed_arrays, changed_record, changed_scalars
from tests.properties.reading import plain, require_refused_or_valid

NAMES = ("hypernet.a", "hypernet.b", "embedding", "head", "hypernet.b/axes", "stowaway")
PATTERNS = st.lists(st.sampled_from(("*", "hypernet.*", "hyper*", "embedding", "head", "?ead", "none.*")), max_size=3)
VALUES = (0.0, 1.0, -3e38, 3e38, 1e-45, np.nan, np.inf, -np.inf)
Arrays = dict[str, np.ndarray]


def is_shared(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays, of which half have the type and shape (float32, (2, 3)), and some an odd value."""
    kind, shape = draw(
        st.sampled_from((("f4", (2, 3)),) * 4 + (("f4", (3, 2)), ("f4", (1, 2, 3)), ("f8", (2, 3)), ("i4", (2, 3))))
    )
    value = np.ones(shape, kind)
    if kind != "i4":
        value.flat[draw(st.integers(0, 5))] = draw(st.sampled_from(VALUES if kind == "f4" else VALUES[:2]))
    return value


CHANGES = st.dictionaries(st.sampled_from(NAMES), st.one_of(st.none(), arrays()), max_size=2)


@given(CHANGES, PATTERNS)
def test_a_message_enters_if_it_is_all_of_the_downloads_finite_and_in_their_forms(
    changes: dict[str, np.ndarray | None], downloads: list[str]
) -> None:
    known: dict[str, Form] = dict.fromkeys(NAMES[:4], ("float32", (2, 3)))
    expected = [name for name in known if is_shared(name, downloads)]
    changed = {**dict.fromkeys(expected, np.ones((2, 3), np.float32)), **changes}
    received = {name: value for name, value in changed.items() if value is not None}
    fits = set(received) == set(expected) and all(
        (str(value.dtype), value.shape) == known[name] and np.isfinite(value).all() for name, value in received.items()
    )
    validator = MessageValidator(3, "mine", Sharing(tuple(downloads), ()), known)
    if fits:
        validator.check_received(received)
        return
    with pytest.raises(SharingViolationError) as caught:
        validator.check_received(received)
    line = str(caught.value)
    assert line.startswith("client 3 was ") and line.isprintable() and any(name in line for name in NAMES)


@given(st.lists(st.sampled_from(NAMES), unique=True), PATTERNS, st.lists(st.sampled_from(NAMES[3:]), unique=True))
def test_a_message_leaves_if_it_holds_uploads_and_what_stands_for_them_alone(
    names: list[str], uploads: list[str], parts: list[str]
) -> None:
    known: dict[str, Form] = dict.fromkeys(NAMES[:4], ("float32", (2, 3)))
    validator = MessageValidator(3, "mine", Sharing(("*",), tuple(uploads)), known, tuple(parts))
    sent: Tensors = dict.fromkeys(names, torch.zeros(2, 3))
    wrong = [name for name in names if name not in parts and not (name in known and is_shared(name, uploads))]
    if not wrong:
        validator.check_sent(sent)
        return
    with pytest.raises(SharingViolationError, match=f"^client 3 would send {wrong[0]}, but "):
        validator.check_sent(sent)


# --- a server's question, through a client's app ---


@dataclass(frozen=True)
class Question:
    """A server's question to a client that trains nothing."""

    state: Tensors
    run_config: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        return {"round": 1, "client": 1, "state_version": 0, "deadline": 60.0, "experiment": "abc", "code": code_hash()}

    def asked(self, kind: str, records: Mapping[str, Any], run_config: dict[str, Any]) -> object:
        """Ask the client's app; return the content of its answer."""
        node = {"partition-id": 1, "num-partitions": 3, "in-process": True}
        message = Message(RecordDict(dict(records)), dst_node_id=1, message_type=kind)
        context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run_config)
        answer = apps.client(message, context).content
        if answer.config_records:
            return len(answer.config_records)
        return dict(answer["arrays"]), dict(answer["metrics"])  # type: ignore[call-overload]

    def records(self) -> dict[str, Any]:
        return {"arrays": pack(self.state), "config": ConfigRecord(self.config)}

    def changed(self, data: DataObject) -> tuple[dict[str, Any], dict[str, Any]]:
        """Change one part: the arrays, the scalars, the records, or the run's configuration."""
        part = data.draw(st.sampled_from(("arrays", "config", "config", "run", "gone", "more")))
        records, run = self.records(), self.run_config
        if part == "arrays":
            records["arrays"] = data.draw(changed_arrays(records["arrays"]))
        elif part == "config":
            records["config"] = data.draw(changed_record(ConfigRecord, self.config))
        elif part == "run":
            run = data.draw(changed_scalars(run))
        elif part == "gone":
            del records[data.draw(st.sampled_from(list(records)))]
        else:
            records |= {"more": records["config"], "config": records[data.draw(st.sampled_from(list(records)))]}
        return records, run


@pytest.fixture(scope="module")
def question() -> Question:
    InProcessGrid(apps.client, 1, {})  # Flower makes messages for a run alone, which this one names
    experiment = Experiment(
        method="fedavg", net="linear", clients=3, dataset="digits", split="iid", augment="none", attack=("none",),
        metrics="none",
    )  # fmt: skip
    return Question(plan(experiment).client.build_model().state_dict(), experiment.to_run_config())


@given(data=st.data())
def test_of_changed_arrays_only_finite_ones_in_their_forms_enter(data: DataObject, question: Question) -> None:
    known: dict[str, Form] = forms(question.state)
    validator = MessageValidator(1, "fedavg", Sharing(("*",), ("*",)), known)
    record = data.draw(changed_arrays(pack(question.state)))

    def entered() -> Arrays:
        validator.check_received(received := views(record))
        return received

    received: Any = require_refused_or_valid(entered, refusals=(SharingViolationError, ValueError))
    if received is not None:
        assert {n: (str(v.dtype), v.shape) for n, v in received.items()} == known
        assert all(np.isfinite(value).all() for value in received.values())


ASKED: list[tuple[str, tuple[type[Exception], ...]]] = [
    ("evaluate", (InputError, SharingViolationError, RunError, RequestDeclinedError)),
    ("query", (InputError,)),
]


@pytest.mark.parametrize(("kind", "refusals"), ASKED, ids=["evaluate", "query"])
@given(data=st.data())
def test_a_changed_question_is_refused_or_answered(
    data: DataObject, question: Question, kind: str, refusals: tuple[type[Exception], ...]
) -> None:
    records, run = question.changed(data)
    records = {} if kind == "query" else records
    require_refused_or_valid(
        lambda: question.asked(kind, records, run),
        intact=plain(question.asked(kind, question.records() if records else {}, question.run_config)),
        refusals=refusals,
    )
