"""Packs this package into an archive for executors that lack it.

`python -m tidemark.storage.library FOLDER` prints the path of the archive.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from tidemark.storage.location import put_once

PACKAGE = Path(__file__).parents[1]


def archive(folder: Path) -> Path:
    """Makes a zip in *folder* for `spark-submit --py-files`; returns its path."""
    # An archive is never overwritten: executors that join a running driver later still ask for the one of its start.
    content = _content()
    file = folder / f"tidemark-{_digest(content)}.zip"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Another process makes the same file: the same code makes the same bytes and the same name.
        with suppress(FileExistsError):
            put_once(file, content)
    return file


def version() -> str:
    """Returns a digest that identifies the code of this package."""
    return _digest(_content())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _content() -> bytes:
    buffer = BytesIO()
    with ZipFile(buffer, "w") as zipped:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                # An entry without a date gets 1980, so the bytes do not depend on when the file was written.
                entry = ZipInfo(path.relative_to(PACKAGE.parent).as_posix())
                zipped.writestr(entry, path.read_bytes(), ZIP_DEFLATED)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.stdout.write(f"{archive(Path(sys.argv[1]))}\n")
