"""Listing of a table's columns for the terminal: type, encoding and share missing of each."""

from collections import Counter

from flfw.data.files.columns import TableSchema
from flfw.errors import abridged
from flfw.files.tables import aligned

DESCRIBING = ("Table: ", "Regression of ", "Classification of ", "Examples: ")
"""Openings of the sentences that describe a table, or count examples, and are no caveats of a run on it."""

_MOST = 40  # columns with a line of their own
_NAMED = 6  # columns that are left out, or classes, that are named in a sentence
_WIDEST = 90  # characters of an encoding


def listing(schema: TableSchema, maximum: int = _MOST, widest: int = _WIDEST) -> str:
    """Return a table with a line for each column, those left out last; `sentences` says the rest.

    Args:
        schema: the columns.
        maximum: lines at most; the rest is counted by kinds.
        widest: characters of an encoding at most.
    """
    order = sorted(schema.columns, key=lambda column: column.kind == "dropped")
    rows = []
    for column in order[:maximum]:
        words = column.encoding if len(column.encoding) <= widest else f"{column.encoding[: widest - 3]}..."
        kind = "-" if column.kind == "dropped" else column.kind
        absent = "-" if schema.public and not column.absent else f"{column.absent:.1%}"
        rows.append((column.name, kind, str(column.width or "-"), absent, words))
    head = ("column", "type", "features", "missing", "encoded as")
    lines = [aligned(head, rows, right=("features", "missing"))]
    if rest := order[maximum:]:
        counts = Counter("left out" if column.kind == "dropped" else column.kind for column in rest)
        lines.append(f"and {len(rest):,} more: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
    return "\n".join(lines)


def _left_out(schema: TableSchema) -> str:
    """Return words on the columns that are left out: their number and the first names."""
    names = [column.name for column in schema.columns if not column.width]
    are = "is" if len(names) == 1 else "are"
    return f"{len(names)} {are} left out: {abridged(names, _NAMED)}" if names else "none is left out"


def sentences(schema: TableSchema | None) -> list[str]:
    """Return sentences on a table's features, its target and its scales; none for other data."""
    if schema is None:
        return []
    kept = len(schema.kept)
    features = f"{schema.width} feature{'' if schema.width == 1 else 's'}"
    become = f"{kept} column{' becomes' if kept == 1 else 's become'} {features} in [0, 1]"
    notes = [f"Table: {become}; {_left_out(schema)}."]
    if schema.number is not None:
        number = schema.number
        notes.append(
            f"Regression of {schema.target}: squared error on (value - {number.mean:.4g}) / {number.std:.4g}; "
            f"errors are in the target's own units{f' ({number.unit})' if number.unit else ''}."
        )
    else:
        shown = abridged(schema.classes, _NAMED)
        notes.append(f"Classification of {schema.target}: {len(schema.classes)} classes, {shown}.")
    if schema.public:
        notes.append("Scales and categories are those of the plan of columns, which says that they are public.")
    else:
        notes.append(
            "Scales, categories and substitutes for missing values come from the training rows of all clients "
            "together: sites would have to tell them to one another, and the audit takes them for public. "
            "A plan of columns names others."
        )
    return notes
