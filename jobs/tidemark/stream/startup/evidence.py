"""Reads a stream's checkpoint, journal and tables for `soundness.py`, and changes nothing.

A running driver may change all of them meanwhile. So they are read in an order in which a sound stream looks sound:
what follows from another is read first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.control.files import RESTORE, not_files
from tidemark.errors import UnreadableFile
from tidemark.model.kinds.source import Source
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import BATCHES
from tidemark.selection import omit, pick
from tidemark.semantics.progress import StreamProgress
from tidemark.storage.delta.datasets import open_to_read
from tidemark.storage.delta.format import warehouse_stamp
from tidemark.storage.delta.log import commit_file
from tidemark.storage.delta.requirements import Access, Refusal, TableRefused, open_to_write
from tidemark.storage.delta.snapshots import Snapshot
from tidemark.storage.delta.tables import HISTORY, rows_of_others
from tidemark.storage.files import Files
from tidemark.storage.object_path import ObjectPath
from tidemark.storage.warehouse import is_table
from tidemark.stream.journal.checkpoint import Ends, newest_commit, plans, without_offset
from tidemark.stream.journal.entries import Entry
from tidemark.stream.journal.layout import COMMITTED_WITH_BATCH, OpenTable, table_of, transactions_of
from tidemark.stream.kafka.numbering import number_partitions
from tidemark.stream.startup.changes import changed_meanings, former_streams, listed_sources, returning
from tidemark.stream.startup.damage import (
    damaged_checkpoint_files,
    damaged_log,
    damaged_requests,
    damaged_states,
    read_journal,
)
from tidemark.stream.startup.soundness import StartEvidence, TableCommit, loss_of
from tidemark.stream.startup.source_list import Fate, changes, continued, with_waiting
from tidemark.stream.write.declared import tables_alone, tables_written

FindDamagedFiles = Callable[[Path], Iterable[tuple[Path, str]]]
"""Returns the damaged data files of a table, and what is wrong with each."""


def evidence(stream: Stream, *, look: FindDamagedFiles | None = None) -> StartEvidence:
    """Reads the evidence of *stream*, and the damaged data files that *look* finds.

    A driver starts without *look*, because damaged data files do not stop it.
    """
    control, checkpoint = stream.control, stream.control / "checkpoint"
    app = f"{stream.topology.name}/{stream.sub.name}"
    listed = listed_sources(control)
    sources = changes(listed, stream.sub) if listed else []
    going_on = {change.former.name for change in sources if change.goes_on and change.former}
    damaged = [
        *not_files(control),
        *damaged_requests(control),
        *damaged_checkpoint_files(checkpoint),
        *_of_stamp(stream),
    ]
    try:
        committed, commit_is_torn = newest_commit(checkpoint)
        # What sources that end, or begin anew, have planned is not read on.
        of_others = {number for number, each in enumerate(listed, start=1) if each.name not in going_on}
        plans_of_batches = plans(checkpoint, without=of_others)
        if any(change.has_other_topics for change in sources):
            going = [o for o in stream.sub.outside_sources if o.name in {each.name for each in sources if each.goes_on}]
            plans_of_batches = {number: _read_on(going, ends) for number, ends in plans_of_batches.items()}
    except UnreadableFile as error:  # of another version of Spark
        damaged.append(error)
        committed, commit_is_torn, plans_of_batches = None, False, None
    journal = read_journal(control / "journal")
    damaged += [*journal.damaged, *damaged_states(control, journal)]
    alone, written = tables_alone(stream.home, stream.sub), tables_written(stream.sub)
    tables = [_table(stream.home / name, app, alone, access) for name, access in written.items()]
    decided, entry = journal.newest, journal.newest_entry
    progress = continued(entry.notes.progress if entry else StreamProgress(), listed, stream.sub)
    topics = omit(_topics(stream), {change.name for change in sources if not change.goes_on})
    decided_as = progress.planned_id if entry else decided
    reached = max(-1 if number is None else number for number in (committed, decided_as))
    missing = without_offset(checkpoint, reached)
    without_offsets = {each.name for number, each in enumerate(listed, start=1) if number in missing}
    begun = {change.name for change in sources if change.former and change.former.name in without_offsets}
    for each in journal.entries.values():
        damaged += _gone(each, tables)
    return StartEvidence(
        name=f"{stream.topology.name} {stream.sub.name}",
        control=control,
        topics=frozenset(topics.values()),
        topics_begun=frozenset(pick(topics, begun).values()),
        committed=committed,
        commit_is_torn=commit_is_torn,
        planned=None if plans_of_batches is None else _planned(plans_of_batches, stream, progress),
        decided=decided,
        decided_as=decided_as,
        is_part=entry is not None and not entry.notes.is_last,
        read_to=_read_to(topics, progress),
        damaged=tuple(damaged),
        newest_batches=_expected(journal.facts, entry, tables),
        tables=tuple(tables),
        data_files=() if look is None else tuple(_damaged_data(stream.home, look)),
        changed=tuple(changed_meanings(stream, entry)),
        refused=tuple(change for change in with_waiting(sources, entry) if change.fate is Fate.REFUSED),
        returning=tuple(returning(stream, entry)),
        former=tuple(former_streams(stream, is_new=decided is None and committed is None)),
    )


def lost_commits(control: Path, home: Path, app_id: str) -> Iterator[UnreadableFile]:
    """Yields an error for each table in *home* without a batch that it must have by the journal in *control*.

    *app_id* is that of the stream. In an object store nothing is looked at, because each table costs several requests:
    there a start and `tidemark doctor` find lost commits.
    """
    if isinstance(home, ObjectPath):
        return
    journal = read_journal(control / "journal")
    entry = journal.newest_entry
    tables = {BATCHES.name: _commit_of(home / BATCHES.name, app_id)}
    expected = _expected(journal.facts, entry, tables.values())
    for name in sorted({*map(table_of, expected)}):
        table = tables.get(name) or _commit_of(home / name, app_id)
        # A table whose log is damaged has a finding of its own.
        if table.error is None and (lost := loss_of(table, expected)) is not None:
            yield UnreadableFile(table.path, lost, RESTORE)


def _commit_of(path: Path, app_id: str) -> TableCommit:
    """Returns the newest batch of the stream *app_id* in the table at *path*."""
    try:
        newest = _newest_batches(open_to_read(path), path.name, app_id)
        return TableCommit(path=path, newest_batch=newest.pop(path.name), more=newest)
    except TableNotFoundError:
        return TableCommit(path=path, exists=False)
    except Exception as error:  # delta-rs may raise any error for a changed byte
        return TableCommit(path=path, error=UnreadableFile(path, str(error), RESTORE))


def _newest_batches(table: OpenTable, name: str, app_id: str) -> dict[str, int | None]:
    """Returns the newest batch in *table* by the name of its rows; the table is called *name*."""
    return {each: table.transaction_version(f"{app_id}/{each}") for each in transactions_of(name)}


def _of_stamp(stream: Stream) -> Iterator[UnreadableFile]:
    """Yields an error if the stamp of the warehouse is damaged."""
    try:
        warehouse_stamp(stream.layout.warehouse)
    except UnreadableFile as error:
        yield error


def _read_on(sources: Sequence[Source], ends: Ends | None) -> Ends | None:
    """Returns the *ends* of the topics that *sources* read now."""
    return None if ends is None else {name: of for name, of in ends.items() if any(o.reads(name) for o in sources)}


def _planned(
    plans_of_batches: Mapping[int, Ends | None], stream: Stream, progress: StreamProgress
) -> dict[int, Ends | None]:
    """Returns the plans of a checkpoint by input partition."""
    planned: dict[int, Ends | None] = {}
    for number, ends in plans_of_batches.items():
        planned[number] = None if ends is None else number_partitions(stream.sub, ends, progress)[0]
    return planned


def _gone(entry: Entry, tables: Iterable[TableCommit]) -> Iterator[UnreadableFile]:
    """Yields an error for each missing file with rows that *entry* names."""
    waiting: dict[str, Path] = {}
    for table in tables:
        for name, newest in table.newest_batches.items():
            # A table that has the entry's batch has its rows, even if their files were compacted since.
            if newest is None or newest < entry.batch_id:
                waiting[name] = table.path
    for name, rows in entry.tables.items():
        for file in rows.files if isinstance(rows, Files) else ():
            # The file is looked for where the table is now, not at the path that the entry has.
            written = Path(file.path)
            # Rows of a sink have its own name, and not that of its table.
            home = waiting.get(name if name == COMMITTED_WITH_BATCH else written.parent.name)
            if home is not None and not (home / written.name).exists():
                found = f"with rows of batch {entry.batch_id}: it is missing"
                yield UnreadableFile(home / written.name, found, RESTORE)


def _expected(facts: Mapping[int, Entry], decided: Entry | None, tables: Iterable[TableCommit]) -> Mapping[str, int]:
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
        if number < newest or number <= done or not batches.exists:
            completed[number] = entry
    number = max(completed, default=-1)
    facts_notes = decided.notes.facts if decided else None
    if decided is None or facts_notes is None or number >= decided.batch_id:
        return (completed[number].notes.newest_batches if completed else None) or {}
    return facts_notes.newest_batches


def _topics(stream: Stream) -> dict[str, str]:
    """Returns the topics that *stream* reads, by source."""
    return {o.name: o.topic_read for o in stream.sub.operators if o.topic_read is not None}


def _read_to(topics: Mapping[str, str], progress: StreamProgress) -> Ends:
    ends: dict[str, dict[int, int]] = {}
    for source, topic in topics.items():
        if source in progress.inputs:
            ends[topic] = progress.inputs[source].offsets_read
    return ends


def _table(path: Path, app_id: str, alone: Container[str], access: Access) -> TableCommit:
    """Returns what the log of the table at *path* says of the stream *app_id*.

    Tables *alone* may be written by no other writer. *access* is what the stream needs of the table.
    """
    if (damage := damaged_log(path)) is not None:
        return TableCommit(path=path, error=damage)
    refusal: Refusal | None = None
    try:
        open_to_write(path, access)
    except TableRefused as refused:
        refusal = refused.refusal
    except Exception:  # delta-rs may raise any error for a changed byte, and the next opening describes it
        pass
    try:
        table = open_to_read(path)
        newest = _newest_batches(table, path.name, app_id)
        batches = {str(batch_id) for batch_id in newest.values() if batch_id is not None}
        version, restored_to = _restored(path, table, batches) if batches else (None, None)
        others = tuple(rows_of_others(path, DeltaTable(str(path)))) if path.name in alone else ()
    except TableNotFoundError:
        return TableCommit(path=path, exists=False)
    except Exception as error:
        found = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        return TableCommit(path=path, error=None if refusal else UnreadableFile(path, found, RESTORE), refusal=refusal)
    return TableCommit(
        path=path,
        newest_batch=newest.pop(path.name),
        more=newest,
        version=version,
        restored_to=restored_to,
        others=others,
        refusal=refusal,
    )


def _damaged_data(home: Path, look: FindDamagedFiles) -> Iterator[tuple[Path, str]]:
    """Yields what *look* finds in all tables in *home*."""
    for path in sorted(filter(is_table, home.iterdir() if home.is_dir() else ())):
        # A table whose log cannot be read is a finding already.
        with suppress(DeltaError, ValueError, OSError):
            yield from look(path)


def _restored(path: Path, table: DeltaTable | Snapshot, newest: Container[str]) -> tuple[int | None, str | None]:
    """Looks for a restore of *table*, which is at *path*, after its last commit of one of the batches *newest*.

    Of several restores the last counts.

    Returns:
        The version that the batch made, or None if it is not in the history; and the older version or instant to which
        the table was restored since, or None if it was not.
    """
    # The table's transaction does not show a restore, because it stays in the log.
    restore: Mapping[str, Any] | None = None
    if isinstance(table, Snapshot):
        # delta-rs reads the whole log for its history, and mostly the newest commit is that of the batch.
        if _batch_of(commit_file(path, table.version())) in newest:
            return table.version(), None
        table = DeltaTable(str(path))
    # The history is newest first.
    for commit in table.history(HISTORY):
        if commit.get("batch_id") in newest:
            version = int(commit["version"])
            return version, _older(restore, version) if restore else None
        if commit.get("operation") == "RESTORE" and restore is None:
            restore = commit
    return None, None


def _batch_of(commit: Path) -> str | None:
    """Returns the batch that the Delta commit in the file *commit* names, or None if it names none or is gone."""
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
