"""Data sets that are generated for each client on demand, and their split."""

import hashlib
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from flfw import data
from flfw.data.files.dataset import COMMON, PERSONS, STRIDE
from flfw.data.generated import LogisticClients, SkewedImages, _client
from flfw.data.splits.partition import split
from flfw.data.splits.schemes import IID, Natural, SampledOnDemand
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan, without_auto
from flfw.runs import run
from tests.support.paths import ROOT

MILLION = 1_000_000
SMALL = "synthetic_images:1x8x8,4,0.1"


@pytest.mark.parametrize("name", ["synthetic", "synthetic:iid", SMALL])
def test_a_client_holds_the_same_among_any_number_and_in_any_order(name: str) -> None:
    once, again = data.load(name), data.load(name)
    few, many = (split(once, Natural(train=7, test=3), clients, seed=4) for clients in (8, MILLION))
    mine, last = many.train[5], many.train[MILLION - 1]
    assert mine.tolist() == few.train[5].tolist() and len(mine) == 7 and len(many.test[0]) == 3
    mixed = np.concatenate([last[::-1], mine, many.train[6][2:3]])
    whole = again.train_x[mixed]
    assert np.array_equal(whole[7:14], once.train_x[mine]) and np.array_equal(whole[:7], once.train_x[last][::-1])
    assert np.array_equal(whole[14], once.train_x[many.train[6]][2])
    labels = again.train_y[mixed]
    assert np.array_equal(labels[7:14], once.train_y[mine]) and labels.dtype == np.int64
    assert len(np.unique(whole, axis=0)) == 15  # no two alike: other clients, other examples
    assert not np.array_equal(once.test_x[many.test[5]], once.train_x[mine][:3])
    assert once.train_x[0:0].shape == (0, *once.shape) and once.digest == again.digest


def test_the_first_examples_are_the_same_however_many_there_are() -> None:
    for population in (LogisticClients(), LogisticClients(iid=True), SkewedImages((3, 6, 5), 3)):
        for made in (population.inputs, population.labels):
            assert np.array_equal(made("train", 9, 40)[:3], made("train", 9, 3))
            assert not np.array_equal(made("train", 9, 40), made("test", 9, 40))


@pytest.mark.slow
def test_another_process_generates_the_same_bytes() -> None:
    code = "from tests.data.test_generated import sums; print(*sums())"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.split() == sums() and len(set(sums())) == 4


def sums() -> list[str]:
    summed = []
    for name in ("synthetic:0.5,0.5,7", "synthetic_images:3x32x32"):
        made, indices = data.load(name), np.arange(3) * STRIDE
        read = made.train_x[indices].tobytes() + made.train_y[indices].tobytes()
        summed += [hashlib.sha256(read).hexdigest(), made.digest]
    return summed


def test_labels_are_those_of_the_clients_own_logistic_model() -> None:
    """Networks get x itself: (stored - mean) / std."""
    made = data.load("synthetic:0.5,0.5")
    for client in (0, 3):
        weights, offsets, _ = _client(LogisticClients(0.5, 0.5), client)
        indices = client * STRIDE + np.arange(200)
        x = (made.train_x[indices].astype(np.float64) - made.mean) / made.std
        assert (np.argmax(x @ weights.T + offsets, 1) == made.train_y[indices]).mean() > 0.99  # but for float32
        assert (made.train_x[indices] > 0).all() and (made.train_x[indices] < 1).all()


def test_alpha_and_beta_are_the_deviations_of_the_clients_means() -> None:
    """The mean of 610 numbers of N(u, 1) is u to 0.04, and that of 60 of N(v, 1) is v to 0.13."""
    many = [_client(LogisticClients(2.0, 0.0), client) for client in range(400)]
    models = np.array([weights.mean() for weights, _, _ in many])
    means = np.array([inputs.mean() for _, _, inputs in many])
    assert 1.75 < models.std() < 2.25 and means.std() < 0.2
    shared = {_client(LogisticClients(0, 0, iid=True), client)[0].tobytes() for client in range(5)}
    assert len(shared) == 1
    iid = data.load("synthetic:iid")
    indices = (np.arange(100)[:, None] * STRIDE + np.arange(50)).ravel()
    x = (iid.train_x[indices] - np.array(iid.mean)) / iid.std
    expected = np.arange(1, 61) ** -0.6
    assert np.abs(x.std(0) / expected - 1).max() < 0.06 and np.abs(x.mean(0) / expected).max() < 0.07


