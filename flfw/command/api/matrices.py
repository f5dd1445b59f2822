"""Matrices of runs with equal budgets: their question as arguments, their tables as pandas frames."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from flfw.command.api.arguments import experiment_of, folder_of, numbers_of, words_of
from flfw.command.api.library_calls import library_call
from flfw.command.api.result import Result
from flfw.errors import InputError
from flfw.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd

_FOLDER = "matrix"


@final
@dataclass(frozen=True)
class MatrixResult:
    """Result of a matrix, or of the matrices of several data sets.

    Attributes:
        path: the folder.
        matrices: the folder of each data set's matrix by its name; that of a single one has the folder's name.
    """

    path: Path
    matrices: Mapping[str, Path]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MatrixResult:
        """Load the result of a matrix, also of one that is not complete.

        Raises:
            InputError: the folder holds no matrix, or a damaged one.
        """
        from flfw.comparisons.rows import MATRIX, read_matrix

        folder = folder_of(path, "path")
        below = [file.parent for file in sorted(folder.glob(f"*/{MATRIX}"))]
        matrices = [folder] if (folder / MATRIX).is_file() else below
        if not matrices:
            raise InputError(f"Expected a matrix in {folder}, got no {MATRIX}; name the folder of a matrix.")
        for one in matrices:
            read_matrix(one / MATRIX)
        return cls(folder, {one.name: one for one in matrices})

    @property
    def table(self) -> pd.DataFrame:
        """Leakage, a row for each run, attack and round: the columns of matrix.csv. Runs without attacks have no row.

        With several data sets the first column, ``matrix``, names the folder of each.
        """
        import pandas as pd

        from flfw.command.api.frames import MATRIX as KINDS
        from flfw.command.api.frames import read_table

        tables = {name: read_table(folder / "matrix.csv", KINDS) for name, folder in self.matrices.items()}
        if len(tables) > 1:
            for name, table in tables.items():
                table.insert(0, _FOLDER, pd.Series(name, index=table.index, dtype=object))
        return pd.concat(tables.values(), ignore_index=True)

    @property
    def cells(self) -> pd.DataFrame:
        """Runs, a row each: method, defence, seed, state and, where it failed, the reason; accuracies (0 to 1)."""
        from flfw.command.api.frames import CELLS, typed

        rows = [{_FOLDER: name, **cell} for name in self.matrices for cell in self._record(name)["cells"]]
        return typed(rows, CELLS)

    @property
    def runs(self) -> dict[str, Result]:
        """Results of the complete runs, by the path of their folder within the matrix."""
        results = {}
        for name, folder in self.matrices.items():
            for cell in self._record(name)["cells"]:
                if cell["state"] == "complete":
                    path = folder / cell["folder"]
                    results[str(path.relative_to(self.path))] = Result.load(path)
        return results

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the matrices, a sentence each."""
        return tuple(note for name in self.matrices for note in self._record(name)["notes"])

    @property
    def reports(self) -> tuple[Path, ...]:
        """Paths of the pages, one for each matrix."""
        return tuple(folder / "matrix.html" for folder in self.matrices.values())

    def __str__(self) -> str:
        from flfw.comparisons.matrices import summary

        return summary(self.path)

    def _record(self, name: str) -> dict[str, Any]:
        from flfw.comparisons.rows import MATRIX, read_matrix

        return read_matrix(self.matrices[name] / MATRIX)


def run_matrix(
    experiment: Experiment | None = None,
    *,
    methods: str | Iterable[str] = (),
    defences: str | Iterable[str] = (),
    attacks: str | Iterable[str] = (),
    seeds: int | Iterable[int] = (),
    datasets: str | Iterable[str] = (),
    **fields: Any,
) -> MatrixResult:
    """Run every combination with equal budgets, as ``sim.py --matrix`` does; complete runs are kept when it goes on.

    It is not called ``matrix`` because that is a package, `flfw.comparisons`.

    Args:
        experiment: all other settings; None: the defaults.
        methods: the methods; none: the experiment's. So with the other axes.
        defences: the defences, ``none`` for without.
        attacks: the attacks, all of them in each run.
        seeds: the seeds, a run each; alone, they pool runs as ``sim.py --seeds`` does.
        datasets: the data sets, with a matrix each.
        fields: fields of `Experiment` with other values than the experiment's.

    Raises:
        InputError: a setting of any run does not exist or does not fit; nothing has been written.
        RunError: some runs failed; the others are in the tables, which `MatrixResult.load` reads.
    """
    with library_call():
        requested = experiment_of(experiment, fields)
        from flfw.comparisons.matrices import run as carry_out
        from flfw.comparisons.question import Matrix

        words = {"methods": methods, "defences": defences, "attacks": attacks, "datasets": datasets}
        axes = {name: words_of(given, name) for name, given in words.items()}
        return MatrixResult.load(carry_out(Matrix(**axes, seeds=numbers_of(seeds, "seeds")), requested))
