"""Models of result.json: a field that is read has its type to the letter, and further ones stay."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from flfw.errors import InputError
from flfw.files import outcomes
from flfw.files.earlier_names import renames
from flfw.files.result_entries import ResultModel
from flfw.files.result_file import RESULT, SessionFields, read_model, read_result, read_rows, stored_example, to_json

CLAIM = {"unit": "example", "adversary": "server", "epsilon": 4, "accounting": "exact"}
ATTACK = {"attack": "ig", "round": 0, "failures": 0, "evidence": None}


def test_numbers_stay_as_they_were_written(tmp_path: Path) -> None:
    content = {
        "privacy": [CLAIM, {**CLAIM, "epsilon": "inf"}],
        "provenance": {"from": "runs/a"},
        "audit": [{**ATTACK, "client": 2**64 - 1, "psnr": {"max": 1e300}, "more": {"deep": [1, None]}}],
        "more": [1.5],
    }
    (tmp_path / RESULT).write_bytes(to_json(content))
    assert read_result(tmp_path) == content and repr(read_result(tmp_path)["privacy"][0]["epsilon"]) == "4"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], "a value as a table, got a list"),
        ({"rounds": [{"round": True}]}, r"rounds\[0\].round as a valid integer, got True"),
        ({"rounds": [{"round": 1.0}]}, r"rounds\[0\].round as a valid integer, got 1.0"),
        ({"rounds": [{"round": 2**63}]}, r"rounds\[0\].round as less than"),
        ({"rounds": [{"loss": 0.5}]}, r"rounds\[0\].round, got none"),
        ({"rounds": [{"round": 1, "loss": "0.5"}]}, r"rounds\[0\].loss as a finite number, inf or -inf, got 0.5"),
        ({"rounds": [{"round": 1, "loss": True}]}, r"rounds\[0\].loss as a finite number"),
        ({"rounds": [{"round": 1, "loss": 10**400}]}, r"rounds\[0\].loss as a finite number"),
        ({"audit": [{**ATTACK, "client": -1}]}, r"audit\[0\].client as greater than or equal to 0, got -1"),
        ({"audit": [{**ATTACK, "client": 2**64}]}, r"audit\[0\].client as less than"),
        ({"audit": [{**ATTACK, "attack": 1}]}, r"audit\[0\].attack as a valid string, got 1"),
        ({"audit": [{**ATTACK, "adaptive": 1}]}, r"audit\[0\].adaptive as a valid boolean, got 1"),
        ({"audit": [{**ATTACK, "share_interval": [0.0]}]}, r"audit\[0\].share_interval as List should have"),
        ({"audit": {"attack": "ig"}}, "audit as a valid list, got a table"),
        ({"provenance": {"from": 1}}, r"provenance.from as a valid string, got 1"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(tmp_path: Path, content: Any, text: str) -> None:
    (tmp_path / RESULT).write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"^Expected {text}.* in .*{RESULT}; restore it, or run anew") as caught:
        read_result(tmp_path)
    assert len(str(caught.value)) < 300


DAMAGED = [
    b"",
    b"{",
    b"\xff",
    b"[" * 10**5,
    b"9" * 5000,
    b'{"flfw": "\\ud800"}',
    b'{"rounds": [{"round": 1, "loss": NaN}]}',
]


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / RESULT).write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_result(tmp_path)
    assert str(tmp_path) in str(caught.value) and str(caught.value).isprintable()


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none that can be read"):
        read_model(tmp_path, list[SessionFields])


def test_a_number_that_is_not_finite_is_left_empty_and_named() -> None:
    odd = {**ATTACK, "share_interval": [0.0, float("inf")], "more": {"ratio": [float("nan"), 1.5]}}
    written = json.loads(to_json({"notes": ["a"], "audit": [odd]}))
    assert written["audit"] == [{**ATTACK, "share_interval": [0.0, None], "more": {"ratio": [None, 1.5]}}]
    note = "Not finite, so left empty: audit[0].share_interval[1] (inf), audit[0].more.ratio[0] (nan)."
    assert written["notes"] == ["a", note]


def test_a_result_that_no_reader_takes_is_not_written() -> None:
    with pytest.raises(ValueError, match="round"):
        to_json({"rounds": [{"round": "two"}]})


def test_every_earlier_key_is_read_and_written_by_its_name_of_today() -> None:
    """A pair per key stands in the table, and its new name is a field of a model."""
    fields = {name for model in models(ResultModel) for name in model.model_fields}
    keys = renames().keys
    assert set(keys.values()) - fields == set() and set(keys) & set(keys.values()) == set()
    earlier = {
        "provenance": {"sittings": [{"began": "a", "ended": None, "outside": []}], "asked": [1], "tampered_by": "x"},
        "privacy": [{**CLAIM, "noise": "seed", "certainty": 0.5, "lower": {"epsilon": 1.0}}],
        "audit": [
            {
                **ATTACK,
                "group": 5,
                "stopped": None,
                "cause": "matched",
                "worst": {"victim": 3},
                "ladder": [{"rung": "matched", "passed": True}],
                "objective": {"short": 1},
            }
        ],
        "sums": None,
    }
    assert json.loads(to_json(earlier)) == {
        "provenance": {
            "sessions": [{"started_at": "a", "ended_at": None, "external_plugins": []}],
            "requested_rounds": [1],
            "malicious_server": "x",
        },
        "privacy": [{**CLAIM, "noise_source": "seed", "max_guess_accuracy": 0.5, "lower_bound": {"epsilon": 1.0}}],
        "audit": [
            {
                **ATTACK,
                "sum_size": 5,
                "failure_reason": None,
                "cause": "undefended_control",
                "worst": {"probe_slot": 3},
                "ladder": [{"rung": "undefended", "passed": True}],
                "objective": {"unconverged": 1},
            }
        ],
        "secure_aggregation": None,
    }


def models(model: type[ResultModel]) -> list[type[ResultModel]]:
    return [one for sub in model.__subclasses__() for one in (sub, *models(sub))]


def test_earlier_columns_are_read_by_their_names_of_today(tmp_path: Path) -> None:
    (tmp_path / "audit.csv").write_text("victim,group,labels_found,by_chance,candidates,rung\n3,5,0.5,True,100,told\n")
    (row,) = read_rows(tmp_path / "audit.csv")
    assert row == {
        "probe_slot": "3", "sum_size": "5", "label_accuracy": "0.5", "chance_match": "True", "candidates": "100",
        "rung": "weak_defence",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ({"verdict": "identifies", "cause": "candidates", "evidence": None}, ("leaks", "identified", "candidates")),
        ({"verdict": "malicious server only", "cause": "tampered"}, ("leaks", "to a malicious server", "tampered")),
        ({"verdict": "leaks", "cause": "peer"}, ("leaks", "message", "peer")),
        ({"verdict": "leaks"}, ("leaks", "reconstructed", None)),
        ({"verdict": "attack broken"}, ("undecided", None, "analytic")),
        ({"verdict": "attack broken", "cause": "consistency"}, ("undecided", None, "description")),
        ({"verdict": "inconclusive", "cause": "matched"}, ("undecided", None, "undefended_control")),
    ],
)
def test_earlier_verdicts_are_read_as_those_of_today(earlier: dict[str, Any], today: tuple[str, Any, Any]) -> None:
    (read,) = json.loads(to_json({"audit": [{"attack": "ig", "round": 0, "failures": 0, **earlier}]}))["audit"]
    assert (read["verdict"], read["evidence"], read.get("cause")) == today


def test_a_verdict_that_is_none_is_refused_and_a_peers_has_no_cause(tmp_path: Path) -> None:
    (tmp_path / RESULT).write_text(json.dumps({"audit": [{**ATTACK, "verdict": "foo"}]}))
    with pytest.raises(InputError, match=r"Expected audit\[0\].verdict"):
        read_result(tmp_path)
    peer = {"smallest": 3, "round": 1, "left": 2, "verdict": "inconclusive", "reason": "Why.", "check": None}
    assert outcomes.of_today(peer) == {**peer, "verdict": "undecided", "evidence": None}
    (tmp_path / "matrix.csv").write_text("attack,verdict\nig,identifies\nig,attack broken\n")
    found = [(row["verdict"], row["evidence"]) for row in read_rows(tmp_path / "matrix.csv")]
    assert found == [("leaks", "identified"), ("undecided", None)]


def test_an_example_is_read_from_a_file_of_tensors_or_refused(tmp_path: Path) -> None:
    (audit := tmp_path / "run" / "audit-1").mkdir(parents=True)
    save_file({"samples": np.arange(6, dtype=np.float32).reshape(3, 2)}, tmp_path / "run" / "truth.safetensors")
    save_file({"others": np.zeros(3)}, audit / "others.safetensors")
    (audit / "words").write_text("words")
    example = stored_example(audit, "../truth.safetensors", "2")
    assert example is not None and example.tolist() == [4, 5]
    assert stored_example(audit, "gone.safetensors", "0") is None is stored_example(audit, "x" * 300, "0")
    wrong = [("../truth.safetensors", image) for image in ("3", "-1", "x", "", "9" * 30)]
    for file, image in [*wrong, *((file, "0") for file in ("words", "others.safetensors", "/proc/self/environ"))]:
        with pytest.raises(InputError, match=r"Expected (an )?example"):
            stored_example(audit, file, image)
