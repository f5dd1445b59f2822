"""Estimates beside the runs: ``python -m benchmarks.estimates [--only NUMBER ...] [--json] [--quick]``.

Each run of the table in research/performance_measurements.md is estimated, and then really done. Its time is that of
the processors, user and system, of all of its processes on one thread each, Ray's daemons among them, so that other
programs hardly change it; memory is the driver's largest resident size. The last line of the output is one JSON object.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks import output
from benchmarks.process_family import descendants

_ROOT = Path(__file__).parent.parent
_TABLE = (_ROOT / "research/performance_measurements.md").read_text().partition("benchmarks.estimates")[2]
FLAGS = dict(re.findall(r"^\| (\d+) \| `(.+?)` \|", _TABLE.partition("\n## ")[0], re.MULTILINE))
"""Flags of the runs, by their number in the table."""
_EACH_S = 0.05  # between two looks at the processes: what one did after the last look is not counted
PARTS = {number: output.BenchmarkPart(flags, 60, 30 if number == "1" else 0) for number, flags in FLAGS.items()}


def spent(flags: str) -> tuple[str, float, float]:
    """Run ``sim.py``; return its output, the processors' seconds of all its processes, and its peak memory in GiB."""
    command, variables = [sys.executable, "sim.py", *flags.split()], os.environ | {"OMP_NUM_THREADS": "1"}
    ticks, peak = dict[int, int](), 0
    with tempfile.TemporaryFile("w+") as text, subprocess.Popen(command, cwd=_ROOT, env=variables, stdout=text) as one:
        while one.poll() is None:  # Ray leaves processes that nobody waits for, so that no one else counts theirs
            for pid in [one.pid, *descendants(one.pid)]:
                with suppress(OSError):
                    ticks[pid] = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
            time.sleep(_EACH_S)
        assert not one.returncode, f"sim.py {flags} failed; nothing was measured"
        text.seek(0)
        return text.read(), sum(ticks.values()) / os.sysconf("SC_CLK_TCK"), peak / 1024**2


def main() -> None:
    """Measure and print."""
    run = output.start(output.parser(__doc__), PARTS)
    rows = dict[str, list[float]]()
    for number in run.parts():
        text, took_s, _ = spent(f"{FLAGS[number]} --estimate")
        expected_gib = float(re.findall(r"driver ([\d.]+) GiB", text)[0])
        amounts = re.findall(r"([\d.]+) (s|min|h)(?: of all processors)?[,:]", text.partition(" start ")[0])
        expected_s = float(amounts[-1][0]) * {"s": 1.0, "min": 60.0, "h": 3600.0}[amounts[-1][1]]
        with tempfile.TemporaryDirectory(prefix="flfw-estimates-") as folder:
            _, measured_s, gib = spent(f"{FLAGS[number]} --out {folder}/run")
        rows[number] = [expected_s, expected_gib, measured_s, gib, expected_s / measured_s, took_s]
    words = "| {} | {:.1f} s, {:.1f} GiB | {:.1f} s, {:.2f} GiB | {:.2f} | {:.1f} s |"
    run.report({"estimates": rows}, [words.format(number, *row) for number, row in rows.items()])


if __name__ == "__main__":
    main()
