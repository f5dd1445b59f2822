"""Jinja template of the report's page. It is in modules because Flower's app bundles hold no other kind of file."""

from flfw.report.template.style import SCRIPT, STYLE
from flfw.report.template.words import HEADLINE, WORDS

# ruff: noqa: E501

MACROS = """\
{% macro score(sample) %}{% if sample.failed %}failed{% elif sample.scores.psnr is not none %}{{ sample.scores.psnr|num }} dB{% elif sample.is_text %}{{ sample.scores.exact_features|pct }} of bytes right{% else %}RMSD {{ sample.scores.rmsd|num(3) }}{% endif %}{% endmacro %}
{% macro who(sample) %}{{ sample|who }}{% if sample.row.label and not absence %}, label {{ sample.row.label }}{% endif %}{% endmacro %}
{% macro picture(source, alt, missing) %}{% if source %}<img src="{{ source }}" alt="{{ alt }}">{% else %}<span class="absent">{{ missing }}</span>{% endif %}{% endmacro %}
{% macro pair(setting, sample) %}
{% if absence %}{% elif sample.strip %}<div class="pair tabular">{{ sample.strip }}</div>{% else %}
<div class="pair">{{ picture(sample.original, 'Original: ' ~ who(sample), 'not kept') }}
{{ picture(sample.reconstruction, 'Reconstruction by attack ' ~ setting.name ~ ', round ' ~ setting.entry.round ~ ': ' ~ score(sample), 'failed' if sample.failed else 'not kept') }}</div>
{% endif %}
{% endmacro %}
{% macro span(values, places=0) %}{% if values %}{{ values[0]|pct(places) }} to {{ values[1]|pct(places) }}{% else %}–{% endif %}{% endmacro %}
{% macro row(name, text) %}<div><dt>{{ name }}</dt><dd>{{ text }}</dd></div>{% endmacro %}
{% macro no_pictures() %}No picture of a sample and no label is in this file: {{ absence }}. <code>--show-samples yes</code> puts them in.{% endmacro %}
{% macro rmsd_of(setting) %}{% set found = (setting.entry.distance or {}).rmsd %}{{ found.mean if found is mapping else found if found is not none and found is defined else '' }}{% endmacro %}
{% macro floor(decibels, unit=true) %}{% if decibels is not number %}–{% elif scope.unit == 'texts' %}{{ (1 - 10 ** (-decibels / 10))|pct }}{{ ' of bytes right' if unit }}{% elif scope.unit == 'records' %}{{ 'RMSD ' if unit }}{{ (10 ** (-decibels / 20))|num(3) }}{% else %}{{ decibels|num }}{{ ' dB' if unit }}{% endif %}{% endmacro %}
{% macro sample_facts(setting, sample) %}
{% set scores = sample.scores %}{% set entry = setting.entry %}
<dl class="facts">
{{ row('counts as recovered', 'yes' if sample.recovered else 'no, the attack gave nothing' if sample.failed else 'no') }}
{% if not sample.failed %}
{% for key, name, places, unit in (('psnr', 'PSNR', 1, ' dB'), ('ceiling', 'PSNR of the nearest image of the search’s form', 1, ' dB'), ('gain', 'gain over the best floor', 1, ' dB'), ('ssim', 'SSIM', 2, ''), ('lpips', 'LPIPS', 3, ''), ('feature_error', 'relative error of its features', 3, ''), ('rmsd', 'RMSD', 4, ''), ('rouge_1', 'ROUGE-1 (words)', 2, ''), ('rouge_2', 'ROUGE-2 (pairs of words)', 2, '')) %}{% if scores[key] is not none and not (sample.is_text and key in ('gain', 'rmsd')) %}{{ row(name, scores[key]|num(places) ~ unit) }}{% endif %}{% endfor %}
{% if scores.exact_features is not none %}{{ row('bytes exact' if sample.is_text else 'features exact', scores.exact_features|pct) }}{% endif %}
{% if scores.agreed_exact is not none %}{{ row('exact where the searches agree', scores.agreed_exact|pct ~ ' of ' ~ scores.agreed|pct ~ ' of the features') }}{% endif %}
{% if scores['rank'] is not none %}{{ row('rank of the true one', '%d of %d candidates'|format(scores['rank'], scores.candidates or 0)) }}{% endif %}
{% if scores.matching_loss is not none %}{{ row('matching loss', '%.3g'|format(scores.matching_loss)) }}{% endif %}
{% endif %}
{% for key, name in floor_names.items() %}{% if scores['floor_' ~ key] is not none %}{{ row('floor: ' ~ name|lower, floor(scores['floor_' ~ key])) }}{% endif %}{% endfor %}
{{ row('attack', setting.title ~ ', ' ~ when(setting).partition(',')[0]) }}
{{ row('attacked', ('probe' if entry.source == 'probe' else 'update') ~ ', batch ' ~ entry.batch|plain ~ ', local steps ' ~ entry.steps|plain) }}
{% if scores.label_accuracy is not none %}{{ row('labels found by the attack', scores.label_accuracy|pct) }}{% endif %}
{{ row('search', (scores.iterations if scores.iterations is not none else entry.iterations)|plain ~ ' iterations, ' ~ entry.restarts|plain ~ ' restarts') }}
{% if sample.row.seed %}{{ row('seed', sample.row.seed) }}{% endif %}
{% if sample.row.index and not absence %}{{ row('place in the training part', sample.row.index) }}{% endif %}
</dl>
{% endmacro %}
{% macro facts(mapping, all=true) %}<dl class="facts">{% for key, value in mapping.items() if all or value not in (none, 'none') %}<div><dt>{{ key|replace('_', ' ') }}</dt><dd>{{ value|plain }}</dd></div>{% endfor %}</dl>{% endmacro %}
{% set vantages = {
  'server': 'The server, honest but curious: it follows the protocol, and keeps every message that it sends and receives (leakage of type 0).',
  'client_update': 'An observer on the client who reads the finished update before it is sent: the very bytes that the server gets, after all that the client’s own defence does (leakage of type 1).',
  'client_example': 'An observer on the client who reads the gradient of a single example during local training, as a local step follows it: after what the client’s own defence does to batches and gradients, before what it does to the finished update (leakage of type 2).',
  'aggregate': 'The server behind secure aggregation: it sees sums over groups of clients, and no client’s own message. The protocol is taken to be right.',
  'peer': 'Another client of the federation, honest but curious: from the models before and after a round it computes the mean of all messages, and takes its own part off, and those of clients that work with it.',
  'outsider': 'Somebody who sees the finished model, and no message of any client.'} %}
{% set control_names = {
  'analytic': 'Measurement: a closed form on a linear network must find every sample',
  'easy': 'Easy case: the same attack on fresh weights, one sample, one step, no defence',
  'consistency': 'Description: the true data, through the client as the attacker models it, give the recorded message',
  'undefended': 'Without the protection: the same attack on the same clients, weights and sizes',
  'weak_defence': 'Weakest protection: the same, by an attacker who knows the protection at its weakest settings',
  'target': 'The target itself'} %}
{% set control_texts = {'easy': 'easy case', 'undefended': 'without the protection', 'weak_defence': 'weakest protection'} %}
{% set floor_names = {'noise': 'Random bytes', 'mean': 'Most usual public byte', 'class_mean': 'Most usual public byte in each place, in the class', 'random_public': 'Random public text', 'nearest_public': 'Nearest public text (an oracle picks it)'} if scope.unit == 'texts' else {'noise': 'Uniform noise', 'grey': 'Grey image', 'normalisation': 'Mean of the normalisation', 'mean': 'Public mean image', 'class_mean': 'Public mean image of the class', 'random_public': 'Random public image', 'nearest_public': 'Nearest public image (an oracle picks it)', 'unguided': 'Nearest of the images that the attack makes without the message (an oracle picks it)'} if scope.unit == 'images' else {'noise': 'Uniform noise', 'grey': 'One half everywhere', 'normalisation': 'Mean of the normalisation', 'mean': 'Public mean', 'class_mean': 'Public mean of the ' ~ a_class, 'random_public': 'Random public ' ~ one, 'nearest_public': 'Nearest public ' ~ one ~ ' (an oracle picks it)'} %}
"""

