"""Against precode: compute the noise that the bottleneck's gradients give away; else leave its layers out.

Paper       Scheliga, Maeder and Seeland, "Combining Variational Modeling with Partial Gradient Perturbation to Prevent
            Deep Gradient Leakage", arXiv 2208.04767, who leave out the gradients of the bottleneck and of all layers
            behind it. The computation of the noise is our own.
Knows       the network, with the bottleneck's place.
Does        For one example, the decoder's gradient gives z, and the encoder's gives h and so mu and s: the noise is
            (z - mu) / s to rounding. It is put into the attacker's network, whose gradient then has no randomness.
            For several examples or steps, whose gradients are sums, or behind a stage that changes entries, the noise
            is taken as 0, and the gradients of the bottleneck and of the layers behind it are left out on both sides.
Departures  1. For several examples the noise could be searched for with the images. It is not. Nor is it computed
               from the entries that pruning left, which would be possible for one example.
"""

from collections.abc import Iterable, Sequence
from typing import final

import torch

from flfw.inversion.client_models.operator import TRAITS, Operator, Trait
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.nets.bottleneck import BOTTLENECK, draws
from flfw.nets.net import Tensors
from flfw.nets.training.local_steps import LocalSteps

_COMPARED = "compared"


@final
class PrecodeAdaptation(Operator):
    """Noise of the bottleneck, as constants of the attacker's network."""

    @property
    def requires(self) -> frozenset[Trait]:
        """The scale: a bound takes the norm of all layers, and those whose rank is not one are left out here."""
        return frozenset(("scale",))

    def victim(self, plain: PlainVictim, received: Tensors, local: LocalSteps | None) -> VictimModel:
        """Build the client whose bottleneck has the noise read off one step's gradient."""
        return super().victim(plain.reading(self._noise) if local is None else plain, received, local)

    def unmodelled_part(
        self, batch: int, steps: int, spared: frozenset[Trait] = TRAITS, sent: Sequence[str] | None = None
    ) -> str:
        """Name the noise, where it cannot be computed: of several examples or steps, of changed or unsent gradients."""
        private = sent is not None and _prefix(sent) is None
        computed = batch == steps == 1 and "rank" in spared and not private
        unsent = ": nothing of it is sent" * private
        return "" if computed else f"the bottleneck's noise, which it takes as 0{unsent}"

    def read(self, sent: Tensors) -> Tensors:
        """Read ``compared``: 1 if the bottleneck's layers are compared, as of one example, else 0."""
        one = self._one_example(sent)
        return {_COMPARED: torch.tensor(float(one), device=next(iter(sent.values())).device)}

    def undo(self, sent: Tensors) -> Tensors:
        """Leave out the layers from the bottleneck on, unless they are one example's."""
        if self._one_example(sent):
            return sent
        return {name: value * (name not in _behind(sent)) for name, value in sent.items()}

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Leave out the same layers of a trial."""
        behind = _behind(simulated)
        return {name: value * constants[_COMPARED] if name in behind else value for name, value in simulated.items()}

    def _one_example(self, sent: Tensors) -> bool:
        prefix = _prefix(sent)
        return prefix is not None and draws(sent, sent, prefix, 0.0) is not None

    def _noise(self, sent: Tensors, known: Tensors) -> Tensors:
        prefix = _prefix(sent)
        if prefix is None:
            return {}
        noise = draws(sent, known, prefix, float(self.settings["scale"]))
        width = sent[f"{prefix}decoder.weight"].shape[1]
        return {f"{prefix}noise": sent[f"{prefix}decoder.weight"].new_zeros(1, width) if noise is None else noise}


def _prefix(sent: Iterable[str]) -> str | None:
    """Name the bottleneck, with a dot at its end; None: it is not sent."""
    end = f"{BOTTLENECK}.decoder.weight"
    return next((name.removesuffix("decoder.weight") for name in sent if name.endswith(end)), None)


def _behind(sent: Tensors) -> set[str]:
    """Name the tensors of the bottleneck and of the layers behind it, in the network's order."""
    names, prefix = list(sent), _prefix(sent)
    first = next((i for i, name in enumerate(names) if prefix and name.startswith(prefix)), len(names))
    return set(names[first:])
