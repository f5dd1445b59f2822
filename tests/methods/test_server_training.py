"""Servers that train: killed while they do, how much memory they take, and what they leave alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import sim
from flfw.experiment import Experiment
from flfw.messages.wire import pack
from flfw.nets import Tensors
from flfw.nets.training.optimisers import SGD
from flfw.server.aggregation import Update
from flfw.server.distillation import TrainingServer
from tests.support.paths import ROOT
from tests.support.resumed_runs import without_times
from tests.support.rounds import place

TWO_ROUNDS = (
    "--method fedcg --dataset digits --clients 2 --rounds 2 --local-epochs 1 --lr 3e-4 --batch-size 20 --split sampled "
    "--attack none --set sampled.train=40 iterations=100"
)


# --- killed while it trains ---------------------------------------------------------------------------------------


def killed_in_round_two(folder: Path, engine: str) -> None:
    """Start the run in a process of its own, and kill it when both clients have trained in round 2."""
    flags = [*TWO_ROUNDS.split(), "--engine", engine, "--out", str(folder)]
    process = subprocess.Popen([sys.executable, "sim.py", *flags], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        while len(list(folder.glob("state/*/*/client-*/round-00002-*.safetensors"))) < 2 and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.1)  # the last upload is on its way
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
    done = [path.name for path in folder.glob("checkpoint/round-*")]
    assert any(name.startswith("round-00001") for name in done), "killed before round 2"
    assert not any(name.startswith("round-00002") for name in done), "killed after the server had trained in round 2"


def outcome(folder: Path) -> tuple[object, Tensors]:
    """The results, and the last model with what the server remembers."""
    (model,) = (folder / "checkpoint").glob("round-*.safetensors")
    return without_times(json.loads((folder / "result.json").read_text())), load_file(model)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["inproc", "ray"])
def test_a_run_killed_while_its_server_trains_resumes_bit_equal(tmp_path: Path, engine: str) -> None:
    assert sim.main([*TWO_ROUNDS.split(), "--engine", engine, "--out", str(tmp_path / "whole")]) == 0
    killed_in_round_two(tmp_path / "killed", engine)
    assert sim.main(["--resume", str(tmp_path / "killed")]) == 0
    (whole, model), (result, same) = outcome(tmp_path / "whole"), outcome(tmp_path / "killed")
    resumed = json.loads((tmp_path / "killed" / "result.json").read_text())["provenance"]["resumed"]
    assert [once["after_round"] for once in resumed] == [1]
    assert result == whole
    assert model.keys() == same.keys() and {name.partition("/")[0] for name in model} == {"model", "server", "versions"}
    assert all(torch.equal(model[name], same[name]) for name in model)


# --- memory -------------------------------------------------------------------------------------------------------

# Every tensor of more than 64 KB is given back at once, so that the largest size is that of what was alive.
PEAKS = """
from pathlib import Path
from flfw.server.aggregation import Update
from flfw.experiment import Experiment
from flfw.messages.sharing import matches
from flfw.server.context import ServerContext
from flfw.plans.run_plan import plan
from flfw.messages.wire import pack

def kilobytes(what):
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1])

settings = ("iterations=40", "server_batch=16", "sampled.train=60")
experiment = Experiment(method="fedcg", net="lenet5", split="sampled", clients=2, set=settings)
run_plan = plan(experiment)
experiment, cls, chosen = run_plan.experiment, run_plan.client.method, run_plan.client.settings
for count in (2, 2, 6, 2, 6):
    strategy = cls(chosen)
    strategy.ctx = ServerContext(plan(experiment).client)
    model = strategy.ctx.model().state_dict()
    first = {n: v.clone() for n, v in model.items() if matches(n, cls.downloads)}
    sent = {n: v for n, v in first.items() if matches(n, cls.uploads)}
    uploads = [Update(p, 10, {n: v.clone() for n, v in sent.items()}) for p in range(count)]
    arrays = pack(first)
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    strategy.aggregate_round(arrays, iter(uploads), 1)
    print(kilobytes("VmHWM") - before)
"""


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells a process its largest size")
def test_memory_beside_the_uploads_does_not_grow_with_their_number() -> None:
    """Of FedCG, whose uploads have 3.6 MB each: were four more of them copied, it would be 14 MB."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "0",
    }
    printed = subprocess.check_output([sys.executable, "-c", PEAKS], cwd=ROOT, env=environment, text=True)
    _, *measured = map(int, printed.split())  # the first round also loads what all of them need
    two, six = max(measured[0::2]), max(measured[1::2])  # rounds with so many uploads
    assert six - two < 3000, printed


# --- what every such server has -----------------------------------------------------------------------------------


@final
class Watched(TrainingServer):
    """Steps along 1, remembering its velocity, and notes what it was given."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.sgd = SGD(1.0, momentum=0.5)

    def trained(self, uploads: Sequence[Update], mean: Tensors) -> Tensors:
        self.seen = [update.partition for update in uploads], mean, torch.get_num_threads()
        self.drawn = torch.rand(3, generator=self.rng).tolist()
        moved = {"w": mean["w"].clone().requires_grad_()}
        with self.resumed(self.sgd, moved):
            self.sgd.step(moved, {"w": torch.ones(1)})
        return moved


def watched() -> Watched:
    strategy = Watched(seed=3)
    strategy.ctx = place(Experiment())
    return strategy


def sent(*values: float) -> list[Update]:
    return [Update(k, k + 1, {"w": torch.tensor([value])}) for k, value in enumerate(values)]


def test_it_trains_the_weighted_mean_on_one_thread_and_remembers() -> None:
    strategy, arrays = watched(), pack({"w": torch.zeros(1)})
    torch.set_num_threads(2)
    result = strategy.aggregate_round(arrays, iter(sent(0.0, 3.0)), 1)
    assert torch.get_num_threads() == 2
    assert (strategy.seen[0], strategy.seen[1]["w"].tolist(), strategy.seen[2]) == ([0, 1], [2.0], 1)
    assert result["w"].tolist() == [1.0] and not result["w"].requires_grad
    assert strategy.state["velocity/w"].tolist() == [1.0]
    first = strategy.drawn
    assert strategy.aggregate_round(arrays, iter(sent(0.0, 3.0)), 2)["w"].tolist() == [0.5]  # 2 - (0.5 + 1)
    assert strategy.state["velocity/w"].tolist() == [1.5] and strategy.drawn != first
    again = watched()
    again.state = {"velocity/w": torch.tensor([1.0])}
    assert again.aggregate_round(arrays, iter(sent(0.0, 3.0)), 2)["w"].tolist() == [0.5]
    assert again.drawn == strategy.drawn


def test_what_it_remembers_is_not_what_the_optimiser_goes_on_with() -> None:
    """A snapshot that a checkpoint is being written from must not change under it."""
    strategy, arrays = watched(), pack({"w": torch.zeros(1)})
    strategy.aggregate_round(arrays, iter(sent(1.0)), 1)
    kept: Tensor = strategy.snapshot(1, arrays, None).state["velocity/w"]
    strategy.aggregate_round(arrays, iter(sent(1.0)), 2)
    assert kept.tolist() == [1.0]


def test_without_a_place_it_says_what_it_lacks() -> None:
    with pytest.raises(RuntimeError, match=r"^Expected Watched\.ctx, the ServerContext of a run, got none\.$"):
        _ = Watched().require_context


def test_a_place_gives_the_model_that_every_run_begins_with_and_leaves_torch_s_generator_alone() -> None:
    here, before = place(Experiment(net="lenet5", method="fedsplit")), torch.get_rng_state()
    one, two = (here.model().state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(before, torch.get_rng_state())
