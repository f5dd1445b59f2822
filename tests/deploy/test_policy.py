"""A site's own rules: the file they stand in, and what they let in and out."""

import hashlib
import inspect
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime import run_clientapp

from flfw.deploy import guard
from flfw.deploy.allowed_settings import AllowedSettings, pins_of
from flfw.deploy.node_config import announcements, remarks
from flfw.deploy.policy import ANY, Policy
from flfw.dp.budget import BudgetExceededError
from flfw.errors import DIED, InputError
from flfw.experiment import Experiment
from flfw.files.earlier_names import renames
from flfw.messages.reasons import WITHHELD, RequestDeclinedError
from flfw.messages.sharing import SharingViolationError

APP = b"an app's bundle"
POLICY = Policy((hashlib.sha256(APP).hexdigest(),), ("net.*", "theta"), max_upload_mb=0.001)
STRICT = replace(POLICY, epsilon=2.0, delta=1e-6, unit="patient", patient_examples=3, metrics="none")
SOUND = f'allowed_apps = ["{POLICY.allowed_apps[0]}"]\nallowed_uploads = ["net.*"]\nmax_upload_mb = 5\n'


def answer(*records: Any, error: str | None = None) -> Message:
    """What a site would send; the records' names are a, b, c."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    if error is not None:
        return Message(Error(2, error), reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))
    return Message(RecordDict(dict(zip("abc", records, strict=False))), dst_node_id=1, message_type="train")


def arrays(*names: str) -> ArrayRecord:
    return ArrayRecord({name: Array(np.zeros(3, np.float32)) for name in names})


# --- the file ------------------------------------------------------------------------------------------------------


def test_the_file_says_what_the_policy_is(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    for policy in (
        POLICY,
        replace(
            POLICY, allowed_apps=(ANY,), allowed_uploads=(), metrics="none", allow_recording=True, audit_examples=(4, 0)
        ),
        replace(POLICY, allow_malicious_server=True, allow_seeded_defence=True, reject_suspicious_weights=True),
        replace(POLICY, error_detail="all", min_examples=20, max_messages=40, allowed_plugins=("a.b:C", "d:E")),
        STRICT,
    ):
        path.write_text(policy.text())
        assert Policy.read(path) == policy
    assert all("#" in line for line in POLICY.text().splitlines())


def test_what_is_not_said_is_the_stricter_choice(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(SOUND)
    result = Policy.read(tmp_path / "policy.toml")
    assert (result.max_upload_mb, result.budget, result.allow_recording, result.error_detail) == (5, None, False, "own")


DAMAGED = {
    "": "allowed_apps, allowed_uploads and max_upload_mb",
    "apps = [": "none that can be read",
    SOUND + "max_upload_mb = 6\n": "none that can be read",
    SOUND + "upload = []\n": "got upload",
    SOUND.replace("allowed_uploads", "#"): "missing=allowed_uploads",
    SOUND.replace('["net.*"]', '"net.*"'): "a list of words for allowed_uploads",
    SOUND.replace('["net.*"]', "[1]"): "a list of words for allowed_uploads",
    SOUND.replace("= 5", '= "5"'): "a number for max_upload_mb",
    SOUND.replace("= 5", "= true"): "a number for max_upload_mb",
    SOUND.replace("= 5", "= 0"): "0 < max_upload_mb < inf",
    SOUND.replace("= 5", "= nan"): "0 < max_upload_mb < inf",
    SOUND + "least_noise = 8.0\n": "epsilon, delta and unit in ",
    SOUND + 'epsilon = 0\nmetrics = "none"\n': "epsilon > 0",
    SOUND + 'epsilon = nan\nmetrics = "none"\n': "epsilon > 0, got",
    SOUND + 'epsilon = "2"\n': "a number for epsilon",
    SOUND + 'epsilon = 2\ndelta = 1.0\nmetrics = "none"\n': "0 < delta < 1",
    SOUND + 'epsilon = 2\nunit = "server"\nmetrics = "none"\n': "unit among example, patient, client",
    SOUND + 'epsilon = 2\nunit = "patient"\nmetrics = "none"\n': "patient_examples >= 1",
    SOUND + 'epsilon = 2\nunit = "patient"\npatient_examples = 1.5\nmetrics = "none"\n': "a whole number in",
    SOUND + "epsilon = 2\n": "metrics=none or private with an epsilon",
    SOUND + 'metrics = "private"\n': "an epsilon with metrics=private",
    SOUND + 'metrics = "few"\n': "metrics among all, private, none",
    SOUND + 'error_detail = "few"\n': "error_detail among own, all",
    SOUND + 'epsilon = 2\nmetrics = "none"\nerror_detail = "all"\n': "error_detail=own with an epsilon",
    SOUND + 'allowed_plugins = "a.b:C"\n': "a list of words for allowed_plugins",
    SOUND + 'allowed_plugins = ["a.b"]\n': "allowed_plugins as package.module:Class, got",
    SOUND + "min_examples = 1.5\n": "a whole number in",
    SOUND + "min_examples = -1\n": "min_examples >= 0",
    SOUND + "max_messages = -1\n": "max_messages >= 0",
    SOUND + 'max_messages = "3"\n': "a number for max_messages",
    SOUND.replace(POLICY.allowed_apps[0], ANY) + 'epsilon = 2\nmetrics = "none"\n': "as SHA-256 with an epsilon",
    SOUND + 'allow_recording = "no"\n': "true or false",
    SOUND + "allow_malicious_server = 1\n": "true or false",
    SOUND + 'allow_seeded_defence = "no"\n': "got allow_seeded_defence=no",
    SOUND + 'reject_suspicious_weights = "yes"\n': "got reject_suspicious_weights=yes",
    SOUND + "audit_examples = [1]\n": "allow_recording = true with audit_examples",
    SOUND + "allow_recording = true\naudit_examples = 1\n": "a list of whole numbers for audit_examples",
    SOUND + "allow_recording = true\naudit_examples = [true]\n": "whole numbers for audit_examples",
    SOUND + "allow_recording = true\naudit_examples = [0, -1]\n": "audit_examples >= 0, each once",
    SOUND + "allow_recording = true\naudit_examples = [2, 2]\n": "0, each once",
    SOUND.replace(POLICY.allowed_apps[0], POLICY.allowed_apps[0].upper()): "SHA-256",
    SOUND.replace(POLICY.allowed_apps[0], "*"): "SHA-256",
    SOUND.replace(f'"{POLICY.allowed_apps[0]}"', ""): "SHA-256",
}


@pytest.mark.parametrize("text", DAMAGED, ids=DAMAGED.values())
def test_without_a_sound_policy_no_site_starts(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=DAMAGED[text].replace("(", r"\(")):
        Policy.read(path)
    assert guard.main([str(path), "--", "--insecure"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("flfw.deploy.guard: Expected ") and message.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["policy.toml"], ["policy.toml", "--insecure"], ["none.toml", "--"]])
def test_the_guard_asks_for_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text(SOUND)
    assert guard.main(arguments) == 2
    assert capsys.readouterr().err.startswith("flfw.deploy.guard: Expected ")


def test_a_policy_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="none that can be read"):
        Policy.read(tmp_path / "policy.toml")


# --- which apps ----------------------------------------------------------------------------------------------------


def test_an_app_is_known_by_its_own_bytes() -> None:
    assert POLICY.app_rejection(APP) is None
    other = APP + b"."
    assert POLICY.app_rejection(other) == f"this site's policy does not accept app {hashlib.sha256(other).hexdigest()}"
    assert replace(POLICY, allowed_apps=(ANY,)).app_rejection(other) is None


def config(**changed: Any) -> dict[str, Any]:
    return dict(Experiment(**changed).to_run_config())


def test_a_run_that_sends_more_numbers_than_the_policy_accepts_is_refused() -> None:
    accepted = {"all": ("all", "private", "none"), "private": ("private", "none"), "none": ("none",)}
    for maximum, fitting in accepted.items():
        chosen = replace(POLICY, metrics=maximum, epsilon=2.0 if maximum == "private" else inf)  # type: ignore[arg-type]
        allowed = [
            one for one in ("all", "private", "none") if chosen.run_rejection({**config(), "metrics": one}) is None
        ]
        assert tuple(allowed) == fitting
    unspoken = {name: value for name, value in config().items() if name != "metrics"}
    assert STRICT.run_rejection(unspoken) == "this site's policy accepts at most metrics=none, the run has metrics=all"
    assert "metrics=x" in str(POLICY.run_rejection({"metrics": "x"}))


def test_recording_needs_the_sites_consent() -> None:
    recorded = {**config(), "record": True}
    assert POLICY.run_rejection({**config(), "record": False}) is None
    assert str(POLICY.run_rejection(recorded)).endswith("be recorded, and the run records them")
    assert replace(POLICY, allow_recording=True).run_rejection(recorded) is None


OWN = "site:1x8x8:2"
OTHERS = "this site's policy gives away the examples that it chose, and "


@pytest.mark.parametrize(
    ("dataset", "pinned", "reason"),
    [
        ("digits", None, None),
        ("celeba:smiling", None, None),
        (OWN, None, "another dataset could mean others; pin this one alone in [run]"),
        (f"{OWN}@patient", [OWN, f"{OWN}@patient"], "another dataset could mean others; pin this one alone in [run]"),
        (OWN, OWN, None),
        (OWN, [OWN], None),
        ("folder:/x", "folder:/x", "a seed decides which those are in folder:/x; volunteer examples of site: data"),
        ("a.b:C", "a.b:C", "a seed decides which those are in a.b:C; volunteer examples of site: data"),
    ],
)
def test_no_server_chooses_the_examples_that_a_site_volunteers(
    dataset: str, pinned: str | list[str] | None, reason: str | None
) -> None:
    """Places count in the training part, whose order follows from the data set's name, or from a seed."""
    rules = None if pinned is None else AllowedSettings({"dataset": pinned})
    giving = replace(POLICY, allow_recording=True, audit_examples=(0, 2), allowed_plugins=("a.b:C",), run=rules)
    requested = {"record": True, "dataset": dataset}
    assert giving.run_rejection(requested) == (OTHERS + reason if reason else None)
    assert giving.run_rejection({**requested, "record": False}) is None
    assert replace(giving, audit_examples=()).run_rejection(requested) is None