RESULTS = """\
{% set entries = targets|map(attribute='entry')|list %}
{% macro name_cell(setting) %}<th scope="row">{{ setting.title }}</th><td>{{ setting.entry.round|plain }}</td>{% endmacro %}
{% macro verdict_cell(entry) %}<td class="text{{ ' accent-text' if entry.verdict == 'leaks' }}">{{ entry|verdict }}</td>{% endmacro %}
{% macro tr(setting) %}<tr{{ ' class="answer"'|safe if setting is sameas worst }}>{% endmacro %}
{% macro closeness(setting) %}{% if setting.entry.psnr %}, mean {{ setting.entry.psnr.mean|num }} dB{% elif scope.unit == 'texts' and setting.entry.exact_match %}, {{ setting.entry.exact_match.features|pct }} of bytes right{% elif setting.entry.distance %}, RMSD {{ rmsd_of(setting)|num(3) }}{% endif %}{% endmacro %}
<section id="results" aria-labelledby="results-title">
<h2 id="results-title">What the attacks reached</h2>
<p class="soft" id="glance">Every attack and round, the one above shaded.{% if entries|selectattr('adaptation')|list %} “Told of” a defence is an attacker who knows it and adapts to it; above it stands the same attack without.{% endif %} {% if entries|selectattr('share_interval')|list %}The interval {{ 'is exact and ' if not entries|selectattr('batch', 'gt', 1)|list }}covers 95 %: it says what share of such {{ scope.unit }} this attack may recover.{% if entries|selectattr('messages')|selectattr('batch', 'gt', 1)|list %} The {{ scope.unit }} of one message count as one.{% endif %}{% endif %}</p>
<div class="scroll" tabindex="0" role="region" aria-label="All audited settings">
<table>
{% set identified = entries|selectattr('identification_rate', 'number')|list %}{% set held = entries|selectattr('candidate_test')|list %}{% set cases = entries|selectattr('worst')|list %}
<thead><tr><th scope="col" class="text">Attack</th><th scope="col">Round</th><th scope="col" class="text">Verdict</th><th scope="col">Recovered</th><th scope="col">Interval</th><th scope="col">Failed</th>{% if identified %}<th scope="col">Identified among look-alikes</th><th scope="col">By chance</th>{% endif %}{% if held %}<th scope="col">Points to the truth</th><th scope="col">By chance</th>{% endif %}{% if cases %}<th scope="col" class="text">Worst case</th>{% endif %}<th scope="col">Time</th></tr></thead>
<tbody>{% for setting in targets %}{% set entry = setting.entry %}{{ tr(setting) }}{{ name_cell(setting) }}{{ verdict_cell(entry) }}<td>{{ setting.recovered }} of {{ setting.total }}</td><td>{{ span(entry.share_interval) }}</td><td>{{ setting.failures }}</td>
{% if identified %}<td>{{ entry.identification_rate|pct }}</td><td>{{ entry.identification_null|pct }}</td>{% endif %}{% if held %}<td>{% if entry.candidate_test %}{{ entry.candidate_test.first }} of {{ entry.candidate_test.messages }}{% else %}–{% endif %}</td><td>{% if entry.candidate_test %}{{ entry.candidate_test.null|pct }}{% else %}–{% endif %}</td>{% endif %}{% if cases %}<td class="text">{% if entry.worst %}client {{ entry.worst.client|plain }}, sample {{ entry.worst.probe_slot|plain }}{% else %}–{% endif %}</td>{% endif %}<td>{{ entry.seconds|num(0) }} s</td></tr>
{% endfor %}</tbody></table></div>
{% if pairs %}
{% set informed = pairs|map('last')|selectattr('informed')|list %}
<h3>Static beside adaptive</h3>
<p class="soft">{% if informed|length == pairs|length %}The same attack on the same messages, first by an attacker who is not told of the defence, or of what the method does, then by one who is and adapts to it.{% else %}A static attack takes no account of what the method or a defence hides; an adaptive one does.{% endif %} Only the adaptive one can speak for the protection.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Static beside adaptive"><table><thead><tr><th scope="col">Round</th>{% if scope.vantages|length > 1 %}<th scope="col" class="text">Vantage</th>{% endif %}<th scope="col" class="text">Static</th><th scope="col" class="text">Verdict</th><th scope="col" class="text">Adaptive</th><th scope="col" class="text">Verdict</th>{% if informed %}<th scope="col">Knowing gains, dB</th><th scope="col">Interval</th>{% endif %}</tr></thead>
<tbody>{% for pair_ in pairs %}{% set knowing = pair_[1].entry.adaptive_gain or {} %}<tr><th scope="row">{{ pair_[0].entry.round|plain }}</th>{% if scope.vantages|length > 1 %}<td class="text">{{ pair_[0].entry.vantage|plain }}</td>{% endif %}{% for setting in pair_ %}<td class="text">{{ setting.entry.attack }}{{ ' told of ' ~ setting.entry.defence if setting.informed }}: {{ setting.recovered }} of {{ setting.total }}{{ closeness(setting) }}</td>{{ verdict_cell(setting.entry) }}{% endfor %}{% if informed %}<td>{{ knowing.mean|num }}</td><td>{% if knowing.low is number and knowing.high is number %}{{ knowing.low|num }} to {{ knowing.high|num }}{% else %}–{% endif %}</td>{% endif %}</tr>
{% endfor %}</tbody></table></div>
{% endif %}
{% if beside_uploads %}
<h3>A probe beside what training sent</h3>
<p class="soft">The same attack in the same round. A probe is the update of a few examples and steps; an upload is the update of a client’s whole local training.</p>
<div class="scroll" tabindex="0" role="region" aria-label="A probe beside what training sent"><table><thead><tr><th scope="col" class="text">Attack</th><th scope="col">Round</th>{% for kind in ('Probe', 'Upload') %}<th scope="col" class="text">{{ kind }}: recovered</th><th scope="col">Interval</th><th scope="col" class="text">Verdict</th>{% endfor %}</tr></thead>
<tbody>{% for pair_ in beside_uploads %}{% set entry = pair_[0].entry %}<tr><th scope="row">{{ entry.attack }}{{ ' told of ' ~ entry.defence if pair_[0].informed }}</th><td>{{ entry.round|plain }}</td>{% for setting in pair_ %}<td class="text">{{ setting.recovered }} of {{ setting.total }}{{ closeness(setting) }}</td><td>{{ span(setting.entry.share_interval) }}</td>{{ verdict_cell(setting.entry) }}{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endif %}
{% if entries|selectattr('psnr')|list or entries|selectattr('distance')|list or entries|selectattr('exact_match')|list %}
{% set decibels = entries|selectattr('psnr')|list %}{% set numbers = scope.unit != 'texts' %}{% set distances = entries|selectattr('distance')|list if numbers else [] %}{% set gains = entries|selectattr('gain')|list if numbers else [] %}{% set exact = entries|selectattr('exact_match')|list %}{% set lpips = entries|selectattr('lpips')|list %}{% set ssim = entries|selectattr('ssim')|list %}{% set features = entries|selectattr('feature_error')|list %}{% set ceilings = entries|selectattr('ceiling', 'number')|list %}{% set words = entries|selectattr('rouge')|list %}{% set labelled = entries|selectattr('label_accuracy', 'number')|list %}
<h3>How close the reconstructions are</h3>
<p class="soft">{% if decibels %}Means over the images{% if lpips %} (LPIPS: smaller is closer){% endif %}; what counts is the gain, how far an image stands above the best of its own floors.{% else %}Means over the {{ scope.unit }}.{% if scope.unit == 'texts' %} Bytes count in their places; ROUGE compares words, and pairs of words, in any order.{% endif %}{% endif %}</p>
<div class="scroll" tabindex="0" role="region" aria-label="How close the reconstructions are">
<table>
<thead><tr><th scope="col" class="text">Attack</th><th scope="col">Round</th>{% if decibels %}<th scope="col">PSNR, dB</th><th scope="col">Interval</th><th scope="col">Best</th>{% endif %}{% if ceilings %}<th scope="col">Ceiling, dB</th>{% endif %}{% if gains %}<th scope="col">Gain, dB</th><th scope="col">Best gain</th>{% endif %}{% if ssim %}<th scope="col">SSIM</th>{% endif %}{% if lpips %}<th scope="col">LPIPS</th><th scope="col">Closest</th>{% endif %}{% if features %}<th scope="col">Feature error</th>{% endif %}{% if distances %}<th scope="col">RMSD</th><th scope="col">RMSD below 0.3</th>{% endif %}{% if exact %}<th scope="col">{{ 'Bytes' if scope.unit == 'texts' else 'Features' }} exact</th><th scope="col">By guessing</th>{% if exact|selectattr('exact_match.cells', 'number')|list %}<th scope="col">Cells exact</th><th scope="col">By guessing</th>{% endif %}<th scope="col">Whole {{ 'texts' if scope.unit == 'texts' else 'rows' }}</th>{% endif %}{% if words %}<th scope="col">ROUGE-1</th><th scope="col">ROUGE-2</th><th scope="col">ROUGE-1 of a random public text</th>{% endif %}{% if labelled %}<th scope="col">Labels found</th>{% endif %}</tr></thead>
<tbody>{% for setting in targets %}{% set entry = setting.entry %}{{ tr(setting) }}{{ name_cell(setting) }}
{% if decibels %}{% set psnr = entry.psnr or {} %}<td>{{ psnr.mean|num }}</td><td>{% if psnr.low is number and psnr.high is number %}{{ psnr.low|num }} to {{ psnr.high|num }}{% else %}–{% endif %}</td><td>{{ psnr.max|num }}</td>{% endif %}{% if ceilings %}<td>{{ entry.ceiling|num }}</td>{% endif %}{% if gains %}<td>{{ (entry.gain or {}).mean|num }}</td><td>{{ (entry.gain or {}).max|num }}</td>{% endif %}
{% if ssim %}<td>{{ (entry.ssim or {}).mean|num(2) }}</td>{% endif %}{% if lpips %}<td>{{ (entry.lpips.mean if entry.lpips is mapping else entry.lpips)|num(3) }}</td><td>{{ (entry.lpips.min if entry.lpips is mapping else none)|num(3) }}</td>{% endif %}{% if features %}<td>{{ (entry.feature_error or {}).mean|num(3) }}</td>{% endif %}
{% if distances %}{% set distance = entry.distance or {} %}<td>{{ rmsd_of(setting)|num(3) }}</td><td>{{ distance.success|pct }}</td>{% endif %}{% if exact %}{% set match = entry.exact_match or {} %}<td>{{ match.features|pct }}</td><td>{{ match.floor|pct }}</td>{% if exact|selectattr('exact_match.cells', 'number')|list %}<td>{{ match.cells|pct }}</td><td>{{ match.floor_cells|pct }}</td>{% endif %}<td>{{ match.rows|pct }}</td>{% endif %}{% if words %}{% set rouge = entry.rouge or {} %}<td>{{ rouge.rouge_1|num(2) }}</td><td>{{ rouge.rouge_2|num(2) }}</td><td>{{ rouge.floor_rouge_1|num(2) }}</td>{% endif %}{% if labelled %}<td>{{ entry.label_accuracy|pct }}</td>{% endif %}</tr>
{% endfor %}</tbody></table></div>
{% if lpips %}{% set weights = (origin.weights or {}).lpips if origin.weights is mapping else none %}<p class="caption soft">LPIPS is version 0.1 with AlexNet. Images with a side under 64 px are enlarged so that the shorter side is 64; grey ones are repeated to three channels.{% if weights %} Backbone weights: {{ weights.file }} (SHA-256 {{ weights.sha256|string|truncate(16, true, '…') }}), {{ 'the official file' if weights.official else 'not the official file, so the values compare within this report only' }}.{% endif %}</p>{% endif %}
{% if ceilings %}<p class="caption soft">Ceiling: the PSNR of the nearest image that a search of this form can give, made with the truth. A network behind the search may come nearer.</p>{% endif %}
{% if labelled %}<p class="caption soft">Labels found: the share of a batch’s labels, in whatever order, that an attack found which was not granted them.</p>{% endif %}
{% if exact and numbers %}<p class="caption soft">A feature is exact when a yes or no is right, or a number is within 5 % of its range{% if exact|selectattr('exact_match.cells', 'number')|list %}; a cell likewise, and a category as a whole{% endif %}. Guessing: the best constant guess for each of them.</p>{% endif %}
{% endif %}
{% if attributes %}
{% set column = 'column' if plan else 'feature' %}
<h3>{{ column|capital }} by {{ column }}</h3>
<p class="soft">How often each {{ column }} was recovered, and how often the best constant guess matches it.{% if attributes|selectattr('rows.0.chance', 'number')|list %} By chance: how often the same guesses match in other {{ scope.unit }} than those of the message.{% endif %} A {{ column }} is counted as above a guess at p = 0.01, corrected for all {{ column }}s of all settings.</p>
{% for table in attributes %}
<details><summary>{{ table.setting.title }}, {{ when(table.setting) }}: {{ table.above }} of {{ table.rows|length }} {{ column }}s above a guess{% if table.needed %} (none could be with {{ table.setting.entry.messages }} messages: it takes {{ table.needed }}){% endif %}</summary>
<div class="scroll" tabindex="0" role="region" aria-label="{{ column|capital }}s, {{ table.setting.title }}"><table><thead><tr><th scope="col">{{ column|capital }}</th><th scope="col">Recovered</th><th scope="col">Interval</th><th scope="col">By guessing</th><th scope="col">By chance</th><th scope="col">p</th><th scope="col" class="text">Above</th></tr></thead>
<tbody>{% for row_ in table.rows %}<tr><th scope="row">{{ row_.name or row_.number }}</th><td>{{ row_.share|pct }}</td><td>{{ span([row_.low, row_.high]) }}</td><td>{{ row_.floor|pct }}</td><td>{{ row_.chance|pct }}</td><td>{{ row_.p|digits }}</td><td class="text">{{ row_.above|plain }}</td></tr>
{% endfor %}</tbody></table></div></details>
{% endfor %}
{% endif %}
{% set searched = settings|selectattr('entry.objective')|list %}
{% if searched %}
<h3>Failed search, or lost information?</h3>
<p class="soft">An attack searches for data that explain the message: the smaller the value that it minimises, the better they do. Here are the medians of this value over the messages, and in how many of them the search ended above the truth.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Failed search, or lost information"><table><thead><tr><th scope="col" class="text">Attack</th><th scope="col">Round</th><th scope="col">At the truth</th><th scope="col">At its results</th><th scope="col">At random guesses</th><th scope="col">Ended short</th></tr></thead>
<tbody>{% for setting in searched %}{% set values = setting.entry.objective %}{{ tr(setting) }}{{ name_cell(setting) }}<td>{{ values.truth|digits }}</td><td>{{ values.found|digits }}</td><td>{{ values.random|digits }}</td><td>{{ values.unconverged }} of {{ values.total }}</td></tr>
{% endfor %}</tbody></table></div>
<ul class="plainlist">{% for setting in searched %}<li>{{ setting.title }}, {{ turn(setting.entry.round) }}: {{ setting|of_search(scope.unit) }}</li>{% endfor %}</ul>
{% endif %}
{% for setting in targets %}{% set presence = setting.entry.label_presence %}{% if presence is mapping %}<p class="presence">Which classes a client holds, read off what it uploaded ({{ setting.title }}, {{ when(setting) }}): right for {{ presence.correct|pct }} of the classes of {{ presence.clients }} client{{ '' if presence.clients == 1 else 's' }}; the better constant guess is right for {{ presence.null|pct }}.</p>
{% endif %}{% endfor %}
{% for kind, drawn in curves.items() %}{% set by, varied, column = {'sum_size': ('By clients in a sum', 'the messages of other numbers of clients summed', 'Clients'), 'batch': ('By batch size', 'other batches', 'Batch'), 'steps': ('By local steps', 'other numbers of local steps', 'Local steps'), 'ladder': ('By batch size and local steps', 'larger batches, then with more local steps', 'Batch x steps')}[kind] %}
<h3>{{ by }}</h3>
<figure>{{ drawn[0] }}<figcaption>The same probe with {{ varied }}; nothing else changes. A dot is the mean{{ ' with its interval' if drawn[1]|map(attribute='entry.share_interval')|select|list }}{% if drawn[1]|map(attribute='entry.psnr')|select|list %}, the ring the best reconstruction{% endif %}{{ '. Each step of a probe is on the same batch, where training goes through all data' if kind == 'ladder' else '; equal steps along the axis are equal factors' }}. The dashed line only leads the eye.</figcaption></figure>
<div class="scroll" tabindex="0" role="region" aria-label="Leakage {{ by|lower }}"><table><thead><tr><th scope="col" class="text">Attack</th><th scope="col">Round</th><th scope="col">{{ column }}</th><th scope="col" class="text">Verdict</th><th scope="col">Recovered</th><th scope="col">Interval</th><th scope="col">Failed</th>{% if drawn[1]|map(attribute='entry.psnr')|select|list %}<th scope="col">PSNR, dB</th><th scope="col">Best</th>{% endif %}</tr></thead>
<tbody>{% for setting in drawn[1] %}{% set entry = setting.entry %}<tr{{ ' class="answer"'|safe if setting is sameas elsewhere }}><th scope="row">{{ setting.name }}</th><td>{{ entry.round|plain }}</td><td>{{ entry.batch|plain ~ ' x ' ~ entry.steps|plain if kind == 'ladder' else (entry.sum_size if kind == 'sum_size' else entry[kind])|plain }}</td>{{ verdict_cell(entry) }}<td>{{ setting.recovered }} of {{ setting.total }}</td><td>{{ span(entry.share_interval) }}</td><td>{{ setting.failures }}</td>{% if drawn[1]|map(attribute='entry.psnr')|select|list %}<td>{{ (entry.psnr or {}).mean|num }}</td><td>{{ (entry.psnr or {}).max|num }}</td>{% endif %}</tr>
{% endfor %}</tbody></table></div>
{% if kind == 'sum_size' %}<ul class="plainlist">{% for setting in drawn[1] if setting.entry.min_safe_sum_size and setting.entry.sum_size == setting.entry.min_safe_sum_size %}<li>{{ setting.name }}, {{ turn(setting.entry.round) }}: it reached nothing in {{ setting.entry.messages|plain }} sum{{ '' if setting.entry.messages == 1 else 's' }} over {{ setting.entry.min_safe_sum_size }} clients, the fewest from which on that was so{% if setting.entry.num_colluding %}; {{ setting.entry.sum_size - setting.entry.num_colluding }} of them do not work with the attacker{% endif %}. A stronger attack may reach more.</li>{% endfor %}</ul>{% endif %}
{% endfor %}
</section>
"""

