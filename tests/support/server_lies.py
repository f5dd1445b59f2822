"""Lies of an evil server, a row each: what it is, the words of the site's answer, the question, the ledger's new lines.

Where the words are empty, the answer is an honest upload. `NOTHING`: no answer at all.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from tests.support.asking import (
    Change,
    attribute,
    first,
    kind,
    metadata,
    named_setting,
    one_less,
    record,
    scalar,
    setting,
    tensor,
    then,
    without,
)  # fmt: skip
from tests.support.forgery import Forged

CURSOR = "\x1b[2J\x1b]0;owned\x07"
FOREIGN = "lets no code run but the accepted app's, such as "
PINS, POLICY = "this site's policy pins the run, which has ", "this site's policy "
HIDDEN = POLICY + "lets no other reason of a failure leave; its log has it"
SENT = "<class 'flfw.messages.sharing.SharingViolationError'>:<'"
DECLINED = "<class 'flfw.messages.reasons.RequestDeclinedError'>:<'"
BUDGET, DIED, NOTHING = "this site's budget: ", "its process died", "(nothing)"
WEIGHT, BIAS, HYPERNET = "classifier.weight", "classifier.bias", "hypernet.trunk.weight"
CODE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os')._exit(9),), }                \n"
FILE = b"\x93NUMPY\x01\x00" + len(CODE).to_bytes(2, "little") + CODE
TARGET = {"control": "target", "batch": 1, "steps": 1, "slot": 0, "own_slot": 0, "point": "-", "seed": 0}
ODD_LOT = {"=cmd|' /C calc'!A0": 1, **{f"k{i}": i for i in range(5000)}}


@final
@dataclass(frozen=True)
class Lie:
    """One lie.

    Attributes:
        name: what it is.
        words: part of the reason that the site gives.
        tell: changes an honest question.
        counts: lines that the site's ledger grows by.
    """

    name: str
    words: str
    tell: Change
    counts: int = 0


LIES = (
    # settings of the run
    Lie("method without noise", PINS + "method=fedavg", setting(method="fedavg")),
    Lie("method that the server names", FOREIGN + "os:system", setting(method="os:system")),
    Lie("method that moves the cursor", PINS + "method=?[2J", setting(method=CURSOR)),
    Lie("method of 1 MB", PINS + "method=xxx", setting(method="x" * 10**6)),
    Lie("method left out", PINS + "method=hyperfl", without("method")),
    Lie("other network", PINS + "net=lenet", setting(net="lenet")),
    Lie("other data", PINS + "dataset=mnist", setting(dataset="mnist")),
    Lie("data in a folder that the server names", PINS + "dataset=folder:/etc", setting(dataset="folder:/etc")),
    Lie("data on a hub that are a path", PINS + "dataset=hf:/root", setting(dataset="hf:/root")),
    Lie("data in a folder above", PINS + "dataset=folder:../", setting(dataset="folder:../../..")),
    Lie("the site's own data, unpinned", PINS + "dataset=site:", setting(dataset="site:1x8x8:10")),
    Lie("more rounds", PINS + "rounds=4", setting(rounds=4)),
    Lie("10^18 rounds", PINS + "rounds=1000000000000000000", setting(rounds=10**18)),
    Lie("minus one round", PINS + "rounds=-1", setting(rounds=-1)),
    Lie("rounds in words", PINS + "rounds=1", setting(rounds="1")),
    Lie("rounds that are true", PINS + "rounds=True", setting(rounds=True)),
    Lie("NaN rounds", PINS + "rounds=nan", setting(rounds=float("nan"))),
    Lie("no clients", PINS + "clients=0", setting(clients=0)),
    Lie("a thousand passes", PINS + "local-epochs=1000", setting(local_epochs=1000)),
    Lie("batches of one example", PINS + "batch-size=1", setting(batch_size=1)),
    Lie("learning rate of 10^9", PINS + "lr=1000000000.0", setting(lr=1e9)),
    Lie("defence that the server names", FOREIGN + "evil:Shield", setting(defence="evil:Shield")),
    Lie("attack that the server names", FOREIGN + "evil:Attack", setting(attack="evil:Attack")),
    Lie("noise of nothing", PINS + "set=", setting(set="sampled.train=50 noise_source=secure noise_multiplier=0")),
    Lie("noise that the server can repeat", PINS + "set=", setting(set="sampled.train=50 noise_source=seed")),
    Lie("unit of another kind", PINS + "set=", setting(set="sampled.train=50 noise_source=secure unit=client")),
    Lie("words whose quotes do not end", PINS + "set=", setting(set="sampled.train=50 'noise_source=secure")),
    Lie("other examples of the client", PINS + "split=", setting(split="iid")),
    Lie("bare numbers", "accepts at most metrics=none, the run has metrics=all", setting(metrics="all")),
    Lie("noisy numbers", "accepts at most metrics=none, the run has metrics=private", setting(metrics="private")),
    Lie("numbers of a kind that is none", "accepts at most metrics=none", setting(metrics=CURSOR)),
    Lie("numbers left out", "accepts at most metrics=none, the run has metrics=all", without("metrics")),
    Lie("recording", "does not let its messages be recorded", setting(record=True)),
    Lie("recording in a word", "does not let its messages be recorded", setting(record="yes")),
    Lie("canaries", PINS + "canaries=", setting(canaries=5)),
    Lie("less delta", PINS + "delta=", setting(delta=0.5)),
    Lie("setting that there is not", "cannot be read", named_setting({"data-root-of-site": "/etc"})),
    Lie("5,000 settings that there are not", "cannot be read", named_setting(ODD_LOT)),
    Lie("setting whose name moves the cursor", "cannot be read", named_setting({CURSOR: 1})),
    Lie("seed that is no number", HIDDEN, setting(seed=CURSOR)),
    Lie("evil settings when asked first", PINS + "rounds=99", first(rounds=99)),
    Lie("evil settings when asked again", "", then(record=True, method="fedavg", metrics="all"), 1),
    # the app
    Lie("another app", "does not accept app ", attribute(app=b"another app", called="0" * 64)),
    Lie("another app by the accepted one's hash", "does not accept app ", attribute(app=b"another app")),
    Lie("no app", "does not accept app ", attribute(app=b"")),
    Lie("50 MB of zeros as an app", "does not accept app ", attribute(app=b"\0" * 50_000_000)),
    Lie("the accepted app by another hash", "accepts no app under another one's hash", attribute(called="0" * 64)),
    Lie("the accepted app with another one's hash beside it", "accepts no app under another one's hash",
        attribute(fab="0" * 64)),
    Lie("the accepted app by a version that is a path", HIDDEN, attribute(version="x/../../../data/x")),
    Lie("the accepted app by a path", "accepts no app under another one's hash", attribute(called="../../../etc/x")),
    # what a message holds
    Lie("tensor outside the downloads", SENT, tensor("patient", lambda w: w)),
    Lie("tensor with a name that moves the cursor", SENT, tensor(CURSOR, lambda w: w)),
    Lie("tensor left out", SENT, one_less(BIAS)),
    Lie("tensor of another type", SENT, tensor(WEIGHT, lambda w: w.astype(np.float64))),
    Lie("tensor of another shape", SENT, tensor(WEIGHT, lambda w: w.T.copy())),
    Lie("tensor of NaN", SENT, tensor(WEIGHT, lambda w: w * np.float32("nan"))),
    Lie("tensor with one infinite number", SENT, tensor(BIAS, lambda w: np.where(w == w[0], np.float32("inf"), w))),
    Lie("tensor whose header is code", SENT,
        tensor(WEIGHT, lambda w: Array(dtype="float32", shape=(10, 64), stype="numpy.ndarray", data=FILE))),
    Lie("pickled objects", SENT, tensor(WEIGHT, lambda w: Array(
        dtype="object", shape=(1,), stype="torch.pickle", data=b"cos\nsystem\n(S'exit 9'\ntR."))),
    Lie("no tensors", SENT, record(arrays=ArrayRecord())),
    Lie("no record of tensors", DECLINED, record(arrays=None)),
    Lie("words where tensors are due", DECLINED, record(arrays=ConfigRecord({"a": "b"}))),
    Lie("no scalars", DECLINED, record(config=None)),
    Lie("numbers where scalars are due", DECLINED, record(config=MetricRecord({"round": 1}))),
    Lie("scalars of 20 MB, of which the site reads its own", "", scalar(more="x" * 20_000_000), 1),
    Lie("lists as scalars", DECLINED, scalar(round=[1, 2], version=[0])),
    Lie("other code", DECLINED, scalar(code=CURSOR)),
    Lie("no code", DECLINED, scalar(code=None)),
    Lie("run by a path", DECLINED, scalar(experiment="../../etc")),
    Lie("run that moves the cursor", DECLINED, scalar(experiment=CURSOR)),
    Lie("round that is no number", DECLINED, scalar(round="one")),
    Lie("round before the first", DECLINED, scalar(round=-1)),
    Lie("round after the last", DECLINED, scalar(round=4)),
    Lie("round 10^6", DECLINED, scalar(round=10**6)),
    Lie("time that is over", DECLINED, scalar(deadline=-5.0)),
    Lie("no time", DECLINED, scalar(deadline=float("nan"))),
    Lie("time without end", "", scalar(deadline=1e300), 1),
    Lie("client that it is not, which the site does not ask", "", scalar(client=2), 1),
    # kinds of messages
    Lie("probe of training examples that nobody volunteered", DECLINED, kind("train.probe", scalar(**TARGET)), 1),
    Lie("probe on a control without noise", BUDGET, kind("train.probe", scalar(**{**TARGET, "control": "fresh"}))),
    Lie("probe on a control that there is not", BUDGET, kind("train.probe", scalar(**{**TARGET, "control": "../x"}))),
    Lie("probe of minus one example", DECLINED, kind("train.probe", scalar(**{**TARGET, "batch": -1}))),
    Lie("message of an unknown type", HIDDEN, kind("train.steal")),
    Lie("message of no type", NOTHING, metadata(message_type="")),
    Lie("message whose type moves the cursor", NOTHING, metadata(message_type=CURSOR)),
    Lie("group that moves the cursor", "", metadata(group_id=CURSOR), 1),
    Lie("message for another node", "", metadata(dst_node_id=77), 1),
    Lie("message that has lived", DECLINED, metadata(created_at=1.75e9)),
    Lie("message from the future", "", metadata(created_at=4e9), 1),
    Lie("message that lives for no time", "", metadata(ttl=0.0), 1),
    Lie("message whose objects do not come", NOTHING, attribute(left_out=True)),
    Lie("message that is tensors", DIED, attribute(top=Forged("ArrayRecord", b"{}"))),
    Lie("message of an unknown class", NOTHING, attribute(top=Forged("Pickle", b"cos\nsystem\n"))),
    Lie("message whose objects have no hashes", "takes nothing that cannot be read", attribute(unnamed=True)),
    Lie("message that is no protocol buffer", DIED, attribute(top=Forged("Message", b"\xff" * 99))),
)  # fmt: skip
"""Lies that are told to one site, one after the other."""

BY_VERSION = "the accepted app by a version that is a path"
OVER_GRPC = (
    BY_VERSION, "method without noise", "evil settings when asked again", "another app by the accepted one's hash",
    "50 MB of zeros as an app", "tensor of NaN", "tensor whose header is code", "message of no type",
    "message whose objects do not come", "message that is tensors", "message of an unknown class",
    "message whose objects have no hashes",
)  # fmt: skip
"""Names of lies that are told over gRPC wherever the slow tests run; `make nightly` tells all."""

SPENDING = (
    Lie("first message of three that the budget allows", "", scalar(), 1),
    Lie("the same round again", "", scalar(), 1),
    Lie("first round of another run", "", scalar(experiment="another"), 1),
    Lie("one message more", BUDGET, scalar(round=2)),
    Lie("the first round again", BUDGET, scalar()),
    Lie("a round of a run that is older", DECLINED, scalar(experiment="another", round=-3)),
    Lie("a run of its own", BUDGET, scalar(experiment="fresh")),
    Lie("a probe in place of a round", BUDGET, kind("train.probe", scalar(**TARGET))),
    Lie("evaluation, which sends no number and is free", "", kind("evaluate"), 1),
    Lie("evaluation after the last round", "", kind("evaluate", scalar(round=4)), 1),
    Lie("evaluation in a round that there is not", DECLINED, kind("evaluate", scalar(round=5))),
    Lie("enrolment, which says the same as before", "", kind("query")),
)
"""Lies that are told to a site whose budget allows three messages."""

TO_ONE_OF_THESE = "it goes on from one of these two"
VERSIONS = (
    Lie("its first step", "", scalar()),
    Lie("its second step", "", scalar(round=2, state_version=1)),
    Lie("the same step again, as after a server's death", "", scalar(round=2, state_version=1)),
    Lie("its start, after two steps", TO_ONE_OF_THESE, scalar(round=3, state_version=0)),
    Lie("a step that it never made", HIDDEN, scalar(round=3, state_version=7)),
    Lie("a step before its start", DECLINED, scalar(round=3, state_version=-1)),
    Lie("a step in words", DECLINED, scalar(round=3, state_version="1/../2")),
    Lie("a step that is a fraction", DECLINED, scalar(round=3, state_version=2.5)),
    Lie("a tensor that is its own", "downloads only hypernet.*", tensor("target.0.weight", lambda w: w)),
    Lie("NaN in place of what it downloads", "with NaN", tensor(HYPERNET, lambda w: w * np.float32("nan"))),
    Lie("a tensor that there is not", "no such tensor", tensor("hypernet.more", lambda w: w)),
    Lie(
        "other private tensors by a run's name", "Expected an experiment of letters", scalar(experiment="aaaa/../bbbb")
    ),
    Lie("a run with other private tensors", PINS + "method=fedcg", setting(method="fedcg")),
)
"""Lies that are told to a site with private tensors, which has no budget."""
