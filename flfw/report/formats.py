"""Numbers, settings, sentences and a run's command as the page's reader would write them."""

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from jinja2 import Undefined
from markupsafe import Markup, escape

from flfw.experiment import EXPERT, Experiment
from flfw.privacy.rounding import at_least, at_most
from flfw.report.findings import number

# Keys of the configuration that are flags of sim.py; every other key is listed, not typed.
_FLAGS = {
    "method", "dataset", "net", "split", "image_size", "augment", "normalise", "clients", "sample", "rounds",
    "sampling", "local_epochs", "batch_size", "lr", "seed", "target_epsilon", "epsilon_budget", "delta", "accountant",
    "patient_examples", "canaries", "defended", "defence", "attack", "audit_rounds",
    "victim_batch", "victim_steps", "images", "curve", "sum_size", "colluding_clients", "vantage", "adaptation",
    "show_samples", "membership_pairs", "own_images",
}  # fmt: skip
_SAID_IF_CHANGED = {
    "defence", "adaptation", "sampling", "target_epsilon", "epsilon_budget", "delta", "accountant",
    "patient_examples", "canaries", "sum_size", "colluding_clients", "membership_pairs",
    "own_images",
}  # fmt: skip


def decimals(value: Any, places: int = 1) -> str:
    """Format a number for reading: a dash where there is none, the sign of infinity for a perfect score."""
    read = number(value)
    if read is None:
        return "–"
    return ("∞" if read > 0 else "−∞") if math.isinf(read) else f"{read:.{places}f}".replace("-", "−")


def digits(value: Any) -> str:
    """Format a number of any size with three significant digits."""
    read = number(value)
    return decimals(read) if read is None or math.isinf(read) else f"{read:.3g}".replace("-", "−")


def above(value: Any) -> str:
    """Format an upper bound, rounded up."""
    read = number(value)
    return decimals(read) if read is None or math.isinf(read) else at_most(read)


def below(value: Any) -> str:
    """Format a lower bound, rounded down."""
    read = number(value)
    return decimals(read) if read is None or math.isinf(read) else at_least(read)


def percent_above(value: Any) -> str:
    """Format a share that is an upper bound as a percentage, rounded up."""
    read = number(value)
    return percent(read if read is None else math.ceil(1000 * read - 1e-9) / 1000)


def percent(value: Any, decimals: int = 1) -> str:
    """Format a share as a percentage."""
    read = number(value)
    return "–" if read is None else f"{100 * read:.{decimals}f}\N{NO-BREAK SPACE}%"


def plain(value: Any) -> str:
    """Format a value of the configuration as a reader would write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(plain(part) for part in value) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, Undefined) or value != value:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def sentence(text: str) -> str:
    """Return a text as a sentence: with a capital letter and a full stop."""
    text = capital(text)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def flags(text: str) -> Markup:
    """Return a text with each flag of sim.py kept on one line."""
    return Markup(re.sub(r"--[a-z-]+", r'<span class="flag">\g<0></span>', str(escape(text))))


def capital(text: str) -> str:
    """Return a text with a capital letter at its start; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def command(config: Mapping[str, Any]) -> str:
    """Return the call of sim.py for this configuration, one flag for each setting that has one."""
    words, expert = ["python", "sim.py"], list[str]()
    for key, value in config.items():
        usual = key in _SAID_IF_CHANGED and value == getattr(Experiment(), key)
        if key in _FLAGS and value not in (None, "", []) and not usual:
            values = [str(part) for part in value] if isinstance(value, list) else [str(value)]
            joined = [",".join(values)] if key in ("audit_rounds", "defended") else values
            if key in EXPERT:
                expert.append(f"{key}={' '.join(joined)}")
                continue
            words += ["--" + key.replace("_", "-"), *joined]
    more = {"--expert": expert, "--set": config.get("set") or []}
    return shlex.join([*words, *(word for flag, pairs in more.items() if pairs for word in (flag, *pairs))])
