"""Model that all clients are sent: whether there is one, and its accuracy on the server's own test data."""

import torch
from flwr.app import ArrayRecord

from flfw.files.tensor_names import matches
from flfw.messages.wire import unpack
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import correct
from flfw.nets.training.devices import one_thread
from flfw.server.context import ServerContext
from flfw.server.strategy import FederatedStrategy
from flfw.task.method import Method

_AT_ONCE = 500


def sends_one_model(method: type[Method]) -> bool:
    """Return whether a round's clients are all sent the same tensors: then these have an accuracy and an average."""
    return getattr(method, "arrays_for", None) is FederatedStrategy.arrays_for


def sends_mean(method: type[Method], robust: str, malicious: ModelModification | None) -> bool:
    """Return whether a client receives the weighted mean of the last round's weights, by the method's declaration.

    Args:
        method: the method.
        robust: what stands in place of the mean; ``none``: nothing.
        malicious: change of the network by a malicious server; None: the server follows the protocol.
    """
    honest = malicious is None and robust == "none"
    return bool(method.averaged and method.downloads) and sends_one_model(method) and honest


def central_accuracy(ctx: ServerContext, arrays: ArrayRecord) -> float | None:
    """Compute the last model's accuracy on all test examples of the server's data set, in [0, 1].

    In a simulation these are the test data from which clients have theirs; in a federation, what lies on the server's
    machine. No client is asked.

    Args:
        ctx: resources of the run's server.
        arrays: the last broadcast.

    Returns:
        The accuracy; None where the server has no test data, the method does not send all clients one whole model, or
        labels are numbers.
    """
    names, sharing = list(ctx.blank.state_dict()), ctx.sharing
    full = all(matches(name, sharing.downloads) for name in names)
    task = ctx.task
    tests = task.dataset.common_tests
    if not full or not sends_one_model(ctx.method) or not len(tests) or task.dataset.is_regression:
        return None
    model = ctx.model()
    model.load_state_dict(unpack(arrays))
    model.to(ctx.device).eval()
    right = 0.0
    with torch.no_grad(), one_thread():
        for start in range(0, len(tests), _AT_ONCE):
            x, y = task.examples("test", tests[start : start + _AT_ONCE])
            right += float(correct(model(task.inputs.normalise(x.to(ctx.device))).cpu(), x, y).sum())
    return right / len(tests)
