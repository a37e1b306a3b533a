"""Finds damaged files in the control folder of a stream, and damaged logs of its tables.

`control/files.py` lists the files of the folder. A file is damaged if a driver needs and cannot read it: it has another
form, another checksum or the content of another file, is a folder, or is missing although another file needs it. This
module changes nothing, while a running driver may change all files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.control.files import RESTORE, not_files, unreadable
from tidemark.control.folder import Control
from tidemark.errors import UnreadableFile
from tidemark.storage.delta.snapshots import LAST_CHECKPOINT, damage_of_log
from tidemark.storage.files import Files
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal import checkpoint as spark
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.layout import entry_path
from tidemark.stream.journal.unflushed import flushed_before
from tidemark.stream.state.files import files_of
from tidemark.stream.state.runs import damage_of

_REMOVE_HINT = "remove it while no driver runs: readers then look for the newest checkpoint"


@dataclass(frozen=True)
class ReadJournal:
    """What a start needs of a journal.

    Attributes:
        newest: the newest decided batch, or None if there is none.
        entries: the newest entry, and all entries from which tables or states may lack something, by batch. An entry
            has only the rows that are in files.
        facts: the two newest files of facts, and all files that tables may lack, by batch.
        damaged: an error for each file that is damaged or missing.
    """

    newest: int | None
    entries: dict[int, Entry]
    facts: dict[int, Entry]
    damaged: tuple[UnreadableFile, ...]

    @property
    def newest_entry(self) -> Entry | None:
        """The entry of the newest decided batch, or None if there is none or it is damaged."""
        return None if self.newest is None else self.entries.get(self.newest)


def damages(control: Path, home: Path) -> list[UnreadableFile]:
    """Returns an error for each file for which no driver of a stream starts.

    *control* is its control folder, and *home* the folder of its tables.
    """
    journal = read_journal(control / "journal")
    return [
        *not_files(control),
        *damaged_requests(control),
        *damaged_checkpoint_files(control / "checkpoint"),
        *damaged_plans(control / "checkpoint"),
        *journal.damaged,
        *damaged_states(control, journal),
        *damaged_tables(home),
    ]


def damaged_tables(home: Path) -> Iterator[UnreadableFile]:
    """Yields an error for each damaged log of a table in *home*."""
    if not isinstance(home, ObjectPath) and home.is_dir():
        yield from filter(None, map(damaged_log, sorted(home.iterdir())))


def damaged_log(path: Path) -> UnreadableFile | None:
    """Returns an error if the log of the table at *path* is damaged.

    In an object store a look at each commit would be a request, and delta-rs tells of damage when it opens the table.
    """
    damage = None if isinstance(path, ObjectPath) else damage_of_log(path)
    if damage is None:
        return None
    return UnreadableFile(damage.file, damage.found, _REMOVE_HINT if damage.file.name == LAST_CHECKPOINT else RESTORE)


def damaged_requests(control: Path) -> Iterator[UnreadableFile]:
    """Yields an error for each damaged file that a driver or a person wrote for the next driver."""
    folder = Control(control)
    reads: list[Callable[[], object]] = [
        folder.meanings,
        folder.sources,
        folder.begun,
        folder.accepted_loss,
        folder.accepted_records,
        folder.time_resets,
    ]
    reads += [partial(folder.reopening, id_) for id_ in folder.reopenings()]
    for read in reads:
        try:
            with suppress(FileNotFoundError):  # a driver has carried it out meanwhile
                read()
        except UnreadableFile as error:
            if not (control / Path(str(error.file)).name).is_dir():  # of which `not_files` tells
                yield error


def damaged_checkpoint_files(checkpoint: Path) -> Iterator[UnreadableFile]:
    """Yields an error for each damaged or missing file of *checkpoint* beside the plans and commits."""
    metadata = checkpoint / "metadata"
    if metadata.is_file():
        found = spark.mismatch_of(metadata)
        if not found:
            id_ = _in_json(metadata)
            found = "" if isinstance(id_, dict) and isinstance(id_.get("id"), str) else "it has no id of a query"
        if found:
            yield unreadable(checkpoint.parent, metadata, found)
    for file, found in spark.damaged_sources(checkpoint):
        yield unreadable(checkpoint.parent, file, found)


def damaged_plans(checkpoint: Path) -> Iterator[UnreadableFile]:
    """Yields an error for each damaged plan or commit of *checkpoint* that Spark reads at a start."""
    try:
        newest = [*spark.plans(checkpoint).items()][-2:]
        for number, ends in newest:
            path = checkpoint / "offsets" / str(number)
            if ends is None and path.is_file():
                yield unreadable(checkpoint.parent, path, "it is incomplete or changed")
        committed, is_torn = spark.newest_commit(checkpoint)
        if is_torn and (path := checkpoint / "commits" / str(committed)).is_file():
            yield unreadable(checkpoint.parent, path, "it is incomplete or changed")
    except UnreadableFile as error:  # of another version of Spark
        yield error


def read_journal(home: Path) -> ReadJournal:
    """Returns what a start needs of the journal in *home*."""
    if not home.is_dir():
        return ReadJournal(None, {}, {}, ())
    data, facts = Journal(home, "data"), Journal(home, "facts")
    # The folder is listed before an entry is read: what a driver removes meanwhile was not needed.
    numbers, measured = data.batches(), facts.batches()
    damaged: list[UnreadableFile] = []
    newest = _read(data, numbers[-1], damaged) if numbers else None
    flushed = flushed_before(newest) if newest else -1
    needed_after = min(flushed, *(state.batch_id for state in newest.notes.states or ())) if newest else -1
    entries = {newest.batch_id: newest} if newest else {}
    for number in numbers[:-1] if newest else ():
        if number > needed_after and (entry := _read(data, number, damaged)) is not None:
            entries[number] = entry
    missing = {was for entry in entries.values() if (was := _before(entry)) > needed_after} - {*numbers}
    damaged += [_is_missing(home, "data", number) for number in sorted(missing)]
    # Without the newest entry it is not known which facts the tables have.
    read_facts: dict[int, Entry] = {}
    for number in measured:
        is_needed = newest is not None and number > flushed
        if (is_needed or number in measured[-2:]) and (entry := _read(facts, number, damaged)) is not None:
            read_facts[number] = entry
    for entry in entries.values():
        notes = entry.notes.facts
        # Facts that are not in the entry of the next batch are in a file of their own.
        if notes is not None and notes.batch_id is None and flushed < _before(entry) and _before(entry) not in measured:
            damaged.append(_is_missing(home, "facts", _before(entry)))
    return ReadJournal(numbers[-1] if numbers else None, entries, read_facts, tuple(damaged))


def damaged_states(control: Path, journal: ReadJournal) -> Iterator[UnreadableFile]:
    """Yields an error for each damaged or missing file with states that the newest entry of *journal* names."""
    newest = journal.newest_entry
    for path in files_of(control, (newest and newest.notes.states) or ()):
        if found := damage_of(path):
            yield UnreadableFile(path, f"with states of the stream: {found}", RESTORE)


def _read(journal: Journal, number: int, damaged: list[UnreadableFile]) -> Entry | None:
    """Reads an entry completely; *damaged* gets the error of a damaged one."""
    try:
        entry = journal.read(number)
        if entry is None:
            return None
        if entry.notes.decided is not None:
            _ = entry.notes.decision  # parsed at its first use
        files = {name: rows for name, rows in entry.tables.items() if isinstance(rows, Files)}
        return replace(entry, tables=files)
    except UnreadableFile as error:
        damaged.append(error)
    except Exception as error:
        # Its checksums are right, so another version wrote it.
        damaged.append(UnreadableFile(journal.path(number), f"{type(error).__name__}: {error}", RESTORE))
    return None


def _before(entry: Entry) -> int:
    """Returns the batch that was decided before *entry*, or -1 if there is none."""
    return entry.notes.decision.was.batch_id


def _is_missing(home: Path, kind: str, number: int) -> UnreadableFile:
    found = f"{kind} of batch {number}: it is missing, and tables or states may lack what it had"
    return UnreadableFile(entry_path(home, kind, number), found, RESTORE)


def _in_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
