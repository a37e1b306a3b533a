"""Checks that a stream's checkpoint, journal and tables are consistent.

Purpose: after a restore, a copy or a lost disk, a driver that simply started would skip records or write them twice.
How it works: the evidence (`evidence.py`) is compared with what must hold between any two writes of a driver:

* Spark plans a batch, the driver decides it, the tables get it, Spark commits it: each only after the one before.
* The offsets read by the newest decided batch are those that Spark planned for it, or for a silent batch after it; or a
  part of those.
* A table has the newest batch that wrote rows into it according to the journal, and no batch that the journal lacks.

A batch that was decided and is only in some of the tables is sound: the driver carries it out again.
Known limitation: rows that were deleted from a table are not missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tidemark.control.files import REMOVE_TORN, RESTORE
from tidemark.errors import Contradiction, UnreadableFile
from tidemark.selection import pick
from tidemark.storage.delta.requirements import Refusal
from tidemark.storage.delta.types import ChangedMeaning
from tidemark.stream.journal.checkpoint import Ends
from tidemark.stream.journal.layout import transactions_of
from tidemark.stream.startup.changes import FormerStream, begin_command
from tidemark.stream.startup.source_list import SourceChange


class Fault(StrEnum):
    """The kinds of inconsistency of a stream at rest."""

    CHECKPOINT_GONE = "checkpoint_gone"
    """The checkpoint plans no batch although batches were decided."""
    CHECKPOINT_TORN = "checkpoint_torn"
    """Some newest file of the checkpoint is missing or unfinished."""
    CHECKPOINT_OF_ANOTHER = "checkpoint_of_another"
    """The checkpoint reads other topics than the stream does."""
    CHECKPOINT_BEHIND = "checkpoint_behind"
    """The checkpoint was rolled back or is a copy: the stream has advanced further."""
    CHECKPOINT_AHEAD = "checkpoint_ahead"
    """The checkpoint has committed records that the stream has not read: it is a copy, or all else was rolled back."""
    JOURNAL_GONE = "journal_gone"
    """The journal has no batch although batches were committed."""
    JOURNAL_UNREADABLE = "journal_unreadable"
    """A journal entry that is needed is damaged or missing, or a file with rows or states that an entry names."""
    FILE_UNREADABLE = "file_unreadable"
    """Another file that a driver needs is damaged: a request, a note of the driver before, or the warehouse's stamp."""
    TABLES_AHEAD = "tables_ahead"
    """Tables have newer batches than the newest in the journal."""
    TABLE_DELETED = "table_deleted"
    """A table that had rows no longer exists."""
    TABLE_UNREADABLE = "table_unreadable"
    """The log of a table is damaged."""
    DATA_UNREADABLE = "data_unreadable"
    """A data file of a table is missing, or not the one that its log has.

    Only `tidemark doctor` looks for such files. With `--deep` it also finds wrong files of the right size.
    """
    TABLE_RESTORED = "table_restored"
    """A table shows an older version than the newest that was written."""
    TABLE_OF_OTHERS = "table_of_others"
    """Another writer put rows into a table that a driver reads."""
    TABLE_REFUSED = "table_refused"
    """A table requires of its writers what Tidemark does not know."""
    TOPOLOGY_CHANGED = "topology_changed"
    """A name under which the stream keeps rows, states or progress means something else in the topology file now."""
    STREAM_RENAMED = "stream_renamed"
    """The stream has read nothing, but a stream that the topology file does not have any more read its sources."""


OF_TOPOLOGY = frozenset({Fault.TOPOLOGY_CHANGED, Fault.STREAM_RENAMED})
"""Faults that another topology file mends, because nothing is damaged."""


@dataclass(frozen=True, kw_only=True)
class Inconsistency:
    """A fault of a stream: what was `seen`, and the `ways` to mend it.

    `removable` has torn files without which the stream is sound, because other files record all that was done.
    """

    fault: Fault
    seen: str
    ways: tuple[str, ...]
    removable: tuple[Path, ...] = ()

    @property
    def lines(self) -> str:
        """The fault as text: what was seen, and a line for each way to mend it."""
        return "\n".join([f"{self.fault.value}: {self.seen}", *(f"  remedy: {way}" for way in self.ways)])


