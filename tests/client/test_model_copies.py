"""Copies of a run's first model: the same as a model built anew, and nothing passes from one to another."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.nn.utils.parametrizations import spectral_norm

from flfw.client import FederatedClient
from flfw.client.context import ClientContext, ModelCopies, Uncopied, copied
from flfw.engines import apps
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack
from flfw.nets import Tensors
from flfw.nets.training.optimisers import LocalTraining
from flfw.plans.run_plan import plan
from flfw.server.strategy import FederatedStrategy
from tests.support.method_rounds import METHODS, by_method, initial_tensors, make_client

BUILT_EACH_TIME = ("fedcg",)  # its discriminator has spectral norms
DEFENCES = ("prune", "precode", "soteria")


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and buffers with their names, those that no state holds too."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def assert_same(one: nn.Module, other: nn.Module) -> None:
    """Both have the same modules, attributes, numbers and flags."""
    theirs = dict(other.named_modules())
    for name, module in one.named_modules():
        # Of parametrised ones not the same.
        assert type(module).__qualname__ == type(theirs.pop(name)).__qualname__, name
        twin = other.get_submodule(name)
        assert list(vars(module)) == list(vars(twin)), name
        assert list(module.named_parameters(recurse=False)) or not list(twin.named_parameters(recurse=False))
        assert (module.training, repr(module)) == (twin.training, repr(twin))
    assert not theirs
    assert list(one.state_dict()) == list(other.state_dict())
    for (name, value), (same, twin) in zip(tensors_of(one), tensors_of(other), strict=True):
        assert (name, value.dtype, value.requires_grad) == (same, twin.dtype, twin.requires_grad)
        assert type(value) is type(twin) and value.stride() == twin.stride() and torch.equal(value, twin), name


def memory_of(model: nn.Module) -> set[int]:
    return {value.untyped_storage().data_ptr() for _, value in tensors_of(model) if value.numel()}


def at_run(ctx: ClientContext, run: str = "run") -> ClientContext:
    return dataclasses.replace(ctx, run=run)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_begins_with_the_model_that_it_builds(small: Experiment, tmp_path: Path, method: str) -> None:
    ctx = make_client(by_method(dataclasses.replace(small, net="lenet"), method), 1, tmp_path).ctx
    built, made = ctx.fresh_model(), [at_run(ctx).fresh_model() for _ in range(4)]
    for model in made:
        assert_same(built, model)
    assert len(set[int]().union(*map(memory_of, made))) == 4 * len(memory_of(built))
    if method in BUILT_EACH_TIME:
        with pytest.raises(Uncopied):
            copied(built)
    else:
        copied(built)


@pytest.mark.parametrize(
    ("net", "defence"),
    [(net, "none") for net in ("cnn1", "lenet5", "resnet18", "vit_norm", "mlp")] + [("cnn1", d) for d in DEFENCES],
)
def test_every_network_begins_as_it_is_built(small: Experiment, tmp_path: Path, net: str, defence: str) -> None:
    ctx = make_client(dataclasses.replace(small, net=net, defence=defence), 1, tmp_path).ctx
    built, made = ctx.fresh_model(), [at_run(ctx).fresh_model() for _ in range(3)][-1]
    assert_same(built, made)
    copied(built)
    x = torch.rand(2, *ctx.task.dataset.shape)
    generator = torch.get_rng_state()
    expected = built.eval()(x)
    torch.set_rng_state(generator)  # of precode's noise
    assert torch.equal(expected, made.eval()(x))


CHANGES: list[dict[str, Any]] = [
    {"seed": 1},
    {"init": "glorot"},
    {"net": "lenet5"},
    {"set": ("hyperfl.hidden=8", "hyperfl.embedding=4")},
    {"variant": "authors"},
    {"defence": "precode"},
    {"lr": 0.5},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("method", ["fedper", "hyperfl"])
def test_experiments_of_one_process_have_their_own_models(
    small: Experiment, tmp_path: Path, method: str, change: dict[str, Any]
) -> None:
    if "variant" in change and method != "hyperfl":
        return
    if method == "fedper" and "set" in change:
        change = {"set": ("momentum=0.25",)}
    first = by_method(dataclasses.replace(small, net="lenet"), method)
    second = dataclasses.replace(first, **change)
    ats = [make_client(experiment, 0, tmp_path).ctx for experiment in (first, second)]
    built = [ctx.fresh_model() for ctx in ats]
    for which in (0, 0, 0, 1, 0, 1, 1, 1, 0, 0):
        assert_same(at_run(ats[which]).fresh_model(), built[which])


@pytest.mark.parametrize("method", ["fedcg", "fedgen", "fedsplit"])
def test_clients_that_begin_with_their_own_private_tensors_keep_them(
    small: Experiment, tmp_path: Path, method: str
) -> None:
    experiment, begun = by_method(small, method, set=("start=independent",)), []
    for partition in (0, 1, 0, 1):
        ctx = make_client(experiment, partition, tmp_path).ctx
        begun.append(at_run(ctx).fresh_model())
        assert_same(ctx.fresh_model(), begun[-1])
    weights = [model.state_dict()["extractor.0.weight"] for model in begun]
    assert torch.equal(weights[0], weights[2]) and torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[0], weights[1])


def test_another_default_type_has_another_model(small: Experiment, tmp_path: Path) -> None:
    ctx = at_run(make_client(dataclasses.replace(small, net="lenet"), 0, tmp_path).ctx)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert [next(ctx.fresh_model().parameters()).dtype for _ in range(3)] == [dtype] * 3
        finally:
            torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert all(next(ctx.fresh_model().parameters()).is_meta for _ in range(3))
    assert_same(ctx.fresh_model(), dataclasses.replace(ctx, run="").fresh_model())


def test_settings_that_may_change_are_never_kept(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass(frozen=True)
    class Listed(LocalTraining):
        lengths: list[int] = dataclasses.field(default_factory=list)

    ctx = at_run(make_client(dataclasses.replace(small, net="lenet"), 0, tmp_path).ctx)
    ctx = dataclasses.replace(ctx, plan=dataclasses.replace(ctx.plan, settings=Listed()))
    for _ in range(3):
        assert_same(ctx.fresh_model(), dataclasses.replace(ctx, run="").fresh_model())
    built, build = [], ctx.method.build_model
    monkeypatch.setattr(ctx.method, "build_model", lambda *given: built.append(given) or build(*given))
    for number in range(3):
        ctx.fresh_model()
        assert len(built) == number + 1


# --- a client whose method changes its model ---


LEFT: list[Any] = []
"""State of its model as each client found it."""


@final
class Vandal(FederatedClient):
    """Client that leaves nothing of its model as it was."""

    def train(self) -> dict[str, float]:
        LEFT.append({name: (value.clone(), value.requires_grad) for name, value in tensors_of(self.model)})
        LEFT[-1]["modules"] = [name for name, _ in self.model.named_modules()]
        LEFT[-1]["attributes"] = {name: list(vars(part)) for name, part in self.model.named_modules()}
        LEFT[-1]["training"] = self.model.training
        LEFT[-1]["hooks"] = sum(len(part._forward_hooks) for part in self.model.modules())
        net: Any = self.model
        for value in net.parameters():
            value.data.fill_(7.0)
            value.requires_grad_(False)
            value.grad = torch.ones_like(value)
        net.extractor.spoiled = [1]
        net.extractor.register_forward_hook(lambda _module, _given, result: result * 0)
        net.shape = (1, 2, 3)
        net.eval()
        net.classifier = nn.Sequential(nn.Linear(3, 4))
        return {"loss": 0.0}

    def accuracy(self, part: str = "test") -> float:
        return 0.0

    def private_state(self) -> Tensors:
        return {}

    def build_upload(self) -> Tensors:
        return {name: torch.tensor(value) for name, value in self.received.items()}


@final
class Plain(FederatedStrategy):
    """Method of such clients, with a private classifier."""

    Settings = LocalTraining
    client = "tests.client.test_model_copies:Vandal"
    downloads = ("extractor.*",)
    uploads = ("extractor.*",)

    def aggregate(self, updates: Any) -> Tensors:
        raise NotImplementedError


def test_what_a_client_does_to_its_model_no_other_sees(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(small, net="lenet", method="tests.client.test_model_copies:Plain")
    experiment = plan(experiment).experiment
    sites = [{"state": str(tmp_path / str(client))} for client in range(3)]
    grid = InProcessGrid(apps.client, 3, experiment.to_run_config(), sites)
    arrays = pack({n: torch.tensor(v) for n, v in initial_tensors(experiment).items()})
    scalars = {"code": code_hash(), "experiment": "vandals", "deadline": 600.0, "round": 1, "state_version": 0}
    LEFT.clear()
    for client in (1, 2, 3, 1):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord(scalars)})
        (reply,) = grid.send_and_receive([Message(content, client, "train")])
        assert not reply.has_error(), reply.error
    first, *others = LEFT
    assert len(others) == 3 and first["training"] and first["hooks"] == 0
    for other in others:
        assert other.keys() == first.keys()
        for name, left in first.items():
            if isinstance(left, tuple):
                assert torch.equal(left[0], other[name][0]) and left[1] and other[name][1], name
            else:
                assert left == other[name], name


# --- what is copied, and what is not ---


class Part(nn.Module):
    """Module with attributes of many kinds."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))
        for name, value in attributes.items():
            setattr(self, name, value)


