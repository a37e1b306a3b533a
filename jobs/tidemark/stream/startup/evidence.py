"""Reads a stream's checkpoint, journal and tables for `soundness.py`.

It changes nothing. A running driver may change all of them meanwhile. So they are read in an order in which a sound
stream looks sound: each one before the one that it follows.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.collecting import names_in
from tidemark.control.folder import Control
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import BATCHES
from tidemark.semantics.progress import StreamProgress
from tidemark.storage.delta.datasets import open_to_read
from tidemark.storage.delta.log import commit_file
from tidemark.storage.delta.snapshots import Snapshot
from tidemark.storage.delta.tables import HISTORY, rows_of_others
from tidemark.storage.files import Files
from tidemark.stream.journal.checkpoint import Ends, newest_commit, plans
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.unflushed import flushed_before
from tidemark.stream.kafka.numbering import number_partitions
from tidemark.stream.startup.soundness import Evidence, TableCommit
from tidemark.stream.startup.state_compatibility import changed, meanings, shares_sources
from tidemark.stream.state.files import files_of
from tidemark.stream.state.runs import is_whole
from tidemark.stream.write.commit import table_names, tables_alone


def evidence(stream: Stream) -> Evidence:
    """Reads the evidence of *stream*."""
    checkpoint, journal = stream.control / "checkpoint", stream.control / "journal"
    app = f"{stream.topology.name}/{stream.sub.name}"
    unreadable: list[str] = []
    committed, commit_is_torn = newest_commit(checkpoint)
    # Two: whether the newest flush was completed is unknown, the one before it was.
    facts = _newest(journal, "facts", 2, unreadable)
    alone = tables_alone(stream.home, stream.sub)
    tables = [_table(stream.home / name, f"{app}/{name}", alone) for name in table_names(stream.sub)]
    data = _newest(journal, "data", 1, unreadable)
    decided, entry = next(iter(data.items()), (None, None))
    progress = entry.notes.progress if entry else StreamProgress()
    if entry is not None:
        for each in (entry, *_unflushed(journal, entry, unreadable)):
            unreadable += _gone(each, tables)
        unreadable += _unreadable_states(stream, entry)
    return Evidence(
        name=f"{stream.topology.name} {stream.sub.name}",
        control=stream.control,
        topics=frozenset(_topics(stream).values()),
        committed=committed,
        commit_is_torn=commit_is_torn,
        planned=_planned(checkpoint, stream, progress),
        decided=decided,
        decided_as=progress.planned_id if entry else decided,
        is_part=entry is not None and not entry.notes.is_last,
        read_to=_read_to(stream, progress),
        unreadable=tuple(unreadable),
        newest_batches=_expected(facts, entry, tables),
        tables=tuple(tables),
        changed=tuple(changed(Control(stream.control).meanings(), meanings(stream.sub))),
        former={} if data or committed is not None else dict(_former(stream)),
    )


def _planned(checkpoint: Path, stream: Stream, progress: StreamProgress) -> dict[int, Ends | None]:
    """Returns the plans in *checkpoint* by input partition."""
    planned: dict[int, Ends | None] = {}
    for number, ends in plans(checkpoint).items():
        planned[number] = None if ends is None else number_partitions(stream.sub, ends, progress)[0]
    return planned


def _former(stream: Stream) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields former streams that have read a source of *stream*.

    These are streams that the topology no longer has.
    """
    current = {*names_in(stream.topology.sub_topologies)}
    operators = [o for o in stream.sub.operators if not o.hop_of]
    # Without an operator that sets the name, the first one could set it.
    naming = tuple(o.name for o in operators if o.sub_topology) or (operators[0].name,)
    homes = stream.control.parent.iterdir() if stream.control.parent.is_dir() else []
    for home in sorted(homes):
        if home.name not in current and _has_read(home, stream):
            yield home.name, naming


def _has_read(home: Path, stream: Stream) -> bool:
    """Returns True if another stream has read a source of *stream*.

    *home* is the other stream's control folder.
    """
    entry = next(iter(_newest(home / "journal", "data", 1, []).values()), None)
    inputs = entry.notes.progress.inputs if entry else {}
    names = {*names_in(stream.sub.sources)}
    # The source may have had another name there.
    return not names.isdisjoint(inputs) or bool(inputs and shares_sources(Control(home).meanings(), stream.sub))


def _newest(home: Path, kind: str, count: int, unreadable: list[str]) -> dict[int, Entry | None]:
    """Reads the newest entries of a journal, newest first.

    Args:
        home: folder of the journal.
        kind: kind of entries, `data` or `facts`.
        count: how many entries to read.
        unreadable: gets a text for each damaged entry.

    Returns:
        The entries by batch; None for a damaged entry.
    """
    if not home.is_dir():
        return {}
    journal = Journal(home, kind)
    entries: dict[int, Entry | None] = {}
    for number in reversed(journal.batches()[-count:]):
        try:
            entries[number] = journal.read(number)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            entries[number] = None
            unreadable.append(f"{home}: {kind} of batch {number} ({type(error).__name__}: {error})")
    return entries


