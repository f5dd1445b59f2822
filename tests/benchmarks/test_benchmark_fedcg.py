"""FedCG's benchmark: both sides compute the same, it would notice if not, and what it prints."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import fedcg
from flfw.server import distillation
from flfw.server.distillation import Scores
from flfw.strategies import fedcg as method


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedcg, "_IMAGES", 24)  # of batches of 16, so that the last one is smaller
    monkeypatch.setattr(fedcg, "_ROUNDS", 1)
    monkeypatch.setattr(fedcg, "_COMPARED", 18)  # more than what teachers see at a time
    monkeypatch.setattr(fedcg, "_CLIENTS", {"clients_2": 2})
    monkeypatch.setattr(fedcg, "_GOAL", {"clients_2": 0.01})


@pytest.mark.nightly
def test_both_sides_compute_the_same(tmp_path: Path) -> None:
    exact, worst = fedcg.gate(tmp_path)
    assert exact.keys() == {"client", "clients_2", "clients_2_float32"}
    assert exact["client"] < 1e-12 and exact["clients_2"] < 1e-12 and exact["clients_2_float32"] < 1e-5
    assert exact["clients_2_float32"] <= worst < 0.1


def learning(model: nn.Module, tensors: Mapping[str, Tensor]) -> Scores:
    """A teacher in the mode in which it was trained, not that in which it is used."""
    return distillation.scores_with(model.train(), tensors)


def one_only(batches: Any, teachers: Any) -> Any:
    return distillation.with_teacher_scores(batches, teachers[:1])


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "wrong"), [("scores_with", learning), ("with_teacher_scores", one_only)])
def test_a_server_that_does_another_thing_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any
) -> None:
    monkeypatch.setattr(method, name, wrong)
    with pytest.raises(SystemExit, match=r"Expected the same on both sides .*clients_2=\d+\.\d+.*nothing was timed"):
        fedcg.gate(tmp_path)


@pytest.mark.slow
def test_a_client_that_does_another_thing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedcg.FedCGClient, "gamma", 0.9)
    assert 1e-4 < fedcg.client_apart(tmp_path) < 1


def test_an_error_is_over_what_was_moved() -> None:
    start = {"a": torch.tensor([1.0, 1.0]), "n": torch.tensor(3)}
    expected = {"a": torch.tensor([1.0, 3.0]), "n": torch.tensor(4)}
    result = {"a": torch.tensor([1.5, 3.0]), "n": torch.tensor(9)}
    assert fedcg.apart(result, expected, start) == pytest.approx(0.25)


@pytest.mark.slow
def test_the_last_line_is_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fedcg", "--quick"])
    monkeypatch.setattr(fedcg, "gate", lambda *_, **__: ({"client": 1e-15}, 2e-3))
    monkeypatch.setattr(fedcg, "_QUICK", 2)
    threads = torch.get_num_threads()
    fedcg.main()
    torch.set_num_threads(threads)
    *message, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert result["P9"]["clients_2"] > 0 and set(result["client"]) == {"classifier", "generator"}
    assert result["met"] == {"P9": {"clients_2": True}} and result["goal"] == {"P9": {"clients_2": 0.01}}
    assert len(result["milliseconds"]["P9"]["clients_2"]) == 2 and result["exact"] == {"client": 1e-15}
    assert result["float32_worst"] == 2e-3 and "hardware" in result and result["load"] > 0
    assert message[0] == "exact: client 1.0e-15 (goal <= 1e-05)  (quick: not to be quoted)"
    assert "met" in message[2] and len(message) == 5


@pytest.mark.slow
def test_what_was_not_chosen_is_neither_compared_nor_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedcg", "--quick", "--json", "--only", "client"])
    threads = torch.get_num_threads()
    fedcg.main()
    torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"client", "milliseconds", "exact", "load", "quick", "only", "hardware"}
    assert set(result["exact"]) == {"client"} and result["only"] == ["client"] and result["quick"]
