"""A membership game is played again from the recordings of a run: the same scores, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import sim
from flfw.engines import federation
from flfw.recording.reader import Recordings

RUN = (
    "--method fedavg --net linear --dataset digits --engine inproc --clients 3 --rounds 2 --local-epochs 1 --images 3 "
    "--expert membership_pairs=20 --audit-rounds 1,2"
)
ATTACK = "--attack membership --set membership.public=40 membership.width=16"


def membership(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text())["membership"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of three clients, with their uploads and 20 pairs of each."""
    folder = tmp_path_factory.mktemp("played") / "run"
    assert sim.main([*f"{RUN} {ATTACK}".split(), "--out", str(folder)]) == 0
    return folder


@pytest.mark.nightly
def test_the_same_attack_again_gives_the_same_scores_to_the_bit(played: Path, tmp_path: Path) -> None:
    assert not (played / "truth").exists()  # pairs are drawn anew from the seed, and no probe was sent
    assert sim.main(["--from", str(played), "--out", str(tmp_path / "again")]) == 0
    assert membership(tmp_path / "again") == membership(played)
    assert {item["pairs"] for item in membership(played)} == {60}


@pytest.mark.slow
def test_one_round_of_two_is_another_audit(played: Path, tmp_path: Path) -> None:
    flags = ["--audit-rounds", "2", "--images", "2", "--out", str(tmp_path / "again")]
    assert sim.main(["--from", str(played), *flags]) == 0
    first, again = membership(played)[0], membership(tmp_path / "again")[0]
    assert (again["rounds"], again["clients"]) == ([2], 2) and again["auc"] != first["auc"]


@pytest.mark.nightly
def test_uploads_recorded_for_another_attack_serve_as_well(tmp_path: Path, played: Path) -> None:
    flags = "--attack analytic --audit-source update"
    assert sim.main([*f"{RUN} {flags}".split(), "--out", str(tmp_path / "run")]) == 0
    assert membership(tmp_path / "run") == []
    assert sim.main(["--from", str(tmp_path / "run"), *ATTACK.split(), "--out", str(tmp_path / "again")]) == 0
    assert membership(tmp_path / "again") == membership(played)


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    capsys.readouterr()
    assert sim.main(list(flags)) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


@pytest.mark.slow
def test_other_pairs_are_refused_and_none_say_how_to_train(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"Expected membership-pairs=20 as in {played}, got membership-pairs=21; --from changes audits only."
    assert line in refused(capsys, "--from", str(played), "--expert", "membership_pairs=21")
    without = RUN.replace("--expert membership_pairs=20 ", "")
    assert sim.main([*without.split(), "--attack", "analytic", "--out", str(tmp_path / "run")]) == 0
    for given in ("", "--expert membership_pairs=20"):
        message = refused(capsys, "--from", str(tmp_path / "run"), *ATTACK.split(), *given.split())
        assert f"got {tmp_path / 'run'}, which held no example out; train it anew with --attack membership" in message


def test_pairs_of_data_that_only_sites_have_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server could neither draw the pairs nor show an attack the examples."""
    flags = "--federation nowhere --method fedavg --dataset site:1x8x8:10 --net linear --clients 2 --out"
    requested = [*flags.split(), str(tmp_path / "run")]
    assert "--attack none with site:1x8x8:10" in refused(capsys, *requested, "--attack", "membership")
    without = ("--attack", "none", "--expert", "record=true", "membership_pairs=5")
    assert "membership-pairs=none for site:1x8x8:10, as the server would need the data" in refused(
        capsys, *requested, *without
    )


@pytest.mark.slow
def test_uploads_that_were_not_recorded_are_named(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "--from", str(played), "--audit-rounds", "0,2", "--attack", "analytic")
    assert f"Expected {played / 'truth'} to score against, got none" in message
    assert sim.main([*f"{RUN} --attack analytic".split(), "--out", str(tmp_path / "run")]) == 0
    message = refused(capsys, "--from", str(tmp_path / "run"), *ATTACK.split())
    assert (
        f"Expected recorded uploads of round 1 in {tmp_path / 'run'}, got those of no round; only --expert rec"
        in message
    )


@pytest.mark.slow
def test_only_uploads_of_audited_rounds_are_recorded_and_the_last_ones_kept(played: Path, tmp_path: Path) -> None:
    lines = Recordings(played / "observations").lines
    assert sorted((line["type"], line["round"]) for line in lines) == [("train", r) for r in (1, 2) for _ in range(3)]
    flags = f"{RUN} {ATTACK} --expert keep_recorded_rounds=1 --rounds 3"
    assert sim.main([*flags.split(), "--out", str(tmp_path / "run")]) == 0
    assert membership(tmp_path / "run") == membership(played)  # the third round is not audited
    assert {line["round"] for line in Recordings(tmp_path / "run" / "observations").lines} == {2}


@pytest.mark.slow
def test_uploads_that_did_not_fit_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = 4 * 10 * 65
    monkeypatch.setattr(federation, "_RECORDED_BYTES", 2 * each + 600)  # a broadcast and an upload
    assert sim.main([*f"{RUN} {ATTACK}".split(), "--out", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["recordings"]["exchanges"] < 6 and result["recordings"]["skipped"] > 0
    assert any("Exchanges that were not recorded" in note for note in result["notes"])


@pytest.mark.slow
def test_damaged_uploads_are_named_and_the_rest_is_scored(played: Path, tmp_path: Path) -> None:
    shutil.copytree(played, tmp_path / "run")
    line = Recordings(played / "observations").update_lines(1)[0]
    damaged = tmp_path / "run" / "observations" / line["sent_by_client"]["file"]
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    assert sim.main(["--from", str(tmp_path / "run"), "--out", str(tmp_path / "again")]) == 0
    result = json.loads((tmp_path / "again" / "result.json").read_text())
    (sentence,) = result["recordings"]["refused"]
    assert line["id"] in sentence and any("could not be used: 1" in note for note in result["notes"])
    assert {item["clients"] for item in result["membership"]} == {3}
