"""The wheel in a fresh environment, used from outside the checkout, as somebody does who only has the package."""

import csv
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from flfw.command.subcommands import OTHERS, SUBCOMMANDS
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
# A notebook's kernel comes with Jupyter, not with the package.
JUPYTER = ("ipykernel", "nbclient")


class Installed:
    """Environment with the wheel in it, and a folder that has nothing to do with the checkout."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.bin, self.folder = path / "bin", folder
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._environment = kept | {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def __call__(self, *command: str, expected: int = 0) -> str:
        """Run a program of the environment; returns what it printed, to stderr where it fails as expected."""
        whole = [str(self.bin / command[0]), *command[1:]]
        done = subprocess.run(whole, cwd=self.folder, env=self._environment, capture_output=True, text=True)
        assert done.returncode == expected, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stderr if expected else done.stdout


def _uv(*arguments: str | Path) -> str:
    beside = Path(sys.executable).with_name("uv")
    program = beside if beside.exists() else shutil.which("uv")
    if not program:
        pytest.skip("uv is not installed: make .venv/.installed installs it")
    # The cache of the machine, not of the tests, has the packages: they are linked, not loaded and unpacked again.
    environment = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    return subprocess.run([program, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    _uv("build", "--quiet", "--wheel", "--out-dir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    place, folder = tmp_path_factory.mktemp("fresh") / "venv", tmp_path_factory.mktemp("elsewhere")
    _uv("venv", "--quiet", "--python", sys.executable, place)
    pins = ("--constraint", ROOT / "requirements.txt")
    _uv("pip", "install", "--quiet", "--python", place, *pins, f"{wheel}[dicom]", *JUPYTER)
    yield Installed(place, folder)
    shutil.rmtree(place)


def test_the_wheel_has_one_package(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"flfw"}


def test_the_default_install_resolves_to_the_line_over_grpc(wheel: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.in"
    wanted.write_text(f"flfw @ {wheel.as_uri()}\n")
    pins = _uv("pip", "compile", "--quiet", "--no-header", "--no-annotate", wanted).splitlines()
    names = {pin.partition("==")[0] for pin in pins}
    assert [pin for pin in pins if pin.startswith("flwr==1.39.")]
    assert {"opacus", "lpips", "cryptography", "timm", "torch", "ray", "pandas", "torchvision"} <= names


@pytest.mark.parametrize("name", ["attacks", "clients", "strategies", "papers", "sim"])
def test_nothing_else_is_at_the_top(installed: Installed, name: str) -> None:
    assert "ModuleNotFoundError" in installed("python", "-c", f"import {name}", expected=1)
    if name != "sim":
        installed("python", "-c", f"import flfw.{name}")


def test_an_installed_app_has_the_checkouts_code(installed: Installed) -> None:
    from flfw.files.provenance import code_hash

    line = "from flfw.files.provenance import code_hash; print(code_hash())"
    assert installed("python", "-c", line).strip() == code_hash()


@pytest.mark.nightly
def test_the_main_job_runs(installed: Installed) -> None:
    assert installed("flfw", "run", "--out", "main").splitlines()[-1].endswith("report.html")
    result = json.loads((installed.folder / "main" / "result.json").read_text())
    assert result["config"]["engine"] == "ray" and len(result["rounds"]) == 10
    assert result["audit"] and result["final"]["acc_local"] > 0.5
    assert (installed.folder / "main" / "report.html").stat().st_size > 10_000


SHORT = "--set ig.iterations=2 ig.restarts=1"
SMALL = f"--engine inproc --clients 3 --rounds 1 --local-epochs 1 --images 1 {SHORT}"
CALLS = {
    "run": f"--clients 3 --rounds 1 --images 1 {SHORT}",  # on Ray
    "estimate": f"--method fedavg --attack ig {SMALL}",
    "resume": "first",
    "audit": f"first --attack ig {SHORT}",
    "matrix": f"methods=fedavg defences=none attacks=ig seeds=0 {SMALL}",
    "compare": "first first-again",
    "figures": "first --figure-names leakage --format svg",
    "table": "hyperfl.4",
    "verify": "first",
    "report": "first",
    "purge": "first-again",
    "list": "hyperfl",
    "new": "app clinic",
    "data": "split --dataset digits",
    "rehearse": f"--dataset digits --method fedavg --attack ig {SMALL}",
    "deploy": "init federation --clients 2",
    "completion": "bash",
}
"""A call of each subcommand, from a folder that nothing lies in but the runs of `first`."""


@pytest.fixture(scope="module")
def first(installed: Installed) -> None:
    for name in ("first", "first-again"):
        installed("flfw", "run", *f"--method fedavg --attack ig {SMALL} --out {name}".split())


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("name", [*SUBCOMMANDS, *OTHERS])
def test_a_subcommand_works_outside_the_checkout(installed: Installed, name: str) -> None:
    if name == "report" and not shutil.which("chromium"):
        pytest.skip("no chromium")
    # The quick table has its numbers beside the published ones, and says with 1 that one is not reached.
    installed("flfw", name, *CALLS[name].split(), expected=1 if name == "table" else 0)


def test_what_lists_names_works_outside_the_checkout(installed: Installed) -> None:
    for text in ("list", "completion zsh", "completion fish", "data list", "table --help", "--help"):
        assert installed("flfw", *text.split())


def _table(path: Path, task: str) -> None:
    """Write 120 rows of two numbers and a category, with a class or an amount that depends on them."""
    rng = random.Random(0)
    rows = []
    for _ in range(120):
        age, ward, score = rng.randint(20, 90), rng.choice(["north", "south", "east"]), rng.random()
        amount = round(10 * age + 200 * score + (50 if ward == "north" else 0), 2)
        rows.append([age, ward, round(score, 3), amount if task == "regression" else "yes" if amount > 650 else "no"])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["age", "ward", "score", "outcome"], *rows])


@pytest.mark.parametrize("task", ["classification", pytest.param("regression", marks=pytest.mark.nightly)])
def test_a_table_is_rehearsed(installed: Installed, task: str) -> None:
    sizes = ("--max-steps", "1") if task == "classification" else ()
    _table(installed.folder / f"{task}.csv", task)
    dataset = f"csv:{installed.folder / task}.csv@outcome"
    installed("flfw", "rehearse", "--dataset", dataset, "--method", "fedavg", "--out", task, *sizes)
    result = json.loads((installed.folder / task / "result.json").read_text())
    assert result["audit"] and all(entry["verdict"] for entry in result["audit"])


def test_photos_of_mixed_sizes_are_rehearsed(installed: Installed) -> None:
    rng = random.Random(1)
    for label in ("cats", "dogs"):
        (installed.folder / "photos" / label).mkdir(parents=True)
        for number in range(30):
            size = rng.randint(40, 90), rng.randint(40, 90)
            image = Image.frombytes("RGB", size, rng.randbytes(size[0] * size[1] * 3))
            (image.convert("L") if number % 3 else image).save(installed.folder / "photos" / label / f"{number}.png")
    requested = ("--dataset folder:photos --expert own_images=32 --net lenet --method fedavg --out of-photos").split()
    # A search that finds nothing on noise, and ends soon.
    short = ("--batch-size", "4", "--images", "1", "--max-steps", "1", "--rounds", "1", "--set", "ig.iterations=20")
    installed("flfw", "rehearse", *requested, "--attack", "ig", *short)
    assert json.loads((installed.folder / "of-photos" / "result.json").read_text())["audit"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(installed: Installed, notebook: Path) -> None:
    folder = installed.folder / notebook.stem
    folder.mkdir()
    shutil.copy(notebook, folder)
    installed("jupyter", "execute", "--timeout=900", str(folder / notebook.name))


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) >= 3
