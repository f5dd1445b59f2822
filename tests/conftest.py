"""Shared by the tests: one small federation on the digits, and the caches kept out of the user's home."""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is: there are more processes here than cores
os.environ["FLFW_WEIGHTS"] = "random"  # of pretrained networks, in the processes of the tests as well
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # read when Ray is: it listens on loopback only

import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from flfw.experiment import Experiment
from flfw.plans.run_plan import without_auto

# No test says how many examples it wants: `--hypothesis-profile nightly` tries a hundred times as many, at random.
_EXAMPLES = 30
settings.register_profile(
    "quick", derandomize=True, deadline=None, database=None, print_blob=True, max_examples=_EXAMPLES
)
settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=100 * _EXAMPLES)
settings.load_profile("quick")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files marked as early come first, so that at the end no worker is alone with one of them."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live to the end of the process: the garbage collector need not look at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """At the end of the process libraries look whether their objects are gone, and print those that are not."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(tmp_path: Path) -> Experiment:
    """Three clients on the digits, two rounds of one epoch, in process, not audited."""
    return without_auto(
        Experiment(
            method="fedavg",
            clients=3,
            rounds=2,
            local_epochs=1,
            attack=("none",),
            engine="inproc",
            out=tmp_path / "run",
        )
    )