def test_images_have_the_proportions_of_their_client_and_means_of_all() -> None:
    made, population = data.load(SMALL), SkewedImages((1, 8, 8), 4, 0.1)
    for client in (0, 1, MILLION):
        labels = made.train_y[client * STRIDE + np.arange(2000)]
        shares = np.bincount(labels, minlength=4) / 2000
        assert np.abs(shares - population.proportions(client)).max() < 0.05
    skewed = [population.proportions(client).max() for client in range(200)]
    even = [SkewedImages((1, 8, 8), 4, 100.0).proportions(client).max() for client in range(200)]
    assert np.mean(skewed) > 0.8 and np.mean(even) < 0.35
    # Which class an image is of can be told from those of other clients.
    here, there = (np.concatenate([c * STRIDE + np.arange(40) for c in part]) for part in (range(60), range(60, 120)))
    x, y = (made.train_x[here].reshape(len(here), -1) / 255.0, made.train_y[here])
    fitted = np.linalg.lstsq(np.c_[x, np.ones(len(x))], np.eye(4)[y], rcond=None)[0]
    x, y = (made.train_x[there].reshape(len(there), -1) / 255.0, made.train_y[there])
    assert (np.argmax(np.c_[x, np.ones(len(x))] @ fitted, 1) == y).mean() > 0.6


def test_constants_are_those_of_the_images() -> None:
    made = data.load("synthetic_images:3x32x32")
    x = made.train_x[np.arange(300) * STRIDE].astype(np.float64) / 255
    assert x.dtype == np.float64 and len(made.mean) == 3
    assert np.abs(x.mean((0, 2, 3)) - made.mean).max() < 0.02 and np.abs(x.std((0, 2, 3)) - made.std).max() < 0.02
    assert data.load("synthetic_images:3x32x32", side=8).train_x[np.arange(2)].shape == (2, 3, 8, 8)


def test_the_common_test_examples_are_nobodys() -> None:
    made = data.load(SMALL)
    one = split(made, Natural(train=4), 3, seed=0, test="shared")
    assert one.test[0].tolist() == one.test[2].tolist() == one.public.tolist()
    assert len(one.public) == COMMON and one.public.min() == PERSONS * STRIDE
    x, y = made.test_x[one.public], made.test_y[one.public]
    assert np.array_equal(made.test_x[one.public[7:9]], x[7:9]) and np.bincount(y).min() > 180
    each = split(made, Natural(test=4), 3, seed=0)
    assert each.test[2].tolist() == [2 * STRIDE + k for k in range(4)] and each.public.tolist() == one.public.tolist()
    both = np.concatenate([each.test[1], one.public[:2]])  # of a client and of nobody in one batch
    assert np.array_equal(made.test_x[both], np.concatenate([made.test_x[each.test[1]], x[:2]]))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("synthetic:1", "Expected synthetic, synthetic:ALPHA,BETA or synthetic:iid"),
        ("synthetic:1,nan", "Expected 0 <= beta <= 100 in synthetic, got beta=nan"),
        ("synthetic:1,1,-1", "seed=-1"),
        ("synthetic:iid,1,2", "got synthetic:iid,1,2"),
        ("synthetic_images:2x8x8", "with C = 1 or 3"),
        ("synthetic_images:1x9999x8", "side=9999"),
        ("synthetic_images:1x8x8,1", "2 <= classes <= 1000"),
        ("synthetic_images:1x8x8,4,0", "0.001 <= alpha <= 1e+06"),
    ],
)
def test_other_words_are_refused(name: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        data.describe(name)
    assert reason in str(caught.value)


def test_generated_data_are_cut_by_their_clients_alone() -> None:
    made = data.load("synthetic")
    for scheme in (IID(), SampledOnDemand()):
        with pytest.raises(InputError, match="Expected split=natural for synthetic"):
            split(made, scheme, 3, seed=0)
    with pytest.raises(InputError, match="Expected another --split for digits"):
        split(data.load("digits"), Natural(), 3, seed=0)
    with pytest.raises(InputError, match=f"natural.train <= {STRIDE}"):
        split(made, Natural(train=STRIDE + 1), 3, seed=0)
    minimum = split(made, Natural(train=1, test=1), 3, seed=0)
    assert [len(part) for part in (*minimum.train, *minimum.test)] == [1] * 6
    with pytest.raises(MemoryError):
        np.asarray(made.train_y)
    experiment = without_auto(Experiment(method="fedavg", dataset="synthetic", canaries=2))
    with pytest.raises(InputError, match="Expected canaries=0 for synthetic"):
        plan(experiment).task.load(None)
    with pytest.raises(IndexError):
        _ = made.train_y[np.array([-1])]


def test_opening_a_million_clients_takes_no_memory() -> None:
    experiment = without_auto(Experiment(method="fedavg", dataset="synthetic", clients=MILLION, sample=10))
    tracemalloc.start()
    task = plan(experiment).task.load(None)
    x, y = task.examples("train", task.split.train[MILLION - 1])
    maximum = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert x.shape == (50, 60) and len(y) == 50 and maximum < 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "net"), [("synthetic", "linear"), (SMALL, "mlp")])
def test_clients_of_generated_data_learn(tmp_path: Path, dataset: str, net: str) -> None:
    experiment = Experiment(
        method="fedavg",
        dataset=dataset,
        net=net,
        clients=MILLION,
        sample=5,
        rounds=2,
        local_epochs=2,
        final_eval_clients="5",
        attack=("none",),
        engine="inproc",
        out=tmp_path / "run",
    )
    run.run(experiment)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["provenance"]["data"]["digest"] == data.load(dataset).digest
    assert result["config"]["split"] == "natural" and result["final"]["acc_local"] > result["final"]["acc_global"]
