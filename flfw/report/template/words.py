"""Sentences of the answer: the headline, and a page in plain words for readers responsible for personal data."""

# ruff: noqa: E501

HEADLINE = """\
{% set worst_defence = worst.entry.defence if worst else config.defence %}
{% set worst_defence = 'none' if worst_defence == config.method else worst_defence %}
{% set plain_defence = worst_defence|plain if worst_defence and worst_defence != 'none' else '' %}
{% set run = 'method ' ~ config.method ~ (' with defence ' ~ plain_defence if plain_defence else '') ~ ' on ' ~ dataset %}
{% set a_class = 'tenth of the target' if regression else 'class' %}{% set same_class = 'of the same ' ~ a_class %}
{% set one = {'images': 'image', 'records': 'record', 'texts': 'text', 'samples': 'sample'}[scope.unit] %}
{% macro got(setting) %}attack {{ setting.name }} recovered {{ setting.recovered }} of {{ setting.total }} training {{ scope.unit }}{% endmacro %}
{% macro size(setting) %}{{ ('a ' ~ setting.point|replace('batch ', 'batch of ')) if setting.entry.curve in ('batch', 'ladder') else setting.point }}{% endmacro %}
{% macro turn(round) %}{{ 'before the first round' if round == 0 else 'at round ' ~ round|plain }}{% endmacro %}
{% set on_client = {'client_update': 'read on the client before it is sent', 'client_example': 'from one example’s gradient on the client'} %}
{% macro when(setting) %}{{ turn(setting.entry.round) }}{% if setting.point %}, with {{ size(setting) }}{% endif %}{% if setting.entry.vantage in on_client %}, {{ on_client[setting.entry.vantage] }}{% endif %}{% endmacro %}
{% macro nearest(setting) %}
{%- set first = setting.samples[0] if setting.samples else none -%}
{%- if first and first.scores.psnr is not none %} <span class="measure">(best {{ first.scores.psnr|num }} dB
{%- if first.scores.floor_nearest_public is not none %}, where the best public look-alike scores {{ first.scores.floor_nearest_public|num }} dB{% endif %})</span>
{%- elif first and first.is_text and not first.failed %} <span class="measure">(closest with {{ first.scores.exact_features|pct }} of its bytes right)</span>
{%- elif first and first.scores.rmsd is not none and not first.failed %} <span class="measure">(closest at a distance of {{ first.scores.rmsd|num(3) }} RMSD)</span>{% endif %}
{%- endmacro %}
{% macro took_no_account(setting) %}
{% if setting.informed %}the attacker, who is told of {{ setting.entry.protected_by or setting.entry.defence }}, makes no use of what else is hidden
{%- elif settings|selectattr('entry.attack', 'equalto', setting.entry.attack)|selectattr('informed')|list %}here the attack could not adapt to what is hidden
{%- else %}no attack adapted to what the method hides was run{% endif %}
{% endmacro %}
{% macro reason(setting) %}
{% set twin = twins[setting.key] %}
{% if setting.outcome != 'static' %}{{ setting.entry.reason or '' }}
{% elif setting.informed %}It makes no use of all else that stands between the data and what it reads: this is not evidence of protection.
{% elif twin %}It is not told of {{ setting.entry.protected_by or setting.entry.defence }}, so this is not evidence of protection. The same attack, told of it: {{ twin.recovered }} of {{ twin.total }}, {{ twin.entry|verdict }}.
{% else %}{{ setting.entry.reason or '' }}{% endif %} {{ setting.entry.search_limit or '' }}
{% endmacro %}
{% macro but_for_those_aside() %}{% if aside %}, {{ aside|length }} of which {{ 'is' if aside|length == 1 else 'are' }} static and set aside: beside {{ 'it' if aside|length == 1 else 'each of them' }} stands an adaptive one{% endif %}{% endmacro %}
{% macro chance(setting) %}{{ setting.entry.identification_null|pct(0) if setting.entry.identification_null >= 0.01 else 'less than 1 %' }}{% endmacro %}
{% macro pointing(setting) %}
{% set held = setting.entry.candidate_test %}
{% if setting.cause == 'candidates' and held %}{{ held.first }} of {{ held.messages }} messages are explained better by their true {{ scope.unit }} than by any others of the same client and classes (chance gives {{ held.null|pct }}){% else %}its results point to the true {{ one }} among look-alikes more often than chance explains{% if setting.entry.identification_rate is number %} ({{ setting.entry.identification_rate|pct(0) }}{% if setting.entry.identification_null is number %}, by chance {{ chance(setting) }}{% endif %}){% endif %}{% endif %}
{% endmacro %}
{% macro headline() %}
{% set found = worst.outcome if worst else none %}
{% if not worst and told %}{{ membership_headline(told)|trim }}
{% elif not worst and result.inference %}<strong class="verdict{{ ' leaks' if result.inference|selectattr('verdict', 'equalto', 'leaks')|list }}">{{ result.inference[0].verdict|capital }}</strong>: attack {{ result.inference[0].attack }} on {{ run }} sought what classes clients hold. {{ result.inference[0].reason }} No single {{ one }} was attacked.
{% elif not worst %}<strong class="verdict">Not audited</strong>: {{ run }} was trained and no attack was run, so this report says nothing about what it leaks.
{% elif found == 'message' %}{{ run|capital }} <strong class="verdict leaks">leaks</strong>: {{ worst|because }}. {{ got(worst)|capital }} {{ when(worst) }}{{ nearest(worst) }}, which protects nobody.
{% elif found == 'reconstructed' %}{{ run|capital }} <strong class="verdict leaks">leaks</strong>: {{ got(worst) }} {{ when(worst) }}{{ nearest(worst) }}.
{% elif found == 'identified' %}{{ run|capital }} <strong class="verdict leaks">leaks</strong> in part: {{ got(worst) }} {{ when(worst) }}{{ nearest(worst) }}, but {{ pointing(worst)|trim }}.
{% elif found == 'no leak found' %}<strong class="verdict">No leak found</strong> in {{ run }}: {{ got(worst) }} {{ when(worst) }}{{ nearest(worst) }}, {% if worst.cause == 'constant' %}as messages of different data are the same{% else %}although the same attack {% if worst.shown_to_work %}reconstructs the same clients’ {{ scope.unit }} without the protection and through its weakest form{% else %}succeeds on an undefended easy case{% endif %}{% endif %}.
{% elif found == 'static' %}<strong class="verdict">Undecided</strong>: {{ got(worst) }} from {{ run }} {{ when(worst) }}{{ nearest(worst) }}, but {{ took_no_account(worst)|trim }}, so this is not evidence of protection.
{% elif found == 'undecided' and worst.cause == 'failures' and worst.entry.failure_reason %}<strong class="verdict">Undecided</strong>: attack {{ worst.name }} gave nothing ({{ worst.entry.failure_reason|trim('.') }}), so this says nothing about what {{ run }} leaks {{ when(worst) }}.
{% elif found == 'undecided' %}<strong class="verdict">Undecided</strong>: {{ got(worst) }} from {{ run }} {{ when(worst) }}{{ nearest(worst) }}, but {{ worst|because or 'the attack is too weak for a conclusion' }}, so its failure is not evidence of protection.
{% elif found == 'void' %}<strong class="verdict">Undecided</strong>, as the test is void: {{ worst|because or 'a check of attack ' ~ worst.name ~ ' failed' }}, so this says nothing about {{ 'the defence ' ~ plain_defence if plain_defence else 'what ' ~ run ~ ' leaks' }}.
{% elif found == 'to a malicious server' %}{{ run|capital }} <strong class="verdict leaks">leaks</strong> to a malicious server: {{ got(worst) }} {{ when(worst) }}{{ nearest(worst) }}, in a network that the server had changed ({{ worst.entry.malicious_server }}). This says nothing about a server that follows the protocol.
{% endif %}
{% if elsewhere and elsewhere.outcome == 'identified' %}But with {{ size(elsewhere) }} it <strong class="verdict leaks">leaks</strong> in part: with attack {{ elsewhere.name }} {{ turn(elsewhere.entry.round) }} {{ pointing(elsewhere)|trim }}.
{% elif elsewhere %}But with {{ size(elsewhere) }} it <strong class="verdict leaks">leaks</strong>: {{ got(elsewhere) }} {{ turn(elsewhere.entry.round) }}{{ nearest(elsewhere) }}.
{% endif %}
{% if worst and told and told.verdict == 'leaks' %}{{ 'And' if found in ('reconstructed', 'message', 'identified') else 'But' }} it <strong class="verdict leaks">tells who was there</strong>: {{ telling(told) }}.
{% endif %}
{% endmacro %}
{% macro sureness(setting) %}
{% set span = setting.entry.share_interval %}{% set count = setting.entry.messages %}
{% if setting.outcome in ('undecided', 'void') %}
{% elif setting.recovered == 0 and count %}{{ setting.recovered }} of {{ setting.total }}, from {{ count }} independent message{{ 's' if count != 1 }}: as many as {{ count|most_missed|pct(0) }} of such messages could leak to this attack and this audit would still have seen none (95 %, one-sided).
{% elif span and setting.recovered == 0 %}{{ setting.recovered }} of {{ setting.total }}: as many as {{ span[1]|pct(0) }} of such {{ scope.unit }} could leak and this audit would still have seen none.
{% elif span %}{{ setting.recovered }} of {{ setting.total }}: the share of such {{ scope.unit }} that this attack recovers lies between {{ span[0]|pct(0) }} and {{ span[1]|pct(0) }} ({% if count and count < setting.total %}95 % interval, in which the {{ scope.unit }} of one message count as one{% else %}exact 95 % interval{% endif %}).{% endif %}
{% endmacro %}
"""

