"""Paths of objects in a store that knows S3, for those who ask a `Path`.

How it works: an `ObjectPath` answers what a `Path` is asked about files. Python's file functions that are not asked of
the path itself (`open(path)`, `os`, `shutil`) refuse it: it is no local file.
What the store must be: consistent, and able to refuse a PUT of an object that is there (`If-None-Match: *`).
Where it is and with which credentials is said by the environment alone: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION; of a store that is not Amazon's AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true without TLS.
"""

from __future__ import annotations

import fnmatch
import io
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import PosixPath
from typing import TYPE_CHECKING, Any, NoReturn

from tidemark.errors import InvalidArgument

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME = "s3a:"
"""That which Spark knows; delta-rs and polars know it, too."""


class ObjectPath(PosixPath):
    """A place in an object store, of which there are objects and, where some begin with its name, folders."""

    def __str__(self) -> str:
        """`s3a://`, bucket and key; of a relative path its names."""
        names = super().__str__()
        return names.replace(f"{SCHEME}/", f"{SCHEME}//", 1) if self.parts[:1] == (SCHEME,) else names

    def __fspath__(self) -> NoReturn:
        """For `open`, `os` and `shutil`: raises TypeError."""
        msg = f"{self} is in an object store, where there are no local files; ask the path itself, or tidemark.place"
        raise TypeError(msg)

    @property
    def _key(self) -> str:
        return "/".join(self.parts[2:])

    @property
    def _store(self) -> S3Store:
        return _store(self.parts[1])

    def absolute(self) -> ObjectPath:
        """Itself."""
        return self

    def resolve(self, strict: bool = False) -> ObjectPath:  # noqa: FBT001, FBT002 - pathlib's signature
        """Itself."""
        return self

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        """Nothing: a folder is there as soon as something is in it."""

    def exists(self) -> bool:
        """Whether it is an object or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether it is an object."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there is an object in it."""
        with _told(self):
            return any(True for part in self._store.list(f"{self._key}/", chunk_size=1) for _ in part)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its length and when it was written, in whole seconds of the store's clock; all else is 0."""
        with _told(self):
            found = self._store.head(self._key)
        written_s = found["last_modified"].timestamp()
        return os.stat_result(
            (0, 0, 0, 0, 0, 0, found["size"], int(written_s), int(written_s), int(written_s)),
            {"st_mtime": written_s, "st_mtime_ns": round(written_s * 1e9)},
        )

    def iterdir(self) -> Generator[ObjectPath, None, None]:
        """The objects and folders in it; none when it is not there."""
        with _told(self):
            found = self._store.list_with_delimiter(f"{self._key}/")
        names = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        yield from (self / name.rstrip("/").rpartition("/")[2] for name in names)

    def glob(self, pattern: str) -> Generator[ObjectPath, None, None]:
        """What *pattern* matches, name by name; raises ValueError for `**`, for which there is `rglob`."""
        if "**" in pattern:
            msg = f"a pattern of an object store has a name for each folder, got {pattern!r}; use rglob"
            raise ValueError(msg)
        first, _, rest = pattern.strip("/").partition("/")
        if any(letter in first for letter in "*?["):
            matches = [path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, first)]
        else:
            matches = [self / first]
        for path in matches:
            if rest:
                yield from path.glob(rest)
            elif path.exists():
                yield path

    def rglob(self, pattern: str) -> Generator[ObjectPath, None, None]:
        """The objects below it whose name *pattern* matches; and of folders that Spark made, which leave a mark."""
        with _told(self):
            keys = [entry["path"] for part in self._store.list(f"{self._key}/") for entry in part]
        paths = (ObjectPath(*self.parts[:2], *key.split("/")) for key in keys)
        yield from (path for path in paths if fnmatch.fnmatchcase(path.name, pattern))

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Its bytes, read as they are asked for (`rb`); what writes is in `tidemark.place`."""
        if mode != "rb":
            msg = f"{self}: an object is opened to read its bytes, got mode {mode!r}"
            raise ValueError(msg)
        return io.BufferedReader(_Ranges(self, self.stat().st_size))

    def read_bytes(self) -> bytes:
        """All of it; raises FileNotFoundError."""
        with _told(self):
            return bytes(self._store.get(self._key).bytes())

    def read_range(self, start: int, length: int) -> bytes:
        """So many bytes of it from *start* on."""
        with _told(self):
            return bytes(self._store.get_range(self._key, start=start, length=length))

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """All of it."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any) -> int:
        """Put *data* there, in place of what was there before: a reader sees the one or the other."""
        with _told(self):
            self._store.put(self._key, data)
        return len(data)

    def write_text(
        self, data: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> int:
        """As `write_bytes`."""
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    def create(self, data: bytes) -> None:
        """Put *data* there; raises FileExistsError when something is there, and of several at once one succeeds."""
        with _told(self):
            self._store.put(self._key, data, mode="create")

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - pathlib's signature
        """Remove it; one that is not there is nothing wrong."""
        with _told(self):
            self._store.delete(self._key)


class _Ranges(io.RawIOBase):
    """The bytes of an object of so many."""

    def __init__(self, path: ObjectPath, size: int) -> None:
        self._path, self._size, self._at = path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._at))
        if length:
            buffer[:length] = self._path.read_range(self._at, length)
        self._at += length
        return length


@lru_cache
def _store(bucket: str) -> S3Store:
    try:
        from obstore.store import S3Store  # only those with a warehouse there need it, and DAGs are parsed without
    except ImportError as error:
        msg = f"{SCHEME}//{bucket}: a warehouse in an object store needs the package obstore; pip install obstore"
        raise InvalidArgument(msg) from error
    return S3Store(bucket)


@contextmanager
def _told(path: ObjectPath) -> Iterator[None]:
    """Have the store's errors be those of files: FileExistsError, FileNotFoundError, else OSError."""
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(str(path)) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(str(path)) from error
    except BaseError as error:
        msg = f"{path}: {error}"
        raise OSError(msg) from error
