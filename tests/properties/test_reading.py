"""What the properties notice: each outcome of a reading, and what no reader may do."""

import pickle
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flfw.errors import InputError
from tests.properties.reading import Forbidden, require_refused_or_valid


def fail(error: BaseException) -> object:
    raise error


def test_each_outcome_is_noticed() -> None:
    assert require_refused_or_valid(lambda: 1, is_valid=lambda value: value == 1) == 1
    assert require_refused_or_valid(lambda: 1, is_valid=lambda value: False, intact="1", breaks_a_seal=True) == 1
    assert require_refused_or_valid(lambda: fail(InputError("one line"))) is None
    with pytest.raises(AssertionError):
        require_refused_or_valid(lambda: 2, is_valid=lambda value: False)
    with pytest.raises(AssertionError):
        require_refused_or_valid(lambda: 2, intact="1", breaks_a_seal=True)
    with pytest.raises(AssertionError):
        require_refused_or_valid(lambda: fail(InputError("")))
    for error in (KeyError("x"), RecursionError(), SystemExit(3)):
        with pytest.raises(type(error)):
            require_refused_or_valid(lambda error=error: fail(error))


def test_network_pickles_memory_and_writes_elsewhere_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    reads: list[tuple[type[BaseException], Callable[[], object]]] = [
        (Forbidden, lambda: socket.create_connection(("127.0.0.1", 9), 1)),
        (Forbidden, lambda: (tmp_path / "out.txt").write_text("x")),
        (Forbidden, lambda: pickle.loads(pickle.dumps(Path("x")))),
        (MemoryError, lambda: len(np.ones(4 * 10**8))),
    ]
    for error, read in reads:
        with pytest.raises(error):
            require_refused_or_valid(read, tmp_path / "in")
    require_refused_or_valid(lambda: (tmp_path / "in" / "a.txt").write_text("x"), tmp_path / "in")
    assert not (tmp_path / "out.txt").exists()
