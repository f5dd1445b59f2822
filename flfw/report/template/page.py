"""Jinja template of the report's page. It is in modules because Flower's app bundles hold no other kind of file."""

# ruff: noqa: E501

from __future__ import annotations

from flfw.report.template.audit import ATTACKER, FAILURES, GALLERY, INFERENCE, MACROS, RESULTS
from flfw.report.template.style import SCRIPT, STYLE
from flfw.report.template.words import HEADLINE, WORDS

# First page: the verdict in plain words, what was not tested, what to ask, and the questions of an authority.
FIRST_PAGE = """\
<section id="decision" class="decision" aria-labelledby="verdict-title">
{% set opening, colon, rest = decided.headline.partition(':') %}
<h1 id="verdict-title">{% if rest %}<strong class="verdict{{ ' leaks' if decided.level <= 1 }}">{{ opening }}</strong>:{{ rest }}{% else %}{{ opening }}{% endif %}</h1>
<div class="meaning">{% for sentence in decided.meaning %}<p>{{ sentence }}</p>{% endfor %}
{% if failed %}<p>Not everything gave a result: <a href="#failures">{{ failed }}</a>.</p>{% endif %}</div>
<dl class="asked" aria-label="Three questions">
{% for question in questions %}<div><dt>{{ question.asked }} <small>{{ question.subject }}</small></dt><dd><b{{ ' class="accent-text"'|safe if question.leaks }}>{% if question.href %}<a href="#{{ question.href }}">{{ question.answer }}</a>{% else %}{{ question.answer }}{% endif %}</b><small>{{ question.words }}</small></dd></div>
{% endfor %}</dl>
{% set cautions = notes|caveats %}{% if cautions %}<div class="notice" role="note"><b>Read this result with {{ 'a caveat' if cautions|length == 1 else 'these caveats' }}</b><ul>{% for note in cautions[:3] %}<li>{{ note }}</li>{% endfor %}{% if cautions|length > 3 %}<li><a href="#provenance">{{ cautions|length - 3 }} more under Provenance</a></li>{% endif %}</ul></div>{% endif %}
<div class="columns">
<div><h2>What to ask of the federation</h2>
<ol class="plainlist asks">{% for ask in asks[:6] %}<li><b>{{ ask.question|flags }}</b> {{ ask.because|flags }}</li>{% endfor %}</ol>
{% if asks|length > 6 %}<p class="soft"><a href="#more">{{ asks|length - 6 }} more below</a>.</p>{% endif %}</div>
<div><h2>What was not tested</h2>
<ul class="plainlist">{% for item in untested %}<li>{{ item }}</li>{% endfor %}</ul></div>
</div>
{% if opinion %}
<h2>Beside the questions of EDPB Opinion 28/2024</h2>
<p class="soft">A model is anonymous, in short, only if it is insignificantly likely that personal data of those it was trained on are extracted from it, and that they come out of queries, on purpose or not; all means count that the controller or anybody else is reasonably likely to use (executive summary, 17 December 2024). The Opinion speaks of models. {% if opinion|selectattr('queries', 'equalto', unasked)|list %}Attacks on messages read what a model is made of, not the model. {% endif %}These are facts of this run; the judgement is yours.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Facts beside EDPB Opinion 28/2024"><table class="stacked">
<thead><tr><th scope="col" class="text">Attack</th><th scope="col" class="text">Were personal data extracted?</th><th scope="col" class="text">By what means?</th><th scope="col" class="text">Do the model’s outputs relate to persons?</th><th scope="col" class="text">How likely is it?</th></tr></thead>
<tbody>{% for fact in opinion %}<tr><th scope="row">{{ fact.attack }}</th><td class="text" data-name="Extracted?">{{ fact.extraction }}</td><td class="text" data-name="Means">{{ fact.means }}</td><td class="text" data-name="Outputs">{{ fact.queries }}</td><td class="text" data-name="How likely">{{ fact.likelihood }}</td></tr>
{% endfor %}</tbody></table></div>
{% endif %}
<p class="soft">This is the record of a technical test: no legal advice, and no proof that data are safe or anonymous. <a href="#words">How it was tested, and how sure it is</a>; <a href="#figures">the figures</a>; <a href="#glossary">the words</a>.</p>
</section>
"""

