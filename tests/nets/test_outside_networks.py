"""Networks of a user's own: what is tried before a run, and what is refused in one line."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sim
from flfw import nets
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Net, draws_in_training, refuse_tied, tensors
from flfw.plans.run_plan import plan
from tests.support.planned import checked


def tied(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network whose two hidden layers have one weight."""
    size = torch.Size(shape).numel()
    first, second = nn.Linear(size, size), nn.Linear(size, size)
    second.weight = first.weight
    return Net(nn.Sequential(nn.Flatten(), first, nn.Sigmoid(), second), nn.Linear(size, classes))


def called_twice(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network that has one layer at two places."""
    layer = nn.Linear(torch.Size(shape).numel(), torch.Size(shape).numel())
    return Net(nn.Sequential(nn.Flatten(), layer, nn.Sigmoid(), layer), nn.Linear(layer.out_features, classes))


def untied(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network that has a function without tensors at two places."""
    size, bend = torch.Size(shape).numel(), nn.Sigmoid()
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(size, 4), bend, nn.Linear(4, 4), bend), nn.Linear(4, classes))


class EveryPlace(nn.Module):
    """Scores (B, classes, T) of a text's places, each by its own token alone."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(1, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x.unsqueeze(-1)).mT


def places(shape: tuple[int, ...], classes: int) -> Net:
    return Net(nn.Identity(), EveryPlace(classes))


def narrow(shape: tuple[int, ...], classes: int) -> Net:
    return Net(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes - 1))


def one_size(shape: tuple[int, ...], classes: int) -> Net:
    return Net(nn.Flatten(), nn.Linear(3, classes))


def own(builder: object, **changes: str) -> Experiment:
    name = f"{__name__}:{builder.__name__}"  # type: ignore[attr-defined]
    return Experiment(method=changes.pop("method", "fedavg"), net=name, engine="inproc", attack=("none",), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("builder", "two"), [(tied, "extractor.1.weight and extractor.3.weight"), (called_twice, "")])
def test_tied_weights_are_refused_by_their_two_names(builder: object, two: str) -> None:
    two = two or "extractor.1.weight and extractor.3.weight"
    with pytest.raises(InputError, match=rf"each name of Net, got {two}, which are the same \(tied weights\)"):
        plan(own(builder)).client.build_model()
    model = builder((3,), 2)  # type: ignore[operator]
    with pytest.raises(InputError, match=f"got {two}, which"):
        PlainVictim(model, tensors(model), ("*",), InputSpec.from_constants((3,), (0.0,) * 3, (1.0,) * 3))
    refuse_tied(untied((3,), 2))


def test_on_the_command_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--method", "fedavg", "--net", f"{__name__}:tied", "--attack", "none", "--engine", "inproc"]
    assert sim.main([*flags, "--out", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "extractor.1.weight and extractor.3.weight" in printed
    assert not (tmp_path / "run").exists()


def test_built_in_networks_have_a_tensor_for_each_name() -> None:
    for name in nets.names():
        if (card := nets.card(name)).architecture is None:
            side = card.side or 64
            shape = (32,) if card.vocabulary else (card.channels or 3, side, side)
            with torch.device("meta"):
                refuse_tied(nets.build(name, shape, 10))


def test_scores_that_fit_no_labels_are_refused(tmp_path: Path) -> None:
    checked(plan(own(untied)))
    name = rf"Expected net={__name__}:"
    with pytest.raises(InputError, match=rf"{name}narrow to give scores \(1, 10\) for an input, got \(1, 9\)\."):
        checked(plan(own(narrow)))
    with pytest.raises(InputError, match=rf"{name}one_size to take inputs of shape \(1, 8, 8\), got: .*mat1 and mat2 "):
        checked(plan(own(one_size)))
    lines = [f"{'even' if n % 2 else 'odd'}\ttext {n}" for n in range(40)]
    (tmp_path / "labelled.tsv").write_text("\n".join(lines))
    (tmp_path / "plain.txt").write_text("a text without labels. " * 40)
    labelled, plain = f"text:{tmp_path / 'labelled.tsv'}@6", f"text:{tmp_path / 'plain.txt'}@6"
    with pytest.raises(InputError, match=r"to give scores \(1, 2\) for an input of labelled text, got \(1, 2, 6\)\."):
        checked(plan(own(places, dataset=labelled)))
    checked(plan(own(places, dataset=plain)))
    with pytest.raises(
        InputError, match=r"the whole network for net=.*:places, which scores every place, got method=fed"
    ):
        checked(plan(own(places, dataset=plain, method="fed_cdp")))


def dropping(shape: tuple[int, ...], classes: int) -> Net:
    size = torch.Size(shape).numel()
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.Dropout(0.1)), nn.Linear(16, classes))


class Hidden(nn.Module):
    """Dropout that no layer's type tells of."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.1, self.training)


def test_a_network_that_draws_in_training_is_found_by_a_trial() -> None:
    x, linear = torch.rand(8, 12), nn.Linear(12, 16)
    layers = {nn.Dropout(0.1): True, Hidden(): True, nn.Dropout(0.0): False, nn.BatchNorm1d(16): False}
    for layer, draws in layers.items():
        model = nn.Sequential(linear, layer).eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        assert draws_in_training(model, x) is draws and not model.training
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert plan(own(dropping)).client.draws and not plan(own(untied)).client.draws
