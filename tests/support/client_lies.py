"""Lies of an evil client, a row each: what it is, the words by which the server names the client, the answer.

Each row is a round of a run: in round k the evil client tells the k-th lie of a table. Where the words are empty the
answer is harmless, and counts as if it were honest.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from tests.support.forgery import (
    Forged,
    Sent,
    answering,
    forged_answer,
    in_message,
    plain,
    record_dict,
    sealed,
)  # fmt: skip
from tests.support.lying import (
    ARRAY,
    BIAS,
    CURSOR,
    DESCRIBED,
    EXAMPLES,
    F4,
    SWELLING,
    UNINFLATED,
    UNREAD,
    WEIGHT,
    Lie,
    end,
    factors,
    file,
    forged,
    forged_array,
    header,
    honest,
    in_the_way,
    incomplete,
    introduced,
    introduced_as,
    introduction,
    many_metrics,
    metrics,
    numbers,
    of_another,
    reason,
    records,
    stray,
    tensors,
    then_an_error,
    twice,
    unlike,
    values,
)  # fmt: skip

NOT_ITS_METRIC = "sent a metric "
SMALL = np.ones(3, np.float32)

TRAINING = (
    # arrays in NumPy's format that are none
    Lie("header that is code", DESCRIBED, header("__import__('os')._exit(9)")),
    Lie("header with code as its shape", DESCRIBED, header(F4 + "(__import__('os')._exit(9),), }")),
    Lie("header of 3,000 brackets", DESCRIBED, header(F4 + "(" * 1500 + ")" * 1500 + ", }")),
    Lie("shape of 10^30 entries", DESCRIBED, header(F4 + f"({10**30},), }}")),
    Lie("shape of 10^12 entries", UNREAD, header(F4 + f"({10**12 - 1},), }}")),
    Lie("pickled objects", DESCRIBED, header("{'descr': '|O', 'fortran_order': False, 'shape': (10, 64), }")),
    Lie("length of the header beyond the file", DESCRIBED, file(lambda a: b"\x93NUMPY\x01\x00\xff\xff" + a.data[10:])),
    Lie("zip file", UNREAD + "no array", file(lambda a: b"PK\x03\x04" + a.data[4:])),
    Lie("half a file", UNREAD, file(lambda a: a.data[: len(a.data) // 2])),
    Lie("bytes behind the array", UNREAD, file(lambda a: a.data + b"behind")),
    Lie("array by another name of its kind", UNREAD + "no array", file(lambda a: a.data, "torch.pickle")),
    # tensors that are not the method's
    Lie("other type of the same size", f"expected {WEIGHT} as float32", values(lambda w: w.view(np.int32))),
    Lie("other type, longer", f"expected {WEIGHT} as float32", values(lambda w: w.astype(np.float64))),
    Lie("turned shape", f"expected {WEIGHT} as float32(10, 64)", values(lambda w: w.T.copy())),
    Lie("400 kB of a tensor", f"bytes of {WEIGHT}, of which there are", values(lambda w: np.ones(100_000, np.float32))),
    Lie("NaN", f"sent {WEIGHT} with NaN", values(lambda w: w * np.nan)),
    Lie("one infinite entry", f"sent {WEIGHT} with NaN", values(lambda w: np.where(w == w.max(), np.inf, w))),
    Lie("values near the largest float", "sent a change of norm ", values(lambda w: np.full_like(w, 3e38))),
    Lie("values of a million", "sent a change of norm ", values(lambda w: w * 0 + np.float32(1e6))),
    Lie("tensor left out", f"did not send {BIAS}", tensors(classifier_bias=None)),
    Lie("tensor too many", "sent stolen, which is not to be uploaded", tensors(stolen=Array(SMALL))),
    Lie("tensor with a name that moves the cursor", "sent ?[2J", lambda m: tensors(**{CURSOR: Array(SMALL)})(m)),
    Lie("1,000 tensors", "sent t0, which", lambda m: tensors(**{f"t{i}": Array(SMALL) for i in range(1000)})(m)),
    Lie("no tensors", "did not send ", records(arrays=ArrayRecord())),
    Lie("60 MB of a tensor", UNINFLATED, values(lambda w: np.ones(15_000_000, np.float32))),
    Lie("two records of tensors", "expected one record of arrays", records(more=ArrayRecord())),
    Lie("tensors under another name", "expected one record of arrays, got other",
        lambda m: records(arrays=None, other=honest(m)["arrays"])(m)),
    # numbers
    Lie("2^62 examples", EXAMPLES + str(2**62), numbers(num_examples=2**62)),
    Lie("no examples", EXAMPLES + "0", numbers(num_examples=0)),
    Lie("half an example", EXAMPLES + "0.5", numbers(num_examples=0.5)),
    Lie("list of examples", "which is not its to send", numbers(num_examples=[40])),
    Lie("number of examples in words", EXAMPLES + "None",
        lambda m: records(more=ConfigRecord({"num-examples": "40"}), metrics=MetricRecord({"loss": 1.0}))(m)),
    Lie("2,000 metrics", "sent 2005 metrics", metrics({f"m{i}": 0.5 for i in range(2000)})),
    Lie("200,000 metrics", UNINFLATED + "more than the ", many_metrics),
    Lie("metric that is a formula", NOT_ITS_METRIC + "=cmd|", metrics({"=cmd|' /C calc'!A0": 1})),
    Lie("metric that moves the cursor", NOT_ITS_METRIC + "?[2J", metrics({CURSOR: 1})),
    Lie("metric that is the server's", NOT_ITS_METRIC + "upload_bytes", metrics({"upload_bytes": 1})),
    Lie("list of 10,000 numbers", NOT_ITS_METRIC + "pixels", metrics({"pixels": [0.5] * 10**4})),
    Lie("NaN loss, which is no number in the table", "", metrics({"loss": float("nan")})),
    Lie("no metrics", "sent no metrics", records(metrics=None)),
    # reasons
    Lie("reason of 20 MB that moves the cursor", UNINFLATED, reason(CURSOR * 2_000_000)),
    Lie("reason of 500 kB that moves the cursor", "?[2J", reason(CURSOR * 40_000)),
    Lie("reason of 10,000 lines", "line 9999", reason("\n".join(f"line {i}" for i in range(10_000)))),
    Lie("reason of spaces alone", "no reason given", reason(" \n\t\r\n ")),
    Lie("reason that a formula begins", "=cmd|", reason("=cmd|' /C calc'!A0")),
    Lie("reason that turns the line around", "?evil", reason("\u202eevil")),
    Lie("death that is none", "its process died", reason("its process died")),
    # content of other forms
    Lie("1,000 further records", "",
        lambda m: records(**{f"r{i}": ConfigRecord({"a": [1] * 9}) for i in range(1000)})(m)),
    Lie("content that is tensors", UNINFLATED,
        lambda m: forged_answer(m, in_message(m, plain(honest(m).array_records["arrays"])))),
    Lie("neither content nor error", UNINFLATED, lambda m: forged_answer(m, in_message(m))),
    Lie("no message", UNINFLATED, lambda m: forged_answer(m, record_dict())),
    Lie("record that is not in it", UNINFLATED,
        forged(lambda c: Forged("RecordDict", b'{"arrays": "' + b"0" * 64 + b'"}'))),
    Lie("description of 100,000 brackets", UNINFLATED, forged_array("[" * 100_000)),
    Lie("chunk that is not there", UNINFLATED, forged_array(ARRAY + "[7]}", b"chunk")),
    Lie("300 MB from a chunk of 1 MB", UNINFLATED, forged_array(ARRAY + f"{[0] * 300}}}", b"\0" * 1_000_000)),
    Lie("metrics that are no protocol buffer", UNINFLATED,
        forged(lambda c: record_dict(metrics=Forged("MetricRecord", b"\xff" * 99)))),
    # messages that are not the answer
    Lie("content that answers another message", "answered another message", unlike(reply_to_message_id="f" * 64)),
    Lie("content of another run, kind and round", "", unlike(run_id=1, message_type="query", group_id=CURSOR)),
    Lie("answer to a message that nobody sent", "gave up", then_an_error(stray(reply_to_message_id="f" * 64))),
    Lie("answer in another one's name", "gave up", then_an_error(stray(src_node_id=12345))),
    Lie("answer that has expired", "gave up", then_an_error(stray(created_at=1.75e9, ttl=1.0))),
    Lie("two answers, of which the second is poison", "", twice),
    Lie("silence", "did not answer within", lambda m: []),
    Lie("objects that never come", "did not answer within", incomplete),
    Lie("objects in the way of the next question", "did not answer within", in_the_way),
    Lie("death of the whole site", "did not answer within", end),
)  # fmt: skip

UNFIT = "sent factors of hypernet.heads.* "

FACTORS = (
    Lie("factors of other tensors", UNFIT + "that stand on other tensors", factors(base=b"\0" * 32)),
    Lie("scale of 1e308", UNFIT + "with NaN or infinite values", factors(scales=[1e308, 1e308])),
    Lie("factors whose product is infinite", "sent factors that make hypernet.heads.",
        factors(scales=[1.0, 3e38], axes=3e38, count=2)),
    Lie("255 bytes a number", UNFIT + "with up to 255 bytes a number", factors(planes=255)),
    Lie("stream that is none", UNFIT + "with a stream that cannot be inflated", factors(stream=b"no stream")),
    Lie("stream that swells to 128 MB", UNFIT + "with a stream of other than", factors(stream=SWELLING)),
    Lie("factor whose name moves the cursor", "?[2J", factors(more={CURSOR: b"more"})),
    Lie("factors and the tensors beside them", "which is not to be uploaded", factors(full=True)),
    Lie("no factors, whole tensors", "", honest),
)  # fmt: skip

ABOUT = "sent an introduction with an impossible "
ENROLMENT = (
    Lie("partition in words", ABOUT + "partition", introduced_as(partition="1")),
    Lie("partition that is true", ABOUT + "partition", introduced_as(partition=True)),
    Lie("2^62 as the partition", ABOUT + "partition", introduced_as(partition=2**62)),
    Lie("partition of another client", "says that it is client 2, and holds another key", introduced_as(partition=2)),
    Lie("other code", "runs other code (0000) than the server", introduced_as(code="0000")),
    Lie("code that moves the cursor", ABOUT + "code", introduced_as(code=CURSOR)),
    Lie("code of 900 kB", ABOUT + "code", introduced_as(code="a" * 900_000)),
    Lie("minus five volunteered examples", ABOUT + "volunteered", introduced_as(volunteered=-5)),
    Lie("shape of 100,000 axes", ABOUT + "shape", introduced_as(shape=[1] * 100_000)),
    Lie("other shape", "holds data of 10 classes and 1x9x9 inputs", introduced_as(shape=[1, 9, 9])),
    Lie("2^40 classes", ABOUT + "classes", introduced_as(classes=2**40)),
    Lie("classes of other names", "names its classes otherwise", introduced_as(labels="ffff")),
    Lie("trouble that moves the cursor", "?[2J", introduced_as(trouble=CURSOR * 9000)),
    Lie("1,000 further fields", "", introduced_as(**{f"field{i}": i for i in range(1000)})),
    Lie("introduction under another name", "sent no introduction", introduced(lambda words: {"me": words})),
    Lie("introduction and more", "sent no introduction", introduced(lambda words: {"about": words, "more": words})),
    Lie("introduction of 2 MB", UNINFLATED, introduced_as(more="x" * 2_000_000)),
    Lie("introduction that is no text", UNINFLATED,
        lambda m: forged_answer(m, in_message(m, record_dict(about=Forged("ConfigRecord", b"\xff" * 99))))),
    Lie("error in place of an introduction", "?evil", reason("\u202eevil")),
    Lie("introduction that answers another message", "answered another message", of_another),
)  # fmt: skip

ONLY_AMONG_PROCESSES = (
    "did not answer within", "gave up", "says that it is client 2, and holds another key", "sent a change of norm ",
)  # fmt: skip
"""Words of the answers to lies that need a SuperLink, a key, a deadline or a death, or that sites alone are held to."""
OVER_GRPC = (
    "header that is code", "pickled objects", "NaN", "60 MB of a tensor", "200,000 metrics", "chunk that is not there",
    "reason of 20 MB that moves the cursor", "content that answers another message",
    "answer in another one's name", "two answers, of which the second is poison", "objects that never come",
    "death of the whole site",
)  # fmt: skip
"""Names of lies that are told over gRPC wherever the slow tests run; `make nightly` tells all."""
DOZEN = tuple(lie for lie in TRAINING if lie.name in OVER_GRPC)
TABLES = {"training": TRAINING, "factors": FACTORS, "enrolment": ENROLMENT, "dozen": DOZEN}


def lie_about(lies: Sequence[Lie], message: Message, queries: int) -> Sequence[Sent]:
    """Return the answers to a message by the lie that is due.

    Args:
        lies: the table; empty: all is honest.
        message: the message.
        queries: how often this site has been asked to introduce itself, this time counted.
    """
    enrols = bool(lies) and lies[0] in ENROLMENT
    kind = message.metadata.message_type
    if kind == "query":  # the first one is the run's own, which lets the client in
        in_turn = enrols and 2 <= queries < 2 + len(lies)
        made = lies[queries - 2].answer(message) if in_turn else introduction().to_message(message)
    else:
        k: Any = message.content.config_records["config"]["round"]
        in_turn = kind == "train" and not enrols and k <= len(lies)
        made = lies[k - 1].answer(message) if in_turn else honest(message)
    answers: list[Any] = made if isinstance(made, list) else [made]
    whole = [answering(message, one) if isinstance(one, RecordDict) else one for one in answers]
    return [sealed(one) if isinstance(one, Message) else one for one in whole]
