"""Sections on the run: its training, the provenance of its numbers, and their limits."""

# ruff: noqa: E501

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
{{ sittings(origin) }}
<h3>Files of the run</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Files"><table><thead><tr><th scope="col" class="text">Name</th><th scope="col">Files</th><th scope="col">Size</th></tr></thead><tbody>{% for name, count, bytes in files %}<tr><th scope="row"><code>{{ name }}</code></th><td>{{ count }}</td><td>{{ bytes|filesizeformat }}</td></tr>{% endfor %}</tbody></table></div>
</section>
"""

LIMITS = """\
<section id="limits" aria-labelledby="limits-title">
<h2 id="limits-title">What this does not show</h2>
<ul class="plainlist">
{% if told %}<li>That no stronger attack tells who was there. Only {{ membership|map(attribute='attack')|unique|join(', ') }} tried, {{ told|where_told }}. Members that were told are proof; that none were told is only the absence of one.</li>{% endif %}
{% if not settings and told %}<li>Whether training {{ scope.unit }} can be recovered from what clients send: no attack tried.</li>
{% elif not settings and result.inference %}<li>Whether training {{ scope.unit }} can be recovered, or told to have been there: no attack tried.</li>
{% elif not settings %}<li>Anything about leakage. High accuracy and little traffic are not privacy; run the audit to learn more.</li>
{% else %}
<li>That stronger attacks fail. Only {{ settings|map(attribute='name')|unique|join(', ') }} ran, with the budget above. A leak that was found is proof; a leak that was not found is only the absence of one.</li>
{% if settings|selectattr('entry.verdict', 'equalto', 'no leak found')|list %}<li>That “no leak found” means no leak. It was shown that the attack works without the protection and through its mildest form. Between that form and the real one nothing was shown: an attack may cope with little of a protection and fail at more, where a better one does not. Its objective may also be the wrong one: what it minimises need not be smallest at the true {{ scope.unit }}.</li>{% endif %}
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