@dataclass(frozen=True, kw_only=True)
class TableCommit:
    """What the log of a table of the stream says.

    Attributes:
        path: the folder of the table.
        exists: False if there is no table.
        error: the damage for which the table cannot be opened.
        newest_batch: the newest batch with rows under the table's name.
        more: the newest batch by the other names of its rows (`COMMITTED_WITH_BATCH`).
        version: the version that the newest of these batches made.
        restored_to: what the table was restored to after that ("version 3" or "an instant"), or None if it was not.
        others: the versions, newest first, by which other writers put rows into a table that only the stream may write.
        refusal: the reason for which Tidemark does not write to the table.
    """

    path: Path
    exists: bool = True
    error: UnreadableFile | None = None
    newest_batch: int | None = None
    more: Mapping[str, int | None] = field(default_factory=dict)
    version: int | None = None
    restored_to: str | None = None
    others: tuple[int, ...] = ()
    refusal: Refusal | None = None

    @property
    def newest_batches(self) -> dict[str, int | None]:
        """The newest batch by the name of its rows."""
        return {self.path.name: self.newest_batch, **self.more}

    @property
    def has_batch(self) -> bool:
        """True if any batch was committed."""
        return any(newest is not None for newest in self.newest_batches.values())


@dataclass(frozen=True, kw_only=True)
class StartEvidence:
    """The evidence about a stream.

    Attributes:
        name: the stream, as the CLI takes it.
        control: its control folder.
        topics: the topics that it goes on to read.
        topics_begun: the topics without an offset in the plan of the batch `reached`, because they are read since then.
        committed: the newest batch that the checkpoint has as committed.
        commit_is_torn: whether the file of that commit is torn.
        planned: the end offsets of each batch that the checkpoint plans, None for a batch whose file is torn. None
            instead of all if the checkpoint cannot be read.
        decided: the newest batch in the journal.
        decided_as: the number of that batch in the checkpoint.
        is_part: whether other parts of the batch `decided_as` follow `decided`.
        read_to: the offsets up to which the topics had been read with the batch `decided`.
        damaged: an error for each other file that is damaged or missing.
        newest_batches: the newest batches that the tables must have, by table.
        tables: what the log of each table says.
        data_files: damaged data files of tables, and what is wrong with each, if they were looked at.
        changed: what the stream keeps under a name that means something else now.
        refused: sources that cannot go on.
        returning: operators that were removed from the file and are in it again.
        former: removed streams under whose names this one, or one whose hop it reads, could go on.
    """

    name: str
    control: Path
    topics: frozenset[str]
    topics_begun: frozenset[str] = frozenset()
    committed: int | None
    commit_is_torn: bool
    planned: Mapping[int, Ends | None] | None
    decided: int | None
    decided_as: int | None
    is_part: bool
    read_to: Ends
    damaged: tuple[UnreadableFile, ...]
    newest_batches: Mapping[str, int]
    tables: tuple[TableCommit, ...]
    data_files: tuple[tuple[Path, str], ...] = ()
    changed: tuple[ChangedMeaning, ...] = ()
    refused: tuple[SourceChange, ...] = ()
    returning: tuple[str, ...] = ()
    former: tuple[FormerStream, ...] = ()

    @property
    def topology(self) -> str:
        """The name of its topology."""
        return self.name.split()[0]

    @property
    def reached(self) -> int:
        """The newest batch that is committed or decided, also in part, by its number in the checkpoint; -1 if none."""
        return max(-1 if number is None else number for number in (self.committed, self.decided_as))

    @property
    def is_in_parts(self) -> bool:
        """True if parts of the batch `reached` are still undecided."""
        return self.is_part and self.committed != self.reached == self.decided_as


# The name opens the reason in heartbeats, where the DAGs find it: it is never renamed.
class Unsound(Contradiction):
    """Raised when a driver is started on inconsistent evidence."""


def refuse_unless_sound(evidence: StartEvidence) -> None:
    """Raises Unsound with all findings, if there are any."""
    if all_findings := findings(evidence):
        report = "\n".join(finding.lines for finding in all_findings)
        found = f"checkpoint, journal and tables are inconsistent (tidemark doctor {evidence.name})"
        if all(finding.fault in OF_TOPOLOGY for finding in all_findings):
            found = f"the stream does not go on with its topology file as it is (tidemark plan {evidence.topology})"
        msg = f"{found}:\n{report}"
        raise Unsound(msg)


