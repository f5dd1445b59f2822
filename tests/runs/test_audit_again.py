"""What a run recorded is audited again, thinned out, limited and removed; and what an audit asks for besides."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import sim
from flfw.engines import federation
from flfw.files.outcomes import outcome
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.recording.observation import Knowledge, Observation, Vantage, mean_gradient
from flfw.recording.reader import Recordings
from tests.support.attackable import fresh_net
from tests.support.small_runs import result_of, run_command

RUN = (
    "--method fedavg --net linear --engine inproc --clients 2 --rounds 1 --local-epochs 1 --attack analytic --images 2 "
    "--lr 0.1 --set weight_decay=0 momentum=0 --curve batch=1,2 steps=3"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients' probes of one example, two examples, and three local steps, before and after a round."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    run_command(folder, RUN)
    return folder


def entries(folder: Path) -> list[dict[str, Any]]:
    return result_of(folder)["audit"]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "audit.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def without_times(result: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = [{k: v for k, v in e.items() if k not in ("seconds", "scoring_seconds", "ladder")} for e in result]
    controls = [[{k: v for k, v in control.items() if k != "seconds"} for control in e["ladder"]] for e in result]
    return [{**entry, "ladder": controls} for entry, controls in zip(kept, controls, strict=True)]


# --- curves and local steps ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_curve_has_its_points_in_every_audited_round(recorded: Path) -> None:
    result = [(e["round"], e["curve"], e["batch"], e["steps"], e["images"]) for e in entries(recorded)]
    each = [(None, 1, 1, 2), ("batch", 2, 1, 4), ("steps", 1, 3, 2)]
    assert result == [(r, *point) for r in (0, 1) for point in each]
    assert {(row["curve"], row["batch"], row["steps"]) for row in rows(recorded) if row["rung"] == "target"} == {
        ("", "1", "1"), ("batch", "2", "1"), ("steps", "1", "3"),
    }  # fmt: skip


@pytest.mark.slow
def test_one_example_is_read_off_softmax_regression_after_several_steps_too(recorded: Path) -> None:
    """Without momentum and decay the change of W is the sum over steps of (p - y) x', which is of rank one."""
    for entry in entries(recorded):
        if entry["curve"] == "steps":
            assert entry["verdict"] == "leaks" and entry["share_recovered"] == 1.0 and entry["psnr"]["mean"] > 60
            assert entry["adaptive"] is False  # it leaks although nobody reckoned with the steps
            assert "that 3 local steps on the same 1 example were taken, and their learning rate" in entry["granted"]


@pytest.mark.slow
def test_two_examples_are_assigned_and_the_rule_has_its_null(recorded: Path) -> None:
    for entry in entries(recorded):
        if entry["curve"] == "batch":
            assert entry["assignment"]["rule"].startswith("one to one") and 0 < entry["assignment"]["null"] < 20
        else:
            assert entry["assignment"] is None


@pytest.mark.slow
def test_a_probe_of_several_steps_sends_what_so_many_steps_by_hand_give(recorded: Path) -> None:
    (observation, *_) = Recordings(recorded / "observations").probes("target", 0, point="steps-3")
    truth = load_file(recorded / "truth" / f"{observation.key}.safetensors")
    from flfw import data

    digits = data.load("digits", None, None)
    inputs = InputSpec.from_constants(digits.shape, digits.mean, digits.std)
    net = fresh_net("linear", inputs.shape)
    net.load_state_dict(observation.received)
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(net(inputs.normalise(truth["samples"])), truth["labels"])
        for parameter, gradient in zip(
            net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True
        ):
            parameter.data -= 0.1 * gradient
    for name, value in net.state_dict().items():
        torch.testing.assert_close(observation.sent[name], value)


def test_the_mean_gradient_by_hand() -> None:
    inputs = InputSpec.from_constants((4,), (0.0,) * 4, (1.0,) * 4)
    victim = PlainVictim(fresh_net("linear", (4,)), {}, ("*",), inputs)
    before, after = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.4, 2.6]), "n": torch.tensor([3])}
    observation = Observation(Vantage.SERVER, "update", "target", 1, 0, 0, sent=after, received=before)
    knowledge = Knowledge(victim, 1, None, steps=3, weights=True, lr=0.1)
    torch.testing.assert_close(mean_gradient(observation, knowledge), {"w": torch.tensor([2.0, -2.0])})
    unscaled = Knowledge(victim, 1, None, steps=3, weights=True)
    torch.testing.assert_close(mean_gradient(observation, unscaled), {"w": torch.tensor([0.2, -0.2])})
    assert mean_gradient(observation, Knowledge(victim, 1, None)) is after


