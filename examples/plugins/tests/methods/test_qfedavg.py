"""q-FedAvg: plain averaging with q=0, the weights by hand, and a round of real clients."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from flfw.experiment import Experiment
from flfw.messages.replies import UnusableReplyError
from flfw.messages.wire import pack
from flfw.server.aggregation import Update
from flfw.strategies.qfedavg import QFedAvg, QFedAvgSettings
from tests.support.rounds import place, play


@pytest.mark.parametrize(("q", "expected"), [(0.0, 0.5), (1.0, 1 - 30 / 140)])
def test_one_round_by_hand(small: Experiment, q: float, expected: float) -> None:
    """With q=1: d is 0 and 10, so that the sum of F d is 30, and that of h is 10 + (100 + 30)."""
    strategy = QFedAvg(QFedAvgSettings(q=q))
    strategy.ctx = place(dataclasses.replace(small, method="qfedavg", lr=0.1))
    ends = [(1.0, 1.0), (3.0, 0.0)]
    updates = [Update(i, 5, {"w": torch.tensor([w])}, {"loss_received": loss}) for i, (loss, w) in enumerate(ends)]
    found = strategy.aggregate_round(pack({"w": torch.tensor([1.0])}), updates, 1)
    assert found["w"].tolist() == pytest.approx([expected])


@pytest.mark.parametrize("metrics", [{}, {"loss_received": None}, {"loss_received": -1.0}])
def test_an_update_without_a_loss_is_refused(metrics: dict[str, Any]) -> None:
    with pytest.raises(UnusableReplyError, match="expected loss_received > 0"):
        QFedAvg().check_metrics(metrics)


def test_clients_report_their_loss_at_the_received_model(small: Experiment, tmp_path: Path) -> None:
    done = play(dataclasses.replace(small, method="qfedavg", clients=2), tmp_path)
    assert all(0 < update.metrics["loss"] < update.metrics["loss_received"] for update in done.uploads[0])
