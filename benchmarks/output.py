"""How a benchmark speaks: some lines for people, then one JSON object as the last line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any

from flfw.storage.provenance import hardware


def parser(description: str | None) -> argparse.ArgumentParser:
    """The flags that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    return made


def say(found: Mapping[str, Any], lines: Iterable[str], *, only_json: bool) -> None:
    """Print the lines, unless only the JSON is wanted, and what was found, with the hardware it was found on."""
    if not only_json:
        print(*lines, sep="\n")
    print(json.dumps({**found, "hardware": hardware()}))