def findings(evidence: StartEvidence) -> list[Inconsistency]:
    """Returns every fault; none when the stream may continue."""
    return [
        *_of_topology(evidence),
        *_of_damage(evidence),
        *_of_checkpoint(evidence),
        *_of_journal(evidence),
        *_of_tables(evidence),
    ]


def _of_damage(evidence: StartEvidence) -> Iterator[Inconsistency]:
    for damage in evidence.damaged:
        path = Path(str(damage.file))
        ways: tuple[str, ...] = (damage.remedy,)
        removable: tuple[Path, ...] = ()
        if damage.remedy == RESTORE:
            ways = _put_back(evidence, path.name)
        elif damage.remedy == REMOVE_TORN:
            ways, removable = (f"{damage.remedy}: {_removal(evidence)}",), _with_checksum(path)
        seen = f"{path}: {damage.found}"
        yield Inconsistency(fault=_fault_of(evidence, path), seen=seen, ways=ways, removable=removable)


def _fault_of(evidence: StartEvidence, path: Path) -> Fault:
    if evidence.control / "checkpoint" in (path, *path.parents):
        return Fault.CHECKPOINT_TORN
    of_batches = {evidence.control / "journal", evidence.control / "state", *(table.path for table in evidence.tables)}
    return Fault.JOURNAL_UNREADABLE if of_batches & {path, *path.parents} else Fault.FILE_UNREADABLE


def _of_topology(evidence: StartEvidence) -> Iterator[Inconsistency]:
    for change in evidence.changed:
        operator = change.operator
        begin = () if operator is None else (f"let it begin anew: {begin_command(evidence.topology, operator)}",)
        named = f"give the changed {'operator' if operator else 'table'} a new name in the file"
        ways = (
            *begin,
            "restore the previous file",
            f"{named}, under which it starts with the next record",
            _start_anew(evidence),
        )
        yield Inconsistency(fault=Fault.TOPOLOGY_CHANGED, seen=str(change), ways=ways)
    for source in evidence.refused:
        yield Inconsistency(fault=Fault.TOPOLOGY_CHANGED, seen=source.line, ways=source.ways)
    for former in evidence.former:
        again = f"{former.why}; under another name they would be read again from the start"
        # With the old name in the file, the operators keep their progress, states and tables.
        way = f"{former.way}, to continue under the old name"
        forget = f"to read its sources from the start, move {evidence.control.parent / former.name} elsewhere"
        yield Inconsistency(fault=Fault.STREAM_RENAMED, seen=again, ways=(way, forget))


def _of_checkpoint(evidence: StartEvidence) -> Iterator[Inconsistency]:
    if evidence.planned is None:
        return
    planned = max(evidence.planned, default=None)
    if planned is None:
        if evidence.decided is not None or any(table.has_batch for table in evidence.tables):
            observation = f"{evidence.control}/checkpoint plans no batch, but batches were decided or committed before"
            yield Inconsistency(fault=Fault.CHECKPOINT_GONE, seen=observation, ways=_put_back(evidence, "checkpoint"))
        return
    torn = list(_torn(evidence, evidence.planned, planned))
    yield from torn
    if evidence.decided_as is not None and evidence.decided_as > planned:
        observation = f"the checkpoint has planned batches until {planned}, but batch {evidence.decided_as} was decided"
        yield Inconsistency(fault=Fault.CHECKPOINT_BEHIND, seen=observation, ways=_put_back(evidence, "checkpoint"))
    # Missing files explain ends that differ, so only a whole checkpoint is compared.
    elif not torn:
        yield from _of_ends(evidence)


