"""Audits of membership whose answer is known before they run: whole runs on digits, or what was recorded of one.

Each expected verdict follows from the reason beside it and not from having run the code.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor

from flfw.adversary.membership_attack import MembershipAttack, MembershipView
from flfw.attacks.membership import Membership
from flfw.audit.auditor import Auditor
from flfw.data.membership_pairs import MemberPairs, draw_pairs
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.plans.run_plan import plan, without_auto
from flfw.recording.manifest import rewrite
from flfw.rng import numpy_generator
from flfw.runs import run as whole
from flfw.task.defence import Defence
from tests.support.planned import clients_and_audit
from tests.support.silent_defences import SendsNothing
from tests.support.small_runs import plug_in, tiny

Fields = dict[str, Any]
ANY = ""  # of the causes: the controls decide, which are near their bound, or how little of a true effect is seen
LEAKS, NOTHING, OPEN = "leaks", "no leak found", "undecided"
CLAIM = {"unit": "example", "adversary": "server", "delta": 1e-6, "accounting": "here"}


@final
class SendsNoise(Defence):
    """Replaces whatever leaves the client by noise."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: torch.randn(value.shape, generator=rng) for name, value in update.items()}


@final
class Reversed(MembershipAttack):
    """Scores members lower."""

    def scores(self, view: MembershipView, rng: torch.Generator) -> dict[str, Tensor]:
        scores = Membership().scores(view, rng)
        return {name: -scores[name] for name in ("cosine", "whitened")} | {"label_only": scores["label_only"]}


@final
class OneStatistic(MembershipAttack):
    """Gives one statistic, for which no interval is widened by others."""

    def scores(self, view: MembershipView, rng: torch.Generator) -> dict[str, Tensor]:
        scores = Membership().scores(view, rng)
        return {name: scores[name] for name in ("whitened", "label_only")}


BY_HEART: Fields = {"clients": 40, "images": 40, "lr": 0.1, "local_epochs": 50, "batch_size": 20}
ONE_STEP: Fields = {"clients": 20, "images": 20, "lr": 0.1, "batch_size": 50}


def asked(out: Path, **fields: Any) -> Experiment:
    """Ask for a run of one round on digits, with an attack on membership."""
    common = {"dataset": "digits", "net": "mlp", "split": "iid", "attack": ("membership",), "audit_rounds": "1"}
    return tiny(out, **{**common, **fields})


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fields], Path]:
    """Return the folder of a run, which is made once."""
    done: dict[str, Path] = {}

    def run(fields: Fields) -> Path:
        key = repr(sorted(fields.items()))
        if key not in done:
            done[key] = whole.run(asked(tmp_path_factory.mktemp("known") / "run", **fields))
        return done[key]

    return run


