"""Audits of apps and networks that this project knows nothing of: what is granted, what leaks, what must not count."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from flfw.attacks.analytic import Analytic
from flfw.attacks.dlg import DLG, DLGSettings
from flfw.attacks.membership import Membership
from flfw.audit.measures.public import PublicData
from flfw.comparisons.rows import read
from flfw.errors import InputError
from flfw.files.outcomes import outcome
from flfw.messages.inprocess import InProcessGrid
from flfw.recorded_apps import knowledge, named
from flfw.recorded_apps.audit import _built
from flfw.recorded_apps.description import TrainingDescription
from flfw.recording.grid import RecordingGrid
from flfw.recording.manifest import read_manifest, rewrite
from flfw.recording.observation import Observation, Reconstruction, Truth, mean_gradient
from flfw.recording.reader import Recordings
from flfw.recording.retention import purge
from flfw.report.report import write_report
from flfw.rng import initialising, numpy_generator
from tests.support.foreign_apps import (
    LR,
    SPACE,
    Convolutional,
    app_of,
    as_seen,
    ask,
    client_app,
    dense,
    examples,
    fresh,
    normalised,
    recorded,
    rows,
    step,
    truth_of,
)
from tests.support.paths import ROOT
from tests.support.small_runs import WithoutSearch


def an_update(net: nn.Module, count: int = 4, mode: str = "train") -> tuple[Observation, Tensor, Tensor]:
    received = {name: value.clone() for name, value in net.state_dict().items()}
    x, y = examples(count)
    step(net, x, y, mode=mode)
    return as_seen(received, dict(net.state_dict())), x, y


# --- knowledge ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_gradient_known_of_a_network_with_batch_normalisation_is_the_one_that_was_sent(mode: str) -> None:
    net = fresh()
    step(net, *examples(5, seed=1))  # its running statistics are no longer those of a new one
    update, x, y = an_update(net, mode=mode)
    known = knowledge(fresh(seed=1), update, inputs=SPACE, labels=y, batch=4, lr=LR, mode=mode)
    sent = mean_gradient(named(net, update), known)
    expected = known.model.gradient(x, y, {}, {})
    assert known.model.unknown == {} and set(expected) == {name for name, _ in net.named_parameters()}
    for name, gradient in expected.items():
        assert torch.allclose(sent[name], gradient, atol=2e-6), name
    other = knowledge(
        fresh(), update, inputs=SPACE, labels=y, batch=4, lr=LR, mode={"train": "eval"}.get(mode, "train")
    )
    wrong = other.model.gradient(x, y, {}, {})["stem.weight"]
    assert not torch.allclose(sent["stem.weight"], wrong, atol=1e-3)


def deep() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3), *(nn.Linear(3, 3) for _ in range(5)))


def held() -> nn.Module:
    net = dense()
    net.get_submodule("1").requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("build", "left_out"),
    [(Convolutional, "none"), (Convolutional, ".run .num"), (deep, "none"), (Convolutional, "norm"), (held, "1.")],
    ids=["state_dict", "parameters", "more than ten of a shape", "without BatchNorm", "trained"],
)
def test_numbered_tensors_are_taken_in_the_networks_order(build: Callable[[], nn.Module], left_out: str) -> None:
    net = fresh(build)
    update, _, _ = an_update(net)
    wanted = [name for name in net.state_dict() if not any(word in name for word in left_out.split())]

    def numbered(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        pairs = [(str(i), tensors[name]) for i, name in enumerate(wanted)]
        return dict(sorted(pairs))  # as a file has them: 10 before 2

    result = named(net, as_seen(numbered(update.received), numbered(update.sent)))
    assert set(result.sent) == set(result.received) == set(wanted)
    assert all(torch.equal(result.sent[name], update.sent[name]) for name in wanted)


def test_averaged_counters_come_back_as_whole_numbers() -> None:
    net = fresh()
    update, _, _ = an_update(net)
    averaged = update.received | {"norm.num_batches_tracked": torch.tensor(3.0, dtype=torch.float64)}
    assert named(net, replace(update, received=averaged)).received["norm.num_batches_tracked"].dtype == torch.int64


def test_the_first_tensor_that_does_not_fit_is_named() -> None:
    net = fresh()
    update, _, _ = an_update(net)
    wide = update.received | {"out.weight": torch.zeros(4, 32)}
    with pytest.raises(InputError, match=r"^Expected out.weight of Convolutional in shape \(3, 32\), got \(4, 32\)"):
        named(net, replace(update, received=wide))
    with pytest.raises(InputError, match=r"^Expected tensors of Convolutional \(stem.weight, .*\), got head.bias;"):
        named(net, replace(update, sent=update.sent | {"head.bias": torch.zeros(3)}))
    few = {"0": torch.zeros(3), "1": torch.zeros(3)}
    with pytest.raises(InputError, match=r"^Expected 9 numbered tensors .* or 6 \(its .*, got 2, which fit no "):
        named(net, replace(update, received=few))
    twofold = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    for name in ("1.bias", "2.bias"):  # what is trained has the shapes of what is outside of BatchNorm
        twofold.get_parameter(name).requires_grad_(False)
    numbered = {str(i): torch.zeros(shape) for i, shape in enumerate([(4, 4), 4, (4, 4), 4])}
    with pytest.raises(InputError, match="got 4, which fit 2 other parts of it; send"):
        named(twofold, as_seen(numbered, numbered))


def test_what_the_server_did_not_send_is_unknown_and_what_is_frozen_is_not_matched() -> None:
    net = fresh()
    update, _, y = an_update(net)
    shared = {name: value for name, value in update.received.items() if not name.startswith("out")}
    known = knowledge(net, replace(update, received=shared), inputs=SPACE, labels=y, batch=4, lr=LR)
    assert list(known.model.unknown) == ["out.weight", "out.bias"]
    assert "not granted: what the server did not send (out.weight, out.bias), searched for as well" in known.granted
    net.get_parameter("stem.weight").requires_grad_(False)
    known = knowledge(net, update, inputs=SPACE, labels=y, batch=4, lr=LR)
    assert "stem.weight" not in known.model.shared and "stem.bias" in known.model.shared


def test_what_is_granted_is_said() -> None:
    update, _, y = an_update(fresh())
    one = knowledge(fresh(), update, inputs=SPACE, labels=y, batch=4, lr=LR).granted
    assert "that one local step on 4 examples stands behind it" in one
    assert "that the steps are plain SGD with learning rate 0.5" in one
    assert "that batch normalisation used the batch's own statistics" in one
    assert not any("dropout" in sentence for sentence in one)
    random = fresh(lambda: Convolutional(0.5))
    many = knowledge(random, update, inputs=SPACE, labels=None, batch=4, steps=3).granted
    assert "that 3 local steps on the same 4 examples stand behind it" in many
    assert any(sentence.startswith("not granted: the optimiser") for sentence in many)
    assert any("such as dropout" in sentence for sentence in many) and "not granted: the labels" in many
    still = knowledge(random, update, inputs=SPACE, labels=None, batch=4, mode="eval").granted
    assert not any("dropout" in sentence for sentence in still)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"labels": [0, 1, 2, 3]}, r"^Expected 0 <= labels < 3, got labels=\[0, 1, 2, 3\]"),
        ({"labels": [0]}, r"^Expected 4 labels, one for each example, got labels=\(1,\)"),
        ({"lr": 0.0}, "^Expected 0 < lr < inf or None, got lr=0.0"),
        ({"mode": "both"}, "^Expected mode among train, eval, got mode=both"),
        ({"inputs": ((1, 7, 7), (0.5,), (0.25,))}, r"^Expected a network for inputs of shape \(1, 7, 7\), got Conv"),
    ],
)
def test_knowledge_that_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    update, _, y = an_update(fresh())
    with pytest.raises(InputError, match=says):
        knowledge(fresh(), update, **{"inputs": SPACE, "labels": y, "batch": 4, **given})


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, *blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "recording.md").read_text(), re.DOTALL)
    with initialising(0, "documentation"):
        exec("\n".join(blocks), {"__name__": "documentation"})
    assert capsys.readouterr().out.startswith("torch.Size([1, 1, 8, 8])\nthe network's code (Sequential)\n")
    out = tmp_path / "recordings-audit"
    (result,) = json.loads((out / "result.json").read_text())["audit"]
    assert (result["verdict"], result["share_recovered"]) == ("leaks", 1.0)
    assert purge(out) and not (out / "truth").exists()
    assert write_report(out, pictures=False).exists()


def test_any_number_that_flower_gives_a_node_can_be_audited(tmp_path: Path) -> None:
    """Half of Flower's numbers of nodes are above 2^63."""
    folder, shift = recorded(tmp_path / "rec", client_app(dense, 1), dense), 2**64 - 3  # of nodes 1 and 2
    exchanges, damaged = read_manifest(folder)
    header = json.loads((folder / "manifest.jsonl").read_text().splitlines()[0])
    rewrite(folder, [header, *({**row, "client": row["client"] + shift} for row in exchanges)])
    result = ask(folder, tmp_path / "audit", truth=lambda client: truth_of(1)(client - shift))
    assert not damaged and result["audit"][0]["worst"]["client"] in (1 + shift, 2 + shift)
    assert str(2**64 - 1) in (tmp_path / "audit" / "audit.csv").read_text()
    assert (tmp_path / "audit" / "report.html").exists()


