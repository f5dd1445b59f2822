"""Errors of reconstructed features: against a loop, and in an audited run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sim
from flfw import nets
from flfw.audit.measures.perceptual import Extractor
from flfw.experiment import Experiment
from flfw.nets.inputs import InputSpec
from flfw.plans.run_plan import plan
from flfw.recording.reader import Recordings
from tests.support.csv_files import read_csv

INPUTS = InputSpec.from_constants((1, 2, 2), (0.5,), (0.25,))


def test_the_error_is_relative_to_the_length_of_the_true_features() -> None:
    weights = {"1.weight": torch.tensor([[1.0, 0, 0, 0], [0, 2.0, 0, 0]]), "1.bias": torch.tensor([0.0, 1.0])}
    extractor = Extractor(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), weights, INPUTS)
    truth = torch.tensor([[0.5, 0.5, 0.1, 0.9], [1.0, 0.5, 0.0, 0.0]]).view(2, 1, 2, 2)
    guesses = torch.tensor([[0.5, 0.75, 0.7, 0.3], [1.0, 0.5, 1.0, 1.0]]).view(2, 1, 2, 2)
    # Normalised: 0, 0 and 2, 0. True features: (0, 1) and (2, 1). The first guess is off by 2 in the second one.
    assert extractor.errors(truth, guesses) == pytest.approx([2.0, 0.0])


def test_guesses_are_cut_to_the_range_of_inputs_and_lost_features_have_no_error() -> None:
    weights = {"1.weight": torch.eye(4), "1.bias": torch.zeros(4)}
    extractor = Extractor(nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), weights, INPUTS)
    truth = torch.tensor([[1.0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]]).view(2, 1, 2, 2)  # normalised: 2 and 0
    assert extractor.errors(truth, 7 * torch.ones_like(truth)) == [0.0, None]


FLAGS = "--clients 2 --rounds 1 --local-epochs 1 --attack ig --images 2 --engine inproc --set ig.iterations=20"


def _audited(folder: Path, method: str, net: str) -> tuple[dict, list[dict[str, str]]]:
    assert sim.main(f"--method {method} --net {net} {FLAGS} --audit-rounds 0 --out {folder}".split()) == 0
    entry = next(e for e in json.loads((folder / "result.json").read_text())["audit"] if e["round"] == 0)
    return entry, read_csv(folder / "audit.csv", rung="target")


@pytest.mark.slow
def test_an_audit_measures_the_features_of_a_shared_extractor(tmp_path: Path) -> None:
    entry, rows = _audited(tmp_path / "run", "fedavg", "mlp")
    recorded = Recordings(tmp_path / "run" / "observations").probes("target", 0)
    experiment = plan(Experiment(method="fedavg", net="mlp", clients=2)).experiment
    inputs = plan(experiment).task.load(None).inputs
    for observation, row in zip(recorded, rows, strict=True):
        net = nets.build("mlp", inputs.shape, 10, "torch")
        net.load_state_dict(observation.received)
        net.requires_grad_(False)
        paths = (tmp_path / "run" / row[name] for name in ("truth", "reconstruction"))
        true, guess = (net.eval().extractor(inputs.normalise(load_file(path)["samples"])) for path in paths)
        assert float(row["feature_error"]) == pytest.approx(float((guess - true).norm() / true.norm()), rel=1e-5)
    errors = [float(row["feature_error"]) for row in rows]
    assert entry["feature_error"]["mean"] == pytest.approx(sum(errors) / 2)
    assert entry["feature_error"]["min"] == min(errors) > 0


@pytest.mark.slow
def test_a_private_extractor_has_no_feature_error(tmp_path: Path) -> None:
    entry, rows = _audited(tmp_path / "run", "fedsplit", "mlp")
    assert rows and entry["feature_error"] is None and all(row["feature_error"] == "" for row in rows)