def test_a_network_that_the_server_changed_needs_the_sites_consent() -> None:
    changed = config(malicious_server="imprint")
    reason = "this site's policy lets no server change the network, and the run's is changed by imprint"
    assert POLICY.run_rejection(changed) == reason
    assert POLICY.run_rejection(config()) is None
    assert replace(POLICY, allow_malicious_server=True).run_rejection(changed) is None
    pinned = replace(POLICY, allow_malicious_server=True, run=pins_of(Experiment(), "digits"))
    assert "pins the run, which has malicious-server=imprint" in str(pinned.run_rejection(changed))


@pytest.mark.parametrize("defence", ["dp_gaussian", "prune", "soteria+dp_gaussian"])
def test_a_defence_that_draws_from_the_servers_seed_needs_the_sites_consent(defence: str) -> None:
    reason = (
        f"this site's policy lets no defence draw from the seed, which the server knows, and {defence} does in the "
    )
    reason += "run; run with defence-randomness=secure"
    for draws in ("seed", "auto"):
        requested = config(defence=defence, defence_randomness=draws)
        assert POLICY.run_rejection(requested) == reason
        assert replace(POLICY, allow_seeded_defence=True).run_rejection(requested) is None
        words = f"the server can repeat what the run's defence {defence} draws, as the policy allows"
        assert remarks(requested) == [words]
    without = config(defence=defence)
    del without["defence-randomness"]  # as an older server has it
    assert POLICY.run_rejection(without) == reason
    secret = config(defence=defence, defence_randomness="secure")
    assert POLICY.run_rejection(secret) is None
    assert remarks(secret) == [f"the run has the defence {defence}, whose draws come from this machine and are secret"]
    assert POLICY.run_rejection(config()) is None and remarks(config()) == []
    pinned = replace(POLICY, run=pins_of(Experiment(defence=defence), "digits"))
    assert pinned.run_rejection(secret) is None and "lets no defence draw" in str(pinned.run_rejection(without))


