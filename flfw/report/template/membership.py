"""Sections on membership: its sentences, and the statistics with what they rest on."""

# ruff: noqa: E501

TELLING = """\
{% macro interval(low, high, places=2) %}{% if low is number and high is number %}{{ low|num(places) }} to {{ high|num(places) }}{% else %}–{% endif %}{% endmacro %}
{% macro telling(row) %}statistic {{ row.statistic }} tells members from held-out {% if row.unit == 'patient' %}patients{% else %}{{ scope.unit }} of the same class{% endif %} {{ row|where_told }}{% if row.auc is number %} (AUC {{ row.auc|num(2) }}, where a coin gives 0.50{% if row.tpr is number %}; {{ row.tpr|pct }} of the members found at {{ row.fpr|pct(2) }} false alarms{% endif %}){% endif %}{% endmacro %}
{% macro membership_headline(row) %}
{% if row.verdict == 'leaks' %}{{ run|capital }} <strong class="verdict leaks">leaks</strong> who was there: {{ telling(row) }}.
{% elif row.verdict == 'no leak found' %}<strong class="verdict">No leak found</strong> of membership in {{ run }}: statistic {{ row.statistic }} does no better than a coin {{ row|where_told }}, although it finds the members of an overfitted client.
{% else %}<strong class="verdict">Inconclusive</strong> on membership in {{ run }}: {{ row.why }}
{% endif %}{% endmacro %}
{% macro membership_words(row) %}
{% if row.verdict == 'leaks' %}<b>It can be told that somebody’s data was there.</b> Of two {% if row.unit == 'patient' %}patients{% else %}{{ scope.unit }} of the same class{% endif %}, one of which was trained on, the test names the right one more often than a coin, or does so for some of them.
{% elif row.verdict == 'no leak found' %}<b>It was not found that membership can be told.</b> The test could have seen an effect above {{ (row.right or {}).high|pct(0) }} right guesses, where a coin has 50 %. It does not prove that there is none.
{% else %}<b>Whether membership can be told is not known.</b>{% endif %} {{ row.why }}{% endmacro %}
"""