ATTACKER = """\
{% macro stance(setting) %}
{% set entry = setting.entry %}{% set twin = twins[setting.key] %}
{% if setting.informed %}It is told of {{ entry.defence }} and adapts to it, {{ 'with the defence’s own code in the objective' if entry.adaptation == 'automatic' else 'with what is written for it' }}{{ '' if entry.adaptive else ', but makes no use of all else that stands between the data and what it reads: it counts as static' }}.{% elif entry.adaptive %}It takes account of all that stands between the data and what it reads.{% elif twin %}It is static: it is not told of {{ entry.defence }}. The same attack, told of it, has a description of its own.{% else %}It is static: it takes no account of what the method or a defence hides.{% endif %}
{% endmacro %}
<section id="attacker" aria-labelledby="attacker-title">
<h2 id="attacker-title">What the attacker had</h2>
{% for group in groups %}{% set entry = group[0].entry %}
<h3>Attack {{ group[0].name }}, round{{ 's' if group|length > 1 }} {{ group|map(attribute='entry.round')|join(', ') }}</h3>
<div class="columns"><div>
<h4>Threat model</h4>
<p>{{ vantages.get(entry.vantage|string|lower, 'Vantage: ' ~ entry.vantage) }} {% if entry.source != 'probe' %}It attacks the update that training really sent.{% elif entry.vantage == 'client_example' %}It attacks a probe: what local training computes for one example, read on the client and never sent.{% else %}It attacks a probe: what the client would send for {{ entry.batch|plain }} example{{ '' if entry.batch == 1 else 's' }} and {{ entry.steps|plain }} local step{{ '' if entry.steps == 1 else 's' }}, through the same defence and the same wire.{% endif %} {{ stance(group[0])|trim }}</p>
<h4>Verdict</h4>
<ul class="plainlist">{% for setting in group %}<li>{{ when(setting)|capitalize }}: {{ setting.entry|verdict }}. {{ reason(setting)|trim }}{% if setting.entry.failure_reason and setting.entry.failure_reason not in (setting.entry.reason or '') %} It gave nothing: {{ setting.entry.failure_reason|trim('.') }}.{% endif %}</li>{% endfor %}</ul>
<details class="paper"><summary>Granted to the attacker</summary><ul class="plainlist">{% for sentence in entry.granted or ['nothing that is recorded'] %}<li>{{ sentence }}</li>{% endfor %}</ul></details>
</div><div>
<h4>Budget and selection</h4>
{{ facts({'protection': entry.defence, 'adapted to it': {'written': 'with what is written for it', 'automatic': 'with its own code in the objective'}.get(entry.adaptation), 'network mode': entry.mode, 'iterations': entry.iterations, 'restarts': entry.restarts, 'seeds': entry.seeds, 'kept result': entry.selection, 'started again': (entry.attempts or 1) - 1 or none, 'time': entry.seconds|num(0) ~ ' s, and ' ~ entry.scoring_seconds|num(0) ~ ' s to score' if entry.scoring_seconds is number else entry.seconds|num(0) ~ ' s', 'tuned on': (result.provenance or {}).tuned_on}, false) }}
<p class="soft">The kept result is chosen by this rule alone; the originals are opened only afterwards, to score it.</p>
{% if entry.assignment and (entry.batch is not number or entry.batch > 1) %}<p class="soft">Which reconstruction is compared with which original: {{ entry.assignment.rule|trim('.') }}.{% if entry.assignment.null is number %} Unrelated public images get {% for setting in group %}{{ (setting.entry.assignment or {}).null|num }} dB{{ ', ' if not loop.last }}{% endfor %} by the same rule.{% endif %}</p>{% endif %}
</div></div>
<h4>Controls: what must be shown before a failure counts</h4>
<div class="scroll" tabindex="0" role="region" aria-label="Controls of {{ group[0].name }}"><table class="controls"><thead><tr><th scope="col" class="text">Control</th><th scope="col" class="text">Shown</th><th scope="col">Round</th>{% if scope.unit != 'texts' %}<th scope="col">PSNR, dB</th>{% endif %}<th scope="col" class="text">Result in words</th></tr></thead>
{% set shown = group|map(attribute='entry.ladder')|list %}{% set same = shown|length > 1 and shown|reject('equalto', shown[0])|list|length == 0 %}
<tbody>{% for setting in (group[:1] if same else group) %}{% for control in setting.entry.ladder or [] %}<tr><th scope="row" class="wrap">{{ control_names.get(control.rung, control.rung) }}</th><td class="text">{{ 'not tried' if control.passed is none else control.passed|plain }}</td><td>{{ 'all' if same else setting.entry.round|plain }}</td>{% if scope.unit != 'texts' %}<td>{{ control.psnr|num }}</td>{% endif %}<td class="text wrap">{{ (control.reason or control.failure_reason)|sentence if control.reason or control.failure_reason else '–' }}</td></tr>{% else %}<tr><th scope="row">No control is recorded</th><td class="text">–</td><td>{{ setting.entry.round|plain }}</td>{% if scope.unit != 'texts' %}<td>–</td>{% endif %}<td class="text">–</td></tr>{% endfor %}{% endfor %}</tbody></table></div>
<div class="columns">
{% if group[0].control_samples and not absence %}<div><h4>Best of each control</h4><ul class="gallery{{ ' tabular' if group[0].control_samples.values()|selectattr('strip')|list }}">{% for name, sample in group[0].control_samples.items() %}<li>{{ pair(group[0], sample) }}<div class="under">{{ control_texts.get(name, name) }}, {{ score(sample) }}</div></li>{% endfor %}</ul></div>{% endif %}
{% if group|map(attribute='entry.floors')|select|list %}<div><details class="paper"><summary>Floors: what a guess scores without any update</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Floors of {{ group[0].name }}"><table><thead><tr><th scope="col" class="text">{{ {'records': 'RMSD', 'texts': 'Bytes right'}.get(scope.unit, 'PSNR, dB') }}</th>{% for setting in group %}<th scope="col">Round {{ setting.entry.round|plain }}</th>{% endfor %}</tr></thead>
<tbody>{% for key, name in floor_names.items() if key != 'unguided' or group|selectattr('entry.floors.unguided', 'defined')|list %}<tr><th scope="row">{{ name }}</th>{% for setting in group %}<td>{{ floor((setting.entry.floors or {})[key], false) }}</td>{% endfor %}</tr>{% endfor %}
<tr class="answer"><th scope="row">{{ group[0].name }}, mean</th>{% for setting in group %}<td>{{ (setting.entry.exact_match or {}).features|pct if scope.unit == 'texts' else rmsd_of(setting)|num(3) if scope.unit == 'records' else (setting.entry.psnr or {}).mean|num }}</td>{% endfor %}</tr></tbody></table></div></details></div>{% endif %}
</div>
{% endfor %}
</section>
"""