# --- audits -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients send one step on one example each, twice."""
    return recorded(tmp_path_factory.mktemp("leaking") / "recordings", client_app(dense, 1), dense, rounds=2)


@pytest.mark.slow
def test_an_app_that_sends_one_step_on_one_example_leaks(leaking: Path, tmp_path: Path) -> None:
    result = ask(leaking, tmp_path / "audit")
    first, second = result["audit"]
    assert (first["verdict"], first["share_recovered"], first["images"]) == ("leaks", 1.0, 2)
    assert (first["source"], first["round"], second["round"], first["batch"], first["steps"]) == ("update", 1, 2, 1, 1)
    assert first["adaptive"] and [control["passed"] for control in first["ladder"]] == [True, True, True]
    assert {row["rung"] for row in rows(tmp_path / "audit")} == {"easy", "target"}
    best = next(row for row in rows(tmp_path / "audit") if row["rung"] == "target" and row["client"] == "2")
    assert float(best["psnr"]) > 40
    assert Truth.read(tmp_path / "audit" / "truth", Path(best["truth"]).stem).samples.equal(examples(1, seed=1)[0])
    assert any("did not pass through the app's clients and wire" in note for note in result["notes"])
    assert result["config"]["method"] == "toy" and result["recordings"]["exchanges"] == 4
    assert [row["clients"] for row in result["rounds"]] == [2, 2]
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "toy on noise" in page and "data:image/png" not in page


