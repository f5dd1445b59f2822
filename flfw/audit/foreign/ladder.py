"""The ladder below an audit of recorded updates, computed here: the clients of a foreign app answer no probes.

Gradients are written and read back as the recorder's files, so that the reader of recordings is tested as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.adversary.attack import Attack
from flfw.adversary.observation import Observation, Truth
from flfw.audit import judge
from flfw.audit.foreign.case import ForeignCase
from flfw.audit.verdicts.evidence import ControlResult
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack
from flfw.nets.inputs import InputSpec
from flfw.nets.malicious_model import ModelModification
from flfw.recording.grid import RecordingGrid
from flfw.recording.reader import Recordings
from flfw.rng import initialising


def probes(rung: str, net: nn.Module, singles: Sequence[Truth], inputs: InputSpec) -> list[Observation]:
    """Return the gradient of each single example as a recorded probe; slots are places in ``singles``.

    Args:
        rung: ``control`` or ``easy``.
        net: the network, wholly shared, in evaluation mode.
        singles: truths of one example each.
        inputs: the input space.
    """
    app, net = ClientApp(), net.eval()
    gradients = [_gradient(net, single, inputs) for single in singles]

    @app.train("probe")
    def answer(message: Message, context: Context) -> Message:
        slot = message.content.config_records["config"]["slot"]
        assert isinstance(slot, int), "it was put there as one"
        return Message(RecordDict({"arrays": pack(gradients[slot])}), reply_to=message)

    def ask(slot: int) -> Message:
        config = {"rung": rung, "round": 0, "client": 0, "slot": slot, "batch": 1, "steps": 1}
        content = RecordDict({"arrays": pack(nets.tensors(net)), "config": ConfigRecord(config)})
        return Message(content, dst_node_id=1, message_type="train.probe", group_id="0")

    with tempfile.TemporaryDirectory(prefix="flfw-ladder-") as folder:
        grid = RecordingGrid(InProcessGrid(app, 1, {}), folder)
        for slot in range(len(singles)):
            list(grid.send_and_receive([ask(slot)]))
        return Recordings(Path(folder)).probes(rung, 0)


def crafted(net: nn.Module, attack: Attack, case: ForeignCase) -> nn.Module:
    """Return a network with the numbers that an attack's malicious server sends; for any other attack as it is."""
    if not isinstance(attack, ModelModification):
        return net
    held, public = nets.tensors(net), case.inputs.normalise(torch.tensor(case.public.samples).float())
    made = {**attack.crafted(held, public), **attack.personal(0, held, public)}
    fitting = {name: value for name, value in made.items() if name in held and held[name].shape == value.shape}
    net.load_state_dict({**held, **fitting})
    return net


def control(singles: Sequence[Truth], inputs: InputSpec, classes: int, seed: int) -> ControlResult:
    """Run the closed form on softmax regression, which must recover every example."""
    with initialising(seed, "control"):
        net = nets.build("linear", inputs.shape, classes)
    pairs = [(observation, singles[observation.slot]) for observation in probes("control", net, singles, inputs)]
    return judge.control(pairs, len(singles), inputs)


def _gradient(net: nn.Module, single: Truth, inputs: InputSpec) -> nets.Tensors:
    moving = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
    loss = cross_entropy(net(inputs.normalise(single.samples)), single.labels)
    gradients = torch.autograd.grad(loss, list(moving.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(moving, gradients, strict=True))
