"""Attacks on what is sent above a frozen, public body: the classifier's gradient alone."""

import json
from pathlib import Path

import pytest
import torch

from flfw.experiment import Experiment
from flfw.inversion.closed_form.linear import read_features
from flfw.runs import run
from tests.support import rounds
from tests.support.small_runs import tiny

NET = "tests.support.tiny_backbone:WIDE"


def test_the_classifiers_gradient_gives_the_features_exactly(small: Experiment, tmp_path: Path) -> None:
    experiment = tiny(net=NET, trainable="linear_probe", dataset="digits", split="iid", attack=("none",))
    client = rounds.client(experiment, tmp_path, 0)
    client.load_received({name: v.numpy().copy() for name, v in rounds.fresh(experiment).state_dict().items()}, 0)
    x = torch.rand(1, 1, 8, 8)
    sent = client.gradient(x, torch.tensor([3]))
    assert set(sent) == {"classifier.weight", "classifier.bias"}
    read = read_features(sent["classifier.weight"], sent["classifier.bias"])
    true = client.model.get_submodule("extractor")(client.ctx.task.inputs.normalise(x))[0]
    torch.testing.assert_close(read, true, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["fedcg", "ig"])
def test_an_image_is_found_by_its_features_through_the_public_body(tmp_path: Path, attack: str) -> None:
    budget = "fedcg.search_iterations=600" if attack == "fedcg" else "ig.iterations=600"
    requested = tiny(
        tmp_path / "run", net=NET, trainable="linear_probe", attack=(attack,), set=(budget,), audit_rounds="0"
    )
    result = json.loads((run.run(requested) / "result.json").read_text())
    (entry,) = [one for one in result["audit"] if one["round"] == 0 and one["attack"] == attack]
    assert entry["psnr"]["mean"] > 20
    assert entry["verdict"] == "leaks"
    assert "the weights of its frozen body, which are public" in entry["granted"]


@pytest.mark.slow
def test_a_closed_form_for_first_layers_does_not_take_features_for_an_image(tmp_path: Path) -> None:
    requested = tiny(
        tmp_path / "run", net="tests.support.tiny_backbone:TINY", trainable="linear_probe", audit_rounds="0"
    )
    result = json.loads((run.run(requested) / "result.json").read_text())
    words = json.dumps(result)
    assert "analytic needs a shared fully connected first layer" in words and "crashed" not in words


@pytest.mark.nightly
def test_the_attack_on_hypernetworks_runs_on_generated_adapters(tmp_path: Path) -> None:
    settings = ("hidden=6", "embedding=4", "hyperfl.iterations=20")
    net = "tests.support.tiny_backbone:TINY"
    requested = tiny(
        tmp_path / "run", method="hyperfl_lpm", net=net, attack=("hyperfl",), set=settings, audit_rounds="0"
    )
    result = json.loads((run.run(requested) / "result.json").read_text())
    assert result["audit"] and "crashed" not in json.dumps(result)
    assert all(entry["psnr"]["mean"] is not None for entry in result["audit"])
