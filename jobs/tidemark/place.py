"""Where a warehouse is: a folder, or the same in an object store.

Purpose: `spec.layout` and all who read and write what lies there do so by `pathlib`, wherever that is. What the two can
do alike, but not by the same steps, is a function here: a new file, one that only one of several can make, one in place
of another.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tidemark.errors import InvalidArgument
from tidemark.object_path import SCHEME, ObjectPath

NAME = re.compile(r"[A-Za-z0-9._=-]+")
"""Of a folder: that of others delta-rs makes another one's URL."""


def location(text: str | Path) -> Path:
    """The place *text*: `s3a://` or `s3://` with bucket and folder, or a path of this machine.

    >>> str(location("s3://bucket/warehouse") / "streams")
    's3a://bucket/warehouse/streams'
    >>> str(location("/srv/warehouse") / "streams")
    '/srv/warehouse/streams'
    """
    if isinstance(text, Path):
        return text
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text)
    names = [name for name in rest.split("/") if name]
    if f"{scheme}:" not in {SCHEME, "s3:"} or not names or not all(map(NAME.fullmatch, names)):
        msg = (
            "a place is a path of this machine, or s3a:// with a bucket and folders, of letters, digits, '.', '_', '-' "
            f"and '=', got {text!r}"
        )
        raise InvalidArgument(msg)
    return ObjectPath(SCHEME, *names)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """To write a new file at *path*: it is durable afterwards, and there is none when something is raised meanwhile.

    Raises FileExistsError when there was one before.
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
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def put_once(path: Path, content: bytes, *, check: Callable[[], None] = lambda: None) -> None:
    """Make *content* durable at *path* whole; raises FileExistsError when it is there already.

    *check* is called just before it appears, and raises where it must not.
    """
    if isinstance(path, ObjectPath):
        check()
        path.create(content)
        return
    partial = path.with_suffix(f".{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        check()
        os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def replace(path: Path, text: str) -> None:
    """Write *text* so that a reader sees the old file or the new one, never a part."""
    if isinstance(path, ObjectPath):
        path.write_text(text)
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def remove_folder(folder: Path) -> None:
    """Remove *folder* and all that is in it, as far as that can be done."""
    if not isinstance(folder, ObjectPath):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.rglob("*"):
        path.unlink()