def test_a_site_that_lets_draws_be_repeated_says_so_at_its_start(tmp_path: Path) -> None:
    assert announcements(POLICY, tmp_path) == []
    line = "lets a run's defence draw from the run's seed: the server knows it, and can repeat the draws"
    assert announcements(replace(POLICY, allow_seeded_defence=True), tmp_path) == [line]


@pytest.mark.parametrize(
    "named",
    [
        {"method": "a.b:C"},
        {"method": "os:system"},
        {"defence": "a.b:C"},
        {"defence": "prune+a.b:C"},
        {"attack": ("ig", "a.b:C")},
        {"attack": ("a.b:C",)},
        {"malicious_server": "a.b:C"},
    ],
)
def test_code_outside_the_app_needs_the_sites_consent(named: dict[str, Any]) -> None:
    """With pins that name it, too: they are about settings."""
    foreign = "os:system" if "os:system" in named.values() else "a.b:C"
    words = "this site's policy lets no code run but the accepted app's, such as "
    words += f"{foreign}; name it in allowed_plugins to trust it"
    agreed = replace(POLICY, allow_malicious_server=True, allow_seeded_defence=True)
    assert agreed.run_rejection(config(**named)) == words
    assert replace(agreed, run=pins_of(Experiment(**named), "digits")).run_rejection(config(**named)) == words
    assert replace(agreed, allowed_plugins=("d.e:F", foreign)).run_rejection(config(**named)) is None
    assert replace(agreed, allowed_plugins=(f"x.{foreign}",)).run_rejection(config(**named)) == words


