"""What one update of HyperFL gives away: ``python -m benchmarks.hyperfl_reading [--json]``.

A client of the paper trains (CNN 1 on Fashion-MNIST from $FLFW_DATA, else random pixels; batches of 50; momentum 0.5,
weight decay 5e-4; an epoch on its classifier first), and sends its hypernetwork. From that update and the hypernetwork
it was sent, weight decay is taken out and the rest is read as one gradient
(`flfw.inversion.closed_form.shared_gradient`). Printed are, by the steps it took on the hypernetwork: how far the
embedding and the extractor that were read off are from the client's own before training, over their lengths; how far
the extractor moved in training, to compare with; and the share of hidden units that are 0. The last line of the output
is one JSON object.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks import output
from benchmarks.hyperfl import CASES, client, images
from clients.hyperfl import HyperFLClient
from flfw import nets
from flfw.inversion.closed_form.shared_gradient import read, without_decay

_RUNS = {1: (50, 1), 4: (200, 1), 12: (600, 1), 60: (600, 5)}  # steps: images and epochs


def error(found: Tensor, expected: Tensor) -> float:
    """Over the expected one's length."""
    return float((found - expected).norm() / expected.norm())


def reading(count: int, epochs: int) -> dict[str, float | None]:
    """What is read off one update."""
    made = client(CASES["cnn1"], "hyperfl", count=count, epochs=epochs)
    assert isinstance(made, HyperFLClient)
    before = {n: v.clone() for n, v in nets.tensors(made.model).items() if n.startswith("hypernet.")}
    embedding, extractor = made.net.embedding.detach().clone(), _flat(made.net.extractor_weights())
    made.train()
    after = {n: v for n, v in nets.tensors(made.model).items() if n.startswith("hypernet.")}
    found = read(made.net.hypernet.targets, before, without_decay(before, after))
    with torch.no_grad():
        dead = float((made.net.hypernet.hidden_units(made.net.embedding) == 0).float().mean())
    return {
        "embedding": None if found.embedding is None else error(found.embedding, embedding),
        "extractor": error(_flat(found.weights), extractor),
        "extractor_moved": error(_flat(made.net.extractor_weights()), extractor),
        "dead": dead,
    }


def _flat(tensors: nets.Tensors) -> Tensor:
    return torch.cat([value.detach().flatten() for value in tensors.values()])


def main() -> None:
    """Train, read and print."""
    asked = output.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    found = {str(steps): reading(*run) for steps, run in _RUNS.items()}
    lines = [f"{images(CASES['cnn1']).name}: error of what one update gives away, by the local steps behind it"]
    lines.append("steps  embedding  extractor  (moved by)  dead units")
    for steps, row in found.items():
        embedding = "not read" if row["embedding"] is None else f"{row['embedding']:.1e}"
        more = f"{row['extractor']:9.1e}  {row['extractor_moved']:10.2f}  {row['dead']:10.0%}"
        lines.append(f"{steps:>5}  {embedding:>9}  {more}")
    output.say({"reading": found, "images": images(CASES["cnn1"]).name}, lines, only_json=asked.json)


if __name__ == "__main__":
    main()