def items(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the items of an attacker who is told of nothing that hides the data, by statistic."""
    rows = json.loads((folder / "result.json").read_text())["membership"]
    return {item["statistic"]: item for item in rows if item["adaptation"] is None}


# --- changes of what was recorded, or of what the trusted side holds ---


def sends_anothers(*clients: int) -> Callable[[Path], None]:
    """Each of these clients has sent what the next of them sent."""

    def doctor(folder: Path) -> None:
        observations = folder / "observations"
        rows = [json.loads(row) for row in (observations / "manifest.jsonl").read_text().splitlines()]
        lines = {row["client"]: row for row in rows if row.get("type") == "train"}
        sent = [lines[client]["sent_by_client"] for client in clients]
        for client, other in zip(clients, sent[1:] + sent[:1], strict=True):
            lines[client]["sent_by_client"] = other
        rewrite(observations, rows)

    return doctor


def as_recorded(folder: Path) -> None:
    """Nothing is changed."""


def marks_swapped(pairs: MemberPairs, labels: np.ndarray) -> MemberPairs:
    """The trusted side takes the held-out example of each pair for its member."""
    return MemberPairs(pairs.held_out, pairs.members)


def of_two_classes(pairs: MemberPairs, labels: np.ndarray) -> MemberPairs:
    """The held-out examples are those of the pair whose class is half of all classes further on."""
    order = np.argsort(labels[pairs.members], kind="stable")
    return MemberPairs(pairs.members[order], np.roll(pairs.held_out[order], len(order) // 2))


def untrained(pairs: MemberPairs, labels: np.ndarray) -> MemberPairs:
    """Members, too, are examples that were held out."""
    return draw_pairs(pairs.held_out, labels[pairs.held_out], numpy_generator(0, "untrained pairs"))


@dataclass(frozen=True)
class MembershipSetup:
    """Audit of known answer.

    Attributes:
        expected: verdict and cause of each statistic that is meant.
        why: it must be this one.
        fields: of the run.
        doctor: what is changed in the recordings before they are audited again.
        pairs: what is changed in the pairs of the trusted side.
        privacy: epsilons that the run claims against the server.
    """

    expected: Mapping[str, tuple[str, str]]
    why: str
    fields: Fields
    doctor: Callable[[Path], None] | None = None
    pairs: Callable[[MemberPairs, np.ndarray], MemberPairs] | None = None
    privacy: Sequence[float] = field(default=())


def audited_again(setup: MembershipSetup, folder: Path, path: Path) -> dict[str, dict[str, Any]]:
    """Return the items of an audit of a changed copy of a run."""
    source, out = path / "run", path / "again"
    shutil.copytree(folder, source)
    out.mkdir()
    (setup.doctor or as_recorded)(source)
    experiment = without_auto(asked(folder, **setup.fields))
    task = plan(experiment).task.load(None)
    labels = np.asarray(task.dataset.train_y)
    all_drawn = [drawn for drawn in task.pairs or () if isinstance(drawn, MemberPairs)]
    pairs = tuple(setup.pairs(drawn, labels) if setup.pairs else drawn for drawn in all_drawn)
    again = dataclasses.replace(task, pairs=pairs)
    with Auditor(*clients_and_audit(plan(dataclasses.replace(experiment, out=out))), again, source, out) as auditor:
        auditor.run(privacy=[{**CLAIM, "epsilon": epsilon} for epsilon in setup.privacy])
    return {item["statistic"]: item for item in auditor.membership}


HIDDEN = (OPEN, "static")
METHODS: dict[str, Fields] = {
    "fedper": {**ONE_STEP, "method": "fedper"},
    "hyperfl": {"method": "hyperfl", "net": "lenet", "dataset": "digits", "clients": 2, "images": 2},
    "fedcg": {"method": "fedcg", "net": "lenet5", "clients": 2, "images": 2},
    "dcs2": {**ONE_STEP, "defence": "dcs2"},
}
QUICK: dict[str, MembershipSetup] = {
    "one step of a fresh network": MembershipSetup(
        {"whitened": (LEAKS, "pairs"), "trajectory": (LEAKS, "pairs")}, "one gradient of 36 examples", ONE_STEP
    ),
    "the marks are the wrong way round": MembershipSetup(
        {"whitened": (LEAKS, "reversed")}, "the other of each pair was trained on", ONE_STEP, pairs=marks_swapped
    ),
    "the members were not trained on either": MembershipSetup(
        {"cosine": (OPEN, "few"), "whitened": (OPEN, ANY)}, "all candidates were held out", ONE_STEP, pairs=untrained
    ),
    "a false claim": MembershipSetup(
        {"whitened": (LEAKS, "pairs")}, "an epsilon of 0.01 allows no such guesses", ONE_STEP, privacy=[0.01]
    ),
}  # fmt: skip
SLOW: dict[str, MembershipSetup] = {
    "one client among twenty leaks": MembershipSetup(
        {"whitened": (LEAKS, "client")},
        "the others have sent one another's updates, in which their members are not",
        {**ONE_STEP, "attack": (plug_in(OneStatistic),)},
        sends_anothers(*range(1, 20)),
    ),
    "a claim that may be true": MembershipSetup(
        {"whitened": (LEAKS, "pairs")}, "an epsilon of 100 allows any guesses", ONE_STEP, privacy=[100.0]
    ),
    "all clients send another's update": MembershipSetup(
        {"cosine": (OPEN, "few"), "whitened": (OPEN, "few")},
        "nobody's members are behind the message of its name",
        ONE_STEP,
        sends_anothers(*range(20)),
    ),
    "pairs of two classes": MembershipSetup(
        {"cosine": (OPEN, "few")},
        "their labels tell nearly all of them apart; these are not counted",
        ONE_STEP,
        pairs=of_two_classes,
    ),
    "few examples are learnt by heart": MembershipSetup(
        {"cosine": (LEAKS, "pairs"), "whitened": (LEAKS, "pairs")}, "17 examples a client, 50 epochs", BY_HEART
    ),
    "weights that do not move": MembershipSetup(
        {"cosine": (OPEN, "null"), "whitened": (OPEN, "few")},
        "a step of 1e-12 changes no weight, so that the update is zero",
        {**ONE_STEP, "lr": 1e-12},
    ),
    "zeros instead of updates": MembershipSetup(
        {"cosine": HIDDEN, "whitened": HIDDEN},
        "nothing is sent",
        {**ONE_STEP, "defence": plug_in(SendsNothing)},
    ),
    "noise instead of updates": MembershipSetup(
        {"cosine": HIDDEN, "whitened": HIDDEN},
        "what is sent says nothing, and no statistic was told",
        {**ONE_STEP, "defence": plug_in(SendsNoise)},
    ),
    "huge noise": MembershipSetup(
        {"cosine": HIDDEN, "whitened": HIDDEN},
        "noise of 10 on weights below 1, of which no statistic was told",
        {**ONE_STEP, "defence": "dp_gaussian", "set": ("dp_gaussian.std=10",)},
    ),
    "the attack scores the wrong way round": MembershipSetup(
        {"whitened": (LEAKS, "reversed")},
        "who turns its scores round tells members",
        {**ONE_STEP, "attack": (plug_in(Reversed),)},
    ),
    "two clients with two pairs each": MembershipSetup(
        {"cosine": (OPEN, "easy"), "whitened": (OPEN, "easy")},
        "four pairs show nothing, and leave no examples for controls",
        {**ONE_STEP, "clients": 2, "images": 2, "membership_pairs": "2"},
    ),
    "much data": MembershipSetup(
        {"cosine": (OPEN, ANY), "loss_drop": (OPEN, ANY)},
        "one epoch over 719 examples a client leaves little of each in a cosine or a loss",
        {"clients": 2, "images": 2, "batch_size": 50, "membership_pairs": "300"},
    ),
    "Fed-CDP": MembershipSetup(
        {"whitened": HIDDEN},
        "noise on each example's gradient, of which no statistic was told",
        {**ONE_STEP, "method": "fed_cdp"},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_run_of_known_answer_gets_it(name: str, ran: Callable[[Fields], Path], tmp_path: Path) -> None:
    answer(QUICK[name], ran, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SLOW)
def test_a_longer_run_of_known_answer_gets_it(name: str, ran: Callable[[Fields], Path], tmp_path: Path) -> None:
    answer(SLOW[name], ran, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", METHODS)
def test_no_method_is_acquitted_by_statistics_that_do_not_know_it(name: str, ran: Callable[[Fields], Path]) -> None:
    """Parts are private or generated, or another example is sent beside: an able statistic must know that."""
    by_statistic = items(ran(METHODS[name]))
    assert by_statistic and all(item["verdict"] != NOTHING for item in by_statistic.values())
    assert all((item["accuracy_gap"] is None) == (name != "dcs2") for item in by_statistic.values())


def test_one_pair_is_refused(ran: Callable[[Fields], Path]) -> None:
    with pytest.raises(InputError, match="2 to 1000000, got membership_pairs=1"):
        ran({**ONE_STEP, "membership_pairs": "1"})


def answer(setup: MembershipSetup, ran: Callable[[Fields], Path], path: Path) -> None:
    """Fail unless the items that are meant have the expected verdict, and claims are compared with what was found."""
    folder = ran(setup.fields)
    changed = setup.doctor or setup.pairs or setup.privacy
    judged = audited_again(setup, folder, path) if changed else items(folder)
    got = {n: (judged[n]["verdict"], cause and judged[n]["cause"]) for n, (_, cause) in setup.expected.items()}
    assert got == setup.expected, {name: judged[name]["reason"] for name in setup.expected}
    for claimed in setup.privacy:
        item = judged["whitened"]
        assert (item["claimed_epsilon"], item["epsilon_low"] > claimed) == (claimed, claimed < 1)
