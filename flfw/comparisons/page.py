"""Page of a matrix, a Jinja template with all sentences of the page."""

# ruff: noqa: E501

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

from flfw import data
from flfw.comparisons.findings import Combination, Comparison
from flfw.comparisons.significance import CombinationRanking, listed
from flfw.comparisons.utility import Utility, claimed, family, shown
from flfw.files import verdicts
from flfw.report.formats import decimals, percent
from flfw.report.template.style import STYLE


def render(
    record: Mapping[str, Any],
    combinations: Sequence[Combination],
    compared: Sequence[Comparison],
    ranking: CombinationRanking,
) -> str:
    """Render the page: one file that loads no other file and needs no script."""
    by_name = {one.name: one for one in combinations}
    utility, (local, received, *_) = shown(record["combinations"]), family(record["combinations"])
    attacked = sorted((c for c in combinations if c.worst), key=lambda c: c.worst.severity if c.worst else ())
    records = bool(attacked) and all(row.psnr is None for c in attacked for run in c.runs for row in run.rows)
    return _template().render(
        about=record,
        style=Markup(STYLE),
        dataset=data.title(str(record["question"]["experiment"]["dataset"])),
        combinations=combinations,
        most=[by_name[name] for name in ranking.most],
        least=[by_name[name] for name in ranking.least],
        standing={one.combination: one for one in ranking.standings},
        ranking=ranking,
        worst=attacked[-1] if attacked else None,
        recovered=sum(leak.recovered for c in combinations for leak in c.leaks),
        compared=compared,
        records=records,
        ssim=any(leak.ssim is not None for c in combinations for leak in c.leaks),
        identified=any(leak.identified is not None for c in combinations for leak in c.leaks),
        utility=utility,
        local=local,
        received=received,
        heading=f"{utility.name} after" if utility == local else utility.words,
        central=any(cell["acc_central"] is not None and cell["acc_local"] is None for cell in record["cells"]),
        panels=_panels(attacked, utility, records),
        panels_received=_panels(attacked, received, records) if utility == local else "",
    )


@cache
def _template() -> Template:
    jinja = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    jinja.filters.update(verdict=verdicts.in_words, num=decimals, pct=percent, claimed=claimed, listed=listed)
    return jinja.from_string(PAGE)


def _panels(attacked: Sequence[Combination], utility: Utility, records: bool) -> Markup:
    """Draw both scatter plots against one utility; a mark shows the attack and round that recovered most.

    A combination without that utility has no mark.
    """
    from flfw.comparisons.picture import PlotMark, Scatter, draw  # matplotlib takes long to load

    share, close = [], []
    for combination in reversed(attacked):  # the worst leak is first, so its name gets the best place
        worst, values = combination.worst, combination.measured(utility.key)
        assert worst is not None, "only what was attacked is drawn"
        if not values:
            continue
        x, across = sum(values) / len(values), (min(values), max(values))
        leaks = verdicts.outcome(worst.concluded) in verdicts.POSITIVE
        share.append(PlotMark(combination.name, x, across, worst.severity[0], worst.share, leaks))
        if worst.psnr:
            low, high = worst.psnr.low, worst.psnr.high
            along = None if low is None or high is None else (low, high)
            close.append(PlotMark(combination.name, x, across, worst.psnr.mean, along, leaks))
    panels = (
        Scatter(f"{'Records' if records else 'Images'} recovered", utility, tuple(share), percent=True),
        Scatter("Closeness, −20 log RMSD, dB" if records else "PSNR, dB", utility, tuple(close), percent=False),
    )
    return Markup("").join(Markup("<div>{}</div>").format(draw(panel)) for panel in panels if panel.marks)


