"""Section on the sittings of a run: command, time, code, machine and packages, folded."""

# ruff: noqa: E501

SITTINGS = """\
{% macro sitting(entry, title) %}
<details><summary>{{ title }}{% if entry.began %}: {{ entry.began }} to {{ entry.ended or 'no end, it was cut short' }}{% endif %}</summary>
{% if entry.command %}<pre><code>{{ entry.command }}</code></pre>{% endif %}
{% set git = entry.git %}{% set machine = entry.machine or {} %}{% set packages = entry.packages or {} %}
<div class="columns"><div><h4>Code</h4>{{ facts({'sources': entry.code, 'lock': entry.lock, 'git commit': git.commit if git else 'none: no repository, or no git', 'tree': 'changed since that commit' if git and git.dirty else 'as committed' if git else none, 'python': entry.python, 'packages': packages.count ~ ' in ' ~ packages.file if packages else none, 'their SHA-256': packages.sha256, 'working folder': entry.folder}) }}</div>
<div><h4>Machine</h4>{{ facts({'hardware': machine.hardware, 'system': machine.system, 'cores': machine.cores ~ ' of ' ~ machine.cores_of_machine if machine else none, 'memory': machine.memory_bytes|filesizeformat if machine else none, 'GPUs': machine.gpus|map(attribute='name')|join(', ') if machine.gpus else none, 'threads of torch': machine.threads.torch if machine.threads else none, 'torch': machine.torch.version if machine.torch else none, 'instructions': machine.torch.instructions if machine.torch else none, 'linear algebra': machine.blas|map(attribute='internal_api')|join(', ') if machine.blas else none}) }}</div></div>
{% for code in entry.outside or [] %}<h4>{{ code.kind }} from outside: <code>{{ code.name }}</code></h4>{{ facts({'file': code.file, 'SHA-256': code.sha256, 'git commit': code.git.commit if code.git else 'none', 'tree': 'changed since that commit' if code.git and code.git.dirty else 'as committed' if code.git else none, 'files in all': code.files|length}) }}
{% endfor %}</details>
{% endmacro %}
{% macro sittings(origin) %}
{% if origin.sittings or origin.recorded_in %}<h3>When, where and with what it ran</h3>
{% set data = origin.data or {} %}{% set seeds = origin.seeds or {} %}
{{ facts({'seed': seeds.run, 'licence of the data': data.licence or 'unknown', 'to be cited': data.citation or 'unknown'}) }}
{% for entry in origin.recorded_in or [] %}{{ sitting(entry, 'Recorded in sitting ' ~ loop.index) }}{% endfor %}
{% for entry in origin.sittings or [] %}{{ sitting(entry, 'This audit' if origin['from'] else 'Sitting ' ~ loop.index) }}{% endfor %}{% endif %}
{% endmacro %}
"""