GALLERY = """\
<section id="gallery" aria-labelledby="gallery-title">
<h2 id="gallery-title">{{ 'All samples' if absence else 'All reconstructions' }}</h2>
<p>{% if absence %}{{ no_pictures() }} What follows are the scores, worst for the client first.{% else %}{{ {'records': 'The client’s record beside the reconstruction, of which wrong values are marked;' if plan else 'Rings are the client’s record, dots the reconstruction;', 'texts': 'Original above, reconstruction below with its wrong bytes marked,'}.get(scope.unit, 'Original on the left, reconstruction on the right,') }} worst for the client first. These are clients’ real samples: treat this page as confidential as the data.{% endif %}{% if scope.unit == 'texts' %}{% if not absence %} {{ legend }}.{% endif %}{% else %} The gain is measured against the best floor of the {{ one }}: the best that a guess reaches which saw nothing of this client.{% endif %}</p>
<p class="soft onscreen">Enter opens one with all its figures; the arrow keys walk on.</p>
{% for setting in gallery %}
<h3>Attack {{ setting.name }}, {{ when(setting) }}</h3>
<p class="soft">{{ setting.recovered }} of {{ setting.total }} recovered, {{ setting.failures }} failed.{% if not setting.samples %} The run kept no record of single samples.{% elif setting.samples|length > 8 %}<span class="printed">Printed: the first 8 of {{ setting.samples|length }}; the others are in the file.</span>{% endif %}</p>
<div data-gallery="{{ setting.name }}, {{ when(setting) }}">
{% for chunk in [setting.samples[:24], setting.samples[24:]] %}{% if chunk %}{% set skipped = 0 if loop.first else 24 %}
{% if not loop.first %}<details class="rest"><summary>The other {{ chunk|length }}</summary>{% endif %}
<ul class="gallery{{ ' bare' if absence else ' tabular' if setting.samples[0].strip }}">
{% for sample in chunk %}<li id="{{ setting.key }}-{{ loop.index + skipped }}" class="{{ 'recovered' if sample.recovered }}"><details class="sample"><summary>{{ pair(setting, sample) }}<div class="under"><b>{{ score(sample) }}</b>{% if sample.recovered %} <span class="accent-text">recovered</span>{% endif %}<br>
{% if not sample.failed and sample.scores.gain is not none and not sample.is_text %}{% if sample.scores.ssim is not none %}SSIM {{ sample.scores.ssim|num(2) }}, {% endif %}gain {{ sample.scores.gain|num }} dB<br>{% endif %}{{ who(sample) }}</div></summary>
{{ sample_facts(setting, sample) }}</details></li>
{% endfor %}</ul>{% if not loop.first %}</details>{% endif %}{% endif %}{% endfor %}
</div>
{% endfor %}
<dialog aria-label="One sample with all its figures"><div class="bar"><p class="place" aria-live="polite"></p><button type="button" class="previous">Previous</button><button type="button" class="next" autofocus>Next</button><button type="button" class="close">Close</button></div><div class="body"></div></dialog>
</section>
"""

FAILURES = """\
{% if failures %}
<section id="failures" aria-labelledby="failures-title">
<h2 id="failures-title">Failures</h2>
<p>{{ failed|capitalize }}. {% if settings %}An attempt without a result counts as one that recovered nothing; none is left out of a mean share.{% endif %}</p>
<div class="scroll" tabindex="0" role="region" aria-label="Failures"><table class="fails"><thead><tr><th scope="col" class="text">At</th><th scope="col" class="text">What</th><th scope="col" class="text">Why</th></tr></thead>
<tbody>{% for failure in failures %}<tr><th scope="row" class="wrap">{{ failure.at }}</th><td class="text wrap">{{ failure.who }}</td><td class="text wrap">{{ failure.reason }}</td></tr>
{% endfor %}</tbody></table></div>
</section>
{% endif %}
"""

INFERENCE = """\
{% if result.inference %}<section id="inference" aria-labelledby="inference-title">
<h2 id="inference-title">What classes clients hold</h2>
{% for one in result.inference or [] %}<p class="presence">What classes a client holds, and in which shares ({{ one.attack }}, rounds {{ one.rounds|join(', ') }}{{ '' if one.defence == 'none' else ', ' ~ one.defence }}): <b>{{ one.verdict }}</b>. {{ one.reason }}</p>
{% endfor %}
</section>
{% endif %}
"""


# First page: the verdict in plain words, what was not tested, what to ask, and the questions of an authority.
FIRST_PAGE = """\
<section id="decision" class="decision" aria-labelledby="verdict-title">
{% set opening, colon, rest = decided.headline.partition(':') %}
<h1 id="verdict-title">{% if rest or decided.level <= 1 %}<strong class="verdict{{ ' leaks' if decided.level <= 1 }}">{{ opening }}</strong>{{ colon }}{{ rest }}{% else %}{{ opening }}{% endif %}</h1>
<div class="first{{ '' if ahead else ' alone' }}">
{% if ahead %}<figure><ol class="worst{{ ' tabular' if ahead[0].strip }}">
{% for sample in ahead[:1 if ahead[0].strip else 4] %}<li class="{{ 'recovered' if sample.recovered }}"><a href="#{{ shown.key }}-{{ shown.samples.index(sample) + 1 }}">{{ pair(shown, sample) }}{% if shown.outcome != 'void' %}<div class="under"><b>{{ {'images': 'recognisable', 'texts': 'readable'}.get(scope.unit, 'recovered') if sample.recovered else 'not recovered' }}</b></div>{% endif %}</a></li>
{% endfor %}</ol>
<figcaption>{% if ahead[0].is_text %}Above: a client’s text. Below:{% elif ahead[0].strip and plan %}True: the client’s record. Attack:{% elif ahead[0].strip %}Rings: the client’s record. Dots:{% else %}Above: a client’s training image. Below:{% endif %} what attack {{ shown.entry.attack }}{% if shown.informed %}, which knows {{ shown.entry.protected_by or shown.entry.defence }},{% endif %} made of {{ 'the message' if shown.entry.vantage == 'server' and not shown.entry.sum_size else 'what it read' }}, {{ when(shown) }}. The closest come first{% if ahead[0].recovered %}, of those recovered{% endif %}.{% if plan and ahead[0].strip %} Wrong values are marked.{% endif %}{% if ahead[0].is_text %} Wrong bytes are underlined; {{ legend }}.{% endif %}</figcaption></figure>{% endif %}
<div class="meaning">{% if shown and shown.total and shown.entry.share_interval and shown.outcome in ('reconstructed', 'message', 'no leak found') %}{% set edges = shown.entry.share_interval %}<div class="share" role="img" aria-label="Share recovered: {{ (shown.recovered / shown.total)|pct(0) }}; 95 % interval {{ span(edges) }}"><i style="left:{{ 100 * edges[0] }}%;width:{{ 100 * (edges[1] - edges[0]) }}%"></i><b style="left:{{ [100 * shown.recovered / shown.total, 100]|min }}%"></b><small>recovered: none</small><small>all {{ scope.unit }}</small></div>{% endif %}
{% for sentence in decided.meaning %}<p>{{ sentence }}</p>{% endfor %}{% if absence and settings %}<p class="soft">{{ no_pictures() }}</p>{% endif %}
{% if failed %}<p>Not everything gave a result: <a href="#failures">{{ failed }}</a>.</p>{% endif %}</div>
</div>
<dl class="asked" aria-label="Three questions">
{% for question in questions %}<div><dt>{{ question.asked }} <small>{{ question.subject }}</small></dt><dd><b{{ ' class="accent-text"'|safe if question.leaks }}>{% if question.href %}<a href="#{{ question.href }}">{{ question.answer }}</a>{% else %}{{ question.answer }}{% endif %}</b><small>{{ question.words }}</small></dd></div>
{% endfor %}</dl>
{% set cautions = notes|caveats %}{% if cautions %}<div class="notice" role="note"><b>Read this result with {{ 'a caveat' if cautions|length == 1 else 'these caveats' }}</b><ul>{% for note in cautions[:3] %}<li>{{ note }}</li>{% endfor %}{% if cautions|length > 3 %}<li><a href="#provenance">{{ cautions|length - 3 }} more under Provenance</a></li>{% endif %}</ul></div>{% endif %}
<div class="columns">
<div><h2>What to ask of the federation</h2>
<ol class="plainlist asks">{% for question, because in asks[:6] %}<li><b>{{ question|flags }}</b> {{ because|flags }}</li>{% endfor %}</ol>
{% if asks|length > 6 %}<p class="soft"><a href="#more">{{ asks|length - 6 }} more below</a>.</p>{% endif %}</div>
<div><h2>What was not tested</h2>
<ul class="plainlist">{% for item in untested %}<li>{{ item }}</li>{% endfor %}</ul></div>
</div>
{% if opinion %}
<h2>Beside the questions of EDPB Opinion 28/2024</h2>
<p class="soft">A model is anonymous, in short, only if it is insignificantly likely that personal data of those it was trained on are extracted from it, and that they come out of queries, on purpose or not; all means count that the controller or anybody else is reasonably likely to use (executive summary, 17 December 2024). The Opinion speaks of models. {% if opinion|selectattr('queries', 'equalto', unasked)|list %}These attacks read training messages, not the finished model. {% endif %}These are facts of this run; the judgement is yours.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Facts beside EDPB Opinion 28/2024"><table class="stacked">
<thead><tr><th scope="col" class="text">Attack</th><th scope="col" class="text">Were personal data extracted?</th><th scope="col" class="text">By what means?</th><th scope="col" class="text">Do the model’s outputs relate to persons?</th><th scope="col" class="text">How likely is it?</th></tr></thead>
<tbody>{% for fact in opinion %}<tr><th scope="row">{{ fact.attack }}</th><td class="text" data-name="Extracted?">{{ fact.extraction }}</td><td class="text" data-name="Means">{{ fact.means }}</td><td class="text" data-name="Outputs">{{ fact.queries }}</td><td class="text" data-name="How likely">{{ fact.likelihood }}</td></tr>
{% endfor %}</tbody></table></div>
{% endif %}
<p class="soft">This is the record of a technical test: no legal advice, and no proof that data are safe or anonymous. <a href="#words">How it was tested, and how sure it is</a>; <a href="#figures">the figures</a>; <a href="#glossary">the words</a>.</p>
</section>
"""

