"""What a run leaves open: questions to put to the federation, and what was not tested.

`opinion_facts` are facts of a run beside the questions of EDPB Opinion 28/2024 on anonymous models; the judgement is
the reader's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from flfw.experiment import AGGREGATE, OUTSIDER, PEER
from flfw.files import outcomes
from flfw.report.findings import AuditEntry, number
from flfw.report.formats import above, capital, decimals, percent, percent_above
from flfw.report.page_data import Scope, is_regression, most_missed
from flfw.report.questions import decisive, sees_sums, share_right
from flfw.report.ranking import answers, decisive_setting, worst_first
from flfw.report.run_verdict import IN_PLACE, NOTHING, ONE, is_bound, place_shown

_ON_CLIENT = ("client_update", "client_example")
_NONE = (None, "", "none")
SEED_WITHHELD = "not granted: the run's seed"  # the beginning of a grant in `flfw.audit.threat_model`
_OWN = ("folder:", "site:", "table:", "text:", "csv:", "parquet:", "hf:")
_STRONGER = {
    "few": "with more messages (--images)",
    "static": "with an attack that knows what hides the data (--expert adaptation=auto)",
    "failures": "with more time (--expert attack_timeout)",
    "group": "with more clients in a sum (--expert sum_size)",
    "untried": "with other attacks on the sums",
    "noise": "with an attack that knows how the randomness is drawn",
    "analytic": "once the failed check is mended",
    "description": "once the test describes what clients compute",
}


Questions: TypeAlias = Iterator[tuple[str, str]]
"""Questions to the federation, each with what in the run it rests on."""


def recommendations(
    settings: Sequence[AuditEntry], membership: Sequence[Mapping[str, Any]], result: Mapping[str, Any], scope: Scope
) -> list[tuple[str, str]]:
    """Return the questions of a run, each with what it rests on; the one that matters most comes first.

    Args:
        settings: settings of the audit by reconstruction.
        membership: ``membership`` of result.json.
        result: result.json.
        scope: scope of the audit by reconstruction.
    """
    config = result.get("config") or {}
    row = decisive(membership)
    return [
        *_protection(settings, row, config),
        *_missing_tests(settings, row, config),
        *_size(settings, config),
        *_sums(settings, membership, result),
        *_bound(result.get("privacy") or [], config),
        *_people(settings, membership, result, config, scope),
        *_rounds(settings, config, scope),
    ]


def _protection(settings: Sequence[AuditEntry], row: Mapping[str, Any] | None, config: Mapping[str, Any]) -> Questions:
    shown = decisive_setting(settings)
    entry = shown.entry if shown else {}
    if outcomes.outcome(entry) == outcomes.MALICIOUS or config.get("malicious_server"):
        by = entry.get("malicious_server") or config.get("malicious_server")
        yield "How do clients notice a server that changes what they train?", f"Attack {by} did so in this run."
    leaking = [one for one in (entry, row or {}) if outcomes.outcome(one) in (*outcomes.POSITIVE, outcomes.MEMBER)]
    if leaking:
        hidden = leaking[0].get("protected_by") or leaking[0].get("defence")
        if hidden in _NONE:
            question = "Which protection will be switched on, and does an audit with it find less?"
            yield question, "Clients had no defence where this run found its leak (--defence)."
        else:
            kind = "method" if hidden == config.get("method") else "defence"
            question = f"What replaces or strengthens {kind} {hidden}?"
            yield question, "It was on where this run found its leak."
    if config.get("defended") not in (None, "all") and config.get("defence") not in _NONE:
        yield "Will all clients defend themselves?", f"Here only these did: {config.get('defended')}."
    defence, granted = config.get("defence"), [str(words) for words in entry.get("granted") or []]
    withheld = [words for words in granted if words.startswith(SEED_WITHHELD)]
    if (
        defence not in _NONE
        and config.get("defence_randomness") == "seed"
        and any(str(defence) in one for one in withheld)
    ):
        because = "Here the draws come from the seed, and a server that has it can repeat them."
        yield f"Will {defence} draw in secret (--expert defence_randomness=secure)?", because


def _missing_tests(
    settings: Sequence[AuditEntry], row: Mapping[str, Any] | None, config: Mapping[str, Any]
) -> Questions:
    worst, _ = answers(settings)
    if worst is None:
        yield "Will anyone try to recover data from what clients send?", "No such attack ran (--attack)."
    elif worst.entry.get("verdict") == outcomes.UNDECIDED:
        how = _STRONGER.get(worst.cause, "with a stronger attack (--attack)")
        if worst.outcome == outcomes.STATIC and config.get("adaptation") == "auto":  # this attack could not adapt
            how = "with an attack that can be told what hides the data (--attack)"
        yield f"Can the test be repeated {how}?", f"Attack {worst.name} gave no answer."
    if row is None:
        yield "Will you test whether an attacker can tell who took part?", "It was not here (--attack membership)."
    elif row["verdict"] == outcomes.UNDECIDED:
        more = (
            "with more pairs (--expert membership_pairs)" if row.get("cause") == "few" else "so that it gives an answer"
        )
        yield f"Can the test of who took part be repeated {more}?", "It gave no answer here."


def _size(settings: Sequence[AuditEntry], config: Mapping[str, Any]) -> Questions:
    shown = decisive_setting(settings)
    batch, trained = number((shown.entry if shown else {}).get("batch")), number(config.get("batch_size"))
    if shown is not None and sees_sums(shown):  # the batch of a sum holds that of every client in it
        batch = number(config.get("victim_batch"))
    probed = shown is not None and shown.entry.get("source") == "probe"
    if shown is None or not probed or batch is None or trained is None or batch >= trained:
        return
    many = f"{batch:g} example{'' if batch == 1 else 's'}"
    yield (
        f"May a client ever send what it computed from {'a single example' if batch == 1 else many}?",
        f"The attacked messages held {many}; a step of training here holds up to {trained:g} (--batch-size). "
        "A message of fewer examples is easier to attack.",
    )


def _sums(
    settings: Sequence[AuditEntry], membership: Sequence[Mapping[str, Any]], result: Mapping[str, Any]
) -> Questions:
    config, peer = result.get("config") or {}, (result.get("secure_aggregation") or {}).get("peer") or {}
    if peer.get("verdict") == outcomes.LEAKS:
        yield "How many clients take part in a round at the least?", "Here a round had too few to hide one."
    summed = [one.entry for one in settings if sees_sums(one)]
    summed += [row for row in membership if row["vantage"] == AGGREGATE]
    needed = [number(entry.get("min_safe_sum_size")) for entry in summed]
    known = [group for group in needed if group is not None]
    if known and len(known) == len(needed):
        yield (
            f"Is it enforced that every sum goes over at least {max(known):g} clients?",
            "From sums over so many the attacks here reached nothing; a stronger attack may.",
        )
    elif summed and any(outcomes.outcome(entry) in (*outcomes.POSITIVE, outcomes.MEMBER) for entry in summed):
        yield "How many clients must a sum hold, so that nothing is told?", "Some sums of this run still leak."
    elif not summed and (settings or membership):
        clients = config.get("sample") or config.get("clients")
        over = f" A round had {clients} client{'' if clients == 1 else 's'}." if clients else ""
        yield (
            "Will the server see sums alone (secure aggregation), and over how many clients?",
            f"Sums were not attacked here.{over}",
        )


def _bound(privacy: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Questions:
    exact = [line for line in privacy if line.get("accounting") != "as published" and is_bound(line)]
    if not exact:
        yield (
            "Is there a bound that holds for every attack (differential privacy), and for whom?",
            f"Method {config.get('method')} claims none in this run{'; Privacy says why' if privacy else ''}.",
        )
        return
    line = exact[0]
    certainty = number(line.get("max_guess_accuracy"))
    if certainty is not None and certainty >= 0.9:
        yield (
            "Which smaller ε (privacy bound) will be set?",
            f"ε at most {above(line.get('epsilon'))} lets an attacker be right {percent_above(certainty)} of the time.",
        )
    if any(one.get("noise_source") == "seed" for one in exact):
        yield "Will the noise be drawn in secret (noise_source=secure)?", "Here it can be taken off by its seed."
    units = {str(one.get("unit")) for one in exact if (number(one.get("max_guess_accuracy")) or 0.0) < NOTHING}
    if units and not units & {"patient", "client"}:
        yield (
            "Does one person have several examples?",
            f"The bound is for one {' or '.join(sorted(units))}, not a person.",
        )


def _people(
    settings: Sequence[AuditEntry],
    membership: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    config: Mapping[str, Any],
    scope: Scope,
) -> Questions:
    places = {str(one.entry.get("vantage")) for one in settings} | {str(row["vantage"]) for row in membership}
    dataset = str(config.get("dataset"))
    if not dataset.startswith(_OWN):
        yield "Was the same audit run on the federation’s own data?", f"This one used the data set {dataset}."
    if OUTSIDER not in places:
        yield "Who will get the finished model?", "What it gives away was not tested (--vantage outsider)."
    if result.get("rounds") and config.get("metrics") == "all":
        yield (
            f"Must clients report losses and {'errors' if is_regression(result) else 'accuracies'}?",
            "Here they do, without noise (--metrics); such numbers come from their data.",
        )


def _rounds(settings: Sequence[AuditEntry], config: Mapping[str, Any], scope: Scope) -> Questions:
    rounds = number(config.get("rounds"))
    if settings and rounds and len([turn for turn in scope.rounds if turn]) < rounds:
        yield (
            "Will later rounds be audited, too, and again after every change of settings?",
            f"Attacked: {rounds_in_words(scope.rounds)}, of a run of {rounds:g} rounds.",
        )


def untested(
    settings: Sequence[AuditEntry], membership: Sequence[Mapping[str, Any]], result: Mapping[str, Any], scope: Scope
) -> list[str]:
    """Return the questions that were not tested, an item each, the one that matters most first.

    Args:
        settings: settings of the audit by reconstruction.
        membership: ``membership`` of result.json.
        result: result.json.
        scope: scope of the audit by reconstruction.
    """
    config = result.get("config") or {}
    places = {place_shown(setting) for setting in settings} | {str(row["vantage"]) for row in membership}
    inferred = result.get("inference") or []
    places |= {str(one.get("vantage")) for one in inferred}
    items = []
    if not settings:
        items.append(f"Whether training {scope.unit} can be recovered from what clients send.")
    if not membership:
        items.append("Whether it can be told that a person took part (membership).")
    elif all(row.get("unit") != "patient" for row in membership):
        items.append(f"Whether it can be told that a person with several {scope.unit} took part.")
    if not inferred:
        items.append("What a client’s data have in common, such as the kinds of examples in them.")
    if OUTSIDER not in places:
        items.append("What the finished model gives away to those who use it.")
    if not places:
        return items
    others = [
        "other clients" if PEER not in places else "",
        "a reader on a client’s machine" if not places & set(_ON_CLIENT) else "",
        "the server, where it reads single messages" if "server" not in places else "",
        "a server that sees only sums" if AGGREGATE not in places else "",
        "a server that follows the rules" if config.get("malicious_server") else "a server that breaks the rules",
    ]
    items.append(f"Other observers: {', '.join(filter(None, others))}.")
    if settings:
        items.append(f"Other rounds: only {rounds_in_words(scope.rounds)}.")
    if settings and "update" not in scope.sources:
        items.append("The messages that training really sent: only messages made for the test were attacked.")
    if settings and "probe" not in scope.sources:
        items.append("The easier case for an attacker: messages computed from few examples.")
    if any(setting.outcome == outcomes.NO_LEAK_FOUND for setting in settings):
        best = f"the true {scope.unit} need not be the data that explain it best"
        items.append(f"Attacks of other kinds: those here look for data that explain a message, and {best}.")
    items.append("Stronger attacks, other data, other people and other settings than those of this run.")
    return items


def rounds_in_words(rounds: Sequence[int]) -> str:
    """Return the attacked rounds in words, the time before training as such.

    >>> rounds_in_words([0, 2, 5])
    'the time before training, round 2 and round 5'
    """
    words = ["the time before training" if turn == 0 else f"round {turn}" for turn in rounds]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "no round"


UNASKED = "Not tested: it reads what is computed or sent in training, and asks the model nothing."
_MODEL = "It reads the finished model."
_UNKNOWN = "Not known."


@final
@dataclass(frozen=True)
class OpinionFacts:
    """Facts on an attack.

    Attributes:
        attack: the attack.
        extraction: whether personal data were extracted.
        means: who did it, with what.
        queries: whether outputs of the model relate to persons.
        likelihood: the measured likelihood.
    """

    attack: str
    extraction: str
    means: str
    queries: str
    likelihood: str


def opinion_facts(
    settings: Sequence[AuditEntry],
    membership: Sequence[Mapping[str, Any]],
    inference: Iterable[Mapping[str, Any]],
    unit: str = "samples",
) -> list[OpinionFacts]:
    """Return the facts on each attack of a run, from its most serious result.

    Args:
        settings: settings of the audit by reconstruction.
        membership: ``membership`` of result.json.
        inference: ``inference`` of result.json.
        unit: ``images``, ``records`` or another word for the samples.
    """
    worst: dict[str, AuditEntry] = {}
    for setting in worst_first(settings):
        worst.setdefault(str(setting.entry.get("attack")), setting)
    facts = [_of_recovery(name, setting, unit) for name, setting in worst.items()]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in membership:
        rows.setdefault(str(row["attack"]), []).append(row)
    facts += [_of_membership(name, shown, unit) for name, some in rows.items() if (shown := decisive(some))]
    return facts + [_of_classes(one) for one in inference]


def _of_recovery(name: str, setting: AuditEntry, unit: str) -> OpinionFacts:
    entry = setting.entry
    got = f"{setting.recovered} of {setting.total} {unit} recovered"
    answer = {
        outcomes.RECONSTRUCTED: f"Yes: {got}.",
        outcomes.MESSAGE: f"Yes: {got}.",
        outcomes.IDENTIFIED: f"In part: {got}, but the true {ONE.get(unit, unit)} told from similar ones.",
        outcomes.MALICIOUS: f"By a server that changed what clients train: {got}, or told from similar ones.",
        outcomes.NO_LEAK_FOUND: f"Not by this attack: {got}.",
        outcomes.VOID: "Not answered: the test is void.",
    }.get(setting.outcome, f"Not answered: {got}, which shows nothing.")
    seconds = number(entry.get("seconds"))
    spent = f", {decimals(seconds, 0)} s of computing here" if seconds is not None else ""
    place = place_shown(setting)
    requested = f"{_MODEL} {answer}" if place == OUTSIDER else UNASKED
    return OpinionFacts(
        name, answer, f"{capital(IN_PLACE.get(place, place))}{spent}.", requested, _likely(setting, unit)
    )


def _likely(setting: AuditEntry, unit: str) -> str:
    entry, found = setting.entry, setting.outcome
    span, messages = entry.get("share_interval"), number(entry.get("messages"))
    if found == outcomes.IDENTIFIED and (held := entry.get("candidate_test")) and setting.cause == "candidates":
        return f"{held['first']} of {held['messages']} messages point to the truth; by chance {percent(held['null'])}."
    if found == outcomes.IDENTIFIED and number(entry.get("identification_rate")) is not None:
        chance = number(entry.get("identification_null"))
        by = f"; by chance {percent(chance)}" if chance is not None else ""
        return f"{percent(entry.get('identification_rate'), 0)} identified among look-alikes{by}."
    if found == outcomes.NO_LEAK_FOUND and setting.recovered == 0 and messages:
        return (
            f"Up to {percent(most_missed(int(messages)), 0)} of such messages could leak unseen (95\u00a0%, one-sided)."
        )
    if found in (*outcomes.POSITIVE, outcomes.NO_LEAK_FOUND, outcomes.MALICIOUS):
        if span:
            return f"Between {percent(span[0], 0)} and {percent(span[1], 0)} of such {unit} (95\u00a0% interval)."
        return f"{setting.recovered} of {setting.total} here; no interval is recorded."
    return _UNKNOWN


def _of_membership(name: str, row: Mapping[str, Any], unit: str) -> OpinionFacts:
    what = "a patient" if row.get("unit") == "patient" else f"a single {ONE.get(unit, unit)}"
    verdict, place = row["verdict"], str(row["vantage"])
    sought = f"Data were not sought, but whether {what} was trained on:"
    answer = {outcomes.LEAKS: "it can be told.", outcomes.NO_LEAK_FOUND: "not found."}.get(verdict, "not answered.")
    low, high = (number((row.get("correct") or {}).get(end)) for end in ("low", "high"))
    likely = _UNKNOWN
    if verdict == outcomes.LEAKS:
        right = percent(share_right(row), 0)
        compared = f"One that was trained on scores higher in {right} of comparisons (a coin: 50\u00a0%)."
        likely = compared if low is not None and low > 0.5 else "For some of them more than chance explains."
    elif verdict == outcomes.NO_LEAK_FOUND and high is not None:
        likely = f"Up to {percent(high, 0)} right guesses could go unseen (a coin: 50\u00a0%)."
    requested = f"{_MODEL} {capital(answer)}" if place == OUTSIDER else UNASKED
    means = f"{capital(IN_PLACE.get(place, place))}, who knows both of a pair, one of which was trained on."
    return OpinionFacts(name, f"{sought} {answer}", means, requested, likely)


def _of_classes(one: Mapping[str, Any]) -> OpinionFacts:
    place = str(one.get("vantage"))
    answer = "it can be told" if one["verdict"] == outcomes.LEAKS else "not answered"
    kinds = f"Which kinds of examples a client holds: {answer}."
    requested = f"{_MODEL} {kinds}" if place == OUTSIDER else UNASKED
    means = f"{capital(IN_PLACE.get(place, place))}."
    return OpinionFacts(str(one.get("attack")), kinds, means, requested, "Not measured for one person.")
