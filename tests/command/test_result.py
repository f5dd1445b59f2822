"""A result: its tables, its verdicts, and its views in a notebook."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from flfw import InputError, Result, audit, run
from flfw.command.api import notebook
from flfw.command.api.notebook import conclusions

SMALL = {"method": "fedavg", "net": "linear", "clients": 2, "rounds": 1, "local_epochs": 1, "images": 2}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The result of a run that is attacked on reconstruction and on membership."""
    out = tmp_path_factory.mktemp("results") / "run"
    attack = ("analytic", "membership")
    return run(**SMALL, attack=attack, membership_pairs="20", engine="inproc", out=out)


@pytest.fixture(scope="module")
def unaudited(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The result of a run without an audit."""
    return run(**SMALL, attack="none", engine="inproc", out=tmp_path_factory.mktemp("results") / "run")


@pytest.mark.slow
def test_tables_have_a_row_for_each_round_client_attack_image_and_statistic(audited: Result) -> None:
    assert audited.rounds["round"].tolist() == [1] and audited.clients["client"].tolist() == [0, 1]
    assert audited.audit["round"].tolist() == [0, 1] and audited.audit["verdict"].tolist() == ["leaks", "leaks"]
    targets = audited.images[audited.images["rung"] == "target"]
    assert len(targets) == 4 and targets["recovered"].all() and (targets["psnr"] > 100).all()
    assert {"cosine", "lira"} <= {*audited.membership["statistic"]}
    assert audited.inference.empty and audited.failures.empty
    assert audited.rounds["acc_local"].tolist() == [pytest.approx(audited.clients["acc_local"].mean())]


@pytest.mark.slow
def test_tables_of_a_run_without_an_audit_are_empty_but_have_their_columns(unaudited: Result, audited: Result) -> None:
    for name in ("audit", "images", "membership"):
        assert getattr(unaudited, name).empty
        assert list(getattr(audited, name).columns)[: getattr(unaudited, name).shape[1]] == list(
            getattr(unaudited, name).columns
        )
    assert unaudited.verdict is None and unaudited.verdicts == {}
    assert "not audited" in unaudited._repr_html_()


@pytest.mark.slow
def test_final_settings_and_notes_are_those_of_the_file(audited: Result) -> None:
    content = json.loads((audited.path / "result.json").read_text())
    assert audited.final["acc_local"] == content["final"]["acc_local"]
    assert audited.config["membership_pairs"] == "20" and audited.notes == tuple(content["notes"])
    assert audited.experiment.attack == ("analytic", "membership") and audited.experiment.out is None


@pytest.mark.slow
def test_changing_a_copy_changes_nothing(audited: Result) -> None:
    table = audited.rounds
    table["loss"] = 0.0
    audited.config["method"] = "other"
    audited.final["acc_local"] = -1.0
    assert audited.rounds["loss"].tolist()[0] > 0 and audited.config["method"] == "fedavg"
    assert audited.final["acc_local"] >= 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        audited.path = Path("elsewhere")  # type: ignore[misc]


@pytest.mark.slow
def test_each_question_has_its_verdict_and_the_gravest_is_the_run_s(audited: Result) -> None:
    assert audited.verdicts["reconstruction"] == "leaks"
    assert audited.verdicts["membership"] in {*audited.membership["verdict"]}
    assert audited.verdict == "leaks"


@pytest.mark.slow
def test_a_leak_of_membership_is_a_leak_though_nothing_was_rebuilt(unaudited: Result) -> None:
    row = {"vantage": "server", "defence": "none", "rounds": [1], "auc": 0.9, "verdict": "leaks", "cause": None}
    mild = {**row, "auc": 0.5, "verdict": "no leak found"}
    assert conclusions(unaudited.path, {"audit": [], "membership": [mild, row]}) == {"membership": row}


@pytest.mark.slow
def test_a_summary_in_html_has_verdicts_and_pictures_that_the_report_may_show(audited: Result) -> None:
    page = audited._repr_html_()
    assert page.index("data:image/png;base64,") < page.index(">recognisable<") < page.index("reconstruction: leaks")
    assert page.count("<img") == 4
    private = notebook.html(audited.path, {**audited.content, "config": {**audited.config, "show_samples": "no"}})
    assert "<img" not in private and "reconstruction: leaks" in private


@pytest.mark.slow
def test_a_picture_keeps_its_shape(audited: Result) -> None:
    styles = re.findall(r"<img [^>]*style=\"([^\"]*)\"", audited._repr_html_())
    assert len(styles) == 4 and all("height:64px" in style and "width:" not in style for style in styles)


@pytest.mark.slow
def test_records_and_texts_bring_the_style_without_which_nothing_of_them_is_seen(
    tmp_path: Path, audited: Result
) -> None:
    (tmp_path / "notes.txt").write_text("".join(f"A line of number {number} in the notes.\n" for number in range(60)))
    small = {**SMALL, "net": "auto", "show_samples": "yes", "engine": "inproc"}
    records = run(**small, dataset="cancer", attack="analytic", out=tmp_path / "records")._repr_html_()
    texts = run(**small, dataset=f"text:{tmp_path / 'notes.txt'}", attack="dager", out=tmp_path / "texts")._repr_html_()
    assert 'width="300" height="74"' in records and "var(--accent, #b23a12)" in records
    assert "Rings are the original records, dots what the attack made of the messages:" in records
    assert ".flfw-strips .line { font-family: monospace;" in texts and 'class="line"' in texts
    assert "Originals, and below them what the attack made of the messages:" in texts
    assert "<style>" not in audited._repr_html_()


@pytest.mark.slow
def test_names_in_a_result_cannot_add_to_the_page(unaudited: Result) -> None:
    row = {"vantage": "server", "defence": "none", "rounds": [1], "auc": 0.9, "verdict": "<script>", "cause": None}
    page = notebook.html(unaudited.path, {**unaudited.content, "inference": [row]})
    assert "<script>" not in page and "inference: &lt;script&gt;" in page


@pytest.mark.slow
def test_show_names_the_report_outside_a_notebook(
    audited: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audited.show()
    assert capsys.readouterr().out == f"{audited.report}\n"
    with pytest.raises(InputError, match="got none; restore"):
        notebook.show(tmp_path, 100)


@pytest.mark.slow
def test_an_audit_that_was_moved_with_its_run_has_the_run_s_tables(tmp_path: Path) -> None:
    moved, apart = tmp_path / "moved", tmp_path / "apart"
    first = run(**SMALL, attack="analytic", engine="inproc", out=tmp_path / "first")
    audit(first, attack="analytic")
    outside = audit(first, attack="analytic", out=apart)
    assert outside.clients["client"].tolist() == [0, 1]
    first.path.rename(moved)
    assert Result.load(moved / "audit-1").clients["client"].tolist() == [0, 1]
    message = f"Expected the run of the audit {apart} in {first.path}, got no such folder; put it back."
    with pytest.raises(InputError, match=re.escape(message)):
        _ = outside.clients
    for table in ("clients", "failures", "images"):
        with pytest.raises(InputError, match=r"got no such folder; load it from where it is now\.$"):
            getattr(first, table)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "rounds", "final", "privacy", "audit", "notes"])
def test_a_result_without_its_parts_is_damaged(unaudited: Result, tmp_path: Path, name: str) -> None:
    content = {part: value for part, value in unaudited.content.items() if part != name}
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"^Expected {name} in .*, got none; restore it, or run anew\.$"):
        Result.load(tmp_path)


@pytest.mark.slow
def test_infinite_figures_are_numbers(audited: Result) -> None:
    privacy = [{"unit": "example", "adversary": "server", "epsilon": "inf", "accounting": "exact"}]
    changed = dataclasses.replace(audited, content={**audited.content, "privacy": privacy, "final": {"a": "-inf"}})
    assert changed.privacy["epsilon"].tolist() == [math.inf] and changed.final == {"a": -math.inf}
