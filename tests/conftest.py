"""Shared by the tests: one small federation on the digits, and the caches kept out of the user's home."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is: there are more processes here than cores
os.environ["FLFW_WEIGHTS"] = "random"  # of pretrained networks, in the processes of the tests as well

import atexit
import gc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from tyro._parsers import ParserSpecification

from flfw.comparisons import picture
from flfw.engines.ray_start import configure_ray
from flfw.experiment import Experiment
from flfw.plans.run_plan import without_auto
from flfw.report import charts
from flfw.runs import provenance
from flfw.server import checkpoint

configure_ray("")  # before a test imports Ray: it listens on loopback only, and prints no log of a node that died

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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Whatever tests ran before in the process, torch's global generator is the same, for fixtures as well."""
    torch.default_generator.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live to the end of the process: the garbage collector need not look at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)  # a test leaves few circles: to look for them took a tenth of the time
        atexit.register(gc.unfreeze)  # then libraries look whether their objects are gone, and print those that are not


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_made_twice() -> Iterator[None]:
    """What takes longest in hundreds of tests is made once of the same values, and nothing waits for the disk.

    Most tests of a page read its words. No test cuts the power. Processes of their own do all of it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "stacked_panels", _once(charts.stacked_panels))
        patch.setattr(picture, "draw", _once(picture.draw))
        patch.setattr(provenance, "installed_packages", _once(provenance.installed_packages))
        patch.setattr(ParserSpecification, "from_callable_or_type", _once(ParserSpecification.from_callable_or_type))
        patch.setattr(os, "fsync", os.fstat)
        patch.setattr(checkpoint, "force_all", os.stat)
        yield


_KEPT = 100  # results: thousands of examples of a property would fill the memory


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    made: dict[str, Any] = {}

    def kept(*given: Any, **named: Any) -> Any:
        values = repr((given, named))
        if values not in made:
            made[values] = make(*given, **named)
            if len(made) > _KEPT:
                del made[next(iter(made))]
        return made[values]

    return kept


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def held_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in the place of the operating system's: what secret numbers decide is the same in each run of a test."""
    monkeypatch.setattr("secrets.token_bytes", np.random.default_rng(0).bytes)


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