# Words of the page: what the terms of its figures mean, where they first stand and in a list.
EXPLAINED = """\
{% macro explained() %}<p class="soft">{% if settings %}A <dfn>round</dfn> is one exchange between the server and its clients; round 0 is before training. {% if settings|selectattr('entry.psnr')|list %}<dfn>PSNR</dfn>, in decibels (<dfn>dB</dfn>), says how near a recovered image comes to the original: each 6 dB halve the error, and a perfect copy has no limit. {% endif %}{% if settings|selectattr('entry.floors')|list %}A <dfn>floor</dfn> is what a guess reaches that saw no message. {% endif %}{% if settings|selectattr('entry.share_interval')|list %}An <dfn>interval</dfn> of 95 % says between which values the share lies for all such {{ scope.unit }}, as far as chance goes. {% endif %}A <dfn>static</dfn> attack takes no account of what hides the data; an <dfn>adaptive</dfn> one is told of it and reckons with it. {% endif %}{% if told %}<dfn>AUC</dfn> is how often a member, which was trained on, scores above one that was held out: 0.50 is a coin, 1.00 always. {% endif %}<a href="#glossary">All words</a>.</p>{% endmacro %}
"""

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
{% else %}<strong class="verdict">Inconclusive</strong> on membership in {{ run }}: {{ row.reason }}
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
<p>In {{ took.rounds }} round{{ 's' if took.rounds != 1 }}{{ ', of those recorded' if took.recorded_only }}, {{ took.clients }} client{{ 's' if took.clients != 1 }} took part, in groups of {{ took.smallest_group }} or more. {% if took.rank is none %}There are too many to compute how well they can be told apart.{% else %}Whoever knows who took part can tell the mean update of {{ took.separable or 'none' }} of them from the sums of the rounds (rank {{ took.rank }}{% if took.smallest_singular %}, smallest singular value {{ took.smallest_singular|num(3) }}{% endif %}).{% if took.separable %} That is exact only if updates stay the same from round to round; else their changes come on top, times the factor of the client.{% endif %}{% if took.noise %} Smallest factor{{ 's' if took.noise|length > 1 }}: {% for row in took.noise[:5] %}{{ ', ' if not loop.first }}client {{ row.client }} {{ row.factor|num(2) }}{% endfor %}.{% endif %}{% endif %}</p>
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
<div class="columns"><div><h3>Code and data</h3>{{ facts({'code': origin.code, 'lock': origin.lock, 'data': data.name, 'from': data.source, 'checksum': {true: 'as published', false: 'not the published one'}.get(data.md5_ok, 'not checked'), 'weights': origin.weights, 'attacks tuned on': origin.tuned_on} if not origin['from'] else {'recordings of': origin['from'], 'code': origin.code, 'data': data.name, 'from': data.source, 'weights': origin.weights}) }}</div><div><h3>Environment</h3>{{ facts(result.environment or {}) }}</div></div>
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
<h3>Files of the run</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Files"><table><thead><tr><th scope="col" class="text">Name</th><th scope="col">Files</th><th scope="col">Size</th></tr></thead><tbody>{% for name, count, bytes in files %}<tr><th scope="row"><code>{{ name }}</code></th><td>{{ count }}</td><td>{{ bytes|filesizeformat }}</td></tr>{% endfor %}</tbody></table></div>
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
<li>Other rounds. The audit looked at round{{ 's' if settings|map(attribute='entry.round')|unique|list|length > 1 }} {{ settings|map(attribute='entry.round')|unique|sort|join(', ') }}; leakage changes as a network trains, and it can rise before it falls.</li>
<li>Other observers. {% if settings|map(attribute='entry.vantage')|map('string')|map('lower')|unique|list == ['server'] %}The attacker is the server; what the other clients, or somebody on the client’s own machine, can learn was not measured.{% elif scope.vantages == ('client_example',) %}The attacker stands on the client; what the server can learn from what is sent was not measured.{% else %}Only the vantages named above were measured.{% endif %} A server that also sends manipulated weights is a different adversary.</li>
{% if 'update' not in scope.sources %}<li>What a full update leaks. A probe is a small batch and few steps, the case that favours the attacker; what training really sends mixes more samples and is usually harder to invert, not impossible.</li>{% endif %}
<li>Every sample. The intervals speak of the attacked samples and seeds only; somebody’s {{ 'picture' if scope.unit == 'images' else one }} may come out although the mean looks safe, so look at the best reconstruction first.</li>
<li>Other leaks. {{ 'What' if told else 'Whether a person took part, what' }} share of a client has some property, or which {{ 'target values' if regression else 'labels' }} it holds can leak without a single {{ 'picture' if scope.unit == 'images' else one }} being reconstructed.</li>
{% endif %}
{% if result.privacy %}<li>That ε holds elsewhere. The bound is as good as its assumptions about sampling, clipping and who is trusted.</li>{% endif %}
<li>Other data, networks, seeds or machines. This is one configuration, seed {{ config.seed|plain }}, on one machine. Processors round sums in different orders, so that on another one {{ 'an image' if scope.unit == 'images' else 'a ' ~ one }} near the threshold of recovery may fall on the other side.</li>
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
<div><h4>Machine</h4>{{ facts({'hardware': machine.hardware, 'system': machine.system, 'cores': machine.cores ~ ' of ' ~ machine.cores_of_machine if machine else none, 'memory': machine.memory_bytes|filesizeformat if machine else none, 'GPUs': machine.gpus|map(attribute='name')|join(', ') if machine.gpus else none, 'threads of torch': machine.threads.torch if machine.threads else none, 'torch': machine.torch.version if machine.torch else none, 'instructions': machine.torch.instructions if machine.torch else none, 'linear algebra': machine.blas|map(attribute='internal_api')|join(', ') if machine.blas else none}) }}</div></div>
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
{% if entry.candidate_test %}<div><dt>messages that point to the truth among candidates <small>by chance {{ entry.candidate_test.null|pct }}</small></dt><dd>{{ entry.candidate_test.first }} of {{ entry.candidate_test.messages }}</dd></div>{% endif %}
{% if entry.exact_match %}{% set match = entry.exact_match %}{% set cells = match.cells is number %}<div><dt>{{ 'bytes' if scope.unit == 'texts' else 'cells' if cells else 'features' }} found exactly <small>by guessing {{ (match.floor_cells if cells else match.floor)|pct }}</small></dt><dd>{{ (match.cells if cells else match.features)|pct }}</dd></div>{% endif %}
{% if entry.label_accuracy is number %}<div><dt>of the labels, found by the attack itself</dt><dd>{{ entry.label_accuracy|pct }}</dd></div>{% endif %}
{% if entry.worst %}<div><dt>has the worst case <small>sample {{ entry.worst.probe_slot|plain }}, {{ entry.worst.psnr|num ~ ' dB' if entry.worst.psnr is number else (1 - entry.worst.rmsd ** 2)|pct ~ ' of bytes right' if scope.unit == 'texts' else 'RMSD ' ~ entry.worst.rmsd|num(3) }}</small></dt><dd>client {{ entry.worst.client|plain }}</dd></div>{% endif %}{% endif %}
{% if final.mae_global is number %}{% for when, words in {'global': 'as received', 'local': 'after local training'}.items() %}<div><dt>final mean absolute error {{ words }} <small>RMSE {{ final['rmse_' ~ when]|num(3) }}, R² {{ final['r2_' ~ when]|num(2) }}</small></dt><dd>{{ final['mae_' ~ when]|num(3) }}</dd></div>{% endfor %}{% endif %}
{% for key, name in (('acc_global', 'as received'), ('acc_local', 'after local training'), ('acc_central', 'on the server’s own test data')) if final[key] is number and (key != 'acc_central' or final.acc_local is not number) %}<div><dt>final accuracy {{ name }}{% if key != 'acc_central' and config.metrics == 'private' %} <small>with the noise of metrics=private</small>{% endif %}</dt><dd>{{ final[key]|pct }}</dd></div>{% endfor %}
{% for line in (result.privacy or [])[:1] %}<div><dt>ε at most, with δ {{ line.delta|plain }} <small>one {{ line.unit }} against {{ line.adversary }}{{ ', with noise_source=secure' if line.noise_source == 'seed' }}</small></dt><dd>{{ line.epsilon|above }}</dd></div>{% endfor %}
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

# All sentences of the page are here and in the imported modules; report.py supplies their values.
PAGE = "".join(
    (
        *(HEADLINE, TELLING, MACROS, EXPLAINED, SESSIONS, _START, STYLE, _FIRST),
        *("{% if settings %}\n", RESULTS, "{% endif %}\n", MEMBERSHIP, INFERENCE),
        *("{% if settings %}\n", ATTACKER, GALLERY, "{% endif %}\n", FAILURES),
        *(PRIVACY, SUMS, TRAINING, LIMITS, _END, SCRIPT, "</script>\n</body>\n</html>\n"),
    )
)