def test_attributes_are_copied_with_what_they_hold() -> None:
    table = {"a": [torch.ones(2)], "b": (torch.zeros(1), "word"), "c": {1, 2}}
    part = Part(table=table, same=table, activation=relu, shape=torch.Size([1, 2]))
    part.register_buffer("hidden", torch.ones(2), persistent=False)
    part.tied, part.frozen = part.weight, nn.Parameter(torch.ones(1), requires_grad=False)
    part.inner = nn.ModuleList([nn.Linear(2, 2), nn.BatchNorm1d(2)]).eval()
    vars(part)["outer"] = [part]  # a circle
    copy: Any = copied(part)
    assert_same(part, copy)
    assert copy.outer == [copy] and copy.tied is copy.weight is not part.weight
    assert copy.table is copy.same is not table and copy.table["a"][0] is not table["a"][0]
    assert copy.activation is relu and not copy.inner.training and not copy.frozen.requires_grad
    assert not memory_of(part) & memory_of(copy)
    copy.table["a"][0] += 1
    assert table["a"][0].tolist() == [1.0, 1.0] and copy.table["b"][1] == "word" and copy.table["c"] == {1, 2}


@pytest.mark.parametrize("part", [nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2, dropout=0.0)])
def test_torchs_own_modules_compute_the_same(part: nn.Module) -> None:
    x = torch.rand(3, 2, 4)
    given = (x, x, x) if isinstance(part, nn.MultiheadAttention) else (x,)
    one, other = part(*given), copied(part)(*given)
    assert torch.equal(one[0], other[0])