MEMBERSHIP = """\
{% if membership %}
{% set claimed = membership|selectattr('claimed_epsilon', 'number')|list %}{% set checked = membership|selectattr('controls')|list %}{% set places = membership|map('seen_by')|unique|list %}{% set read = membership|map('where_told')|unique|list %}
<section id="membership" aria-labelledby="membership-title">
<h2 id="membership-title">Can it be told who was there?</h2>
<p>{% if membership|selectattr('unit', 'equalto', 'patient')|list %}Pairs of patients of one client, each with all of its {{ scope.unit }}, and with numbers of each class as near as the data allow{% else %}Pairs of {{ scope.unit }} of one client and one class{% endif %}: a fair coin chose which of the two was trained on, and nobody trained on the other. An attack gives each a score, without knowing the coin.{% if places|length == 1 %} It sees what {{ {'server': 'the server sees', 'aggregate': 'a server behind secure aggregation sees', 'peer': 'another client sees', 'outsider': 'an outsider sees'}.get(places[0], places[0] ~ ' sees') }}{{ ' ' ~ read[0] if read|length == 1 }}.{% endif %} {{ membership|length }} result{{ 's' if membership|length != 1 }}, the one that answers shaded.</p>
<p class="finding" id="told"><strong class="verdict{{ ' leaks' if told.verdict == 'leaks' }}">{{ told.verdict|capital }}</strong>, by statistic {{ told.statistic }}{{ ' (' ~ told|seen_by ~ ')' if places|length > 1 }}: AUC {{ told.auc|num(3) }}{% if told.auc_low is number %} ({{ interval(told.auc_low, told.auc_high, 3) }}){% endif %}, members found (TPR) {{ told.tpr|pct }} at {{ told.fpr|pct(2) }} false alarms (FPR), ε at least {{ told.epsilon_low|below }}{% if told.claimed_epsilon is number %} beside ε at most {{ told.claimed_epsilon|above }} (claimed){% else %}; no ε is claimed against this attacker{% endif %}.{% if membership|length > 1 %} Of {{ membership|length }} results {{ membership|selectattr('verdict', 'equalto', 'leaks')|list|length or 'none' }} leak.{% endif %}</p>
<details class="paper"{{ ' open' if membership|length <= 4 }}><summary>{{ 'Every statistic' if membership|length > 1 else 'The statistic' }}</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Statistics of membership"><table>
<thead><tr><th scope="col" class="text">Statistic</th>{% if places|length > 1 %}<th scope="col" class="text">Seen by</th>{% endif %}{% if read|length > 1 %}<th scope="col" class="text">Rounds</th>{% endif %}<th scope="col" class="text">Verdict</th><th scope="col">AUC</th><th scope="col">Interval</th><th scope="col">Members found (TPR)</th><th scope="col">Interval</th><th scope="col">False alarms (FPR)</th><th scope="col">ε at least</th>{% if claimed %}<th scope="col">ε at most (claimed)</th>{% endif %}<th scope="col">Pairs</th></tr></thead>
<tbody>{% for row in membership %}<tr{{ ' class="answer"'|safe if row is sameas told }}><th scope="row">{{ row.statistic }}{{ ', adaptive' if row.adaptive else ', told of it in part' if row.adaptation }}</th>{% if places|length > 1 %}<td class="text">{{ row|seen_by }}</td>{% endif %}{% if read|length > 1 %}<td class="text">{{ row.rounds|plain }}</td>{% endif %}<td class="text{{ ' accent-text' if row.verdict == 'leaks' }}">{{ row.verdict }}</td><td>{{ row.auc|num(3) }}</td><td>{{ interval(row.auc_low, row.auc_high, 3) }}</td><td>{{ row.tpr|pct }}</td><td>{% if row.tpr_low is number %}{{ row.tpr_low|pct }} to {{ row.tpr_high|pct }}{% else %}–{% endif %}</td><td>{{ row.fpr|pct(2) }}</td><td>{{ row.epsilon_low|below }}</td>{% if claimed %}<td>{{ row.claimed_epsilon|above }}</td>{% endif %}<td>{{ row.pairs }}</td></tr>
{% endfor %}</tbody></table></div>
<p class="caption soft">AUC: how often a member scores above a held-out one of its client; its interval (95 %) draws clients anew, and says how clients differ. Members found: their share above the threshold that ten held-out ones pass, the smallest rate of false alarms that so many can show. Its interval, the one of the guesses below and ε hold together for all statistics and clients that were tried. ε at least: what the guesses rule out for one example more or less{{ '; a claim below it would be false' if claimed }}.</p>
</details>
<details class="paper"{{ ' open' if membership|length <= 4 }}><summary>What each result rests on</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Floors, clients and controls of membership"><table class="ladder">
<thead><tr><th scope="col" class="text">Statistic</th><th scope="col">Right guesses</th><th scope="col">Interval</th><th scope="col">By labels</th><th scope="col">By the loss</th><th scope="col" class="text">Worst client</th><th scope="col">Right there</th><th scope="col">Interval</th>{% if checked %}<th scope="col" class="text">Overfitted client</th><th scope="col" class="text">Single step</th><th scope="col" class="text">Nothing there</th>{% endif %}</tr></thead>
<tbody>{% for row in membership %}{% set right = row.right or {} %}{% set worst_one = row.worst_client or {} %}{% set there = worst_one.right or {} %}{% set controls = row.controls or {} %}<tr><th scope="row">{{ row.statistic }}{{ ', ' ~ row|seen_by if places|length > 1 }}</th><td>{{ right.right|plain }} of {{ right.guesses|plain }}</td><td>{{ interval(right.low, right.high) }}</td><td>{{ (row.floor.label_only or {}).auc|num(2) }}</td><td>{{ (row.floor.loss_only or {}).auc|num(2) }}</td><td class="text">{{ 'client ' ~ worst_one.client if worst_one else '–' }}</td><td>{{ there.right|plain }} of {{ there.guesses|plain }}</td><td>{{ interval(there.low, there.high) }}</td>{% if checked %}{% for control in (controls.easy or {}, controls.one_step or {}, controls.null or {}) %}<td class="text">{{ {true: 'passed', false: 'failed'}.get(control.passed, 'not tried') }}</td>{% endfor %}{% endif %}</tr>
{% endfor %}</tbody></table></div>
<dl class="sentences">{% for row in membership %}<div><dt>{{ row.statistic }}{{ ', ' ~ row|seen_by if places|length > 1 }}{{ ', ' ~ row|where_told if read|length > 1 }}: {{ row.verdict }}</dt><dd>{{ row.why }}</dd></div>
{% endfor %}</dl>
<p class="caption soft">By labels: by these alone. An AUC that is not 0.50 would be no leak; pairs of two classes are not counted. By the loss: what the model tells by it alone, without the update. Overfitted client, single step: the statistic must find the members of a client that learns a few by heart, and the one behind a step. Nothing there: both of a pair were held out, and it must find nothing.{% for gap in membership|map(attribute='accuracy_gap')|select('number')|unique|list %} The models are {{ gap|pct }} more often right on what they were trained on than on what was held out{{ ', so that there is little to find' if gap < 0.01 }}.{% endfor %}</p>
</details>
</section>
{% endif %}
"""
