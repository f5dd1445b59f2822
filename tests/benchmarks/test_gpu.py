"""The measurements on a GPU, on the processor: what is kept, what is refused, and what the parts compute."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import breaching_env, gpu, gpu_pack, gpu_parts, output, quickstart
from benchmarks.attack_victims import victims
from benchmarks.direct_rounds import DirectRounds
from benchmarks.gpu_parts import Amount, apart, too_far
from flfw import nets
from flfw.command.api import run
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.rng import initialising
from tests.support.mnist_files import write_mnist
from tests.support.paths import ROOT
from tests.support.pretend_gpu import pretended_gpu

SMALL = ("agreement", "batched")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("FLFW_DATA", str(tmp_path / "none"))
    settings = torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.set_num_threads(settings[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = settings[1:]


def called(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--json", *flags])
    try:
        gpu.main()
    except SystemExit as stopped:
        return stopped.code
    return 0


def on_processor(tmp_path: Path) -> Amount:
    return Amount(torch.device("cpu"), True, tmp_path / "cell.npz", 1, 1)


def test_numbers_that_are_too_far_are_computed_without_cudnn_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as stricter:
        stricter.setitem(cast(dict[str, float], gpu_parts.CLOSE), "float32_slope", -1.0)
        figures = gpu_parts.agreement(on_processor(tmp_path))
    assert figures["too_far"] == ["lenet: float32_slope"]
    assert figures["without_cudnn"].keys() == {"lenet"} and figures["apart"].keys() == {"lenet", "fedavg"}
    assert gpu_parts.agreement(on_processor(tmp_path))["without_cudnn"] == {}


@pytest.mark.slow
def test_finished_parts_are_kept_and_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ("--quick", "--device", "cpu", "--out", str(tmp_path / "gpu.json"), "--only")
    assert called(monkeypatch, *flags, "batched") == 0
    first = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert (
        first["batched"]["measured"]["device"] == "cpu" and first["batched"]["measured"]["torch"] == torch.__version__
    )
    assert all(first["batched"]["figures"]["clients_per_second"][size] > 0 for size in ("1", "4"))
    capsys.readouterr()
    assert called(monkeypatch, *flags, *SMALL) == 0
    out, err = capsys.readouterr()
    parts = json.loads(out.splitlines()[-1])["parts"]
    assert set(parts) == set(SMALL) and parts["batched"] == first["batched"]
    assert "] agreement:" in err and "] batched:" not in err
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"] == parts
    assert called(monkeypatch, "--device", "cpu", "--out", str(tmp_path / "gpu.json")) == 2  # it is of --quick
    assert "Expected parts with quick=False" in capsys.readouterr().err


def test_an_unfinished_part_is_measured_again_but_not_one_whose_ratio_cannot_be() -> None:
    figures = {
        "batched": {"missing": "time"},
        "memory": {"failed": "x"},
        "inversion": {"ours": 3, "without": "breaching"},
    }
    parts = {name: {"figures": one} for name, one in figures.items()}
    every = ["inversion", "batched", "cell", "memory"]
    assert gpu.needed(parts, every, again=False) == ["batched", "cell", "memory"]
    assert gpu.needed(parts, every, again=True) == every


class Clock:
    """Clock that the parts move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **took: float) -> None:
        self.now, self.begun = 0.0, list[tuple[str, float]]()
        for name, seconds in took.items():
            monkeypatch.setitem(
                cast(Any, gpu_parts.MEASURES), name, lambda amount, n=name, s=seconds: self(n, s, amount)
            )
        monkeypatch.setattr(gpu, "STARTED", 0.0)

    def __call__(self, name: str, seconds: float, amount: Amount) -> dict[str, Any]:
        self.begun.append((name, amount.ends - self.now))
        self.now += seconds
        return {"seconds": seconds}