WORDS = """\
{% macro outcome(setting) %}
{% set found = setting.outcome %}{% set k = setting.recovered %}{% set n = setting.total %}
{% set of = (k if k else 'Not one') ~ ' of the ' ~ n ~ ' training ' ~ scope.unit %}{% set were = ' was' if k < 2 else ' were' %}
{% if found == 'message' %}<b>Yes, it leaks.</b> {{ of }}{{ were }} recovered, but {{ setting|plainly(scope.unit) }}. Another attack may recover more from it.
{% elif found == 'reconstructed' %}<b>Yes, it leaks.</b> {{ of }}{{ were }} recovered {{ {'images': 'well enough to be recognised', 'records': 'with values close to the true ones', 'texts': 'so that they can be read'}.get(scope.unit, 'closely') }}, and more closely than public look-alikes come.
{% elif found == 'identified' %}<b>Not recovered, but told from look-alikes.</b> {{ of }}{{ were }} recovered. But {% if setting.cause == 'candidates' %}the messages themselves tell the true {{ scope.unit }} from others of the same client and classes: {{ pointing(setting)|trim }}.{% else %}the results point to the true {{ one }} among look-alikes of its class more often than chance explains.{% endif %} An attacker with candidate {{ scope.unit }}, one of which was in the training data of a message, can tell which one it was more often than by guessing. That is about the true {{ one }} among look-alikes.{% if not told %} Whether somebody can tell of any single {{ one }} that it was used (membership) was not tested.{% endif %}
{% elif found == 'no leak found' %}<b>No leak was found.</b> {{ of }}{{ were }} recovered. {% if setting.cause == 'constant' %}The messages are the same to the byte, though their data differ. {% elif setting.shown_to_work %}The test could have seen a leak of this kind. From the same clients, the same model and messages of the same size, the same attack recovers at least half of the {{ scope.unit }} when nothing protects them, and also through the protection at its weakest. {% if setting.entry.messages %}It was tried on {{ setting.entry.messages }} independent messages: if more than {{ setting.entry.messages|most_missed|pct(0) }} of such messages leaked to it, at least one of these would have leaked with a probability above 95 %. A smaller share could have been missed. {% endif %}{% else %}The same attack does succeed on an unprotected easy case, so the test could have seen a leak of this kind. {% endif %}It does not prove that there is none.
{% elif found == 'static' %}<b>This cannot be told from the test.</b> {{ of }}{{ were }} recovered, but {% if setting.informed %}the attacker, who is told of {{ setting.entry.protected_by or setting.entry.defence }}, makes no use of what else the method hides{% elif settings|selectattr('entry.attack', 'equalto', setting.entry.attack)|selectattr('informed')|list %}here the attack could not adapt to what the method or its defence hides{% else %}the attacker took no account of what the method or its defence hides{% endif %}. One who does may succeed, so this is no evidence of protection.
{% elif found == 'undecided' %}<b>The test gave no answer.</b> {{ of }}{{ were }} recovered, but {{ setting|plainly(scope.unit) or 'the attack is too weak' }}. Nothing follows from its failure.
{% elif found == 'void' %}<b>The test is not valid.</b> {{ (setting|plainly(scope.unit) or 'a check that must always succeed has failed')|sentence }} Nothing follows about the data, neither for better nor for worse.
{% elif found == 'to a malicious server' %}<b>A server that breaks the rules recovers data.</b> {{ of }}{{ were }} recovered or told from look-alikes, after the server had changed the network ({{ setting.entry.malicious_server }}). Nothing follows for a server that keeps to the rules.
{% endif %}
{% endmacro %}
{% set observers = {
  'server': ('whoever runs the server. It breaks the rules: it changed the network of the clients (' ~ config.malicious_server ~ '), keeps' if config.malicious_server else 'whoever runs the server. It follows the rules, but keeps') ~ ' every message that it sends and receives, and tries to recover the clients’ training ' ~ scope.unit ~ ' from them',
  'client_update': 'somebody on the client’s own machine who sees the result of local training as it is about to be sent, after all that the client’s defence does',
  'client_example': 'somebody on the client’s own machine who sees what training computes from a single ' ~ one ~ ', before the client’s defence acts on the finished result',
  'aggregate': 'whoever runs the server, where clients’ messages are added up before it sees them, and tries to recover the clients’ training ' ~ scope.unit ~ ' from the sums',
  'peer': 'another client of the federation, who follows the rules, and takes its own part off the common model to see what the others added',
  'outsider': 'somebody who has the finished model and sees no message of any client'} %}
<section id="words" class="whole" aria-labelledby="words-title">
<h2 id="words-title">How it was tested, and how sure it is</h2>
<div class="columns"><div>
<h3>What was tested</h3>
{% if not worst and told %}
<p>Clients trained a model together: method {{ config.method }} on {{ dataset }}. They kept their data. Nobody tried to recover them from what was sent.</p>
{% elif not worst and result.inference %}
<p>Clients trained a model together: method {{ config.method }} on {{ dataset }}. It was tested whether what they sent tells the classes of their data, and nothing else.</p>
{% elif not worst %}
<p>Nothing was tested for leaks. A model was trained with {{ run }}, and no attack was run.</p>
{% else %}
<p>Clients trained a model together: method {{ config.method }} on {{ dataset }}. They kept their data; what they {{ 'sent' if 'client_example' not in scope.vantages else 'computed' if scope.vantages|length == 1 else 'sent, and what they had computed before,' }} was attacked. {% for vantage in scope.vantages %}{{ 'The attacker is ' if loop.first else ' Another attacker is ' }}{{ observers.get(vantage|lower, 'an observer at ' ~ vantage) }}.{% endfor %}</p>
<ul class="plainlist">
<li>{{ scope.samples }} training {{ scope.unit if scope.samples != 1 else one }}{% if scope.clients %} of {{ scope.clients }} client{{ 's' if scope.clients != 1 }}{% endif %} {{ 'were' if scope.samples != 1 else 'was' }} attacked {% for round in scope.rounds %}{{ 'before training' if round == 0 else ('after round ' if 'probe' in scope.sources else 'in round ') ~ round }}{{ ' and ' if loop.revindex == 2 else ', ' if not loop.last }}{% endfor %}{% if scope.seeds > 1 %}, {{ scope.seeds }} times over with other random numbers{% endif %}.</li>
{% if 'probe' in scope.sources and scope.vantages != ('client_example',) %}<li>Messages made for the test were attacked: a client computes one from few examples and sends it the same way as a real one. This is the easier case for an attacker.</li>{% endif %}
{% if 'client_example' in scope.vantages %}<li>What training computes from one example was {{ 'attacked' if scope.vantages|length == 1 else 'attacked as well' }}. It was read on the client’s machine, for the test, and is never sent.</li>{% endif %}
{% if 'update' in scope.sources %}<li>Messages that training really sent were attacked.</li>{% endif %}
{% if plain_defence %}<li>The clients defended what they sent with {{ plain_defence }}.</li>{% endif %}
{% if given %}<li>The attacker was given: {{ given|map('trim', '.')|join('; ') }}.</li>{% endif %}
{% if withheld %}<li>It was not given: {{ withheld|map('trim', '.')|join('; ') }}.</li>{% endif %}
{% if worst.entry.label_accuracy is number %}<li>Of the labels, which it was not given, it found {{ worst.entry.label_accuracy|pct(0) }} by itself.</li>{% endif %}
{% if unused %}<li>It made no use of this: {{ unused|map('trim', '.')|join('; ') }}.</li>{% endif %}
{% if worst.entry.iterations == 0 %}<li>It needs no steps of search that could be limited.</li>{% elif worst.entry.iterations is number %}<li>For each attempt it was allowed {{ worst.entry.iterations }} step{{ 's' if worst.entry.iterations != 1 }}{% if worst.entry.restarts is number and worst.entry.restarts > 1 %} in each of {{ worst.entry.restarts }} searches{% else %} of search{% endif %}.</li>{% endif %}
</ul>
{% endif %}
{% if told %}<p>It was tested whether it can be told that single {{ 'patients' if told.unit == 'patient' else scope.unit }} were in the training data: {{ told|compared }} pairs of {{ told.clients }} client{{ 's' if told.clients != 1 }}{{ ' were compared' if ' of ' in told|compared }}, {{ told|rounds_read }}. The attack knew both of each pair with their {{ 'target value' if regression else 'class' }}, public data, and how the clients train. It did not know which of the two was trained on.</p>{% endif %}
<h3>What came out</h3>
{% if told %}<p>{{ membership_words(told)|trim }}</p>{% endif %}
{% if not worst and told %}
{% elif not worst and result.inference %}
<p id="outcome">{{ decided.headline }}</p>
{% elif not worst %}
<p id="outcome"><b>Nothing is known about leaks.</b> A useful model is no sign that it keeps its data private.</p>
{% else %}
<p id="outcome">{{ outcome(worst)|trim }}{% if elsewhere and elsewhere.outcome == 'identified' %} With {{ size(elsewhere) }}, however, {{ pointing(elsewhere)|trim }}.{% elif elsewhere %} With {{ size(elsewhere) }}, however, it does leak: {{ elsewhere.recovered }} of {{ elsewhere.total }} training {{ scope.unit }} {{ 'was' if elsewhere.recovered == 1 else 'were' }} recovered.{% endif %}</p>
{% set twin = twins[worst.key] %}{% if twin %}<p>The same attack by somebody who {{ 'knows' if twin.informed else 'does not know' }} that {{ worst.entry.protected_by or worst.entry.defence }} is used: {{ twin.recovered or 'none' }} of {{ twin.total }} recovered.</p>{% endif %}
{% if settings|length > 1 %}<p>That is the {{ 'worst' if worst.entry.verdict == 'leaks' else 'least reassuring' }} of {{ targets|length }} test{{ 's' if targets|length != 1 }}{% if settings|length > targets|length %}; {{ settings|length - targets|length }} more tried other sizes{% endif %}{{ but_for_those_aside() }}. Their verdicts: {% for verdict, count in scope.verdicts.items() %}{{ count }} × “{{ verdict }}”{{ ', ' if not loop.last }}{% endfor %}.</p>{% endif %}
{% if worst.entry.identification_rate is number and worst.outcome != 'void' %}<p>In {{ worst.entry.identification_rate|pct(0) }} of the cases the result pointed to the right {{ one }} among look-alikes{% if worst.entry.identification_null is number %}; chance alone gives {{ chance(worst) }}{% endif %}.</p>{% endif %}
{% if worst.entry.candidate_test and worst.outcome not in ('void', 'reconstructed', 'message') and worst.cause != 'candidates' %}<p>Other {{ scope.unit }} of the same clients and classes were held against {{ worst.entry.candidate_test.messages }} messages. {{ worst.entry.candidate_test.first or 'None' }} of these {{ 'is' if worst.entry.candidate_test.first == 1 else 'are' }} explained best by the true {{ scope.unit }}; chance alone gives {{ worst.entry.candidate_test.null|pct }}.</p>{% endif %}
{% if worst.entry.exact_match and worst.outcome != 'void' %}{% set match = worst.entry.exact_match %}{% set cells = match.cells is number %}<p>{{ (match.cells if cells else match.features)|pct(0) }} of the {{ 'bytes of the texts' if scope.unit == 'texts' else 'cells of the records' if cells else 'values in the records' }} were found{{ ' (numbers within 5 % of their range)' if cells else ' exactly' }}; guessing the most usual {{ 'byte of each place' if scope.unit == 'texts' else 'value of each column' if cells else 'value' }} gives {{ (match.floor_cells if cells else match.floor)|pct(0) }}.</p>{% endif %}
{% endif %}
<h3>How sure that is</h3>
{% if told %}<p>{{ {'leaks': 'That members are told more often than a coin explains is sure: the intervals allow for all statistics and clients that were tried.', 'no leak found': 'A smaller effect, or a stronger attacker, may have been missed.'}.get(told.verdict, 'Of membership nothing is sure.') }}</p>{% endif %}
{% if not worst and told %}{% elif not worst and result.inference %}<p>{{ result.inference[0].reason }}</p>{% elif not worst %}<p>There is nothing to be sure of.</p>
{% elif worst.outcome == 'message' %}<p>That the other client’s message can be computed follows by arithmetic, whatever an attack makes of it. How much a stronger attacker recovers from it is not known.</p>
{% elif worst.outcome == 'reconstructed' %}<p>What was recovered is a fact: it was compared with the original. {{ sureness(worst)|trim }} A stronger attacker may reach more.</p>
{% elif worst.outcome in ('undecided', 'void') %}<p>Not sure at all. The number above speaks of the attack, not of the data.</p>
{% elif worst.outcome == 'identified' %}<p>That it is more than chance is sure: had nothing come through, a result like this in any test of this run would have a probability of at most 1 %. How much a stronger attacker learns is not known.</p>
{% else %}<p>{{ sureness(worst)|trim or 'Only ' ~ worst.total ~ ' ' ~ scope.unit ~ ' were attacked: a rare leak would not have been seen.' }} This counts chance in the choice of {{ 'messages' if worst.entry.messages else scope.unit }} only; a stronger attacker is not counted.</p>{% endif %}
{% if failed %}<p>Not everything gave a result: {{ failed }}. {{ 'An attempt without a result counts as one that recovered nothing.' if worst }}</p>{% endif %}
</div><div>
{% if asks|length > 6 %}<h3 id="more">More to ask of the federation</h3>
<ol class="plainlist asks" start="7">{% for question, because in asks[6:] %}<li><b>{{ question|flags }}</b> {{ because|flags }}</li>{% endfor %}</ol>{% endif %}
<details class="paper"><summary>What the verdicts mean</summary>
<dl class="sentences">
{% if told %}<div><dt>Leaks, of membership</dt><dd>Those who were there are told from others more often than a coin explains. That is proof.</dd></div>
<div><dt>No leak found, of membership</dt><dd>They are told no better than by a coin, by a statistic that is able to tell them. That is not proof of safety.</dd></div>
<div><dt>Undecided, of membership</dt><dd>There were too few pairs, the statistic is not shown to work here, or it tells a little more than a coin and less than a leak.</dd></div>{% endif %}
{% if worst or not told %}<div><dt>Leaks</dt><dd>At least one training {{ one }} was recovered. That is proof.</dd></div>
<div><dt>Leaks (identified)</dt><dd>Nothing was recovered, but the true {{ one }} can be told from look-alikes more often than by chance. That is a leak, too, of less than the whole {{ one }}.</dd></div>
{% if config.malicious_server %}<div><dt>Leaks (to a malicious server)</dt><dd>One or the other, but in a network that the server had changed against the rules. No verdict on an honest server.</dd></div>{% endif %}
<div><dt>No leak found</dt><dd>Nothing was recovered by an attack that knew the protection, and that works on the same clients without it and at its weakest. That is not proof of safety.</dd></div>
<div><dt>Undecided</dt><dd>Nothing was recovered, but the attack is too weak, is not shown to work here, or gave too few results to mean anything. Where nothing protects the data, a failed attack is always this.</dd></div>
<div><dt>Undecided (static)</dt><dd>The attack did not reckon with all of the protection.</dd></div>
<div><dt>Undecided (void)</dt><dd>The check of the measurement failed, or the messages are not what the test takes them for.</dd></div>{% endif %}
</dl></details>
</div></div>
"""
