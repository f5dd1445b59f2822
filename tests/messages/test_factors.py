"""Uploads as factors: against loops over small layers, what the server refuses, and a whole run."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from torch import Tensor

import sim
from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.site import Site
from flfw.client.store import ClientStore
from flfw.clients.defences.prune import Prune
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.factored_upload import FactoredUpload, FactorReader, Factors, Layers, Unfit, expand, factored
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.replies import UnusableReplyError
from flfw.messages.sharing import SharingViolationError
from flfw.messages.wire import deflate, nbytes, pack
from flfw.nets import Tensors
from flfw.nets.training.low_rank import HypernetworkTraining
from flfw.plans.run_plan import plan, without_auto
from flfw.recording.format import FORMAT, MANIFEST, PlainTensors
from flfw.recording.grid import RecordingGrid
from flfw.recording.reader import Recordings
from flfw.runs import launch
from flfw.server.aggregation import Update
from flfw.strategies.hyperfl import HyperFL
from flfw.task.defence import Defence

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))
PATTERN = "net.heads.*"
FORM = FactoredUpload(PATTERN, 1e-3)


def made(*outputs: int, inputs: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """Layers of so many outputs each, and a trunk beside them."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"net.trunk": (3, 2)}
    for k, n in enumerate(outputs):
        shapes |= {f"net.heads.{k}.weight": (n, inputs), f"net.heads.{k}.bias": (n,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def trained(before: dict[str, np.ndarray], rank: int = 2, kept: float = 1.0, noise: float = 0.0) -> Tensors:
    """After local training in so many directions; the trunk as it was."""
    rng = np.random.default_rng(7)
    inputs = before["net.heads.0.weight"].shape[1]
    h = np.vstack([rng.normal(size=(inputs, rank)), np.ones(rank)])
    after = dict(before)
    for name in [name for name in before if name.endswith(".weight")]:
        bias = name.replace("weight", "bias")
        change = 0.01 * rng.normal(size=(len(before[name]), rank)) @ h.T + noise * rng.normal(size=(1, inputs + 1))
        after[name] = kept * before[name] + change[:, :-1]
        after[bias] = kept * before[bias] + change[:, -1]
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in after.items()}


def relative_error(result: Tensors, after: Tensors, before: dict[str, np.ndarray]) -> float:
    """||found - after|| / ||after - before|| over all tensors, in float64."""

    def squares(one: Tensor, other: Tensor) -> float:
        return float(((one.double() - other.double()) ** 2).sum())

    off = sum(squares(result[name], after[name]) for name in after)
    return (off / sum(squares(after[name], torch.tensor(before[name])) for name in after)) ** 0.5


def layers_of(tensors: dict[str, np.ndarray]) -> Layers:
    result = Layers.matching(PATTERN, tensors)
    assert result is not None
    return result


def factors_of(before: dict[str, np.ndarray], after: Tensors, error: float = 1e-3) -> Factors:
    result = factored(layers_of(before), after, before, error)
    assert result is not None
    return result


# --- the layers ---


def test_layers_are_stacked_with_their_biases_last() -> None:
    tensors = {
        "net.heads.0.weight": np.array([[1, 2], [3, 4]], np.float32),
        "net.heads.0.bias": np.array([5, 6], np.float32),
        "other": np.zeros(9, np.float32),
        "net.heads.1.weight": np.array([[7, 8]], np.float32),
        "net.heads.1.bias": np.array([9], np.float32),
    }
    layers = layers_of(tensors)
    assert layers.matrix(tensors).tolist() == [[1, 2, 5], [3, 4, 6], [7, 8, 9]]
    assert layers.shape == (3, 3)
    assert set(layers.names) == set(tensors) - {"other"}


@pytest.mark.parametrize(
    "change",
    [
        {"net.heads.0.bias": np.zeros(4, np.float32)},
        {"net.heads.1.weight": np.zeros((2, 5), np.float32)},
        {"net.heads.0.weight": np.zeros((3, 6))},
        {"net.heads.0.gain": np.zeros(3, np.float32)},
        {"net.heads.0.kernel": np.zeros((3, 6, 1), np.float32)},
    ],
)
def test_what_is_no_layers_of_one_input_is_none(change) -> None:
    assert Layers.matching(PATTERN, made(3, 2)) is not None
    assert Layers.matching(PATTERN, {**made(3, 2), **change}) is None


def test_layers_without_biases_or_of_no_name_are_none() -> None:
    tensors = made(3, 2)
    del tensors["net.heads.1.bias"]
    assert Layers.matching(PATTERN, tensors) is None
    assert Layers.matching("nothing.*", tensors) is None


def test_the_digest_is_that_of_names_and_numbers_of_the_layers_alone() -> None:
    tensors = made(3, 2)
    digest = layers_of(tensors).digest(tensors)
    assert layers_of(tensors).digest({**tensors, "net.trunk": np.zeros((3, 2))}) == digest
    changed = tensors["net.heads.1.bias"] + np.float32(1e-3)
    assert layers_of(tensors).digest({**tensors, "net.heads.1.bias": changed}) != digest


# --- the factors ---


def test_factors_multiply_out_as_a_loop_does() -> None:
    before = made(4, 3)
    axes = torch.tensor([[1.0, 0.5]] * 7) * torch.arange(7.0)[:, None]
    counts = np.arange(14, dtype=np.int32).reshape(2, 7) - 6
    result = dict(Factors(0.9, 0.01, axes, counts).expanded(layers_of(before), before))
    for start, head, n in ((0, 0, 4), (4, 1, 3)):
        for i in range(n):
            moved = [sum(0.01 * counts[k, start + i] * float(axes[j, k]) for k in range(2)) for j in range(7)]
            expected = [0.9 * before[f"net.heads.{head}.weight"][i, j] + moved[j] for j in range(6)]
            np.testing.assert_allclose(result[f"net.heads.{head}.weight"][i], expected, rtol=1e-5, atol=1e-6)
            bias = 0.9 * before[f"net.heads.{head}.bias"][i] + moved[6]
            assert float(result[f"net.heads.{head}.bias"][i]) == pytest.approx(bias, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kept", [1.0, 0.999, 0.9])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_decay_and_rank_are_found(kept: float, rank: int) -> None:
    before = made(400, 100)
    result = factors_of(before, trained(before, rank, kept), 1e-4)
    assert result.kept == pytest.approx(kept, abs=1e-6)
    assert result.axes.shape == (7, rank)
    np.testing.assert_allclose(result.axes.T @ result.axes, np.eye(rank), atol=1e-6)


def test_an_axis_along_which_all_is_rounded_to_zero_is_left_out() -> None:
    along = torch.tensor([[5.2, 0.4, -1.0], [-3.7, -0.4, 0.0]])
    result = Factors.rounded(1.0, 1.0, torch.eye(3), along)
    assert result.counts.tolist() == [[5, -4], [-1, 0]]
    assert result.axes.tolist() == [[1, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize("error", [0.5, 0.1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_the_error_is_below_the_stated_one_and_not_far_below(error: float, noise: float) -> None:
    before = made(3000, 500)
    after = trained(before, 3, 0.999, noise)
    result = {**after, **dict(factors_of(before, after, error).expanded(layers_of(before), before))}
    assert 0.5 * error < relative_error(result, after, before) <= error


def test_a_change_in_all_directions_is_sent_with_the_same_error() -> None:
    before = made(300)
    after = {name: torch.tensor(value) for name, value in made(300, seed=1).items()}
    result = {**after, **dict(factors_of(before, after).expanded(layers_of(before), before))}
    assert relative_error(result, after, {**before, "net.trunk": after["net.trunk"].numpy()}) <= 1e-3


def test_no_change_takes_no_axes_and_is_exact() -> None:
    before = made(50)
    result = factors_of(before, trained(before, 1, 1.0) | {n: torch.tensor(v) for n, v in before.items()})
    assert (result.kept, result.axes.shape, result.counts.shape) == (1.0, (7, 0), (0, 50))
    assert all(torch.equal(v, torch.tensor(before[n])) for n, v in result.expanded(layers_of(before), before))


def test_what_float32_cannot_hold_has_no_factors() -> None:
    before = made(300)
    after = trained(before)
    assert factored(layers_of(before), after, before, 1e-9) is None
    after["net.heads.0.bias"][7] = torch.nan
    assert factored(layers_of(before), after, before, 1e-3) is None


def test_nothing_received_or_sent_is_changed() -> None:
    before = made(300)
    after = trained(before)
    copies = {n: v.copy() for n, v in before.items()}, {n: v.clone() for n, v in after.items()}
    for value in before.values():
        value.flags.writeable = False  # as they lie in a message
    expand(FORM.compress(after, before), before)
    assert all(np.array_equal(before[n], v) for n, v in copies[0].items())
    assert all(torch.equal(after[n], v) for n, v in copies[1].items())


# --- what travels ---


def sent_by(before: dict[str, np.ndarray], form: FactoredUpload = FORM) -> tuple[Tensors, Tensors]:
    """What training made, and what is sent of it."""
    after = trained(before, 2, 0.999)
    after["net.trunk"] += 0.01
    return after, form.compress(after, before)


def test_the_layers_alone_travel_as_factors() -> None:
    before = made(300, 40)
    after, sent = sent_by(before)
    names = {f"{PATTERN}/{part}" for part in ("base", "scales", "axes", "planes", "stream")}
    assert set(sent) == names | {"net.trunk"}
    assert sent["net.trunk"] is after["net.trunk"]
    assert nbytes(pack(sent)) < nbytes(pack(after)) / 3
    back = expand(sent, before)
    assert list(back) == list(before)
    assert relative_error(back, after, before) <= 1e-3


def test_the_order_of_the_received_tensors_does_not_matter() -> None:
    before = made(*[30] * 12)  # as text, 10 comes before 2
    _, sent = sent_by(before)
    shuffled = {name: before[name] for name in np.random.default_rng(0).permutation(list(before))}
    back, other = expand(sent, before), expand(sent, shuffled)
    assert list(other) == list(shuffled)
    assert all(torch.equal(other[name], value) for name, value in back.items())


def test_the_stated_error_is_that_of_all_that_is_sent() -> None:
    before = made(3000)
    after = trained(before)
    narrow = FORM.compress(after, before)
    after["net.trunk"] += 100.0  # it changes more than the layers, which may then be coarser
    wide = FORM.compress(after, before)
    assert wide[f"{PATTERN}/stream"].numel() < narrow[f"{PATTERN}/stream"].numel()
    assert relative_error(expand(wide, before), after, before) <= 1e-3


def test_a_smaller_error_takes_more_bytes() -> None:
    before = made(3000)
    sizes = [nbytes(pack(sent_by(before, FactoredUpload(PATTERN, e))[1])) for e in (1e-1, 1e-2, 1e-3, 1e-4)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("outputs", [2, 300])
def test_what_is_no_smaller_or_not_good_enough_goes_as_it_is(outputs: int) -> None:
    before = made(outputs)
    after, sent = sent_by(before, FactoredUpload(PATTERN, 1e-3 if outputs == 2 else 1e-9))
    assert sent is after
    assert expand(sent, before) is sent


def test_names_that_only_look_like_factors_are_left_alone() -> None:
    sent = {"record/base": torch.zeros(3), "record/weights": torch.zeros(2)}
    assert expand(sent, made(3)) is sent


Spoil = Callable[[Tensors], Tensors]


def spoiled(part: str, change: Callable[[Tensor], Tensor]) -> Spoil:
    return lambda sent: {**sent, f"{PATTERN}/{part}": change(sent[f"{PATTERN}/{part}"])}


OF = f"sent factors of {PATTERN}"
SPOILED: list[tuple[Spoil, str]] = [
    (spoiled("axes", lambda v: v[:-1]), f"{OF} with axes as float32(6, 2), not float32(7, 2)"),
    (spoiled("axes", lambda v: v[:, :1]), f"{OF} with axes as float32(7, 1), not float32(7, 2)"),
    (spoiled("axes", Tensor.double), f"{OF} with axes as float64(7, 2), not float32(7, 2)"),
    (spoiled("axes", lambda v: v * torch.nan), f"{OF} with NaN or infinite values"),
    (spoiled("scales", lambda v: v / 0), f"{OF} with NaN or infinite values"),
    (spoiled("scales", lambda v: v[:1]), f"{OF} with scales as float64(1,), not float64(2,)"),
    (spoiled("planes", lambda v: v.repeat(9)), f"{OF} with axes as float32(7, 2), not float32(7, 7)"),
    (spoiled("planes", lambda v: v + 4), f"{OF} with up to 6 bytes a number, of which 4 is the most"),
    (spoiled("stream", lambda v: v[:-3]), f"{OF} with a stream of other than"),
    (spoiled("stream", lambda v: v[::2]), f"{OF} with a stream that cannot be inflated"),
    (spoiled("stream", lambda v: v[None]), f"{OF} with stream as uint8(1, "),
    (spoiled("base", lambda v: v.flip(0)), f"{OF} that stand on other tensors than it received"),
]


@pytest.mark.parametrize(("spoil", "line"), SPOILED)
def test_what_is_no_factors_is_refused_by_name(spoil: Spoil, line: str) -> None:
    before = made(300, 40)
    with pytest.raises(Unfit) as caught:
        expand(spoil(sent_by(before)[1]), before)
    assert str(caught.value).startswith(line)


def test_factors_of_another_round_are_refused() -> None:
    before = made(300, 40)
    _, sent = sent_by(before)
    later = {**before, "net.heads.1.weight": before["net.heads.1.weight"] + np.float32(1e-4)}
    with pytest.raises(Unfit, match="stand on other tensors than it received"):
        expand(sent, later)


def test_factors_of_another_width_are_refused() -> None:
    _, sent = sent_by(made(300, 40, inputs=5))
    with pytest.raises(Unfit, match=r"with axes as float32\(6, 2\), not float32\(7, 2\)"):
        expand(sent, made(300, 40))


def test_factors_of_tensors_that_are_not_there_are_refused() -> None:
    _, sent = sent_by(made(300, 40))
    with pytest.raises(Unfit, match="where no float32 layers with one input are"):
        expand(sent, {"net.trunk": made(3)["net.trunk"]})


# --- what the server reads ---


@pytest.fixture(autouse=True)
def _somebody() -> None:
    InProcessGrid(ClientApp(), 1, {})  # messages are written by a node


def reply(sent: Tensors, metrics: dict[str, Any] | None = None) -> Message:
    message = MetricRecord({"num-examples": 3} if metrics is None else metrics)
    return Message(RecordDict({"arrays": pack(sent), "metrics": message}), 1, "train")


def reader(before: dict[str, np.ndarray]) -> FactorReader:
    broadcast = pack({name: torch.tensor(value) for name, value in before.items()})
    return FactorReader(FORM, ("net.*",), broadcast)


def test_the_server_reads_factors_and_counts_their_bytes() -> None:
    before = made(300, 40)
    after, sent = sent_by(before)
    tensors, metrics, size = reader(before)(reply(sent))
    assert list(tensors) == list(before)
    assert all(torch.equal(tensors[name], value) for name, value in expand(sent, before).items())
    assert relative_error(tensors, after, before) <= 1e-3
    assert (metrics, size) == ({"num-examples": 3}, nbytes(pack(sent)))


def test_the_server_reads_what_is_sent_as_it_is() -> None:
    before = made(300, 40)
    after, _ = sent_by(before)
    tensors, _, size = reader(before)(reply(after))
    assert all(torch.equal(tensors[name], value) for name, value in after.items())
    assert size == nbytes(pack(after))


def without(name: str) -> Spoil:
    return lambda sent: {n: v for n, v in sent.items() if n != name}


REFUSED: list[tuple[Spoil, str]] = [
    *SPOILED,
    (without("net.trunk"), "did not send net.trunk"),
    (without(f"{PATTERN}/planes"), f"{OF} as base, scales, axes, stream; they are base, scales, axes, planes, stream"),
    (lambda s: {**s, f"{PATTERN}/more": torch.ones(1)}, f"{OF} as base, scales, axes, planes, stream, more; they are"),
    (lambda s: {**s, "other.*/base": torch.ones(1)}, "sent other.*/base, which is not to be uploaded"),
    (lambda s: {**s, "net.heads.0.bias": torch.zeros(300)}, "sent net.heads.0.bias, which is not to be uploaded"),
    (lambda s: {**s, "net.trunk": s["net.trunk"] / 0}, "sent net.trunk with NaN or infinite values"),
    (spoiled("scales", lambda v: v * 1e38), "sent factors that make net.heads.0.weight infinite"),
    (spoiled("stream", lambda v: torch.zeros(10**5, dtype=torch.uint8)), "sent 100"),
]


@pytest.mark.parametrize(("spoil", "line"), REFUSED)
def test_the_server_refuses_by_name(spoil: Spoil, line: str) -> None:
    before = made(300, 40)
    with pytest.raises(UnusableReplyError) as caught:
        reader(before)(reply(spoil(sent_by(before)[1])))
    assert str(caught.value).startswith(line)


def test_a_stream_that_unfolds_to_more_than_the_layers_is_refused() -> None:
    before = made(300, 40)
    bomb, planes = deflate(np.ones((1, 10**6), np.int32))
    assert len(bomb) < 10**4
    parts = {"stream": torch.from_numpy(bomb), "planes": torch.from_numpy(planes), "axes": torch.ones(7, 1)}
    sent = {**sent_by(before)[1], **{f"{PATTERN}/{part}": value for part, value in parts.items()}}
    with pytest.raises(UnusableReplyError, match="a stream of other than 340 bytes"):
        reader(before)(reply(sent))


def test_what_a_reply_lacks_is_said_as_ever() -> None:
    before = made(300, 40)
    _, sent = sent_by(before)
    with pytest.raises(UnusableReplyError, match="expected 1 <= num-examples <= 2147483648, got None"):
        reader(before)(reply(sent, {}))
    with pytest.raises(UnusableReplyError, match="it broke"):
        reader(before)(Message(Error(0, "it broke"), reply_to=reply(sent)))
    two = RecordDict({"arrays": pack(sent), "more": pack(sent), "metrics": MetricRecord({"num-examples": 3})})
    with pytest.raises(UnusableReplyError, match="expected one record of arrays, got arrays, more"):
        reader(before)(Message(two, 1, "train"))


# --- the method ---


def hyperfl(small: Experiment, *settings: str) -> Experiment:
    """A hypernetwork of a tenth of the usual size."""
    return dataclasses.replace(small, method="hyperfl", lr=0.05, set=("hidden=12", "embedding=8", *settings))


def client_of(experiment: Experiment, folder: Path, defence: Defence | None = None) -> FederatedClient:
    store = ClientStore(folder, "test", 0)
    ctx = ClientContext(plan(experiment).client, plan(experiment).task.load(None), 0, 1, defence, store)
    return plan(experiment).client_class(ctx)


def received_by(client: FederatedClient) -> dict[str, np.ndarray]:
    state = client.model.state_dict()
    return {name: state[name].numpy().copy() for name in client.download_names}


def test_a_client_sends_factors_that_aggregate_to_nearly_the_same(small: Experiment, tmp_path: Path) -> None:
    dense, coded = hyperfl(small), hyperfl(small, "upload=factors", "upload_error=1e-2")
    client = client_of(dense, tmp_path / "a")
    received = received_by(client)
    whole, _ = client.fit_named(received, 0)
    sent, _ = client_of(coded, tmp_path / "b").fit_named(received, 0)
    heads = {name for name in whole if ".heads." in name}
    assert set(sent) & set(whole) == set(whole) - heads
    assert nbytes(pack(sent)) < nbytes(pack(whole)) / 4
    strategy = HyperFL(HypernetworkTraining(hidden=12, embedding=8, upload="factors"))
    form = strategy.factored_upload(strategy.settings)
    assert form is not None
    broadcast = pack({name: torch.tensor(value) for name, value in received.items()})
    tensors, _, _ = FactorReader(form, strategy.uploads, broadcast)(reply(sent))
    mean = strategy.aggregate(iter([Update(0, 3, tensors)]))
    assert list(mean) == list(received)
    assert 1e-3 < relative_error(mean, whole, received) <= 1e-2


def test_a_probe_of_several_steps_shows_what_the_server_has(small: Experiment, tmp_path: Path) -> None:
    x, y = plan(hyperfl(small)).task.load(None).examples("train", np.arange(4))
    result, received = [], {}
    for n, settings in enumerate(((), ("upload=factors", "upload_error=1e-2"))):
        client = client_of(hyperfl(small, *settings), tmp_path / str(n))
        received = received_by(client)
        client.load_received(received, 0)
        result.append((client.gradient(x, y), client.stepped(x, y, 3)))
    (gradient, whole), (same, shown) = result
    assert all(torch.equal(gradient[name], value) for name, value in same.items())
    assert list(shown) == list(whole)
    assert 1e-3 < relative_error(shown, whole, received) <= 1e-2


def test_private_tensors_stay_at_home(small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(hyperfl(small, "upload=factors"), tmp_path)
    received = received_by(client)
    monkeypatch.setattr(client, "upload_tensors", lambda: dict(client.model.state_dict()))
    with pytest.raises(SharingViolationError, match="would send embedding, but hyperfl uploads only"):
        client.fit(list(received.values()), {"state_version": 0})


@final
class OnGradients(Defence):
    """Acts on the steps alone."""

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value.sign() for name, value in gradients.items()}


def test_a_defence_that_acts_on_updates_is_refused_beside_factors(small: Experiment, tmp_path: Path) -> None:
    defended = dataclasses.replace(small, defence="prune")
    with pytest.raises(InputError) as caught:
        client_of(hyperfl(defended, "upload=factors"), tmp_path, Prune())
    line = "Expected upload=dense with a defence that acts on updates, got upload=factors and defence=prune."
    assert str(caught.value) == line
    client_of(hyperfl(defended), tmp_path, Prune())
    client_of(hyperfl(defended, "upload=factors"), tmp_path, OnGradients())


def test_such_a_run_is_refused_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--engine inproc --attack none --clients 2 --defence prune --set upload=factors"
    assert sim.main([*flags.split(), "--out", str(tmp_path / "run")]) == 2
    line = "Expected upload=dense with a defence that acts on updates, got upload=factors and defence=prune."
    assert capsys.readouterr().err == f"sim.py: {line}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", ["0", "1", "-0.1", "nan"])
def test_the_error_is_in_its_range(error: str) -> None:
    with pytest.raises(InputError, match="Expected 0 < upload_error < 1, got upload_error="):
        HypernetworkTraining(upload="factors", upload_error=float(error))


@pytest.mark.slow
def test_a_run_counts_the_bytes_that_were_sent(small: Experiment, tmp_path: Path) -> None:
    rows = {}
    for upload in ("dense", "factors"):
        folder = tmp_path / upload
        experiment = dataclasses.replace(hyperfl(small, f"upload={upload}"), clients=2, rounds=1, out=folder)
        folder.mkdir()
        launch.run_on_engine(plan(experiment), Site(state=folder / "state"))
        rows[upload] = json.loads((folder / "training.json").read_text())["rounds"]
    for dense, coded in zip(rows["dense"], rows["factors"], strict=True):
        assert coded["upload_bytes"] < dense["upload_bytes"] / 4
        assert coded["download_bytes"] == dense["download_bytes"]
        assert coded["loss"] == pytest.approx(dense["loss"], rel=0.01)


def test_the_tap_records_what_was_sent(tmp_path: Path) -> None:
    before, app = made(300, 40), ClientApp()
    _, sent = sent_by(before)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        content = RecordDict({"arrays": pack(sent), "metrics": MetricRecord({"num-examples": 3})})
        return Message(content, reply_to=message)

    arrays = pack({name: torch.tensor(value) for name, value in before.items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"round": 1, "client": 0})})
    grid = RecordingGrid(InProcessGrid(app, 1, {}), tmp_path / "recordings")
    list(grid.send_and_receive([Message(content, 1, "train", group_id="1")]))
    recorded = load_file(tmp_path / "recordings" / "round-0001" / "client-000-000.safetensors")
    assert recorded.keys() == sent.keys()
    assert all(torch.equal(recorded[name], value) for name, value in sent.items())
    (observation,) = Recordings(tmp_path / "recordings").updates(1)
    assert observation.sent.keys() == observation.received.keys() == before.keys()
    assert all(torch.equal(observation.sent[name], value) for name, value in expand(sent, before).items())


def test_recorded_factors_that_do_not_fit_are_left_out_by_name(tmp_path: Path) -> None:
    before = made(300, 40)
    rng = np.random.default_rng(3)
    other = {name: value + rng.normal(size=value.shape).astype(np.float32) for name, value in before.items()}
    file = "round-0001/client-000-000.safetensors"
    sent = {name: value.numpy() for name, value in sent_by(before)[1].items()}
    line: dict[str, Any] = {"type": "train", "round": 1, "client": 0, "config": {}, "compression": "none"}
    for side, name, tensors in (
        ("sent_to_client", f"received/{'0' * 64}.safetensors", other),
        ("sent_by_client", file, sent),
    ):
        data = PlainTensors.of(tensors).encoded("none")
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(data.data)
        line[side] = {"file": name, "sha256": data.sha256, "bytes": data.size}
    (tmp_path / MANIFEST).write_text(f"{json.dumps({'format': FORMAT})}\n{json.dumps(line)}\n")
    recordings = Recordings(tmp_path)
    assert recordings.updates(1) == []
    why = f"the client {OF} that stand on other tensors than it received"
    assert recordings.refused == [f"{file.removesuffix('.safetensors')} was left out: {why}."]


# --- real data ---


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "FashionMNIST" / "raw").is_dir(), reason="real data are not here: set FLFW_DATA")
def test_on_real_images_factors_are_a_tenth_at_most(tmp_path: Path) -> None:
    requested = Experiment(method="hyperfl", dataset="fmnist", clients=20, local_epochs=1, attack=("none",))
    experiment = dataclasses.replace(without_auto(requested), set=("upload=factors",))
    task = plan(experiment).task.load(REAL)
    ctx = ClientContext(plan(experiment).client, task, 0, 1, None, ClientStore(tmp_path, "test", 0))
    client = plan(experiment).client_class(ctx)
    received = received_by(client)
    sent, _ = client.fit_named(received, 0)
    after = {n: v for n, v in client.model.state_dict().items() if n in received}
    assert nbytes(pack(sent)) < nbytes(pack(after)) / 10
    assert relative_error(expand(sent, received), after, received) <= 1e-3
