"""The objective at the truth and at the results: a search that failed is one that ended short."""

from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flfw.adversary.attack import Attack
from flfw.audit.jobs import Exchange, JobResult
from flfw.audit.reconstruction.control_runs import Case, ControlRunner
from flfw.audit.reconstruction.reconstruction_evidence import Searched
from flfw.audit.threat_model import ThreatModel
from flfw.inversion.fit import Fit
from flfw.recording.observation import Reconstruction, Truth
from tests.audit.test_queue import job

TRUTH = Truth(torch.zeros(1, 1, 2, 2), torch.tensor([0]), torch.tensor([0]))


def searched(monkeypatch: pytest.MonkeyPatch, values: list[tuple[float, float, float]]) -> Searched | None:
    """Return the summary of messages with these objectives at the truth, at the result and at a random guess."""
    exchanges = tuple(Exchange(f"{slot}", 0, slot, None) for slot in range(len(values)))
    seen = [SimpleNamespace(client=0, slot=slot, round=0) for slot in range(len(values))]
    monkeypatch.setattr(ControlRunner, "_open", lambda self, requested: [(one, None, TRUTH) for one in seen])
    objective = lambda seen, known, guesses, rng: [Fit(value, value) for value in values[seen.slot]]  # noqa: E731
    clients, nothing = cast(Any, SimpleNamespace(seed=0)), cast(Any, None)
    control_runner = ControlRunner(clients, nothing, nothing, nothing, Path(), nothing)
    results = tuple(Reconstruction(TRUTH.samples) for _ in values)
    attack = cast(Attack, SimpleNamespace(objective=objective))
    known = ThreatModel((), adaptive=True)
    case = Case(job(exchanges=exchanges), attack, [0], known, JobResult("", results), [])
    return control_runner.searched(case)


@pytest.mark.parametrize("failed", [nan, inf])
def test_one_failed_search_does_not_excuse_the_others(monkeypatch: pytest.MonkeyPatch, failed: float) -> None:
    result = searched(monkeypatch, [(0.0, failed, 1.0), (0.0, 0.5, 1.0), (0.0, 0.25, 2.0), (1.0, 0.5, 3.0)])
    assert result == Searched(truth=0.0, found=0.5, random=1.5, unconverged=3, total=4)


def test_a_message_without_an_objective_is_left_out_and_nothing_is_said_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert searched(monkeypatch, [(nan, 0.5, nan), (0.0, 0.5, 1.0)]) == Searched(0.0, 0.5, 1.0, 1, 1)
    assert searched(monkeypatch, [(nan, nan, nan), (0.0, 0.5, inf)]) is None
    assert searched(monkeypatch, [(0.0, nan, 1.0)]) is None
