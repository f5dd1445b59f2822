"""Attack on the gradient of one batch: python attack.py. Needs no Flower, no Ray and no run.

Replace `network` and `batch` by your own, and `gradient` by the update that leaves your machine.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.audit.measures.metrics import psnr
from flfw.audit.measures.recovery import assign
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.matching import cosine_distance
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.inputs import InputSpec

INPUTS = InputSpec.from_constants((1, 8, 8), mean=(0.3,), std=(0.4,))  # (x - 0.3) / 0.4, for x in [0, 1]


def network() -> nn.Module:
    """Build a module that returns class scores (B, classes) for normalised inputs (B, ...)."""
    hidden = [nn.Conv2d(1, 12, 3, padding=1), nn.Sigmoid(), nn.Conv2d(12, 12, 3, padding=1), nn.Sigmoid()]
    return nn.Sequential(*hidden, nn.Flatten(), nn.Linear(12 * 64, 10))


def batch() -> tuple[Tensor, Tensor]:
    """Return raw inputs (B, ...) in [0, 1] and labels (B,)."""
    digits = load_digits()
    return torch.tensor(digits.images[:2, None] / 16).float(), torch.tensor(digits.target[:2])


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Compute the gradient that is sent, by the names of the parameters."""
    loss = cross_entropy(model(INPUTS.normalise(x)), y)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def main(iterations: int = 300) -> list[float]:
    """Attack, and print the PSNR of each image in dB."""
    torch.manual_seed(0)
    model, (x, y) = network(), batch()
    sent = gradient(model, x, y)

    # The attacker holds the model, the gradient that was sent and the labels.
    victim = PlainVictim(model, known=model.state_dict(), shared=("*",), inputs=INPUTS)
    target = SearchTarget(sent, y, torch.Generator().manual_seed(1))
    recipe = SearchConfig(
        cosine_distance, AdamSearch(iterations, lr=0.1, signed=True), weighted((1e-6, total_variation))
    )
    (result,) = invert(victim, [target], recipe)

    guesses = result.samples.numpy()
    order = assign(x.numpy(), guesses)  # a gradient does not say which image came first
    values = [psnr(true, guess) for true, guess in zip(x.numpy(), guesses[order], strict=True)]
    shown = ", ".join(f"image {i}: {db:.1f} dB" for i, db in enumerate(values))
    print(f"cosine distance {result.matching_loss:.1e}; {shown}")
    return values


if __name__ == "__main__":
    main()
