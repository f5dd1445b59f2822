"""Section on the privacy that may be claimed: epsilons, and measured lower bounds."""

# ruff: noqa: E501

PRIVACY = """\
{% if result.privacy %}
{% set seeded = result.privacy|selectattr('noise', 'equalto', 'seed')|list %}{% set exact = result.privacy|rejectattr('counted', 'equalto', 'as published')|list %}{% set printed = result.privacy|selectattr('counted', 'equalto', 'as published')|list %}{% set lowers = exact|selectattr('lower')|list %}
<section id="privacy" aria-labelledby="privacy-title">
<h2 id="privacy-title">Privacy that may be claimed</h2>
<p>An ε bounds, for every attack and also for those that nobody has thought of, how much one unit can change what one adversary sees. It holds for that unit, against that adversary, and only while its assumptions do. The attacks measure from below: the two answer different questions.{% if seeded %} <strong>The noise of this run comes from its seed: whoever has the seed can take it off. The figures are those of the same run with noise_source=secure.</strong>{% endif %}</p>
<div class="scroll" tabindex="0" role="region" aria-label="Privacy that may be claimed"><table><thead><tr><th scope="col" class="text">Protected: one</th><th scope="col" class="text">Against</th><th scope="col">ε at most</th>{% if lowers %}<th scope="col">ε at least</th>{% endif %}<th scope="col">δ</th><th scope="col">Guessed right, at most</th><th scope="col" class="text">Accountant</th><th scope="col">Rounds</th><th scope="col" class="text">Rests on</th></tr></thead>
<tbody>{% for line in exact %}<tr><th scope="row" class="text">{{ line.unit|plain }}</th><td class="text">{{ line.adversary|plain }}</td><td>{{ line.epsilon|above }}</td>{% if lowers %}<td>{{ (line.lower or {}).epsilon|below }}</td>{% endif %}<td>{{ line.delta|plain }}</td><td>{{ line.certainty|above_pct }}</td><td class="text">{{ line.accountant|plain }}</td><td>{{ line.rounds|plain }}</td><td class="text wrap"><details><summary>{{ line.assumptions[0] if line.assumptions|length == 1 else line.assumptions|length ~ ' assumptions' }}</summary><ul>{% for sentence in line.assumptions %}<li>{{ sentence }}</li>{% endfor %}</ul></details></td></tr>
{% endfor %}</tbody></table></div>
<p class="caption soft">Guessed right: how often, at most, the adversary is right on whether the unit was there, if both were equally likely before; 50 % is a coin.{% for line in lowers %} At least: of {{ line.lower.canaries|plain }} canaries {{ line.lower.correct|plain }} of {{ line.lower.guesses|plain }} guesses were right, so that with {{ line.lower.confidence|pct(0) }} confidence no smaller ε is true against {{ 'the ' ~ line.adversary if line.adversary != 'another client' else line.adversary }}.{% endfor %}{% if exact|selectattr('adversary', 'equalto', 'aggregate')|list %} Aggregate: who would see nothing of a round’s updates but their sum, as with secure aggregation, which did not run here.{% endif %} Probes of the audit{{ ' and accuracies' if (result.config or {}).metrics not in ('none', 'private') }} are outside the count: they are for whoever runs the experiment.</p>
{% if printed %}<h3>As the method’s paper counts</h3>
<p class="soft">Kept beside the figures above, never in their place: what the paper takes for granted does not hold in this run.</p>
<div class="scroll" tabindex="0" role="region" aria-label="As the method’s paper counts"><table><thead><tr><th scope="col" class="text">Protected: one</th><th scope="col">ε</th><th scope="col">δ</th><th scope="col" class="text">Accountant</th><th scope="col" class="text">Takes for granted</th></tr></thead>
<tbody>{% for line in printed %}<tr><th scope="row" class="text">{{ line.unit|plain }}</th><td>{{ line.epsilon|num(4) }}</td><td>{{ line.delta|plain }}</td><td class="text">{{ line.accountant|plain }}</td><td class="text wrap">{{ line.assumptions|join(' ') }}</td></tr>
{% endfor %}</tbody></table></div>{% endif %}
</section>
{% endif %}
"""
