"""Survey of a folder of pictures: all headers, read once for each state of the folder and kept in the user's cache.

Every client process describes the folder, and looks only there. A patient's identifier is not kept: patients are
numbered in the order of their identifiers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import final

from flfw.data.files import cache
from flfw.data.image_files.decoder import ImageHeader, look, reason
from flfw.errors import InputError
from flfw.formats.typed import read_json

_VERSION = 1  # of what is kept; raise it when headers are read in another way


@final
@dataclass(frozen=True)
class HeaderIndex:
    """Headers of the pictures of a folder.

    Attributes:
        sizes: height and width of each picture that has a header, by its path.
        coloured: number of pictures in colour.
        patients: number of the patient of each DICOM file that names one, by its path.
        damaged: why the others have none, by their paths.
    """

    sizes: Mapping[Path, tuple[int, int]]
    coloured: int
    patients: Mapping[Path, int]
    damaged: Mapping[Path, str]

    def in_words(self) -> str:
        """Describe the sizes: 48x64 to 3000x4000 pixels."""
        least, most = min(self.sizes.values()), max(self.sizes.values())
        ends = [f"{height}x{width}" for height, width in ([least] if least == most else [least, most])]
        return f"{' to '.join(ends)} pixels"


def survey(root: Path, files: Sequence[Path]) -> HeaderIndex:
    """Read the headers of the pictures of a folder, if no process has before.

    Args:
        root: the folder.
        files: the pictures in it.
    """
    return _survey(root, tuple(files), cache.digest("survey", _VERSION, cache.fingerprint(files)))


@lru_cache(maxsize=4)
def _survey(root: Path, files: tuple[Path, ...], key: str) -> HeaderIndex:
    path = cache.user_cache() / "surveys" / f"{key}.json"
    if not path.is_file():
        with ThreadPoolExecutor() as pool:
            looks = list(pool.map(_look, files))
        cache.publish(path, partial(_write, json.dumps(_as_rows(looks))))
    rows = read_json(path, list[list[int | str]], f"remove {path}, and it is made again")
    sizes, patients, damaged, coloured = {}, {}, {}, 0
    for file, row in zip(files, rows, strict=True):
        if len(row) == 1:
            damaged[file] = str(row[0])
            continue
        grey, height, width, patient = (int(number) for number in row)
        sizes[file] = height, width
        coloured += not grey
        if patient >= 0:
            patients[file] = patient
    return HeaderIndex(sizes, coloured, patients, damaged)


def _write(text: str, path: Path) -> None:
    path.write_text(text)


def _look(path: Path) -> ImageHeader | str:
    try:
        return look(path)
    except (MemoryError, InputError):
        raise
    except Exception as error:  # a damaged file can make a decoder raise anything
        return reason(error)


def _as_rows(looks: Sequence[ImageHeader | str]) -> list[list[int | str]]:
    """Return a row for each picture: grey, height, width and the patient's number or -1; or why there is no header."""
    names = sorted({one.patient for one in looks if isinstance(one, ImageHeader) and one.patient})
    numbers = {name: number for number, name in enumerate(names)}
    return [
        [one] if isinstance(one, str) else [int(one.grey), one.height, one.width, numbers.get(one.patient, -1)]
        for one in looks
    ]