# Words of the page: what the terms of its figures mean.
GLOSSARY = """\
<details id="glossary" class="paper"><summary>The words of this page</summary>
<dl class="sentences two">
{% for word, meaning in (
  ('Method, defence, attack', 'How the federation trains together; what clients add to protect their data; what tries to learn something of them. Several share a name: the page says which one it means.'),
  ('Round', 'One exchange: the server sends the model, clients train it on their data and answer. Round 0 is before training.'),
  ('Message, update, probe', 'What a client sends. An update comes from its training; a probe is made for the test from few examples, and sent the same way.'),
  ('Vantage', 'The place from which an attacker looks: the server, a client, another client, or outside.'),
  ('Victim', 'A training example of a client that is attacked; also called a sample.'),
  ('Recovered', 'A result close enough to count. The rule is in the docs of the audit: ' ~ {'images': 'for an image at least 20 dB, and 1 dB above every floor.', 'records': 'for a record its values must be near the true ones, and nearer than every floor.', 'texts': 'for a text nine bytes in ten must be right in their places, and no public text may come near.'}.get(scope.unit, 'it differs for images, records and texts.')),
  ('Floor', 'What a guess reaches that saw no message, such as the most similar public ' ~ one ~ '. Less than that is no leak.'),
  ('Static, adaptive', 'A static attack takes no account of what hides the data; an adaptive one reckons with it. “Told of” names what it was told of.'),
  ('PSNR, dB', 'Nearness of a recovered ' ~ one ~ ' to its original, in decibels. Each 6 dB halve the error; a perfect copy has an infinite PSNR.'),
  ('Gain', 'PSNR above the best floor of the same ' ~ one ~ ', in dB.'),
  ('RMSD', 'Distance of a recovered record from the true one; 0 is a perfect copy.'),
  ('Interval', 'Range in which a value lies for all such examples, with 95 % certainty. It counts chance, not stronger attacks.'),
  ('Identified among look-alikes', 'The share of results that are nearer to the true example than to similar ones of other people.'),
  ('Member', 'An example that was trained on. A held-out one was not.'),
  ('AUC', 'How often a member scores above a held-out example: 0.50 is a coin, 1.00 always.'),
  ('Members found (TPR), false alarms (FPR)', 'Of the members, the share that an attack names; of the others, the share that it names wrongly.'),
  ('ε, δ', 'Privacy bound: the smaller ε, the less one unit can change what an adversary sees; δ is the chance that the bound fails. ε at most is claimed, ε at least is measured.'),
  ('Unit', 'Whose presence a bound hides: one example, all of a patient, or a whole client.'),
  (('Error (MAE, RMSE, R²)' if regression else 'Accuracy') ~ ' as received, after local training', ('Mean error, root of the mean squared error, and the share of the target’s spread that is explained (0: no better than the mean). ' if regression else '') ~ 'Of the model that a client gets, and of the same model once the client has trained it on its own data.'),
  ('Control', 'Easier case that an attack must solve before its failure counts.'),
) %}<div><dt>{{ word }}</dt><dd>{{ meaning }}</dd></div>
{% endfor %}</dl></details>
</section>
"""

# Sections on membership: its sentences, and the statistics with what they rest on.
TELLING = """\
{% macro interval(low, high, places=2) %}{% if low is number and high is number %}{{ low|num(places) }} to {{ high|num(places) }}{% else %}–{% endif %}{% endmacro %}
{% macro telling(row) %}statistic {{ row.statistic }} tells members from held-out {% if row.unit == 'patient' %}patients{% else %}{{ scope.unit }} {{ same_class }}{% endif %} {{ row|rounds_read }}{% if row.auc is number %} (AUC {{ row.auc|num(2) }}, where a coin gives 0.50{% if row.tpr is number %}; {{ row.tpr|pct }} of the members found at {{ row.fpr|pct(2) }} false alarms{% endif %}){% endif %}{% endmacro %}
{% macro membership_headline(row) %}
{% if row.verdict == 'leaks' %}{{ run|capital }} <strong class="verdict leaks">leaks</strong> who was there: {{ telling(row) }}.
{% elif row.verdict == 'no leak found' %}<strong class="verdict">No leak found</strong> of membership in {{ run }}: statistic {{ row.statistic }} does no better than a coin {{ row|rounds_read }}, although it finds the members of an overfitted client.
{% else %}<strong class="verdict">Undecided</strong> on membership in {{ run }}: {{ row.reason }}
{% endif %}{% endmacro %}
{% macro membership_words(row) %}
{% if row.verdict == 'leaks' %}<b>It can be told that somebody’s data was there.</b> Of two {% if row.unit == 'patient' %}patients{% else %}{{ scope.unit }} {{ same_class }}{% endif %}, one of which was trained on, the test names the right one more often than a coin, or does so for some of them.
{% elif row.verdict == 'no leak found' %}<b>It was not found that membership can be told.</b> The test could have seen an effect above {{ (row.correct or {}).high|pct(0) }} right guesses, where a coin has 50 %. It does not prove that there is none.
{% else %}<b>Whether membership can be told is not known.</b>{% endif %} {{ row.reason }}{% endmacro %}
"""

