"""A bundle of an app, as SuperNodes read it."""

import io
import zipfile


def fab(files: dict[str, str]) -> bytes:
    """Pack a bundle of an app, as far as Flower's SuperNode reads one."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()
