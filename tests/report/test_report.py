"""The report of a run, read back as a browser would: its answer, its pictures, and that it fits a phone."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfw.command.api.summary import summary
from flfw.errors import InputError
from flfw.report import charts
from flfw.report.figures import stacked_panels
from flfw.report.findings import png_uri
from flfw.report.page_data import FailureLine, first_screen
from flfw.report.report import command, write_report
from tests.support.csv_files import read_csv, write_csv
from tests.support.drawn_charts import charts_in, lines_of, texts_of
from tests.support.reported_runs import IMAGES, ROUNDS, a_full_run, a_run, conclusion, full_entry, nothing

VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Collects what the assertions ask for: tags with attributes, visible text, the verdict and its finding."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.heading = self.verdict = ""
        self.finding = False
        self.feed(text)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.finding = dict(attrs).get("id") == "finding" or (self.finding and tag != "p")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()
        self.finding &= tag != "p"

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)
        if "h1" in self.open:
            self.verdict += data
        if self.finding:
            self.heading += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def every(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def with_verdict(folder: Path, verdict: str, **changes: Any) -> Page:
    a_run(folder)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    for item in result["audit"]:
        item.update(conclusion(verdict), **changes)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return read(folder)


def test_leak_opens_with_what_came_out(tmp_path: Path) -> None:
    heading = with_verdict(tmp_path / "run", "leaks").heading
    assert heading.startswith(
        "Method HyperFL on digits leaks: attack ig static recovered 2 of 3 training images before the first round"
    )
    assert heading.endswith("(best 31.2 dB, where the best public look-alike scores 17.9 dB).")


@pytest.mark.parametrize(
    ("verdict", "opens", "says"),
    [
        (
            "no leak found",
            "No leak found in method HyperFL on digits",
            "the same attack succeeds on an undefended easy case",
        ),
        ("undecided", "Undecided: ", "did not solve the undefended easy case either"),
        ("void", "Undecided, as the test is void: ", "so this says nothing about what method HyperFL on digits leaks"),
    ],
)
def test_each_verdict_has_its_own_sentence(tmp_path: Path, verdict: str, opens: str, says: str) -> None:
    controls = [{"rung": "easy", "psnr": 9.0, "passed": verdict == "no leak found"}]
    more = {"cause": "easy"} if verdict == "undecided" else {}
    heading = with_verdict(tmp_path / "run", verdict, ladder=controls, **more).heading
    assert heading.startswith(opens)
    assert says in heading


def test_static_attacks_are_no_evidence_of_protection(tmp_path: Path) -> None:
    heading = with_verdict(tmp_path / "run", "static", adaptive=False).heading
    assert heading.startswith("Undecided: ")
    assert "no attack adapted to what the method hides was run, so this is not evidence of protection" in heading


def test_broken_attack_says_nothing_about_the_defence(tmp_path: Path) -> None:
    heading = with_verdict(tmp_path / "run", "void", defence="prune").heading
    assert heading.endswith("so this says nothing about the defence prune.")


def test_adaptive_answer_stands_before_the_static_one(tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    source = tmp_path / "run" / "result.json"
    result = json.loads(source.read_text(encoding="utf-8"))
    for item in result["audit"]:
        item.update(conclusion("no leak found" if item["adaptive"] else "static"))
    source.write_text(json.dumps(result), encoding="utf-8")
    assert read(tmp_path / "run").heading.startswith(
        "No leak found in method HyperFL on digits: attack hyperfl adaptive"
    )


def test_every_picture_is_inside_and_described(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run"))
    pictures = page.every("img")
    # Gallery: 4 settings of 3 originals and 2 reconstructions. First screen: 2 pairs, without the failed one.
    assert len(pictures) == 4 * (3 + 2) + 2 * 2
    assert all(str(picture["src"]).startswith("data:image/png;base64,") for picture in pictures)
    assert all(picture["alt"] for picture in pictures)
    assert "2 of 3 recovered, 1 failed." in page.text
    # The third image is the nearest, so it comes first.
    gallery = page.text[page.text.index("All reconstructions") :]
    assert gallery.index("31.2 dB") < gallery.index("22.0 dB") < gallery.index("failed client 1, sample 41")
    assert "gain 13.3 dB" in gallery


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    page = read(folder)
    loads = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(str(value).startswith(("data:", "#")) for value in loads)
    assert page.every("script") == [{}] and not page.every("link")
    policy = [meta["content"] for meta in page.every("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]
    assert not re.search(r"url\(|@import", (folder / "report.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("tabular", [False, True])
def test_no_placeholder_of_python_is_visible(tmp_path: Path, tabular: bool) -> None:
    text = read(a_run(tmp_path / "run", tabular=tabular)).text
    assert not re.search(r"\b(None|nan|NaN|inf|Undefined)\b|[{}]", text)


def test_structure_can_be_read_aloud(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run"))
    assert len(page.every("h1")) == 1
    assert all(cell.get("scope") in ("row", "col") for cell in page.every("th"))
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {str(link["href"])[1:] for link in page.every("a")} <= anchors
    assert all(figure.get("aria-label") for figure in page.every("svg"))


def test_what_the_user_typed_is_escaped(tmp_path: Path) -> None:
    config = {"method": "HyperFL", "dataset": "<b>x</b>", "seed": 0}
    folder = a_run(tmp_path / "run", config=config, notes=["<script>alert(1)</script>"])
    page = read(folder)
    assert page.heading.startswith("Method HyperFL on <b>x</b> leaks")
    assert page.every("script") == [{}]
    assert "alert(1)</script>" not in (folder / "report.html").read_text(encoding="utf-8")
    assert "<b>x</b>" not in (folder / "report.html").read_text(encoding="utf-8")


def test_caveats_stand_on_the_first_screen(tmp_path: Path) -> None:
    data = {"name": "cifar10", "source": "mirror", "md5_ok": False}
    text = read(a_run(tmp_path / "run", provenance={"data": data})).text
    first = text[: text.index("What the attacks reached")]
    assert "re-encoded as JPEG" in first
    assert "The checksum of cifar10 is not the published one" in first


def test_records_without_pixels_are_drawn_as_features(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run", tabular=True))
    assert not page.every("img")
    assert len([figure for figure in page.every("svg") if figure.get("class") == "strip"]) == 4 * 3 + 1
    assert "recovered 2 of 3 training records" in page.heading
    assert "closest at a distance of 0.010 RMSD" in page.heading


def test_run_without_an_audit_claims_nothing(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run", attacks=()))
    assert page.heading.startswith("Not audited: method HyperFL on digits was trained and no attack was run")
    assert "All reconstructions" not in page.text
    assert "71.0 %" in page.text and "82.0 %" in page.text


def test_missing_values_and_missing_pictures_leave_a_page(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", rounds=[], final={"acc_global": None, "acc_local": None})
    shutil.rmtree(folder / "truth")
    page = read(folder)
    assert "not kept" in page.text
    assert "No training round was run" in page.text
    assert not re.search(r"\b(None|nan|NaN)\b", page.text)


def test_perfect_copy_is_an_infinity_in_words_only(tmp_path: Path) -> None:
    perfect = {"mean": "inf", "low": 40.0, "high": "inf", "max": "inf"}  # as result.json has it
    page = with_verdict(tmp_path / "run", "leaks", psnr=perfect)
    assert "∞" in page.text
    assert not re.search("inf|nan", " ".join(str(path["d"]) for path in page.every("path")))


def test_unfinished_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no result\.json"):
        write_report(tmp_path)


def test_same_run_gives_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "stacked_panels", stacked_panels)  # drawn each time
    folder = a_run(tmp_path / "run")
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert not list(folder.glob("*.partial"))


def test_command_names_the_run_again() -> None:
    config = {
        "method": "fedavg",
        "attack": ["ig", "idlg"],
        "audit_rounds": [0, "last"],
        "net": None,
        "set": ["lr=0.1", "ig.iterations=5"],
    }
    expected = "python sim.py --method fedavg --attack ig idlg --audit-rounds 0,last --set lr=0.1 ig.iterations=5"
    assert command(config) == expected
    assert command(config | {"sum_size": 0, "membership_pairs": "auto"}) == expected
    with_pairs = command({"attack": ["membership"], "membership_pairs": "300"})
    assert with_pairs == "python sim.py --attack membership --expert membership_pairs=300"


def test_colour_and_nan_become_a_picture() -> None:
    assert png_uri(np.full((3, 4, 4), np.nan)).startswith("data:image/png;base64,")


def section(page: Page, opens: str, closes: str) -> str:
    return page.text[page.text.rindex(opens) : page.text.rindex(closes)]


def first_page(page: Page) -> str:
    return page.text[: page.text.rindex("How it was tested, and how sure it is What was")]


def words_of(page: Page) -> str:
    return section(page, "How it was tested, and how sure it is What was", "The words of this page")


@pytest.mark.parametrize("config", [{"show_samples": "no", "dataset": "digits"}, {"dataset": "folder:/my/patients"}])
@pytest.mark.parametrize("tabular", [False, True])
def test_without_pictures_no_sample_is_in_the_file(tmp_path: Path, config: dict[str, Any], tabular: bool) -> None:
    folder = a_full_run(
        tmp_path / "run", tabular=tabular, config={"method": "HyperFL", "show_samples": "auto"} | config
    )
    page = read(folder)
    source = (folder / "report.html").read_text(encoding="utf-8")
    assert "base64" not in source and 'class="strip"' not in source and not page.every("img")
    assert "label 7" not in page.text
    assert page.text.count("--show-samples yes puts them in") == 2
    assert ("the data are your own" if "folder" in config["dataset"] else "asked for without them") in page.text
    # The scores stay, and can be walked.
    assert len([details for details in page.every("details") if details.get("class") == "sample"]) == 7 * IMAGES


@pytest.mark.parametrize(("requested", "dataset", "shown"), [("yes", "hf:a/b", True), ("auto", "hf:a/b@1", False)])
def test_pictures_of_own_data_are_asked_for(tmp_path: Path, requested: str, dataset: str, shown: bool) -> None:
    folder = a_run(tmp_path / "run", config={"method": "HyperFL", "dataset": dataset, "show_samples": requested})
    assert bool(read(folder).every("img")) is shown
    # The caller has the last word, both ways.
    assert "base64" not in write_report(folder, pictures=False).read_text(encoding="utf-8")
    assert "base64" in write_report(folder, pictures=True).read_text(encoding="utf-8")


def test_interval_stands_beside_the_count(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run", entries=[full_entry("ig", 0, False, images=8, **nothing())]))
    assert "0 of 8: as many as 71 % of such images could leak and this audit would still have seen none." in page.text
    leak = read(a_run(tmp_path / "leak", entries=[full_entry("ig", 0, False)]))
    assert "2 of 3: the share of such images that this attack recovers lies between 9 % and 99 %" in leak.text


@pytest.mark.parametrize("verdict", ["undecided", "void"])
def test_void_result_promises_no_upper_bound(tmp_path: Path, verdict: str) -> None:
    page = read(a_run(tmp_path / "run", entries=[full_entry("ig", 0, False, **nothing(verdict=verdict))]))
    assert "could leak" not in page.text


def test_new_figures_are_in_the_tables(tmp_path: Path) -> None:
    page = read(a_full_run(tmp_path / "run"))
    tables = section(page, "What the attacks reached Every attack", "What the attacker had")
    for text in ("9 % to 99 %", "66.7 %", "1.0 %", "client 2, sample 42", "13.3", "0.210", "0.080"):
        assert text in tables
    assert "enlarged so that the shorter side is 64" in tables and "the official file" in tables
    assert "Static beside adaptive" in tables
    assert "ig: 0 of 3, mean 24.0 dB undecided (static) ig: 2 of 3, mean 24.0 dB leaks" in tables


def test_records_are_measured_against_a_guess(tmp_path: Path) -> None:
    text = read(a_full_run(tmp_path / "run", tabular=True)).text
    assert "Features exact By guessing Whole rows" in text
    assert "72.0 % 61.0 % 33.3 %" in text
    assert "72 % of the values in the records were found exactly; guessing the most usual value gives 61 %" in text


def test_assignment_is_stated_for_batches_only(tmp_path: Path) -> None:
    single = read(a_run(tmp_path / "one", entries=[full_entry("ig", 0, False)]))
    assert "least squares in all" not in single.text
    batch = read(a_run(tmp_path / "four", entries=[full_entry("ig", 0, False, batch=4)]))
    assert "one to one, least squares in all. Unrelated public images get 12.6 dB by the same rule." in batch.text


def test_curves_have_figures_of_their_own(tmp_path: Path) -> None:
    page = read(a_full_run(tmp_path / "run"))
    names = [figure["aria-label"] for figure in page.every("svg")]
    assert names.count("What the attacks reached, by examples in the batch.") == 2  # wide and narrow
    assert names.count("What the attacks reached, by local steps.") == 2
    curve = section(page, "By batch size", "By local steps")
    # The plain target of batch 1 belongs on the curve: its point was measured.
    assert re.search(r"ig adaptive 0 1 leaks 2 of 3.* ig adaptive 0 4 leaks .* ig adaptive 0 16 no leak found", curve)
    assert "of 4 audited settings" in page.text


def test_headline_speaks_of_the_target_before_a_curve(tmp_path: Path) -> None:
    plain = full_entry("ig", 0, False, **nothing())
    curve = full_entry("ig", 0, False, curve="batch", batch=4)
    heading = read(a_run(tmp_path / "run", entries=[plain, curve])).heading
    assert heading.startswith("No leak found in method HyperFL on digits: attack ig recovered 0 of 3 training images")
    assert (
        "But with a batch of 4 it leaks: attack ig recovered 2 of 3 training images before the first round" in heading
    )
    alone = read(a_run(tmp_path / "alone", entries=[curve]))
    assert "recovered 2 of 3 training images before the first round, with a batch of 4" in alone.heading


def test_every_failure_is_named(tmp_path: Path) -> None:
    page = read(a_full_run(tmp_path / "run"))
    counted = "1 attack ended early, 9 attempts without a result, 2 clients’ answers missing, 3 recordings refused"
    assert counted in page.text[: page.text.index("What the attacks reached")]
    listed = section(page, "Failures 1 attack", "Training Accuracy as")
    assert "dlg static, round 2 the whole attack Ended after 3600 s." in listed
    assert "client 1, sample 41" in listed
    assert "update, round 1 client 3 out of memory" in listed
    assert "final evaluation client 1 no answer in 60 s" in listed
    assert "round-0001/client-003: SHA-256 differs." in listed and "2 messages" in listed
    assert {"href": "#failures"} in page.every("a")


def test_run_without_failures_mentions_none(tmp_path: Path) -> None:
    assert {"href": "#failures"} not in read(a_run(tmp_path / "run", attacks=())).every("a")
    assert first_screen([]) == ""
    assert first_screen([FailureLine("client", "", "", "")]) == "1 client’s answer missing"


def test_every_sample_has_all_its_figures(tmp_path: Path) -> None:
    gallery = section(read(a_full_run(tmp_path / "run")), "All reconstructions Original", "Failures 1 attack")
    for text in ("rank of the true one 3 of 100 candidates", "matching loss 0.01", "floor: uniform noise 8.0 dB"):
        assert text in gallery
    assert "attack ig adaptive, batch 16" in gallery
    assert "gain over the best floor 13.3 dB" in gallery


PLAIN = [
    ("leaks", {}, "Yes, it leaks. 2 of the 3 training images were recovered well enough to be recognised"),
    ("no leak found", nothing(), "No leak was found. Not one of the 3 training images was recovered."),
    ("static", nothing(), "This cannot be told from the test. Not one of the 3 training images was recovered, but the"),
    ("undecided", nothing(), "The test gave no answer. Not one of the 3 training images was recovered, but"),
    ("void", nothing(), "The test is not valid. A check that must always succeed has failed"),
]


@pytest.mark.parametrize(("verdict", "scores", "sentence"), PLAIN)
def test_each_verdict_has_plain_words(tmp_path: Path, verdict: str, scores: dict[str, Any], sentence: str) -> None:
    said = scores | conclusion(verdict)
    words = words_of(read(a_run(tmp_path / "run", entries=[full_entry("ig", 2, False, **said)])))
    assert sentence in words
    assert "3 training images of 3 clients were attacked after round 2" in words
    assert "dB" not in words and "PSNR" not in words
    assert ("Not sure at all" in words) == (verdict in ("undecided", "void"))
    records = [full_entry("ig", 2, True, **said)]
    assert sentence.split(" training images")[0] in words_of(read(a_run(tmp_path / "rows", True, entries=records)))


def test_plain_words_speak_of_records_and_of_what_training_sent(tmp_path: Path) -> None:
    entries = [full_entry("ig", 2, True, source="update")]
    words = words_of(read(a_run(tmp_path / "run", tabular=True, entries=entries)))
    assert "2 of the 3 training records were recovered with values close to the true ones" in words
    assert "Messages that training really sent were attacked." in words
    assert "only messages made for the test" not in words and "image" not in words
    probes = first_page(read(a_run(tmp_path / "probes")))
    assert "The messages that training really sent: only messages made for the test were attacked." in probes


def test_plain_words_of_a_run_without_an_audit(tmp_path: Path) -> None:
    words = words_of(read(a_run(tmp_path / "run", attacks=())))
    assert "Nothing was tested for leaks." in words and "Nothing is known about leaks." in words
    assert "recovered 0" not in words


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cause": "easy"}, "fails on an unprotected easy case as well"),
        ({"cause": "failures", "failures": 2}, "the attack gave no result for 2 of them"),
        ({"cause": "failures", "failure_reason": "ended after 3600 s"}, "the attack gave nothing (ended after 3600 s)"),
    ],
)
def test_undecided_says_why(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    item = full_entry("ig", 0, False, **nothing(verdict="undecided") | changes)
    assert why in words_of(read(a_run(tmp_path / "run", entries=[item])))


def test_plain_words_name_what_was_given_and_what_was_not(tmp_path: Path) -> None:
    words = words_of(read(a_full_run(tmp_path / "run")))
    assert "The attacker was given: the true labels." in words
    assert "It was not given: that the client uses prune." in words
    assert "The clients defended what they sent with prune." in words
    assert "100 steps in each of 2 searches" in words


def test_images_stay_images_where_every_attempt_failed(tmp_path: Path) -> None:
    empty = {"psnr": None, "ssim": None, "lpips": None, "distance": {"rmsd": None, "success": 0.0, "iterations": 5.0}}
    given = {"failure_reason": "crashed: no memory", **empty}
    item = full_entry("ig", 0, False, **given, **nothing(verdict="undecided", cause="failures"))
    page = read(a_run(tmp_path / "run", entries=[item]))
    assert "record" not in page.heading
    assert page.heading == (
        "Undecided: attack ig gave nothing (crashed: no memory), so this says nothing about what method HyperFL on "
        "digits leaks before the first round."
    )
    assert not re.search(r"\b(None|nan|NaN|Undefined)\b", page.text)


def test_samples_that_were_never_attacked_are_failures(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", entries=[full_entry("ig", 0, False, images=8, failures=6)])
    listed = section(read(folder), "Failures 6 attempts", "Training Accuracy")
    assert "client 1, sample 41 The attack gave no finite result." in listed
    assert "5 more samples Nothing of them was recorded" in listed


def test_what_an_attack_left_unused_is_not_called_given(tmp_path: Path) -> None:
    item = full_entry("ig", 0, False, granted=["the labels", "not made use of: the steps"])
    words = words_of(read(a_run(tmp_path / "run", entries=[item])))
    assert "The attacker was given: the labels." in words
    assert "It made no use of this: the steps." in words


def test_records_have_floors_in_their_own_unit(tmp_path: Path) -> None:
    item = full_entry("ig", 0, True, floors={"noise": 20.0, "mean": 40.0})
    text = section(read(a_run(tmp_path / "run", tabular=True, entries=[item])), "Floors:", "All reconstructions")
    assert (
        "RMSD Round 0 Uniform noise 0.100 One half everywhere – Mean of the normalisation – Public mean 0.010" in text
    )


def test_audit_of_recordings_does_not_speak_of_training(tmp_path: Path) -> None:
    origin = {"from": "/runs/earlier", "code": "abc"}
    text = read(a_run(tmp_path / "run", rounds=[], final=None, provenance=origin)).text
    assert "The recordings of another run were audited" in text and "recordings of /runs/earlier" in text
    assert "final accuracy" not in text


def test_static_point_of_a_curve_stands_on_the_line_of_its_attack(tmp_path: Path) -> None:
    plain = full_entry("ig", 0, False, adaptive=True)
    more = full_entry("ig", 0, False, adaptive=False, curve="steps", steps=4)
    folder = a_run(tmp_path / "run", entries=[plain, more])
    page = read(folder)
    assert page.heading.startswith("Method HyperFL on digits leaks: attack ig recovered")
    curve = section(page, "By local steps", "What the attacker had")
    assert re.search(r"ig 0 1 leaks .* ig static 0 4 leaks", curve)
    wide, _ = charts_in(
        (folder / "report.html").read_text(encoding="utf-8"), "What the attacks reached, by local steps."
    )
    # One line in either panel: it joins the point of one local step with that of four.
    assert [len(across) for across in lines_of(wide, "accent", width=1.25)] == [2, 2]
    assert "3 training images of 3 clients were attacked" in words_of(page)


def test_identified_people_are_mentioned_where_nothing_was_recovered(tmp_path: Path) -> None:
    scores = nothing(verdict="static") | {"identification_rate": 1 / 6, "identification_null": 0.035}
    words = words_of(read(a_run(tmp_path / "run", entries=[full_entry("ig", 0, False, images=6, **scores)])))
    assert re.search(r"In 17.% of the cases the result pointed to the right image", words)


TOLD = {"defence": "prune", "granted": ["that the client uses prune (ratio=0.9), to which it adapts with its own code"]}
UNTOLD = {"defence": "prune", "granted": ["not granted: that the client uses prune"], "adaptive": False}


def twin(static: str, informed: str, attack: str = "ig", **changes: Any) -> list[dict[str, Any]]:
    """An attack without and with knowledge of the defence, each with its verdict."""
    verdicts = [nothing(verdict=word) if word != "leaks" else {"verdict": word} for word in (static, informed)]
    plain = full_entry(attack, 0, False, **{"adaptation": None, **UNTOLD, **verdicts[0], **changes})
    adapted = {"adaptation": "automatic", "adaptive": True, **TOLD, **verdicts[1], **changes}
    return [plain, full_entry(attack, 0, False, **adapted)]


def test_static_and_adaptive_stand_side_by_side(tmp_path: Path) -> None:
    # As an audit of two vantages has them: every static entry before the adaptive ones.
    server, update = twin("static", "leaks"), twin("static", "leaks", vantage="client_update")
    server[1]["adaptive_gain"] = {"mean": 4.25, "low": 2.0, "high": 6.5}
    page = read(a_run(tmp_path / "run", entries=[server[0], update[0], server[1], update[1]]))
    glance = section(page, "Attack Round Verdict", "Static beside adaptive")
    order = [glance.index(f"{name} 0 ") for name in ("ig (server)", "ig told of prune (server)", "ig (client_update)")]
    assert order == sorted(order)
    pairs = section(page, "Static beside adaptive", "How close the")
    assert "not told of the defence, or of what the method does, then by one who is" in pairs
    row = "ig: 0 of 3, mean 24.0 dB undecided (static) ig told of prune: 2 of 3, mean 24.0 dB leaks"
    assert f"0 server {row} 4.2 2.0 to 6.5 0 client_update {row} – –" in pairs
    galleries = page.text[page.text.index("All reconstructions") :]
    assert galleries.index("ig told of prune (server), before") < galleries.index("ig (server), before")
    assert galleries.index("ig (server), before") < galleries.index("ig told of prune (client_update), before")


def test_an_attack_that_was_outdone_by_who_knew_less_says_so(tmp_path: Path) -> None:
    static, informed = twin("static", "undecided")
    page = read(a_run(tmp_path / "run", entries=[static, informed | {"failures": 0, "cause": "outdone"}]))
    assert (
        "but it got further without knowing of the defence, so its failure is not evidence of protection" in page.text
    )
    assert "the same attack got further without knowing of the defence. Nothing follows from its failure" in page.text


@pytest.mark.parametrize("column", [True, False])
def test_rows_of_twins_that_are_both_static_are_told_apart(tmp_path: Path, column: bool) -> None:
    """A method that hides tensors leaves both static; older tables have the name of the job's file alone."""
    folder = a_run(tmp_path / "run", entries=twin("static", "static", adaptive=False))
    rows = read_csv(folder / "audit.csv")
    for row, informed in zip(rows, [False] * IMAGES + [True] * IMAGES, strict=True):
        row["psnr"] = row["psnr"] and ("12.5" if informed else "11.5")
        if column:
            row["adaptation"] = "written" if informed else ""
        elif row["reconstruction"]:
            row["reconstruction"] = f"reconstructions/ig-r0000-target{'-adaptive' * informed}-000.safetensors"
    write_csv(folder / "audit.csv", rows)
    galleries = read(folder).text.rpartition("All reconstructions")[2]
    told_of, _, static = galleries.partition("ig, before the first round")  # the static one is set aside
    assert "11.5 dB" in static and "12.5 dB" not in static
    assert "12.5 dB" in told_of and "11.5 dB" not in told_of