def budgeted(monkeypatch: pytest.MonkeyPatch, out: Path, clock: Clock, minutes: int = 9) -> dict[str, Any]:
    """Measure all parts with a budget, by the clock."""
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--budget", str(minutes), "--out", str(out)])
    flags = output.parser("")
    flags.add_argument("--device"), flags.add_argument("--out", type=Path), flags.add_argument("--budget", type=int)
    flags.set_defaults(again=False, threads=1, turns=1)
    return gpu.measure(output.start(flags, gpu.PARTS), lambda: clock.now)


def test_parts_are_begun_in_order_as_long_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clock = Clock(monkeypatch, agreement=50, client_rounds=60, inversion=250, batched=100, cell=40, memory=35)
    parts = budgeted(monkeypatch, tmp_path / "gpu.json", clock)
    # 540 s in all: after 460 the cell gets 80 less the 30 of memory; after 500 memory has 40 left.
    left = {"agreement": 540, "client_rounds": 490, "inversion": 430, "batched": 180, "cell": 50, "memory": 40}
    assert dict(clock.begun) == left and list(left) == [name for name, _ in clock.begun] == list(parts)
    slower = Clock(monkeypatch, agreement=50, client_rounds=360, inversion=1, batched=100, cell=1, memory=1)
    parts = budgeted(monkeypatch, tmp_path / "other.json", slower)
    assert [name for name, _ in slower.begun] == ["agreement", "client_rounds", "inversion", "batched"]
    err = capsys.readouterr().err
    assert "] cell: not begun, 29 s are left" in err and "] memory: not begun, 29 s are left" in err
    again = Clock(monkeypatch, cell=1, memory=1)
    assert list(budgeted(monkeypatch, tmp_path / "other.json", again)) == [*parts, "cell", "memory"]
    assert [name for name, _ in again.begun] == ["cell", "memory"]


def test_each_part_is_in_the_file_before_the_next_one_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock, out = Clock(monkeypatch, agreement=1), tmp_path / "gpu.json"

    def killed(amount: Amount) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setitem(cast(Any, gpu_parts.MEASURES), "client_rounds", killed)
    with pytest.raises(KeyboardInterrupt):
        budgeted(monkeypatch, out, clock)
    assert json.loads(out.read_text())["parts"]["agreement"]["figures"] == {"seconds": 1}


def test_a_part_without_figures_says_why_and_the_time_of_a_part_is_limited() -> None:
    def raising(error: BaseException) -> dict[str, Any]:
        raise error

    def stubborn() -> dict[str, Any]:
        try:
            for _ in range(10**9):
                pass
        except Exception:  # as a library may
            return {"ms": 1.0}
        return {}

    lacking = ModuleNotFoundError("No module named 'ray'", name="ray")
    assert gpu.measured(lambda: raising(lacking), 9) == {"missing": "the package ray is not installed"}
    assert gpu.measured(lambda: raising(InputError("no data")), 9) == {"missing": "no data"}
    assert gpu.measured(lambda: raising(RuntimeError("out of\nmemory")), 9) == {"failed": "RuntimeError: out of memory"}
    assert gpu.measured(stubborn, 0.05) == {"missing": "not finished after 0 s"}
    assert gpu.measured(lambda: {"ms": 1.23456}, 9) == {"ms": 1.235}


@pytest.mark.parametrize("text", ["[]", "{", '{"parts": {"steps": 1}}'])
def test_a_file_of_something_else_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gpu.json").write_text(text)
    assert called(monkeypatch, "--quick", "--device", "cpu", "--out", str(tmp_path / "gpu.json")) == 2
    assert capsys.readouterr().err.startswith("Expected parts of an earlier call in ")
    assert (tmp_path / "gpu.json").read_text() == text


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch) == 2
    assert capsys.readouterr().err.splitlines() == [
        "Expected a CUDA device, found none; `--device cpu --quick` tries the command without one."
    ]


def test_every_part_has_a_measurement() -> None:
    assert list(gpu.PARTS) == list(gpu_parts.MEASURES)
    assert sum(part.seconds for part in gpu.PARTS.values()) <= 15 * 60


