"""Names and fields that are read off source files are those of the imported classes."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest

from flfw import nets, plugins
from flfw.adversary.attack import AttackPlugin
from flfw.plugins import ATTACK, DEFENCE, METHOD
from flfw.spelling import declared
from flfw.task.defence import Defence
from flfw.task.method import Method

BASES: dict[str, type] = {"method": Method, "defence": Defence, "attack": AttackPlugin}
PLUGINS = [(kind, name) for kind in (METHOD, DEFENCE, ATTACK) for name in plugins.names(kind)]


def test_networks_are_those_of_the_package() -> None:
    assert declared.networks() == nets.names()
    assert set(declared.pretrained()) == {n for n in nets.names() if nets.card(n).architecture is not None} != set()


@pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=[f"{kind.noun}-{name}" for kind, name in PLUGINS])
def test_fields_are_those_of_the_imported_settings(kind: plugins.PluginKind, name: str) -> None:
    settings: Any = plugins.load_class(kind, name, BASES[kind.noun])
    read = declared.fields(kind, name)
    assert read is not None
    assert list(read) == [field.name for field in dataclasses.fields(settings.Settings)]


def test_an_annotation_is_a_scalar_or_one_of_some_words() -> None:
    assert declared.type_of("int") is int
    assert declared.type_of("Literal['a', 'b']") == Literal["a", "b"]
    assert declared.type_of("Rule") is None and declared.type_of("int | None") is None
