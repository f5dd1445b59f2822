"""How the files of this folder were made, by version 0.1.0 on 2026-11-28: ``python -m tests.readable.make FOLDER``.

This is a note, not a tool: a file that is here is never made anew. A later format gets a new folder beside these, such
as ``runs/finished-2``, and a function of its own here.

    runs/finished    a run of fedavg on the digits that is over, audited by ig and on membership, without its report
    runs/trained     the same run, which was killed before its audit was done
    runs/cut         a run of scaffold that was cut short behind round 1 of 2; its clients keep private tensors
    recordings       messages of an app of somebody else, by `RecordingGrid`, as docs/recording.md shows
    federation       what ``flfw deploy status`` reads of a federation: no key is among it; a ledger of five messages
    policies         page.toml is that of docs/deployment.md, the others are written by hand
    evidence         records of papers/evidence, copied
    package          a method, a defence and attacks of an own package, written by hand after docs/extending.md
    *.txt            lists, written by hand after README.md, docs/ and the names that `sim.py --list` prints
"""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

import sim
from flfw.deploy.__main__ import main as deploy
from flfw.deploy.quota import Quota
from flfw.dp.budget import EpsilonBudget
from flfw.dp.site_ledger import MessageEntry, charge
from flfw.messages.inprocess import InProcessGrid
from flfw.privacy.mechanism import Mechanism
from flfw.recording.grid import RecordingGrid
from flfw.runs import results, run
from tests.readable import own_app
from tests.support import resumed_runs
from tests.support.paths import ROOT

FINISHED = (
    "--method fedavg --dataset digits --net linear --clients 3 --rounds 2 --local-epochs 1 --engine inproc"
    " --attack ig membership --images 2 --membership-pairs 10 --set ig.iterations=2 ig.restarts=1"
)
CUT = (
    "--method scaffold --dataset digits --net linear --clients 3 --rounds 2 --local-epochs 1 --engine inproc"
    " --attack ig --images 2 --audit-rounds 0,last --set ig.iterations=2 ig.restarts=1"
)
EVIDENCE = (
    "fed_cdp.5/Adult.0.accuracy.authors.seed0.json",  # with an epsilon of inf
    "hyperfl.1/HyperFL.Fashion-MNIST.20.accuracy.authors.seed0.json",
)


def runs(folder: Path) -> None:
    """The run that is over, the one that was not audited, and the one that was cut short."""
    sys.orig_argv = ["python", "sim.py", *FINISHED.split()]  # results name the command
    assert sim.main([*FINISHED.split(), "--out", str(folder / "finished")]) == 0
    (folder / "finished" / "report.html").unlink()
    trained(folder / "trained")
    sys.orig_argv = ["python", "sim.py", *CUT.split()]
    cut = sim.parse(CUT.split()).experiment
    resumed_runs.cut_short(replace(cut, out=folder / "cut"), 1)
    for lock in folder.glob("*/checkpoint/.*"):
        lock.unlink()


def trained(out: Path) -> None:
    """A run whose process ended at the beginning of its audit."""
    words = [*FINISHED.replace(" membership", "").split(), "--out", str(out)]
    sys.orig_argv = ["python", "sim.py", *words[:-2]]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(results, "audit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run.run(sim.parse(words).experiment)


def recordings(folder: Path) -> None:
    """Two clients of another app, a round."""
    grid = RecordingGrid(InProcessGrid(own_app.app, 2, {}), folder)
    FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord(own_app.build().state_dict()), num_rounds=1)


def federation(folder: Path) -> None:
    """A federation of one site, without its keys and its policy."""
    assert deploy(["init", str(folder), "--clients", "1", "--methods", "fed_cdp"]) == 0
    files = {name: (folder / name).read_bytes() for name in ("federation.toml", "superlink/server.pem")}
    shutil.rmtree(folder)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    ledger(folder / "site-0" / "ledger")


BUDGET = EpsilonBudget(80.0, 1e-5)
STEPS = Mechanism(1.0, 6, clipping_norm=4.0, groups=3, max_participations=2)
UPDATE = Mechanism(2.0, 1, clipped="client", noise_divisor=3)
FIRST = MessageEntry("a1b2", 1, "train", "fed_cdp", STEPS, examples=120, sends=("*",))
MESSAGES = (
    FIRST,
    replace(FIRST, round=2),
    replace(FIRST, round=0, kind="query.probe", mechanism=Mechanism(1.0, 1, clipping_norm=4.0, groups=3)),
    replace(FIRST, run="c3d4", method="dp_fedavg", mechanism=UPDATE, metrics=Mechanism(9.0, 1), held=150),
    replace(FIRST, run="c3d4", round=3, kind="evaluate", mechanism=None, sends=()),
)


def ledger(folder: Path) -> None:
    """Five messages of two runs, and as many answers."""
    from flwr.app import Message, RecordDict

    answers = Quota(folder / "answers.jsonl", 50)
    for entry in MESSAGES:
        charge(folder / "messages.jsonl", BUDGET, entry)
        assert answers.refuses(Message(RecordDict(), dst_node_id=1, message_type="train")) is None


def evidence(folder: Path) -> None:
    """Records of two tables."""
    for name in EVIDENCE:
        (folder / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / "papers" / "evidence" / name, folder / name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    for part in (runs, recordings, federation, evidence):
        part(Path(part.__name__))
