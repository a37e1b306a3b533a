"""Keeps a stream's journal: each batch is decided once, then written down.

The driver acts on a decision only after the journal has it.

Purpose: a batch changes a dozen tables, and no commit spans them. So the rows of all tables, the clocks and the
progress are first written to one file. The file appears completely or not at all, and its name can be taken only once.

How it works: `<batch>.data.zip` has what the operators decided, and the facts of the batch before it. If a flush came
first, these facts are in `<batch>.facts.zip` (`flushing.py`). A batch that is run again finds its file and repeats the
commits; tables that have them skip them. It never decides or reads a clock again. A second driver that decides the same
batch finds the name taken.

Limits: the journal keeps no history. An entry is kept until a file has its batch's changes to the state, and tables
have its facts. The newest entries are always kept, because Spark may run the newest batch again.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from tidemark.control.files import RESTORE
from tidemark.errors import Contradiction, UnreadableFile
from tidemark.storage.fence import NO_FENCE, Fence
from tidemark.storage.files import COMPRESSED_FROM, Files, Rows
from tidemark.storage.location import put_once
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.layout import NOTES, batches_in, entry_path
from tidemark.stream.journal.notes import EntryNotes

KEPT = 5
"""Number of entries that are always kept."""
CARRIED_OUT = "carried_out"
"""The file with the newest batch that was carried out."""
MANY = 5_000
"""With so many rows of a table, entries only name their files."""
PLAIN, COMPRESSED = pa.ipc.IpcWriteOptions(use_threads=False), pa.ipc.IpcWriteOptions(compression="zstd")
BY_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
"""The tables of an entry are small: to hand their columns to threads takes as long as to read them."""


@dataclass(frozen=True)
class Entry:
    """A file of the journal.

    `tables` has rows by name, as Arrow tables or as the names of files elsewhere; `notes` has all that is not rows.
    """

    batch_id: int
    tables: Mapping[str, Rows]
    notes: EntryNotes = field(default_factory=EntryNotes)


class Journal:
    """Reads and writes entries of one kind in the folder *home*.

    *kind* is `data` or `facts`. *fence* guards and repeats each write.
    """

    def __init__(
        self,
        home: Path,
        kind: str,
        fence: Fence = NO_FENCE,
    ) -> None:
        self._home, self._kind, self._fence = home, kind, fence
        self._numbers: list[int] | None = None  # batches with an entry, oldest first; None until they are listed
        home.mkdir(parents=True, exist_ok=True)

    def write(self, entry: Entry, *, needed_after: int | None = None) -> None:
        """Makes *entry* durable and deletes old entries.

        The newest KEPT entries are always kept, and so are all entries after the batch *needed_after*, if it is given.

        Raises:
            Contradiction: the batch has an entry already.
        """
        content = pack(entry, self._identity(entry.batch_id))
        self._fence.until_written(lambda: self._write(entry.batch_id, content))
        before = entry.batch_id - KEPT
        # Only the first write lists the folder.
        numbers = self._cleared() if self._numbers is None else sorted({*self._numbers, entry.batch_id})
        self._numbers = self._forget(numbers, before if needed_after is None else min(before, needed_after + 1))

    def _write(self, batch_id: int, content: bytes) -> None:
        path = self.path(batch_id)
        try:
            put_once(path, content, check=self._fence.check_lease)
        except FileExistsError:
            msg = f"{path}: another driver already decided this batch; stop one of the two"
            raise Contradiction(msg) from None

    def read(self, batch_id: int, *, only: str | tuple[str, ...] = "") -> Entry | None:
        """Returns the entry of *batch_id*, or None if the batch was not decided.

        *only* is a prefix, or several: tables whose names begin otherwise are left out.

        Raises:
            UnreadableFile: the file is damaged, or is that of another journal or batch.
        """
        path = self.path(batch_id)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise UnreadableFile(path, "it is a folder", f"move it elsewhere; then: {RESTORE}") from error
        try:
            return unpack(batch_id, content, only=only, identity=self._identity(batch_id))
        # A changed byte may raise any error of zipfile, zlib, Arrow and JSON.
        except Exception as error:
            found = f"{self._kind} of batch {batch_id}: {type(error).__name__}: {error}"
            raise UnreadableFile(path, found, RESTORE) from error

    def _identity(self, batch_id: int) -> str:
        """Returns a text that distinguishes the entry from those of other batches and streams."""
        # A warehouse may be moved, so the folders above the topology's are left out.
        return "/".join(self.path(batch_id).parts[-4:])

    def newest(self) -> Entry | None:
        """Returns the newest entry; batches that change nothing have none."""
        numbers = self.batches()
        return self.read(numbers[-1]) if numbers else None

    def written_at_ms(self, batch_id: int) -> int:
        """Returns when the entry was written, by the clock of the file system (epoch ms)."""
        return self.path(batch_id).stat().st_mtime_ns // 1_000_000

    def record_carried_out(self, entry: Entry) -> None:
        """Records that all rows of *entry* are in tables and topics.

        Spark records the same up to 10 s later (driver/pace.py). In an object store this is left to Spark, because each
        file costs a request.
        """
        if not isinstance(self._home, ObjectPath):
            # Without this file, or after a loss of power, records are sent to topics again.
            with suppress(OSError):
                (self._home / CARRIED_OUT).write_text(_id_of(entry))

    def carried_out_at_ms(self, entry: Entry) -> int | None:
        """Returns when *entry* was carried out, by the clock of the file system (epoch ms); None without a record."""
        path = self._home / CARRIED_OUT
        with suppress(OSError):
            if not isinstance(path, ObjectPath) and path.read_text(errors="replace") == _id_of(entry):
                return path.stat().st_mtime_ns // 1_000_000
        return None

    def path(self, batch_id: int) -> Path:
        """Returns where the entry of *batch_id* is."""
        return entry_path(self._home, self._kind, batch_id)

    def batches(self) -> list[int]:
        """Returns the batches that have an entry, oldest first."""
        return batches_in(self._home, self._kind)

    def _cleared(self) -> list[int]:
        """Removes partial files of killed drivers.

        Returns:
            The batches that have an entry, oldest first.
        """
        for partial in self._home.glob(f"*.{self._kind}.*.partial"):
            partial.unlink(missing_ok=True)
        return self.batches()

    def _forget(self, numbers: list[int], before: int) -> list[int]:
        """Deletes the entries of batches older than *before*.

        The newest KEPT of *numbers* are never deleted.

        Returns:
            The batches whose entries are left.
        """
        old = [number for number in numbers[:-KEPT] if number < before]
        for number in old:
            self.path(number).unlink(missing_ok=True)
        return numbers[len(old) :]


def newest_entry(control: Path) -> Entry | None:
    """Returns the newest entry of the stream with the folder *control*, or None if no batch was decided yet."""
    home = control / "journal"
    # A journal that is opened makes its folder.
    return Journal(home, "data").newest() if home.is_dir() else None


def _id_of(entry: Entry) -> str:
    """Returns a text that identifies the decision of *entry*: batch, epoch of the driver, and when it was started."""
    batch = entry.notes.decision.batch
    return f"{batch.batch_id} {batch.epoch} {batch.started_at_ms}"


def pack(entry: Entry, identity: str = "") -> bytes:
    """Returns *entry* as the content of a file, which also has *identity*."""
    content = io.BytesIO()
    # Large Arrow streams are compressed already.
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = identity.encode()
        archive.writestr(NOTES, entry.notes.content)
        for name, rows in entry.tables.items():
            if isinstance(rows, Files):
                archive.writestr(f"{name}.files", msgspec.json.encode(rows))
                continue
            sink = pa.BufferOutputStream()
            options = COMPRESSED if rows.nbytes >= COMPRESSED_FROM else PLAIN
            with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
                stream.write_table(rows)
            archive.writestr(f"{name}.arrow", sink.getvalue().to_pybytes())
    return content.getvalue()


def unpack(batch_id: int, content: bytes, *, only: str | tuple[str, ...] = "", identity: str | None = None) -> Entry:
    """Reads the entry of *batch_id* from the *content* of a file.

    Tables whose names do not begin with *only* are left out.

    Raises:
        ValueError: the file has another *identity*, unless that is None.
        Exception: zipfile or pyarrow cannot read the file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if identity not in {None, archive.comment.decode()}:
            msg = f"it is the file {archive.comment.decode()}"
            raise ValueError(msg)
        tables: dict[str, Rows] = {}
        for name in (name for name in archive.namelist() if name.startswith(only)):
            if name.endswith(".arrow"):
                tables[name.removesuffix(".arrow")] = pa.ipc.open_stream(
                    archive.read(name), options=BY_ONE_THREAD
                ).read_all()
            elif name.endswith(".files"):
                tables[name.removesuffix(".files")] = msgspec.json.decode(archive.read(name), type=Files)
        return Entry(batch_id, tables, EntryNotes.of(archive.read(NOTES)))