# --- again --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_attack_again_finds_the_same(recorded: Path, tmp_path: Path) -> None:
    assert sim.main(["--from", str(recorded), "--out", str(tmp_path / "again")]) == 0
    assert without_times(entries(tmp_path / "again")) == without_times(entries(recorded))
    for row in rows(tmp_path / "again"):
        assert (tmp_path / "again" / row["truth"]).exists()
    result = result_of(tmp_path / "again")
    assert result["provenance"]["from"] == str(recorded)
    assert result["rounds"] == result_of(recorded)["rounds"]


@pytest.mark.slow
def test_another_attack_lands_beside_the_run(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "run")
    flags = ["--from", str(tmp_path / "run")]
    flags += "--attack ig --set ig.iterations=2 weight_decay=0 momentum=0".split()
    assert sim.main([*flags, "--audit-rounds", "0"]) == 0
    assert [(e["attack"], e["round"]) for e in entries(tmp_path / "run" / "audit-1")] == [("ig", 0)] * 3
    assert sim.main([*flags, "--audit-rounds", "1"]) == 0
    assert [e["round"] for e in entries(tmp_path / "run" / "audit-2")] == [1] * 3
    assert not (tmp_path / "run" / "audit-2" / "queue").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--lr 0.5", "Expected lr=0.1 as in {run}, got lr=0.5; --from changes audits only."),
        (
            "--curve steps=4",
            "Expected recordings of steps-4 at round 0 in {run}, got none; there are: batch-2 at round 0, ",
        ),
        (
            "--set momentum=0.9",
            "Expected --set momentum=0 weight_decay=0 as in {run}, got momentum=0.9; --from changes",
        ),
        ("--images 3", "Expected images <= 2, as many as were probed in {run}, got 3."),
        ("--attack none", "Expected --attack with --from, got none; name the attacks to run."),
        ("--attack nobody", "Expected an attack among "),
        ("--resume {run}", "Expected one of --resume, "),
    ],
)
def test_only_the_audit_may_change(recorded: Path, capsys: pytest.CaptureFixture[str], flags: str, line: str) -> None:
    before = sorted(recorded.rglob("*"))
    assert sim.main(["--from", str(recorded), *flags.format(run=recorded).split()]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"sim.py: {line.format(run=recorded)}") and message.count("\n") == 1
    assert sorted(recorded.rglob("*")) == before


@pytest.mark.slow
def test_damaged_recordings_are_named_and_the_rest_is_audited(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "run")
    line = Recordings(recorded / "observations").probe_lines("target", 0, point="target")[0]
    damaged = tmp_path / "run" / "observations" / line["sent_by_client"]["file"]
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    result = tmp_path / "again" / "result.json"
    assert sim.main(["--from", str(tmp_path / "run"), "--out", str(tmp_path / "again")]) == 0
    (refused,) = json.loads(result.read_text())["recordings"]["refused"]
    assert line["id"] in refused and "SHA-256" in refused
    assert any("could not be used: 1" in note for note in json.loads(result.read_text())["notes"])
    results = {(e["round"], e["curve"]): e for e in entries(tmp_path / "again")}
    assert results[0, None]["failures"] == 1 and results[0, None]["images"] == 2
    assert results[0, None]["verdict"] == "leaks" and results[1, None]["failures"] == 0


