"""Lists on the pages that the code has, too: subcommands, methods that allow something, flags, variants, keys."""

import re
import shlex
from functools import cache

import pytest

import sim
from flfw import plugins
from flfw.adversary.attack import AttackPlugin
from flfw.client import FederatedClient
from flfw.command.subcommands import OTHERS, SUBCOMMANDS, translated
from flfw.experiment import FREE_ON_RESUME
from flfw.files.result_entries import MembershipFields
from flfw.server.strategy import FederatedStrategy
from tests.support.paths import ROOT


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def between(text: str, start: str, end: str) -> str:
    """The words of a page between two others."""
    return text.partition(start)[2].partition(end)[0]


@cache
def methods() -> dict[str, type[FederatedStrategy]]:
    return {name: plugins.load_class(plugins.METHOD, name, FederatedStrategy) for name in plugins.names(plugins.METHOD)}


@pytest.mark.slow
def test_each_subcommand_stands_beside_its_flag() -> None:
    rows = re.findall(r"^\| `flfw (\S+) ?(.*?)`.*? \| *`?(.*?)`? *\|$", page("command_line.md"), re.MULTILINE)
    assert {name for name, *_ in rows} == {*SUBCOMMANDS, *OTHERS}
    for name, words, flag in rows:
        if name in SUBCOMMANDS:
            beside = shlex.split(flag.removeprefix("python sim.py"))
            assert sim.parse(translated(name, shlex.split(words))) == sim.parse(beside), name


def test_the_flags_that_a_resumed_run_takes_are_listed() -> None:
    listed = between(page("running.md"), "Flags that do not change any number may be given again:", "All others")
    flags = {flag.replace("-", "_") for flag in re.findall(r"`--(?:expert )?([a-z_-]+)`", listed)}
    assert flags == {*FREE_ON_RESUME} - {"out"}  # the folder that stands behind --resume


def test_the_variants_of_each_method_are_listed() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (?:`(.*?)` )?\|$", page("running.md"), re.MULTILINE)
    written = {
        name: {variant: " ".join(f"{key}={value}" for key, value in fields.items()) for variant, fields in some.items()}
        for name, method in methods().items()
        if (some := method.variants)
    }
    listed = {name: {"authors": authors} | ({"paper": paper} if paper else {}) for name, authors, paper in rows}
    assert {name: listed[name] for name in listed if name in methods()} == written


def test_the_methods_that_a_robust_mean_suits_are_listed() -> None:
    listed = between(page("running.md"), "and nothing else have it:", ".")
    assert set(re.findall(r"\w+", listed)) - {"and"} == {name for name, one in methods().items() if one.averaged}


def follows_errors(name: str) -> bool:
    """Tell whether the clients of a method follow a squared error."""
    half = methods()[name].client or (name if name in plugins.names(plugins.CLIENT) else "sgd")
    return plugins.load_class(plugins.CLIENT, half, FederatedClient).regresses and not methods()[name].needs_classes


def test_the_methods_and_attacks_for_a_regression_are_listed() -> None:
    (row,) = re.findall(
        r"^\| methods whose clients follow the loss of each example: (.*?) \|", page("data.md"), re.MULTILINE
    )
    assert set(re.findall(r"`(\w+)`", row)) == {name for name in methods() if follows_errors(name)}
    (row,) = re.findall(r"^\| (.*`tableak`.*) \| other attacks;", page("data.md"), re.MULTILINE)
    attacks = {name: plugins.load_class(plugins.ATTACK, name, AttackPlugin) for name in plugins.names(plugins.ATTACK)}
    assert set(re.findall(r"`(\w+)`", row)) == {name for name, attack in attacks.items() if attack.numbers}


def test_the_keys_of_an_item_of_membership_are_listed() -> None:
    listed = between(page("membership.md"), "\nKeys of an item: ", "\n\n")
    outer = re.sub(r"\([^)]*\)", "", listed)  # keys within a key stand in brackets
    assert set(re.findall(r"`(\w+)`", outer)) == set(MembershipFields.model_fields)
