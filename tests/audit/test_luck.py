"""Luck: results that saw nothing are no reconstructions, however few the messages, and whatever their sizes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from flfw.audit.measures import recovery
from flfw.audit.measures.exchange import Fitting, PublicTruths, among_public, exchange, luck, nearest
from flfw.audit.measures.metrics import psnr
from flfw.audit.measures.permutations import GuessedBatch
from flfw.audit.measures.public import PublicData
from flfw.audit.reconstruction.scorer import Scorer, ScoreRow
from flfw.recording.observation import Reconstruction, Truth
from flfw.rng import numpy_generator
from tests.audit.test_queue import EXCHANGES, job


def rows_of(rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
    return rng.random((count, columns)).astype(np.float32)


def public_of(rng: np.random.Generator, count: int, columns: int) -> PublicData:
    return PublicData.from_arrays(rows_of(rng, count, columns), np.zeros(count, np.int64))


def batch_of(truth: np.ndarray, guesses: np.ndarray) -> GuessedBatch:
    return GuessedBatch(truth, guesses, np.zeros(len(truth), np.int64), [np.empty(0, np.intp)] * len(truth))


def fit_of(batches: Sequence[GuessedBatch], public: PublicData) -> Callable[[int, int], Fitting]:
    floors = numpy_generator(0, "floors")

    def fit(truth: int, result: int) -> Fitting:
        there, guesses = batches[truth].truth, batches[result].guesses
        pairs = list(zip(there, guesses[recovery.assign(there, guesses)], strict=True))
        count = sum(
            recovery.recovered(x, g, public.floors(x, 0, floors), public.binary, public.guessable(x, 0))
            for x, g in pairs
        )
        close = [psnr(x, g) for x, g in pairs]
        return Fitting(count, float(np.mean(close)), max(close))

    return fit


@pytest.mark.slow
def test_rare_luck_of_rows_passes_as_rarely_as_said() -> None:
    """Of 4 results that saw nothing, one fits its row of two columns, and no other one, in one of some 20 cases."""
    draw, before, now = numpy_generator(0, "rows"), 0, 0
    cases, messages = 200, 4
    for _ in range(cases):
        public = public_of(draw, 60, 2)
        batches = [batch_of(rows_of(draw, 1, 2), rows_of(draw, 1, 2)) for _ in range(messages)]
        fit = fit_of(batches, public)
        their_own = [fit(i, i) for i in range(messages)]
        if any(one.recovered for one in their_own):
            best = max(one.best for one in their_own)
            alone, held = exchange(messages, fit, draw), luck(batches, fit, public, draw)
            before += alone.p <= 0.01 or best >= alone.beyond
            now += held.p <= 0.01 or best >= held.beyond
    assert before >= cases * 0.02  # that no other of 4 results recovers anything is too little
    assert now <= cases * 0.02


@pytest.mark.parametrize("messages", [1, 2, 8])
def test_exact_results_are_no_luck_however_few(messages: int) -> None:
    draw = numpy_generator(1, "exact")
    public = public_of(draw, 100, 6)
    truths = [rows_of(draw, 1, 6) for _ in range(messages)]
    held = among_public([batch_of(x, x) for x in truths], public, messages, draw)
    assert held.p <= 0.01 or held.beyond <= 100


def test_a_public_example_is_recovered_where_a_truth_of_its_numbers_would_be() -> None:
    """Of two columns, by hand: the nearest other public row is 0.3 off in each column, 10.5 dB away."""
    public = PublicData.from_arrays(np.array([[0.2, 0.2], [0.5, 0.5], [0.9, 0.9]], np.float32), np.array([0, 0, 0]))
    truths = PublicTruths(public, numpy_generator(0, "draws"))
    assert truths.recovered(0, np.array([0.24, 0.24], np.float32))  # each within 0.05
    assert truths.recovered(0, np.array([0.28, 0.2], np.float32))  # a deviation of 0.06
    assert not truths.recovered(0, np.array([0.4, 0.4], np.float32))  # of 0.2
    assert sorted(truths.drawn(np.zeros(3, np.int64)).tolist()) == [0, 1, 2]
    assert set(truths.drawn(np.full(4, 7)).tolist()) <= {0, 1, 2}  # a class without public examples


def test_one_public_example_excludes_no_luck() -> None:
    public = PublicData.from_arrays(np.array([[0.5]], np.float32), np.array([0]))
    x = np.array([[0.1]], np.float32)
    assert among_public([batch_of(x, x)], public, 1, numpy_generator(0, "draws")).p == 1.0


def uploads(folder: Path, exact: bool, sizes: tuple[int, int]) -> list[ScoreRow]:
    """Score uploads on rows of three columns; the attack gives the rows themselves or saw nothing."""
    draw = numpy_generator(2, "uploads")
    scorer, rows = Scorer(public_of(draw, 200, 3), folder / "truth", folder, 0, None), list[ScoreRow]()
    for exchange_, size in zip(EXCHANGES, sizes, strict=True):
        x, guesses = (torch.from_numpy(rows_of(draw, size, 3)) for _ in range(2))
        name = f"upload-{size}-{exchange_.slot}"
        Truth(x, torch.zeros(size, dtype=torch.int64), torch.arange(size)).write(folder / "truth", name)
        given = Reconstruction(x if exact else guesses)
        rows += scorer.rows(job(shape=(3,)), exchange_, {"probe_slot": exchange_.slot}, (name,), given)
    return scorer.controlled(job(shape=(3,)), rows)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(40, 40), (40, 41)])
def test_uploads_that_nobody_read_leak_nothing_whatever_their_sizes(tmp_path: Path, sizes: tuple[int, int]) -> None:
    rows = uploads(tmp_path, False, sizes)
    assert any(row["chance_match"] for row in rows) and not any(row["recovered"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(40, 40), (40, 41)])
def test_uploads_that_were_read_leak_whatever_their_sizes(tmp_path: Path, sizes: tuple[int, int]) -> None:
    rows = uploads(tmp_path, True, sizes)
    assert sum(row["recovered"] for row in rows) > 60 and not any(row["chance_match"] for row in rows)


@pytest.mark.parametrize("shape", [(3,), (1, 4, 5)])
def test_the_nearest_guess_is_the_one_of_the_highest_psnr(shape: tuple[int, ...]) -> None:
    draw = numpy_generator(3, "near")
    samples, guesses = (draw.random((count, *shape)).astype(np.float32) for count in (6, 9))
    guesses[0], guesses[1] = samples[2], np.nan_to_num(guesses[1]) + 2  # an exact one, and one beyond the range
    each = [max(min(100.0, psnr(x, guess)) for guess in guesses) for x in samples]
    np.testing.assert_allclose(nearest(samples, guesses), each, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_large_uploads_of_images_are_held_against_public_ones_in_seconds(exact: bool) -> None:
    """Of 600 images of two pixels, results that saw nothing match public ones as well; of 100 pixels none do."""
    draw, size = numpy_generator(4, "large"), 10 if exact else 1
    public = PublicData.from_arrays(draw.random((300, 1, size, 2 * size)).astype(np.float32), np.zeros(300, np.int64))
    x, guesses = (draw.random((600, 1, size, 2 * size)).astype(np.float32) for _ in range(2))
    held = among_public([batch_of(x, x if exact else guesses)], public, 1, draw)
    assert held.p <= 0.01 if exact else held.p > 0.1
