"""Paths of objects in a store, with the methods of `pathlib.Path`.

How it works: an `ObjectPath` has the methods of `Path` for files. Python's other file functions (`open(path)`, `os`,
`shutil`) refuse it: it is not a local file.
Requirements: the store is consistent, and can refuse a PUT of an object that is there (`If-None-Match: *`).
Configuration: the address of the store and the credentials come from the environment alone: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION; for a store that is not Amazon's also AWS_ENDPOINT_URL, and
AWS_ALLOW_HTTP=true without TLS. `tidemark.storage.store_settings` has the variables of all stores.
Known limitation: only stores with the S3 interface were tested, not Google's and Azure's.
"""

from __future__ import annotations

import fnmatch
import io
import os
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import PosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tidemark.errors import InvalidArgument

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

SCHEME = "s3a:"
"""The URL scheme of S3 that Spark, delta-rs and polars all know."""
GCS, ADLS = "gs:", "abfss:"
SCHEMES = frozenset({SCHEME, GCS, ADLS})
PUT_ID = "tidemarkputid"
"""Metadata key with the id of the call that made an object.

Azure refuses a hyphen in a key, and some proxies an underscore.
"""


class StoredObject(NamedTuple):
    """An object as a listing of its folder has it.

    `written_ns` is epoch ns, and other content has another `tag`.
    """

    name: str
    written_ns: int
    tag: str


