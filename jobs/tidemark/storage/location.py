"""Writes files of a warehouse, on disk or in an object store.

Purpose: `model.project.layout` and the readers and writers of a warehouse use `pathlib` for both. This module has the
operations that take different steps in the two: to write a new file, one that only one of several writers can make, and
one in place of another.

On a disk a file survives a loss of power only if its content was synced (fsync), and its name was, too: a name is
content of the folder. `durable` does both for files that other programs wrote, such as delta-rs and Spark.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from tidemark.errors import InvalidArgument
from tidemark.storage.object_path import ADLS, GCS, SCHEME, ObjectPath

log = logging.getLogger(__name__)

_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
NAME = re.compile(r"[A-Za-z0-9._=-]+")
"""Names of folders that delta-rs does not change in URLs."""
CONTAINER = re.compile(r"[a-z0-9-]+@[a-z0-9]+\.dfs\.core\.windows\.net")
"""A container of Azure with its account."""
STORES = {"s3": (SCHEME, NAME), "s3a": (SCHEME, NAME), "gs": (GCS, NAME), "abfss": (ADLS, CONTAINER)}
"""Scheme of paths and form of buckets by scheme of URLs."""
_NAMED: set[tuple[Path, int, int]] = set()
"""Folders (path, device, inode) whose names, and those of the folders above, this process has synced.

File systems give the inode of a removed folder to the next one, under another path.
"""


def location(text: str | Path) -> Path:
    """Returns the path of *text*, local or in an object store.

    The path in an object store is `s3a://`, `s3://` or `gs://` with bucket and folder, or `abfss://` with
    CONTAINER@ACCOUNT.dfs.core.windows.net and folder. Raises InvalidArgument for any other URL, and for a local path
    that delta-rs would read as another one.

    >>> str(location("s3://bucket/warehouse") / "streams")
    's3a://bucket/warehouse/streams'
    >>> str(location("/srv/warehouse") / "streams")
    '/srv/warehouse/streams'
    """
    if isinstance(text, Path):
        return text
    scheme, separator, rest = text.partition("://")
    if not separator:
        _refuse_encoded(text)
        return Path(text)
    bucket, *folders = [name for name in rest.split("/") if name] or [""]
    path_scheme, form = STORES.get(scheme, (SCHEME, NAME))
    if scheme not in STORES or not form.fullmatch(bucket) or not all(map(NAME.fullmatch, folders)):
        msg = (
            "a location is a path of this machine, s3:// or gs:// with a bucket, or abfss:// with a container "
            "(CONTAINER@ACCOUNT.dfs.core.windows.net), and folders of letters, digits, '.', '_', '-' and '=', "
            f"got {text!r}"
        )
        raise InvalidArgument(msg)
    return ObjectPath(path_scheme, bucket, *folders)


def _refuse_encoded(text: str) -> None:
    """Raises InvalidArgument if the real path of *text* has a % before two hexadecimal digits."""
    # delta-rs resolves links, makes a URL of the path, and decodes it twice: it reads `s%20park` as `s park`.
    resolved = os.path.realpath(text)
    if encoded := _ENCODED.search(resolved):
        msg = (
            f"a location must not have {encoded[0]!r} in its path, which delta-rs reads as {unquote(encoded[0])!r}: "
            f"{resolved}; rename that folder, for example with '_' in place of '%'"
        )
        raise InvalidArgument(msg)


def path_of_url(url: str) -> Path:
    """Returns the path of a local file whose *url* Spark reports.

    >>> str(path_of_url("file:///srv/a%20b%2520%23.json"))
    '/srv/a b%20#.json'
    """
    return Path(unquote(urlsplit(url).path))


def is_missing(warehouse: Path) -> bool:
    """Returns True if the folder *warehouse* does not exist."""
    # In an object store a folder without objects does not exist, and proves nothing.
    return not isinstance(warehouse, ObjectPath) and not warehouse.is_dir()


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file at *path* for writing, which is durable after the context; none is left if the context raises.

    Raises FileExistsError if there was a file before.
    """
    if isinstance(path, ObjectPath):
        content = io.BytesIO()
        yield content
        path.create(content.getvalue())
        return
    with path.open("xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            _sync_names(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def put_once(path: Path, content: bytes, *, check: Callable[[], None] = lambda: None) -> None:
    """Makes a durable file with *content*, whole or not at all.

    *check* is called just before the file appears at *path*, and raises if it must not. Raises FileExistsError if there
    was a file before.
    """
    put_written(path, lambda file: file.write(content), check=check)


def put_written(path: Path, write: Callable[[BinaryIO], object], *, check: Callable[[], None] = lambda: None) -> None:
    """Makes a durable file at *path*, as `put_once` does; *write* writes the content to the file that it is given."""
    if isinstance(path, ObjectPath):
        # A store shows an object only as a whole, so no second name is needed.
        content = io.BytesIO()
        write(content)
        check()
        path.create(content.getvalue())
        return
    # A reader must never see half a file, so the content is written under another name first.
    partial = path.with_suffix(f".{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        check()
        # Unlike a rename, a link fails if there is a file already.
        os.link(partial, path)
        _sync_names(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def replace(path: Path, text: str) -> None:
    """Replaces a file by *text*, durably; readers see the old or new one, also after a loss of power."""
    _replace(path, text, sync=os.fsync)
    if not isinstance(path, ObjectPath):
        _sync_names(path.parent)


def replace_unsynced(path: Path, text: str) -> None:
    """Replaces a file by *text*; readers see the old or new one, and after a loss of power perhaps neither.

    Use this for a file that a living process writes again and again, such as its heartbeat.
    """
    _replace(path, text, sync=lambda _: None)


def _replace(path: Path, text: str, *, sync: Callable[[int], None]) -> None:
    if isinstance(path, ObjectPath):
        path.write_text(text)
        return
    # Streams are threads of a process, so its id would not be enough.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            sync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def durable(files: Iterable[Path]) -> None:
    """Makes *files* and their names survive a loss of power; files in an object store do already.

    Files that are missing, because another process has removed them, are passed over.
    """
    folders: set[Path] = set()
    for file in files:
        if isinstance(file, ObjectPath):
            continue
        with suppress(FileNotFoundError), file.open("rb") as content:
            os.fsync(content.fileno())
            folders.add(file.parent)
    for folder in sorted(folders):
        _sync_names(folder)


def _sync_names(folder: Path) -> None:
    """Makes the names in *folder* durable, and once per process the names of the folder and of those above it.

    A failure is only logged: other processes may have seen the names already, so nobody can take them back.
    """
    for each in (folder, *folder.absolute().parents):
        try:
            opened = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            return  # a folder that this process may not list is older than the process
        try:
            status = os.fstat(opened)
            seen = (each.absolute(), status.st_dev, status.st_ino)
            os.fsync(opened)
        except OSError as error:
            if seen not in _NAMED:
                log.warning("%s: after a loss of power its newest files may be missing: %s", each, error)
        finally:
            os.close(opened)
        if seen in _NAMED:
            return
        _NAMED.add(seen)


def remove_folder(folder: Path) -> None:
    """Removes *folder* and its content, as far as that is possible."""
    if not isinstance(folder, ObjectPath):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.rglob("*"):
        path.unlink()
