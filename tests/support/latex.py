"""Reader of simple LaTeX: it refuses what would not compile."""

import re

_TOKEN = re.compile(r"\\(begin|end)\{([a-z*]+)\}|(?<!\\)([{}])")
_BARE = re.compile(r"(?<!\\)[#_^~]")


def check(text: str) -> list[list[list[str]]]:
    """Return the cells of each table by row; fail where environments, braces, columns or signs do not fit."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    source, open_ = "\n".join(lines), []
    for match in _TOKEN.finditer(source):
        kind, name, brace = match.groups()
        if kind == "begin" or brace == "{":
            open_.append(name or "{")
        else:
            assert open_ and open_.pop() == (name or "{"), (
                f"unbalanced at {source[match.start() : match.start() + 40]!r}"
            )
    assert not open_, f"never closed: {open_}"
    unescaped = [line for line in lines if _BARE.search(re.sub(r"\$[^$]*\$|\\(label|includegraphics).*", "", line))]
    assert not unescaped, unescaped
    assert all(line.count("$") - line.count(r"\$") & 1 ^ 1 for line in lines), "a dollar is never closed"
    assert all(ord(sign) < 256 for line in lines for sign in line), "signs that pdflatex does not know"
    return [
        _cells(*match.groups())
        for match in re.finditer(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", source, re.S)
    ]


def _cells(columns: str, body: str) -> list[list[str]]:
    rows = [line for line in body.strip().splitlines() if not line.startswith(("\\toprule", "\\midrule", "\\bottom"))]
    assert all(row.endswith(r"\\") for row in rows), rows
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)&", row.removesuffix(r"\\"))] for row in rows]
    assert {len(row) for row in cells} == {len(columns)}, f"{columns}: {[len(row) for row in cells]}"
    return cells
