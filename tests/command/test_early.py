"""Before anything is loaded: an interrupt, and names and fields that are read off source files."""

import builtins
import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

import sim
from flfw import __main__, nets, plugins
from flfw.adversary.attack import AttackPlugin
from flfw.command import early
from flfw.files.exit_code import exit_code
from flfw.plugins import ATTACK, DEFENCE, METHOD
from flfw.task.defence import Defence
from flfw.task.method import Method

BASES: dict[str, type] = {"method": Method, "defence": Defence, "attack": AttackPlugin}
PLUGINS = [(kind, name) for kind in (METHOD, DEFENCE, ATTACK) for name in plugins.names(kind)]


def test_networks_are_those_of_the_package() -> None:
    assert early.networks() == nets.names()
    assert set(early._pretrained()) == {n for n in nets.names() if nets.card(n).architecture is not None} != set()


@pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=[f"{kind.noun}-{name}" for kind, name in PLUGINS])
def test_fields_are_those_of_the_imported_settings(kind: plugins.PluginKind, name: str) -> None:
    settings: Any = plugins.load_class(kind, name, BASES[kind.noun])
    read = early.fields(kind, name)
    assert read is not None
    assert list(read) == [field.name for field in dataclasses.fields(settings.Settings)]


def test_an_annotation_is_a_scalar_or_one_of_some_words() -> None:
    assert early.type_of("int") is int
    assert early.type_of("Literal['a', 'b']") == Literal["a", "b"]
    assert early.type_of("Rule") is None and early.type_of("int | None") is None


def test_a_left_folder_hides_no_module_and_half_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flow" / "__pycache__").mkdir(parents=True)
    (tmp_path / "flow.py").write_text("x = 1\n")
    monkeypatch.setattr(early, "_ROOT", tmp_path)
    assert early._source("flfw.flow") == "x = 1\n"
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "half.py").write_text("x = (\n")
    assert exit_code("flfw list", lambda: len(early.opening(METHOD, "half"))) == 2
    assert capsys.readouterr().err.startswith("flfw list: Expected Python in flfw/strategies/half.py, got '(' was")


def test_an_interrupt_during_the_imports_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported = builtins.__import__

    def interrupted(name: str, *more: Any) -> Any:
        if name == "flfw.command.program":
            raise KeyboardInterrupt
        return imported(name, *more)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert (__main__.main([]), sim.main([])) == (130, 130)
    assert capsys.readouterr() == ("", "flfw: interrupted\nsim.py: interrupted\n")
