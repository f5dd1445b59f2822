"""A site's policy: a changed file is refused or another policy, and it decides on any run and answer with a reason."""

import hashlib
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from flfw.deploy.allowed_settings import AllowedSettings, pins_of
from flfw.deploy.policy import Policy
from flfw.engines import apps
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from tests.properties.changes import changed_toml, changed_tree, unsealed, words
from tests.properties.message_changes import failures
from tests.properties.reading import Folder, Reader, require_refused_or_valid

POLICY = Policy(
    (hashlib.sha256(b"app").hexdigest(),),
    ("net.*",),
    5.0,
    epsilon=2.0,
    delta=1e-6,
    metrics="none",
    allow_recording=True,
    audit_examples=(4, 0),
    min_examples=3,
    allowed_plugins=("a.b:C",),
    max_messages=40,
    run=pins_of(Experiment(), "digits"),
)
NAMES = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cc", "Cs")), min_size=1)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Valid policies."""
    with_budget = draw(st.booleans())
    return replace(
        POLICY,
        allowed_uploads=tuple(draw(st.lists(NAMES, max_size=3))),
        max_upload_mb=draw(POSITIVE),
        epsilon=draw(POSITIVE) if with_budget else inf,
        delta=draw(st.floats(1e-12, 0.5)),
        metrics=draw(st.sampled_from(("none", "private") if with_budget else ("none", "all"))),
        error_detail="own" if with_budget else draw(st.sampled_from(("own", "all"))),
        min_examples=draw(st.integers(0, 2**31)),
        max_messages=draw(st.one_of(st.integers(0, 2**31), st.just(inf))),
        audit_examples=tuple(draw(st.lists(st.integers(0, 2**31), max_size=3, unique=True))),
        reject_suspicious_weights=draw(st.booleans()),
        run=draw(st.sampled_from((None, POLICY.run))),
    )


def is_policy(read: Any) -> bool:
    numbers = (read.max_upload_mb, read.epsilon, read.delta)
    return (
        all(type(place) is int for place in read.audit_examples)
        and all(isinstance(n, float | int) and n > 0 for n in numbers)
        and (read.run is None or isinstance(read.run, AllowedSettings))
    )


@pytest.fixture(scope="module")
def reader(scratch: Path) -> Reader:
    InProcessGrid(apps.client, 1, {})  # Flower makes messages for a run alone, which this one names
    folder = Folder(scratch / "policy", {"policy.toml": POLICY.text().encode()})
    changes = {"policy.toml": unsealed(changed_toml)}
    return Reader(folder, changes, lambda place: Policy.read(place / "policy.toml"), is_policy)


@given(policies())
def test_a_policy_is_read_as_it_was_written(reader: Reader, policy: Policy) -> None:
    assert reader.read(reader.folder.lay({"policy.toml": policy.text().encode()})) == policy


@given(data=st.data())
def test_a_changed_policy_is_refused_or_a_policy(data: DataObject, reader: Reader) -> None:
    reader.require_refused_or_valid(data)


def is_reason(reason: Any) -> bool:
    return reason is None or isinstance(reason, str)


@given(data=st.data())
def test_a_changed_run_is_decided_on(data: DataObject) -> None:
    known = Experiment().to_run_config()
    config = data.draw(changed_tree(known).filter(lambda config: isinstance(config, dict)))
    reason: Any = require_refused_or_valid(lambda: POLICY.run_rejection(config), refusals=(), is_valid=is_reason)
    pinned = [key for key in known if config.get(key) != known[key]]
    assert reason or not pinned or _reads_alike(config)


def _reads_alike(config: dict[str, Any]) -> bool:
    """Whether a run's configuration is no other run's, or one that the policy says nothing of."""
    try:
        experiment = Experiment.from_run_config(config)
    except InputError:
        return False
    return pins_of(experiment, "digits") == POLICY.run


@st.composite
def answers(draw: st.DrawFn) -> Message:
    """Answers of a client with names and parts of any kind."""
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    if draw(st.integers(0, 3)) == 3:
        return Message(draw(failures()), reply_to=message)
    word = draw(words())
    parts: dict[str, Any] = {"a": ArrayRecord({word or "x": Array(np.zeros(2, np.float32))})}
    parts["b"] = draw(
        st.sampled_from((MetricRecord({word: 1}), ConfigRecord({"words": word}), MetricRecord({"loss": [1.0]})))
    )
    return Message(RecordDict({draw(st.sampled_from((n, word))): p for n, p in parts.items()}), reply_to=message)


@given(answers(), st.sampled_from(("train", "query", "")), st.sampled_from((0, 10**9)))
def test_any_answer_is_decided_on(message: Message, kind: str, nbytes: int) -> None:
    require_refused_or_valid(lambda: POLICY.reply_rejection(message, kind, nbytes), refusals=(), is_valid=is_reason)
