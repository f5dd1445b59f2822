"""The border of every client half: what may come in, what may go out, through whichever door."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from flfw import nets, plugins
from flfw.client.store import ClientStore
from flfw.engines import apps
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.files.tensor_names import matches
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.sharing import MessageValidator, Sharing, SharingViolationError
from flfw.messages.wire import pack, unpack
from flfw.nets import NetCard
from flfw.plans.run_plan import plan
from flfw.server import FederatedStrategy
from flfw.task.defence import Defence
from tests.support.method_rounds import METHODS, by_method, initial_tensors, make_client, normed
from tests.support.paths import ROOT

SMALL = {"hyperfl": ("hidden=8", "embedding=4")}  # of 60 MB otherwise

# Every client half as it is by default, and where its settings have it go another way out.
WAYS: list[tuple[str, tuple[str, ...]]] = [(method, SMALL.get(method, ())) for method in METHODS]
for name in METHODS:
    fields = plugins.load_class(plugins.METHOD, name, FederatedStrategy).Settings.__dataclass_fields__
    WAYS += [(name, ("unit=client",))] if "unit" in fields else []
    WAYS += [(name, ("theta_d=0.5",))] if "theta_d" in fields else []
    WAYS += [(name, (*SMALL.get(name, ()), "upload=factors"))] if "upload" in fields else []
DOORS = ("train", "train.probe", "evaluate", "fit", "NumPy evaluate")
ways = pytest.mark.parametrize(("method", "chosen"), WAYS, ids=lambda value: value if isinstance(value, str) else "")

Arrays = dict[str, np.ndarray]


@pytest.fixture
def tiny(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setitem(nets._CARDS, "normed", NetCard(normed))
    return dataclasses.replace(small, net="lenet", attack=("analytic",), images=3)


def by(tiny: Experiment, method: str, chosen: tuple[str, ...]) -> Experiment:
    """The experiment by a method; with BatchNorm by one that looks for it."""
    experiment = by_method(tiny, method, set=chosen)
    looks = plan(experiment).client.method.shared.__func__ is not FederatedStrategy.shared.__func__  # type: ignore[attr-defined]
    return dataclasses.replace(experiment, net="normed") if looks else experiment


def ask(experiment: Experiment, kind: str, arrays: Mapping[str, np.ndarray], folder: Path, **more: Any) -> Any:
    """Ask client 1's app: the tensors it answers with.

    Raises:
        SharingViolationError: what the client said.
    """
    site = {name: str(folder / name) for name in ("state", "truth", "examples")}
    grid = InProcessGrid(apps.client, 3, experiment.to_run_config(), [site] * 3)
    config: dict[str, Any] = {"code": code_hash(), "experiment": "test", "deadline": 60, "round": 1, "state_version": 0}
    if kind == "train.probe":
        # BatchNorm takes two.
        config |= {"control": "target", "slot": 1, "own_slot": 0, "batch": 2, "steps": 1, "point": "target"}
    content = {
        "arrays": pack({n: torch.tensor(v) for n, v in arrays.items()}),
        "config": ConfigRecord({**config, **more}),
    }
    (reply,) = grid.send_and_receive([Message(RecordDict(content), 2, kind)])
    if reply.has_error():
        raise SharingViolationError(reply.error.reason)
    return unpack(reply.content.array_records["arrays"])


def knock(experiment: Experiment, door: str, arrays: Arrays, folder: Path) -> Any:
    """Hand client 1 arrays in one way or another."""
    if door in ("train", "train.probe", "evaluate"):
        return ask(experiment, door, arrays, folder)
    ctx = dataclasses.replace(make_client(experiment, 1, folder).ctx, defence=plan(experiment).client.defences.build())
    client = plan(experiment).client_class(ctx)
    values = list(arrays.values())
    return client.fit(values, {"state_version": 0}) if door == "fit" else client.evaluate(values, {"state_version": 0})


def refused(experiment: Experiment, door: str, arrays: Arrays, folder: Path) -> str:
    with pytest.raises(SharingViolationError) as caught:
        knock(experiment, door, arrays, folder)
    assert not list(folder.rglob("*.safetensors"))  # neither state nor truth: nothing was done
    return str(caught.value)


# --- in -----------------------------------------------------------------------------------------------------------


@ways
def test_the_downloads_are_let_in_all_of_them_and_nothing_else(
    tiny: Experiment, tmp_path: Path, method: str, chosen: tuple[str, ...]
) -> None:
    experiment = by(tiny, method, chosen)
    honest, client = initial_tensors(experiment), make_client(experiment, 1, tmp_path)
    state = {name: value.numpy() for name, value in client.model.state_dict().items()}
    allowed = ", ".join(client.sharing.downloads[:4]) or "nothing"
    for door, privates in (("train", client.private_names), ("evaluate", client.private_names[:1])):
        for private in privates:
            message = refused(experiment, door, {**honest, private: np.zeros_like(state[private])}, tmp_path)
            assert message.startswith(f"client 1 was sent {private}, but {method} downloads only {allowed}")
    message = refused(experiment, "train.probe", {**honest, "stowaway": np.zeros(1, np.float32)}, tmp_path)
    assert message.startswith("client 1 was sent stowaway, but ")
    message = refused(experiment, "fit", {**honest, "stowaway": np.zeros(1, np.float32)}, tmp_path)
    assert message.startswith(f"client 1 was sent array {len(honest)}, but ")
    if honest:
        require_all_in_their_forms(experiment, "train", honest, tmp_path)


def require_all_in_their_forms(experiment: Experiment, door: str, honest: Arrays, folder: Path) -> None:
    """Require that a door refuses a message without one of the downloads, or with one of another type or shape."""
    *others, last = honest
    method, form, shape = experiment.method, str(honest[last].dtype), honest[last].shape
    message = refused(experiment, door, {name: honest[name] for name in others}, folder)
    assert message == f"client 1 was not sent {last}, which {method} downloads"
    message = refused(experiment, door, {**honest, last: honest[last].astype(np.float16)}, folder)
    assert message == f"client 1 was sent {last} as float16{shape}, but {method} downloads it as {form}{shape}"
    spread = honest[last].reshape(1, *shape)  # NumPy would spread it out
    message = refused(experiment, door, {**honest, last: spread}, folder)
    assert message == f"client 1 was sent {last} as {form}{spread.shape}, but {method} downloads it as {form}{shape}"


@pytest.mark.parametrize("door", DOORS)
def test_no_door_lets_in_what_is_missing_too_much_of_another_form_or_not_finite(
    tiny: Experiment, tmp_path: Path, door: str
) -> None:
    """The server's NaN is not the client's failure."""
    experiment = by_method(tiny, "fedper")
    honest = initial_tensors(experiment)
    require_all_in_their_forms(experiment, door, honest, tmp_path)
    stowaway = f"array {len(honest)}" if door in ("fit", "NumPy evaluate") else "stowaway"
    message = refused(experiment, door, {**honest, "stowaway": np.zeros(1, np.float32)}, tmp_path)
    assert message.startswith(f"client 1 was sent {stowaway}, but ")
    *_, last = honest
    for wrong in (np.nan, np.inf, -np.inf):
        spoilt = honest[last].copy()
        spoilt.flat[-1] = wrong
        message = refused(experiment, door, {**honest, last: spoilt}, tmp_path)
        assert message == f"client 1 was sent {last} with NaN or infinite values"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.finfo(np.float32).max])
def test_numbers_whose_squares_overflow_are_numbers(value: float) -> None:
    tensor = np.full((2, 3), np.finfo(np.float32).max, np.float32)
    tensor[1, 1] = value
    at = MessageValidator(3, "mine", Sharing(("c",), ()), {"c": ("float32", (2, 3))})
    if np.isfinite(value):
        at.check_received({"c": tensor})  # a warning of an overflow would fail this test
        return
    with pytest.raises(SharingViolationError, match="sent c with NaN or infinite values"):
        at.check_received({"c": tensor})


def test_a_server_that_sends_nan_leaves_the_private_state_as_it_was(tiny: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(by(tiny, "hyperfl", SMALL["hyperfl"]), rounds=4)
    honest = initial_tensors(experiment)
    spoilt = {name: np.full_like(value, np.nan) for name, value in honest.items()}
    ask(experiment, "train", honest, tmp_path, round=1, state_version=0)
    made = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    assert len(made) == 1
    for requested, version in ((2, 1), (3, 2), (3, 1)):
        with pytest.raises(SharingViolationError):
            ask(experiment, "train", spoilt, tmp_path, round=requested, state_version=version)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == made
    ask(experiment, "train", honest, tmp_path, round=4, state_version=1)


@pytest.mark.parametrize("control", ["analytic", "easy"])
def test_on_fresh_controls_their_network_crosses_and_nothing_else(
    tiny: Experiment, tmp_path: Path, control: str
) -> None:
    experiment = by_method(tiny, "fedper")
    with torch.no_grad():
        build = make_client(experiment, 1, tmp_path).ctx.task.build_net
        net = build("linear") if control == "analytic" else build()
    arrays, details = {n: v.numpy() for n, v in net.state_dict().items()}, {"control": control, "point": control}
    assert set(ask(experiment, "train.probe", arrays, tmp_path, **details)) == set(arrays)
    with pytest.raises(SharingViolationError) as caught:
        ask(experiment, "train.probe", {**arrays, "head": np.zeros(1)}, tmp_path, **details)
    assert (
        str(caught.value)
        == f"client 1 was sent head, but the model of the audit's {control} control has no such tensor"
    )
    for kind in ("train", "evaluate"):  # which are on no control, whatever they say
        with pytest.raises(SharingViolationError, match="downloads only extractor"):
            ask(experiment, kind, arrays, tmp_path, **details)


@ways
def test_private_state_is_gone_on_from_and_not_dropped(
    tiny: Experiment, tmp_path: Path, method: str, chosen: tuple[str, ...]
) -> None:
    experiment, folder = dataclasses.replace(by(tiny, method, chosen), rounds=3), tmp_path / "state"
    honest = initial_tensors(experiment)
    private = make_client(experiment, 1, tmp_path).private_state()
    store = ClientStore(folder, "test", 1)
    if not private:
        ask(experiment, "evaluate", honest, tmp_path)
        return
    fresh = {name: value.detach().clone() for name, value in private.items()}
    store.save(1, fresh, made_from=0)
    assert ask(experiment, "evaluate", honest, tmp_path, state_version=0, round=2) == {}  # a server killed in round 1
    store.save(2, fresh, made_from=1)
    for kind in ("train", "train.probe", "evaluate"):
        with pytest.raises(SharingViolationError) as caught:
            ask(experiment, kind, honest, tmp_path, state_version=0, round=3)
        assert str(caught.value).startswith(
            "client 1 was told to go on from its start, but its last step, of round 2, "
        )
    for version in (1, 2):
        assert ask(experiment, "evaluate", honest, tmp_path, state_version=version, round=3) == {}


@pytest.mark.parametrize(("kind", "last"), [("train", 2), ("train.probe", 2), ("evaluate", 3)])
def test_no_round_is_answered_that_the_run_does_not_have(
    tiny: Experiment, tmp_path: Path, kind: str, last: int
) -> None:
    """The final evaluation comes after the last round."""
    experiment = dataclasses.replace(tiny, rounds=2)
    arrays = initial_tensors(experiment)
    ask(experiment, kind, arrays, tmp_path, round=last)
    for beyond in (last + 1, 10**6):
        with pytest.raises(SharingViolationError, match=f"was asked for round {beyond} of a run that has {last}"):
            ask(experiment, kind, arrays, tmp_path, round=beyond)


# --- out ----------------------------------------------------------------------------------------------------------


@final
class AddsTheHead(Defence):
    def update(self, update: dict[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        return {"classifier.weight": torch.zeros(10, 10), **update, "patient": torch.zeros(3)}


@ways
def test_nothing_leaves_that_is_not_uploaded(
    tiny: Experiment, tmp_path: Path, method: str, chosen: tuple[str, ...]
) -> None:
    if "upload=factors" in chosen:
        return  # which takes no defence
    experiment = dataclasses.replace(by(tiny, method, chosen), defence=f"{__name__}:AddsTheHead")
    cls = plan(experiment).client.method
    honest, client = initial_tensors(experiment), make_client(experiment, 1, tmp_path)
    uploaded = [name for name in client.model.state_dict() if matches(name, client.sharing.uploads)]
    culprit = "patient" if "classifier.weight" in uploaded else "classifier.weight"
    for door in ("train", "train.probe", "fit") if cls.uploads else ("train", "fit"):
        with pytest.raises(SharingViolationError) as caught:
            knock(experiment, door, honest, tmp_path / door)
        assert str(caught.value).startswith(f"client 1 would send {culprit}, but ")
    if cls.uploads:
        with pytest.raises(SharingViolationError, match="client 1 would send "):
            ask(experiment, "train.probe", honest, tmp_path / "steps", steps=2)


@ways
def test_an_honest_client_comes_through(tiny: Experiment, tmp_path: Path, method: str, chosen: tuple[str, ...]) -> None:
    """And in answer to a probe it sends no more than in training: so the refusals above are of what was added."""
    experiment = by(tiny, method, chosen)
    cls, settings = plan(experiment).client.method, plan(experiment).client.settings
    honest, client = initial_tensors(experiment), make_client(experiment, 1, tmp_path)
    sent = ask(experiment, "train", honest, tmp_path / "train")
    form = cls.factored_upload(settings)
    whole = [name for name in sent if not (form and name in form.names)]
    assert all(name in honest and matches(name, client.sharing.uploads) for name in whole)
    assert bool(form) == (len(whole) < len(sent))
    if cls.uploads:
        probed = ask(experiment, "train.probe", honest, tmp_path / "probe")
        assert probed and all(matches(name, client.sharing.uploads) for name in probed)


# --- the border by itself -----------------------------------------------------------------------------------------


def border(downloads: tuple[str, ...], uploads: tuple[str, ...], **more: Any) -> MessageValidator:
    forms = dict.fromkeys(("hypernet.a", "hypernet.b", "embedding", "c"), ("float32", (2, 3)))
    return MessageValidator(3, "mine", Sharing(downloads, uploads), forms, **more)


def leaving(*names: str) -> Callable[[MessageValidator], None]:
    return lambda at: at.check_sent(dict.fromkeys(names, torch.zeros(2, 3)))


def entering(*names: str) -> Callable[[MessageValidator], None]:
    return lambda at: at.check_received(dict.fromkeys(names, np.zeros((2, 3), np.float32)))


@pytest.mark.parametrize(
    ("cross", "message"),
    [
        (leaving("hypernet.a", "c"), "client 3 would send c, but mine uploads only hypernet.*"),
        (leaving("hypernet.new"), "client 3 would send hypernet.new, but the model of mine has no such tensor"),
        (entering("hypernet.a", "c"), "client 3 was sent c, but mine downloads only hypernet.*, embedding"),
        (entering("hypernet.a", "embedding"), "client 3 was not sent hypernet.b, which mine downloads"),
    ],
)
def test_a_refusal_names_the_client_the_tensor_and_what_may_cross(
    cross: Callable[[MessageValidator], None], message: str
) -> None:
    with pytest.raises(SharingViolationError) as caught:
        cross(border(("hypernet.*", "embedding"), ("hypernet.*",)))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("patterns", "allowed"), [((), "nothing"), (("a.*", "b"), "a.*, b"), (tuple("abdefg"), "a, b, d, e and 2 more")]
)
def test_a_refusal_lists_what_may_cross(patterns: tuple[str, ...], allowed: str) -> None:
    with pytest.raises(SharingViolationError) as caught:
        leaving("c")(border((), patterns))
    assert str(caught.value) == f"client 3 would send c, but mine uploads only {allowed}"


def test_shared_tensors_and_those_that_stand_for_them_cross() -> None:
    leaving("hypernet.a", "hypernet.b")(border(("*",), ("hypernet.*",)))
    leaving("hypernet.a", "hypernet.*/axes")(border(("*",), ("hypernet.*",), factor_names=("hypernet.*/axes",)))
    leaving()(border((), ()))
    entering("hypernet.a", "hypernet.b")(border(("hypernet.*",), ()))
    entering()(border((), ()))


def test_the_names_are_checked_without_torch() -> None:
    code = "import sys, flfw.messages.sharing; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
