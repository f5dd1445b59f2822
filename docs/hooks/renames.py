"""Command ``python -m docs.hooks.renames``: write docs/tables/renames.md, the earlier names that the code knows."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from flfw.adversary.attack import Attack
from flfw.client.local_trainer import LocalTrainer
from flfw.dp.settings import DPSettings
from flfw.experiment import EXPERT
from flfw.files.earlier_names import renames
from flfw.inversion.client_models.operator import Operator
from flfw.privacy.mechanism import Mechanism
from flfw.task.client_plan import PlanContext
from flfw.task.defence import Defence
from flfw.task.method import Method

PAGE = Path(__file__).resolve().parents[1] / "tables" / "renames.md"
_HOOKED = (Method, LocalTrainer, PlanContext, Defence, Attack, Operator, DPSettings)
_HEAD = """<!-- Written by `python -m docs.hooks.renames`. -->

# Earlier names

Folders, policies and code of earlier checkouts may have the names on the left. "Read" means: the file is understood,
and a file that is written has the name of today. "Refused" means: one line says the name of today.
"""


def page() -> str:
    """Return the page as it has to stand."""
    names = renames()
    ends = ((f"{end} (of a range)", today) for end, today in names.rule_ends.items())
    flags = ((old, _flag(new)) for old, new in (*names.flags.items(), *names.task_flags.items()))
    of_flags = (*names.values.items(), *names.words.items())
    values = ((f"{flag} {old}", f"{flag} {new}") for flag, words in of_flags for old, new in words.items())
    words = [*((old, new[0]) for old, new in names.verdicts.items()), *names.controls.items()]
    gone = ((old, f"{way} | {'empty' if usual == '' else usual}") for old, (usual, way, _) in names.gone.items())
    parts = (
        ("Keys of result.json, training.json and matrix.json: read", names.keys.items()),
        ("Columns of CSV files: read", names.columns.items()),
        ("Verdicts and controls: read", words),
        ("Keys of a site's policy: read", [*names.policy_keys.items(), *ends]),
        ("Fields of a mechanism in results and ledgers: read", Mechanism.EARLIER_NAMES.items()),
        ("Flags, the earlier ones without their hyphens: refused; read in stored settings", flags),
        ("Values of flags: refused; read in stored settings", values),
    )
    tables = [f"## {title}\n\n| earlier | today |\n|---|---|\n{_rows(pairs)}\n" for title, pairs in parts]
    lost = f"{_LOST}\n| earlier | what to do | usual value |\n|---|---|---|\n{_rows(gone, '')}\n"
    imports = "## Imports: refused\n\n" + "".join(f"- `{new}` (was `{old}`)\n" for old, new in sorted(_imports()))
    hooks = "## Hooks and attributes of plug-ins: refused\n\n| class | earlier | today |\n|---|---|---|\n" + "".join(
        f"| `{kind.__name__}` | `{old}` | `{new}` |\n" for kind in _HOOKED for old, new in kind.EARLIER_HOOKS.items()
    )
    return "\n".join([_HEAD, *tables, lost, imports, hooks])


_LOST = """## Settings that are gone: refused

A stored run is read if its value is the usual one, if the setting decided no numbers, or if a setting of today says
the same. Else it is refused.
"""


def _flag(name: str) -> str:
    field = name.replace("-", "_")
    return f"--expert {field}" if field in EXPERT else f"--{name}"


def _rows(pairs: Iterable[tuple[str, str]], mark: str = "`") -> str:
    return "\n".join(f"| `{old}` | {mark}{new}{mark} |" for old, new in sorted(pairs))


def _imports() -> Iterator[tuple[str, str]]:
    yield from (*renames().modules.items(), *renames().packages.items())
    for module, of_today in renames().names.items():
        yield from ((f"{module}.{old}", f"{module}.{new}") for old, new in of_today.items())


if __name__ == "__main__":
    PAGE.write_text(page())