def test_differences_are_relative_to_the_norm_and_named_beyond_the_limit() -> None:
    one = {"gradient": {"w": torch.tensor([3.0, 4.0])}, "objective": {"": torch.tensor(0.5)}}
    other = {"gradient": {"w": torch.tensor([3.0, 3.0])}, "objective": {"": torch.tensor(0.75)}}
    assert apart(one, other) == {"gradient": 0.2, "objective": 0.25}
    close = {"float32_gradient": 1e-5, "float32_objective": 1e-6}
    assert too_far({"lenet": close}) == []
    assert too_far({"lenet": {**close, "float32_gradient": float("nan")}}) == ["lenet: float32_gradient"]
    assert too_far({"lenet": {**close, "float64_gradient": 1e-9}}) == ["lenet: float64_gradient"]


def test_float64_is_computed_in_float64() -> None:
    small, large = (
        gpu_parts._computed(victims("lenet", 1, batch=2).to(torch.device("cpu"), precision))
        for precision in (torch.float32, torch.float64)
    )
    assert {v.dtype for kind in large.values() for v in kind.values()} == {torch.float64}
    rounding = apart(large, small)
    assert 0 < rounding["gradient"] < 1e-5 and 0 < rounding["slope"] < 1e-3


@pytest.mark.slow
def test_without_breaching_ours_is_measured_and_the_reason_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(breaching_env, "installed", lambda: None)
    figures = gpu_parts.inversion(on_processor(tmp_path))
    assert figures["ours"] > 0 and figures["batch"] == 2 and "no environment of breaching" in figures["without"]


@pytest.mark.slow
def test_the_peak_is_that_of_the_work() -> None:
    """In a process of its own: one that ran other tests may have pages to spare, and then the peak is a lower bound."""
    code = "import torch; from benchmarks.gpu_parts import peak; "
    code += "print(peak(lambda: torch.ones(16_000_000), torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0.9 * 64e6 < int(done.stdout) < 1.5 * 64e6


def digits(**more: Any) -> Experiment:
    few = {"clients": 3, "rounds": 2, "local_epochs": 1, "batch_size": 50, "attack": ("none",)}
    return Experiment(method="fedavg", dataset="digits", net="mlp", engine="inproc", **few, **more)


def test_direct_rounds_are_those_of_a_run(tmp_path: Path) -> None:
    run(digits(out=tmp_path / "run"))
    rounds = DirectRounds(digits(), None, together=1)
    rounds.round()
    rounds.round(evaluated=True)
    (last,) = (tmp_path / "run" / "checkpoint").glob("round-00002-*")
    expected = {n.removeprefix("model/"): v for n, v in load_file(last).items() if n.startswith("model/")}
    assert rounds.tensors.keys() == expected.keys()
    assert all(torch.equal(rounds.tensors[name], value) for name, value in expected.items())
    final = json.loads((tmp_path / "run" / "result.json").read_text())["final"]
    assert rounds.accuracy() == pytest.approx(final["acc_global"])


def test_rounds_go_on_from_a_file_of_the_same_work(tmp_path: Path) -> None:
    whole, begun, resumed, other = (DirectRounds(digits(), None, together=3) for _ in range(4))
    whole.round()
    whole.round()
    begun.round()
    gpu_parts.keep(begun, tmp_path / "cell.npz", "key", 1.5)
    assert gpu_parts.restore(other, tmp_path / "cell.npz", "other key") == 0 and other.done == 0
    assert gpu_parts.restore(resumed, tmp_path / "cell.npz", "key") == 1.5 and resumed.done == 1
    resumed.round()
    assert all(torch.equal(resumed.tensors[name], value) for name, value in whole.tensors.items())


@pytest.mark.slow
def test_the_cell_stops_in_time_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = quickstart.task(4)
    monkeypatch.setattr(gpu_parts, "DirectRounds", lambda experiment, _, size: DirectRounds(experiment, task, size))
    amount = on_processor(tmp_path)
    late = gpu_parts.cell(Amount(amount.device, True, amount.state, 1, 1, ends=0.0))
    assert late["missing"] == "0 of 2 rounds are done; call again" and "value" not in late
    figures = gpu_parts.cell(amount)
    assert figures["cell"].startswith("hyperfl.1/FedAvg/Fashion-MNIST/20/accuracy") and figures["rounds"] == 2
    assert "missing" not in figures and figures["seconds"] > 0 and 0 <= figures["value"] <= 100
    assert gpu_parts.cell(amount) == figures  # nothing is trained again


