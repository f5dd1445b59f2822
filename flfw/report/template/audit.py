"""Sections on the audit: the attacks' results, the attackers' grants, every sample, every failure."""

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
{% macro facts(mapping) %}<dl class="facts">{% for key, value in mapping.items() %}<div><dt>{{ key|replace('_', ' ') }}</dt><dd>{{ value|plain }}</dd></div>{% endfor %}</dl>{% endmacro %}
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
{% macro verdict_cell(entry) %}<td class="text{{ ' accent-text' if entry.verdict in ('leaks', 'identifies', 'malicious server only') }}">{{ entry.verdict|plain }}</td>{% endmacro %}
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
<thead><tr><th scope="col" class="text">Attack</th><th scope="col">Round</th>{% if decibels %}<th scope="col">PSNR, dB</th><th scope="col">Interval</th><th scope="col">Best</th>{% endif %}{% if ceilings %}<th scope="col">Ceiling, dB</th>{% endif %}{% if gains %}<th scope="col">Gain, dB</th><th scope="col">Best gain</th>{% endif %}{% if ssim %}<th scope="col">SSIM</th>{% endif %}{% if lpips %}<th scope="col">LPIPS</th><th scope="col">Closest</th>{% endif %}{% if features %}<th scope="col">Feature error</th>{% endif %}{% if distances %}<th scope="col">RMSD</th><th scope="col">Within 0.3</th>{% endif %}{% if exact %}<th scope="col">{{ 'Bytes' if scope.unit == 'texts' else 'Features' }} exact</th><th scope="col">By guessing</th>{% if exact|selectattr('exact_match.cells', 'number')|list %}<th scope="col">Cells exact</th><th scope="col">By guessing</th>{% endif %}<th scope="col">Whole {{ 'texts' if scope.unit == 'texts' else 'rows' }}</th>{% endif %}{% if words %}<th scope="col">ROUGE-1</th><th scope="col">ROUGE-2</th><th scope="col">ROUGE-1 of a random public text</th>{% endif %}{% if labelled %}<th scope="col">Labels found</th>{% endif %}</tr></thead>
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
<ul class="plainlist">{% for setting in group %}<li>{{ when(setting)|capitalize }}: {{ setting.entry.verdict|plain }}. {{ reason(setting)|trim }}{% if setting.entry.failure_reason and setting.entry.failure_reason not in (setting.entry.reason or '') %} It gave nothing: {{ setting.entry.failure_reason|trim('.') }}.{% endif %}</li>{% endfor %}</ul>
<h4>Granted to the attacker</h4>
{% if entry.granted %}<ul class="plainlist">{% for sentence in entry.granted %}<li>{{ sentence }}</li>{% endfor %}</ul>{% else %}<p>Nothing is recorded.</p>{% endif %}
</div><div>
<h4>Budget and selection</h4>
{{ facts({'hidden by': entry.defence, 'adapted to it': {'written': 'with what is written for it', 'automatic': 'with its own code in the objective'}.get(entry.adaptation), 'network mode': entry.mode, 'iterations': entry.iterations, 'restarts': entry.restarts, 'seeds': entry.seeds, 'kept result': entry.selection, 'tries a job': entry.attempts, 'time': entry.seconds|num(0) ~ ' s, and ' ~ entry.scoring_seconds|num(0) ~ ' s to score' if entry.scoring_seconds is number else entry.seconds|num(0) ~ ' s', 'tuned on': (result.provenance or {}).tuned_on}) }}
<p class="soft">The kept result is chosen by this rule alone; the originals are opened only afterwards, to score it.</p>
{% if entry.assignment and (entry.batch is not number or entry.batch > 1) %}<p class="soft">Which reconstruction is compared with which original: {{ entry.assignment.rule|trim('.') }}.{% if entry.assignment.null is number %} Unrelated public images get {% for setting in group %}{{ (setting.entry.assignment or {}).null|num }} dB{{ ', ' if not loop.last }}{% endfor %} by the same rule.{% endif %}</p>{% endif %}
</div></div>
<h4>Controls: what must be shown before a failure counts</h4>
<div class="scroll" tabindex="0" role="region" aria-label="Controls of {{ group[0].name }}"><table class="controls"><thead><tr><th scope="col" class="text">Control</th><th scope="col" class="text">Shown</th><th scope="col">Round</th>{% if scope.unit != 'texts' %}<th scope="col">PSNR, dB</th>{% endif %}<th scope="col" class="text">Result in words</th></tr></thead>
{% set shown = group|map(attribute='entry.ladder')|list %}{% set same = shown|length > 1 and shown|reject('equalto', shown[0])|list|length == 0 %}
<tbody>{% for setting in (group[:1] if same else group) %}{% for control in setting.entry.ladder or [] %}<tr><th scope="row" class="wrap">{{ control_names.get(control.rung, control.rung) }}</th><td class="text">{{ 'not tried' if control.passed is none else control.passed|plain }}</td><td>{{ 'all' if same else setting.entry.round|plain }}</td>{% if scope.unit != 'texts' %}<td>{{ control.psnr|num }}</td>{% endif %}<td class="text wrap">{{ (control.reason or control.failure_reason)|sentence if control.reason or control.failure_reason else '–' }}</td></tr>{% else %}<tr><th scope="row">No control is recorded</th><td class="text">–</td><td>{{ setting.entry.round|plain }}</td>{% if scope.unit != 'texts' %}<td>–</td>{% endif %}<td class="text">–</td></tr>{% endfor %}{% endfor %}</tbody></table></div>
<div class="columns">
{% if group[0].control_samples and not absence %}<div><h4>Best of each control</h4><ul class="gallery{{ ' tabular' if group[0].control_samples.values()|selectattr('strip')|list }}">{% for name, sample in group[0].control_samples.items() %}<li>{{ pair(group[0], sample) }}<div class="under">{{ control_texts.get(name, name) }}, {{ score(sample) }}</div></li>{% endfor %}</ul></div>{% endif %}
{% if group|map(attribute='entry.floors')|select|list %}<div><h4>Floors: what a guess scores without any update</h4>
<div class="scroll" tabindex="0" role="region" aria-label="Floors of {{ group[0].name }}"><table><thead><tr><th scope="col" class="text">{{ {'records': 'RMSD', 'texts': 'Bytes right'}.get(scope.unit, 'PSNR, dB') }}</th>{% for setting in group %}<th scope="col">Round {{ setting.entry.round|plain }}</th>{% endfor %}</tr></thead>
<tbody>{% for key, name in floor_names.items() if key != 'unguided' or group|selectattr('entry.floors.unguided', 'defined')|list %}<tr><th scope="row">{{ name }}</th>{% for setting in group %}<td>{{ floor((setting.entry.floors or {})[key], false) }}</td>{% endfor %}</tr>{% endfor %}
<tr class="answer"><th scope="row">{{ group[0].name }}, mean</th>{% for setting in group %}<td>{{ (setting.entry.exact_match or {}).features|pct if scope.unit == 'texts' else rmsd_of(setting)|num(3) if scope.unit == 'records' else (setting.entry.psnr or {}).mean|num }}</td>{% endfor %}</tr></tbody></table></div></div>{% endif %}
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
