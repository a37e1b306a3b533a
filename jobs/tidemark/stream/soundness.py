"""Whether a stream may go on: do its checkpoint, its journal and its tables tell one story?

Purpose: after a restore, a copy or a lost disk a driver that simply started would skip records or write them twice.
How it works: what was seen (`evidence.py`) is compared with what must hold between any two writes of a driver:

* Spark plans a batch, the driver decides it, the tables get it, Spark commits it: each only after the one before.
* What the newest decided batch had read is what Spark had planned for it, or for a silent batch after it; or a part of
  that.
* A table has the newest batch that the journal says gave it rows, and no newer one than the journal has.

A batch that was decided and is only in some of the tables is sound: the driver carries it out again.
Known limitation: rows that somebody deleted from a table are not missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tidemark.errors import Contradiction
from tidemark.stream.checkpoint import Ends


class Fault(StrEnum):
    """What is wrong with a stream at rest."""

    CHECKPOINT_GONE = "checkpoint_gone"
    """It plans nothing, and batches were decided."""
    CHECKPOINT_TORN = "checkpoint_torn"
    """One of its newest files is missing or unfinished."""
    CHECKPOINT_OF_ANOTHER = "checkpoint_of_another"
    """It reads other topics than the stream does."""
    CHECKPOINT_BEHIND = "checkpoint_behind"
    """It was rolled back, or is a copy: the stream has come further."""
    CHECKPOINT_AHEAD = "checkpoint_ahead"
    """It is a copy, or the rest was rolled back: it has done with records that the stream has not read."""
    JOURNAL_GONE = "journal_gone"
    """It has no batch, and batches were committed."""
    JOURNAL_UNREADABLE = "journal_unreadable"
    """Its newest entry is damaged, or a file with rows or states that it names is."""
    TABLES_AHEAD = "tables_ahead"
    """Tables have batches that are newer than the newest in the journal."""
    TABLE_DELETED = "table_deleted"
    """A table that had rows is not there."""
    TABLE_UNREADABLE = "table_unreadable"
    """The log of a table is damaged."""
    TABLE_RESTORED = "table_restored"
    """A table shows an older version than the newest that was written."""
    TABLE_OF_OTHERS = "table_of_others"
    """Somebody else put rows into a table that a driver reads."""
    TOPOLOGY_CHANGED = "topology_changed"
    """What the stream keeps under a name means something else in the topology file as it is now."""
    STREAM_RENAMED = "stream_renamed"
    """It has read nothing, and a stream that the topology file does not have any more has read its sources."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of a stream: what was *seen*, and the safe *ways* on.

    *removable* are torn files without which the stream is sound: nothing was done that they alone say.
    """

    fault: Fault
    seen: str
    ways: tuple[str, ...]
    removable: tuple[Path, ...] = ()

    @property
    def lines(self) -> str:
        """All of it for people: what was seen in one line, then a line per way on."""
        return "\n".join([f"{self.fault.value}: {self.seen}", *(f"  way on: {way}" for way in self.ways)])


@dataclass(frozen=True, kw_only=True)
class TableSeen:
    """A table of the stream: the newest batch that was committed to it.

    `error` says why it cannot be opened. `restored_to` is what somebody went back to, "version 3" or "an instant",
    after that batch had made `version`; None: nobody did. `others` are the versions by which others put rows into a
    table that must have none of theirs, newest first.
    """

    path: Path
    exists: bool = True
    error: str | None = None
    newest_batch: int | None = None
    version: int | None = None
    restored_to: str | None = None
    others: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was seen of the stream *name* (as the CLI takes it), whose control folder is *control*.

    `committed` and `planned` are of the checkpoint: the newest batch that is done, and the ends of each that was
    planned, None where torn. `decided` is the newest batch in the journal, and `read_to` up to where the topics had
    been read with it; in the checkpoint it is the batch `decided_as`, or, if it `is_part`, a part of it that others
    follow. `newest_batches` are those that the tables must have. `changed` is what means something else now.
    `former` are streams that the topology does not have any more and that have read a source of this one, which has
    read nothing; each with the operators of this one that say its name, or could.
    """

    name: str
    control: Path
    topics: frozenset[str]
    committed: int | None
    commit_is_torn: bool
    planned: Mapping[int, Ends | None]
    decided: int | None
    decided_as: int | None
    is_part: bool
    read_to: Ends
    unreadable: tuple[str, ...]
    newest_batches: Mapping[str, int]
    tables: tuple[TableSeen, ...]
    changed: tuple[str, ...] = ()
    former: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def reached(self) -> int:
        """The newest batch of the checkpoint that is done or decided, or of which a part is; -1: none."""
        return max(-1 if number is None else number for number in (self.committed, self.decided_as))

    @property
    def is_in_parts(self) -> bool:
        """Whether parts of the batch that was `reached` are not decided yet."""
        return self.is_part and self.committed != self.reached == self.decided_as


