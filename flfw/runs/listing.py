"""Cards of plug-ins, networks, data sets and splits: ``sim.py --list hyperfl``."""

import dataclasses
import importlib
import inspect
import textwrap
from typing import Any

from flfw import bounds, data, nets, plugins
from flfw.adversary.attack import AttackPlugin
from flfw.data.splits import schemes
from flfw.errors import require
from flfw.server.strategy import FederatedStrategy
from flfw.task.defence import Defence

_COLUMN = 40
_FORMS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
_KINDS = {
    "methods": (plugins.METHOD, FederatedStrategy),
    "defences": (plugins.DEFENCE, Defence),
    "attacks": (plugins.ATTACK, AttackPlugin),
}


def about(name: str) -> str:
    """Return the cards of all that has a name, each with its hyper-parameters.

    Raises:
        InputError: ``package.module:Class`` is no method, defence or attack.
    """
    cards, own = [], plugins.imported(name, "plug-in") if ":" in name else None
    for title, (kind, base) in _KINDS.items():
        if name in plugins.names(kind) or (isinstance(own, type) and issubclass(own, base)):
            cls = plugins.load_class(kind, name, base)
            words = cls.__doc__ if own else importlib.import_module(cls.__module__).__doc__
            prefix = "" if kind == plugins.METHOD else f"{plugins.short_name(name)}."  # as --set takes them
            cards.append(f"[{title[:-1]}] {inspect.cleandoc(words or '')}\n\n{_fields(cls.Settings, prefix)}")
    require(bool(cards) or ":" not in name, "a class of a method, defence or attack", list=name)
    if name in data.names():
        card = data.describe(name)
        shape = "x".join(map(str, card.shape))
        terms = f"licence: {card.licence or 'unknown'}\ncite: {card.citation or 'unknown'}"
        cards.append(f"[data set] {name}: {shape}, {card.classes} classes, from {card.source}\n{terms}")
    if name in schemes.schemes():
        scheme = schemes.scheme(name)
        cards.append(f"[split] {name}: {scheme.__doc__}\n\n{_fields(scheme, f'{name}.')}")
    if name in nets.names():
        cards.append(f"[network] {name}: {_network(nets.card(name))}")
    return "\n\n".join(cards)


def _network(card: nets.NetCard) -> str:
    if card.architecture is None:
        return (card.builder.__doc__ or "").strip()
    made = card.architecture
    size = f"inputs resized to {made.side} pixels" if made.side else "inputs as they are"
    words = f"Pretrained body with {made.width} features, {size}. Weights: {made.published.where}."
    return f"{words}\n\n{_fields(nets.AdapterSettings, f'{made.name}.')}"


def _fields(settings: Any, prefix: str = "") -> str:
    lines, means, allowed = [], bounds.meanings(settings), bounds.ranges(settings)
    for field in dataclasses.fields(settings):
        value = str(field.default).lower() if isinstance(field.default, bool) else field.default
        words = f"{means.get(field.name, '')} [{allowed.get(field.name, _FORMS[type(field.default)])}]"
        shown = f"  --set {prefix}{field.name}={value}"
        lines += textwrap.wrap(words, 120, initial_indent=f"{shown:<{_COLUMN}} ", subsequent_indent=" " * (_COLUMN + 1))
    return "\n".join(["Hyper-parameters, with their defaults:", *lines]) if lines else "No hyper-parameters."
