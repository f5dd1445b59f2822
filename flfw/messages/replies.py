"""Replies of clients, and the checks that the server makes before it uses them."""

import re
from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from torch import Tensor

from flfw.errors import printable
from flfw.files.tensor_names import matches
from flfw.messages.npy import length
from flfw.messages.reasons import UnusableReplyError, in_one_line
from flfw.messages.wire import lent, nbytes, of_kind, unpack
from flfw.nets.net import Tensors

_THE_SERVERS_OWN = ("round", "client", "upload_bytes")  # columns of clients.csv
_HEADER_BYTES = 4096  # two versions of NumPy may differ by so many bytes for the same array
_METRICS = 100  # of a reply
_LARGEST = 1e150  # of a metric: the sum of the squares of a million such is a number
_NAME = 80  # characters of a name that a client chose, as shown
_METRIC = re.compile(r"[A-Za-z_][\w .:/()\[\]%+-]{0,63}", re.ASCII)  # no formula of a spreadsheet, no escape sequence
_MOST = 2**31  # examples of a client


def is_finite(value: Tensor) -> bool:
    """Return whether a tensor has neither NaN nor infinite values; an empty one has none, nor has one of integers.

    The least and the greatest value are NaN if any value is, and infinite if any is: one pass that writes nothing, as
    against a mask of all values.

    >>> is_finite(torch.tensor([1.0, 2.0])), is_finite(torch.tensor([1.0, torch.nan])), is_finite(torch.tensor([]))
    (True, False, True)
    """
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if not value.is_floating_point() or not value.numel():
        return True
    return all(isfinite(end.item()) for end in torch.aminmax(value))


def read_update(
    reply: Message,
    uploads: Sequence[str],
    broadcast: ArrayRecord,
    *,
    full: bool = True,
    counted: bool = True,
    copied: bool = True,
) -> tuple[Tensors, dict[str, Any], int]:
    """Read a reply's tensors, metrics and bytes, with the checks that one reply allows by itself.

    Args:
        reply: the reply of a client.
        uploads: patterns of the names that the client may send.
        broadcast: the tensors sent to the client: a reply holds only these names, with the same shape and type.
        full: whether the reply must hold all tensors that the client may send.
        counted: whether it must tell the client's number of examples; False: the run has ``metrics=none``, and what is
            told all the same is dropped unread.
        copied: whether the tensors are copies; False: they are the reply's own, to be read only, and at once.

    Raises:
        UnusableReplyError: the reply is an error, is malformed, or holds values that are not finite.
    """
    metrics = read_metrics(reply)
    metrics = metrics if counted else {}
    examples = metrics.get("num-examples")
    if counted and not (isinstance(examples, int) and 1 <= examples <= _MOST):
        raise UnusableReplyError(f"expected 1 <= num-examples <= {_MOST}, got {examples}")
    records = of_kind(reply.content, ArrayRecord)
    if list(records) != ["arrays"]:
        raise UnusableReplyError(
            f"expected one record of arrays, got {printable(', '.join(records))[:_NAME] or 'none'}"
        )
    _check_names(records["arrays"], uploads, broadcast, full)
    try:
        tensors = unpack(records["arrays"]) if copied else lent(records["arrays"])
    except ValueError as error:
        raise UnusableReplyError(f"sent arrays that cannot be read: {error}") from error
    for name, value in tensors.items():
        _check_form(name, value, broadcast[name].shape, broadcast[name].dtype)
        if not is_finite(value):
            raise UnusableReplyError(f"sent {name} with NaN or infinite values")
    return tensors, metrics, nbytes(records["arrays"])


def read_metrics(reply: Message, needed: Sequence[str] = ()) -> dict[str, Any]:
    """Read the metrics of a reply; a value that is not finite, or too large to be summed, becomes None.

    Args:
        reply: the reply of a client.
        needed: names of metrics that must be present and finite.

    Raises:
        UnusableReplyError: the reply is an error, holds no metrics, lacks one, or holds one that it may not send.
    """
    if reply.has_error():
        raise UnusableReplyError(in_one_line(reply.error.reason))
    if (sent := of_kind(reply.content, MetricRecord).get("metrics")) is None:
        raise UnusableReplyError("sent no metrics")
    metrics: dict[str, Any] = {}
    if (count := len(sent)) > _METRICS:
        raise UnusableReplyError(f"sent {count} metrics, of which {_METRICS} are the most")
    for name, value in sent.items():
        if name in _THE_SERVERS_OWN or not isinstance(value, int | float) or not _METRIC.fullmatch(name):
            raise UnusableReplyError(f"sent a metric {printable(f'{name}={value}')[:_NAME]}, which is not its to send")
        metrics[name] = value if isfinite(value) and abs(value) <= _LARGEST else None
    for name in needed:
        if metrics.get(name) is None:
            raise UnusableReplyError(f"sent no {name}")
    return metrics


def _check_names(sent: ArrayRecord, uploads: Sequence[str], broadcast: ArrayRecord, full: bool) -> None:
    for name, array in sent.items():
        if name not in broadcast or not matches(name, uploads):
            raise UnusableReplyError(f"sent {printable(name)[:_NAME]}, which is not to be uploaded")
        if (size := length(array)) > (there := length(broadcast[name])) + _HEADER_BYTES:
            raise UnusableReplyError(f"sent {size} bytes of {name}, of which there are {there}")
    for name in broadcast:
        if full and name not in sent and matches(name, uploads):
            raise UnusableReplyError(f"did not send {name}")


def _check_form(name: str, value: torch.Tensor, shape: Sequence[int], dtype: str) -> None:
    got = str(value.dtype).removeprefix("torch.")
    if tuple(value.shape) != tuple(shape) or got != dtype:
        raise UnusableReplyError(f"expected {name} as {dtype}{tuple(shape)}, got {got}{tuple(value.shape)}")
