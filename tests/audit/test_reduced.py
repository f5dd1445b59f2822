"""Scores of enlarged images in their data set's own size: by hand, and in an audited run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import interpolate

from flfw.audit.measures.metrics import psnr, reduced, reduced_scores
from flfw.runs import run as whole
from tests.support.csv_files import read_csv
from tests.support.small_runs import tiny


def test_detail_that_the_own_size_does_not_have_costs_nothing() -> None:
    truth = np.full((1, 8, 8), 0.5, np.float32)
    stripes = truth + np.where(np.arange(8) % 2, 0.1, -0.1).astype(np.float32)  # mean over two columns: 0.5
    scores = reduced_scores(truth, stripes, 2)
    assert psnr(truth, stripes) == pytest.approx(20.0, abs=1e-4)
    assert scores["reduced_psnr"] is not None and scores["reduced_psnr"] > 30 and scores["reduced_ssim"] is None
    assert reduced_scores(truth, truth + np.float32(0.1), 2)["reduced_psnr"] == pytest.approx(20.0, abs=1e-4)
    assert reduced_scores(truth, truth, 2)["reduced_psnr"] == 200


def test_without_a_guess_or_an_enlargement_there_are_no_scores() -> None:
    image = np.zeros((1, 8, 8), np.float32)
    assert reduced_scores(image, None, 2) == {"reduced_psnr": None, "reduced_ssim": None}
    assert reduced_scores(image, image, 0) == {}


@pytest.mark.slow
def test_an_audit_of_enlarged_images_has_both_sizes(tmp_path: Path) -> None:
    changes = {"attack": ("rog",), "audit_rounds": "0", "image_size": 16, "set": ("rog.iterations=5",)}
    whole.run(tiny(tmp_path / "run", **changes))
    (entry,) = json.loads((tmp_path / "run" / "result.json").read_text())["audit"]
    values = []
    for row in read_csv(tmp_path / "run" / "audit.csv", rung="target"):
        paths = (tmp_path / "run" / row[name] for name in ("truth", "reconstruction"))
        a, b = (load_file(path)["samples"].float() for path in paths)
        a, b = (interpolate(x, size=(8, 8), mode="bilinear", antialias=True) for x in (a, b))
        values.append(psnr(a[0].numpy(), b[0].numpy()))
        assert float(row["reduced_psnr"]) == pytest.approx(values[-1], abs=1e-3)
    assert entry["native_resolution"] == {"psnr": pytest.approx(sum(values) / len(values), abs=1e-3), "ssim": None}
    assert entry["psnr"]["mean"] != entry["native_resolution"]["psnr"]
    assert reduced(torch.rand(1, 16, 16).numpy(), 8).shape == (1, 8, 8)
