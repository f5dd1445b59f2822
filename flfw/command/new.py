"""Packages of one's own: ``flfw new KIND NAME`` writes an example that runs, under another name.

The methods, defences and attacks are those of docs/extending.md, and the app is examples/quickstart; both are linked
in flfw/examples, so that a wheel has them.
"""

import keyword
import re
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import flfw
from flfw.command.help import wrapped
from flfw.errors import InputError, require, unknown
from flfw.files.exit_code import exit_code

_LINKED = Path(flfw.__file__).parent / "examples"
_PAGE, _APP = _LINKED / "extending.md", _LINKED / "quickstart"
_EXAMPLES = {"method": "head_first", "defence": "shield", "attack": "all_units"}
KINDS = (*_EXAMPLES, "app")
_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
dependencies = ["flfw"]

[tool.hatch.build.targets.wheel]
packages = ["{name}"]
"""
_PURPOSE = "Write a method, a defence, an attack, or a Flower app with its audit, that runs; change it into your own."


def main(words: list[str], program: str) -> int:
    """Return the exit code: 0 written, 2 bad input."""
    return exit_code(program, lambda: _do(words, program))


def _do(words: Sequence[str], program: str) -> int:
    if words in (["-h"], ["--help"]):
        print(f"usage: {program} {{{','.join(KINDS)}}} NAME", *wrapped(_PURPOSE), sep="\n")
        return 0
    require(len(words) == 2, f"{program} KIND NAME", words=" ".join(words) or "none")
    kind, name = words
    if kind not in KINDS:
        raise unknown(f"a kind among {', '.join(KINDS)}", f"kind={kind}", kind, KINDS)
    is_name = name.isidentifier() and name.islower() and name.isascii() and not keyword.iskeyword(name)
    require(is_name, "a name of small letters, digits and _", name=name)
    require(find_spec(name) is None, "a name that no installed package has", name=name)
    folder = Path(name)
    if folder.exists():
        raise InputError(f"Expected a folder that is not there yet, got {folder.resolve()}.")
    print(*(_write_app(folder) if kind == "app" else _write(kind, folder)), sep="\n")
    return 0


def _write(kind: str, folder: Path) -> list[str]:
    """Write a package with a plug-in; return how to run it."""
    name, example = folder.name, _EXAMPLES[kind]
    block = rf"^```python\n# mylab/{example}\.py\n(.*?)^```$.*?^python sim\.py (.*?)$"
    ((text, command),) = re.findall(block, _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for old, new in {f"mylab.{example}": f"{name}.{kind}", rf"\b{_camel(example)}": _camel(name)}.items():
        text, command = re.sub(old, new, text), re.sub(old, new, command)
    (folder / name).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PROJECT.format(name=name))
    (folder / name / "__init__.py").touch()
    (folder / name / f"{kind}.py").write_text(text)
    run = f"PYTHONPATH={folder} flfw run {command}"
    return [str(folder / name / f"{kind}.py"), "", run, f"pip install -e {folder}"]


def _write_app(folder: Path) -> list[str]:
    """Copy the app under another name; return how to run it."""
    shutil.copytree(_APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / _APP.name).rename(folder / folder.name)
    for path in filter(Path.is_file, folder.rglob("*")):
        path.write_text(path.read_text().replace(_APP.name, folder.name))
    return [str(folder), "", f"{folder / 'README.md'} says how to run and audit it."]


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