MEMBERSHIP = """\
{% if membership %}
{% set claimed = membership|selectattr('claimed_epsilon', 'number')|list %}{% set checked = membership|selectattr('controls')|list %}{% set places = membership|map('seen_by')|unique|list %}{% set read = membership|map('rounds_read')|unique|list %}
<section id="membership" aria-labelledby="membership-title">
<h2 id="membership-title">Can it be told who was there?</h2>
<p>{% if membership|selectattr('unit', 'equalto', 'patient')|list %}Pairs of patients of one client, each with all of its {{ scope.unit }}, and with numbers of each {{ a_class }} as near as the data allow{% else %}Pairs of {{ scope.unit }} of one client and one {{ a_class }}{% endif %}: a fair coin chose which of the two was trained on, and nobody trained on the other. An attack gives each a score, without knowing the coin.{% if places|length == 1 %} It sees what {{ {'server': 'the server sees', 'aggregate': 'a server behind secure aggregation sees', 'peer': 'another client sees', 'outsider': 'an outsider sees'}.get(places[0], places[0] ~ ' sees') }}{{ ' ' ~ read[0] if read|length == 1 }}.{% endif %} {{ membership|length }} result{{ 's' if membership|length != 1 }}, the one that answers shaded.</p>
<p class="finding" id="told"><strong class="verdict{{ ' leaks' if told.verdict == 'leaks' }}">{{ told.verdict|capital }}</strong>, by statistic {{ told.statistic }}{{ ' (' ~ told|seen_by ~ ')' if places|length > 1 }}: AUC {{ told.auc|num(3) }}{% if told.auc_low is number %} ({{ interval(told.auc_low, told.auc_high, 3) }}){% endif %}, members found (TPR) {{ told.tpr|pct }} at {{ told.fpr|pct(2) }} false alarms (FPR), ε at least {{ told.epsilon_low|below }}{% if told.claimed_epsilon is number %} beside ε at most {{ told.claimed_epsilon|above }} (claimed){% else %}; no ε is claimed against this attacker{% endif %}.{% if membership|length > 1 %} Of {{ membership|length }} results {{ membership|selectattr('verdict', 'equalto', 'leaks')|list|length or 'none' }} leak.{% endif %}</p>
<details class="paper"{{ ' open' if membership|length <= 4 }}><summary>{{ 'Every statistic' if membership|length > 1 else 'The statistic' }}</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Statistics of membership"><table>
<thead><tr><th scope="col" class="text">Statistic</th>{% if places|length > 1 %}<th scope="col" class="text">Seen by</th>{% endif %}{% if read|length > 1 %}<th scope="col" class="text">Rounds</th>{% endif %}<th scope="col" class="text">Verdict</th><th scope="col">AUC</th><th scope="col">Interval</th><th scope="col">Members found (TPR)</th><th scope="col">Interval</th><th scope="col">False alarms (FPR)</th><th scope="col">ε at least</th>{% if claimed %}<th scope="col">ε at most (claimed)</th>{% endif %}<th scope="col">Pairs compared</th></tr></thead>
<tbody>{% for row in membership %}<tr{{ ' class="answer"'|safe if row is sameas told }}><th scope="row">{{ row.statistic }}{{ ', adaptive' if row.adaptive else ', told of it in part' if row.adaptation }}</th>{% if places|length > 1 %}<td class="text">{{ row|seen_by }}</td>{% endif %}{% if read|length > 1 %}<td class="text">{{ row.rounds|plain }}</td>{% endif %}<td class="text{{ ' accent-text' if row.verdict == 'leaks' }}">{{ row.verdict }}</td><td>{{ row.auc|num(3) }}</td><td>{{ interval(row.auc_low, row.auc_high, 3) }}</td><td>{{ row.tpr|pct }}</td><td>{% if row.tpr_low is number %}{{ row.tpr_low|pct }} to {{ row.tpr_high|pct }}{% else %}–{% endif %}</td><td>{{ row.fpr|pct(2) }}</td><td>{{ row.epsilon_low|below }}</td>{% if claimed %}<td>{{ row.claimed_epsilon|above }}</td>{% endif %}<td>{{ row|compared }}</td></tr>
{% endfor %}</tbody></table></div>
<p class="caption soft">AUC: how often a member scores above a held-out one of its client; its interval (95 %) draws clients anew, and says how clients differ. Members found: their share above the threshold that ten held-out ones pass, the smallest rate of false alarms that so many can show. Its interval, the one of the guesses below and ε hold together for all statistics and clients that were tried. ε at least: what the guesses rule out for one example more or less{{ '; a claim below it would be false' if claimed }}.</p>
</details>
<details class="paper"{{ ' open' if membership|length <= 4 }}><summary>What each result rests on</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Floors, clients and controls of membership"><table class="controls">
<thead><tr><th scope="col" class="text">Statistic</th><th scope="col">Right guesses</th><th scope="col">Interval</th><th scope="col">By labels</th><th scope="col">By the loss</th><th scope="col" class="text">Worst client</th><th scope="col">Right there</th><th scope="col">Interval</th>{% if checked %}<th scope="col" class="text">Overfitted client</th><th scope="col" class="text">Single step</th><th scope="col" class="text">Nothing there</th>{% endif %}</tr></thead>
<tbody>{% for row in membership %}{% set right = row.correct or {} %}{% set worst_one = row.worst_client or {} %}{% set there = worst_one.correct or {} %}{% set controls = row.controls or {} %}<tr><th scope="row">{{ row.statistic }}{{ ', ' ~ row|seen_by if places|length > 1 }}</th><td>{{ right.correct|plain }} of {{ right.guesses|plain }}</td><td>{{ interval(right.low, right.high) }}</td><td>{{ (row.floor.label_only or {}).auc|num(2) }}</td><td>{{ (row.floor.loss_only or {}).auc|num(2) }}</td><td class="text">{{ 'client ' ~ worst_one.client if worst_one else '–' }}</td><td>{{ there.correct|plain }} of {{ there.guesses|plain }}</td><td>{{ interval(there.low, there.high) }}</td>{% if checked %}{% for control in (controls.easy or {}, controls.one_step or {}, controls.null or {}) %}<td class="text">{{ {true: 'passed', false: 'failed'}.get(control.passed, 'not tried') }}</td>{% endfor %}{% endif %}</tr>
{% endfor %}</tbody></table></div>
<dl class="sentences">{% for row in membership %}<div><dt>{{ row.statistic }}{{ ', ' ~ row|seen_by if places|length > 1 }}{{ ', ' ~ row|rounds_read if read|length > 1 }}: {{ row.verdict }}</dt><dd>{{ row.reason }}</dd></div>
{% endfor %}</dl>
<p class="caption soft">By labels: by these alone. An AUC that is not 0.50 would be no leak; pairs that labels tell apart are not counted{{ ', nor those without two scores' if membership|selectattr('failed')|list }}. By the loss: what the model tells by it alone, without the update. Overfitted client, single step: the statistic must find the members of a client that learns a few by heart, and the one behind a step. Nothing there: both of a pair were held out, and it must find nothing.{% for gap in membership|map(attribute='accuracy_gap')|select('number')|unique|list %} The models are {{ gap|pct }} more often right on what they were trained on than on what was held out{{ ', so that there is little to find' if gap < 0.01 }}.{% endfor %}</p>
</details>
</section>
{% endif %}
"""

# Section on the privacy that may be claimed: epsilons, and measured lower bounds.
PRIVACY = """\
{% if result.privacy %}
{% set seeded = result.privacy|selectattr('noise_source', 'equalto', 'seed')|list %}{% set exact = result.privacy|rejectattr('accounting', 'equalto', 'as published')|list %}{% set printed = result.privacy|selectattr('accounting', 'equalto', 'as published')|list %}{% set lowers = exact|selectattr('lower_bound')|list %}
<section id="privacy" aria-labelledby="privacy-title">
<h2 id="privacy-title">Privacy that may be claimed</h2>
<p>An ε bounds, for every attack and also for those that nobody has thought of, how much one unit can change what one adversary sees. It holds for that unit, against that adversary, and only while its assumptions do. The attacks measure from below: the two answer different questions.{% if seeded %} <strong>The noise of this run comes from its seed: whoever has the seed can take it off. The figures are those of the same run with noise_source=secure.</strong>{% endif %}</p>
<div class="scroll" tabindex="0" role="region" aria-label="Privacy that may be claimed"><table><thead><tr><th scope="col" class="text">Protected: one</th><th scope="col" class="text">Against</th><th scope="col">ε at most</th>{% if lowers %}<th scope="col">ε at least</th>{% endif %}<th scope="col">δ</th><th scope="col">Guessed right, at most</th><th scope="col" class="text">Accountant</th><th scope="col">Rounds</th><th scope="col" class="text">Rests on</th></tr></thead>
<tbody>{% for line in exact %}<tr><th scope="row" class="text">{{ line.unit|plain }}</th><td class="text">{{ line.adversary|plain }}</td><td>{{ line.epsilon|above }}</td>{% if lowers %}<td>{{ (line.lower_bound or {}).epsilon|below }}</td>{% endif %}<td>{{ line.delta|plain }}</td><td>{{ line.max_guess_accuracy|above_pct }}</td><td class="text">{{ line.accountant|plain }}</td><td>{{ line.rounds|plain }}</td><td class="text wrap"><details><summary>{{ line.assumptions[0] if line.assumptions|length == 1 else line.assumptions|length ~ ' assumptions' }}</summary><ul>{% for sentence in line.assumptions %}<li>{{ sentence }}</li>{% endfor %}</ul></details></td></tr>
{% endfor %}</tbody></table></div>
<p class="caption soft">Guessed right: how often, at most, the adversary is right on whether the unit was there, if both were equally likely before; 50 % is a coin.{% for line in lowers %} At least: of {{ line.lower_bound.canaries|plain }} canaries {{ line.lower_bound.correct|plain }} of {{ line.lower_bound.guesses|plain }} guesses were right, so that with {{ line.lower_bound.confidence|pct(0) }} confidence no smaller ε is true against {{ 'the ' ~ line.adversary if line.adversary != 'another client' else line.adversary }}.{% endfor %}{% if exact|selectattr('adversary', 'equalto', 'aggregate')|list %} Aggregate: who would see nothing of a round’s updates but their sum, as with secure aggregation, which did not run here.{% endif %} Probes of the audit{{ ' and accuracies' if (result.config or {}).metrics not in ('none', 'private') }} are outside the count: they are for whoever runs the experiment.</p>
{% if printed %}<h3>As the method’s paper counts</h3>
<p class="soft">Kept beside the figures above, never in their place: what the paper takes for granted does not hold in this run.</p>
<div class="scroll" tabindex="0" role="region" aria-label="As the method’s paper counts"><table><thead><tr><th scope="col" class="text">Protected: one</th><th scope="col">ε</th><th scope="col">δ</th><th scope="col" class="text">Accountant</th><th scope="col" class="text">Takes for granted</th></tr></thead>
<tbody>{% for line in printed %}<tr><th scope="row" class="text">{{ line.unit|plain }}</th><td>{{ line.epsilon|num(4) }}</td><td>{{ line.delta|plain }}</td><td class="text">{{ line.accountant|plain }}</td><td class="text wrap">{{ line.assumptions|join(' ') }}</td></tr>
{% endfor %}</tbody></table></div>{% endif %}
</section>
{% endif %}
"""

# Section on sums over clients: what secure aggregation would have hidden of the recorded uploads.
SUMS = """\
{% if result.secure_aggregation %}{% set summed = result.secure_aggregation %}{% set took = summed.participation %}{% set peer = summed.peer %}
<section id="sums" aria-labelledby="sums-title">
<h2 id="sums-title">What a sum would hide</h2>
<p>Secure aggregation did not run here. Computed from the recorded uploads: what a server that saw only the sum of each round’s updates would still learn of one client, and what another client learns.</p>
<h3>Another client</h3>
<p><strong>{{ peer.verdict|capitalize }}</strong>: {{ peer.reason }}{% if peer.check %} Checked in round {{ peer.check.round }}: the update of client {{ peer.check.client }}, so computed, differs from the recorded one by {{ peer.check.largest_difference|plain }} at most, of numbers up to {{ peer.check.largest_change|plain }}.{% endif %}</p>
<h3>Who took part</h3>
<p>In {{ took.rounds }} round{{ 's' if took.rounds != 1 }}{{ ', of those recorded' if took.recorded_only }}, {{ took.clients }} client{{ 's' if took.clients != 1 }} took part, in groups of {{ took.smallest_group }} or more. {% if took.rank is none %}There are too many to compute how well they can be told apart.{% else %}An attacker who knows who took part can tell the mean update of {{ took.separable or 'none' }} of them from the sums of the rounds (rank {{ took.rank }}{% if took.smallest_singular %}, smallest singular value {{ took.smallest_singular|num(3) }}{% endif %}).{% if took.separable %} That is exact only if updates stay the same from round to round; else their changes come on top, times the factor of the client.{% endif %}{% if took.noise %} Smallest factor{{ 's' if took.noise|length > 1 }}: {% for row in took.noise[:5] %}{{ ', ' if not loop.first }}client {{ row.client }} {{ row.factor|num(2) }}{% endfor %}.{% endif %}{% endif %}</p>
{% if took.isolated %}<p>{{ took.isolated }} client{{ ' is' if took.isolated == 1 else 's are' }} left alone by two rounds: the groups were the same but for this client, so the difference of the two sums is its update and how much the others’ updates changed. {% for row in took.isolating[:5] %}{{ '; ' if not loop.first }}{% if row.absent %}client {{ row.client }}: in round {{ row.present }}, not in round {{ row.absent }}{% else %}client {{ row.client }}: alone in round {{ row.present }}{% endif %}{% endfor %}.</p>{% endif %}
<h3>Round by round</h3>
<p class="soft">A coordinate to which one client alone contributes passes a sum in the clear. Beside it: the share if each client’s non-zero places were independent.{% if not summed.same_for_all %} This method sends each client something of its own, so different bytes are no alarm.{% endif %}</p>
<div class="scroll" tabindex="0" role="region" aria-label="Sums round by round"><table><thead><tr><th scope="col">Round</th><th scope="col">Clients</th><th scope="col">One client alone</th><th scope="col">If independent</th><th scope="col" class="text">Most exposed layer</th><th scope="col" class="text">Broadcast</th><th scope="col" class="text">Generated heads</th></tr></thead>
<tbody>{% for row in summed.rounds %}{% set open = row.exposed %}{% set head = row.heads %}<tr><th scope="row">{{ row.round }}</th><td>{{ row.clients }}</td>{% if open %}<td>{{ open.share|pct }}</td><td>{{ open.independent|pct }}</td><td class="text">{% if open.layers and open.layers[0].share %}{{ open.layers[0].layer }}: {{ open.layers[0].share|pct }}{% else %}none{% endif %}</td>{% else %}<td>–</td><td>–</td><td class="text">one update only</td>{% endif %}<td class="text">{% if row.broadcast.contents == 1 %}all received the same bytes{% else %}{{ row.broadcast.contents }} different contents; client{{ 's' if row.broadcast.differ|length > 1 }} {{ row.broadcast.differ[:10]|join(', ') }}{{ ' and more' if row.broadcast.differ|length > 10 }}{% endif %}</td><td class="text">{% if head %}rank {{ head.rank }} of {{ head.width }}, {{ 'the space of the clients’ hidden units is recovered' if head.recovered else 'their space is not recovered' }} (largest angle {{ head.largest_angle|num(2) }}, by chance {{ head.angle_by_chance|num(2) }}){% else %}–{% endif %}</td></tr>
{% endfor %}</tbody></table></div>
</section>
{% endif %}
"""