def test_adaptive_form_answers_for_its_static_one(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run", entries=twin("static", "no leak found")))
    assert page.heading.startswith(
        "No leak found in method HyperFL with defence prune on digits: attack ig told of prune recovered 0 of 3"
    )
    assert "1 of which is static and set aside: beside it stands an adaptive one" in page.text
    words = words_of(page)
    assert "took no account" not in page.text and "No leak was found." in words
    assert "by somebody who does not know that prune is used: none of 3 recovered" in words
    assert "The same attack, told of it: 0 of 3, no leak found." in page.text  # in place of the static one's reason


def test_a_leak_of_the_static_form_is_the_answer(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run", entries=twin("leaks", "no leak found")))
    assert page.heading.startswith(
        "Method HyperFL with defence prune on digits leaks: attack ig recovered 2 of 3 training images"
    )
    assert "by somebody who knows that prune is used: none of 3 recovered" in words_of(page)


@pytest.mark.parametrize("elsewhere", [{"vantage": "client_example"}, {"defence": "none"}, {"round": 2}])
def test_what_is_adaptive_elsewhere_answers_for_nothing_here(tmp_path: Path, elsewhere: dict[str, Any]) -> None:
    static = twin("static", "static")[0]
    other = full_entry("ig", 0, False, **{**UNTOLD, "adaptive": True, **nothing(), **elsewhere})
    assert read(a_run(tmp_path / "run", entries=[static, other])).heading.startswith("Undecided: ")


def test_static_only_of_who_was_told_or_could_not_adapt_is_said_so(tmp_path: Path) -> None:
    hidden = read(a_run(tmp_path / "hidden", entries=twin("static", "static", adaptive=False)))
    assert hidden.heading.startswith("Undecided: attack ig told of prune recovered 0 of 3")
    assert "who is told of prune, makes no use of what else is hidden, so this is not evidence" in hidden.heading
    assert "took no account" not in words_of(hidden)
    steps = full_entry("ig", 2, False, **{**UNTOLD, **nothing(verdict="static")})
    some = read(a_run(tmp_path / "some", entries=[*twin("static", "no leak found"), steps]))
    assert some.heading.startswith("Undecided: attack ig recovered 0 of 3")
    assert "but here the attack could not adapt to what is hidden" in some.heading
    assert "took no account" not in words_of(some)


def test_forms_of_an_attack_have_lines_of_their_own_on_a_curve(tmp_path: Path) -> None:
    larger = twin("static", "leaks", curve="batch", batch=4)
    page = read(a_run(tmp_path / "run", entries=[*twin("static", "leaks"), *larger]))
    curve = section(page, "By batch size", "What the attacker had")
    forms = r"ig 0 1 undecided \(static\) .* ig told of prune 0 1 leaks .* ig 0 4 .* ig told of prune 0 4 leaks"
    assert re.search(forms, curve)
    # Where nobody can adapt to the larger probes, the plain target of who was told is no point of their curve.
    alone = read(a_run(tmp_path / "alone", entries=[*twin("static", "static", adaptive=False), larger[0]]))
    assert "told of" not in section(alone, "By batch size", "What the attacker had")


def test_updates_read_on_the_client_have_no_line_of_their_own_beside_the_servers(tmp_path: Path) -> None:
    both = [full_entry("ig", r, False, vantage=v) for r in ROUNDS for v in ("server", "client_update")]
    page = read(a_run(tmp_path / "both", entries=[*both, full_entry("ig", 0, False, vantage="client_example")]))
    assert "Updates read on the client are the server’s" in page.text
    source = (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    wide, _ = charts_in(source, "Accuracy of the clients by round, and below it what the attacks reached by round.")
    names = [text for text in texts_of(wide) if text.startswith("ig")]
    assert sorted(names) == ["ig (client_example) 24.0", "ig (server) 24.0"]
    alone = read(a_run(tmp_path / "alone", entries=[full_entry("ig", 0, False, vantage="client_update")]))
    assert "Updates read on the client are the server’s" not in alone.text
    assert "ig 24.0" in (tmp_path / "alone" / "report.html").read_text(encoding="utf-8")


def test_type_one_is_read_after_the_defence_and_type_two_is_never_sent(tmp_path: Path) -> None:
    update = read(a_run(tmp_path / "one", entries=[full_entry("ig", 0, False, vantage="client_update")]))
    assert "the very bytes that the server gets, after all that the client’s own defence does" in update.text
    assert "before the first round, read on the client before it is sent" in update.heading
    assert "sends it the same way" in words_of(update)
    example = read(a_run(tmp_path / "two", entries=[full_entry("ig", 0, False, vantage="client_example")]))
    assert "before what it does to the finished update (leakage of type 2)" in example.text
    assert "before the first round, from one example’s gradient on the client" in example.heading
    assert "sends it the same way" not in example.text and "the same wire" not in example.text
    assert "intercepted message" not in example.text and "the server, where it reads single messages" in example.text
    both = [full_entry("ig", 0, False, vantage=vantage) for vantage in ("client_example", "server")]
    words = words_of(read(a_run(tmp_path / "both", entries=both)))
    assert words.index("whoever runs the server") < words.index("somebody on the client’s own machine")
    assert "sends it the same way" in words and "was attacked as well" in words


def test_labels_that_an_attack_found_are_shown_where_they_were_not_granted(tmp_path: Path) -> None:
    withheld = ["not granted: the labels, which it reads off the last layer's gradient"]
    result = full_entry("idlg", 0, False, label_accuracy=0.875, granted=withheld)
    page = read(a_run(tmp_path / "run", entries=[result, full_entry("ig", 0, False, label_accuracy=None)]))
    closeness = section(page, "How close the reconstructions are", "What the attacker had")
    assert "Labels found" in closeness and closeness.count("87.5 %") == 1
    assert "Of the labels, which it was not given, it found 88 % by itself." in words_of(page)
    assert "of the labels, found by the attack itself" in page.text
    assert "found by the attack itself" not in read(a_run(tmp_path / "none")).text


def test_terminal_tells_entries_of_different_kinds_apart(tmp_path: Path) -> None:
    partly = twin("static", "leaks")
    partly.append(full_entry("ig", 0, False, adaptive=True, adaptation=None))
    example = full_entry("ig", 0, False, vantage="client_example", **{**UNTOLD, "adaptive": True})
    message = summary(a_run(tmp_path / "run", entries=[*partly, example])).splitlines()
    assert [line.partition(":")[0] for line in message[1:5]] == [
        "attack ig against prune (server) at round 0",
        "attack ig told of prune (server) at round 0",
        "attack ig undefended (server) at round 0",
        "attack ig (client_example) at round 0",
    ]


def test_a_damaged_result_without_a_vantage_or_with_half_a_character_has_a_report(tmp_path: Path) -> None:
    with_verdict(tmp_path, "leaks")
    result = json.loads((tmp_path / "result.json").read_text())
    first = {name: value for name, value in result["audit"][0].items() if name != "vantage"}
    result |= {"audit": [first, *result["audit"][1:]]}
    result["config"]["odd"] = "half of \ud800"
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert "half of \\ud800" in write_report(tmp_path).read_text()


@pytest.mark.parametrize("name", ["gone.safetensors", "y" * 300, "y\0"])
def test_without_the_file_of_the_truth_the_scores_are_shown(tmp_path: Path, name: str) -> None:
    folder = a_run(tmp_path)
    table = folder / "audit.csv"
    assert "truth/batch.safetensors" in table.read_text()
    table.write_text(table.read_text().replace("truth/batch.safetensors", name))
    assert read(folder).heading
