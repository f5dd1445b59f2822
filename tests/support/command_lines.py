"""Command lines with their ends, from a table, and the files that they name."""

import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import sim
from flfw.deploy.__main__ import main as deploy

TABLE = Path(__file__).parent.parent / "runs" / "command_lines.txt"
RUN = shlex.split("--method fedavg --net linear --clients 2 --rounds 1 --local-epochs 1 --engine inproc --split iid")


@dataclass(frozen=True)
class CommandLine:
    """Row of the table.

    Attributes:
        program: sim.py or a module.
        code: expected exit code.
        marks: ``*``: takes long; ``P``: also tried as a process of its own; ``p``: so too, and takes long.
        line: words behind the program, quoted as for a shell, with names of places in braces.
        words: expected in the output: of stderr, or of stdout with code 0.
    """

    program: str
    code: int
    marks: str
    line: str
    words: str

    def arguments(self, places: Mapping[str, str]) -> list[str]:
        """The words with the places filled in."""
        return [filled(word, places) for word in shlex.split(self.line)]


def filled(text: str, places: Mapping[str, str]) -> str:
    """A text with each name in braces replaced by its place."""
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", place)
    return text


def rows() -> Iterator[CommandLine]:
    """All rows of the table, in order."""
    program = ""
    for text in TABLE.read_text(encoding="utf-8").splitlines():
        if text.startswith("== "):
            program = text.removeprefix("== ")
        elif text and not text.startswith("#"):
            head, _, words = text.partition(" ->")
            code, _, line = head.partition(" ")
            yield CommandLine(program, int(code[0]), code[1:], line.strip(), words.strip())


def places(base: Path) -> dict[str, str]:
    """Make the files and folders that the table names, below a folder; return their paths by name."""
    for folder in ("here", "empty", "taken"):
        (base / folder).mkdir()
    (base / "taken" / "thesis.txt").write_text("all of it")
    (base / "file").write_text("some words\n")
    (base / "bad.json").write_text('{"a": [')
    (base / "loop").symlink_to(base / "loop")
    (base / "dangling").symlink_to(base / "nobody")
    assert sim.main([*RUN, "--attack", "analytic", "--images", "2", "--out", str(base / "run")]) == 0
    assert sim.main([*RUN, "--attack", "none", "--out", str(base / "unrecorded")]) == 0
    for name in ("damaged", "broken"):
        shutil.copytree(base / "run", base / name)
    for file in (base / "damaged" / "checkpoint").iterdir():
        file.write_bytes(file.read_bytes()[:20])
    (base / "damaged" / "result.json").write_text("{")
    (base / "broken" / "result.json").write_text("[]")
    assert deploy(["init", str(base / "fed")]) == 0
    for name, file, text in _DAMAGES:
        shutil.copytree(base / "fed", base / name)
        if text is None:
            (base / name / file).unlink()
        else:
            (base / name / file).write_bytes(text)
    policy = (base / "fed" / "site-0" / "policy.toml").read_text()
    (base / "budget.toml").write_text(policy.replace("epsilon = inf", "epsilon = 1").replace('"all"', '"none"'))
    (base / "bad.toml").write_text("allowed_apps = 3\n")
    paths = {path.name: str(path) for path in base.iterdir()} | {"out": str(base / "new" / "run")}
    return paths | {"policy": str(base / "fed" / "site-0" / "policy.toml"), "long": "n" * 300, "newline": "\n"}


_DAMAGES = (
    ("fed-bytes", "federation.toml", b"\xff\xfe["),
    ("fed-types", "federation.toml", b"clients = 'x'\n"),
    ("fed-listen", "federation.toml", b"clients = 3\nlisten = 3\n"),
    ("fed-many", "federation.toml", b"clients = 100000\n"),
    ("fed-pem", "superlink/server.pem", b"x"),
    ("fed-no-pem", "superlink/server.pem", None),
    ("fed-no-ca", "ca/ca.key", None),
    ("fed-ca", "ca/ca.key", b"x"),
    ("fed-db", "superlink/superlink.db", b"x" * 5000),
)