def test_floors_are_those_of_each_clients_own_examples(leaking: Path, tmp_path: Path) -> None:
    ask(leaking, tmp_path / "audit", rounds=[1])  # both clients call their example number 0
    assert len({row["floor_grey"] for row in rows(tmp_path / "audit") if row["rung"] == "target"}) == 2
    page = (tmp_path / "audit" / "report.html").read_text()  # its readers are those of own audits
    assert "no record of single samples" not in page and len(read(tmp_path / "audit").rows) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "moved", [99, 3, None], ids=["nothing is learnt", "one client learns", "all hold the first client's data"]
)
def test_an_app_that_returns_what_it_received_proves_nothing(tmp_path: Path, moved: int | None) -> None:
    """The record may be another one than that of the trained tensors."""

    def local(net: nn.Module, x: Tensor, y: Tensor) -> None:
        if moved is None:  # a fault of the app: its messages are equal, and leak
            step(net, *examples(2, seed=0))
        elif torch.equal(x, examples(2, seed=moved)[0]):  # one client's message differs in one number
            next(net.parameters()).data[0, 0] += 1e-3

    folder = recorded(tmp_path / "recordings", app_of(dense, 2, local), dense, clients=8)
    (result,) = ask(folder, tmp_path / "audit", count=2)["audit"]
    assert (result["cause"], result["verdict"]) == ("description", "undecided")
    assert ("is what clients had received" in result["reason"]) == (moved == 99)


@pytest.mark.slow
def test_noise_that_nobody_named_is_a_wrong_description(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recordings", client_app(dense, 1, noise=1.0), dense)
    (result,) = ask(folder, tmp_path / "audit")["audit"]
    assert outcome(result) == "void" and result["share_recovered"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "steps", "verdict"),
    [
        ({"steps": 5}, 5, "void"),
        ({"steps": lambda seen: 5}, 5, "void"),
        ({"lr": None}, 1, "undecided"),
        ({"defence": "noise"}, 1, "static"),
    ],
    ids=["steps", "a function", "no lr", "defence"],
)
def test_several_steps_an_unknown_optimiser_or_a_defence_make_an_attack_static(
    tmp_path: Path, given: dict[str, Any], steps: int, verdict: str
) -> None:
    folder = recorded(tmp_path / "recordings", client_app(dense, 3, steps=5, noise=1.0), dense)
    (result,) = ask(folder, tmp_path / "audit", count=3, **given)["audit"]
    assert not result["adaptive"] and outcome(result) == verdict
    assert (result["batch"], result["steps"]) == (3, steps)


