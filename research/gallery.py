"""Pictures of README and docs/gallery.md: ``python -m research.gallery [--data-root DIR] [--only NAME ...]``.

Each run attacks the same four training images of CIFAR-10, one image a message, before the first round. Finished runs
in ``runs/gallery`` are not made again. A row of a poster is what the attack gave back, whatever it reached: the attack
that knows the defence, where there is one. Written are each poster as PNG, SVG and PDF, and its part of the table.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from safetensors.numpy import load_file

from flfw import Result
from flfw.files.outcomes import in_words

ROOT = Path(__file__).resolve().parents[1]
OUT, TABLE = ROOT / "docs/gallery", ROOT / "docs/tables/gallery.md"
COMMON = "--dataset cifar10 --net lenet --clients 4 --rounds 1 --images 4 --audit-rounds 0 --engine inproc --seed 1"
ALONE, SHORT = "--method fedavg --attack ", "--sample 1 --local-epochs 1"  # SHORT: no row shows the training
IG = f"{ALONE}ig --set ig.iterations=3000"
NAMES = ("dlg", "idlg", "cpl", "dlg_statistics", "ig", "gradinversion", "rog", "generator", "hyperfl", "fedcg", "dcs2")
DEFENCES = ("prune", "dp_gaussian", "low_precision", "soteria", "precode", "ats")
POSTERS = {
    "methods": {
        "FedAvg": IG,
        "HyperFL": "--method hyperfl --attack hyperfl --set hyperfl.iterations=1000",
        "DP-FedAvg, ε = 4": IG.replace("fedavg", "dp_fedavg --target-epsilon 4"),
    },
    "attacks": {name: ALONE + name for name in NAMES} | {"imprint": f"{ALONE}imprint --malicious-server imprint"},
    "defences": {"no defence": IG}
    | {name: f"{IG} --defence {name} {SHORT}" for name in DEFENCES}
    | {"dcs2": f"{ALONE}dcs2 --defence dcs2 --set dcs2.stop=never dcs2.sensitive=at:1708,1661,574,711 {SHORT}"},
}
UNDER = {
    "attacks": "Not here, for they need another network or other data: analytic, cocktail, spear (a dense first "
    "layer), april (a vision transformer), dager (text), tableak (tables), loki and suppression (sums over clients). "
    "Of membership and label_distribution there is no picture. In imprint a malicious server changes the network."
}
HEAD = f"<!-- python -m research.gallery writes this page -->\n\nSeconds: beside other programs. All rows: `{COMMON}`"
COLUMNS = "| | verdict | recognisable | PSNR, dB | seconds | flags |"


def main() -> None:
    """Make the runs that are not there, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default=str(Path.home() / "data"), help="folder of the data sets")
    parser.add_argument("--only", nargs="+", choices=POSTERS, default=list(POSTERS), help="posters to make")
    given = parser.parse_args()
    parts = {part.partition("\n")[0].lower(): part.strip() for part in TABLE.read_text().split("\n## ")[1:]}
    for poster in given.only:
        flags = POSTERS[poster]
        runs = {name: _finished(poster, name, ["--data-root", given.data_root, *flags[name].split()]) for name in flags}
        _draw(runs, OUT / poster, UNDER.get(poster, ""))
        lines = [f"| {' | '.join([name, *_figures(runs[name]), f'`{flags[name]}`'])} |" for name in flags]
        parts[poster] = "\n".join([poster.capitalize(), "", COLUMNS, "|---" * 6 + "|", *lines])
    TABLE.write_text("\n\n## ".join([HEAD, *(parts[poster] for poster in POSTERS if poster in parts)]) + "\n")


def _finished(poster: str, name: str, flags: list[str]) -> Result:
    folder = ROOT / "runs/gallery" / poster / name
    if not (folder / "result.json").exists():
        subprocess.run([sys.executable, "sim.py", *COMMON.split(), *flags, "--out", folder], cwd=ROOT, check=True)
    return Result.load(folder)


def _pictures(result: Result, column: str) -> list[np.ndarray]:
    """Return the originals or what the last attack gave, which is the one that knows most; grey: nothing."""
    rows: Any = result.images.query("rung == 'target'")  # pandas' types lose a table behind a mask
    rows = rows[rows["adaptation"].fillna("") == (result.audit.iloc[-1].get("adaptation") or "")].sort_values("client")
    samples = [load_file(result.path / path)["samples"] if isinstance(path, str) else None for path in rows[column]]
    return [np.full((3, 32, 32), 0.5) if one is None else one[i] for one, i in zip(samples, rows["image"], strict=True)]


def _draw(runs: dict[str, Result], path: Path, under: str) -> None:
    rows = {"the clients’ images": (_pictures(next(iter(runs.values())), "truth"), "")}
    for name, result in runs.items():
        _, found, reached, _ = _figures(result)
        reached = "the search failed" if reached == "nan" else f"{reached} dB"
        rows[name] = (_pictures(result, "reconstruction"), f"{found} recognisable\n{reached}")
    with rc_context({"font.family": "sans-serif", "svg.fonttype": "none", "svg.hashsalt": "", "pdf.fonttype": 42}):
        figure = Figure(figsize=(5.6, 1.05 * len(rows)), dpi=130, facecolor="white")
        grid = figure.subplots(len(rows), 4, gridspec_kw={"wspace": 0.04, "hspace": 0.06, "left": 0.3, "right": 0.99})
        for axes_of_row, (name, (images, found)) in zip(grid, rows.items(), strict=True):
            for axes, image in zip(axes_of_row, images, strict=True):
                axes.imshow(np.moveaxis(image, 0, -1).clip(0, 1), interpolation="nearest")
                axes.axis("off")
            place = {"xy": (-0.08, 0.5), "xycoords": "axes fraction", "textcoords": "offset points", "ha": "right"}
            axes_of_row[0].annotate(name, **place, xytext=(0, 2), va="bottom" if found else "center", fontsize=11)
            axes_of_row[0].annotate(found, **place, xytext=(0, -2), va="top", fontsize=8, color="0.35")
        figure.supxlabel(fill(under, 95), x=0.99, y=0.1, ha="right", va="top", ma="left", fontsize=8)
        for suffix, undated in (("png", {}), ("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            figure.savefig(path.with_suffix(f".{suffix}"), bbox_inches="tight", pad_inches=0.05, metadata=undated)


def _figures(result: Result) -> list[str]:
    """Return the verdict, images recognised, decibels and seconds of the attack that knows most."""
    last = result.audit.iloc[-1]
    found, reached = f"{last['share_recovered'] * last['images']:.0f} of {last['images']}", f"{last['psnr.mean']:.1f}"
    return [in_words(result.content["audit"][-1]), found, reached, f"{last['seconds']:.0f}"]


if __name__ == "__main__":
    main()
