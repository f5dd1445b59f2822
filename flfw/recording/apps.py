"""Recording of a whole ServerApp in one line, whatever its style."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, final

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flfw.errors import InputError
from flfw.recording.grid import RecordingGrid
from flfw.recording.records import RecordMap

Where: TypeAlias = str | Path | Callable[[Context], str | Path]
"""A folder, or a function that takes it from the run's context."""


def recorded(app: ServerApp, folder: Where, records: RecordMap | None = None, **options: Any) -> ServerApp:
    """Wrap a ServerApp, so that each run records the messages that its Grid passes.

    It works with ``server_fn`` and with ``@app.main()``, which may follow on the wrapped app as well:

        app = recorded(ServerApp(server_fn=server_fn), "/where/recordings/go")

    Args:
        app: the app.
        folder: an absolute folder, which may begin with ~, or a function that takes it from the context; each run needs
            a new one.
        records: the names of the tensors in the app's messages; None: see `RecordMap`.
        **options: further arguments of `flfw.recording.grid.RecordingGrid`.

    Raises:
        InputError: there is no app, or the folder is not absolute.
    """
    if not isinstance(app, ServerApp):
        raise InputError(f"Expected a ServerApp of Flower, got {type(app).__name__}; wrap the app of the server.")
    if not callable(folder):
        _absolute(folder)
    return RecordedApp(app, folder, {"records": records, **options})


@final
class RecordedApp(ServerApp):
    """A ServerApp around another one, with a recorder in the Grid.

    Args:
        app: the app.
        folder: folder of the recordings.
        options: arguments of the recorder.
    """

    def __init__(self, app: ServerApp, folder: Where, options: dict[str, Any]) -> None:
        super().__init__()
        self._inner, self._folder, self._options = app, folder, options

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the app on a Grid that records."""
        folder = _absolute(self._folder(context) if callable(self._folder) else self._folder)
        self._inner(RecordingGrid(grid, folder, **self._options), context)

    def main(self) -> Callable[..., Any]:
        """Return the inner app's decorator of the same name."""
        return self._inner.main()

    def lifespan(self) -> Callable[..., Any]:
        """Return the inner app's decorator of the same name."""
        return self._inner.lifespan()


def _absolute(folder: str | Path) -> Path:
    path = Path(folder).expanduser()
    if not path.is_absolute():
        raise InputError(f"Expected an absolute folder, got {folder}: Flower runs a copy of the app elsewhere.")
    return path
