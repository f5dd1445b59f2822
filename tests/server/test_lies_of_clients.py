"""Lies of an evil client in one process: all but those that need a SuperLink, a deadline or a death.

The lies are the rows of `tests.support.client_lies`, a round each; `tests/deploy/test_evil_clients.py` tells them over
gRPC.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.client_lies import ENROLMENT, FACTORS, ONLY_AMONG_PROCESSES, TRAINING
from tests.support.lying import Lie
from tests.support.told_lies import Lying, Told, in_process, require_same_model, require_told, without_the_liar

ENROLLED = "tests.support.enrolled_again:EnrolledAgain"
FACTORED = {"method": "hyperfl", "net": "lenet",
            "set": ("sampled.train=50", "hidden=16", "embedding=8", "upload=factors")}  # fmt: skip


def told(table: tuple[Lie, ...]) -> tuple[Lie, ...]:
    return tuple(lie for lie in table if lie.words not in ONLY_AMONG_PROCESSES)


@pytest.mark.parametrize(
    ("lies", "changes"),
    [(told(TRAINING), {}), (told(FACTORS), FACTORED), (told(ENROLMENT), {"method": ENROLLED})],
    ids=["training", "factors", "enrolment"],
)
def test_each_lie_costs_the_liar_its_round_and_nobody_else(
    lies: tuple[Lie, ...], changes: dict[str, Any], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    run = Told(in_process(Lying, tmp_path / "lies" / "run", lies, **changes), "")
    for server_round, lie in enumerate(lies, 1):
        with subtests.test(lie.name):
            require_told(lie, run, server_round)
    text = (run.out / "training.json").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in training.json"))
    assert all(bool(torch.isfinite(value).all()) for value in run.model().values())
    honest = {**changes, "method": "fedavg"} if changes.get("method") == ENROLLED else changes
    require_same_model(run, without_the_liar(tmp_path / "without" / "run", lies, **honest))


def test_few_lies_are_left_to_processes() -> None:
    alone = [lie.name for table in (TRAINING, FACTORS, ENROLMENT) for lie in table if lie not in told(table)]
    assert len(alone) == 10, alone
