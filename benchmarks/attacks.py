"""Speed of gradient inversion beside `breaching`: ``python -m benchmarks.attacks [--json] [--quick] [--only NAME]``.

P10 is our image-iterations per second over those of the public framework on identical work
(`benchmarks.our_search`), given only where both sides have the same objective (1e-6) and gradient (1e-5, relative)
at the first guesses; else this exits with 1. Uncompiled, every victim must pass. Compiled, the same operations are
rounded otherwise, and a few victims of a LeNet magnify that beyond the limit (theirs does, too, against float64): there
the median must pass, and `compiled_worst` has the worst. The framework needs its environment, of 3 GB, that
``python -m benchmarks.breaching_env`` installs.

Theirs is timed per call, without imports and after a warm-up. Ours is the search of `flfw.inversion.search.invert` with
its graph ready. `compile_s` is the time to prepare the graph, once for each shape (tracing, compiling into an empty
cache, a first step; the first also has the compiler's import). `with_compile` is the ratio over 24,000 iterations,
their default, with that time counted. The two sides take turns, A B A B, so that a busy machine hurts both alike; a
ratio is the median of the turns'. Beside P10:

- `uncompiled`: the ratios without a compiler.
- `time_to_equal_psnr`: LeNet, 8 victims: seconds until the mean PSNR is that at which their search ends, less 0.5 dB;
  theirs one by one and added up, ours at once; without our compiling and with it. Once each, not in turns.
- `bf16`: the network in bfloat16, compiled, over float32; research/performance_measurements.md has what it costs.
- `crossover`: seconds of a step for P victims one by one over those of a step under vmap, uncompiled, beside the
  operations of one victim's step. `flfw.inversion.graph.LIGHT` lies where vmap stops being faster.
- `kept`: seconds of the processor of a step that computes everything, over those of one that keeps what the guess does
  not change, uncompiled; both must be equal to the bit.

The last line of the output is one JSON object.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, final

import torch
from torch.func import grad_and_value, vmap
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import breaching_env, output
from benchmarks.attack_victims import Victims, pictures, victims
from benchmarks.our_search import Ours, errors, objective_of
from benchmarks.their_search import Theirs
from benchmarks.turns import in_turns, ratio, rounded, timed
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.evaluation import stacked, stacked_given
from flfw.inversion.graph import LIGHT, Graph

_EXACT = {"objective": 1e-6, "gradient": 1e-5}
_DEFAULT_ITERATIONS = 24_000
_SHORT_OF_DB = 0.5


@dataclass(frozen=True)
class AttackCase:
    """A network under attack."""

    network: str  # its name in `flfw.nets`
    victims: int
    iterations: int  # timed in each turn
    warmup: int  # iterations of theirs before that
    goal: float  # the least ratio
    batch: int = 1  # images of each victim


_CASES = {
    "lenet_1": AttackCase("lenet", 1, 1000, 50, 2.0),
    "lenet_50": AttackCase("lenet", 50, 100, 20, 10.0),
    "convnet_1": AttackCase("convnet64", 1, 6, 2, 1.0),
    "resnet18_8": AttackCase("resnet18", 1, 20, 3, 1.0, batch=8),
}
_HALF = {"lenet": AttackCase("lenet", 8, 300, 0, 0.0), "convnet": AttackCase("convnet64", 1, 6, 0, 0.0)}
_KEPT = {"lenet": (1, 200), "lenet_50": (50, 10), "cnn2": (1, 50), "convnet64": (1, 1), "resnet18": (1, 4)}
_PSNR = {"lenet_8": AttackCase("lenet", 8, 1000, 0, 0.0)}
PARTS = {
    "lenet_1": output.BenchmarkPart("LeNet, 1 victim, ours over theirs", 90, 15),
    "lenet_50": output.BenchmarkPart("LeNet, 50 victims, ours over theirs", 180, 0),
    "convnet_1": output.BenchmarkPart("ConvNet of width 64, 1 victim, ours over theirs", 150, 0),
    "resnet18_8": output.BenchmarkPart("ResNet-18, 1 victim with a batch of 8, ours over theirs", 240, 0),
    "psnr": output.BenchmarkPart("LeNet, 8 victims, time to equal PSNR", 120, 0),
    "bf16": output.BenchmarkPart("bfloat16 over float32, compiled", 240, 0),
    "crossover": output.BenchmarkPart("victims one by one over vmap", 60, 15),
    "kept": output.BenchmarkPart("everything in each step over what the guess changes", 60, 8),
}
GATE = output.BenchmarkPart("both sides compared: the same objective and gradient; compiling", 150, 20)
_NEED_THEIRS = {**{name: {name: case} for name, case in _CASES.items()}, "psnr": _PSNR}
_STEPS = {"lenet": 200, "cnn2": 20, "convnet64": 1}  # that last about a second


@final
class Bench:
    """Workbench of the measurements: the two sides, and the amount of work.

    Args:
        theirs: the other side; None: no chosen part needs it.
        folder: for its problems and answers.
        turns: of each side.
        part: of the usual iterations, in (0, 1].
    """

    def __init__(self, theirs: Theirs | None, folder: Path, turns: int, part: float) -> None:
        self._theirs, self.folder, self.turns, self._part = theirs, folder, turns, part
        self.victims: Callable[..., Victims] = cache(victims)
        self._built: dict[tuple[object, ...], Ours] = {}

    @property
    def theirs(self) -> Theirs:
        """Other side, by breaching."""
        assert self._theirs is not None, "a part that needs it was chosen"
        return self._theirs

    def iterations(self, usual: int) -> int:
        """Return this run's share of the usual iterations; 3 at least, for the step size falls three times."""
        return max(3, round(usual * self._part))

    def attacked(self, case: AttackCase) -> Victims:
        """Return the victims of a case."""
        return self.victims(case.network, case.victims, batch=case.batch)

    def ours(self, case: AttackCase, *, compiled: bool = True, precision: torch.dtype = torch.float32) -> Ours:
        """Return our side, built once for each shape."""
        key = case.network, case.victims, case.batch, compiled, precision
        if key not in self._built:
            self._built[key] = Ours(self.attacked(case), compiled=compiled, precision=precision)
        return self._built[key]

    def exact(self, case: AttackCase) -> tuple[dict[str, float], dict[str, float]]:
        """Return the errors of the worst victim, and compiled of the median one; then compiled of the worst one."""
        _, answer = self.theirs(self.attacked(case), self.folder, "objective", 3)
        plain, fused = (errors(self.ours(case, compiled=c), answer) for c in (False, True))
        gated = {kind: float(values.max()) for kind, values in plain.items()}
        gated |= {f"compiled_{kind}": float(values.median()) for kind, values in fused.items()}
        return gated, {kind: float(values.max()) for kind, values in fused.items()}

    def rates(self, case: AttackCase) -> dict[str, list[float]]:
        """Measure the image-iterations per second of each turn: ``theirs``, ``ours`` and ``uncompiled``."""
        iterations, attacked = self.iterations(case.iterations), self.attacked(case)
        sides = {
            "theirs": partial(self.theirs.rate, attacked, self.folder, iterations, case.warmup),
            "ours": partial(self.ours(case).rate, iterations),
            "uncompiled": partial(self.ours(case, compiled=False).rate, iterations),
        }
        return in_turns(sides, self.turns)

    def time_to_equal_psnr(self) -> dict[str, float | None]:
        """Measure the seconds of both sides, and theirs over ours; None if ours does not reach that PSNR."""
        (case,) = _PSNR.values()
        iterations = self.iterations(case.iterations)
        every, ours = max(1, iterations // 50), self.ours(case)
        search = ours.trace(iterations, every)
        other = self.theirs.trace(self.attacked(case), self.folder, iterations, every)
        wanted, compile_s = other.psnr[-1] - _SHORT_OF_DB, ours.built_s
        seconds = {"theirs_s": other.until(wanted), "ours_s": search.until(wanted)}
        psnrs = {"wanted": wanted, "theirs": other.psnr[-1], "ours": search.psnr[-1], "iterations": iterations}
        return {**psnrs, **seconds, "compile_s": compile_s, **sooner(**seconds, compile_s=compile_s)}

    def bf16(self) -> dict[str, float]:
        """Measure rates over float32's."""
        gains: dict[str, float] = {}
        for name, case in _HALF.items():
            half, full = (self.ours(case, precision=p) for p in (torch.bfloat16, torch.float32))
            iterations = self.iterations(case.iterations)
            rates = in_turns(
                {"half": partial(half.rate, iterations), "full": partial(full.rate, iterations)}, self.turns
            )
            gains[name] = ratio(rates["half"], rates["full"])
        return gains

    def crossover(self, network: str) -> dict[str, Any]:
        """Measure victims one by one over victims under vmap, for some numbers of victims."""
        counts, steps = (1, 2, 8), max(1, round(_STEPS[network] * self._part))
        attacked = self.victims(network, max(counts))
        objective, problems = objective_of(attacked)
        guesses, given = [problem.guess for problem in problems], [objective.constants(problem) for problem in problems]
        function = grad_and_value(objective, has_aux=True)
        alone = Graph(function, (guesses[0], given[0]), ComputeLimits())
        chosen, alone.light = alone.light, False
        with FlopCounterMode(display=False) as counter:
            alone(stacked(guesses[:1]), stacked_given(given[:1]))
        gains: dict[str, float] = {}
        for count in counts:
            batch = stacked(guesses[:count]), stacked_given(given[:count])
            joint = Graph(vmap(function), batch, ComputeLimits())  # all of them are one problem to it
            as_one = tree_map(lambda value: value.unsqueeze(0), batch)
            sides = {"alone": partial(alone, *batch), "joint": partial(joint, *as_one)}
            times = in_turns({name: partial(timed, work, steps) for name, work in sides.items()}, self.turns)
            gains[str(count)] = ratio(times["alone"], times["joint"])
        return {"mflop": counter.get_total_flops() / 1e6, "under_vmap": chosen, "gain": gains}

    def kept(self, name: str) -> dict[str, float]:
        """Measure a step that computes everything over one that keeps all results the guess does not change."""
        count, steps = _KEPT[name]
        objective, problems = objective_of(self.victims(name.partition("_")[0], count))
        guess, given = (
            stacked([problem.guess for problem in problems]),
            stacked_given([objective.constants(problem) for problem in problems]),
        )
        example = problems[0].guess, objective.constants(problems[0])
        graph = Graph(grad_and_value(objective, has_aux=True), example, ComputeLimits())
        sides = {"whole": partial(graph, guess, given), "kept": partial(graph.given(given), guess)}
        whole, kept = (tree_leaves(side()) for side in sides.values())
        if not all(torch.equal(a, b) for a, b in zip(whole, kept, strict=True)):
            sys.exit(f"Expected {name}'s steps to be equal to the bit, got others; nothing was timed.")
        amount = max(1, round(steps * self._part))
        clock = {side: partial(timed, work, amount, time.process_time) for side, work in sides.items()}
        times = in_turns(clock, 2 * self.turns + 1)
        return {"gain": ratio(times["whole"], times["kept"]), "ms": 1000 * statistics.median(times["kept"]) / amount}


def amortised(rate: float, compile_s: float, images: int) -> float:
    """Compute the image-iterations per second of a search of 24,000 iterations that begins with compiling."""
    done = images * _DEFAULT_ITERATIONS
    return done / (compile_s + done / rate)


def sooner(theirs_s: float | None, ours_s: float | None, compile_s: float) -> dict[str, float | None]:
    """Compute their seconds over ours, without compiling and with it; None if one side did not reach the PSNR."""
    if theirs_s is None or ours_s is None:
        return {"ratio": None, "with_compile": None}
    return {"ratio": theirs_s / max(ours_s, 1e-9), "with_compile": theirs_s / (ours_s + compile_s)}


def too_far(exact: Mapping[str, float]) -> list[str]:
    """Return the names of the errors (``NAME_objective``, ``NAME_gradient``) beyond the limits; NaN is beyond."""
    return [name for name, error in exact.items() if not error <= _EXACT[name.rpartition("_")[2]]]


def gate(bench: Bench, cases: Mapping[str, AttackCase]) -> dict[str, Any]:
    """Return the distances of the two sides; exit with 1 if they do not compute the same."""
    exact: dict[str, float] = {}
    worst: dict[str, float] = {}
    for name, case in cases.items():
        for kept, apart in zip((exact, worst), bench.exact(case), strict=True):
            kept |= {f"{name}_{kind}": error for kind, error in apart.items()}
    if far := too_far(exact):
        limits = ", ".join(f"{kind} <= {limit:g}" for kind, limit in _EXACT.items())
        got = ", ".join(f"{name}={exact[name]:.2g}" for name in far)
        sys.exit(f"Expected the same objective and gradient on both sides ({limits}), got {got}; nothing was timed.")
    return {"exact": exact, "compiled_worst": worst}


def against(bench: Bench, names: Iterable[str]) -> dict[str, Any]:
    """Measure P10 of some cases."""
    table: dict[str, Any] = {key: {} for key in ("P10", "uncompiled", "with_compile", "compile_s", "rates")}
    for name in names:
        case, rates = _CASES[name], bench.rates(_CASES[name])
        compile_s = bench.ours(case).built_s
        slowed = [amortised(rate, compile_s, case.victims * case.batch) for rate in rates["ours"]]
        table["P10"][name] = ratio(rates["ours"], rates["theirs"])
        table["uncompiled"][name] = ratio(rates["uncompiled"], rates["theirs"])
        table["with_compile"][name] = ratio(slowed, rates["theirs"])
        table["compile_s"][name] = compile_s
        table["rates"][name] = {side: statistics.median(values) for side, values in rates.items()}
    goals = {name: _CASES[name].goal for name in table["P10"]}
    met = {name: table["P10"][name] >= goal for name, goal in goals.items()}
    return {**table, "goal": goals, "met": met}


def compared(names: Iterable[str]) -> dict[str, AttackCase]:
    """Return the cases of these parts that need the other side."""
    return {case: value for name in names for case, value in _NEED_THEIRS.get(name, {}).items()}


def measure(bench: Bench, run: output.BenchmarkRun) -> dict[str, Any]:
    """Measure all chosen parts."""
    results: dict[str, Any] = {}
    if cases := compared(run.names):
        run.begin_gate()
        results |= gate(bench, cases)
    if set(_CASES) & set(run.names):
        results |= against(bench, run.parts(*_CASES))
    for _ in run.parts("psnr"):
        results["time_to_equal_psnr"] = bench.time_to_equal_psnr()
    for _ in run.parts("bf16"):
        results["bf16"] = bench.bf16()
    for _ in run.parts("crossover"):
        networks = [network for network in _STEPS if network != "convnet64" or not run.asked.quick]
        gains = {network: bench.crossover(network) for network in networks}
        results["crossover"] = {"light_mflop": LIGHT / 1e6, **gains}
    for _ in run.parts("kept"):
        results["kept"] = {name: bench.kept(name) for name in _KEPT if name == "lenet" or not run.asked.quick}
    return results


def lines(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each part."""
    text = []
    for name, value in results.get("P10", {}).items():
        rates, exact = results["rates"][name], [results["exact"][f"{name}_{kind}"] for kind in _EXACT]
        slowed, compile_s = results["with_compile"][name], results["compile_s"][name]
        text.append(
            f"{name:10} {value:6.2f} times theirs (goal >= {results['goal'][name]:g}): {rates['ours']:.4g} against "
            f"{rates['theirs']:.4g} image-iterations/s; uncompiled {results['uncompiled'][name]:.2f}, "
            f"24,000 iterations with {compile_s:.0f} s of compiling {slowed:.2f}; "
            f"objective within {exact[0]:.1g}, gradient {exact[1]:.1g}"
        )
    for key in ("time_to_equal_psnr", "bf16", "crossover", "kept"):
        text += [f"{key}: {results[key]}"] if key in results else []
    return text


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument(
        "--threads", type=output.whole(), default=len(os.sched_getaffinity(0)), help="of both sides (all cores)"
    )
    run = output.start(flags, PARTS, GATE)
    threads, theirs = run.asked.threads, None
    if compared(run.names):
        theirs = Theirs(breaching_env.required(), threads)
    else:
        run.gate = None
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/compiled"  # an earlier run's would hide what compiling takes
        bench = Bench(theirs, Path(folder), *((1, 0.03) if run.asked.quick else (3, 1.0)))
        results = rounded(measure(bench, run))
    run.report({**results, "threads": threads, "images": pictures(1)[2]}, lines(results))


if __name__ == "__main__":
    main()
