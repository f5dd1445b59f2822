"""First page: the verdict in plain words, what was not tested, what to ask, and the questions of an authority."""

# ruff: noqa: E501

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