# --- what leaves ---------------------------------------------------------------------------------------------------

ALLOWED = {
    "tensors and numbers": (arrays("net.w", "theta"), MetricRecord({"num-examples": 3, "loss": 0.5})),
    "nothing": (),
    "no tensors": (arrays(), MetricRecord({"accuracy": 1.0})),
}


@pytest.mark.parametrize("records", ALLOWED.values(), ids=ALLOWED.keys())
def test_an_ordinary_answer_leaves(records: tuple[Any, ...]) -> None:
    assert POLICY.reply_rejection(answer(*records), "train", 900) is None


REFUSED = {
    "does not let head.w leave": (arrays("net.w", "head.w"),),
    "does not let xtheta leave": (arrays("xtheta"),),
    "does not let second leave": (arrays("net.w"), arrays("second")),
    "at most 100 numbers": (MetricRecord({f"m{i}": i for i in range(101)}),),
    "no lists of numbers": (MetricRecord({"pixels": [1, 2, 3]}),),
    "names are so long": (MetricRecord({"x" * 1001: 1}),),
    "no words leave": (ConfigRecord({"note": "the patient in bed 4"}),),
}


@pytest.mark.parametrize(("message", "records"), REFUSED.items(), ids=REFUSED.keys())
def test_what_hides_something_stays(message: str, records: tuple[Any, ...]) -> None:
    assert message in str(POLICY.reply_rejection(answer(*records), "train", 900))


def test_numbers_are_counted_over_all_records() -> None:
    half = MetricRecord({f"m{i}": i for i in range(60)})
    assert POLICY.reply_rejection(answer(half), "train", 900) is None
    assert "at most 100" in str(POLICY.reply_rejection(answer(half, half), "train", 900))


def test_the_size_is_of_all_parts() -> None:
    assert POLICY.reply_rejection(answer(arrays("theta")), "train", 1000) is None
    assert POLICY.reply_rejection(answer(arrays("theta")), "train", 1001) == (
        "this site's policy lets 0.001 MB leave, the answer has 0.0 MB"
    )


def test_words_leave_only_where_a_site_introduces_itself() -> None:
    details = ConfigRecord({"partition": 0, "code": "0123456789abcdef", "shape": [1, 8, 8]})
    for policy in (POLICY, OPEN):
        assert policy.reply_rejection(introduction(**details), "query", 900) is None
        assert "no words" in str(policy.reply_rejection(introduction(**details), "train", 900))
        assert "no words" in str(policy.reply_rejection(introduction(x="y" * 1000), "query", 900))
        assert "no words" in str(policy.reply_rejection(introduction(x=b"y" * 1000), "query", 900))


OPEN = replace(POLICY, error_detail="all")
KNOWN: dict[str, Any] = {"partition": 0, "code": "0123456789abcdef", "trouble": ""}


def introduction(**entries: Any) -> Message:
    return Message(RecordDict({"about": ConfigRecord(entries)}), dst_node_id=1, message_type="query")


@pytest.mark.parametrize(
    "entries", [{"note": 4}, {"trouble": "bed 4"}, {"code": "bed 4"}, {"partition": 0.5}, {"shape": [2.5]}], ids=str
)
def test_an_introduction_holds_its_known_entries_alone(entries: dict[str, Any]) -> None:
    assert POLICY.reply_rejection(introduction(**KNOWN), "query", 900) is None
    assert POLICY.reply_rejection(introduction(**{**KNOWN, "trouble": WITHHELD}), "query", 900) is None
    message = introduction(**{**KNOWN, **entries})
    two = RecordDict({"about": ConfigRecord(KNOWN), "more": ConfigRecord()})
    for other in (message, Message(two, dst_node_id=1, message_type="query")):
        reason = "this site's policy lets no words leave in an introduction but the known ones"
        assert POLICY.reply_rejection(other, "query", 900) == reason
        assert OPEN.reply_rejection(other, "query", 900) is None


def test_a_reason_is_a_line_and_no_more() -> None:
    assert OPEN.reply_rejection(answer(error="disk full"), "train", 100) is None
    assert OPEN.reply_rejection(answer(error="x" * 1000), "train", 100) is None
    for policy in (POLICY, OPEN):
        assert "so long" in str(policy.reply_rejection(answer(error="x" * 1001), "train", 100))


