"""Changed inputs of every reader: ``python -m benchmarks.mutations [--number 100000] [--only GROUP] [--seed 0]``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import TypeAlias

from benchmarks import mutation_messages, mutation_state, output
from benchmarks.mutation_cases import CaseResult, Outcome, Subject, is_slow, limited, tried

Group: TypeAlias = Callable[[Path], list[Subject]]
GROUPS: Mapping[str, Group] = {
    "uploads": mutation_messages.uploads, "answers": mutation_messages.answers, "questions": mutation_messages.questions, "checkpoints": mutation_state.checkpoints, "chains": mutation_state.chains, "queue": mutation_state.queue, "recordings": mutation_state.recordings,
}
def main() -> None:
    names = sys.argv[2:] or list(GROUPS)
    number = int(sys.argv[1])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as f:
        for name in names:
            t = time.time()
            subjects = GROUPS[name](Path(f))
            print(name, "made", round(time.time()-t, 2))
            for s in subjects:
                c, seen = Counter(), {}
                t = time.time()
                with limited():
                  for i in range(number):
                    r = tried(s, Random(f"0/{name}/{s.name}/{i}"), Path(f))
                    c[r.outcome.value] += 1
                    c["slow"] += is_slow(r)
                    if r.outcome in (Outcome.UNCAUGHT, Outcome.SILENT):
                        k = (r.outcome.value, *r.error)
                        seen.setdefault(k, (i, r.text[:200]))
                print(name, s.name, dict(c), f"{(time.time()-t)/number*1000:.2f} ms")
                for k, v in seen.items(): print("    ", k, v)


if __name__ == "__main__":
    main()