PAGE = """\
{% set things = 'records' if records else 'images' %}
{% set count = combinations|length %}
{% set remark = ' ' ~ utility.remark if utility.remark %}
{% macro named(c) %}{{ c.method }} {{ 'without a defence' if c.defence == 'none' else 'with ' ~ c.defence }}{% endmacro %}
{% macro names(many) %}{% for c in many %}{{ '' if loop.first else ' and ' if loop.last else ', ' }}{{ named(c) }}{% endfor %}{% endmacro %}
{% macro reached(c) %}{% set at = standing[c.name] %}{{ at.recovered }} of {{ at.images }} {{ things }}{% if at.closeness %} <span class="measure">({{ at.closeness.mean|num }} dB)</span>{% endif %}{% set values = c.measured(utility.key) %}{% if values %} at {{ utility.at(values|sum / values|length) }}{% endif %}{% endmacro %}
{% macro headline() %}
{% if not count %}Nothing has been measured yet.
{% elif not worst %}{{ 'No combination was' if count > 1 else named(combinations[0]) ~ ' was not' }} attacked, so this page says nothing about what leaks.
{% elif not recovered %}<strong class="verdict">Nothing was recovered</strong> {{ 'from any of ' ~ count ~ ' combinations' if count > 1 else 'from ' ~ named(worst) }} on {{ dataset }}{% if worst.worst.evidence == 'identified' %}, but {{ named(worst) }} <strong class="verdict leaks">leaks</strong> in part: results point to the true one of look-alikes more often than chance explains{% endif %}. Whether that is evidence of protection is what the verdicts say.
{% elif count == 1 %}{{ named(worst) }} <strong class="verdict leaks">leaks</strong>: {{ reached(worst) }}, on {{ dataset }}.
{% elif ranking.most|length == ranking.standings|length %}<strong class="verdict leaks">No combination is shown to leak less than another</strong>, on {{ dataset }}: {{ 'there are too few messages to show any difference' if ranking.too_few else 'their differences may be chance' }}. {{ named(worst) }}: {{ reached(worst) }}.
{% else %}{{ names(most) }} <strong class="verdict leaks">leak{{ 's' if most|length == 1 }} most</strong>, {{ 'of which ' ~ named(most[0]) ~ ': ' if most|length > 1 }}{{ reached(most[0]) }}; {{ names(least) }} least, {{ 'of which ' ~ named(least[-1]) ~ ': ' if least|length > 1 }}{{ reached(least[-1]) }}{% if least|length == 1 and least[-1].worst.evidence != 'reconstructed' %}: {{ least[-1].worst.concluded|verdict }}{% endif %}.
{% endif %}
{% endmacro %}
{% macro range(values) %}{% if not values %}–{% else %}{{ utility.text(values|sum / values|length) }}{% if values|length > 1 %}<span class="measure"> {{ utility.bare(values|min) }} to {{ utility.bare(values|max) }}</span>{% endif %}{% endif %}{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>Leakage against {{ utility.name }} on {{ dataset }}</title>
<style>
{{ style }}
figure.scatter { margin: 1.75rem 0 2.5rem; } .scatter figcaption { max-width: 42rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 2rem 2.5rem; }
thead th { vertical-align: bottom; } tr.next > * { border-top: 2px solid var(--line); } .notice { overflow-wrap: anywhere; }
</style>
</head>
<body>
<header><div class="eyebrow"><span><b>{{ count }} combination{{ '' if count == 1 else 's' }} on {{ dataset }}</b></span><span>seed{{ 's' if about.question.seeds|length > 1 }} {{ about.question.seeds|join(', ') }}</span><span>flfw {{ about.flfw }}</span></div></header>
<main id="main">
<h1>{{ headline()|trim }}</h1>
{% if about.notes %}<div class="notice" role="note"><b>Read this with {{ 'a caveat' if about.notes|length == 1 else 'these caveats' }}</b><ul>{% for note in about.notes %}<li>{{ note }}</li>{% endfor %}</ul></div>{% endif %}
{% if panels %}
<figure class="scatter"><div class="panels">{{ panels }}</div>
<figcaption>A mark is a method with its defence, at the attack, the round and the vantage that recovered most. Up and down: 95 % intervals, of the share of {{ things }} recovered (exact) and of the mean (over seeds and {{ things }}). {% if about.question.seeds|length > 1 %}Across: {{ utility.ends }} seed. {% endif %}<span class="accent-text">Coloured</span> marks leak, or have results that point to the true one of look-alikes. Best is below and to the {{ utility.side }}.{{ remark }}</figcaption>
{% if panels_received %}<details><summary>The same against {{ received.words }}, before local training</summary><div class="panels">{{ panels_received }}</div></details>{% endif %}</figure>
{% endif %}
{% if ranking.standings|length > 1 %}
<section aria-labelledby="ranking-title">
<h2 id="ranking-title">What leaks more</h2>
<p>Each combination was attacked by {{ about.question.attacks|listed }}, with every search that these attacks have where it applies. An attacker who makes all of them has what is counted here: {{ things }} that at least one recovered, and the closest result of each. Combinations that share a letter do not differ significantly.</p>
<div class="scroll" tabindex="0" role="region" aria-label="What leaks more"><table>
<thead><tr><th scope="col" class="text">Combination</th><th scope="col">Recovered by any</th><th scope="col">Closest, dB</th><th scope="col" class="text">Letter</th></tr></thead>
<tbody>{% for each in ranking.standings %}<tr><th scope="row">{{ each.combination }}</th><td>{{ each.recovered }} of {{ each.images }} <span class="measure">{{ (100 * each.share_interval[0])|num(0) }} to {{ (100 * each.share_interval[1])|num(0) }} %</span></td><td>{% if each.closeness %}{{ each.closeness.mean|num }}{% if each.closeness.low is not none %} <span class="measure">{{ each.closeness.low|num }} to {{ each.closeness.high|num }}</span>{% endif %}{% else %}–{% endif %}</td><td class="text">{{ each.letters }}</td></tr>
{% endfor %}</tbody></table></div>
{% set sentences = ranking.sentences %}
{% if sentences %}<ul class="plainlist">{% for line in sentences %}<li>{{ line }}</li>
{% endfor %}</ul>{% endif %}
{% set found = ranking.tests|selectattr('significant')|list %}
{% if found %}<details><summary>{{ found|length }} of {{ ranking.tests|length }} tests found a difference</summary><ul class="plainlist">{% for test in found %}<li>{{ test.first }} and {{ test.second }}, {% if test.measure == 'recovered' %}share recovered {{ '+' if test.difference > 0 }}{{ (100 * test.difference)|num }} points{% else %}closeness {{ '+' if test.difference > 0 }}{{ test.difference|num }} dB{% endif %} on {{ test.images }} {{ things }} in {{ test.messages }} messages: p = {{ '%.2g'|format(test.p) }}, corrected {{ '%.2g'|format(test.adjusted) }}</li>
{% endfor %}</ul></details>{% endif %}
<p class="soft">Tested over the same {{ things }}: McNemar’s exact test of what was recovered, Wilcoxon’s signed-rank test of the closeness, with Holm’s correction over all {{ ranking.tests|length }} tests, so that any false difference here has a probability of at most 5 %. The {{ things }} of one message count as one. It holds for the models of these seeds.</p>
</section>{% endif %}

{% if worst %}
<section aria-labelledby="table-title">
<h2 id="table-title">Each combination, attack and round</h2>
<p>All runs have the same data, clients and budget, and those of one seed the same victims, unless a caveat above says otherwise. {{ utility.name|capitalize }} is that of the final model{{ ', ' ~ utility.scale if utility.scale }}. The verdict is the worst of all seeds; behind it stands how many seeds had it.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Each combination, attack and round"><table>
<thead><tr><th scope="col" class="text">Method</th><th scope="col" class="text">Defence</th><th scope="col">{{ heading|capitalize }}</th><th scope="col" class="text">Attack</th><th scope="col">Round</th><th scope="col" class="text">Verdict</th><th scope="col">Recovered</th><th scope="col">{{ 'Closeness, dB' if records else 'PSNR, dB' }}</th><th scope="col">Best</th>{% if records %}<th scope="col">RMSD</th>{% endif %}{% if ssim %}<th scope="col">SSIM</th>{% endif %}{% if identified %}<th scope="col">Identified</th>{% endif %}<th scope="col">Failed</th></tr></thead>
<tbody>{% for c in combinations %}{% set second = not loop.first %}{% for leak in c.leaks %}{% set psnr = leak.psnr %}<tr{{ ' class="next"'|safe if loop.first and second }}><th scope="row">{{ c.method }}</th><td class="text">{{ c.defence }}</td><td>{{ range(c.measured(utility.key)) }}</td><td class="text">{{ leak.setting.attack }} <span class="measure">{{ leak.setting.kind }}</span></td><td>{{ leak.setting.round }}</td><td class="text"><span{{ ' class="accent-text"'|safe if leak.verdict == 'leaks' }}>{{ leak.concluded|verdict }}</span>{% if leak.seeds|length > 1 %} <span class="measure">{{ leak.seeds_with_verdict }} of {{ leak.seeds|length }}</span>{% endif %}</td><td>{{ leak.recovered }} of {{ leak.images }} <span class="measure">{{ (100 * leak.share[0])|num(0) }} to {{ (100 * leak.share[1])|num(0) }} %</span></td><td>{{ (psnr.mean if psnr else none)|num }}{% if psnr and psnr.low is not none %} <span class="measure">{{ psnr.low|num }} to {{ psnr.high|num }}</span>{% endif %}</td><td{% if leak.worst %} title="seed {{ leak.worst.seed }}, client {{ leak.worst.client }}, victim {{ leak.worst.probe_slot }}"{% endif %}>{{ (leak.worst.psnr if leak.worst else none)|num }}</td>{% if records %}<td>{{ leak.rmsd|num(3) }}</td>{% endif %}{% if ssim %}<td>{{ leak.ssim|num(2) }}</td>{% endif %}{% if identified %}<td>{{ leak.identified|pct }}</td>{% endif %}<td>{{ leak.failures }}</td></tr>
{% else %}<tr><th scope="row">{{ c.method }}</th><td class="text">{{ c.defence }}</td><td>{{ range(c.measured(utility.key)) }}</td><td class="text" colspan="{{ 7 + records + ssim + identified }}">nothing to attack</td></tr>
{% endfor %}{% endfor %}</tbody></table></div>
<p class="soft">Beside a number stands its 95 % interval, beside an {{ utility.noun }} its range over the seeds. The intervals count messages: the {{ things }} of one message (one batch) are not independent. Those of shares are exact if each message has one; those of means resample seeds, then messages. With few seeds both are too narrow. PSNR is over what the attack gave; failures are counted under Failed and as not recovered.</p>
{% set unclear = combinations|map(attribute='leaks')|sum(start=())|rejectattr('evidence', 'in', ('reconstructed', 'message'))|selectattr('reason')|list %}
{% if unclear %}
<h3>Why not more can be concluded</h3>
<ul class="plainlist">{% for c in combinations %}{% for leak in c.leaks if leak in unclear %}<li>{{ named(c) }}, {{ leak.setting.attack }} {{ leak.setting.kind }} at round {{ leak.setting.round }}: {{ leak.concluded|verdict }}. {{ leak.reason }}</li>
{% endfor %}{% endfor %}</ul>
{% endif %}
</section>
{% endif %}
{% if compared %}
<section aria-labelledby="paired-title">
<h2 id="paired-title">The same victims, compared with {{ compared[0].with_name if ' with ' in compared[0].with_name else compared[0].with_name ~ ' without a defence' }}</h2>
<p>Differences in dB, {{ 'record' if records else 'image' }} by {{ 'record' if records else 'image' }}: below zero, less is seen than there. Where an attack failed, the best guess that saw no update counts in its place.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Paired comparisons"><table>
<thead><tr><th scope="col" class="text">Combination</th><th scope="col" class="text">Attack</th><th scope="col">Round</th><th scope="col">{{ things|capitalize }}</th><th scope="col">Difference, dB</th><th scope="col">Interval</th><th scope="col">More / less / same</th><th scope="col">p</th><th scope="col">Failed here / there</th></tr></thead>
<tbody>{% for row in compared %}{% set found = row.paired %}<tr><th scope="row">{{ row.name }}</th><td class="text">{{ row.setting.attack }} <span class="measure">{{ row.setting.kind }}</span></td><td>{{ row.setting.round }}</td><td>{{ row.images }}</td>{% if found %}<td>{{ found.difference.mean|num }}</td><td>{% if found.difference.low is not none %}{{ found.difference.low|num }} to {{ found.difference.high|num }}{% else %}–{% endif %}</td><td>{{ found.better }} / {{ found.worse }} / {{ found.ties }}</td><td>{{ found.p|num(4) }}</td>{% else %}<td class="text" colspan="4">{{ 'failed on all of them, here and there' if row.images else 'no victim is shared' }}</td>{% endif %}<td>{{ row.failures[0] }} / {{ row.failures[1] }}</td></tr>
{% endfor %}</tbody></table></div>
<p class="soft">p is of a sign-flip test of this one comparison and not corrected: what differs, all comparisons considered, is said above. A smaller number does not make a defence safe: what counts is whether anything is recovered, and whether the attack knew of the defence.</p>
</section>
{% endif %}
{% set private = about.combinations|selectattr('claim')|list %}
{% if private %}
<section aria-labelledby="claims-title">
<h2 id="claims-title">What is claimed</h2>
<p>The largest bound of the seeds; lower is better. Each run’s report has all units and adversaries, and what the bound rests on.</p>
<ul class="plainlist">{% for c in private %}<li>{{ named(c) }}: epsilon at most {{ c.claim|claimed }}, with delta {{ c.claim.delta }}</li>
{% endfor %}</ul>
</section>
{% endif %}
<section aria-labelledby="runs-title">
<h2 id="runs-title">Runs</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Runs"><table>
<thead><tr><th scope="col" class="text">Method</th><th scope="col" class="text">Defence</th><th scope="col">Seed</th><th scope="col" class="text">State</th><th scope="col">{{ local.name|capitalize }} after</th><th scope="col">As received</th>{% if central %}<th scope="col">On the server’s test data</th>{% endif %}<th scope="col" class="text">Report</th></tr></thead>
<tbody>{% for cell in about.cells %}<tr><th scope="row">{{ cell.method }}</th><td class="text">{{ cell.defence }}</td><td>{{ cell.seed }}</td><td class="text{{ ' accent-text' if cell.state == 'failed' }}">{{ cell.state }}</td><td>{{ local.text(cell[local.key]) }}</td><td>{{ received.text(cell[received.key]) }}</td>{% if central %}<td>{{ cell.acc_central|pct }}</td>{% endif %}<td class="text">{% if cell.state == 'complete' %}<a href="{{ cell.folder|urlencode }}/report.html">{{ cell.folder }}</a>{% else %}{{ cell.folder }}{% endif %}</td></tr>
{% endfor %}</tbody></table></div>
<details><summary>What all runs have in common</summary><p class="soft">{% for key, value in about.question.experiment.items() if value != '' %}<code>{{ key }}={{ value }}</code> {% endfor %}{% for pair in about.question.set %}<code>set {{ pair }}</code> {% endfor %}</p></details>
</section>
<section aria-labelledby="limits-title">
<h2 id="limits-title">What this does not show</h2>
<ul class="plainlist">
<li>That stronger attacks fail. Only {{ about.question.attacks|join(', ') }} ran. A leak that was found is proof; one that was not found is only the absence of one.</li>
<li>That a defence protects, where no attack knew of it: the verdict is then undecided (static). It is undecided for other reasons, too: without any defence, a failed attack is always that.</li>
<li>Other settings. A defence has one strength here, and a weaker or a stronger one may stand elsewhere.</li>
<li>Every sample. Means hide the one that comes out; look at the best reconstruction first.</li>
</ul>
</section>
</main>
<footer><p class="soft">Written by flfw {{ about.flfw }}; <code>matrix.json</code> and <code>matrix.csv</code> in the same folder hold the numbers.</p></footer>
</body>
</html>
"""