class Unsound(Contradiction):
    """Raised when a driver is started on what cannot all be right."""


def refuse_unless_sound(seen: Evidence) -> None:
    """Raise Unsound with all findings, unless there are none."""
    if found := findings(seen):
        told = "\n".join(finding.lines for finding in found)
        msg = f"checkpoint, journal and tables tell different stories (tidemark doctor {seen.name}):\n{told}"
        raise Unsound(msg)


def findings(seen: Evidence) -> list[Finding]:
    """All that is wrong; empty when the stream may go on."""
    return [*_of_topology(seen), *_of_checkpoint(seen), *_of_journal(seen), *_of_tables(seen)]


def _of_topology(seen: Evidence) -> Iterator[Finding]:
    ways = (
        "put the file back as it was",
        "give what has changed another name in the file: under it it begins with the next record",
        _start_anew(seen),
    )
    for told in seen.changed:
        yield Finding(fault=Fault.TOPOLOGY_CHANGED, seen=told, ways=ways)
    for former, naming in seen.former.items():
        again = f"its sources were read by a stream called {former}; under another name it would read all of them again"
        places = " and ".join(f"[operators.{name}]" for name in naming)
        rename = f'write sub_topology = "{former}" below {places}: it goes on under its old name'
        forget = f"to begin anew with all that its sources still have, move {seen.control.parent / former} elsewhere"
        yield Finding(fault=Fault.STREAM_RENAMED, seen=again, ways=(rename, forget))


def _of_checkpoint(seen: Evidence) -> Iterator[Finding]:
    planned = max(seen.planned, default=None)
    if planned is None:
        if seen.decided is not None or any(table.newest_batch is not None for table in seen.tables):
            told = f"{seen.control}/checkpoint plans no batch, but batches were decided or committed before"
            yield Finding(fault=Fault.CHECKPOINT_GONE, seen=told, ways=_put_back(seen, "checkpoint"))
        return
    torn = list(_torn(seen, planned))
    yield from torn
    if seen.decided_as is not None and seen.decided_as > planned:
        told = f"the checkpoint has planned batches until {planned}, but batch {seen.decided_as} was decided"
        yield Finding(fault=Fault.CHECKPOINT_BEHIND, seen=told, ways=_put_back(seen, "checkpoint"))
    elif not torn:
        yield from _of_ends(seen)


def _torn(seen: Evidence, planned: int) -> Iterator[Finding]:
    checkpoint = seen.control / "checkpoint"
    remove = (
        f"remove it, and the batch is planned or carried out again: tidemark doctor {seen.name} --apply remove-torn"
    )
    if seen.commit_is_torn:
        told = f"{checkpoint}/commits/{seen.committed} is not whole"
        files = _with_checksum(checkpoint / "commits" / str(seen.committed))
        yield Finding(fault=Fault.CHECKPOINT_TORN, seen=told, ways=(remove,), removable=files)
    for number in sorted({planned, planned - 1, seen.reached} & set(seen.planned)):
        if seen.planned[number] is None:
            path = checkpoint / "offsets" / str(number)
            is_new = number == planned > seen.reached
            told = f"{path} is not whole" + ("; nothing was done with it yet" if is_new else "")
            ways = (remove,) if is_new else _put_back(seen, "checkpoint")
            files = _with_checksum(path) if is_new else ()
            yield Finding(fault=Fault.CHECKPOINT_TORN, seen=told, ways=ways, removable=files)
    if seen.committed is not None and seen.committed not in seen.planned:
        told = f"batch {seen.committed} is done, but {checkpoint}/offsets/{seen.committed} is missing"
        yield Finding(fault=Fault.CHECKPOINT_TORN, seen=told, ways=_put_back(seen, "checkpoint"))


