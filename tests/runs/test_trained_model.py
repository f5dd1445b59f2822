"""The model of a finished run, loaded from its folder: it scores what was reported, and is refused in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits

from flfw import InputError, Result, load_model, run
from flfw.runs.run import reopened
from flfw.runs.trained_model import TrainedModel
from tests.support.small_runs import tiny


def accuracies(result: Result, model: TrainedModel) -> list[float]:
    """Score each client's test images, as scikit-learn has them, by plain PyTorch."""
    digits, (_, task) = load_digits(), reopened(result.path)
    images = np.rint(digits.images[1500:, None] * (255 / 16)).astype(np.uint8)
    scores = [model(model.preprocess(images[rows])).argmax(1).numpy() for rows in task.split.test]
    return [float((s == digits.target[1500:][rows]).mean()) for s, rows in zip(scores, task.split.test, strict=True)]


@pytest.mark.slow
def test_a_loaded_model_has_each_client_s_accuracy_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for method in ("fedper", "pfedhn", "fedavg", "scaffold"):
        small = tiny(tmp_path / method, method=method, net="cnn1", rounds=2, lr=0.1, attack=("none",))
        result = run(small, keep_state=method == "fedper")
        reported = [row["acc_global"] for row in result.final["per_client"]]
        if method in ("fedper", "pfedhn"):
            for client in (0, 1):
                assert accuracies(result, load_model(result, client=client))[client] == reported[client]
            with pytest.raises(InputError, match=f"client=NUMBER, as {method} has a model for each client, got none"):
                load_model(result)
        else:
            assert accuracies(result, load_model(result)) == reported
        with pytest.raises(InputError, match="Expected a client from 0 to 1, got client=2"):
            load_model(result, 2)
    model = load_model(result)
    assert not model.training and model.classes == tuple("0123456789") and model.columns is None
    with pytest.raises(InputError, match=r"inputs of shape \(B, 1, 28, 28\), got shape=\(3, 8, 8\)"):
        model.preprocess(torch.zeros(3, 8, 8))
    for value in (16.0, torch.nan):
        with pytest.raises(InputError, match=r"inputs as bytes, or floats in \[0, 1\]"):
            model.preprocess(torch.full((2, 1, 28, 28), value))
    shutil.rmtree(tmp_path / "fedper" / "state")
    with pytest.raises(InputError, match=r"private tensors in .*state, got none; run with --expert keep_state=true"):
        load_model(tmp_path / "fedper", client=0)
    for name, old, new, message in (
        ("result.json", b'"shape"', b'"form"', r"Expected provenance\.data\.shape in .*, got none; run it anew"),
        ("result.json", b"28,", b"32,", "Expected"),
        ("checkpoint/round-*", b"order", b"other", "it is damaged; restore it"),
        ("checkpoint/exper*", b"", None, "which was purged"),
        ("result.json", b"", None, r"Expected a finished run with result\.json"),
    ):
        copy = Path(shutil.copytree(result.path, tmp_path / message[:20]))
        (file,) = copy.glob(name)
        file.write_bytes(file.read_bytes().replace(old, new)) if new else file.unlink()
        with pytest.raises(InputError, match=message):
            load_model(copy)


@pytest.mark.slow
def test_a_table_is_read_as_for_training_without_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for name in ("train.csv", "test.csv"):
        ages = [str(age) if age % 9 else "?" for age in range(20, 80)]
        frame = {
            "age": ages,
            "ward": list("ABC" * 20),
            "dose": [f"{n},{n % 9}5" for n in range(60)],
            "seen": "2020-03-01",
        }
        died = np.where(rng.integers(20, 80, 60) > 50, "yes", "no")
        pd.DataFrame({**frame, "died": died}).to_csv(tmp_path / name, sep=";", index=False)
    settings = (f"csv.test={tmp_path / 'test.csv'}", "csv.missing=?", "csv.drop=seen")
    quick: dict[str, Any] = {"split": "auto", "net": "mlp", "rounds": 3, "lr": 0.5, "attack": ("none",)}
    result = run(
        tiny(dataset=f"csv:{tmp_path / 'train.csv'}@died", set=settings, test="shared", **quick), out=tmp_path / "run"
    )
    words = pd.read_csv(tmp_path / "test.csv", sep=";", dtype=str, keep_default_na=False)
    numbers = pd.read_csv(tmp_path / "test.csv", sep=";", decimal=",", na_values="?")
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).unlink()
    model = load_model(result)
    assert model.classes == ("no", "yes") and model.columns is not None
    for frame in (words, numbers, numbers.drop(columns=["seen", "died"]), dict(numbers)):
        guesses = np.array(model.classes)[model(model.preprocess(frame)).argmax(1).numpy()]
        assert (guesses == words["died"].to_numpy()).mean() == result.final["acc_global"]
    assert torch.equal(model.preprocess(words), model.preprocess(numbers))
    with pytest.raises(InputError, match="Expected all columns that are features, got none called ward"):
        model.preprocess(numbers.drop(columns="ward"))
    with pytest.raises(InputError, match="Expected one reading of column dose, got 2,500, which is"):
        model.preprocess(words.assign(dose="2,500"))
