"""Packs this package into an archive for executors that lack it.

`python -m tidemark.storage.library FOLDER` prints the path of the archive. Drivers on hosts without a checkout get
another one, which also has the files of their project.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from tidemark.model.project.files import CHECKOUT, IS_WHEEL, Project
from tidemark.storage.location import put_once

PACKAGE = Path(__file__).parents[1]
OF_PROJECT = "project"
"""The folder of a project's files in the archive of a driver."""


def archive(folder: Path) -> Path:
    """Makes a zip in *folder* for `spark-submit --py-files`; returns its path."""
    return _put(folder, "tidemark", _content())


def driver_archive(folder: Path, project: Project) -> Path:
    """Makes a zip in *folder* with a driver's files; returns its path.

    The zip has this package as a wheel has it, and in the folder `project` what a driver and batch jobs read of
    *project*: topologies, connections and SLAs.
    """
    return _put(folder, "driver", _zipped({**_package(), **dict(_beside()), **dict(_of_project(project))}))


def version() -> str:
    """Returns a digest that identifies the code of this package."""
    return _digest(_content())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _put(folder: Path, name: str, content: bytes) -> Path:
    """Writes *content* into a file of *folder* whose name has the digest of the content."""
    # An archive is never overwritten: executors that join a running driver later still ask for the one of its start.
    file = folder / f"{name}-{_digest(content)}.zip"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Another process makes the same file: the same code makes the same bytes and the same name.
        with suppress(FileExistsError):
            put_once(file, content)
    return file


def _content() -> bytes:
    return _zipped(_package())


def _package() -> dict[str, Path]:
    """Returns the files of the package by their names in an archive."""
    return {path.relative_to(PACKAGE.parent).as_posix(): path for path in _files(PACKAGE)}


def _beside() -> Iterator[tuple[str, Path]]:
    """Yields the files of the checkout that batch jobs read; in a wheel they are part of the package."""
    if not IS_WHEEL:
        for suite in (CHECKOUT / "expectations").glob("*.json"):
            yield f"tidemark/checkout/expectations/{suite.name}", suite


def _of_project(project: Project) -> Iterator[tuple[str, Path]]:
    """Yields the files of *project* in the form that `tidemark init` makes."""
    for path in _files(project.topologies):
        yield f"{OF_PROJECT}/topologies/{path.relative_to(project.topologies).as_posix()}", path
    for name, path in (("expectations/slas.toml", project.slas), ("connections.toml", project.connections)):
        if path.is_file():
            yield f"{OF_PROJECT}/{name}", path


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _zipped(files: Mapping[str, Path]) -> bytes:
    buffer = BytesIO()
    with ZipFile(buffer, "w") as zipped:
        for name in sorted(files):
            # An entry without a date gets 1980, so the bytes do not depend on when the file was written.
            zipped.writestr(ZipInfo(name), files[name].read_bytes(), ZIP_DEFLATED)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.stdout.write(f"{archive(Path(sys.argv[1]))}\n")
