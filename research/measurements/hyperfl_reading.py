"""Leak of one update of HyperFL.

``python -m research.measurements.hyperfl_reading [--json] [--quick] [--only 1 4 12 60]``.

A client of the paper trains (CNN 1 on Fashion-MNIST from $FLFW_DATA, else random pixels; batches of 50; momentum 0.5,
weight decay 5e-4; an epoch on its classifier first), and sends its hypernetwork. Weight decay is taken out of this
update, with the hypernetwork that the server broadcast; the rest is read as one gradient
(`flfw.inversion.closed_form.linear`). For each number of local steps on the hypernetwork this prints: the
distance of the embedding and the extractor read off from the client's own before training, over their norms; the
distance that the extractor moved in training, for comparison; and the share of hidden units that are 0. The last line
of the output is one JSON object.
"""

import torch
from torch import Tensor

from benchmarks import output
from benchmarks.hyperfl import CASES, client, images
from flfw import nets
from flfw.clients.hyperfl import HyperFLClient
from flfw.inversion.closed_form.linear import read, without_decay

_RUNS = {"1": (50, 1), "4": (200, 1), "12": (600, 1), "60": (600, 5)}  # steps: images and epochs
PARTS = {
    "1": output.BenchmarkPart("a local step on 50 images", 2, 2),
    "4": output.BenchmarkPart("4 local steps on 200 images", 2, 2),
    "12": output.BenchmarkPart("12 local steps on 600 images", 2, 2),
    "60": output.BenchmarkPart("60 local steps, five epochs on 600 images", 5, 0),
}


def error(values: Tensor, expected: Tensor) -> float:
    """Return the distance from the expected values, over their norm."""
    return float((values - expected).norm() / expected.norm())


def reading(count: int, epochs: int) -> dict[str, float | None]:
    """Train a client and compare the reading of its update with its own tensors."""
    made = client(CASES["cnn1"], "hyperfl", count=count, epochs=epochs)
    assert isinstance(made, HyperFLClient)
    before = {n: v.clone() for n, v in nets.tensors(made.model).items() if n.startswith("hypernet.")}
    embedding, extractor = made.net.embedding.detach().clone(), _flat(made.net.extractor_weights())
    made.train()
    after = {n: v for n, v in nets.tensors(made.model).items() if n.startswith("hypernet.")}
    result = read(made.net.hypernet.targets, before, without_decay(before, after))
    with torch.no_grad():
        dead = float((made.net.hypernet.hidden_units(made.net.embedding) == 0).float().mean())
    return {
        "embedding": None if result.embedding is None else error(result.embedding, embedding),
        "extractor": error(_flat(result.weights), extractor),
        "extractor_moved": error(_flat(made.net.extractor_weights()), extractor),
        "dead": dead,
    }


def _flat(tensors: nets.Tensors) -> Tensor:
    return torch.cat([value.detach().flatten() for value in tensors.values()])


def main() -> None:
    """Train, read and print."""
    run = output.start(output.parser(__doc__), PARTS)
    torch.set_num_threads(1)
    rows = {steps: reading(*_RUNS[steps]) for steps in run.parts()}
    lines = [f"{images(CASES['cnn1']).name}: error of what one update gives away, by the local steps behind it"]
    lines.append("steps  embedding  extractor  (moved by)  dead units")
    for steps, row in rows.items():
        embedding = "not read" if row["embedding"] is None else f"{row['embedding']:.1e}"
        more = f"{row['extractor']:9.1e}  {row['extractor_moved']:10.2f}  {row['dead']:10.0%}"
        lines.append(f"{steps:>5}  {embedding:>9}  {more}")
    run.report({"reading": rows, "images": images(CASES["cnn1"]).name}, lines)


if __name__ == "__main__":
    main()
