"""Audit of a run by its canaries: scores from the updates at the server, and the lower bound that follows.

The auditor is the strongest adversary of a claim. It knows every client's data, the canaries among them, and sees each
W_t that is sent and each W_k that comes back. It does not know the coins. Let G hold the clipped gradients of a
client's n canaries at W_t, as rows. Let y be (W_t - W_k) / lr, minus the expected contribution of the client's other
examples and of half of each canary. If the gradients of all steps stay near those at W_t, y is a sum over the canaries
of +-a/2 times the row, plus the noise of all steps, of deviation s. The coins are estimated from y by

    a (a^2/4 G G^T + s^2 I)^-1 G y

This is the linear estimate of least mean square error, up to a factor. It separates the canaries from each other. With
few canaries, or much noise, it is the plain inner product a G y / s^2. A canary's score is the sum over the rounds of
its client.

The bound from guesses does not depend on these assumptions. For any scores, a guess from them is right no more often
than epsilon allows, since the coins are fair and the scores do not use them. Poor scores only make the bound small.

The mean difference of the scores is a far sharper bound if they are independent of each other, see
`flfw.privacy.lower_bound`. They are nearly so: a score is a linear function of y, that is of Gaussian noise and of
many coins. It does not matter that canaries are told unequally well. If row i of W makes score i, canary i moves it by
at most mu s |w_i|, and the spread is at least s times the root mean square of |w_i|. What all scores have in common
moves both means alike.
"""

from collections.abc import Sequence
from math import ceil, inf, sqrt
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from flfw.data.canaries import Canaries
from flfw.dp.noise_residual import WHOLE, ClippedGradients, ResidualTest, is_testable
from flfw.dp.settings import DPSettings, DPSGDSettings
from flfw.errors import InputError
from flfw.files.tensor_names import matches
from flfw.nets.net import Tensors
from flfw.nets.training.devices import one_thread
from flfw.nets.training.optimisers import LocalTraining, PersistentTraining
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.lower_bound import (
    correct_guesses,
    gaussian_lower_bound,
    lower_bound,
    shift_of,
    standardised_mean_difference,
)
from flfw.privacy.mechanism import NO_OTHERS, GaussianEvent, Mechanism, Others
from flfw.privacy.rounding import at_least, at_most
from flfw.rng import initialising
from flfw.server.aggregation import Update
from flfw.server.central import sends_one_model
from flfw.server.strategy import FederatedStrategy
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task

CONFIDENCE = 0.95
GUESSED = (0.5, 0.1, 0.03, 0.01)
"""Shares of the canaries that are guessed, half of them at either end of the scores, fixed before any run. Each is a
test of its own at its share of the error probability, so that the best of them still has the confidence."""

ASSUMPTION = (
    "A canary's score is independent of the others' scores and coins, as far as the variance of the mean difference "
    "goes. It is so for linear scores of Gaussian noise if the canaries' gradients span many dimensions. The interval "
    "is exact for normal scores, and otherwise right for many canaries."
)
"""What ``mean_difference`` rests on, beside the claim of a Gaussian mechanism."""

_AT_ONCE = 20_000_000  # numbers in the gradients of the canaries that are separated together
_LEAST_NOISE = 1e-2  # relative to a canary's share in y, where no noise is added: the effect of steps away from W_t


