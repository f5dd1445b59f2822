"""Order of the settings of a run: the answer of the page, and the settings that belong side by side."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from flfw.files import outcomes
from flfw.report.findings import GRANT, AuditEntry

# The weakest evidence first: a page that opens with the best-sounding of several verdicts would mislead.
ORDER = (
    outcomes.RECONSTRUCTED,
    outcomes.IDENTIFIED,
    outcomes.MALICIOUS,
    outcomes.VOID,
    outcomes.UNDECIDED,
    outcomes.STATIC,
    outcomes.NO_LEAK_FOUND,
)


def worst_first(settings: Iterable[AuditEntry]) -> list[AuditEntry]:
    """Sort settings by the largest leak or, where nothing leaked, by the weakest evidence.

    A static attack that is `set_aside` comes late, and last one of an outsider, who sees nothing to recover data from.
    """
    settings = list(settings)
    aside = {setting.key for setting in set_aside(settings)}

    def rank(setting: AuditEntry) -> tuple[int, float, float]:
        nearest = max((sample.nearness for sample in setting.samples), default=-math.inf)
        place = len(ORDER) if setting.key in aside else seriousness(setting.outcome)
        place = len(ORDER) + 1 if setting.entry.get("vantage") == "outsider" else place
        return place, -setting.recovered / max(setting.total, 1), -nearest

    return sorted(settings, key=rank)


def seriousness(found: str) -> int:
    """Return the place of an outcome in `ORDER`; one that follows without an attack, or of other data, comes first."""
    return ORDER.index(found) if found in ORDER else 0


def answers(settings: Sequence[AuditEntry]) -> tuple[AuditEntry | None, AuditEntry | None]:
    """Return the setting of the page's headline, and the worst point of a curve that leaks more than any target."""
    plain = [setting for setting in settings if not setting.entry.get("curve")]
    worst = next(iter(worst_first(plain or settings)), None)
    if worst is None or not plain:
        return worst, None
    leaks = [
        setting
        for setting in settings
        if setting.entry.get("curve")
        and setting.outcome in outcomes.POSITIVE
        and seriousness(setting.outcome) < seriousness(worst.outcome)
    ]
    return worst, next(iter(worst_first(leaks)), None)


def decisive_setting(settings: Sequence[AuditEntry]) -> AuditEntry | None:
    """Return the setting that the page's verdict speaks of; None: nothing was attacked."""
    worst, elsewhere = answers(settings)
    return elsewhere or worst


def set_aside(settings: Sequence[AuditEntry]) -> list[AuditEntry]:
    """Return static attacks without a leak where an adaptive attack is the answer.

    The adaptive one is any fully informed attack in the same place, or the same attack informed of the defence.
    """
    static = [setting for setting in settings if setting.outcome == outcomes.STATIC]
    return [setting for setting in static if any(_answers(other, setting) for other in settings)]


def _answers(other: AuditEntry, static: AuditEntry) -> bool:
    if other is static or place_of(other) != place_of(static):
        return False
    same = _attack(other) == _attack(static) and other.informed and not static.informed
    return bool(other.entry.get("adaptive")) or same


def _attack(setting: AuditEntry) -> Any:
    return setting.entry.get("attack")


def twins(settings: Sequence[AuditEntry]) -> dict[str, AuditEntry]:
    """Return by key the counterpart of each setting whose attack ran with and without knowledge of the defence."""
    counterparts = {}
    for pair in side_by_side(settings):
        if pair[1].informed and _attack(pair[0]) == _attack(pair[1]):
            counterparts |= {pair[0].key: pair[1], pair[1].key: pair[0]}
    return counterparts


def together(settings: Iterable[AuditEntry]) -> list[AuditEntry]:
    """Keep the order of settings, but put one attack's results in one place, informed or not, next to each other."""
    settings, first = list(settings), {}
    for setting in settings:
        first.setdefault((_attack(setting), *place_of(setting)), len(first))
    return sorted(settings, key=lambda setting: first[_attack(setting), *place_of(setting)])


def without_copies(settings: Iterable[AuditEntry]) -> list[AuditEntry]:
    """Remove settings of updates read on the client where the server's have the same bytes and numbers."""
    settings = list(settings)
    seen = {_but_for_vantage(setting) for setting in settings if setting.entry.get("vantage") == "server"}
    return [
        setting
        for setting in settings
        if setting.entry.get("vantage") != "client_update" or _but_for_vantage(setting) not in seen
    ]


def _but_for_vantage(setting: AuditEntry) -> tuple[Any, ...]:
    return _attack(setting), setting.informed, bool(setting.entry.get("adaptive")), *place_of(setting, "vantage")


def place_of(setting: AuditEntry, but_for: str = "") -> tuple[Any, ...]:
    """Return the place of an attack: round, source, vantage, client, defence and, on a curve, the point.

    Args:
        setting: the attack.
        but_for: one of these that does not count.
    """
    size = ("batch", "steps") if setting.entry.get("curve") else ()
    keys = ("round", "source", "vantage", "client", "defence", "curve", *size)
    return tuple(setting.entry.get(key) for key in keys if key != but_for)


def side_by_side(settings: Iterable[AuditEntry]) -> list[tuple[AuditEntry, AuditEntry]]:
    """Pair static attacks with their adaptive forms in the same place, or else the strongest attack of each kind."""
    places: dict[tuple[Any, ...], list[AuditEntry]] = {}
    for setting in settings:
        places.setdefault(place_of(setting), []).append(setting)
    pairs = []
    for group in places.values():
        ranked = sorted(group, key=lambda s: -s.recovered / max(s.total, 1))
        static = [setting for setting in ranked if not (setting.informed or setting.entry.get("adaptive"))]
        adaptive = [setting for setting in ranked if setting.informed or setting.entry.get("adaptive")]
        same = [(a, b) for a in static for b in adaptive if a.entry.get("attack") == b.entry.get("attack")]
        pairs += same or list(zip(static, adaptive, strict=False))[:1]
    return pairs


def probes_beside_uploads(settings: Iterable[AuditEntry]) -> list[tuple[AuditEntry, AuditEntry]]:
    """Pair each attack on uploads of training with the same attack on the round's probes."""
    probes: dict[tuple[Any, ...], AuditEntry] = {}
    pairs = []
    for setting in settings:
        index = _attack(setting), setting.informed, *place_of(setting, "source")
        if setting.entry.get("source") == "probe":
            probes[index] = setting
        elif index in probes:
            pairs.append((probes[index], setting))
    return pairs


def group_by_grant(settings: Iterable[AuditEntry]) -> list[list[AuditEntry]]:
    """Group settings whose attackers have the same grants and budget: they share one description."""
    groups: dict[str, list[AuditEntry]] = {}
    for setting in settings:
        grants = {key: value for key, value in setting.entry.items() if key in GRANT}
        groups.setdefault(json.dumps(grants, sort_keys=True), []).append(setting)
    return list(groups.values())
