"""Finding methods, clients, defences and attacks: the project's own by file, anybody's by package.module:Class."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flfw import plugins
from flfw.adversary.attack import Attack, AttackPlugin
from flfw.client.federated_client import FederatedClient
from flfw.errors import InputError
from flfw.plugins import ATTACK, CLIENT, DEFENCE, METHOD, PluginKind
from flfw.server.strategy import FederatedStrategy
from flfw.task.defence import Defence
from tests.support.paths import ROOT

KINDS: dict[PluginKind, tuple[str, type]] = {
    METHOD: ("strategies", FederatedStrategy),
    CLIENT: ("clients", FederatedClient),
    DEFENCE: ("clients/defences", Defence),
    ATTACK: ("attacks", AttackPlugin),
}
SHIPPED = [
    (kind, path.stem, base)
    for kind, (folder, base) in KINDS.items()
    for path in sorted((ROOT / folder).glob("*.py"))
    if path.stem != "__init__"
]

HALF_A_DEFENCE = """
from abc import abstractmethod
from flfw.task.defence import Defence

class Outline(Defence):
    @abstractmethod
    def strength(self): ...

class Wall(Outline):
    def strength(self): return 1

class Bystander: ...

wall = Wall()
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A package of somebody else's on the path."""
    package = tmp_path / "somebodys"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "walls.py").write_text(HALF_A_DEFENCE)
    (package / "needy.py").write_text("import a_module_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "somebodys"]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_the_names_are_the_files(kind) -> None:
    files = (ROOT / KINDS[kind][0]).glob("*.py")
    assert plugins.names(kind) == tuple(sorted({path.stem for path in files} - {"__init__"}))


def test_subpackages_are_no_plugins() -> None:
    assert "sgd" in plugins.names(CLIENT)
    assert "defences" not in plugins.names(CLIENT)


@pytest.mark.parametrize(("kind", "name", "base"), SHIPPED, ids=[f"{k.noun}-{n}" for k, n, _ in SHIPPED])
def test_every_shipped_file_holds_one_plugin(kind, name, base) -> None:
    result = plugins.load_class(kind, name, base)
    assert issubclass(result, base)
    assert result.__module__ == f"{kind.package}.{name}"


@pytest.mark.parametrize(
    ("kind", "requested", "like"),
    [
        (METHOD, "fedavgg", "; did you mean fedavg? "),
        (CLIENT, "defences", ""),
        (DEFENCE, "", ""),
        (ATTACK, "flfw.attacks.ig", ""),
    ],
)
def test_an_unknown_name_says_which_there_are(kind, requested, like) -> None:
    with pytest.raises(InputError) as caught:
        plugins.load_class(kind, requested, KINDS[kind][1])
    known = ", ".join(plugins.names(kind)) or "none yet"
    got = f"{kind.noun}={requested}"
    expected = f"Expected {kind.article} {kind.noun} among {known}, or package.module:Class"
    assert str(caught.value) == (f"Got {got}{like}{expected}." if like else f"{expected}; got {got}.")


def test_somebodys_own_class_is_found(foreign) -> None:
    result: Any = plugins.load_class(DEFENCE, "somebodys.walls:Wall", Defence)
    assert result().strength() == 1
    assert result.__module__ == "somebodys.walls"


ABSENT = "; install it, or put its folder on PYTHONPATH"
REFUSED = [
    ("somebodys.walls:Bystander", "{} to be a concrete Defence, got <class 'somebodys.walls.Bystander'>"),
    ("somebodys.walls:Outline", "{} to be a concrete Defence, got <class 'somebodys.walls.Outline'>, without strength"),
    ("somebodys.walls:Defence", "{} to be a concrete Defence, got <class 'flfw.task.defence.Defence'>"),
    ("somebodys.walls:Moat", "{} to be a concrete Defence, got no such name in the module"),
    ("somebodys.walls:", "package.module:name, got {}"),
    (":Wall", "package.module:name, got {}"),
    ("somebodys.walls:Wall:Wall", "package.module:name, got {}"),
    ("other somebodys.walls:Wall", "package.module:name, got {}"),
    ("nobodys.walls:Wall", "an importable module for {}, got: No module named 'nobodys'" + ABSENT),
    ("somebodys.moats:Moat", "an importable module for {}, got: No module named 'somebodys.moats'" + ABSENT),
    ("somebodys.needy:X", "an importable module for {}, got: No module named 'a_module_nobody_has'" + ABSENT),
]


def test_what_is_no_concrete_defence_is_refused(foreign) -> None:
    for name, message in REFUSED:
        with pytest.raises(InputError) as caught:
            plugins.load_class(DEFENCE, name, Defence)
        assert str(caught.value) == f"Expected {message.format(f'defence={name}')}."


def test_an_instance_is_no_class(foreign) -> None:
    with pytest.raises(
        InputError, match=r"^Expected defence=somebodys.walls:wall to be a concrete Defence, got <somebo"
    ):
        plugins.load_class(DEFENCE, "somebodys.walls:wall", Defence)


def test_a_defence_is_no_attack(foreign) -> None:
    with pytest.raises(InputError, match=r"to be a concrete Attack, got <class 'somebodys.walls.Wall'>"):
        plugins.load_class(ATTACK, "somebodys.walls:Wall", Attack)


def test_a_program_is_no_module(tmp_path, monkeypatch) -> None:
    (tmp_path / "a_program_that_ends.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"got a program that ended\.$"):
        plugins.load_class(DEFENCE, "a_program_that_ends:X", Defence)


@pytest.mark.parametrize("name", [":Wall", ".walls:Wall", "..:Wall", ":"])
def test_half_a_module_name_is_bad_input(foreign, name) -> None:
    with pytest.raises(InputError, match=r"^Expected "):
        plugins.load_class(DEFENCE, name, Defence)


# --- other packages of the same names -----------------------------------------------------------------------------

FIND = """
from flfw import plugins
from flfw.adversary.attack import Attack
from flfw.client.federated_client import FederatedClient
print(plugins.load_class(plugins.CLIENT, "sgd", FederatedClient))
print(plugins.load_class(plugins.ATTACK, "ig", Attack))
"""


@pytest.mark.slow
@pytest.mark.parametrize("has_the_file", [True, False], ids=["same file", "no such file"])
def test_another_package_of_a_folders_name_does_no_harm(tmp_path, has_the_file) -> None:
    other = tmp_path / "other"
    for package, name in (("clients", "sgd"), ("attacks", "ig")):
        (other / package).mkdir(parents=True)
        (other / package / "__init__.py").touch()
        if has_the_file:
            shutil.copy(ROOT / package / f"{name}.py", other / package)  # would pass for the real one
    environment = {**os.environ, "PYTHONPATH": f"{other}{os.pathsep}{ROOT}"}
    printed = subprocess.check_output([sys.executable, "-c", FIND], cwd=tmp_path, env=environment, text=True)
    assert printed.splitlines() == ["<class 'flfw.clients.sgd.SGDClient'>", "<class 'flfw.attacks.ig.IG'>"]


# --- a user's own repository --------------------------------------------------------------------------------------

SHIELD = '''
"""A defence that lets a share of each update through."""

from dataclasses import dataclass

from flfw.task.defence import Defence
from mylab.attacks import TARGET
from mylab.strategies.scaling import scaled

assert TARGET == "mylab's own"


@dataclass(frozen=True)
class ShieldSettings:
    keep: float = 1.0


class Shield(Defence):
    Settings = ShieldSettings

    def update(self, update, rng):
        return scaled(update, self.settings.keep)
'''
LAB = {
    "mylab/__init__.py": "",
    "mylab/shield.py": SHIELD,
    "mylab/attacks/__init__.py": 'TARGET = "mylab\'s own"\n',
    "mylab/strategies/__init__.py": "",
    "mylab/strategies/scaling.py": "def scaled(update, by):\n    return {n: by * v for n, v in update.items()}\n",
}
# Beside the package, as in many repositories; running these instead of the project's would fail.
LOOSE = {
    "strategies/__init__.py": "",
    "strategies/fedavg.py": "raise SystemExit('the wrong strategies')\n",
    "attacks/__init__.py": "raise SystemExit('the wrong attacks')\n",
}
METADATA = "Metadata-Version: 2.1\nName: mylab\nVersion: 0.1\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write(files: dict[str, str], folder: Path) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def checkout(folder: Path) -> Path:
    """The lab's repository, worked in directly."""
    return write({**LAB, **LOOSE, "pyproject.toml": '[project]\nname = "mylab"\nversion = "0.1"\n'}, folder / "lab")


def installation(folder: Path) -> Path:
    """The lab's wheel, installed into a folder of its own."""
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if uv is None:
        pytest.skip("no uv to install with")
    info = "mylab-0.1.dist-info"
    files = {**LAB, f"{info}/METADATA": METADATA, f"{info}/WHEEL": WHEEL}
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    wheel = folder / "mylab-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    command = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", sys.executable]
    subprocess.run([*command, "--target", str(folder / "site"), str(wheel)], check=True, capture_output=True)
    return folder / "site"


def accuracies(folder: Path, *flags: str, path: Path | None = None) -> list[float]:
    """Accuracy as received in rounds 1 and 2 and after the last, of two FedAvg clients on the digits."""
    line = "--engine inproc --method fedavg --rounds 2 --local-epochs 1 --clients 2 --lr 0.1 --attack none --out out"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "FLFW_DATA")}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache")} | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, str(ROOT / "sim.py"), *line.split(), *flags]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    result = json.loads((folder / "out" / "result.json").read_text())
    return [*(row["acc_global"] for row in result["rounds"]), result["final"]["acc_global"]]


@pytest.fixture(scope="module")
def undefended(tmp_path_factory) -> list[float]:
    return accuracies(tmp_path_factory.mktemp("undefended"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [pytest.param(checkout, marks=pytest.mark.nightly), installation], ids=lambda place: place.__name__
)
def test_a_defence_from_a_users_own_repository_reaches_the_clients(tmp_path, undefended, place) -> None:
    flags = ("--defence", "mylab.shield:Shield", "--set", "Shield.keep=0")
    # Nothing was let through, so that the broadcast model never moved.
    assert accuracies(tmp_path, *flags, path=place(tmp_path)) == [undefended[0]] * 3
    assert undefended[1] != undefended[0]