def _of_ends(seen: Evidence) -> Iterator[Finding]:
    """Compare what was planned for the newest batch that is done or decided with what had been read by then."""
    ends = seen.planned.get(seen.reached)
    if ends is None:
        return
    if set(ends) != seen.topics:
        told = f"the checkpoint reads {_listed(ends)}, and the stream {_listed(seen.topics)}"
        yield Finding(fault=Fault.CHECKPOINT_OF_ANOTHER, seen=told, ways=_put_back(seen, "checkpoint"))
        return
    for topic, partitions in seen.read_to.items():
        for number, read_to in partitions.items():
            end = ends[topic].get(number, read_to)
            if end == read_to or (end > read_to and seen.is_in_parts):
                continue
            fault = Fault.CHECKPOINT_BEHIND if end < read_to else Fault.CHECKPOINT_AHEAD
            told = (
                f"topic {topic!r}, partition {number}: by batch {seen.reached} the checkpoint has read until offset "
                f"{end}, and the stream until {read_to}"
            )
            yield Finding(fault=fault, seen=told, ways=_put_back(seen, "checkpoint"))


def _of_journal(seen: Evidence) -> Iterator[Finding]:
    if seen.unreadable:
        told = f"damaged, so that what was decided cannot be read: {', '.join(seen.unreadable)}"
        yield Finding(fault=Fault.JOURNAL_UNREADABLE, seen=told, ways=_put_back(seen, "journal"))
    in_tables = {table.path.name: table.newest_batch for table in seen.tables if table.newest_batch is not None}
    if seen.decided is None:
        if in_tables or seen.committed is not None:
            told = f"{seen.control}/journal has no batch, but batches were committed before"
            yield Finding(fault=Fault.JOURNAL_GONE, seen=told, ways=_put_back(seen, "journal"))
        return
    if ahead := {name: newest for name, newest in in_tables.items() if newest > seen.decided}:
        told = f"the newest decided batch is {seen.decided}, but there are newer ones in {_listed(ahead)}"
        yield Finding(fault=Fault.TABLES_AHEAD, seen=told, ways=_put_back(seen, "journal"))


def _of_tables(seen: Evidence) -> Iterator[Finding]:
    for table in seen.tables:
        path, expected = table.path, seen.newest_batches.get(table.path.name)
        if table.error is not None:
            told = f"{path}: {table.error}"
            yield Finding(fault=Fault.TABLE_UNREADABLE, seen=told, ways=_put_back(seen, path.name))
        elif not table.exists and expected is not None:
            told = f"{path} is no table any more, and had rows of batch {expected}"
            yield Finding(fault=Fault.TABLE_DELETED, seen=told, ways=_put_back(seen, path.name))
        elif table.exists and expected is not None and (table.newest_batch is None or table.newest_batch < expected):
            newest = "none" if table.newest_batch is None else table.newest_batch
            told = f"the newest batch of {path} was {expected} and is {newest}: it is an older copy, or was made anew"
            yield Finding(fault=Fault.TABLE_RESTORED, seen=told, ways=_put_back(seen, path.name))
        elif table.restored_to is not None:
            told = f"{path} was restored to {table.restored_to}, and rows that came after it are not seen"
            command = f"python -c 'import deltalake; deltalake.DeltaTable(\"{path}\").restore({table.version})'"
            way = f"restore it to version {table.version}, the one with its newest batch: {command}"
            yield Finding(fault=Fault.TABLE_RESTORED, seen=told, ways=(way, _start_anew(seen)))
        for version in table.others:
            yield _of_others(seen, table, version)


def _of_others(seen: Evidence, table: TableSeen, version: int) -> Finding:
    """That others put rows into *table* by *version*."""
    told = f"{table.path} has rows that the stream did not write: somebody put them in with version {version}"
    python, delta_table = "python -c 'import deltalake; ", f'deltalake.DeltaTable("{table.path}")'
    ways = [f'delete those rows, and no others: {python}{delta_table}.delete("PREDICATE")\'']
    if table.version is not None and version == min(table.others) and table.version < version:
        ways.insert(0, f"restore the version before: {python}{delta_table}.restore({version - 1})'")
    return Finding(fault=Fault.TABLE_OF_OTHERS, seen=told, ways=(*ways, _start_anew(seen)))


def _put_back(seen: Evidence, what: str) -> tuple[str, ...]:
    """The ways on where *what* has to be had again."""
    return (
        f"put {what} back as it was when the stream ended last; from a backup, put back all of {seen.control} and of "
        "the stream's tables as they were at one instant at which it stood still",
        _start_anew(seen),
    )


def _start_anew(seen: Evidence) -> str:
    topology = seen.name.split()[0]
    return (
        f"start anew: give the topology another `name` in its TOML file; under it all is read from the beginning, and "
        f"the tables of {topology} stay as they are"
    )


def _with_checksum(path: Path) -> tuple[Path, ...]:
    return path, path.with_name(f".{path.name}.crc")


def _listed(names: Mapping[str, object] | frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "no topic"
