"""Settings of attacks that are out of range."""

import ast

import pytest

from flfw import plugins
from flfw.adversary.attack import AttackPlugin
from flfw.errors import InputError

REFUSED = """
hyperfl: iterations >= 1, got iterations=0; lr > 0, got lr=0.0; tv >= 0, got tv=-1.0; restarts >= 1, got restarts=0
april: 0 < residual < 1, got residual=0.0; iterations >= 1, got iterations=0; 0 < lr < inf, got lr=0.0
april: 0 <= position < inf, got position=-1.0; restarts >= 1, got restarts=0
gradinversion: iterations >= 1, got iterations=0; 0 < lr < inf, got lr=0.0
gradinversion: warmup_iterations >= 0, got warmup_iterations=-1; restarts >= 1, got restarts=0
gradinversion: 0 <= bn < inf, got bn=-1.0; 0 <= group < inf, got group=-1.0
imprint: 2 <= bins <= 16,384, got bins=1; mode >= 1, got mode=0; 0 < gain < inf, got gain=0.0
imprint: 0 < output < inf, got output=-1.0
loki: 2 <= bins <= 16,384, got bins=1; mode >= 1, got mode=0; 0 < scale < inf, got scale=0.0
loki: 0 < output < inf, got output=-1.0
tableak: iterations >= 1, got iterations=0; restarts >= 1, got restarts=0; 0 < lr < inf, got lr=0.0
ig: iterations >= 1, got iterations=0; 0 < lr < inf, got lr=0.0; 0 <= tv < inf, got tv=-1.0
ig: restarts >= 1, got restarts=0
"""
ROWS = [row.split(": ") for row in REFUSED.strip().splitlines()]
CASES = [(attack, line) for attack, lines in ROWS for line in lines.split("; ")]


@pytest.mark.parametrize(("attack", "line"), CASES)
def test_a_setting_out_of_range_is_refused(attack: str, line: str) -> None:
    name, _, value = line.rpartition("got ")[2].partition("=")
    with pytest.raises(InputError) as caught:
        plugins.load_class(plugins.ATTACK, attack, AttackPlugin).Settings(**{name: ast.literal_eval(value)})
    assert str(caught.value) == f"Expected {line}."