# Sections on the run: its training, the provenance of its numbers, and their limits.
TRAINING = """\
<section id="training" aria-labelledby="training-title">
<h2 id="training-title">Training</h2>
{% set errors = {'mae_global': 'MAE as received', 'rmse_global': 'RMSE as received', 'r2_global': 'R² as received', 'mae_local': 'MAE after local training', 'rmse_local': 'RMSE after local training', 'r2_local': 'R² after local training'} %}
{% if rounds %}
<p>{% if config.metrics == 'none' %}Clients reported no losses and no {{ 'errors' if regression else 'accuracies' }} (metrics=none).{% elif regression %}Errors <em>as received</em> are those of the model which a client receives in a round; <em>after local training</em> are those of the same client’s model once it has trained on its own data. Both are means over clients, each on its own test data, in the target’s own units.{% else %}Accuracy <em>as received</em> is that of the model which a client receives in a round; <em>after local training</em> is that of the same client’s model once it has trained on its own data. Both are means over clients, each on its own test data.{% endif %} The final values come from one more evaluation with {% if config.ema %}the moving average of the aggregates (ema){% else %}the last aggregate{% endif %}.{% if config.metrics == 'private' %} <strong>What clients report here has noise</strong> (metrics=private) and is cut to its range; nothing is trained for the final evaluation.{% endif %}</p>
{% if training %}<figure>{{ training }}</figure>{% endif %}
<h3>Final {{ 'errors' if regression else 'accuracy' }} and traffic</h3>
<dl class="facts">
{% for key, name in {'mae': 'mean absolute error', 'rmse': 'root of the mean squared error', 'r2': 'R²'}.items() if final[key ~ '_global'] is number %}<div><dt>{{ name }} <small>as received, and after local training; a regression has no accuracy</small></dt><dd>{{ final[key ~ '_global']|num(3) }}, {{ final[key ~ '_local']|num(3) }}</dd></div>{% endfor %}
{% for key, name in {'acc_global': 'as received', 'acc_local': 'after local training', 'acc_central': 'on the server’s own test data', 'acc_protected': 'as received, on the training data that defences protect'}.items() if final[key] is number %}<div><dt>{{ name }}</dt><dd>{{ final[key]|pct }}</dd></div>{% endfor %}
{% if final.best_validation %}<div><dt>best on validation</dt><dd>{{ final.best_validation.accuracy|pct }} at round {{ final.best_validation.round|plain }}</dd></div>{% endif %}
{% set own = final.per_client|default([])|map(attribute='acc_local')|select('number')|list %}
{% if own %}<div><dt>spread over clients, after local training</dt><dd>{{ own|min|pct }} to {{ own|max|pct }}</dd></div>{% endif %}
{% for name, total in (('up in all', rounds|map(attribute='upload_bytes')|select('number')|sum), ('down in all', rounds|map(attribute='download_bytes')|select('number')|sum)) %}<div><dt>{{ name }}</dt><dd>{{ total|filesizeformat }}</dd></div>{% endfor %}</dl>
<details{{ ' open' if rounds|length <= 25 }}><summary>Round by round</summary>
<p class="soft">Traffic is what crossed the wire: of all clients together, and divided by the clients that took part.</p>
<div class="scroll{{ ' long' if rounds|length > 25 }}" tabindex="0" role="region" aria-label="Rounds"><table><thead><tr><th scope="col">Round</th><th scope="col">Loss</th>{% if not regression %}<th scope="col">As received</th><th scope="col">After local training</th>{% endif %}<th scope="col">Clients</th><th scope="col">Failures</th><th scope="col">Up, all</th><th scope="col">Up per client</th><th scope="col">Down, all</th><th scope="col">Down per client</th><th scope="col">Time</th>{% for key in (rounds[-1].extra or {}) %}<th scope="col">{{ errors.get(key) or key|replace('_', ' ') }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rounds %}<tr><th scope="row">{{ row.round }}</th><td>{{ row.loss|num(3) }}</td>{% if not regression %}<td>{{ row.acc_global|pct }}</td><td>{{ row.acc_local|pct }}</td>{% endif %}<td>{{ row.clients|plain }}</td><td>{{ row.failures|plain }}</td>{% for bytes in (row.upload_bytes, row.download_bytes) %}{% if bytes is none or bytes is undefined %}<td>–</td><td>–</td>{% else %}<td>{{ bytes|filesizeformat }}</td><td>{{ (bytes / (row.clients or 1))|filesizeformat }}</td>{% endif %}{% endfor %}<td>{{ row.seconds|num }} s</td>{% for key in (rounds[-1].extra or {}) %}<td>{{ (row.extra or {})[key]|num(3) if key in errors else (row.extra or {})[key]|plain }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></details>
{% elif origin['from'] %}<p>The recordings of another run were audited, which says nothing of its training.</p>
{% else %}<p>No training round was run: what was audited is the network as it starts.</p>{% endif %}
</section>
<section id="provenance" aria-labelledby="provenance-title">
<h2 id="provenance-title">Provenance</h2>
{% if notes %}<div class="notice"><b>Notes of the run</b><ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul></div>{% endif %}
<div class="columns"><div><h3>Code and data</h3>{{ facts({'code': origin.code, 'lock': origin.lock, 'data': data.name, 'from': data.source, 'checksum': {true: 'as published', false: 'not the published one'}.get(data.md5_ok, 'not checked'), 'weights': origin.weights, 'attacks tuned on': origin.tuned_on} if not origin['from'] else {'recordings of': origin['from'], 'code': origin.code, 'data': data.name, 'from': data.source, 'weights': origin.weights}) }}</div><div><details class="paper"><summary>Environment</summary>{{ facts(result.environment or {}) }}</details></div></div>
{% if plan %}<h3>Columns of the table</h3>
<details><summary>{{ plan.kept|length }} columns as {{ plan.width }} features, {{ plan.columns|length - plan.kept|length }} left out</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Columns of the table"><table><thead><tr><th scope="col" class="text">Column</th><th scope="col" class="text">Type</th><th scope="col">Features</th><th scope="col">Missing</th><th scope="col" class="text">Encoded as</th></tr></thead>
<tbody>{% for column in plan.columns %}<tr><th scope="row" class="text">{{ column.name }}</th><td class="text">{{ column.kind }}</td><td>{{ column.width }}</td><td>{{ column.absent|pct }}</td><td class="text">{{ column.form if absence else column.encoding }}</td></tr>
{% endfor %}</tbody></table></div></details>{% endif %}
{% if config.engine %}<h3>Asking for this run again</h3>
<pre><code>{{ config|command }}</code></pre>
<p class="soft">Put together from the configuration, which holds every setting:</p>{% endif %}
<details><summary>Full configuration</summary>{{ facts(config) }}</details>
{{ sessions(origin) }}
<details><summary>Files of the run</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Files"><table><thead><tr><th scope="col" class="text">Name</th><th scope="col">Files</th><th scope="col">Size</th></tr></thead><tbody>{% for name, count, bytes in files %}<tr><th scope="row"><code>{{ name }}</code></th><td>{{ count }}</td><td>{{ bytes|filesizeformat }}</td></tr>{% endfor %}</tbody></table></div></details>
</section>
"""

LIMITS = """\
<section id="limits" aria-labelledby="limits-title">
<h2 id="limits-title">What this does not show</h2>
<ul class="plainlist">
{% if told %}<li>That no stronger attack tells who was there. Only {{ membership|map(attribute='attack')|unique|join(', ') }} tried, {{ told|rounds_read }}. Members that were told are proof; that none were told is only the absence of one.</li>{% endif %}
{% if not settings and told %}<li>Whether training {{ scope.unit }} can be recovered from what clients send: no attack tried.</li>
{% elif not settings and result.inference %}<li>Whether training {{ scope.unit }} can be recovered, or told to have been there: no attack tried.</li>
{% elif not settings %}<li>Anything about leakage. High accuracy and little traffic are not privacy; run the audit to learn more.</li>
{% else %}
<li>That stronger attacks fail. Only {{ settings|map(attribute='name')|unique|join(', ') }} ran, with the budget above. A leak that was found is proof; a leak that was not found is only the absence of one.</li>
{% if settings|selectattr('entry.verdict', 'equalto', 'no leak found')|list %}<li>That “no leak found” means no leak. It was shown that the attack works without the protection and through its weakest form. Between that form and the real one nothing was shown: an attack may cope with little of a protection and fail at more, where a better one does not. Its objective may also be the wrong one: what it minimises need not be smallest at the true {{ scope.unit }}.</li>{% endif %}
<li>Every sample. The intervals speak of the attacked samples and seeds only; somebody’s {{ 'picture' if scope.unit == 'images' else one }} may come out although the mean looks safe, so look at the best reconstruction first.</li>
<li>Other leaks. {{ 'What' if told else 'Whether a person took part, what' }} share of a client has some property, or which {{ 'target values' if regression else 'labels' }} it holds can leak without a single {{ 'picture' if scope.unit == 'images' else one }} being reconstructed.</li>
{% endif %}
{% if result.privacy %}<li>That ε holds elsewhere. The bound is as good as its assumptions about sampling, clipping and who is trusted.</li>{% endif %}
<li>Other seeds or machines. This is seed {{ config.seed|plain }}. Processors round sums in different orders, so that on another one {{ 'an image' if scope.unit == 'images' else 'a ' ~ one }} near the threshold of recovery may fall on the other side.</li>
</ul>
</section>
"""