def _torn(evidence: StartEvidence, plans: Mapping[int, Ends | None], planned: int) -> Iterator[Inconsistency]:
    checkpoint = evidence.control / "checkpoint"
    remove = f"remove it, so that the batch is planned or processed again: {_removal(evidence)}"
    if evidence.commit_is_torn:
        observation = f"{checkpoint}/commits/{evidence.committed} is incomplete"
        files = _with_checksum(checkpoint / "commits" / str(evidence.committed))
        yield Inconsistency(fault=Fault.CHECKPOINT_TORN, seen=observation, ways=(remove,), removable=files)
    # At a start Spark reads the newest plan and the one before it.
    for number in sorted({planned, planned - 1, evidence.reached} & set(plans)):
        if plans[number] is None:
            path = checkpoint / "offsets" / str(number)
            # A torn plan of a batch that nothing has used yet can be removed: Spark plans that batch again.
            is_new = number == planned > evidence.reached
            observation = f"{path} is incomplete" + ("; it is not used yet" if is_new else "")
            ways = (remove,) if is_new else _put_back(evidence, "checkpoint")
            files = _with_checksum(path) if is_new else ()
            yield Inconsistency(fault=Fault.CHECKPOINT_TORN, seen=observation, ways=ways, removable=files)
    # Spark plans a batch before it commits one, so a plan has been deleted.
    if evidence.committed is not None and evidence.committed not in plans:
        plan = checkpoint / "offsets" / str(evidence.committed)
        observation = f"batch {evidence.committed} is committed, but {plan} is missing"
        yield Inconsistency(fault=Fault.CHECKPOINT_TORN, seen=observation, ways=_put_back(evidence, "checkpoint"))
    elif planned > 0 and planned - 1 not in plans:
        observation = (
            f"batch {planned} is planned, but {checkpoint}/offsets/{planned - 1}, which Spark reads, is missing"
        )
        yield Inconsistency(fault=Fault.CHECKPOINT_TORN, seen=observation, ways=_put_back(evidence, "checkpoint"))


def _of_ends(evidence: StartEvidence) -> Iterator[Inconsistency]:
    """Compares the planned end offsets of the newest batch that is committed or decided with those that were read."""
    ends = (evidence.planned or {}).get(evidence.reached)
    if ends is None:
        return
    # A plan names all topics of its query but those that began after it, so another set is another stream.
    if not evidence.topics - evidence.topics_begun <= set(ends) <= evidence.topics:
        observation = f"the checkpoint reads {_listed(ends)}, but the stream reads {_listed(evidence.topics)}"
        yield Inconsistency(fault=Fault.CHECKPOINT_OF_ANOTHER, seen=observation, ways=_put_back(evidence, "checkpoint"))
        return
    for topic, partitions in evidence.read_to.items():
        for number, read_to in partitions.items():
            end = ends.get(topic, {}).get(number, read_to)
            # While parts of a batch are undecided, Spark's end of the whole batch is ahead of what was read.
            if end == read_to or (end > read_to and evidence.is_in_parts):
                continue
            fault = Fault.CHECKPOINT_BEHIND if end < read_to else Fault.CHECKPOINT_AHEAD
            observation = (
                f"topic {topic!r}, partition {number}: by batch {evidence.reached} the checkpoint has read until "
                f"offset {end}, but the stream has read until {read_to}"
            )
            yield Inconsistency(fault=fault, seen=observation, ways=_put_back(evidence, "checkpoint"))


def _of_journal(evidence: StartEvidence) -> Iterator[Inconsistency]:
    in_tables: dict[str, int] = {}
    for table in evidence.tables:
        newest = [batch_id for batch_id in table.newest_batches.values() if batch_id is not None]
        if newest:
            in_tables[table.path.name] = max(newest)
    if evidence.decided is None:
        if in_tables or evidence.committed is not None:
            observation = f"{evidence.control}/journal has no batch, but batches were committed before"
            yield Inconsistency(fault=Fault.JOURNAL_GONE, seen=observation, ways=_put_back(evidence, "journal"))
        return
    if ahead := {name: newest for name, newest in in_tables.items() if newest > evidence.decided}:
        observation = f"the newest decided batch is {evidence.decided}, but newer batches are in {_listed(ahead)}"
        yield Inconsistency(fault=Fault.TABLES_AHEAD, seen=observation, ways=_put_back(evidence, "journal"))


