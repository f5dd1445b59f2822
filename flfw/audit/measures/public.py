"""Public data that an attacker may hold, and the scores of guesses from these data alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from flfw.audit.measures.metrics import is_text, psnr, squared_distances
from flfw.audit.measures.recovery import FEATURE_TOLERANCE, column_matches, exact_match
from flfw.data.files.columns import TableSchema
from flfw.errors import require

_ROWS = 64  # rows that are compared in float64 at a time
_COLUMNS = 16  # columns that are compared at a time; most rows differ in the first ones


@final
@dataclass(frozen=True, eq=False)
class PublicData:
    """Public data that an attacker may hold; no example of them is a victim.

    `PublicData.from_arrays` checks its arguments; the constructor does not.

    Attributes:
        samples: (N, ...) raw inputs in [0, 1], images (N, C, H, W) or rows (N, d); or texts (N, T) of uint8 tokens.
        labels: (N,) classes; of a regression the bands of the targets.
        plan: the columns of a table, whose cells are of one feature or of several; None: not known.
    """

    samples: np.ndarray
    labels: np.ndarray
    plan: TableSchema | None = None

    @classmethod
    def from_arrays(
        cls, samples: np.ndarray, labels: np.ndarray, text: bool = False, schema: TableSchema | None = None
    ) -> PublicData:
        """Check the arrays and return them as public data; of ``text`` the inputs are kept as its tokens.

        Raises:
            InputError: no examples, another number of labels than of examples, or values outside [0, 1] or not finite.
        """
        require(len(samples) > 0, "at least one public example", examples=len(samples))
        require(
            labels.shape == (len(samples),), "one label for each public example", labels=labels.shape, of=len(samples)
        )
        low, high = float(samples.min()), float(samples.max())  # not a number if one of them is not
        require(low >= 0 and high <= 1, "public inputs within [0, 1]", lowest=low, highest=high)
        return cls(_tokens(samples) if text else samples, labels, schema)

    def cells(self, matches: np.ndarray) -> np.ndarray:
        """Return the recovered cells (n, C) of rows whose recovered features (n, d) are given; without a plan these."""
        return matches if self.plan is None else self.plan.cells(matches)

    def compared(self, x: np.ndarray) -> np.ndarray:
        """Return raw inputs in [0, 1] in the form in which they are compared: that of ``samples``."""
        return _tokens(x) if is_text(self.samples) else x

    def floors(self, truth: np.ndarray, label: int, rng: np.random.Generator) -> dict[str, float]:
        """Compute the PSNR in dB of guesses made without the client's update.

        ``noise`` is uniform, ``grey`` is 0.5 everywhere, ``mean`` and ``class_mean`` are averages of the public data,
        ``random_public`` is one of their examples, and ``nearest_public`` is the closest one, chosen by an oracle: the
        best score of public data. A class without public examples has the mean of all.

        Of text there is no ``grey``; ``mean`` is the most usual token in every place, which is the guess from the
        frequencies of tokens alone, and ``class_mean`` has in each place the most usual one there in the class.

        Args:
            truth: one input of the public data's shape.
            label: its class.
            rng: draws the noise and the random example.
        """
        text = is_text(self.samples)
        noise = rng.integers(256, size=truth.shape) if text else rng.random(truth.shape)
        guesses = {
            "noise": noise,
            **({} if text else {"grey": np.full(truth.shape, 0.5)}),
            "mean": np.full(truth.shape, _most_usual(self.samples.ravel())) if text else self._mean,
            "class_mean": self.typical(label) if text else self._class_means.get(label, self._mean),
            "random_public": self.samples[rng.integers(len(self.samples))],
            "nearest_public": self.samples[self._nearest(truth)],
        }
        return {name: psnr(truth, guess) for name, guess in guesses.items()}

    def lookalike_indices(self, label: int, rng: np.random.Generator, maximum: int = 99) -> np.ndarray:
        """Draw the places (N,) in ``samples`` of random public examples of a class, each at most once.

        N is ``maximum`` or as many as there are. They are drawn at random, not as the nearest to the truth. Only then
        is the true example exchangeable with them: a guess without knowledge ranks it first with a probability of at
        most 1 / (N + 1); see `flfw.audit.measures.recovery.identification`.
        `flfw.audit.measures.identification` asks for places, because examples share look-alikes.

        Raises:
            InputError: ``maximum`` is below 0.
        """
        require(maximum >= 0, "0 <= most", most=maximum)
        same = np.flatnonzero(self.labels == label)
        return rng.choice(same, min(maximum, len(same)), replace=False)

    def guessable(self, truth: np.ndarray, label: int) -> bool:
        """Return whether an exact match of a row is no sign that the client's update was read.

        It is none where a public row, or the constant guess of the class (`typical`), matches every feature of the
        truth as `flfw.audit.measures.recovery.exact_match` counts. So neither a public row nor one that was slightly
        changed counts as a reconstruction. On UCI Adult, one of 10,000 public rows matches 25 % of the people.

        Guesses as good as real rows of other people still match by chance where batches are large, because each truth
        gets the best of many guesses: on Adult 0.02 % of the rows in batches of 8, 0.08 % of 32, 0.4 % of 128.

        Args:
            truth: (d,).
            label: its class.

        Raises:
            InputError: the inputs are images.

        >>> public = PublicData(np.array([[0.0, 0.3], [1.0, 0.9]]), np.array([0, 0]))
        >>> public.guessable(np.array([0.0, 0.34]), 0), public.guessable(np.array([0.0, 0.94]), 0)
        (True, False)
        """
        if any(exact_match(truth, guess, self.binary) for guess in (self.typical(label), self.usual(label))):
            return True
        near = np.arange(len(self.samples))
        for start in range(0, len(truth), _COLUMNS):
            part = slice(start, start + _COLUMNS)
            near = near[column_matches(truth[part], self.samples[near, part], self.binary[part]).all(1)]
        return bool(len(near))

    @cached_property
    def binary(self) -> np.ndarray:
        """Mask (d,) of the features of rows that are 0 or 1 in all public examples; of text, which has none, all False.

        A table's plan tells it: a number may be 0 or 1 in the few public rows that there are, and not in a client's.

        >>> PublicData(np.array([[0.0, 0.3], [1.0, 1.0]]), np.array([0, 0])).binary.tolist()
        [True, False]

        Raises:
            InputError: the inputs are images.
        """
        require(self.samples.ndim == 2, "rows of features (N, d)", shape=self.samples.shape)
        if is_text(self.samples):
            return np.zeros(self.samples.shape[1], bool)
        if self.plan is not None:
            return ~self.plan.scaled
        return ((self.samples == 0) | (self.samples == 1)).all(0)

    def typical(self, label: int | None = None) -> np.ndarray:
        """Return a constant guess (d,) for rows: the majority of a binary feature (1 in a tie), the median of others.

        With a table's plan it is, in place of the median, the number that is close enough to most rows. Of text: in
        each place the most usual token there.

        The share of features it matches is the floor of the attacks' share.

        Args:
            label: take the examples of this class only; all of them if it has none.

        >>> PublicData(np.array([[0.0, 0.3], [1.0, 0.4], [1.0, 0.9]]), np.array([0, 0, 1])).typical().tolist()
        [1.0, 0.4]

        Raises:
            InputError: the inputs are images.
        """
        return self._typical.get(label, self._typical[None])

    def usual(self, label: int) -> np.ndarray:
        """Return the constant guess (d,) that matches most cells of a class's rows; without a plan it is `typical`.

        A category is right only as a whole, so that its most frequent value is the guess also where it is no majority.
        Of a number it is the value that is close enough to most rows. The share of the cells that it matches is the
        floor of the attacks' share. A class without public rows has the guess for all.

        Args:
            label: the class.

        Raises:
            InputError: the inputs are images.
        """
        if self.plan is None:
            return self.typical(label)
        if label not in self._usual:
            same = self.labels == label
            rows = self.samples[same] if same.any() else self.samples
            guess = np.empty(self.samples.shape[1])
            for column, index in zip(self.plan.kept, self.plan.places, strict=True):
                guess[index] = _most_frequent(rows[:, index], column.is_scaled)
            self._usual[label] = guess
        return self._usual[label]

    @cached_property
    def _mean(self) -> np.ndarray:
        return self.samples.mean(0, dtype=np.float64)

    @cached_property
    def _class_means(self) -> dict[int, np.ndarray]:
        return {int(c): self.samples[self.labels == c].mean(0, dtype=np.float64) for c in np.unique(self.labels)}

    @cached_property
    def _typical(self) -> dict[int | None, np.ndarray]:
        groups = {None: self.samples} | {int(c): self.samples[self.labels == c] for c in np.unique(self.labels)}
        if is_text(self.samples):
            return {c: np.apply_along_axis(_most_usual, 0, x) for c, x in groups.items()}
        binary = self.binary
        typical = {c: np.where(binary, x.mean(0) >= 0.5, np.median(x, 0)) for c, x in groups.items()}
        if self.plan is not None:
            for c, x in groups.items():
                typical[c][~binary] = [_most_frequent(x[:, [index]], True)[0] for index in np.flatnonzero(~binary)]
        return typical

    @cached_property
    def _usual(self) -> dict[int, np.ndarray]:
        return {}  # filled class by class

    @cached_property
    def _flat(self) -> np.ndarray:
        return self.samples.reshape(len(self.samples), -1).astype(np.float32, copy=False)

    @cached_property
    def _squares(self) -> np.ndarray:
        flat = self.samples.reshape(len(self.samples), -1)
        return np.einsum("nd,nd->n", flat, flat, dtype=np.float64)

    def _nearest(self, truth: np.ndarray) -> int:
        """Return the index of the public example of least squares to the truth; the first of equals.

        A product in float32 selects all candidates, whatever the rounding, and float64 decides among them.
        """
        if is_text(truth):
            return int(squared_distances(self.samples, truth[None])[:, 0].argmin())
        flat = truth.reshape(-1).astype(np.float64)
        square = float(flat @ flat)
        rough = self._squares - 2.0 * (self._flat @ flat.astype(np.float32)) + square
        # A sum of d products is off by less than d eps |a| |b|, and rounding the factors adds 2 eps (Higham 2002, 3.1);
        # twice |a| |b| is at most |a|^2 + |b|^2.
        off = (len(flat) + 2) * float(np.finfo(np.float32).eps) * (self._squares + square)
        near = np.flatnonzero(rough - off <= (rough + off).min())
        exact = [self._distances(near[i : i + _ROWS], flat) for i in range(0, len(near), _ROWS)]
        return int(near[np.concatenate(exact).argmin()])

    def _distances(self, rows: np.ndarray, flat: np.ndarray) -> np.ndarray:
        return ((self.samples[rows].reshape(len(rows), -1).astype(np.float64) - flat) ** 2).sum(1)


def _tokens(x: np.ndarray) -> np.ndarray:
    """Return the bytes (..., T) of text in raw inputs (..., T): byte k is k / 255; other numbers are clamped first."""
    return np.rint(255 * np.clip(x, 0, 1)).astype(np.uint8)


def _most_usual(tokens: np.ndarray) -> int:
    """Return the most usual token of (N,); the least of equals."""
    return int(np.bincount(tokens).argmax())


def _most_frequent(cells: np.ndarray, scaled: bool) -> np.ndarray:
    """Return the features (k,) of a column that match most of its cells (N, k).

    Args:
        cells: its features.
        scaled: whether the first feature is a number, which is right within a tolerance.
    """
    values, times = np.unique(cells, axis=0, return_counts=True)
    if not scaled:
        return values[times.argmax()]
    missing = values[:, 1] == 1 if cells.shape[1] > 1 else np.zeros(len(values), bool)
    there, weights = values[~missing, 0].astype(np.float64), np.concatenate([[0], np.cumsum(times[~missing])])
    ends = np.searchsorted(there, there + 2 * FEATURE_TOLERANCE, side="right")
    near = weights[ends] - weights[:-1]  # rows from a value to the one that is still close to the middle of both
    if not len(near) or times[missing].sum() > near.max():
        return values[missing][0]
    best = np.zeros(cells.shape[1])
    best[0] = min(1.0, there[near.argmax()] + FEATURE_TOLERANCE)
    return best