class ObjectPath(PosixPath):
    """The path of an object or a folder in an object store.

    A folder exists as long as keys of objects begin with its name.
    """

    def __str__(self) -> str:
        """Returns `s3a://`, bucket and key; for a relative path its names."""
        # pathlib joins `s3a:` and the bucket with one slash.
        names, scheme = super().__str__(), self.parts[0] if self.parts else ""
        return names.replace(f"{scheme}/", f"{scheme}//", 1) if scheme in SCHEMES else names

    def __fspath__(self) -> NoReturn:
        """Raises TypeError, so that `open`, `os` and `shutil` refuse such a path."""
        msg = f"{self} is in an object store, without local files; ask the path itself, or tidemark.storage.location"
        raise TypeError(msg)

    @property
    def _key(self) -> str:
        # Before the key are the scheme and the bucket.
        return "/".join(self.parts[2:])

    @property
    def _store(self) -> S3Store | GCSStore | AzureStore:
        return _store(self.parts[0], self.parts[1])

    def absolute(self) -> ObjectPath:
        """Returns the path itself."""
        return self

    def resolve(self, strict: bool = False) -> ObjectPath:  # noqa: FBT001, FBT002 - pathlib's signature
        """Returns the path itself."""
        return self

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        """Does nothing: a folder exists as soon as it has an object."""

    def exists(self) -> bool:
        """Returns True for an object or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Returns True for an object."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Returns True for a folder: there is an object in it."""
        with _file_errors(self):
            # One key is enough to show that the folder exists.
            return any(len(part) for part in self._store.list(f"{self._key}/", chunk_size=1))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns the length, and the time of writing in whole seconds of the store's clock; all other fields are 0."""
        with _file_errors(self):
            head = self._store.head(self._key)
        written_s = head["last_modified"].timestamp()
        # Stores have no owner, inode or mode for an object: those fields are 0.
        return os.stat_result(
            (0, 0, 0, 0, 0, 0, head["size"], int(written_s), int(written_s), int(written_s)),
            {"st_mtime": written_s, "st_mtime_ns": round(written_s * 1e9)},
        )

    def iterdir(self) -> Generator[ObjectPath, None, None]:
        """Yields the objects and folders in this folder; a missing folder has none."""
        folders, objects = self._listed()
        yield from (*folders, *objects)

    def folders(self) -> list[ObjectPath]:
        """Returns the folders in this one with one request; `is_dir` of each path of `iterdir` would take one each."""
        return self._listed()[0]

    def _listed(self) -> tuple[list[ObjectPath], list[ObjectPath]]:
        """Returns the folders and the objects in this folder."""
        with _file_errors(self):
            listing = self._store.list_with_delimiter(f"{self._key}/")
        names = (listing["common_prefixes"], (entry["path"] for entry in listing["objects"]))
        folders, objects = ([self / name.rstrip("/").rpartition("/")[2] for name in each] for each in names)
        return folders, objects

    def objects_after(self, name: str) -> Generator[StoredObject, None, None]:
        """Yields the objects below this folder whose names sort after *name*, with a request for each thousand."""
        with _file_errors(self):
            for part in self._store.list(f"{self._key}/", offset=f"{self._key}/{name}"):
                for entry in part:
                    written_ns = round(entry["last_modified"].timestamp() * 1e9)
                    yield StoredObject(entry["path"].removeprefix(f"{self._key}/"), written_ns, entry["e_tag"] or "")

    def glob(self, pattern: str) -> Generator[ObjectPath, None, None]:
        """Yields the paths that *pattern* matches, name by name.

        Raises ValueError for `**`: use `rglob` for that.
        """
        if "**" in pattern:
            msg = f"a pattern must name each folder in an object store, got {pattern!r}; use rglob"
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
        """Yields the objects below this folder whose name *pattern* matches."""
        # Spark leaves an object as the mark of a folder that it made; these are among them.
        with _file_errors(self):
            keys: list[str] = []
            for part in self._store.list(f"{self._key}/"):
                keys += [entry["path"] for entry in part]
        paths = (ObjectPath(*self.parts[:2], *key.split("/")) for key in keys)
        yield from (path for path in paths if fnmatch.fnmatchcase(path.name, pattern))

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Opens the object to read its bytes on demand (mode `rb`).

        `tidemark.storage.location` has functions that write. Raises ValueError for any other mode.
        """
        if mode != "rb":
            msg = f"{self}: an object can only be opened to read bytes, got mode {mode!r}"
            raise ValueError(msg)
        return io.BufferedReader(_Ranges(self, self.stat().st_size))

    def read_bytes(self) -> bytes:
        """Returns all bytes of the object; raises FileNotFoundError."""
        with _file_errors(self):
            return bytes(self._store.get(self._key).bytes())

    def read_range(self, start: int, length: int) -> bytes:
        """Returns *length* bytes of the object from *start* on."""
        with _file_errors(self):
            return bytes(self._store.get_range(self._key, start=start, length=length))

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Returns the object as text, UTF-8 by default."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any) -> int:
        """Writes *data* to the object, which replaces an older one; returns the number of bytes."""
        with _file_errors(self):
            # A put is atomic: a reader sees the old object or the new one.
            self._store.put(self._key, data)
        return len(data)

    def write_text(
        self, data: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> int:
        """Writes *data* to the object as text, UTF-8 by default; see `write_bytes`."""
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    def create(self, data: bytes) -> None:
        """Writes *data* to a new object; if processes do so at the same time, one succeeds.

        Raises:
            FileExistsError: another object is there.
            OSError: the store did not accept it.
        """
        # The answer to a put may be lost; the client then sends it again, or gives up. So each put carries an id, and
        # an object with this id was put by this call.
        put_id = uuid.uuid4().hex
        try:
            with _file_errors(self):
                self._store.put(self._key, data, attributes={PUT_ID: put_id}, mode="create")
        except OSError:
            if self._put_id() != put_id:
                raise

    def _put_id(self) -> str | None:
        """Returns the id of the put that made the object, or None if it has none or the store does not answer."""
        # A store that does not answer proves nothing about who made the object.
        with suppress(OSError), _file_errors(self):
            return str(self._store.get(self._key).attributes.get(PUT_ID))
        return None

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - pathlib's signature
        """Removes the object; a missing one is not an error."""
        with _file_errors(self):
            self._store.delete(self._key)


class _Ranges(io.RawIOBase):
    """Reads the bytes of an object of *size* bytes by ranges."""

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


# A client keeps connections open, so there is one for each bucket.
@lru_cache
def _store(scheme: str, bucket: str) -> S3Store | GCSStore | AzureStore:
    try:
        # Only a warehouse in an object store needs this package, and DAGs are parsed without it.
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        msg = f"{scheme}//{bucket}: a warehouse in an object store needs the package obstore; pip install obstore"
        raise InvalidArgument(msg) from error
    if scheme == GCS:
        return GCSStore(bucket)
    if scheme == ADLS:
        container, _, host = bucket.partition("@")
        return AzureStore(container, account_name=host.partition(".")[0])
    return S3Store(bucket)


@contextmanager
def _file_errors(path: ObjectPath) -> Iterator[None]:
    """Turns errors of the store into FileExistsError, FileNotFoundError or OSError."""
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(str(path)) from error
    # obstore has Python's own error for a missing object, and its own errors for all else.
    except FileNotFoundError as error:
        raise FileNotFoundError(str(path)) from error
    except BaseError as error:
        msg = f"{path}: {error}"
        raise OSError(msg) from error
