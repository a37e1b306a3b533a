"""This package as an archive for executors that do not have it: `python -m tidemark.library FOLDER` prints its path."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from tidemark.place import put_once

PACKAGE = Path(__file__).parent


def archive(folder: Path) -> Path:
    """A zip in *folder* to give to `spark-submit --py-files`; the same code makes the same bytes and the same name.

    It is never overwritten: executors that a running driver gets later still ask for the one that it was started with.
    """
    content = _content()
    file = folder / f"tidemark-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            put_once(file, content)
    return file


def _content() -> bytes:
    buffer = BytesIO()
    with ZipFile(buffer, "w") as zipped:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = ZipInfo(path.relative_to(PACKAGE.parent).as_posix())  # dated 1980, whenever it was written
                zipped.writestr(entry, path.read_bytes(), ZIP_DEFLATED)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.stdout.write(f"{archive(Path(sys.argv[1]))}\n")
