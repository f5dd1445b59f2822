"""Time to read photos of 12 megapixels as a data set: ``python -m benchmarks.photos [--json] [--quick]``.

JPEG files of 4000 x 3000 pixels, whose content is a smooth pattern with noise, are read as ``--dataset folder:PATH
--expert own_images=64`` does: at a fraction of their size, resized; and, beside it, with all their pixels first.
Seconds are those of the processor, one photo after the other. The last line of the output is one JSON object.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import output
from flfw.data.image_files.decoder import pixels
from flfw.data.image_files.images import ImageFormat
from flfw.rng import numpy_generator

_HEIGHT, _WIDTH = 3000, 4000
PARTS = {"photos": output.BenchmarkPart("photos read at a fraction of their size, and whole", 30, 8)}


def write_photo(path: Path, number: int) -> None:
    """Write a JPEG file of some megabytes."""
    from PIL import Image

    rng = numpy_generator(0, "pixels", number)
    smooth = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize((_WIDTH, _HEIGHT))
    noisy = np.asarray(smooth) + rng.normal(0, 8, (_HEIGHT, _WIDTH, 1)).astype(np.float32)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def measure(photos: int, side: int) -> dict[str, Any]:
    """Measure the seconds of a photo, read in both ways."""
    from PIL import Image

    reduced_s = whole_s = size = 0.0
    for number in range(photos):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "photo.jpg")
            write_photo(path, number)
            size += path.stat().st_size
            started = time.process_time()
            pixels(path, ImageFormat(size=(side, side)), 3)
            between = time.process_time()
            whole = Image.fromarray(pixels(path, ImageFormat(), 3).transpose(1, 2, 0))
            ImageFormat(size=(side, side)).applied(whole)
            whole_s += time.process_time() - between
            reduced_s += between - started
    each = {"reduced_s": round(reduced_s / photos, 4), "whole_s": round(whole_s / photos, 4)}
    return {**each, "ratio": round(reduced_s / whole_s, 3), "bytes": round(size / photos), "side": side}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("--side", type=output.whole(), default=64, help="height and width of the results; 64")
    run = output.start(flags, PARTS)
    results: dict[str, Any] = {}
    for _ in run.parts():
        results = measure(run.amount(16, 2), run.asked.side)
    line = (
        f"a photo of {results['bytes'] / 1e6:.1f} MB: {results['reduced_s']} s; decoded whole: {results['whole_s']} s"
    )
    run.report(results, [line])


if __name__ == "__main__":
    main()
