"""The report of a run, read back as a browser would: its answer, its pictures, and that it fits a phone."""

import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from flfw.audit.figures import png_uri, spread, stacked_panels
from flfw.audit.report import command, write_report
from flfw.errors import BadInput

VOID = {"meta", "link", "img", "br", "input", "hr"}
FLOORS = {"noise": 8.0, "grey": 9.0, "mean": 13.0, "class_mean": 15.0, "random_public": 10.5, "nearest_public": 17.9}
IMAGES, ROUNDS = 3, (0, 2)


class Page(HTMLParser):
    """Collects what the assertions ask for: tags with attributes, visible text, and the first heading."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.heading = ""
        self.feed(text)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)
        if "h1" in self.open:
            self.heading += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def every(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def entry(attack: str, round_: int, tabular: bool, **changes: Any) -> dict[str, Any]:
    scores = {"mean": 24.0, "low": 20.0, "high": 28.0, "max": 31.2}
    given = {
        "attack": attack,
        "adaptive": attack == "hyperfl",
        "vantage": "server",
        "source": "probe",
        "round": round_,
        "client": None,
        "defence": "none",
        "granted": ["The weights that the server sent.", "The labels of the batch."],
        "batch": 1,
        "steps": 1,
        "mode": "eval",
        "iterations": 100,
        "restarts": 2,
        "selection": "smallest matching loss",
        "seeds": [0],
        "images": IMAGES,
        "failures": 1,
        "psnr": None if tabular else scores,
        "ssim": None if tabular else {"mean": 0.8, "low": 0.7, "high": 0.9, "max": 0.95},
        "lpips": None,
        "distance": {"rmsd": 0.02, "success": 2 / 3, "iterations": 80} if tabular else None,
        "identification_rate": None,
        "share_recovered": 2 / 3,
        "floors": {} if tabular else FLOORS,
        "ladder": [{"rung": "control", "psnr": 60.0, "passed": True}, {"rung": "easy", "psnr": 33.0, "passed": True}],
        "verdict": "leaks",
        "reason": "Two of three stand above every floor.",
        "seconds": 12.5,
    }
    return {**given, **changes}


def audit_rows(folder: Path, entries: list[dict[str, Any]], tabular: bool) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    shape = (IMAGES, 12) if tabular else (IMAGES, 1, 8, 8)
    truth = rng.random(shape, dtype=np.float32)
    (folder / "truth").mkdir()
    save_file({"samples": truth}, folder / "truth" / "batch.safetensors")
    rows = []
    for item in entries:
        name = f"{item['attack']}-{item['round']}.safetensors"
        save_file({"samples": np.clip(truth + 0.1, 0, 1)}, folder / name)
        # The second sample fails; the third is the nearer of the other two.
        for index, psnr in enumerate((22.0, None, 31.2)):
            failed = psnr is None
            scored = not failed and not tabular
            row = {key: item[key] for key in ("attack", "adaptive", "vantage", "source", "round")}
            row |= {"rung": "target", "client": index, "victim": 40 + index, "image": index, "label": 7}
            row |= {"psnr": psnr if scored else "", "ssim": 0.9 if scored else "", "matching_loss": 0.01}
            row |= {"rmsd": (0.05 - 0.02 * index) if tabular and not failed else ""}
            row |= {"failed": failed, "recovered": not failed}
            row |= {f"floor_{key}": "" if tabular else value for key, value in FLOORS.items()}
            row |= {"truth": "truth/batch.safetensors", "reconstruction": "" if failed else name}
            rows.append(row)
    return rows


def a_run(folder: Path, tabular: bool = False, attacks: tuple[str, ...] = ("ig", "hyperfl"), **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    entries = [entry(attack, round_, tabular) for attack in attacks for round_ in ROUNDS]
    row = {"loss": 1.5, "clients": 4, "failures": 0, "upload_bytes": 8_000_000, "download_bytes": 8_400_000}
    rounds = [
        {
            "round": number,
            "acc_global": 0.5 + 0.1 * number,
            "acc_local": 0.6 + 0.1 * number,
            "seconds": 2.0,
            "extra": {},
        }
        | row
        for number in (1, 2)
    ]
    result = {
        "flfw": "0.1.0",
        "config": {"method": "HyperFL", "dataset": "digits", "rounds": 2, "seed": 0, "attack": list(attacks)},
        "provenance": {
            "code": "abc",
            "data": {"name": "digits", "source": "embedded", "md5_ok": True},
            "weights": None,
        },
        "environment": {"python": "3.11", "torch": "2.9", "hardware": "2 cores"},
        "notes": ["The images were re-encoded as JPEG."],
        "rounds": rounds,
        "final": {
            "acc_global": 0.71,
            "acc_local": 0.82,
            "acc_central": None,
            "per_client": [{"client": 0, "acc_local": 0.5}, {"client": 1, "acc_local": None}],
        },
        "privacy": [],
        "audit": entries,
    }
    result |= changes
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    if entries:
        rows = audit_rows(folder, entries, tabular)
        with (folder / "audit.csv").open("w", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(lines, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return folder


def read(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def with_verdict(folder: Path, verdict: str, **changes: Any) -> Page:
    a_run(folder)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    for item in result["audit"]:
        item.update(verdict=verdict, **changes)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return read(folder)


def test_leak_opens_with_what_came_out(tmp_path: Path) -> None:
    heading = with_verdict(tmp_path / "run", "leaks").heading
    assert heading.startswith(
        "HyperFL on digits leaks: ig static recovered 2 of 3 training images before the first round"
    )
    assert heading.endswith("(best 31.2 dB, where the best public look-alike scores 17.9 dB).")


@pytest.mark.parametrize(
    ("verdict", "opens", "says"),
    [
        ("no leak found", "No leak found in HyperFL on digits", "the same attack succeeds on an undefended easy case"),
        ("inconclusive", "Inconclusive", "did not solve the undefended easy case either"),
        ("attack broken", "Attack broken", "so this says nothing about what HyperFL on digits leaks"),
    ],
)
def test_each_verdict_has_its_own_sentence(tmp_path: Path, verdict: str, opens: str, says: str) -> None:
    heading = with_verdict(tmp_path / "run", verdict).heading
    assert heading.startswith(opens)
    assert says in heading


def test_static_attacks_are_no_evidence_of_protection(tmp_path: Path) -> None:
    heading = with_verdict(tmp_path / "run", "static only", adaptive=False).heading
    assert heading.startswith("Static only: ")
    assert "no attack adapted to what the method hides was run, so this is not evidence of protection" in heading


def test_broken_attack_says_nothing_about_the_defence(tmp_path: Path) -> None:
    heading = with_verdict(tmp_path / "run", "attack broken", defence="prune").heading
    assert heading.endswith("so this says nothing about the defence prune.")


def test_adaptive_answer_stands_before_the_static_one(tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    source = tmp_path / "run" / "result.json"
    result = json.loads(source.read_text(encoding="utf-8"))
    for item in result["audit"]:
        item["verdict"] = "no leak found" if item["adaptive"] else "static only"
    source.write_text(json.dumps(result), encoding="utf-8")
    assert read(tmp_path / "run").heading.startswith("No leak found in HyperFL on digits: hyperfl adaptive")


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
    assert "gain 18.2 dB" in gallery


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    page = read(folder)
    loads = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(str(value).startswith(("data:", "#")) for value in loads)
    assert not page.every("script") and not page.every("link")
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
    assert page.heading.startswith("HyperFL on <b>x</b> leaks")
    assert not page.every("script")
    assert "<b>x</b>" not in (folder / "report.html").read_text(encoding="utf-8")


def test_caveats_stand_on_the_first_screen(tmp_path: Path) -> None:
    data = {"name": "cifar10", "source": "mirror", "md5_ok": False}
    text = read(a_run(tmp_path / "run", provenance={"data": data})).text
    first = text[: text.index("What the attacker had")]
    assert "re-encoded as JPEG" in first
    assert "The checksum of cifar10 is not the published one" in first


def test_records_without_pixels_are_drawn_as_features(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run", tabular=True))
    assert not page.every("img")
    strips = [figure for figure in page.every("svg") if figure.get("class") == "strip"]
    assert len(strips) == 4 * 3 + 2
    assert "recovered 2 of 3 training records" in page.heading
    assert "closest at a distance of 0.010 RMSD" in page.heading


def test_run_without_an_audit_claims_nothing(tmp_path: Path) -> None:
    page = read(a_run(tmp_path / "run", attacks=()))
    assert page.heading.startswith("Not audited: HyperFL on digits was trained and no attack was run")
    assert "All reconstructions" not in page.text
    assert "71.0 %" in page.text and "82.0 %" in page.text


def test_missing_values_and_missing_pictures_leave_a_page(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", rounds=[], final={"acc_global": None, "acc_local": float("nan")})
    shutil.rmtree(folder / "truth")
    page = read(folder)
    assert "not kept" in page.text
    assert "No training round was run" in page.text
    assert not re.search(r"\b(None|nan|NaN)\b", page.text)


def test_perfect_copy_is_an_infinity_in_words_only(tmp_path: Path) -> None:
    perfect = {"mean": float("inf"), "low": 40.0, "high": float("inf"), "max": float("inf")}
    page = with_verdict(tmp_path / "run", "leaks", psnr=perfect)
    assert "∞" in page.text
    assert not re.search("inf|nan", " ".join(str(path["d"]) for path in page.every("path")))


def test_unfinished_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds no result\.json"):
        write_report(tmp_path)


def test_same_run_gives_the_same_page(tmp_path: Path) -> None:
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


def test_colour_and_nan_become_a_picture() -> None:
    assert png_uri(np.full((3, 4, 4), np.nan)).startswith("data:image/png;base64,")


def test_labels_never_overlap() -> None:
    placed = sorted(spread([40.0, 41.0, 42.0, 100.0, 100.0], 15, 0, 100))
    assert min(np.diff(placed)) >= 15
    assert stacked_panels([], "nothing") == ""


def chromium(profile: Path, *arguments: str) -> str:
    binary = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if binary is None:
        pytest.skip("no chromium on PATH: the page is not looked at in a real browser")
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"]
    quiet += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
    ended = subprocess.run([binary, *quiet, *arguments], capture_output=True, text=True, timeout=90, check=True)
    return ended.stdout


@pytest.mark.parametrize("tabular", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_fits_a_real_browser(tmp_path: Path, width: int, tabular: bool) -> None:
    folder = a_run(tmp_path / "run", tabular=tabular)
    report = write_report(folder)
    shot = tmp_path / "shot.png"
    chromium(tmp_path / "profile", f"--window-size={width},900", f"--screenshot={shot}", report.as_uri())
    assert shot.stat().st_size > 10_000
    # Headless Chromium keeps windows at 500 px or wider when it dumps a page, so a frame stands in for the phone.
    page = report.read_text(encoding="utf-8").replace("&", "&amp;").replace('"', "&quot;")
    measure = (
        "const d = document.querySelector('iframe').contentDocument.documentElement; document.title = d.scrollWidth"
    )
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe>'
        f"<script>onload = () => {{ {measure} }}</script>",
        encoding="utf-8",
    )
    title = re.search(r"<title>(\d+)</title>", chromium(tmp_path / "profile", "--dump-dom", frame.as_uri()))
    assert title is not None
    assert int(title.group(1)) <= width
