"""Runs that sites have agreed to, their policies, and the honest questions and answers of these runs."""

import hashlib
import re
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from flfw.deploy.allowed_settings import pins_of
from flfw.deploy.policy import Policy
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.wire import broadcast
from flfw.plans.run_plan import plan, without_auto
from flfw.privacy.filter import spent
from flfw.privacy.mechanism import Mechanism
from tests.support import sites_at_work as sites
from tests.support.asking import Question

RICH, POOR, PRIVATE = 0, 1, 2  # sites: two by their budgets, and one with private tensors
COUNTED = without_auto(Experiment(
    method="fed_cdp", net="linear", clients=sites.SITES, rounds=3, local_epochs=1, split="sampled", metrics="none",
    set=("sampled.train=50", "noise_source=secure"), attack=("none",), on_client_failure="drop",
))  # fmt: skip
KEPT = replace(COUNTED, method="hyperfl", net="lenet", metrics="all", set=("sampled.train=50", "hidden=16"))
AGREED = {RICH: COUNTED, POOR: COUNTED, PRIVATE: without_auto(KEPT)}
REASON = re.compile(
    r"its process died|this site's policy [^\n]{1,2000}"
    r"|<class 'flfw\.dp\.budget\.BudgetExceededError'>:<'this site's budget: [^\n]{1,500}'>"
    r"|<class 'flfw\.messages\.(reasons\.RequestDeclinedError|sharing\.SharingViolationError)'>:<'[^\n]{1,900}'>"
)


def honest_question(run: int, site: int, app: bytes) -> Question:
    """Return an honest question to a site, in a run of its own."""
    config = {"round": 1, "client": site, "state_version": 0, "experiment": "aaaa", "code": code_hash(), "deadline": 60}
    settings, arrays = asked_of(AGREED[site])
    return Question(run, dict(arrays), config, dict(settings), app, hash_of(app))


def hash_of(app: bytes) -> str:
    return hashlib.sha256(app).hexdigest()


@cache
def asked_of(experiment: Experiment) -> tuple[dict[str, Any], ArrayRecord]:
    """Return the settings of an honest run, and its first broadcast."""
    run_plan = plan(experiment)
    model = run_plan.client.build_model()
    downloads = run_plan.client.method.shared(model, run_plan.client.settings).downloads
    return run_plan.experiment.to_run_config(), broadcast(model, downloads)


def policy_of(site: int, app: bytes) -> Policy:
    agreed = AGREED[site]
    three = 1.001 * spent([(Mechanism(6.0, 3), 1)], 100.0, 1e-5)
    budget = {RICH: 60.0, POOR: three}.get(site, inf)
    numbers, uploads = ("all", ("hypernet.*",)) if site == PRIVATE else ("none", ("classifier.*",))
    pins = pins_of(agreed, agreed.dataset)
    return Policy((hash_of(app),), uploads, 1.0, epsilon=budget, metrics=numbers, run=pins)  # type: ignore[arg-type]


def require_agreed(content: RecordDict, kind: str, site: int) -> None:
    """Require that an answer holds the agreed tensors alone, and no number where none was agreed on."""
    if kind == "query":
        assert list(content) == ["about"]
        return
    names = {name for record in content.array_records.values() for name in record}
    assert names == (set() if kind == "evaluate" else set(asked_of(AGREED[site])[1]))
    assert not content.config_records
    assert site == PRIVATE or not any(content.metric_records.values())
