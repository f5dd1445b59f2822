"""Section of a matrix's page on what differs: a table of the combinations with letters, and sentences on the tests."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from flfw.comparisons.findings import Combination
from flfw.comparisons.significance import ALPHA, CombinationRanking, PairTest, ranked
from flfw.comparisons.together import strongest


def ranking(combinations: Iterable[Combination]) -> CombinationRanking:
    """Rank combinations by the results of all their attacks together."""
    return ranked({one.name: strongest(one.runs, (leak.setting for leak in one.leaks)) for one in combinations})


def in_json(one: CombinationRanking) -> dict[str, Any]:
    """Return a ranking as matrix.json holds it."""
    return {
        "alpha": ALPHA,
        "standings": [
            {
                "combination": each.name,
                "images": each.images,
                "recovered": each.recovered,
                "share_interval": list(each.share),
                "closeness": each.closeness.as_dict() if each.closeness else None,
                "letters": each.letters,
            }
            for each in one.standings
        ],
        "tests": [vars(test) | {"significant": test.significant} for test in one.tests],
        "alike": one.alike,
        "most": one.most,
        "least": one.least,
        "sentences": sentences(one),
        "messages_needed": one.too_few or None,
    }


def sentences(one: CombinationRanking) -> list[str]:
    """Return sentences on a ranking: groups without a difference, pairs that were not compared, power."""
    lines = [f"These {len(group)} do not differ at 5 %: {listed(group)}." for group in one.alike]
    missing = _not_compared(one)
    lines += [f"Not compared, for they have no common example: {'; '.join(missing)}."] if missing else []
    if one.too_few:
        lines.append(
            f"No difference could be found here: {len(one.tests)} test{'s' * (len(one.tests) > 1)} need at least "
            f"{one.too_few} messages in common. That none was found is no evidence that there is none."
        )
    return lines


def listed(names: Sequence[str]) -> str:
    """Join names in words.

    >>> listed("a"), listed("ab"), listed("abc")
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _not_compared(one: CombinationRanking) -> list[str]:
    compared = {frozenset((test.first, test.second)) for test in one.tests}
    names = [each.name for each in one.standings]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if frozenset((a, b)) not in compared]
    return [f"{a} with {b}" for a, b in pairs]


def section(one: CombinationRanking, attacks: Sequence[str], things: str) -> Markup:
    """Render the section; without two combinations it is empty.

    Args:
        one: the ranking.
        attacks: names of the attacks that were made everywhere.
        things: ``images`` or ``records``.
    """
    if len(one.standings) < 2:
        return Markup("")
    jinja = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    jinja.filters.update(num=lambda value: f"{value:.1f}".replace("-", "−"), pct=lambda value: f"{100 * value:.0f}")
    significant: list[PairTest] = [test for test in one.tests if test.significant]
    text = jinja.from_string(_SECTION).render(
        ranking=one, found=significant, sentences=sentences(one), attacks=listed(attacks), things=things
    )
    return Markup(text)


_SECTION = """\
<section aria-labelledby="ranking-title">
<h2 id="ranking-title">What leaks more</h2>
<p>Each combination was attacked by {{ attacks }}, with every search that these attacks have where it applies. An attacker who makes all of them has what is counted here: {{ things }} that at least one recovered, and the closest result of each. Combinations that share a letter do not differ significantly.</p>
<div class="scroll" tabindex="0" role="region" aria-label="What leaks more"><table>
<thead><tr><th scope="col" class="text">Combination</th><th scope="col">Recovered by any</th><th scope="col">Closest, dB</th><th scope="col" class="text">Letter</th></tr></thead>
<tbody>{% for each in ranking.standings %}<tr><th scope="row">{{ each.name }}</th><td>{{ each.recovered }} of {{ each.images }} <span class="measure">{{ each.share[0]|pct }} to {{ each.share[1]|pct }} %</span></td><td>{% if each.closeness %}{{ each.closeness.mean|num }}{% if each.closeness.low is not none %} <span class="measure">{{ each.closeness.low|num }} to {{ each.closeness.high|num }}</span>{% endif %}{% else %}–{% endif %}</td><td class="text">{{ each.letters }}</td></tr>
{% endfor %}</tbody></table></div>
{% if sentences %}<ul class="plainlist">{% for line in sentences %}<li>{{ line }}</li>
{% endfor %}</ul>{% endif %}
{% if found %}<details><summary>{{ found|length }} of {{ ranking.tests|length }} tests found a difference</summary><ul class="plainlist">{% for test in found %}<li>{{ test.first }} and {{ test.second }}, {% if test.measure == 'recovered' %}share recovered {{ '+' if test.difference > 0 }}{{ (100 * test.difference)|num }} points{% else %}closeness {{ '+' if test.difference > 0 }}{{ test.difference|num }} dB{% endif %} on {{ test.images }} {{ things }} in {{ test.messages }} messages: p = {{ '%.2g'|format(test.p) }}, corrected {{ '%.2g'|format(test.adjusted) }}</li>
{% endfor %}</ul></details>{% endif %}
<p class="soft">Tested over the same {{ things }}: McNemar’s exact test of what was recovered, Wilcoxon’s signed-rank test of the closeness, with Holm’s correction over all {{ ranking.tests|length }} tests, so that any false difference here has a probability of at most 5 %. The {{ things }} of one message count as one. It holds for the models of these seeds.</p>
</section>
"""
