"""A membership audit that is killed goes on to the same items and does nothing twice; no engine changes them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from flfw.audit import attack_worker
from flfw.audit.jobs import AttackJob, JobResult
from flfw.experiment import Experiment
from flfw.recording.reader import Recordings
from flfw.runs import results, run
from tests.support.resumed_runs import cut_short
from tests.support.small_runs import tiny

CONTROLS = 2  # examples learnt by heart, and single steps
SMALL = ("membership.public=20", "membership.width=8")


class Killed(BaseException):
    """End of the process, which no attack may survive."""


def asked(out: Path) -> Experiment:
    """Two rounds of three clients, five pairs each, both rounds attacked."""
    game = {"attack": ("membership",), "membership_pairs": "5", "audit_rounds": "1,2", "set": SMALL}
    return tiny(out, dataset="digits", clients=3, rounds=2, images=3, **game)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.run(asked(tmp_path_factory.mktemp("whole") / "run"))


def membership(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text())["membership"]


def assert_alike(one: Path, two: Path) -> None:
    """Compare two runs to the bit: what clients sent, and what was concluded from it."""
    assert membership(one) == membership(two) != []
    kept = [Recordings(folder / "observations").lines for folder in (one, two)]
    sent = [[(line["id"], line["sent_to_client"], line["sent_by_client"]) for line in lines] for lines in kept]
    assert sent[0] == sent[1]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the jobs that are done."""
    done, solve = list[str](), attack_worker.solve

    def noting(job: AttackJob) -> JobResult:
        done.append(job.probe_set.point)
        return solve(job)

    monkeypatch.setattr(attack_worker, "solve", noting)
    return done


def killed(monkeypatch: pytest.MonkeyPatch, at: tuple[Any, str], folder: Path, when: Callable[..., bool]) -> None:
    """Run until a function is called in a given case."""
    place, name = at
    original = getattr(place, name)

    def dying(*given: Any, **more: Any) -> Any:
        if when(*given):
            raise Killed
        return original(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, dying)
        with pytest.raises(Killed):
            run.run(asked(folder))


def always(*_: Any) -> bool:
    return True


@pytest.mark.nightly
def test_killed_in_training(whole: Path, tmp_path: Path) -> None:
    folder = cut_short(asked(tmp_path / "run"), 1)
    run.resume(asked(folder))
    assert_alike(whole, folder)


@pytest.mark.nightly
def test_killed_before_the_attack(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, (results, "finish"), tmp_path / "run", always)
    assert not list((tmp_path / "run" / "queue").glob("candidates*"))
    run.resume(asked(tmp_path / "run"))
    assert_alike(whole, tmp_path / "run")


@pytest.mark.slow
def test_killed_while_the_attack_runs(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The controls are done.
    killed(monkeypatch, (attack_worker, "solve"), tmp_path / "run", lambda job: job.probe_set.point == "membership")
    queue = tmp_path / "run" / "queue"
    assert len(list(queue.glob("*.solved.json"))) == CONTROLS
    candidates = queue / "candidates-target.safetensors"
    candidates.write_bytes(candidates.read_bytes()[:100])  # as if the disk had kept half of it
    done = counted(monkeypatch)
    run.resume(asked(tmp_path / "run"))
    assert done == ["membership"]
    assert_alike(whole, tmp_path / "run")


@pytest.mark.nightly
def test_killed_after_the_attack(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, (results, "write_rows"), tmp_path / "run", always)
    done = counted(monkeypatch)
    run.resume(asked(tmp_path / "run"))
    assert done == []
    assert_alike(whole, tmp_path / "run")


@pytest.mark.nightly
def test_the_process_of_the_attacks_gives_the_same_scores(whole: Path, tmp_path: Path) -> None:
    assert membership(run.run(replace(asked(tmp_path / "run"), attack_process="after"))) == membership(whole)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["ray", "flwr-sim", "flwr"])
def test_every_engine_gives_the_same_scores(whole: Path, tmp_path: Path, engine: Any) -> None:
    assert membership(run.run(replace(asked(tmp_path / "run"), engine=engine))) == membership(whole)


def test_a_share_of_a_gpu_is_refused_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method fedavg --dataset digits --net linear --engine inproc --clients 3 --attack membership"
    assert sim.main([*flags.split(), "--attack-gpus", "0.5", "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "Expected --attack-gpus 0 on a machine without a GPU, got attack_gpus=0.5" in message
    assert message.count("\n") == 1 and not (tmp_path / "run").exists()