def _unflushed(home: Path, newest: Entry, unreadable: list[str]) -> Iterator[Entry]:
    """Yields entries before the *newest* with facts that tables may lack.

    *unreadable* gets a text for each damaged entry.
    """
    numbers = Journal(home, "data").batches()
    count = sum(number > flushed_before(newest) for number in numbers)
    for number, entry in _newest(home, "data", count, []).items():
        if entry is None:
            unreadable.append(f"{home}: data of batch {number}")
        elif number != newest.batch_id:
            yield entry


def _gone(entry: Entry, tables: Iterable[TableCommit]) -> Iterator[str]:
    """Yields a text for each missing file that *entry* names."""
    waiting: dict[str, Path] = {}
    for table in tables:
        # A table that has the entry's batch has its rows, even if their files were compacted since.
        if table.newest_batch is None or table.newest_batch < entry.batch_id:
            waiting[table.path.name] = table.path
    for rows in entry.tables.values():
        for file in rows.files if isinstance(rows, Files) else ():
            # The file is looked for where the table is now, not at the path that the entry has.
            written = Path(file.path)
            home = waiting.get(written.parent.name)
            if home is not None and not (home / written.name).exists():
                yield f"{home / written.name}, with rows of batch {entry.batch_id}, is missing"


def _unreadable_states(stream: Stream, entry: Entry) -> Iterator[str]:
    """Yields a text for each damaged or missing state file of *entry*."""
    for path in files_of(stream.control, entry.notes.states):
        if not is_whole(path):
            yield f"{path}, with states of the stream, is {'incomplete' if path.exists() else 'missing'}"


def _expected(
    facts: Mapping[int, Entry | None], decided: Entry | None, tables: Iterable[TableCommit]
) -> Mapping[str, int]:
    """Returns, per table, the newest batch that it must have.

    The newest note about this counts. The newest *decided* entry notes which batches had been committed before it. A
    file of *facts* notes which batches its flush will commit. The flush was completed if `batches` has the file's
    batch, or if there is a newer file.
    """
    batches = next(table for table in tables if table.path.name == BATCHES.name)
    newest, done = max(facts, default=-1), -1 if batches.newest_batch is None else batches.newest_batch
    # A driver creates `batches` before any flush: if it is missing, it was removed, and flushes count as completed.
    completed: dict[int, Entry] = {}
    for number, entry in facts.items():
        if entry and (number < newest or number <= done or not batches.exists):
            completed[number] = entry
    number = max(completed, default=-1)
    facts_notes = decided.notes.facts if decided else None
    if decided is None or facts_notes is None or number >= decided.batch_id:
        return (completed[number].notes.newest_batches if completed else None) or {}
    return facts_notes.newest_batches


def _topics(stream: Stream) -> dict[str, str]:
    """Returns the topics that *stream* reads, by source."""
    return {o.name: o.topic_read for o in stream.sub.operators if o.topic_read is not None}


def _read_to(stream: Stream, progress: StreamProgress) -> Ends:
    ends: dict[str, dict[int, int]] = {}
    for source, topic in _topics(stream).items():
        if source in progress.inputs:
            ends[topic] = progress.inputs[source].offsets_read
    return ends


def _table(path: Path, app_id: str, alone: Container[str]) -> TableCommit:
    try:
        table = open_to_read(path)
        newest = table.transaction_version(app_id)
        version, restored_to = (None, None) if newest is None else _restored(path, table, newest)
        others = tuple(rows_of_others(path, DeltaTable(str(path)))) if path.name in alone else ()
    except TableNotFoundError:
        return TableCommit(path=path, exists=False)
    except (DeltaError, OSError, ValueError) as error:
        return TableCommit(path=path, error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return TableCommit(path=path, newest_batch=newest, version=version, restored_to=restored_to, others=others)


def _restored(path: Path, table: DeltaTable | Snapshot, newest: int) -> tuple[int | None, str | None]:
    """Looks for a restore of *table* after the commit of batch *newest*.

    The table is at *path*. Of several restores the last counts.

    Returns:
        The version that the batch made, and the older place to which the table was restored. None for both: the commit
        is not in the history. None for the place: no restore to an older one.
    """
    # The table's transaction does not show a restore, because it stays in the log.
    restore: Mapping[str, Any] | None = None
    if isinstance(table, Snapshot):
        # delta-rs reads the whole log for its history, and mostly the newest commit is that of the batch.
        if _batch_of(commit_file(path, table.version())) == str(newest):
            return table.version(), None
        table = DeltaTable(str(path))
    # The history is newest first.
    for commit in table.history(HISTORY):
        if commit.get("batch_id") == str(newest):
            version = int(commit["version"])
            return version, _older(restore, version) if restore else None
        if commit.get("operation") == "RESTORE" and restore is None:
            restore = commit
    return None, None


def _batch_of(commit: Path) -> str | None:
    """Returns the batch that *commit* names.

    None: it names none, or is gone.
    """
    if not commit.exists():
        return None
    for action in map(json.loads, commit.read_bytes().splitlines()):
        if "commitInfo" in action:
            batch_id: str | None = action["commitInfo"].get("batch_id")
            return batch_id
    return None


def _older(restore: Mapping[str, Any], than: int) -> str | None:
    """Returns where *restore* went back to, if before the version *than*."""
    version = str(restore.get("operationParameters", {}).get("version", ""))
    # A restore to an instant may be to an older version, and counts as one.
    if not version.isdecimal():
        return "an instant"
    return f"version {version}" if int(version) < than else None
