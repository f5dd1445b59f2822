"""The invented paper: a cell leads to its run."""

from flfw.papers import published
from flfw.papers.example import accuracies


def test_a_cell_is_the_run_of_its_method() -> None:
    (cell,) = published.table("example.1").select("example.1/Local/2/accuracy")
    (run,) = accuracies(cell, "quick").experiments
    assert (cell.value, run.method, run.clients) == (80.0, "local_only", 2)