class Odd:
    """An object that a model may hold."""


class Own(nn.Linear):
    """Module with a copy of its own."""

    def __deepcopy__(self, memo: Any) -> Own:
        raise NotImplementedError


def with_hook() -> nn.Module:
    part = nn.Linear(2, 2)
    part.register_forward_hook(lambda *_: None)
    return part


def with_graph() -> nn.Module:
    part = Part()
    vars(part)["made"] = 2 * part.weight
    return part


def with_gradient() -> nn.Module:
    part = Part()
    part.weight.grad = torch.ones(3)
    return part


def with_masked_gradient() -> nn.Module:
    part = Part()
    part.weight.register_hook(lambda gradient: 0 * gradient)
    return part


def with_hook_after_gradients() -> nn.Module:
    part = Part()
    part.weight.register_post_accumulate_grad_hook(lambda _: None)
    return part


def with_inference() -> nn.Module:
    with torch.inference_mode():
        return Part()


def with_noted_weight() -> nn.Module:
    part: Any = Part()
    part.weight.note = 1
    return part


UNCOPIED: dict[str, Callable[[], nn.Module]] = {
    "an object": lambda: Part(held=Odd()),
    "a function of its own": lambda: Part(held=lambda x: x),
    "a hook": with_hook,
    "a parametrisation": lambda: spectral_norm(nn.Linear(2, 2)),
    "a copy of its own": lambda: Own(2, 2),
    "references to weights": lambda: nn.LSTM(2, 2),
    "a graph": with_graph,
    "a gradient": with_gradient,
    "a hook of a weight": with_masked_gradient,
    "a hook of a weight after its gradient": with_hook_after_gradients,
    "inference": with_inference,
    "a sparse tensor": lambda: Part(held=torch.eye(2).to_sparse()),
    "weights without a shape": lambda: nn.LazyLinear(2),
    "an attribute of a weight": with_noted_weight,
    "two views of one memory": lambda: Part(views=list(torch.arange(4.0).split(2))),
    "a part of a memory": lambda: Part(held=torch.arange(4.0)[1:]),
    "a tensor in another order": lambda: Part(held=torch.ones(2, 3).T),
    "no numbers": lambda: nn.Linear(2, 2, device="meta"),
}


