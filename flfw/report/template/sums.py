"""Section on sums over clients: what secure aggregation would have hidden of the recorded uploads."""

# ruff: noqa: E501

SUMS = """\
{% if result.sums %}{% set summed = result.sums %}{% set took = summed.participation %}{% set peer = summed.peer %}
<section id="sums" aria-labelledby="sums-title">
<h2 id="sums-title">What a sum would hide</h2>
<p>Secure aggregation did not run here. Computed from the recorded uploads: what a server that saw only the sum of each round’s updates would still learn of one client, and what another client learns.</p>
<h3>Another client</h3>
<p><strong>{{ peer.verdict|capitalize }}</strong>: {{ peer.why }}{% if peer.check %} Checked in round {{ peer.check.round }}: the update of client {{ peer.check.client }}, so computed, differs from the recorded one by {{ peer.check.largest_difference|plain }} at most, of numbers up to {{ peer.check.largest_change|plain }}.{% endif %}</p>
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
