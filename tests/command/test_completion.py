"""Completion of ``flfw`` in real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flfw import plugins
from flfw.command.completion import SHELLS, script
from flfw.command.subcommands import OTHERS, SUBCOMMANDS
from flfw.errors import InputError
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        (folder / shell).write_text(script(shell))
    return {shell: folder / shell for shell in SHELLS}


def completed(file: Path, line: str) -> list[str]:
    """The words that bash offers at the end of a line, with the script as a user would source it."""
    code = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
        function=$(complete -p flfw | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        "$function" flfw "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    words = [*line.split(), ""] if line.endswith(" ") else line.split()
    command = ["bash", "--norc", "-c", code, "bash", str(file), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_subcommands_flags_and_names(scripts: dict[str, Path]) -> None:
    bash = scripts["bash"]
    assert completed(bash, "flfw re") == ["resume", "report", "rehearse"]
    assert set(completed(bash, "flfw ")) >= {*SUBCOMMANDS, *OTHERS}
    assert completed(bash, "flfw run --local") == ["--local-epochs"]
    assert completed(bash, "flfw run --method hyper") == ["hyperfl", "hyperfl_lpm"]
    assert completed(bash, "flfw run --rounds 3 --attack gr") == ["gradinversion"]
    assert completed(bash, "flfw run --engine in") == ["inproc"]
    assert completed(bash, "flfw run --dataset fold") == ["folder:"]
    assert completed(bash, "flfw table hyperfl.") == [f"hyperfl.{n}" for n in range(1, 6)]
    assert completed(bash, "flfw data ver") == ["verify"]
    assert completed(bash, "flfw compare --rou") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(shell: str, scripts: dict[str, Path]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run([shell, "-n", str(scripts[shell])], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_all_subcommands_and_names(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text()
    kinds = (plugins.METHOD, plugins.ATTACK, plugins.DEFENCE)
    assert all(word in text for word in [*SUBCOMMANDS, *OTHERS, *(n for kind in kinds for n in plugins.names(kind))])


def test_an_unknown_shell_is_refused() -> None:
    with pytest.raises(InputError, match=r"^Got shell=csh; did you mean zsh\? Expected a shell among bash, zsh, fish"):
        script("csh")


def test_a_script_needs_no_torch() -> None:
    code = "import sys; from flfw.command.completion import script; script('bash'); print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "False\n"
