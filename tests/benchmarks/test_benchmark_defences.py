"""The benchmark of defences: both sides compute the same, it would notice if not, and what it prints."""

import json
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import defences
from benchmarks.defences import Concealing


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defences, "_SEARCHES", {"lenet_1": (1, 4, 3), "lenet_2": (2, 4, 3)})
    monkeypatch.setattr(defences, "_IMAGES", {"lenet_1": 1})
    monkeypatch.setattr(defences, "_COMPARED", 5)


@pytest.mark.nightly
def test_both_sides_compute_the_same_and_something() -> None:
    exact = defences.gate(["D1", "D2"])
    assert set(exact) == {"D1_lenet_1", "D1_lenet_2", "D2"} and max(exact.values()) < 1e-9
    with defences.double():
        sides = Concealing(2, 5)
        assert defences.apart(sides.ours(), sides._start[0]) > 0.1


@pytest.mark.slow
def test_a_search_that_does_another_thing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Concealing, "first", lambda self: self._start[0])
    with pytest.raises(SystemExit, match=r"Expected the same on both sides .*D1_lenet_2=0\.\d+; nothing was timed"):
        defences.gate(["D1"])


@pytest.mark.slow
def test_norms_of_another_layer_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(net: Any, layer: str, x: Tensor) -> Tensor:
        return torch.full((len(x), 588), torch.nan)

    monkeypatch.setattr(defences, "row_norms", nothing)
    with pytest.raises(SystemExit, match=r"D2=nan; nothing was timed"):
        defences.gate(["D2"])


@pytest.mark.slow
def test_the_next_search_of_a_shape_uses_the_same_operations() -> None:
    sides = Concealing(1, 2)
    sides.ours()
    (traced,) = sides.traced.values()
    sides.ours()
    assert list(sides.traced.values()) == [traced]


@pytest.mark.nightly  # a benchmark
def test_the_last_line_is_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["defences", "--quick"])
    threads = torch.get_num_threads()
    defences.main()
    torch.set_num_threads(threads)
    *message, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert set(result["D1"]) == set(result["prepare_s"]) == {"lenet_1", "lenet_2"} and set(result["D2"]) == {"lenet_1"}
    assert result["goal"] == {"D1": 3.0, "D2": 5.0} and result["quick"] and result["load"] > 0
    assert result["met"]["D2"]["lenet_1"] == (result["D2"]["lenet_1"] >= 5)
    assert len(message) == 3 and message[0].startswith("D1 lenet_1") and "prepared in" in message[0]


@pytest.mark.slow
def test_only_what_was_chosen_is_compared_and_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["defences", "--quick", "--json", "--only", "D2"])
    threads = torch.get_num_threads()
    defences.main()
    torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out)
    assert "D1" not in result and "prepare_s" not in result and set(result["exact"]) == {"D2"}
