"""Cache of the features of a frozen network, by the numbers of each input."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor


@final
class FeatureCache:
    """Cache of features, of which those unused for longest are forgotten.

    Features are computed for one input at a time. So they do not depend on the batch, and a run has the same bits
    whichever of them a process had computed before.

    Args:
        maximum: bytes of features to remember, >= 1.
    """

    def __init__(self, maximum: int) -> None:
        self._most, self._held = maximum, 0
        self._features: OrderedDict[bytes, Tensor] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, object]) -> FeatureCache:
        """Return the cache itself: a copied network has the same frozen body."""
        return self

    def features(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return features (B, d) of inputs (B, ...) on the inputs' device.

        Args:
            x: the inputs.
            compute: function from inputs (1, ...) to features (1, d).
        """
        if not len(x):
            return compute(x)
        return torch.stack([self._one(one, compute) for one in x]).to(x.device)

    def _one(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        numbers = hashlib.blake2b(x.detach().cpu().numpy().tobytes(), digest_size=32).digest()
        # With another number of threads a machine may round otherwise.
        key = numbers + f"{x.dtype} {tuple(x.shape)} {x.device.type} {torch.get_num_threads()}".encode()
        if key in self._features:
            self._features.move_to_end(key)
            return self._features[key]
        made = compute(x[None])[0].cpu()
        self._features[key] = made
        self._held += made.nbytes
        while self._held > self._most and len(self._features) > 1:
            self._held -= self._features.popitem(last=False)[1].nbytes
        return made