# --- what stays ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_purged_run_keeps_figures_and_no_pictures(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(recorded, folder)
    assert sim.main(["--from", str(folder), "--audit-rounds", "0"]) == 0
    assert "data:image/png" in (folder / "report.html").read_text()
    capsys.readouterr()
    assert sim.main(["--purge", str(folder)]) == 0
    removed = capsys.readouterr().out
    assert removed.startswith(f"Removed from {folder}:\n") and "\ntruth/: " in removed
    assert not list(folder.rglob("*.safetensors"))
    for report in (folder / "report.html", folder / "audit-1" / "report.html"):
        assert "data:image/png" not in report.read_text() and "leaks" in report.read_text()
    assert sim.main(["--from", str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_pictures_are_shown_only_where_they_are_wanted(recorded: Path, tmp_path: Path) -> None:
    assert sim.main(["--from", str(recorded), "--out", str(tmp_path / "without"), "--show-samples", "no"]) == 0
    assert "data:image/png" not in (tmp_path / "without" / "report.html").read_text()


@pytest.mark.slow
def test_recordings_are_thinned_out_after_the_audit(tmp_path: Path) -> None:
    result = run_command(tmp_path / "run", f"{RUN} --expert keep_recorded_rounds=1")
    assert {line["round"] for line in Recordings(tmp_path / "run" / "observations").lines} == {1}
    assert {e["round"] for e in result["audit"]} == {0, 1}
    assert sim.main(["--from", str(tmp_path / "run")]) == 2  # the controls are gone


@pytest.mark.slow
def test_what_does_not_fit_is_not_recorded_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "_RECORDED_BYTES", 20_000)
    result = run_command(tmp_path / "run", RUN)
    assert result["recordings"]["skipped"] > 0 and result["recordings"]["bytes"] <= 20_000
    assert any("Exchanges that were not recorded" in note for note in result["notes"])
    assert sum(e["failures"] for e in result["audit"]) > 0


@pytest.mark.slow
def test_lpips_is_there_with_its_weights_and_null_without(recorded: Path, tmp_path: Path) -> None:
    from torchvision.models import alexnet

    from flfw.rng import initialising

    assert all(entry["lpips"] is None for entry in entries(recorded))
    with initialising(0, "weights"):
        state = alexnet(weights=None).features.state_dict()
    save_file({f"features.{name}": value for name, value in state.items()}, tmp_path / "alexnet.safetensors")
    flags = ["--lpips-weights", str(tmp_path / "alexnet.safetensors"), "--audit-rounds", "0"]
    assert sim.main(["--from", str(recorded), "--out", str(tmp_path / "again"), *flags]) == 0
    first = entries(tmp_path / "again")[0]
    assert first["lpips"]["mean"] < 1e-3 and first["lpips"]["min"] <= first["lpips"]["mean"]  # exact copies
    weights = result_of(tmp_path / "again")["provenance"]["weights"]
    assert weights["lpips"]["official"] is None and len(weights["lpips"]["sha256"]) == 64
    assert sim.main(["--from", str(recorded), "--out", str(tmp_path / "no"), "--lpips-weights", "nowhere.pth"]) == 2
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_fewer_images_than_were_recorded_are_audited(recorded: Path, tmp_path: Path) -> None:
    assert sim.main(["--from", str(recorded), "--images", "1", "--out", str(tmp_path / "again")]) == 0
    for entry in entries(tmp_path / "again"):
        assert (entry["images"], entry["failures"]) == (entry["batch"], 0)


# --- interrupted, and in part ---


@pytest.mark.slow
def test_a_run_killed_after_its_results_only_tidies_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between thinning out the recordings and the end: their audit is over and must not be repeated on what is left."""
    from flfw.errors import RunError
    from flfw.runs import results

    keep_last = results.keep_last

    def dies(folder: Path, rounds: int) -> None:
        keep_last(folder, rounds)
        raise RunError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(results, "keep_last", dies)
        flags = [*RUN.split(), "--expert", "keep_recorded_rounds=1", "--out", str(tmp_path / "run")]
        assert sim.main(flags) == 1
    before = (tmp_path / "run" / "result.json").read_bytes()
    assert (tmp_path / "run" / "tidying.json").exists()
    assert sim.main(["--resume", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    assert not any((tmp_path / "run" / name).exists() for name in ("tidying.json", "training.json", "queue", "state"))


@pytest.mark.slow
def test_defended_and_undefended_clients_are_told_apart(tmp_path: Path) -> None:
    flags = f"{RUN} --defence prune --defended 1 --audit-rounds 0 --curve".replace("--curve batch=1,2 steps=3 ", " ")
    result = run_command(tmp_path / "run", f"{flags} steps=1 --set prune.ratio=0.995 weight_decay=0 momentum=0")
    defended, others = result["audit"]
    assert (defended["defence"], defended["images"], defended["adaptive"]) == ("prune", 1, False)
    assert "not granted: that the client uses prune" in defended["granted"]
    assert (others["defence"], others["images"], others["verdict"]) == ("none", 1, "leaks") and others["adaptive"]
    assert outcome(defended) == "static" and not any("prune" in sentence for sentence in others["granted"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "against prune" in page and "undefended" in page


@pytest.mark.slow
def test_what_is_granted_in_words_is_what_is_handed_over(recorded: Path) -> None:
    (observation, *_) = Recordings(recorded / "observations").probes("target", 0, point="target")
    numbers = sum(value.numel() for value in observation.received.values())
    assert f"the tensors broadcast in the round ({numbers:,} numbers)" in entries(recorded)[0]["granted"]


def test_a_curve_that_needs_more_examples_than_a_client_has_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sim.main([*RUN.split(), "--curve", "batch=100000", "--out", str(tmp_path / "run")]) == 2
    assert "lower --images, --victim-batch or --curve." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