@pytest.mark.parametrize("make", UNCOPIED.values(), ids=UNCOPIED.keys())
def test_a_model_with_anything_else_is_built_each_time(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(Uncopied):
        copied(make())
    copies, made = ModelCopies(), []

    def build() -> nn.Module:
        made.append(make())
        return made[-1]

    got = [copies.model("key", build) for _ in range(4)]
    assert all(one is other for one, other in zip(got, made, strict=True))


def test_a_model_is_kept_from_the_second_time_on_and_only_the_last_one() -> None:
    copies, built = ModelCopies(), []

    def model_of(key: int) -> nn.Module:
        def build() -> nn.Module:
            built.append(key)
            return Part(number=key)

        return copies.model(key, build)

    assert [model_of(key).number for key in (1, 1, 1, 1, 2, 1, 1, 1)] == [1, 1, 1, 1, 2, 1, 1, 1]
    assert built == [1, 1, 2, 1, 1]


def test_a_model_that_cannot_be_built_is_asked_for_again() -> None:
    copies, reasons = ModelCopies(), [ValueError("no"), ValueError("no"), None]

    def build() -> nn.Module:
        if reason := reasons.pop(0):
            raise reason
        return Part()

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            copies.model("key", build)
    assert isinstance(copies.model("key", build), Part) and not reasons
    assert isinstance(copies.model("key", build), Part)  # a copy


def test_threads_get_models_of_their_own(small: Experiment, tmp_path: Path) -> None:
    ctx = at_run(make_client(dataclasses.replace(small, net="lenet"), 0, tmp_path).ctx, "threads")
    expected, made = dataclasses.replace(ctx, run="").fresh_model(), []
    threads = [threading.Thread(target=lambda: made.append(ctx.fresh_model())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8 and len({place for model in made for place in memory_of(model)}) == 8 * len(
        memory_of(made[0])
    )
    for model in made:
        assert_same(model, expected)


def test_a_built_model_draws_nothing_from_the_process(small: Experiment, tmp_path: Path) -> None:
    """The global generator stays as it is, whether a model is built or copied."""
    ctx = at_run(make_client(dataclasses.replace(small, net="lenet"), 0, tmp_path).ctx, "generator")
    before = torch.get_rng_state()
    for _ in range(3):
        ctx.fresh_model()
        assert torch.equal(torch.get_rng_state(), before)


def test_the_task_decides_too(small: Experiment, tmp_path: Path) -> None:
    """Two sites of one process may have data of unlike shapes."""
    ctx = at_run(make_client(dataclasses.replace(small, net="lenet"), 0, tmp_path).ctx, "shapes")
    wide = dataclasses.replace(
        ctx, task=dataclasses.replace(ctx.task, dataset=dataclasses.replace(ctx.task.dataset, classes=12))
    )
    assert [m.classes for m in (ctx.fresh_model(), wide.fresh_model(), ctx.fresh_model())] == [10, 12, 10]