@final
class CanaryScorer:
    """Scorer of canaries, by the updates that a server receives.

    Args:
        plan: of the run's clients, whose method sends its whole model to every client, and gets it back; for noisy
            steps, clipping and noise are taken into account.
        task: with canaries.

    Attributes:
        model: network of the run, at its first weights.
        gradients: clipped gradients of the task's examples.
        scores: (M,) float64, the higher, the likelier the canary was in the training data.
        residual: test of the noise itself; None: not of such rounds. Unlike the scores it uses the coins.
    """

    def __init__(self, plan: ClientPlan, task: Task) -> None:
        assert task.canaries is not None, "the experiment asks for canaries"
        self._local, self._task, self._canaries, self._settings = plan.local, task, task.canaries, plan.settings
        with initialising(plan.seed, "model"):
            self.model = plan.method.build_model(task.build_net(), plan.settings).eval()
        self.gradients = ClippedGradients(task, self.model, plan.settings)
        self.scores = torch.zeros(len(self._canaries.indices), dtype=torch.float64)
        tested = is_testable(plan, task, self.model)
        self.residual = ResidualTest(plan.local, task, self.gradients, plan.settings) if tested else None

    def __call__(self, sent: Tensors, update: Update) -> None:
        """Add to the scores of a client's canaries.

        Args:
            sent: W_t, by name.
            update: the client's W_k. Its number of examples is not used: no claim covers it.
        """
        indices = np.flatnonzero(self._canaries.holders == update.partition)
        with one_thread():  # a resumed run must compute the same scores
            if len(indices):
                self._add(sent, update, indices)
            if self.residual:
                self.residual(sent, update)

    def restore(self, scores: Tensor, noise: Tensor | None) -> None:
        """Go on from the scores, and the memory of the test of the noise, that a checkpoint holds."""
        self.scores = scores
        if self.residual and noise is not None:
            self.residual.noise.state = noise

    @property
    def noise(self) -> Tensor | None:
        """Memory of the test of the noise, for a checkpoint."""
        return self.residual.noise.state if self.residual else None

    @property
    def noise_found(self) -> dict[str, float | None] | None:
        """Outcome of the test of the noise, as in result.json; None: nothing was tested."""
        return result._asdict() if self.residual and (result := self.residual.noise.result()) else None

    def _add(self, sent: Tensors, update: Update, positions: np.ndarray) -> None:
        indices = self._canaries.indices[positions]
        others = np.setdiff1d(self._task.split.train[update.partition], indices)
        weight, steps, std = self._steps(len(others) + len(positions) / 2)
        names, row_of, rows_of = self.gradients.names, self.gradients.row_of, self.gradients.rows
        change = row_of({n: (sent[n] - update.tensors[n]) / self._local.lr for n in names})
        change -= steps * getattr(self._settings, "weight_decay", 0.0) * row_of(sent)
        change /= self._gain(steps)
        examples = max(1, _AT_ONCE // len(change))
        for rows in rows_of(sent, others, examples):
            change -= weight * rows.sum(0)
        blocks = list(rows_of(sent, indices, examples)) if len(positions) <= examples else []
        for rows in blocks or rows_of(sent, indices, examples):
            change -= weight / 2 * rows.sum(0)
        for start, rows in enumerate(blocks or rows_of(sent, indices, examples)):
            block = positions[start * examples : (start + 1) * examples]
            self.scores[block] += _detected(rows, change, weight, std)

    def _steps(self, examples: float) -> tuple[float, int, float]:
        """Compute a, the number of steps, and s, for a client's round with about this many examples."""
        local, settings = self._local, self._settings
        steps = local.local_epochs * ceil(examples / local.batch_size)
        if not isinstance(settings, DPSGDSettings):
            return local.local_epochs / min(local.batch_size, examples), steps, 0.0
        divisor = min(local.batch_size, examples)
        noise = settings.clip * settings.sum_noise_multiplier(local.batch_size)
        return local.local_epochs / divisor, steps, sqrt(steps) * noise / divisor

    def _gain(self, steps: int) -> float:
        """Compute how often a step's gradient counts by momentum, on average over the steps."""
        settings = self._settings
        plain = not isinstance(settings, LocalTraining) or settings.optimiser == "adam"
        m = 0.0 if plain else settings.momentum
        return sum((1 - m**left) / (1 - m) for left in range(1, steps + 1)) / steps


def _detected(rows: Tensor, change: Tensor, weight: float, std: float) -> Tensor:
    """Compute scores (n,) of n canaries from their gradients and a change, float64; zeros if the run has diverged."""
    products, along = (rows @ rows.T).double(), (rows @ change).double()
    if not (products.isfinite().all() and along.isfinite().all()):
        return torch.zeros_like(along)
    share = weight**2 / 4 * float(products.diagonal().mean())
    noise = max(std**2, _LEAST_NOISE * share, torch.finfo(torch.float32).tiny)
    inside = products.mul_(weight**2 / 4)
    inside.diagonal().add_(noise)
    return weight * torch.cholesky_solve(along.unsqueeze(1), torch.linalg.cholesky(inside)).squeeze(1)


def lower(scores: np.ndarray, canaries: Canaries, delta: float) -> dict[str, Any]:
    """Return a run's lower bound, as in result.json; see `flfw.privacy.lower_bound`.

    Args:
        scores: (M,) the higher, the likelier a canary was in the training data.
        canaries: with the coins, which are used here for the first time.
        delta: the delta of the claimed epsilon.

    Returns:
        ``epsilon``, ``confidence``, ``canaries``, ``guesses``, ``correct`` and ``delta``. It holds for every algorithm.
        ``gaussian`` is the sharper bound for a Gaussian mechanism: ``mu`` with its own guesses, and the ``epsilon`` of
        such a mechanism. ``mean_difference`` is by far the sharpest, but needs its ``assumption``: ``mu``, ``epsilon``
        and the ``estimate``, in standard deviations; None: there is none. Each of the bounds by itself has the
        confidence.
    """
    count, each = len(scores), 1 - (1 - CONFIDENCE) / len(GUESSED)
    bounds, shifts = [], []
    for share in GUESSED:
        guesses = min(count // 2 * 2, 2 * ceil(share * count / 2))
        correct = correct_guesses(scores, canaries.included, guesses)
        bounds.append((lower_bound(count, guesses, correct, delta, each), guesses, correct))
        shifts.append((gaussian_lower_bound(count, guesses, correct, each), guesses, correct))
    epsilon, guesses, correct = max(bounds, key=_first)
    summary = {"epsilon": epsilon, "confidence": CONFIDENCE, "canaries": count, "guesses": guesses, "correct": correct}
    mu, guesses, correct = max(shifts, key=_first)
    return summary | {
        "delta": delta,
        "gaussian": {"mu": mu, "epsilon": _shifted(mu, delta), "guesses": guesses, "correct": correct},
        "mean_difference": _mean_difference(scores, canaries.included, delta),
    }


def _mean_difference(scores: np.ndarray, included: np.ndarray, delta: float) -> dict[str, Any]:
    difference = standardised_mean_difference(scores, included, CONFIDENCE)
    mu = shift_of(difference.low, len(scores), CONFIDENCE) if difference else 0.0
    estimate = difference.estimate if difference else None
    return {"mu": mu, "estimate": estimate, "epsilon": _shifted(mu, delta), "assumption": ASSUMPTION}


def _shifted(mu: float, delta: float) -> float:
    """Compute the epsilon of one Gaussian mechanism that shifts a standard normal variable by ``mu``."""
    return compute_epsilon((GaussianEvent(1 / mu, 1.0, 1),), delta).epsilon if mu else 0.0


def _first(bound: tuple[float, int, int]) -> float:
    return bound[0]


def claimed_shift(mechanism: Mechanism | None, others: Others = NO_OTHERS) -> float | None:
    """Return the mu of a claim on a pure Gaussian mechanism; None for any other, as with sampling counted."""
    if mechanism is None or mechanism.clipped != "example" or mechanism.amplified:
        return None
    phase = mechanism.phase(others=others)
    return sqrt(phase.steps / phase.noise_multiplier**2) if phase.noise_multiplier else None


def beside_the_claims(
    entries: Sequence[dict[str, Any]], bound: dict[str, Any], delta: float, rounds: int, shift: float | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return ``privacy`` of result.json with the lower bound, and notes on it.

    Args:
        entries: the claims; if none is about an example against the server, one is added that claims nothing.
        bound: from `lower`.
        delta: of the run.
        rounds: of the run.
        shift: from `claimed_shift`.
    """
    entries = list(entries)
    if not any(map(_compared, entries)):
        why = "The method claims no privacy of an example against the server."
        description = {"unit": "example", "adversary": "server", "epsilon": "inf", "delta": delta}
        description |= {"accountant": "none", "assumptions": [why], "rounds": rounds}
        entries.append({**description, "max_guess_accuracy": 1.0, "accounting": "exact"})
    notes = [
        f"{bound['canaries']} training examples were canaries: they got wrong labels, and a coin for each decided "
        "whether its client had it at all. Accuracies are those of such a training."
    ]
    guessed = "from {correct} right ones of {guesses} guesses"
    between = "from mean scores that are {estimate:.3g} standard deviations apart"
    for index, entry in enumerate(entries):
        if not _compared(entry):
            continue
        entries[index] = {**entry, "lower_bound": bound}
        claimed = inf if entry["epsilon"] == "inf" else entry["epsilon"]
        if bound["epsilon"] > claimed:
            text = f"epsilon {at_most(claimed)} is claimed, and it is at least {at_least(bound['epsilon'])}"
            notes.append(_violation(text, guessed.format(**bound)))
        for sharper, source in (("gaussian", guessed), ("mean_difference", between)):
            sharp_bound = bound[sharper]
            if shift is not None and sharp_bound["mu"] > shift:
                text = f"a Gaussian mechanism of mu {at_most(shift)} (epsilon {at_most(claimed)}) is claimed, and mu "
                text += f"is at least {at_least(sharp_bound['mu'])} (epsilon {at_least(sharp_bound['epsilon'])})"
                notes.append(_violation(text, source.format(**sharp_bound)))
        if (noise := bound.get("residual")) and noise["p"] < WHOLE:
            measured = "measured entry by entry it is {scale:.4g} of its scale, between {low:.4g} and {high:.4g}"
            text = f"THE NOISE IS NOT AS CLAIMED: {measured.format(**noise)}, and noise as claimed differs as much from"
            notes.append(f"{text} independent normal numbers with probability {noise['p']:.2g} at most.")
        if noise and noise["alarm"]:
            enough = "a test after every update had evidence enough after"
            notes.append(f"THE NOISE IS NOT AS CLAIMED: {enough} {noise['alarm']}.")
    return entries, notes


def _violation(text: str, source: str) -> str:
    confident = f"with {CONFIDENCE:.0%} confidence, {source}"
    return f"THE CLAIM IS VIOLATED: {text}, {confident}. Less noise is added, or less is clipped, than is said."


def _compared(entry: dict[str, Any]) -> bool:
    """Return whether canaries test the claim of an entry."""
    return entry["unit"] == "example" and entry["adversary"] == "server" and entry["accounting"] == "exact"


def refuse_canaries(method: str, cls: type[FederatedStrategy], chosen: Any, model: nn.Module) -> None:
    """Refuse canaries if the server lacks data that a client's steps depend on, or if whole updates are clipped."""
    if isinstance(chosen, DPSettings) and chosen.clips_updates:
        clips = "Expected a method that clips the gradients of single examples, or nothing, for --expert canaries"
        raise InputError(f"{clips}; got method={method}, which clips whole updates.")
    if isinstance(chosen, PersistentTraining) and chosen.lasting:
        raise InputError(
            "Expected lasting=false for --expert canaries, as only the client knows where its optimiser goes on."
        )
    sharing = cls.shared(model, chosen)
    shared = all(matches(name, sharing.downloads) and matches(name, sharing.uploads) for name in model.state_dict())
    if not shared or not sends_one_model(cls):
        whole = (
            "Expected a method that sends the whole model to every client and gets it all back for --expert canaries"
        )
        raise InputError(f"{whole}; got method={method}.")
