"""The report's page, a Jinja template. It stands in a module because Flower's app bundles hold no other kind of file."""

# ruff: noqa: E501

PAGE = """\
{# The page of a run. Every sentence a reader sees stands here; report.py supplies what it is said of. #}
{% set defence = worst.entry.defence if worst else config.defence %}
{% set plain_defence = defence|plain if defence and defence != 'none' else '' %}
{% set run = config.method ~ (' with ' ~ plain_defence if plain_defence else '') ~ ' on ' ~ dataset %}
{% macro samples_word(setting) %}training {{ 'records' if setting.entry.distance and not setting.entry.psnr else 'images' }}{% endmacro %}
{% macro got(setting) %}{{ setting.name }} recovered {{ setting.recovered }} of {{ setting.total }} {{ samples_word(setting) }}{% endmacro %}
{% macro when(setting) %}{{ 'before the first round' if setting.entry.round == 0 else 'at round ' ~ setting.entry.round }}{% endmacro %}
{% macro nearest(setting) %}
{%- set first = setting.samples[0] if setting.samples else none -%}
{%- if first and first.scores.psnr is not none %} <span class="measure">(best {{ first.scores.psnr|num }} dB
{%- if first.scores.floor_nearest_public is not none %}, where the best public look-alike scores {{ first.scores.floor_nearest_public|num }} dB{% endif %})</span>
{%- elif first and first.scores.rmsd is not none %} <span class="measure">(closest at a distance of {{ first.scores.rmsd|num(3) }} RMSD)</span>{% endif %}
{%- endmacro %}
{% set final = result.final or {} %}
{% set origin = result.provenance or {} %}
{% set data = origin.data or {} %}
{% set notes = (['The checksum of ' ~ data.name ~ ' is not the published one: these may be other data.'] if data.md5_ok is false else []) + (result.notes or []) %}
{% macro headline() %}
{% set verdict = worst.entry.verdict if worst else none %}
{% if not worst %}<strong class="verdict">Not audited</strong>: {{ run }} was trained and no attack was run, so this report says nothing about what it leaks.
{% elif verdict == 'leaks' %}{{ run }} <strong class="verdict leaks">leaks</strong>: {{ got(worst) }} {{ when(worst) }}{{ nearest(worst) }}.
{% elif verdict == 'no leak found' %}<strong class="verdict">No leak found</strong> in {{ run }}: {{ got(worst) }} {{ when(worst) }}{{ nearest(worst) }}, although the same attack succeeds on an undefended easy case.
{% elif verdict == 'static only' %}<strong class="verdict">Static only</strong>: {{ got(worst) }} from {{ run }} {{ when(worst) }}{{ nearest(worst) }}, but no attack adapted to what the method hides was run, so this is not evidence of protection.
{% elif verdict == 'inconclusive' %}<strong class="verdict">Inconclusive</strong>: {{ got(worst) }} from {{ run }} {{ when(worst) }}, but it did not solve the undefended easy case either, so its failure is not evidence of protection.
{% elif verdict == 'attack broken' %}<strong class="verdict">Attack broken</strong>: the positive control of {{ worst.name }} failed, so this says nothing about {{ 'the defence ' ~ plain_defence if plain_defence else 'what ' ~ run ~ ' leaks' }}.
{% else %}<strong class="verdict">{{ verdict|plain }}</strong>: {{ got(worst) }} from {{ run }} {{ when(worst) }}.
{% endif %}
{% endmacro %}
{% macro score(sample) %}{% if sample.failed %}failed{% elif sample.scores.psnr is not none %}{{ sample.scores.psnr|num }} dB{% else %}RMSD {{ sample.scores.rmsd|num(3) }}{% endif %}{% endmacro %}
{% macro who(sample) %}client {{ sample.row.client }}, sample {{ sample.row.victim or sample.row.image }}{% if sample.row.label %}, label {{ sample.row.label }}{% endif %}{% endmacro %}
{% macro picture(source, alt, missing) %}{% if source %}<img src="{{ source }}" alt="{{ alt }}">{% else %}<span class="absent">{{ missing }}</span>{% endif %}{% endmacro %}
{% macro pair(setting, sample) %}
{% if sample.strip %}<div class="pair tabular">{{ sample.strip }}</div>{% else %}
<div class="pair">{{ picture(sample.original, 'Original: ' ~ who(sample), 'not kept') }}
{{ picture(sample.reconstruction, 'Reconstruction by ' ~ setting.name ~ ', round ' ~ setting.entry.round ~ ': ' ~ score(sample), 'failed' if sample.failed else 'not kept') }}</div>
{% endif %}
{% endmacro %}
{% macro share(value) %}{{ value|pct if value is not none else '–' }}{% endmacro %}
{% macro facts(mapping) %}<dl class="facts">{% for key, value in mapping.items() %}<div><dt>{{ key|replace('_', ' ') }}</dt><dd>{{ value|plain }}</dd></div>{% endfor %}</dl>{% endmacro %}
{% set vantages = {
  'server': 'The server, honest but curious: it follows the protocol, and keeps every message that it sends and receives (leakage of type 0).',
  'client_update': 'An observer on the client who sees the update after local training, before the client’s own defence acts on it (leakage of type 1).',
  'client_example': 'An observer on the client who sees the gradient of every single example during local training (leakage of type 2).'} %}
{% set rung_names = {
  'control': 'Control: analytic attack, linear network',
  'easy': 'Easy case: same attack, fresh weights, one sample, one step, no defence',
  'target': 'The target itself'} %}
{% set floor_names = {'noise': 'Uniform noise', 'grey': 'Grey image', 'mean': 'Public mean image', 'class_mean': 'Public mean image of the class', 'random_public': 'Random public image', 'nearest_public': 'Nearest public image (an oracle picks it)'} %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>{{ run }}: {{ worst.entry.verdict if worst else 'not audited' }}</title>
<style>
:root { --paper:#fcfcfa; --raised:#f3f3ef; --ink:#1b1e22; --soft:#5a616a; --line:#dcdcd5; --accent:#b23a12; --tint:#f9e9e2; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper:#15171a; --raised:#1e2125; --ink:#e9e8e4; --soft:#a3a9b1; --line:#34383e; --accent:#ff9468; --tint:#33211a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; scroll-padding-top: 1rem; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.6 -apple-system, "Segoe UI", Inter, Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
main, header, footer { max-width: 70rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2.25rem; }
h1 { font-size: clamp(1.45rem, 1.15rem + 1.3vw, 2.05rem); line-height: 1.28; font-weight: 500; letter-spacing: -.012em; margin: 1.4rem 0 .75rem; max-width: 54rem; text-wrap: pretty; }
h2 { font-size: 1.45rem; line-height: 1.25; letter-spacing: -.01em; font-weight: 600; margin: 0 0 .5rem; }
h3 { font-size: 1.05rem; font-weight: 600; margin: 2.25rem 0 .5rem; }
h4 { font-size: .9rem; font-weight: 600; margin: 1.5rem 0 .4rem; }
p { margin: 0 0 .9rem; max-width: 42rem; }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: .2em; }
a:hover { text-decoration-color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; border-radius: 2px; }
code, pre { font: .88em/1.6 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
pre { background: var(--raised); padding: .9rem 1.1rem; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; margin: .4rem 0 1rem; }
section { border-top: 1px solid var(--line); padding: 2.75rem 0 2.25rem; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; top: 1rem; background: var(--paper); padding: .5rem 1rem; z-index: 1; }
.eyebrow, .soft, figcaption, small { color: var(--soft); } .eyebrow, .soft, figcaption, small { font-size: .875rem; line-height: 1.5; }
.eyebrow { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0; max-width: none; } .eyebrow b { color: var(--ink); font-weight: 600; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin-left: auto; }
.verdict { font-weight: 700; } .measure { color: var(--soft); } .verdict.leaks { color: var(--accent); } .accent-text { color: var(--accent); font-weight: 600; }
.first { display: grid; grid-template-columns: minmax(0, 620px) minmax(0, 1fr); gap: 1rem 2.75rem; align-items: start; margin: 1.75rem 0 2.5rem; } .first.alone { grid-template-columns: minmax(0, 1fr); }
figure { margin: 0; } figcaption { margin-top: .6rem; max-width: 40rem; }
.chart svg { display: block; max-width: 100%; height: auto; overflow: visible; } .chart.narrow { display: none; }
svg text, svg .name { font-size: 12px; fill: var(--soft); } svg .panel-title { fill: var(--ink); font-weight: 600; font-size: 13px; }
svg path { fill: none; } svg .grid { stroke: var(--line); } svg .level { stroke: var(--soft); stroke-dasharray: 4 4; } svg .leader { stroke: var(--soft); opacity: .45; }
svg .curve { stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; } svg .curve.between { stroke-width: 1.25 !important; opacity: .55; } svg .curve.ink { stroke: var(--ink); } svg .curve.soft { stroke: var(--soft); } svg .curve.accent { stroke: var(--accent); stroke-width: 2.5; }
svg .dot.ink { fill: var(--ink); } svg .dot.soft { fill: var(--soft); } svg .dot.accent { fill: var(--accent); } svg .ring { fill: var(--paper); stroke-width: 1.5; stroke: var(--soft); } svg .ring.accent { stroke: var(--accent); }
svg .name.ink { fill: var(--ink); } svg .name.accent { fill: var(--accent); font-weight: 600; } svg .gap { stroke: var(--accent); opacity: .5; } svg.strip .ring { fill: none; }
.worst, .gallery { list-style: none; margin: 0; padding: 0; display: grid; gap: 1.1rem; } .worst { grid-template-columns: repeat(4, minmax(0, 5.5rem)); } .gallery { grid-template-columns: repeat(auto-fill, minmax(10.25rem, 1fr)); gap: 1.5rem 1.25rem; }
.worst .pair { display: grid; gap: 4px; } .gallery .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 4px; } .worst.tabular, .gallery.tabular { grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); } .gallery .pair.tabular, .worst .pair.tabular { display: block; }
.pair img, .absent { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 3px; background: var(--raised); } .pair img { image-rendering: pixelated; } .absent { display: grid; place-items: center; color: var(--soft); font-size: .8rem; border: 1px dashed var(--line); }
.strip { display: block; width: 100%; background: var(--raised); border-radius: 4px; } .under { font-size: .8125rem; line-height: 1.45; margin-top: .4rem; color: var(--soft); } .under b { color: var(--ink); font-weight: 600; font-size: .9rem; } .recovered .under b { color: var(--accent); }
.keyfacts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1.25rem 2rem; margin: 0 0 2.75rem; padding-top: 1.5rem; border-top: 1px solid var(--line); } .keyfacts dt { color: var(--soft); font-size: .875rem; line-height: 1.4; } .keyfacts dd { margin: 0 0 .15rem; font-size: 1.4rem; line-height: 1.3; font-weight: 500; letter-spacing: -.01em; } .keyfacts div { display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.scroll { overflow-x: auto; margin: .5rem 0 1.25rem; } .scroll.long { max-height: 30rem; border-bottom: 1px solid var(--line); } .long thead th { position: sticky; top: 0; background: var(--paper); } table { border-collapse: collapse; font-size: .875rem; line-height: 1.45; }
th, td { text-align: right; padding: .45rem 0 .45rem 1.5rem; border-bottom: 1px solid var(--line); vertical-align: baseline; white-space: nowrap; } thead th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { padding-left: 0; } .text, th[scope=row] { text-align: left; } th[scope=row] { font-weight: 500; } th.wrap { white-space: normal; min-width: 9.5rem; } tr.answer td, tr.answer th { background: var(--raised); }
h3 + .columns h4:first-child { margin-top: .5rem; } .columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 0 3.5rem; } .columns > * { min-width: 0; } .plainlist { padding-left: 1.1rem; margin: .4rem 0 1rem; max-width: 42rem; } .plainlist li { margin-bottom: .4rem; } .plainlist li::marker { color: var(--soft); }
.facts { margin: .4rem 0 1rem; font-size: .9rem; max-width: 42rem; } .facts div { display: grid; grid-template-columns: 9rem minmax(0, 1fr); gap: 1rem; padding: .35rem 0; border-bottom: 1px solid var(--line); } .facts dt { color: var(--soft); } .facts dd { margin: 0; overflow-wrap: anywhere; }
.notice { background: var(--tint); border-left: 3px solid var(--accent); padding: .65rem 1.1rem; border-radius: 0 6px 6px 0; margin: 0 0 1.5rem; max-width: 54rem; font-size: .9rem; line-height: 1.5; } .notice ul { margin: .15rem 0 0; padding-left: 1.1rem; } .notice b { color: var(--accent); }
details { margin: .5rem 0 1rem; } summary { cursor: pointer; font-size: .9375rem; padding: .35rem 0; } summary:hover { color: var(--accent); }
footer { padding-bottom: 3rem; }
@media (max-width: 62rem) { .first { grid-template-columns: minmax(0, 1fr); } .worst { grid-template-columns: repeat(auto-fill, minmax(4.6rem, 1fr)); } nav { margin-left: 0; width: 100%; } .first > figure:has(.worst) { order: -1; } }
@media (max-width: 42rem) { .chart.wide { display: none; } .chart.narrow { display: block; } .gallery { grid-template-columns: repeat(2, minmax(0, 1fr)); } .gallery.tabular { grid-template-columns: 1fr; } th, td { padding-left: 1rem; } .columns th[scope=row] { white-space: normal; min-width: 8rem; } .worst:not(.tabular) { grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .75rem; } header { padding-top: 1.5rem; } section { padding: 2rem 0 1.5rem; } }
@media print { :root { --paper:#fff; --raised:#f4f4f4; --ink:#000; --soft:#555; --line:#ccc; --accent:#a33410; --tint:#fff; color-scheme: light; } nav, .skip { display: none; } body { font-size: 10pt; } .scroll { overflow: visible; max-height: none; } details::details-content { content-visibility: visible; block-size: auto; } li, tr, figure, .notice { break-inside: avoid; } h2, h3, h4 { break-after: avoid; } }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the answer</a>
<header>
<div class="eyebrow"><span><b>{{ run }}</b></span><span>flfw {{ result.flfw|plain }}</span>
<nav aria-label="Sections">{% if settings %}<a href="#attacker">Attacker</a><a href="#gallery">Reconstructions</a>{% endif %}<a href="#training">Training</a><a href="#provenance">Provenance</a><a href="#limits">Limits</a></nav></div>
</header>
<main id="main">
<h1>{{ headline()|trim }}</h1>
{% if worst and worst.entry.reason %}<p class="soft">{{ worst.entry.reason }}{% if settings|length > 1 %} This is the {{ 'largest leak' if worst.entry.verdict == 'leaks' else 'weakest evidence' }} of {{ settings|length }} audited settings: <a href="#glance">all of them at a glance</a>.{% endif %}</p>{% endif %}
{% if notes %}<div class="notice" role="note"><b>Read this result with {{ 'a caveat' if notes|length == 1 else 'these caveats' }}</b><ul>{% for note in notes[:3] %}<li>{{ note }}</li>{% endfor %}{% if notes|length > 3 %}<li><a href="#provenance">{{ notes|length - 3 }} more under Provenance</a></li>{% endif %}</ul></div>{% endif %}
{% set ahead = worst.samples|rejectattr('failed')|list if worst else [] %}
<div class="first{{ '' if ahead else ' alone' }}">
{% if overview %}<figure>{{ overview }}<figcaption>{% if settings %}{% if worst.entry.psnr %}Leakage: a dot is the mean over the attacked images with its interval, the ring the best reconstruction; dashed lines are guesses that use no update at all.{% else %}Leakage: the share of the attacked records that counts as recovered.{% endif %} Round 0 is before training.{% else %}Accuracy before and after the clients’ local training.{% endif %}</figcaption></figure>{% endif %}
{% if ahead %}
<figure><ol class="worst{{ ' tabular' if ahead[0].strip }}">
{% for sample in ahead[:4 if ahead[0].strip else 8] %}<li class="{{ 'recovered' if sample.recovered }}">{{ pair(worst, sample) }}<div class="under"><b>{{ score(sample) }}</b></div></li>
{% endfor %}</ol>
<figcaption>{% if ahead[0].strip %}Rings: the client’s record. Dots: what {{ worst.name }} made of the intercepted message.{% else %}Above: a client’s training image. Below: what {{ worst.name }} made of the intercepted message, {{ when(worst) }}.{% endif %} Worst for the client first{% if ahead[0].recovered %}; <span class="accent-text">coloured scores</span> count as recovered{% endif %}.</figcaption></figure>
{% endif %}
</div>
<dl class="keyfacts">
{% if worst %}<div><dt>recovered in the worst setting</dt><dd>{{ worst.recovered }} of {{ worst.total }}</dd></div>
{% if worst.entry.identification_rate is not none and worst.entry.identification_rate is defined %}<div><dt>identified among look-alikes</dt><dd>{{ worst.entry.identification_rate|pct }}</dd></div>{% endif %}{% endif %}
<div><dt>final accuracy before local training</dt><dd>{{ final.acc_global|pct }}</dd></div>
<div><dt>final accuracy after local training</dt><dd>{{ final.acc_local|pct }}</dd></div>
{% if rounds %}<div><dt>up per client and round</dt><dd>{{ (rounds[-1].upload_bytes|default(0) / (rounds[-1].clients or 1))|filesizeformat }}</dd></div>{% endif %}
</dl>
{% if settings %}
<section id="attacker" aria-labelledby="attacker-title">
<h2 id="attacker-title">What the attacker had, and what it reached</h2>
<p class="soft" id="glance">Every attack and round, the one above shaded. {% if settings|map(attribute='entry')|selectattr('psnr')|list %}PSNR is the mean over the images; what counts is how far it stands above the floors.{% endif %}</p>
<div class="scroll" tabindex="0" role="region" aria-label="All audited settings">
<table>
<thead><tr><th scope="col" class="text">Attack</th><th scope="col">Round</th><th scope="col" class="text">Verdict</th><th scope="col">Recovered</th><th scope="col">Failed</th>{% if settings|map(attribute='entry')|selectattr('psnr')|list %}<th scope="col">PSNR, dB</th><th scope="col">Interval</th><th scope="col">Best</th><th scope="col">SSIM</th><th scope="col">LPIPS</th>{% endif %}{% if settings|map(attribute='entry')|selectattr('distance')|list %}<th scope="col">RMSD</th><th scope="col">Within tolerance</th>{% endif %}<th scope="col">Identified</th><th scope="col">Time</th></tr></thead>
<tbody>{% for setting in settings %}{% set entry = setting.entry %}<tr{{ ' class="answer"'|safe if setting is sameas worst }}><th scope="row">{{ setting.name }}</th><td>{{ entry.round|plain }}</td><td class="text{{ ' accent-text' if entry.verdict == 'leaks' }}">{{ entry.verdict|plain }}</td><td>{{ setting.recovered }} of {{ setting.total }}</td><td>{{ entry.failures|plain }}</td>
{% if settings|map(attribute='entry')|selectattr('psnr')|list %}{% set psnr = entry.psnr or {} %}<td>{{ psnr.mean|num }}</td><td>{{ psnr.low|num }} to {{ psnr.high|num }}</td><td>{{ psnr.max|num }}</td><td>{{ (entry.ssim or {}).mean|num(2) }}</td><td>{{ (entry.lpips.mean if entry.lpips is mapping else entry.lpips)|num(3) }}</td>{% endif %}
{% if settings|map(attribute='entry')|selectattr('distance')|list %}{% set distance = entry.distance or {} %}<td>{{ (distance.rmsd.mean if distance.rmsd is mapping else distance.rmsd)|num(3) }}</td><td>{{ distance.success|pct }}</td>{% endif %}<td>{{ entry.identification_rate|pct }}</td><td>{{ entry.seconds|num(0) }} s</td></tr>
{% endfor %}</tbody></table></div>
{% for group in groups %}{% set entry = group[0].entry %}
<h3>{{ group[0].name }}, round{{ 's' if group|length > 1 }} {{ group|map(attribute='entry.round')|join(', ') }}</h3>
<div class="columns"><div>
<h4>Threat model</h4>
<p>{{ vantages.get(entry.vantage|string|lower, 'Vantage: ' ~ entry.vantage) }} {% if entry.source == 'probe' %}It attacks a probe: what the client would send for {{ entry.batch|plain }} example{{ '' if entry.batch == 1 else 's' }} and {{ entry.steps|plain }} local step{{ '' if entry.steps == 1 else 's' }}, through the same defence and the same wire.{% else %}It attacks the update that training really sent.{% endif %} {% if entry.adaptive %}It is adapted to what the method and its defence hide.{% else %}It is static: it takes no account of what the method or a defence hides.{% endif %}</p>
<h4>Granted to the attacker</h4>
{% if entry.granted %}<ul class="plainlist">{% for sentence in entry.granted %}<li>{{ sentence }}</li>{% endfor %}</ul>{% else %}<p>Nothing is recorded.</p>{% endif %}
</div><div>
<h4>Budget and selection</h4>
{{ facts({'defence': entry.defence, 'network mode': entry.mode, 'iterations': entry.iterations, 'restarts': entry.restarts, 'seeds': entry.seeds, 'kept result': entry.selection, 'tuned on': (result.provenance or {}).tuned_on}) }}
<p class="soft">The kept result is chosen by this rule alone; the originals are opened only afterwards, to score it.</p>
</div></div>
<div class="columns">
<div><h4>Ladder: does the attack work at all?</h4>
<div class="scroll" tabindex="0" role="region" aria-label="Ladder of {{ group[0].name }}"><table><thead><tr><th scope="col" class="text">Rung</th><th scope="col">Round</th><th scope="col">PSNR, dB</th><th scope="col">Passed</th></tr></thead>
{% set climbed = group|map(attribute='entry.ladder')|list %}{% set same = climbed|length > 1 and climbed|reject('equalto', climbed[0])|list|length == 0 %}
<tbody>{% for setting in (group[:1] if same else group) %}{% for rung in setting.entry.ladder or [] %}<tr><th scope="row" class="wrap">{{ rung_names.get(rung.rung, rung.rung) }}</th><td>{{ 'all' if same else setting.entry.round|plain }}</td><td>{{ rung.psnr|num }}</td><td>{{ rung.passed|plain }}</td></tr>{% else %}<tr><th scope="row">No rung is recorded</th><td>{{ setting.entry.round|plain }}</td><td>–</td><td>–</td></tr>{% endfor %}{% endfor %}</tbody></table></div>
{% if group[0].rungs %}<ul class="gallery">{% for name, sample in group[0].rungs.items() %}<li>{{ pair(group[0], sample) }}<div class="under">{{ name }} rung, {{ score(sample) }}</div></li>{% endfor %}</ul>{% endif %}
</div>
{% if group|map(attribute='entry.floors')|select|list %}<div><h4>Floors: what a guess scores without any update</h4>
<div class="scroll" tabindex="0" role="region" aria-label="Floors of {{ group[0].name }}"><table><thead><tr><th scope="col" class="text">PSNR, dB</th>{% for setting in group %}<th scope="col">Round {{ setting.entry.round|plain }}</th>{% endfor %}</tr></thead>
<tbody>{% for key, name in floor_names.items() %}<tr><th scope="row">{{ name }}</th>{% for setting in group %}<td>{{ (setting.entry.floors or {})[key]|num }}</td>{% endfor %}</tr>{% endfor %}
<tr class="answer"><th scope="row">{{ group[0].name }}, mean</th>{% for setting in group %}<td>{{ (setting.entry.psnr or {}).mean|num }}</td>{% endfor %}</tr></tbody></table></div></div>{% endif %}
</div>
{% endfor %}
{% if result.privacy %}<h3>Accounted privacy</h3>
<p>A proven upper bound under its assumptions; the attacks above measure from below. The two answer different questions.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Accounted privacy"><table><thead><tr><th scope="col" class="text">Unit</th><th scope="col" class="text">Adversary</th><th scope="col">ε</th><th scope="col">δ</th><th scope="col">Rounds</th><th scope="col" class="text">Accountant</th><th scope="col" class="text">Assumptions</th></tr></thead>
<tbody>{% for line in result.privacy %}<tr><th scope="row">{{ line.unit|plain }}</th><td class="text">{{ line.adversary|plain }}</td><td>{{ line.epsilon|num(2) }}</td><td>{{ line.delta|plain }}</td><td>{{ line.rounds|plain }}</td><td class="text">{{ line.accountant|plain }}</td><td class="text">{{ line.assumptions|plain }}</td></tr>{% endfor %}</tbody></table></div>{% endif %}
</section>
<section id="gallery" aria-labelledby="gallery-title">
<h2 id="gallery-title">All reconstructions</h2>
<p>Original on the left, reconstruction on the right, worst for the client first. The gain is measured against the public mean image: what an attacker scores who has seen none of this client’s data. These are clients’ real samples: treat this page as confidential as the data.</p>
{% for setting in settings %}
<h3>{{ setting.name }}, {{ when(setting) }}</h3>
<p class="soft">{{ setting.recovered }} of {{ setting.total }} recovered, {{ setting.entry.failures or 0 }} failed.{% if not setting.samples %} The run kept no record of single samples.{% endif %}</p>
{% for chunk in [setting.samples[:24], setting.samples[24:]] %}{% if chunk %}
{% if not loop.first %}<details><summary>The other {{ chunk|length }}</summary>{% endif %}
<ul class="gallery{{ ' tabular' if setting.samples[0].strip }}">
{% for sample in chunk %}<li class="{{ 'recovered' if sample.recovered }}">{{ pair(setting, sample) }}<div class="under"><b>{{ score(sample) }}</b>{% if sample.recovered %} <span class="accent-text">recovered</span>{% endif %}<br>
{% if sample.scores.ssim is not none and not sample.failed %}SSIM {{ sample.scores.ssim|num(2) }}{% if sample.scores.psnr is not none and sample.scores.floor_mean is not none %}, gain {{ (sample.scores.psnr - sample.scores.floor_mean)|num }} dB{% endif %}<br>{% endif %}{{ who(sample) }}</div></li>
{% endfor %}</ul>{% if not loop.first %}</details>{% endif %}{% endif %}{% endfor %}
{% endfor %}
</section>
{% endif %}
<section id="training" aria-labelledby="training-title">
<h2 id="training-title">Training</h2>
{% if rounds %}
<p>Accuracy <em>before</em> local training is that of the model which a client receives in a round; <em>after</em> is the same client’s model once it has trained on its own data. Both are means over clients, each on its own test data. The final values come from one more evaluation with the last aggregate.</p>
{% if curves %}<figure>{{ curves }}</figure>{% endif %}
<h3>Final accuracy and traffic</h3>
<dl class="facts"><div><dt>before local training</dt><dd>{{ final.acc_global|pct }}</dd></div><div><dt>after local training</dt><dd>{{ final.acc_local|pct }}</dd></div>
{% for key, name in {'acc_central': 'on central test data', 'acc_protected': 'of the protected model'}.items() if final[key] is not none and final[key] is defined %}<div><dt>{{ name }}</dt><dd>{{ final[key]|pct }}</dd></div>{% endfor %}
{% if final.best_validation %}<div><dt>best on validation</dt><dd>{{ final.best_validation.accuracy|pct }} at round {{ final.best_validation.round|plain }}</dd></div>{% endif %}
{% set own = final.per_client|default([])|map(attribute='acc_local')|select('number')|list %}
{% if own %}<div><dt>spread over clients, after</dt><dd>{{ own|min|pct }} to {{ own|max|pct }}</dd></div>{% endif %}
{% for name, total in (('up in all', rounds|map(attribute='upload_bytes')|select('number')|sum), ('down in all', rounds|map(attribute='download_bytes')|select('number')|sum)) %}<div><dt>{{ name }}</dt><dd>{{ total|filesizeformat }}</dd></div>{% endfor %}</dl>
<details{{ ' open' if rounds|length <= 25 }}><summary>Round by round</summary>
<p class="soft">Traffic is what crossed the wire: of all clients together, and divided by the clients that took part.</p>
<div class="scroll{{ ' long' if rounds|length > 25 }}" tabindex="0" role="region" aria-label="Rounds"><table><thead><tr><th scope="col">Round</th><th scope="col">Loss</th><th scope="col">Before</th><th scope="col">After</th><th scope="col">Clients</th><th scope="col">Failures</th><th scope="col">Up, all</th><th scope="col">Up, a client</th><th scope="col">Down, all</th><th scope="col">Down, a client</th><th scope="col">Time</th>{% for key in (rounds[-1].extra or {}) %}<th scope="col">{{ key|replace('_', ' ') }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rounds %}<tr><th scope="row">{{ row.round }}</th><td>{{ row.loss|num(3) }}</td><td>{{ row.acc_global|pct }}</td><td>{{ row.acc_local|pct }}</td><td>{{ row.clients|plain }}</td><td>{{ row.failures|plain }}</td>{% for bytes in (row.upload_bytes, row.download_bytes) %}{% if bytes is none or bytes is undefined %}<td>–</td><td>–</td>{% else %}<td>{{ bytes|filesizeformat }}</td><td>{{ (bytes / (row.clients or 1))|filesizeformat }}</td>{% endif %}{% endfor %}<td>{{ row.seconds|num }} s</td>{% for key in (rounds[-1].extra or {}) %}<td>{{ (row.extra or {})[key]|plain }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></details>
{% else %}<p>No training round was run: what was audited is the network as it starts.</p>{% endif %}
</section>
<section id="provenance" aria-labelledby="provenance-title">
<h2 id="provenance-title">Provenance</h2>
{% if notes %}<div class="notice"><b>Notes of the run</b><ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul></div>{% endif %}
<div class="columns"><div><h3>Code and data</h3>{{ facts({'code': origin.code, 'lock': origin.lock, 'data': data.name, 'from': data.source, 'checksum': {true: 'as published', false: 'not the published one'}.get(data.md5_ok, 'not checked'), 'weights': origin.weights, 'attacks tuned on': origin.tuned_on}) }}</div><div><h3>Environment</h3>{{ facts(result.environment or {}) }}</div></div>
<h3>Asking for this run again</h3>
<pre><code>{{ config|command }}</code></pre>
<p class="soft">Rebuilt from the configuration, which holds every setting:</p>
<details><summary>Full configuration</summary>{{ facts(config) }}</details>
<h3>Files of the run</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Files"><table><thead><tr><th scope="col" class="text">Name</th><th scope="col">Files</th><th scope="col">Size</th></tr></thead><tbody>{% for name, count, bytes in files %}<tr><th scope="row"><code>{{ name }}</code></th><td>{{ count }}</td><td>{{ bytes|filesizeformat }}</td></tr>{% endfor %}</tbody></table></div>
</section>
<section id="limits" aria-labelledby="limits-title">
<h2 id="limits-title">What this does not show</h2>
<ul class="plainlist">
{% if not settings %}<li>Anything about leakage. High accuracy and little traffic are not privacy; run the audit to learn more.</li>
{% else %}
<li>That stronger attacks fail. Only {{ settings|map(attribute='name')|unique|join(', ') }} ran, with the budget above. A leak that was found is proof; a leak that was not found is only the absence of one.</li>
<li>Other rounds. The audit looked at round{{ 's' if settings|map(attribute='entry.round')|unique|list|length > 1 }} {{ settings|map(attribute='entry.round')|unique|sort|join(', ') }}; leakage changes as a network trains, and it can rise before it falls.</li>
<li>Other observers. {% if settings|map(attribute='entry.vantage')|map('string')|map('lower')|unique|list == ['server'] %}The attacker is the server; what the other clients, or somebody on the client’s own machine, can learn was not measured.{% else %}Only the vantages named above were measured.{% endif %} A server that also sends manipulated weights is a different adversary.</li>
{% if settings|map(attribute='entry.source')|select('equalto', 'probe')|list %}<li>What a full update leaks. A probe is a small batch and few steps, the case that favours the attacker; what training really sends mixes more samples and is usually harder to invert, not impossible.</li>{% endif %}
<li>Every sample. The intervals speak of the attacked samples and seeds only; somebody’s picture may come out although the mean looks safe, so look at the best reconstruction first.</li>
<li>Other leaks. Whether a person took part, what share of a client has some property, or which labels it holds can leak without a single picture being reconstructed.</li>
{% endif %}
{% if result.privacy %}<li>That ε holds elsewhere. The bound is as good as its assumptions about sampling, clipping and who is trusted.</li>{% endif %}
<li>Other data, networks or seeds. This is one configuration, seed {{ config.seed|plain }}.</li>
</ul>
</section>
</main>
<footer><p class="soft">Written by flfw {{ result.flfw|plain }} from <code>result.json</code> and <code>audit.csv</code> in the same folder, which hold every number on this page.</p></footer>
</body>
</html>
"""