# Section on the sessions of a run: command, time, code, machine and packages, folded.
SESSIONS = """\
{% macro session(entry, title) %}
<details><summary>{{ title }}{% if entry.started_at %}: {{ entry.started_at }} to {{ entry.ended_at or 'no end, it was cut short' }}{% endif %}</summary>
{% if entry.command %}<pre><code>{{ entry.command }}</code></pre>{% endif %}
{% set git = entry.git %}{% set machine = entry.machine or {} %}{% set packages = entry.packages or {} %}
<div class="columns"><div><h4>Code</h4>{{ facts({'sources': entry.code, 'lock': entry.lock, 'git commit': git.commit if git else 'none: no repository, or no git', 'tree': 'changed since that commit' if git and git.dirty else 'as committed' if git else none, 'python': entry.python, 'packages': packages.count ~ ' in ' ~ packages.file if packages else none, 'their SHA-256': packages.sha256, 'working folder': entry.folder}) }}</div>
<div><h4>Machine</h4>{{ facts({'hardware': machine.hardware, 'system': machine.system, 'cores': machine.cores ~ ' of ' ~ machine.cores_of_machine if machine.cores else none, 'memory': machine.memory_bytes|filesizeformat if machine.memory_bytes else none, 'GPUs': machine.gpus|map(attribute='name')|join(', ') if machine.gpus else none, 'threads of torch': machine.threads.torch if machine.threads else none, 'torch': machine.torch.version if machine.torch else none, 'instructions': machine.torch.instructions if machine.torch else none, 'linear algebra': machine.blas|map(attribute='internal_api')|join(', ') if machine.blas else none}) }}</div></div>
{% for code in entry.external_plugins or [] %}<h4>{{ code.kind }} from outside: <code>{{ code.name }}</code></h4>{{ facts({'file': code.file, 'SHA-256': code.sha256, 'git commit': code.git.commit if code.git else 'none', 'tree': 'changed since that commit' if code.git and code.git.dirty else 'as committed' if code.git else none, 'files in all': code.files|length}) }}
{% endfor %}</details>
{% endmacro %}
{% macro sessions(origin) %}
{% if origin.sessions or origin.recording_sessions %}<h3>When, where and with what it ran</h3>
{% set data = origin.data or {} %}{% set seeds = origin.seeds or {} %}
{{ facts({'seed': seeds.run, 'licence of the data': data.licence or 'unknown', 'to be cited': data.citation or 'unknown'}) }}
{% for entry in origin.recording_sessions or [] %}{{ session(entry, 'Recorded in session ' ~ loop.index) }}{% endfor %}
{% for entry in origin.sessions or [] %}{{ session(entry, 'This audit' if origin['from'] else 'Session ' ~ loop.index) }}{% endfor %}{% endif %}
{% endmacro %}
"""

_START = """\
{% set final = result.final or {} %}
{% set shown = elsewhere or worst %}
{% set kept = shown.samples|rejectattr('failed')|list if shown and not absence else [] %}
{% set kept = kept|selectattr('strip')|list or kept|selectattr('original')|list %}{% set ahead = kept|selectattr('recovered')|list + kept|rejectattr('recovered')|list %}
{% set origin = result.provenance or {} %}
{% set data = origin.data or {} %}
{% set notes = (['The checksum of ' ~ data.name ~ ' is not the published one: these may be other data.'] if data.md5_ok is false else []) + (result.notes or []) %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>{{ run }}: {{ worst.entry|verdict if worst else 'membership ' ~ told.verdict if told else 'classes ' ~ result.inference[0].verdict if result.inference else 'not audited' }}</title>
<style>
"""

_FIRST = (
    """\
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the answer</a>
<header>
<div class="eyebrow"><span><b>{{ run }}</b></span><span>flfw {{ result.flfw|plain }}</span>
<nav aria-label="Sections"><a href="#words">How sure</a><a href="#figures">Figures</a>{% if settings %}<a href="#results">Results</a>{% endif %}{% if settings %}<a href="#attacker">Attacker</a><a href="#gallery">{{ 'Samples' if absence else 'Reconstructions' }}</a>{% endif %}{% if membership %}<a href="#membership">Membership</a>{% endif %}{% if failures %}<a href="#failures">Failures</a>{% endif %}{% if result.privacy %}<a href="#privacy">Privacy</a>{% endif %}{% if result.secure_aggregation %}<a href="#sums">Sums</a>{% endif %}<a href="#training">Training</a><a href="#provenance">Provenance</a><a href="#limits">Limits</a></nav></div>
</header>
<main id="main">
"""
    + FIRST_PAGE
    + WORDS
    + GLOSSARY
    + """\
<section id="figures" aria-labelledby="figures-title">
<h2 id="figures-title">The result in figures</h2>
<p class="finding" id="finding">{{ headline()|trim }}</p>
{% if worst %}<p class="soft">{{ reason(worst)|trim }}{% if targets|length > 1 %} This is the {{ 'largest leak' if worst.entry.verdict == 'leaks' else 'weakest evidence' }} of {{ targets|length }} audited settings{{ but_for_those_aside() }}: <a href="#glance">all of them at a glance</a>.{% endif %} <a href="#glossary">The words</a>.</p>{% endif %}
{% if overview %}<figure>{{ overview }}<figcaption>{% if targets %}{% if targets|map(attribute='entry.psnr')|select|list %}Leakage: a dot is the mean over the attacked images with its interval, the ring the best reconstruction; dashed lines are guesses that use no update at all.{% if 'server' in scope.vantages and 'client_update' in scope.vantages %} Updates read on the client are the server’s, and have no lines of their own.{% endif %}{% else %}Leakage: the share of the attacked {{ scope.unit }} that counts as recovered{{ ' with its interval' if targets|map(attribute='entry.share_interval')|select|list }}.{% endif %} Round 0 is before training. A line joins neighbouring rounds only: nothing was measured in a gap.{% else %}Accuracy of the model as clients receive it, and after their local training.{% endif %}</figcaption></figure>{% endif %}
<dl class="keyfacts">
{% if worst %}{% set entry = worst.entry %}<div><dt>recovered in the worst setting{% if entry.share_interval %} <small>95 %: {{ span(entry.share_interval) }}</small>{% endif %}{% if entry.share_expected is number %} <small>theory expects {{ entry.share_expected|pct(0) }}</small>{% endif %}</dt><dd>{{ worst.recovered }} of {{ worst.total }}</dd></div>
{% if entry.gain and scope.unit != 'texts' %}<div><dt>best gain over the best floor <small>mean {{ entry.gain.mean|num }} dB</small></dt><dd>{{ entry.gain.max|num }} dB</dd></div>{% endif %}
{% if entry.identification_rate is number %}<div><dt>identified among look-alikes{% if entry.identification_null is number %} <small>by chance {{ entry.identification_null|pct }}</small>{% endif %}</dt><dd>{{ entry.identification_rate|pct }}</dd></div>{% endif %}
{% if entry.candidate_test %}<div><dt>messages that point to the truth among candidates <small>by chance {{ entry.candidate_test.null|pct }}</small></dt><dd>{{ entry.candidate_test.first }} of {{ entry.candidate_test.messages }}</dd></div>{% endif %}
{% if entry.exact_match %}{% set match = entry.exact_match %}{% set cells = match.cells is number %}<div><dt>{{ 'bytes' if scope.unit == 'texts' else 'cells' if cells else 'features' }} found{{ '' if cells else ' exactly' }} <small>by guessing {{ (match.floor_cells if cells else match.floor)|pct }}</small></dt><dd>{{ (match.cells if cells else match.features)|pct }}</dd></div>{% endif %}
{% if entry.label_accuracy is number %}<div><dt>of the labels, found by the attack itself</dt><dd>{{ entry.label_accuracy|pct }}</dd></div>{% endif %}
{% endif %}
{% if final.mae_global is number %}{% for when, words in {'global': 'as received', 'local': 'after one more local training'}.items() %}<div><dt>final mean absolute error {{ words }} <small>RMSE {{ final['rmse_' ~ when]|num(3) }}, R² {{ final['r2_' ~ when]|num(2) }}</small></dt><dd>{{ final['mae_' ~ when]|num(3) }}</dd></div>{% endfor %}{% endif %}
{% for key, name in (('acc_global', 'as received'), ('acc_local', 'after one more local training'), ('acc_central', 'on the server’s own test data')) if final[key] is number and (key != 'acc_central' or final.acc_local is not number) %}<div><dt>final accuracy {{ name }}{% if key != 'acc_central' and config.metrics == 'private' %} <small>with the noise of metrics=private</small>{% endif %}</dt><dd>{{ final[key]|pct }}</dd></div>{% endfor %}
{% for line in (result.privacy or [])[:1] %}<div><dt>ε at most, with δ {{ line.delta|plain }} <small>one {{ line.unit }} against {{ line.adversary }}{{ ', with noise_source=secure' if line.noise_source == 'seed' }}</small></dt><dd>{{ line.epsilon|above }}</dd></div>{% endfor %}
</dl>
</section>
"""
)

_END = """\
</main>
<footer><p class="soft">Written by flfw {{ result.flfw|plain }} from <code>result.json</code> and <code>audit.csv</code> in the same folder, which hold every number on this page.</p></footer>
<script>
"""

# All sentences of the page are here and in the imported modules; report.py supplies their values.
PAGE = "".join(
    (
        *(HEADLINE, TELLING, MACROS, SESSIONS, _START, STYLE, _FIRST),
        *("{% if settings %}\n", RESULTS, "{% endif %}\n", MEMBERSHIP, INFERENCE),
        *("{% if settings %}\n", ATTACKER, GALLERY, "{% endif %}\n", FAILURES),
        *(PRIVACY, SUMS, TRAINING, LIMITS, _END, SCRIPT, "</script>\n</body>\n</html>\n"),
    )
)
