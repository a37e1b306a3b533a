"""The journal of one stream: a batch is decided once, and written down before anything acts on it.

Purpose: a batch touches a dozen tables, and no commit spans them. So the rows of all of them, the clocks read and the
progress made go into one file first; the file appears whole or not at all, and its name can be taken only once.

How it works: `<batch>.data.zip` holds what the operators decided, `<batch>.facts.zip` what was measured while that was
committed. A batch that is run again finds its file and repeats the commits, which the tables skip where they have them;
it never decides or reads a clock again. A second driver that decides the same batch finds the name taken.

What it does not do: keep history. An entry is kept until a file has what its batch moved, and the newest ones are,
since Spark may ask for the newest batch again.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemark.disk import UntilWritten, at_once
from tidemark.errors import Contradiction
from tidemark.files import File, Files, Rows
from tidemark.place import put_once

KEPT = 5
MANY = 5_000
"""From so many rows on, a table's part of a batch is no part of the journal: that only names the file."""
COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
_NAME = re.compile(r"(\d{20})\.(data|facts)\.zip")


@dataclass(frozen=True)
class Entry:
    """One file of the journal: rows by name, as Arrow tables or as files elsewhere, and a JSON object beside them."""

    batch_id: int
    tables: Mapping[str, Rows]
    notes: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """Reads and writes the entries of kind `data` or `facts` in the folder *home*.

    *check_lease* is called before each write, and raises when this driver may not write any more; *until_written* tries
    again while the disk is full.
    """

    def __init__(
        self,
        home: Path,
        kind: str,
        *,
        check_lease: Callable[[], None] = lambda: None,
        until_written: UntilWritten = at_once,
    ) -> None:
        self._home, self._kind, self._check_lease, self._until_written = home, kind, check_lease, until_written
        home.mkdir(parents=True, exist_ok=True)

    def write(self, entry: Entry, *, needed_after: int | None = None) -> None:
        """Make *entry* durable; raises Contradiction when its batch has one already.

        Entries after that of *needed_after* are kept, and some before (None: the newest ones).
        """
        content = packed(entry)
        self._until_written(lambda: self._write(entry.batch_id, content))
        before = entry.batch_id - KEPT
        self._forget(before if needed_after is None else min(before, needed_after + 1))

    def _write(self, batch_id: int, content: bytes) -> None:
        path = self._path(batch_id)
        try:
            put_once(path, content, check=self._check_lease)
        except FileExistsError:
            msg = f"{path}: a batch is decided once, and another driver decided this one; stop one of the two"
            raise Contradiction(msg) from None

    def read(self, batch_id: int, *, only: str = "") -> Entry | None:
        """The entry of *batch_id*, of its tables *only* those whose names begin so; None when it was not decided."""
        path = self._path(batch_id)
        return unpacked(batch_id, path.read_bytes(), only=only) if path.exists() else None

    def newest(self) -> Entry | None:
        """The entry of the newest batch that was decided; batches that change nothing have none."""
        known = self.batches()
        return self.read(known[-1]) if known else None

    def written_at_ms(self, batch_id: int) -> int:
        """When the entry of *batch_id* was written, epoch ms of the file system's clock."""
        return self._path(batch_id).stat().st_mtime_ns // 1_000_000

    def _path(self, batch_id: int) -> Path:
        return self._home / f"{batch_id:020d}.{self._kind}.zip"

    def batches(self) -> list[int]:
        """Those that have an entry, oldest first."""
        matches = (_NAME.fullmatch(file.name) for file in self._home.iterdir())
        return sorted(int(match[1]) for match in matches if match and match[2] == self._kind)

    def _forget(self, before: int) -> None:
        """Drop entries older than *before*, but never the newest ones, and what drivers that were killed had begun."""
        for partial in self._home.glob(f"*.{self._kind}.*.partial"):
            partial.unlink(missing_ok=True)
        for number in self.batches()[:-KEPT]:
            if number < before:
                self._path(number).unlink(missing_ok=True)


def packed(entry: Entry) -> bytes:
    """*entry* as the content of a file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("notes.json", json.dumps(entry.notes))
        for name, rows in entry.tables.items():
            if isinstance(rows, Files):
                archive.writestr(f"{name}.files", json.dumps(asdict(rows)))
                continue
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema, options=COMPRESSED) as stream:
                stream.write_table(rows)
            archive.writestr(f"{name}.arrow", sink.getvalue().to_pybytes())
    return content.getvalue()


def unpacked(batch_id: int, content: bytes, *, only: str = "") -> Entry:
    """The entry of *batch_id* that *content* is; raises what zipfile and pyarrow do where it is none."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        tables: dict[str, Rows] = {}
        for name in (name for name in archive.namelist() if name.startswith(only)):
            if name.endswith(".arrow"):
                tables[name.removesuffix(".arrow")] = pa.ipc.open_stream(archive.read(name)).read_all()
            elif name.endswith(".files"):
                files = json.loads(archive.read(name))
                tables[name.removesuffix(".files")] = Files(tuple(File(**file) for file in files["files"]))
        return Entry(batch_id, tables, json.loads(archive.read("notes.json")))