@final
class Raising(WithoutSearch):
    def run(self, observations: Sequence[Any], knowledge: Sequence[Any], rngs: Sequence[Any]) -> list[Reconstruction]:
        for seen in observations:
            seen.sent["1.weight"].zero_()  # what it does to its own copy is no other attack's affair
        raise ZeroDivisionError("nothing\nto divide by")


@pytest.mark.slow
def test_an_attack_that_raises_is_a_failure_and_the_others_go_on(leaking: Path, tmp_path: Path) -> None:
    attacks = {"raising": Raising(), "analytic": Analytic()}
    result = ask(leaking, tmp_path / "audit", attacks=attacks, rounds=[2])
    broken, sound = result["audit"]
    assert broken["failure_reason"] == "crashed: ZeroDivisionError: nothing"
    assert (broken["verdict"], broken["failures"], sound["verdict"]) == ("undecided", 2, "leaks")
    assert "The attack raising gave nothing at round 2: crashed: ZeroDivisionError: nothing." in result["notes"]


def test_a_damaged_recording_is_a_failure_and_the_rest_is_audited(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recordings", client_app(dense, 1), dense)
    file = folder / Recordings(folder).update_lines(1)[0]["sent_by_client"]["file"]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    result = ask(folder, tmp_path / "audit")
    (results,) = result["audit"]
    assert (results["verdict"], results["failures"], results["share_recovered"]) == ("leaks", 1, 0.5)
    assert len(result["recordings"]["refused"]) == 1 and "SHA-256" in result["recordings"]["refused"][0]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_network_with_batch_normalisation_survives_averaging_and_audit(tmp_path: Path, dropout: float) -> None:
    def build() -> nn.Module:
        return Convolutional(dropout)

    folder = recorded(tmp_path / "recordings", client_app(build, 3), build, rounds=2)
    for result in ask(folder, tmp_path / "audit", count=3, net=build)["audit"]:
        assert result["adaptive"] == (dropout == 0.0)
        assert (
            result["failure_reason"].startswith("not applicable: analytic needs") and result["verdict"] == "undecided"
        )


@pytest.mark.slow
def test_only_so_many_clients_and_only_those_of_whom_something_is_known_are_audited(
    leaking: Path, tmp_path: Path
) -> None:
    (result,) = ask(leaking, tmp_path / "one", rounds=[1], victims=1)["audit"]
    assert result["images"] == 1 and {row["client"] for row in rows(tmp_path / "one")} == {"1"}
    known = truth_of(1)
    ask(leaking, tmp_path / "other", rounds=[1], truth=lambda client: known(client) if client == 2 else None)
    assert {row["client"] for row in rows(tmp_path / "other")} == {"2"}


def test_public_examples_that_are_a_clients_do_not_hide_its_leak(leaking: Path, tmp_path: Path) -> None:
    x, y = (torch.cat(parts) for parts in zip(*(examples(1, seed) for seed in (0, 1, 9)), strict=True))
    public, given = PublicData.from_arrays(x.double().numpy(), y.numpy()), truth_of(1)
    truth = lambda client: Truth(*(part.double().numpy() for part in list(vars(given(client)).values())[:3]))  # noqa: E731
    (result,) = ask(leaking, tmp_path / "audit", rounds=[1], public=public, truth=truth)["audit"]
    assert (result["verdict"], result["share_recovered"]) == ("leaks", 1.0)
    assert result["floors"]["nearest_public"] < 20
    with pytest.raises(InputError, match="no client's, got public=2"):
        ask(leaking, tmp_path / "none", rounds=[1], public=PublicData.from_arrays(x[:2].numpy(), y[:2].numpy()))


def one_truth(**changed: Tensor) -> Callable[[int], Truth]:
    x, y = examples(1)
    return lambda client: replace(Truth(x, y, torch.arange(1)), **changed)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"truth": lambda client: None}, "^Expected to be told what a client trained on, got nothing of 2 in "),
        ({"rounds": [3]}, "^Expected a recorded round among 1, 2, got round=3"),
        ({"batch": 2}, "^Expected 2 examples of client 1, got examples=1"),
        ({"truth": one_truth(labels=torch.tensor([3]))}, r"^Expected 0 <= labels < 3 of client 1, got labels=\[3\]"),
        ({"truth": one_truth(samples=torch.full((1, 1, 6, 6), 2.0))}, r"^Expected inputs of client 1 within \[0, 1\]"),
        ({"truth": one_truth(samples=torch.zeros(1, 6, 6))}, r"^Expected inputs of client 1 in \(1, 6, 6\), got"),
        ({"truth": one_truth(labels=torch.eye(3)[:1])}, r"^Expected a class for each example of client 1, got shape="),
        ({"net": lambda: nn.Flatten(0)}, r"^Expected a network that gives scores .*, or one logit each, got net=Fl"),
        ({"net": Convolutional}, r"^Expected tensors of Convolutional \(stem.weight, .*got 1.bias;"),
        ({"attacks": {}}, "^Expected at least one attack"),
        ({"attacks": {"told": Membership()}}, "^Expected attacks that reconstruct examples: .* got attack=told"),
        ({"steps": 0}, "^Expected steps >= 1, got steps=0"),
        ({"public": PublicData.from_arrays(numpy_generator(0, "p").random((4, 5)),
                                 numpy_generator(0, "p").integers(2, size=4))},
         r"^Expected public inputs of shape \(1, 6, 6\), got shape=\(5,\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_written(
    leaking: Path, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as error:
        ask(leaking, tmp_path / "audit", **given)
    assert "\n" not in str(error.value) and not (tmp_path / "audit").exists()


class OneLogit(nn.Module):
    """Of shape (B, 1), or (B,), of one example ()."""

    def __init__(self, squeezed: bool) -> None:
        super().__init__()
        self.inner, self.out, self.squeezed = nn.Linear(36, 16), nn.Linear(16, 1), squeezed

    def forward(self, x: Tensor) -> Tensor:
        logit = self.out(torch.relu(self.inner(x.flatten(1))))
        return logit.squeeze() if self.squeezed else logit


@pytest.mark.parametrize("squeezed", [False, True])
def test_an_app_with_one_logit_and_binary_labels_is_audited(tmp_path: Path, squeezed: bool) -> None:
    def build() -> nn.Module:
        return fresh(lambda: OneLogit(squeezed))

    def local(net: nn.Module, x: Tensor, y: Tensor) -> None:
        logits = net(normalised(x)).flatten()
        binary_cross_entropy_with_logits(logits, (y > 0).float()).backward()
        torch.optim.SGD(net.parameters(), LR).step()

    def truth(client: int) -> Truth:
        x, y = examples(1, seed=client - 1)
        return Truth(x, (y > 0).float()[:, None], torch.arange(1))

    with pytest.raises(InputError, match=r"whole numbers as labels, got labels=\[0.5\]"):
        knowledge(fresh(dense), an_update(fresh(dense), 1)[0], inputs=SPACE, labels=torch.tensor([0.5]), batch=1)
    folder = recorded(tmp_path / "recordings", app_of(build, 1, local), build)
    training = TrainingDescription(LR, loss=binary_cross_entropy_with_logits)
    attacks = {"analytic": Analytic(), "dlg": DLG(DLGSettings(iterations=10, restarts=2))}
    result = ask(folder, tmp_path / "audit", net=build, truth=truth, attacks=attacks, training=training)
    controls = [{one["rung"]: one["passed"] for one in entry["ladder"]} for entry in result["audit"]]
    assert [(entry["verdict"], entry["share_recovered"]) for entry in result["audit"]] == [("leaks", 1)] * 2
    assert all(each["consistency"] for each in controls)  # binary cross-entropy is that of the scores 0 and the logit


def test_folders_without_recordings_and_old_audits_are_refused(leaking: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^Expected recordings in "):
        ask(tmp_path / "nothing", tmp_path / "audit")
    RecordingGrid(InProcessGrid(client_app(dense, 1), 1, {}), tmp_path / "empty")
    with pytest.raises(InputError, match=r"^Expected recorded updates of training in .*, got exchanges=0"):
        ask(tmp_path / "empty", tmp_path / "audit")
    with pytest.raises(InputError, match=r"^Expected a new folder for the audit, got "):
        ask(leaking, tmp_path)


def test_attacks_can_be_given_by_their_names() -> None:
    for given in ("analytic", ["analytic"], {"analytic": Analytic()}):
        built = _built(given)
        assert list(built) == ["analytic"] and isinstance(built["analytic"], Analytic)
    with pytest.raises(InputError, match=r"^Got attack=analitic; did you mean analytic\? "):
        _built("analitic")
