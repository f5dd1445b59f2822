"""Pictures of README and docs/gallery.md: ``python -m research.gallery [--data-root DIR] [--only NAME ...]``.

Each run attacks the same four training images of CIFAR-10, one image a message, before the first round. Finished runs
in ``runs/gallery`` are not made again. A row of a poster is what the attack gave back, whatever it reached: the attack
that knows the defence, where there is one. Written are docs/gallery/*.png, poster.svg and poster.pdf, and the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from safetensors.numpy import load_file

from flfw import Result, run

ROOT = Path(__file__).resolve().parents[1]
OUT, TABLE = ROOT / "docs/gallery", ROOT / "docs/tables/gallery.md"
COMMON = {
    "dataset": "cifar10", "net": "lenet", "clients": 4, "rounds": 1, "images": 4, "audit_rounds": "0",
    "engine": "inproc", "seed": 1,
}  # fmt: skip
IG: Mapping[str, Any] = {"method": "fedavg", "attack": "ig", "set": "ig.iterations=3000"}
POSTERS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "methods": {
        "FedAvg": IG,
        "HyperFL": {"method": "hyperfl", "attack": "hyperfl", "set": "hyperfl.iterations=1000"},
        "DP-FedAvg, ε = 4": IG | {"method": "dp_fedavg", "target_epsilon": 4.0},
    },
    "attacks": {
        "analytic": {"method": "fedavg", "attack": "analytic", "net": "mlp"},
        "dlg": {"method": "fedavg", "attack": "dlg"},
        "idlg": {"method": "fedavg", "attack": "idlg"},
        "ig": IG,
        "gradinversion": {"method": "fedavg", "attack": "gradinversion"},
        "cpl": {"method": "fedavg", "attack": "cpl"},
    },
    "defences": {
        name: IG | {"defence": name} for name in ("prune", "dp_gaussian", "low_precision", "soteria", "precode", "ats")
    },
}


def main() -> None:
    """Make the runs that are not there, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default=str(Path.home() / "data"), help="folder of the data sets")
    parser.add_argument("--only", nargs="+", choices=POSTERS, default=list(POSTERS), help="posters to make")
    given = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    lines = ["<!-- python -m research.gallery writes this page -->", ""]
    for poster in given.only:
        results = {name: _finished(name, fields, given.data_root) for name, fields in POSTERS[poster].items()}
        _draw({name: _pictures(result) for name, result in results.items()}, OUT / poster)
        lines += [
            f"## {poster.capitalize()}",
            "",
            "| | verdict | PSNR, dB | seconds | flags |",
            "|---|---|---|---|---|",
        ]
        lines += [_line(name, result, POSTERS[poster][name]) for name, result in results.items()] + [""]
    TABLE.write_text("\n".join(lines))


def _finished(name: str, fields: Mapping[str, Any], data_root: str) -> Result:
    folder = ROOT / "runs/gallery" / f"{fields['method']}-{fields['attack']}-{fields.get('defence', 'none')}"
    if (folder / "result.json").exists():
        return Result.load(folder)
    print(f"{name}: {folder}", flush=True)
    return run(**{**COMMON, **fields, "data_root": data_root, "out": folder})


def _pictures(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return the originals and what the attack gave, (4, C, H, W) each; the last attack is the one that knows most."""
    rows: Any = result.images.query("rung == 'target'")  # pandas' types lose a table behind a mask
    rows = rows[rows["adaptation"].fillna("") == (result.audit.iloc[-1].get("adaptation") or "")]
    rows = rows.sort_values("client")
    kept = [
        np.stack([load_file(result.path / row[column])["samples"][int(row["image"])] for _, row in rows.iterrows()])
        for column in ("truth", "reconstruction")
    ]
    return kept[0], kept[1]


def _draw(rows: Mapping[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    lines = {"the clients’ images": next(iter(rows.values()))[0]} | {name: pair[1] for name, pair in rows.items()}
    with rc_context({"font.family": "sans-serif", "svg.fonttype": "none", "svg.hashsalt": "", "pdf.fonttype": 42}):
        figure = Figure(figsize=(5.6, 1.05 * len(lines)), dpi=160, facecolor="white")
        grid = figure.subplots(len(lines), 4, gridspec_kw={"wspace": 0.04, "hspace": 0.06, "left": 0.3, "right": 0.99})
        for axes_of_row, (name, images) in zip(grid, lines.items(), strict=True):
            for axes, image in zip(axes_of_row, images, strict=True):
                axes.imshow(np.moveaxis(image, 0, -1).clip(0, 1), interpolation="nearest")
                axes.axis("off")
            first = axes_of_row[0]
            first.text(-0.08, 0.5, name, ha="right", va="center", transform=first.transAxes, fontsize=11)
        for suffix, undated in (("png", {}), ("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            figure.savefig(path.with_suffix(f".{suffix}"), bbox_inches="tight", pad_inches=0.05, metadata=undated)


def _line(name: str, result: Result, fields: Mapping[str, Any]) -> str:
    last, flags = result.audit.iloc[-1], " ".join(f"--{key.replace('_', '-')} {value}" for key, value in fields.items())
    return f"| {name} | {last['verdict']} | {last['psnr.mean']:.1f} | {last['seconds']:.0f} | `{flags}` |"


if __name__ == "__main__":
    main()
