"""Reads and writes runs: files with states, sorted by key and mapped into memory.

A run has the states by key in tables (`memory.py` has their names), and beside them the rows that have no key.

The form of a file: for each table its hashes, an Arrow stream of its blocks, and one of the keys that are gone. Arrow
streams of the rows without a key follow, then a JSON object with the position and length of all these sections. At the
end are the length of this object, the CRC-32 of all bytes before, and MARK. A file contains its own name, so that a
file that was copied to another name is detected.

A warehouse on this machine is mapped where it is. From an object store, or where TIDEMARK_STATE_CACHE names a folder of
a local disk, files are copied there first; a copy that is missing, torn or of another file is made anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa

from tidemark.storage.object_path import ObjectPath
from tidemark.stream.state.sorted_rows import RunMerge, SortedRows

SUFFIX = ".run"
CACHE = "TIDEMARK_STATE_CACHE"
MARK = b"TIDEMARK RUN 1\n\n"
ALIGNED = 64
LENGTH, CHECKSUM = 8, 4
"""Bytes of the length of the JSON object, and of the checksum."""
TAIL = LENGTH + CHECKSUM + len(MARK)


INCOMPLETE = "it is incomplete"


class RunTorn(ValueError):
    """Raised when a file is not the whole run of its name."""


@dataclass(frozen=True)
class SortedRun:
    """The content of a run.

    Attributes:
        tables: states by key, by name.
        puts: by table, how many rows were ever put.
        others: rows that have no key, by name.
    """

    tables: Mapping[str, SortedRows]
    puts: Mapping[str, int]
    others: Mapping[str, pl.DataFrame]


@dataclass
class RunContent:
    """The content of a run that is to be written.

    Attributes:
        name: the run's own name.
        merged: by name, the tables that older runs and new states become.
        puts: as in `SortedRun`.
        others: as in `SortedRun`.
        rows: what `write` has written: states, keys that are gone, and rows without a key. 0 before that.
    """

    name: str
    merged: Mapping[str, RunMerge]
    puts: Mapping[str, int]
    others: Mapping[str, pl.DataFrame]
    rows: int = 0

    def write(self, out: BinaryIO) -> None:
        """Writes the run to *out*."""
        file = _Summed(out)
        tables: dict[str, Any] = {}
        self.rows = sum(rows.height for rows in self.others.values())
        for name, merged in self.merged.items():
            hashes, source, position = merged.sources()
            gone = merged.gone()
            self.rows += len(hashes) + len(gone)
            schema = pl.DataFrame(schema=dict(merged.schema)).to_arrow().schema
            tables[name] = {
                "puts": self.puts.get(name, 0),
                # Little-endian on every machine, as the hashes are defined.
                "hashes": _section(
                    file, lambda out, hashes=hashes: out.write(memoryview(hashes.astype("<u8", copy=False)))
                ),
                "rows": _stream(file, schema, merged.blocks(source, position)),
                "gone": _frame(file, gone.to_frame("key")),
            }
        others = {name: _frame(file, rows) for name, rows in self.others.items()}
        # The index is last, so that a file can be written in one pass.
        index = json.dumps({"name": self.name, "tables": tables, "others": others}).encode()
        file.write(index + len(index).to_bytes(LENGTH, "little"))
        file.write(file.crc32.to_bytes(CHECKSUM, "little") + MARK)


class _Summed(io.RawIOBase):
    """Writes to *file*, and adds up the checksum of everything that was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.crc32 = file, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def write(self, content: Any) -> int:
        self.crc32 = zlib.crc32(content, self.crc32)
        return self._file.write(content)


def _section(file: _Summed, write: Any) -> tuple[int, int]:
    """Calls *write* to write a section, and returns the position in *file* at which it starts, and its length."""
    # Aligned sections can be read as arrays without a copy.
    file.write(b"\0" * (-file.tell() % ALIGNED))
    start = file.tell()
    write(file)
    return start, file.tell() - start


