"""Words of the page: what the terms of its figures mean, where they first stand and in a list."""

# ruff: noqa: E501

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
  ('Ladder, rung', 'Easier cases that an attack must solve before its failure counts.'),
) %}<div><dt>{{ word }}</dt><dd>{{ meaning }}</dd></div>
{% endfor %}</dl></details>
</section>
"""
