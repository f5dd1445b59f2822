"""PDF of a report or of a matrix's page, printed by a Chromium, Chrome or Edge of this machine."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flfw.errors import InputError, RunError
from flfw.files.sealed import write_atomic

_NAMES = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("microsoft-edge", "microsoft-edge-stable", "msedge"),
)
# Where installers put a browser without telling PATH.
_PLACES = (
    *(f"/Applications/{name}.app/Contents/MacOS/{name}" for name in ("Google Chrome", "Chromium", "Microsoft Edge")),
    *(
        rf"{folder}\{name}"
        for folder in (r"C:\Program Files", r"C:\Program Files (x86)")
        for name in (r"Google\Chrome\Application\chrome.exe", r"Microsoft\Edge\Application\msedge.exe")
    ),
)
_PAGES = ("report.html", "matrix.html")
_SECONDS = 300


def browser() -> str:
    """Find the browser that prints.

    Raises:
        InputError: there is none.
    """
    program = next(filter(None, map(shutil.which, _NAMES)), None) or next(filter(os.path.isfile, _PLACES), None)
    if program is None:
        raise InputError(
            "Expected a Chromium, Chrome or Edge for --pdf, got none on PATH; install one, or open report.html in any "
            "browser and print it."
        )
    return program


def write_pdfs(folders: Sequence[Path]) -> list[Path]:
    """Print the page of each finished run or matrix beside it, with the same pictures.

    The browser gets a profile of its own, so that no open window is disturbed, and the page loads nothing from
    elsewhere.

    Args:
        folders: folders of the runs and matrices.

    Returns:
        Paths of the PDFs.

    Raises:
        InputError: there is a folder without a page, or no browser: then nothing is printed.
        RunError: the browser printed nothing.
    """
    pages, program = [_page_of(folder) for folder in folders], browser()
    return [_write(program, page) for page in pages]


def _page_of(folder: Path) -> Path:
    page = next((folder / name for name in _PAGES if (folder / name).is_file()), None)
    if page is None:
        raise InputError(f"Expected a folder with {' or '.join(_PAGES)} behind --pdf, got {folder}.")
    return page


def _write(program: str, page: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="flfw-pdf-") as profile:
        printed = Path(profile) / "page.pdf"
        command = [
            *(program, "--headless", "--disable-gpu", "--no-first-run", "--no-pdf-header-footer"),
            *(f"--user-data-dir={profile}", f"--print-to-pdf={printed}"),
            # Chromium's sandbox does not start for root, as in a container; the page is our own, without a network.
            *(["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),
            page.resolve().as_uri(),
        ]
        reason = _print(command)
        content = printed.read_bytes() if printed.is_file() else b""
    if not content.startswith(b"%PDF"):
        raise RunError(f"{program} printed no PDF of {page}: {reason}; open the page in a browser and print it.")
    written = page.with_suffix(".pdf")
    write_atomic(written, content)
    return written


def _print(command: list[str]) -> str:
    """Print, and return the last line that the browser said."""
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not end in {_SECONDS} s"
    except OSError as error:
        return str(error)
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended with {ended.returncode}"