def _of_tables(evidence: StartEvidence) -> Iterator[Inconsistency]:
    for table in evidence.tables:
        path = table.path
        if table.refusal is not None:
            yield Inconsistency(fault=Fault.TABLE_REFUSED, seen=table.refusal.seen, ways=table.refusal.ways)
            # delta-rs may not open the table, so its newest batch is unknown.
            if not table.has_batch:
                continue
        if table.error is not None:
            observation, remedy = f"{table.error.file}: {table.error.found}", table.error.remedy
            ways = _put_back(evidence, path.name) if remedy == RESTORE else (remedy,)
            yield Inconsistency(fault=Fault.TABLE_UNREADABLE, seen=observation, ways=ways)
        elif (lost := loss_of(table, evidence.newest_batches)) is not None:
            fault = Fault.TABLE_RESTORED if table.exists else Fault.TABLE_DELETED
            yield Inconsistency(fault=fault, seen=f"{path}: {lost}", ways=_put_back(evidence, path.name))
        elif table.restored_to is not None:
            observation = f"{path} was restored to {table.restored_to}, so that newer rows are missing"
            command = f"python -c 'import deltalake; deltalake.DeltaTable(\"{path}\").restore({table.version})'"
            way = f"restore it to version {table.version}, the one with its newest batch: {command}"
            yield Inconsistency(fault=Fault.TABLE_RESTORED, seen=observation, ways=(way, _start_anew(evidence)))
        for version in table.others:
            yield _of_others(evidence, table, version)
    for file, found in evidence.data_files:
        # A data file never changes, so any backup will do. A changed log may name a file that never existed.
        of_file = "restore this file from a backup of any time since it was written"
        ways = (of_file, *_put_back(evidence, "its table"))
        yield Inconsistency(fault=Fault.DATA_UNREADABLE, seen=f"{file}: {found}", ways=ways)


def loss_of(table: TableCommit, expected: Mapping[str, int]) -> str | None:
    """Returns what *table* has lost, or None if nothing is missing.

    *expected* are the newest batches that tables must have, by the names of their rows.
    """
    must_have = pick(expected, transactions_of(table.path.name))
    if must_have and not table.exists:
        return f"it no longer exists, but had rows of batch {max(must_have.values())}"
    for name, batch_id in must_have.items():
        newest = table.newest_batches.get(name)
        # A driver commits a batch to every table that gets rows of it, so an older newest batch is a loss.
        if newest is None or newest < batch_id:
            now = "none" if newest is None else newest
            return f"its newest batch was {batch_id}, but now is {now}: it is an older copy, or was recreated"
    return None


def _of_others(evidence: StartEvidence, table: TableCommit, version: int) -> Inconsistency:
    """Returns the finding that another writer's *version* added rows."""
    observation = f"{table.path} has rows of another writer, added with version {version}"
    python, delta_table = "python -c 'import deltalake; ", f'deltalake.DeltaTable("{table.path}")'
    ways = [f'delete those rows only: {python}{delta_table}.delete("PREDICATE")\'']
    # A restore of the version before is safe only if the stream has committed no batch since.
    if table.version is not None and version == min(table.others) and table.version < version:
        ways.insert(0, f"restore the version before: {python}{delta_table}.restore({version - 1})'")
    return Inconsistency(fault=Fault.TABLE_OF_OTHERS, seen=observation, ways=(*ways, _start_anew(evidence)))


def _put_back(evidence: StartEvidence, what: str) -> tuple[str, ...]:
    """Returns the remedies where *what* has to be restored."""
    return (
        f"restore {what} to its content when the stream last ended; from a backup, restore all of {evidence.control} "
        "and the stream's tables of one instant at which the stream was stopped",
        _start_anew(evidence),
    )


def _removal(evidence: StartEvidence) -> str:
    return f"tidemark doctor {evidence.name} --apply remove-torn"


def _start_anew(evidence: StartEvidence) -> str:
    return (
        f"start from the beginning: give the topology another `name` in its TOML file, under which it reads everything "
        f"again, and the tables of {evidence.topology} do not change; or delete these (`tidemark start-over "
        f"{evidence.topology}`)"
    )


def _with_checksum(path: Path) -> tuple[Path, ...]:
    # Hadoop's local file system keeps a checksum beside each file, and refuses a file that does not match it.
    return path, path.with_name(f".{path.name}.crc")


def _listed(names: Mapping[str, object] | frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "no topic"
