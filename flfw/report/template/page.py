"""Jinja template of the report's page. It is in modules because Flower's app bundles hold no other kind of file."""

# ruff: noqa: E501

from __future__ import annotations

from flfw.report.template.audit import ATTACKER, FAILURES, GALLERY, INFERENCE, MACROS, RESULTS
from flfw.report.template.first_page import FIRST_PAGE
from flfw.report.template.glossary import EXPLAINED, GLOSSARY
from flfw.report.template.membership import MEMBERSHIP, TELLING
from flfw.report.template.privacy import PRIVACY
from flfw.report.template.run import LIMITS, TRAINING
from flfw.report.template.sittings import SITTINGS
from flfw.report.template.style import SCRIPT, STYLE
from flfw.report.template.sums import SUMS
from flfw.report.template.words import HEADLINE, WORDS

_START = """\
{% set final = result.final or {} %}
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
<title>{{ run }}: {{ worst.entry.verdict if worst else 'membership ' ~ told.verdict if told else 'classes ' ~ result.inference[0].verdict if result.inference else 'not audited' }}</title>
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
<nav aria-label="Sections"><a href="#words">How sure</a><a href="#figures">Figures</a>{% if settings %}<a href="#results">Results</a>{% endif %}{% if settings %}<a href="#attacker">Attacker</a><a href="#gallery">{{ 'Samples' if absence else 'Reconstructions' }}</a>{% endif %}{% if membership %}<a href="#membership">Membership</a>{% endif %}{% if failures %}<a href="#failures">Failures</a>{% endif %}{% if result.privacy %}<a href="#privacy">Privacy</a>{% endif %}{% if result.sums %}<a href="#sums">Sums</a>{% endif %}<a href="#training">Training</a><a href="#provenance">Provenance</a><a href="#limits">Limits</a></nav></div>
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
{% set shown = elsewhere or worst %}
{% if worst %}<p class="soft">{{ sureness(shown)|trim if shown.entry.verdict != 'identifies' and not shown.shown_to_work }} {{ reason(worst)|trim }}{% if targets|length > 1 %} This is the {{ {'leaks': 'largest leak', 'identifies': 'most serious result'}.get(worst.entry.verdict, 'weakest evidence') }} of {{ targets|length }} audited settings{{ but_for_those_aside() }}: <a href="#glance">all of them at a glance</a>.{% endif %}</p>{% endif %}
{{ explained() }}
{% set ahead = shown.samples|rejectattr('failed')|list if shown and not absence else [] %}
<div class="first{{ '' if ahead else ' alone' }}">
{% if overview %}<figure>{{ overview }}<figcaption>{% if targets %}{% if targets|map(attribute='entry.psnr')|select|list %}Leakage: a dot is the mean over the attacked images with its interval, the ring the best reconstruction; dashed lines are guesses that use no update at all.{% if 'server' in scope.vantages and 'client_update' in scope.vantages %} Updates read on the client are the server’s, and have no lines of their own.{% endif %}{% else %}Leakage: the share of the attacked {{ scope.unit }} that counts as recovered{{ ' with its interval' if targets|map(attribute='entry.share_interval')|select|list }}.{% endif %} Round 0 is before training. A line joins neighbouring rounds only: nothing was measured in a gap.{% else %}Accuracy of the model as clients receive it, and after their local training.{% endif %}</figcaption></figure>{% endif %}
{% if ahead %}
<figure><ol class="worst{{ ' tabular' if ahead[0].strip }}">
{% for sample in ahead[:4 if ahead[0].strip else 8] %}<li class="{{ 'recovered' if sample.recovered }}"><a href="#{{ shown.key }}-{{ loop.index }}">{{ pair(shown, sample) }}<div class="under"><b>{{ score(sample) }}</b></div></a></li>
{% endfor %}</ol>
<figcaption>{% if ahead[0].is_text %}Above: a client’s text. Below:{% elif ahead[0].strip and plan %}True: the client’s record. Attack:{% elif ahead[0].strip %}Rings: the client’s record. Dots:{% else %}Above: a client’s training image. Below:{% endif %} what attack {{ shown.name }} made of {{ 'what it read' if shown.entry.vantage in on_client else 'the intercepted message' }}, {{ when(shown) }}. Worst for the client first{% if ahead[0].recovered %}; <span class="accent-text">coloured scores</span> count as recovered{% endif %}.{% if plan and ahead[0].strip %} Wrong values are marked.{% endif %}{% if ahead[0].is_text %} Wrong bytes are underlined; {{ legend }}.{% endif %}</figcaption></figure>
{% endif %}
</div>
{% if absence and settings %}<p class="soft">{{ no_pictures() }}</p>{% endif %}
<dl class="keyfacts">
{% if worst %}{% set entry = worst.entry %}<div><dt>recovered in the worst setting{% if entry.share_interval %} <small>95 %: {{ span(entry.share_interval) }}</small>{% endif %}{% if entry.share_expected is number %} <small>theory expects {{ entry.share_expected|pct(0) }}</small>{% endif %}</dt><dd>{{ worst.recovered }} of {{ worst.total }}</dd></div>
{% if entry.gain and scope.unit != 'texts' %}<div><dt>best gain over the best floor <small>mean {{ entry.gain.mean|num }} dB</small></dt><dd>{{ entry.gain.max|num }} dB</dd></div>{% endif %}
{% if entry.identification_rate is number %}<div><dt>identified among look-alikes{% if entry.identification_null is number %} <small>by chance {{ entry.identification_null|pct }}</small>{% endif %}</dt><dd>{{ entry.identification_rate|pct }}</dd></div>{% endif %}
{% if entry.candidates %}<div><dt>messages that point to the truth among candidates <small>by chance {{ entry.candidates.null|pct }}</small></dt><dd>{{ entry.candidates.first }} of {{ entry.candidates.messages }}</dd></div>{% endif %}
{% if entry.exact_match %}{% set match = entry.exact_match %}{% set cells = match.cells is number %}<div><dt>{{ 'bytes' if scope.unit == 'texts' else 'cells' if cells else 'features' }} found exactly <small>by guessing {{ (match.floor_cells if cells else match.floor)|pct }}</small></dt><dd>{{ (match.cells if cells else match.features)|pct }}</dd></div>{% endif %}
{% if entry.labels_found is number %}<div><dt>of the labels, found by the attack itself</dt><dd>{{ entry.labels_found|pct }}</dd></div>{% endif %}
{% if entry.worst %}<div><dt>has the worst case <small>sample {{ entry.worst.victim|plain }}, {{ entry.worst.psnr|num ~ ' dB' if entry.worst.psnr is number else (1 - entry.worst.rmsd ** 2)|pct ~ ' of bytes right' if scope.unit == 'texts' else 'RMSD ' ~ entry.worst.rmsd|num(3) }}</small></dt><dd>client {{ entry.worst.client|plain }}</dd></div>{% endif %}{% endif %}
{% if final.mae_global is number %}{% for when, words in {'global': 'as received', 'local': 'after local training'}.items() %}<div><dt>final mean absolute error {{ words }} <small>RMSE {{ final['rmse_' ~ when]|num(3) }}, R² {{ final['r2_' ~ when]|num(2) }}</small></dt><dd>{{ final['mae_' ~ when]|num(3) }}</dd></div>{% endfor %}{% endif %}
{% for key, name in (('acc_global', 'as received'), ('acc_local', 'after local training'), ('acc_central', 'on the server’s own test data')) if final[key] is number and (key != 'acc_central' or final.acc_local is not number) %}<div><dt>final accuracy {{ name }}{% if key != 'acc_central' and config.metrics == 'private' %} <small>with the noise of metrics=private</small>{% endif %}</dt><dd>{{ final[key]|pct }}</dd></div>{% endfor %}
{% for line in (result.privacy or [])[:1] %}<div><dt>ε at most, with δ {{ line.delta|plain }} <small>one {{ line.unit }} against {{ line.adversary }}{{ ', with noise_source=secure' if line.noise == 'seed' }}</small></dt><dd>{{ line.epsilon|above }}</dd></div>{% endfor %}
{% if rounds %}<div><dt>up per client in a round</dt><dd>{{ (rounds[-1].upload_bytes|default(0) / (rounds[-1].clients or 1))|filesizeformat }}</dd></div>{% endif %}
</dl>
</section>
"""
)

_END = """\
</main>
<footer><p class="soft">Written by flfw {{ result.flfw|plain }} from <code>result.json</code> and <code>audit.csv</code> in the same folder, which hold every number on this page.</p></footer>
<script>
"""

# All sentences of the page are here and in the modules above; report.py supplies their values.
PAGE = "".join(
    (
        *(HEADLINE, TELLING, MACROS, EXPLAINED, SITTINGS, _START, STYLE, _FIRST),
        *("{% if settings %}\n", RESULTS, "{% endif %}\n", MEMBERSHIP, INFERENCE),
        *("{% if settings %}\n", ATTACKER, GALLERY, "{% endif %}\n", FAILURES),
        *(PRIVACY, SUMS, TRAINING, LIMITS, _END, SCRIPT, "</script>\n</body>\n</html>\n"),
    )
)
