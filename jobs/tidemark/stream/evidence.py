"""Looks at a stream's checkpoint, journal and tables, for `soundness.py` to judge; changes nothing.

What may move while a driver lives is read in such an order that a sound stream looks sound: each thing before the one
that it follows.
"""

from __future__ import annotations

import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.control import Control
from tidemark.delta import HISTORY, rows_of_others
from tidemark.files import Files
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.operators import HopSource, Source
from tidemark.spec.stream import Stream
from tidemark.stream.checkpoint import Ends, newest_commit, plans
from tidemark.stream.commit import NEWEST_BATCHES, table_names, tables_alone
from tidemark.stream.journal import Entry, Journal
from tidemark.stream.meanings import changed, meanings, shares_sources
from tidemark.stream.soundness import Evidence, TableSeen
from tidemark.stream.state_files import StateRuns, files_of, is_whole


def evidence(stream: Stream) -> Evidence:
    """What there is of *stream*."""
    checkpoint, journal = stream.control / "checkpoint", stream.control / "journal"
    app = f"{stream.topology.name}/{stream.sub.name}"
    unreadable: list[str] = []
    committed, commit_is_torn = newest_commit(checkpoint)
    facts = _newest(journal, "facts", 2, unreadable)
    alone = tables_alone(stream.home, stream.sub)
    tables = [_table(stream.home / name, f"{app}/{name}", alone) for name in table_names(stream.sub)]
    data = _newest(journal, "data", 1, unreadable)
    decided, entry = next(iter(data.items()), (None, None))
    progress = StreamProgress.from_json(entry.notes["progress"]) if entry else StreamProgress()
    unreadable += [*_gone(entry, tables), *_unreadable_states(stream, entry)] if entry else []
    return Evidence(
        name=f"{stream.topology.name} {stream.sub.name}",
        control=stream.control,
        topics=frozenset(_topics(stream).values()),
        committed=committed,
        commit_is_torn=commit_is_torn,
        planned=plans(checkpoint),
        decided=decided,
        decided_as=progress.planned_id if entry else decided,
        is_part=entry is not None and not entry.notes["batch"].get("is_last", True),
        read_to=_read_to(stream, progress),
        unreadable=tuple(unreadable),
        newest_batches=_expected(facts, None if committed is None else committed + progress.ahead),
        tables=tuple(tables),
        changed=tuple(changed(Control(stream.control).meanings(), meanings(stream.sub))),
        former={} if data or committed is not None else dict(_former(stream)),
    )


def _former(stream: Stream) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The streams that the topology no longer has and that have read a source of *stream*.

    Each with the operators of *stream* that say its name, or could: its first.
    """
    known = {sub.name for sub in stream.topology.sub_topologies}
    operators = [o for o in stream.sub.operators if not isinstance(o, HopSource)]
    naming = tuple(o.name for o in operators if o.sub_topology) or (operators[0].name,)
    homes = stream.control.parent.iterdir() if stream.control.parent.is_dir() else []
    for home in sorted(homes):
        if home.name not in known and _has_read(home, stream):
            yield home.name, naming


def _has_read(home: Path, stream: Stream) -> bool:
    """Return whether the stream with the control folder *home* read a source of *stream*, whatever its name."""
    entry = next(iter(_newest(home / "journal", "data", 1, []).values()), None)
    inputs = StreamProgress.from_json(entry.notes["progress"]).inputs if entry else {}
    names = {source.name for source in stream.sub.sources}
    return not names.isdisjoint(inputs) or bool(inputs and shares_sources(Control(home).meanings(), stream.sub))


def _newest(home: Path, kind: str, count: int, unreadable: list[str]) -> dict[int, Entry | None]:
    """The newest *count* entries of *kind*, newest first; None for one that is damaged, which joins *unreadable*."""
    if not home.is_dir():
        return {}
    journal = Journal(home, kind)
    found: dict[int, Entry | None] = {}
    for number in reversed(journal.batches()[-count:]):
        try:
            found[number] = journal.read(number)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            found[number] = None
            unreadable.append(f"{home}: {kind} of batch {number} ({type(error).__name__}: {error})")
    return found


def _gone(entry: Entry, tables: Iterable[TableSeen]) -> list[str]:
    """The files that *entry* has for *tables* that have not got its batch, and that are not there."""
    waiting = {t.path.name: t.path for t in tables if t.newest_batch is None or t.newest_batch < entry.batch_id}
    files = [Path(file.path) for rows in entry.tables.values() if isinstance(rows, Files) for file in rows.files]
    places = [waiting[file.parent.name] / file.name for file in files if file.parent.name in waiting]
    return [f"{place}, with rows of batch {entry.batch_id}, is gone" for place in places if not place.exists()]


def _unreadable_states(stream: Stream, entry: Entry) -> Iterator[str]:
    """The files with states that *entry* names, and that are not there or not whole."""
    for path in files_of(stream.control, StateRuns.of(entry.notes) or []):
        if not is_whole(path):
            yield f"{path}, with states, is {'not whole' if path.exists() else 'gone'}"


def _expected(facts: Mapping[int, Entry | None], committed: int | None) -> Mapping[str, int]:
    """Per table the newest batch it must have: what the newest *facts* say of a batch that was carried out whole.

    That is one before another, or one up to that which Spark has *committed*, by its number here.
    """
    newest = max(facts, default=-1)
    for number, entry in facts.items():
        if entry is not None and (number < newest or (committed is not None and number <= committed)):
            expected: Mapping[str, int] = entry.notes.get(NEWEST_BATCHES, {})
            return expected
    return {}


def _topics(stream: Stream) -> dict[str, str]:
    """The topics that *stream* reads, by source."""
    return {o.name: o.topic for o in stream.sub.operators if isinstance(o, Source) and o.topic is not None}


def _read_to(stream: Stream, progress: StreamProgress) -> Ends:
    inputs = progress.inputs
    return {
        topic: {number: part.until_offset for number, part in inputs[source].partitions.items()}
        for source, topic in _topics(stream).items()
        if source in inputs
    }


def _table(path: Path, app_id: str, alone: Container[str]) -> TableSeen:
    if not DeltaTable.is_deltatable(str(path)):
        return TableSeen(path=path, exists=False)
    try:
        table = DeltaTable(str(path))
        newest = table.transaction_version(app_id)
        version, restored_to = (None, None) if newest is None else _restored(table, newest)
        others = tuple(rows_of_others(path, table)) if path.name in alone else ()
    except (DeltaError, OSError, ValueError) as error:
        return TableSeen(path=path, error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return TableSeen(path=path, newest_batch=newest, version=version, restored_to=restored_to, others=others)


def _restored(table: DeltaTable, newest: int) -> tuple[int | None, str | None]:
    """The version that batch *newest* made, and to what somebody restored the table after it; None: nobody did.

    A transaction stays in the log when its table is restored, so it does not tell. Of several restores the last counts.
    """
    restore: Mapping[str, Any] | None = None
    for commit in table.history(HISTORY):
        if commit.get("batch_id") == str(newest):
            version = int(commit["version"])
            return version, _older(restore, version) if restore else None
        if commit.get("operation") == "RESTORE" and restore is None:
            restore = commit
    return None, None


def _older(restore: Mapping[str, Any], than: int) -> str | None:
    """What *restore* went back to if that is, or may be, older than the version *than*."""
    version = str(restore.get("operationParameters", {}).get("version", ""))
    if not version.isdecimal():
        return "an instant"
    return f"version {version}" if int(version) < than else None
