"""Floor of an attack that gives images without a message: by hand, and on the way through the queue."""

from pathlib import Path

import numpy as np
import pytest
import torch

from flfw.audit.jobs import solved
from flfw.audit.measures.public import PublicData
from flfw.audit.queue import Queue
from flfw.audit.reconstruction.scorer import Scorer, ScoreRow
from flfw.recording.observation import Reconstruction, Truth
from tests.audit.test_queue import EXCHANGES, job

TRUTH = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
FAR, NEAR = TRUTH * 0.5 + 0.25, TRUTH * 0.9 + 0.05  # off by 0.25 and by 0.05 everywhere


def scored(folder: Path, guess: Reconstruction) -> ScoreRow:
    Truth(TRUTH, torch.tensor([7]), torch.tensor([0])).write(folder / "truth", "one")
    public = PublicData.from_arrays(np.full((3, 1, 2, 2), 0.5, np.float32), np.array([7, 7, 7]))
    scorer = Scorer(public, folder / "truth", folder, 0, None)
    (row,) = scorer.rows(job(), EXCHANGES[0], {}, ("one",), guess)
    return row


def test_the_nearest_guess_without_the_message_is_a_floor(tmp_path: Path) -> None:
    close = TRUTH * 0.92 + 0.04  # off by 0.04: 27.96 dB
    free, bound = (scored(tmp_path, Reconstruction(close, unguided=x)) for x in (FAR, torch.cat([FAR, NEAR])))
    assert free["floor_unguided"] == pytest.approx(-20 * np.log10(0.25), abs=1e-4)
    assert bound["floor_unguided"] == pytest.approx(-20 * np.log10(0.05), abs=1e-4)
    assert free["recovered"] and free["gain"] == pytest.approx(20 * np.log10(0.25 / 0.04), abs=1e-3)
    assert bound["recovered"] and bound["gain"] == pytest.approx(20 * np.log10(0.05 / 0.04), abs=1e-3)
    hardly = scored(tmp_path, Reconstruction(TRUTH * 0.91 + 0.045, unguided=torch.cat([FAR, NEAR])))
    assert not hardly["recovered"] and 0 < hardly["gain"] < 1  # 26.9 dB, closer by 0.9 dB only
    assert scored(tmp_path, Reconstruction(TRUTH * 0.91 + 0.045))["recovered"]
    assert "floor_unguided" not in scored(tmp_path, Reconstruction(close))
    assert "floor_unguided" not in scored(tmp_path, Reconstruction(close, unguided=torch.zeros(3, 1, 4, 4)))


def test_such_guesses_come_through_the_queue(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue")
    queue.put(job())
    queue.solve(job(), solved(job(), [Reconstruction(TRUTH, 0.5, unguided=FAR.double()), None], 1.0))
    result = queue.solution(job())
    assert result is not None and result.reconstructions[0] is not None
    unguided = result.reconstructions[0].unguided
    assert unguided is not None and torch.equal(unguided, FAR) and unguided.dtype == torch.float32