def test_nothing_is_timed_unless_the_plain_loop_takes_the_same_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = quickstart.plain_round
    assert gpu_parts._same_step(torch.device("cpu"), quickstart.task(2)) < 1e-5
    monkeypatch.setattr(quickstart, "plain_round", lambda one, work, _, device: plain(one, work, 25, device))
    with pytest.raises(RunError, match="Expected a step as the plain loop's within"):
        gpu_parts.client_rounds(on_processor(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and it would not be pretended")
def test_rounds_on_a_pretended_gpu_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_parts, "wait", lambda device: None)
    work, there = quickstart.task(4), torch.device("cuda")
    monkeypatch.setattr(gpu_parts, "DirectRounds", lambda experiment, _, size: DirectRounds(experiment, work, size))
    here = gpu_parts.cell(on_processor(tmp_path / "here"))
    with pretended_gpu():
        assert gpu_parts._same_step(there, work) < 1e-5
        amount = Amount(there, True, tmp_path / "there" / "cell.npz", 1, 1)
        assert gpu_parts.cell(amount)["value"] == here["value"]


@pytest.mark.slow
def test_residual_is_the_networks_own_resnet() -> None:
    made = []
    for name in ("resnet18", gpu_parts._RESNET):
        with initialising(0, "net"):
            made.append(nets.build(name, (3, 32, 32), 10).train())
    published, ours = (net.state_dict() for net in made)
    assert list(published) == list(ours) and all(torch.equal(published[name], value) for name, value in ours.items())
    x = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    assert torch.equal(*(net(x) for net in made))


@pytest.mark.slow
def test_a_pack_is_limited_and_works_with_torch_and_numpy_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="FashionMNIST"):
        gpu_pack.pack(tmp_path / "pack")
    monkeypatch.setenv("FLFW_DATA", str(write_mnist(tmp_path / "data", folder="FashionMNIST")))
    with pytest.raises(InputError, match=r"Expected at most 1 MB of code and data, got bytes=\d{7}"):
        gpu_pack.pack(tmp_path / "pack", max_bytes=1_000_000)
    assert not (tmp_path / "pack").exists()
    size = gpu_pack.pack(tmp_path / "pack")
    files = [path for path in (tmp_path / "pack").rglob("*") if not path.is_dir()]
    assert size == sum(path.stat().st_size for path in files) < 20_000_000
    assert not any(path.is_symlink() or path.suffix in (".pyc", ".pkl") for path in files)
    with pytest.raises(InputError, match="that does not exist yet"):
        gpu_pack.pack(tmp_path / "pack")

    (site := tmp_path / "site").mkdir()
    packages = Path(torch.__file__).parent.parent
    needs = ("torch", "torchgen", "functorch", "numpy", "numpy.libs", "typing_extensions.py", "sympy", "mpmath")
    for name in [*needs, "networkx", "filelock", "fsspec"]:
        if (packages / name).exists():
            (site / name).symlink_to(packages / name)
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(site)}
    words = ["-S", "-m", "benchmarks.gpu", "--quick", "--device", "cpu", "--only", "batched", "cell", "--budget", "2"]
    done = subprocess.run(
        [sys.executable, *words, "--out", "gpu.json"],
        cwd=tmp_path / "pack",
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    parts = json.loads((tmp_path / "pack" / "gpu.json").read_text())["parts"]
    assert parts["batched"]["figures"]["clients_per_second"]["4"] > 0 and parts["batched"]["measured"]["flwr"] is None
    assert (tmp_path / "pack/data/FashionMNIST/raw/train-images-idx3-ubyte").exists()
    assert "as fmnist has 3 training examples" in parts["cell"]["figures"]["missing"]