def test_without_numbers_only_tensors_leave() -> None:
    for records in ((arrays("net.w"), MetricRecord({"num-examples": 3})), (MetricRecord({"loss": 0.5}),)):
        assert "lets no numbers leave beside the tensors" in str(STRICT.reply_rejection(answer(*records), "train", 900))
    assert STRICT.reply_rejection(answer(arrays("net.w"), MetricRecord({})), "train", 900) is None


UNSAID = "lets no other reason of a failure leave; its log has it"
BUDGETED = "this site's budget: epsilon 2 at delta 1e-05 for one example; 1 is spent, and this message would make it 3"
FLOWER = "<class '{}'>:<'{}'>"  # an exception of an app
MINE = "flfw.dp.budget.BudgetExceededError"
REASONS = {FLOWER.format(MINE, BUDGETED): True, "this site's policy does not accept app 0": True, DIED: True}
REASONS |= {FLOWER.format("ValueError", BUDGETED): False, FLOWER.format(MINE, f"{BUDGETED}\nbed 4"): False}
REASONS |= {FLOWER.format("ValueError", "index 7 of 'bed 4'"): False, f"bed 4\n{FLOWER.format(MINE, BUDGETED)}": False}
REASONS |= {FLOWER.format(MINE, "bed 4"): False, f"{DIED} of bed 4": False, BUDGETED: False, "": False}


REASONS |= {FLOWER.format("flfw.messages.reasons.RequestDeclinedError", "was asked too late"): True}
REASONS |= {FLOWER.format("flfw.messages.sharing.SharingViolationError", "client 3 was sent w"): True}
REASONS |= {FLOWER.format("flfw.messages.reasons.RequestDeclinedError", "too late\nbed 4"): False}
REASONS |= {FLOWER.format("flfw.messages.reasons.Declined2", "bed 4"): False}


@pytest.mark.parametrize("reason", REASONS)
def test_no_exceptions_words_leave(reason: str) -> None:
    for policy in (STRICT, POLICY):
        refused = policy.reply_rejection(answer(error=reason), "train", 100)
        assert refused == (None if REASONS[reason] else f"this site's policy {UNSAID}")
    assert OPEN.reply_rejection(answer(error=reason), "train", 100) is None


def test_flower_writes_an_exception_as_the_policy_reads_it() -> None:
    """The words by which Flower's own process hands over what an app raised."""
    assert """str(type(ex)) + ":<'" + str(ex) + "'>\"""" in inspect.getsource(run_clientapp)
    for error in (
        RequestDeclinedError("was asked too late"),
        SharingViolationError("client 3 was sent w"),
        BudgetExceededError("it is spent"),
    ):
        assert POLICY.reply_rejection(answer(error=f"{type(error)}:<'{error}'>"), "train", 100) is None


def test_a_limit_is_a_number() -> None:
    for limit in (0.0, -1.0, inf, nan):
        with pytest.raises(InputError, match="0 < max_upload_mb < inf"):
            replace(POLICY, max_upload_mb=limit)


def test_a_policy_with_earlier_keys_is_the_same_and_one_with_both_is_refused(tmp_path: Path) -> None:
    path, text = tmp_path / "policy.toml", replace(POLICY, allow_recording=True, audit_examples=(0, 2)).text()
    path.write_text(text)
    of_today = Policy.read(path)
    for earlier, today in renames().policy_keys.items():
        earlier_text = text.replace(f"{today} =", f"{earlier} =")
        assert earlier_text != text
        path.write_text(earlier_text)
        assert Policy.read(path) == of_today
        path.write_text(earlier_text + f"{today} = 3\n")
        with pytest.raises(InputError, match=f"Expected {today} alone in .*, got its earlier name {earlier} beside it"):
            Policy.read(path)
        path.write_text(earlier_text.replace(f"{earlier} =", f"{earlier} = {{ odd = 1 }}  #"))
        with pytest.raises(InputError, match=rf"\b{earlier}\b"):
            Policy.read(path)


def test_a_range_with_earlier_ends_is_the_same_and_one_with_both_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    for ends in ("least = 2, most = 5", "min = 2, max = 5", "least = 2, max = 5"):
        path.write_text(f"{POLICY.text()}\n[run]\nrounds = {{{ends}}}\n")
        pinned = Policy.read(path).run
        assert pinned is not None and pinned.rules == {"rounds": {"min": 2, "max": 5}}
    path.write_text(f"{POLICY.text()}\n[run]\nrounds = {{most = 5, max = 7}}\n")
    with pytest.raises(InputError, match="for rounds in"):
        Policy.read(path)