def _stream(file: _Summed, schema: pa.Schema, blocks: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    def write(out: _Summed) -> None:
        # Without compression, so that blocks can be used where they are mapped.
        with pa.ipc.new_stream(out, schema) as stream:
            for block in blocks:
                stream.write_batch(block)

    return _section(file, write)


def _frame(file: _Summed, rows: pl.DataFrame) -> tuple[int, int]:
    table = rows.to_arrow()
    return _stream(file, table.schema, table.to_batches())


def open_run(path: Path, keys: Mapping[str, str]) -> SortedRun:
    """Returns the run at *path*, mapped into memory.

    *keys* has the column of the key for each table that is read; other tables are left out.

    Raises:
        OSError: the file cannot be read.
        RunTorn: the file is not a whole run of that name.
    """
    local = _local(path)
    try:
        return _opened(local, path.name, keys)
    except (OSError, ValueError, KeyError):
        if local == path:
            raise
    # A copy that cannot be read is made once more; an original is not.
    local.unlink(missing_ok=True)
    return _opened(_local(path), path.name, keys)


def damage_of(path: Path) -> str:
    """Returns what is wrong with the file at *path*, or an empty text if nothing is.

    A file on a disk is read completely. Of a file in an object store, which keeps checksums itself, only the end is
    read.
    """
    try:
        if isinstance(path, ObjectPath):
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(MARK)))
                return "" if file.read() == MARK else INCOMPLETE
        with pa.memory_map(str(path)) as mapped:
            content = mapped.read_buffer()
        _index(content, path.name)
        crc32 = content.slice(content.size - len(MARK) - CHECKSUM, CHECKSUM).to_pybytes()
        summed = zlib.crc32(content.slice(0, content.size - len(MARK) - CHECKSUM))
    except FileNotFoundError:
        return "it is missing"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return str(error)
    return "" if int.from_bytes(crc32, "little") == summed else "its content does not match its checksum"


def forget_copies(folder: Path, names: Collection[str]) -> None:
    """Removes copies of files of *folder* that are not among *names*."""
    copies = _copies(folder)
    if copies is not None and copies.exists():
        for copy in copies.glob(f"*{SUFFIX}"):
            if copy.name not in names:
                copy.unlink(missing_ok=True)


def _opened(path: Path, name: str, keys: Mapping[str, str]) -> SortedRun:
    with pa.memory_map(str(path)) as mapped:
        content = mapped.read_buffer()
    index = _index(content, name)
    tables: dict[str, SortedRows] = {}
    puts: dict[str, int] = {}
    for table, sections in index["tables"].items():
        # States of operators that the topology no longer has stay in the file, unread.
        if table in keys:
            tables[table], puts[table] = _sorted(content, keys[table], sections), sections["puts"]
    others = {name: pl.DataFrame(_read(content, section)) for name, section in index["others"].items()}
    return SortedRun(tables=tables, puts=puts, others=others)


def _index(content: pa.Buffer, name: str) -> dict[str, Any]:
    """Returns the JSON object of the run *name*; raises RunTorn if the run is not complete, or has another name."""
    # The mark is written last, so a file with it has all that is before it.
    if content.size < TAIL or content.slice(content.size - len(MARK)).to_pybytes() != MARK:
        raise RunTorn(INCOMPLETE)
    length = int.from_bytes(content.slice(content.size - TAIL, LENGTH).to_pybytes(), "little")
    if length > content.size - TAIL:
        raise RunTorn(INCOMPLETE)
    index: dict[str, Any] = json.loads(content.slice(content.size - TAIL - length, length).to_pybytes())
    # A file that was copied to another name would be another shard's or batch's state.
    if index["name"] != name:
        msg = f"its content is the run {index['name']}"
        raise RunTorn(msg)
    return index


def _sorted(content: pa.Buffer, key: str, sections: Mapping[str, Any]) -> SortedRows:
    start, length = sections["hashes"]
    hashes = np.frombuffer(content.slice(start, length), "<u8")
    gone = pl.DataFrame(_read(content, sections["gone"]))["key"]
    return SortedRows(key, hashes, _read(content, sections["rows"]).to_batches(), gone)


def _read(content: pa.Buffer, section: tuple[int, int]) -> pa.Table:
    """Returns the Arrow stream in a *section*: its start and its length."""
    return pa.ipc.open_stream(pa.BufferReader(content.slice(*section))).read_all()


def _copies(folder: Path) -> Path | None:
    """Returns the local folder with copies of the files of *folder*, or None if the files are mapped where they lie."""
    named = os.environ.get(CACHE)
    if not named and not isinstance(folder, ObjectPath):
        return None
    home = Path(named or Path(tempfile.gettempdir()) / f"tidemark-state-{os.getuid()}")
    return home / hashlib.sha256(str(folder).encode()).hexdigest()[:32]


def _local(path: Path) -> Path:
    """Returns *path*, or a copy of the file on this machine, which is made if there is none."""
    copies = _copies(path.parent)
    if copies is None:
        return path
    copy = copies / path.name
    if not copy.exists():
        # States have the keys of records, which other users of the host must not see.
        copies.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = copy.with_name(f"{uuid.uuid4().hex}.partial")
        try:
            with path.open("rb") as source, partial.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 24)
            # Renaming is atomic: another process maps a whole copy or none.
            partial.replace(copy)
        finally:
            partial.unlink(missing_ok=True)
    return copy
