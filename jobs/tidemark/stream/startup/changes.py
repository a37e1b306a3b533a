"""Compares a topology file with what its streams have kept: what goes on, begins, ends, or needs a person's consent.

A driver that starts refuses what this module says is refused or needs consent (`soundness.py`), and `tidemark plan`
shows all of it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tidemark.control.folder import Control, ListedSource
from tidemark.errors import UnreadableFile
from tidemark.graph import reached
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import TABLES
from tidemark.model.topology import Topology
from tidemark.selection import names_in, outside, within
from tidemark.storage.delta.datasets import open_to_read, schema_of
from tidemark.storage.delta.types import ChangedMeaning, type_changes
from tidemark.stream.journal.entries import Entry, newest_entry
from tidemark.stream.journal.layout import batches_in
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.startup.source_list import Fate, SourceChange, changes, input_text, with_waiting
from tidemark.stream.startup.state_compatibility import changed, meanings, types
from tidemark.stream.write.declared import declared_tables


@dataclass(frozen=True, kw_only=True)
class OperatorChange:
    """What becomes of *operator* of the stream *sub_topology*.

    Attributes:
        sub_topology: the stream.
        operator: the operator.
        fate: what becomes of it.
        why: the reason, in words.
        way: what a person does or writes if it is refused or needs consent, or empty.
        unread: if a source ends, or begins to read something else, the records that the newest batch left unread of
            what it read before. None if that is not known.
        held: how many records of what it read before wait in the stream, and are dropped.
        to_read: how many records a source that begins can read, or None if that is not known.
        closed_up_to_ms: for a source that begins, the latest end of a closed window (epoch ms) by aggregate behind it:
            its records of these windows are late.
        former_stream: the former name of a stream that is refused because it has another one now.
    """

    sub_topology: str
    operator: str
    fate: Fate
    why: str = ""
    way: str = ""
    unread: int | None = None
    held: int = 0
    to_read: int | None = None
    closed_up_to_ms: Mapping[str, int] = field(default_factory=dict)
    former_stream: str | None = None


@dataclass(frozen=True, kw_only=True)
class FormerStream:
    """A stream that the topology no longer has, and that has read what would be read again from the start.

    Attributes:
        name: the name of the former stream.
        operator: the operator that gives the stream its new name, or that reads the hop of the renamed stream.
        why: which of these it is, in words.
        way: what to write, so that the stream goes on under its former name.
    """

    name: str
    operator: str
    why: str
    way: str


def changes_of(stream: Stream) -> list[OperatorChange]:
    """Returns what becomes of each operator of *stream*, in order, and then of each that its file does not have.

    Raises:
        UnreadableFile: what the stream has left is damaged.
        InvalidSpec: the file has a mistake.
    """
    becomes = partial(OperatorChange, sub_topology=stream.sub.name)
    control = Control(stream.control)
    newest = newest_entry(stream.control)
    ran = {*newest.notes.decision.operators} if newest else set[str]()
    listed = control.sources()
    of_sources = with_waiting(changes(listed, stream.sub) if listed or not newest else [], newest)
    sources = {change.name: change for change in of_sources}
    found = [*_of_former(stream, is_new=newest is None)]
    if newest is None and found:
        return found  # nothing is known of the other operators before the stream has its former name
    other_meanings = [*changed_meanings(stream, newest)]
    writer = {sink.table: sink.name for sink in stream.sub.sinks if sink.table}
    for change in other_meanings:
        if change.table is not None:
            way, name = "give the table another name in the file", writer.get(change.table, change.table)
            found.append(becomes(operator=name, fate=Fate.REFUSED, why=str(change), way=way))
    told = {change.operator for change in found}
    for operator in stream.sub.operators:
        name = operator.name
        of_operator = [str(change) for change in other_meanings if change.operator == name]
        if name in told:
            continue
        if (source := sources.get(name)) is not None:
            found.append(_of_source(stream, source, newest))
        elif of_operator:
            way, why = begin_command(stream.topology.name, name), "; ".join(of_operator)
            found.append(becomes(operator=name, fate=Fate.NEEDS_CONSENT, why=why, way=way))
        elif name in ran:
            found.append(becomes(operator=name, fate=Fate.GOES_ON))
        else:
            found.append(becomes(operator=name, fate=Fate.BEGINS, why="with the next record"))
    found += [_of_source(stream, change, newest) for change in sources.values() if change.fate is Fate.ENDS]
    known = {change.operator for change in found} | {each.former.name for each in sources.values() if each.former}
    if newest is not None:
        # The newest batch is of the former file, also if a driver has followed the list of sources since.
        known |= {part.source for part in newest.notes.decision.sources}
    gone = [becomes(operator=name, fate=Fate.ENDS, why="its rows stay") for name in sorted(ran - known)]
    return [*found, *gone]


def _of_former(stream: Stream, *, is_new: bool) -> Iterator[OperatorChange]:
    for former in former_streams(stream, is_new=is_new):
        yield OperatorChange(
            sub_topology=stream.sub.name,
            operator=former.operator,
            fate=Fate.REFUSED,
            why=former.why,
            way=former.way,
            former_stream=former.name,
        )


def changed_meanings(stream: Stream, newest: Entry | None) -> Iterator[ChangedMeaning]:
    """Yields what *stream* keeps under a name that means something else now, or has another type.

    *newest* is the newest entry of the stream, or None if none can be read.
    """
    kept, now = _meanings(stream.control), meanings(stream.sub)
    try:
        steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    except Exception:  # SQL may raise any error of DuckDB, and the start describes it
        yield from changed(kept, now)
        return
    yield from changed(kept, {**now, **types(stream.sub, steps)})
    yield from _half_returning(stream, newest, now)
    for declared in declared_tables(stream.home, stream.sub, steps.schemas):
        # The types of Tidemark's own tables do not depend on the file; a damaged log is a finding already.
        if declared.path.name not in TABLES:
            with suppress(Exception):
                stored = schema_of(open_to_read(declared.path)).to_json()
                yield from type_changes(declared.path.name, stored, declared.schema)


def returning(stream: Stream, newest: Entry | None) -> list[str]:
    """Returns the operators that were removed from the file and are in it again: they begin without their old states.

    Their states are as old as the removal. *newest* is the newest entry of the stream, which has such states of them
    and did not run them.
    """
    if newest is None:
        return []
    begun: set[str] = set()
    with suppress(UnreadableFile):  # a damaged file has a finding of its own
        begun = Control(stream.control).begun_behind(newest.batch_id)
    with_states = {name for runs in newest.notes.states for name in runs.held}
    old = with_states - newest.notes.decision.operators.keys() - begun
    return within(names_in(stream.sub.operators), old)


def _half_returning(stream: Stream, newest: Entry | None, now: Mapping[str, str]) -> Iterator[ChangedMeaning]:
    """Yields each operator that returns while an operator behind it kept its updates: sums would have them twice."""
    topology = stream.topology
    # A source reads again what it has read, which the plan says.
    names = outside(returning(stream, newest), names_in(stream.sub.sources))
    ran: set[str] = set()
    for sub in topology.sub_topologies if names else ():
        entry = _readable(stream.layout.control(topology.name, sub.name))
        ran.update(within(names_in(sub.operators), entry.notes.decision.operators) if entry else ())
    for name in names:
        if kept_on := within(begins_with(topology, name)[1:], ran):
            was = f"left out of the file, and {', '.join(kept_on)} kept what it had sent"
            yield ChangedMeaning(f"operators.{name}", was, now.get(f"operators.{name}", "in it again"))


def _readable(control: Path) -> Entry | None:
    """Returns the newest entry of a stream, or None if there is none or it is damaged, which is a finding already."""
    with suppress(UnreadableFile):
        return newest_entry(control)
    return None


def _meanings(control: Path) -> dict[str, str]:
    """Returns the stored meanings, or none if their file is damaged."""
    try:
        return Control(control).meanings()
    except UnreadableFile:
        return {}


def streams_of(layout: Layout, topology: Topology) -> list[Path]:
    """Returns the control folders of streams of *topology* with a journal, also of those that it no longer has."""
    homes = layout.control(topology.name, topology.sub_topologies[0].name).parent
    return [home for home in sorted(homes.iterdir()) if (home / "journal").is_dir()] if homes.is_dir() else []


def former_streams(stream: Stream, *, is_new: bool) -> Iterator[FormerStream]:
    """Yields removed streams that have read what *stream*, or a stream whose hop it reads, would read again.

    Under the name of the removed stream it would go on instead. *is_new* says that *stream* has decided no batch.
    """
    if is_new:
        yield from _former_streams(stream)
    for hop in stream.sub.hops_read:
        upstream = Stream(stream.topology, stream.topology.sub_topology(hop.upstream), stream.layout)
        for former in () if batches_in(upstream.control / "journal", "data") else _former_streams(upstream):
            why = f"it reads the stream {hop.upstream}, whose sources were read by the stream {former.name}"
            yield replace(former, operator=hop.name, why=why)


def _former_streams(stream: Stream) -> Iterator[FormerStream]:
    current = {*names_in(stream.topology.sub_topologies)}
    operators = [o for o in stream.sub.operators if not o.hop_of]
    # Without an operator that sets the name, the first one could set it.
    naming = [o.name for o in operators if o.sub_topology] or [operators[0].name]
    for home in streams_of(stream.layout, stream.topology):
        if home.name not in current and _has_read(home, stream):
            why, way = f"its sources were read by the stream {home.name}", _to_continue(stream, home, naming)
            yield FormerStream(name=home.name, operator=naming[0], why=why, way=way)


def _has_read(home: Path, stream: Stream) -> bool:
    """Returns True if another stream has read a source of *stream*.

    *home* is the other stream's control folder.
    """
    newest = _readable(home)
    inputs = newest.notes.progress.inputs if newest else {}
    names, read = {*names_in(stream.sub.sources)}, {*map(input_text, stream.sub.sources)}
    # The source may have had another name there.
    return not names.isdisjoint(inputs) or bool(inputs and read & {each.place for each in listed_sources(home)})


def listed_sources(control: Path) -> list[ListedSource]:
    """Returns the stored sources, or none if their file is damaged."""
    try:
        return Control(control).sources()
    except UnreadableFile:
        return []


def _to_continue(stream: Stream, former: Path, naming: Sequence[str]) -> str:
    """Says what to write so that *stream* goes on as the former stream of a control folder.

    The operators *naming* it set its name.
    """
    was = {each.place: each.name for each in listed_sources(former)}
    names = {source.name: was.get(input_text(source), source.name) for source in stream.sub.outside_sources}
    renamed = [f'was = "{old}" below [operators.{name}]' for name, old in names.items() if old != name]
    tables = " and ".join(f"[operators.{name}]" for name in naming)
    return " and ".join([f'write sub_topology = "{former.name}" below {tables}', *renamed])


def _of_source(stream: Stream, change: SourceChange, newest: Entry | None) -> OperatorChange:
    is_refused, closed = change.fate is Fate.REFUSED, dict[str, int]()
    if change.fate is Fate.BEGINS and newest is not None:
        closed = _closed_up_to(stream, change.name, newest.notes.progress.watermark_ms)
    gives_up = change.former if change.fate in {Fate.BEGINS, Fate.ENDS} else None
    return OperatorChange(
        sub_topology=stream.sub.name,
        operator=change.name,
        fate=change.fate,
        why=change.why,
        way=change.ways[0] if is_refused else "",
        unread=_unread(gives_up, newest) if gives_up and newest else None,
        held=0 if is_refused else change.waiting,
        closed_up_to_ms=closed,
    )


def _unread(former: ListedSource, newest: Entry) -> int | None:
    """Returns the records of *former* that the *newest* entry left unread, or None if unknown."""
    # An earlier driver, which decided no batch, has given up its records already.
    if former.begins_behind(newest.batch_id):
        return None
    parts = [part.seen for part in newest.notes.decision.sources if part.source == former.name]
    if not parts or any(part.latest_offset is None for part in parts):
        return None
    return sum(max(0, (part.latest_offset or 0) - part.until_offset) for part in parts)


def _closed_up_to(stream: Stream, source: str, watermark_ms: int | None) -> dict[str, int]:
    """Returns until when windows behind *source* are closed, epoch ms, by their aggregates in its stream."""
    if watermark_ms is None:
        return {}
    in_stream = within(_behind(stream.topology, source), names_in(stream.sub.operators))
    aggregates = windowed(stream.topology, in_stream)
    return {each.name: each.windows.closed_up_to_ms(watermark_ms) for each in aggregates if each.windows}


def begin_command(topology: str, operator: str) -> str:
    """Returns the command by which *operator* begins anew."""
    return f"tidemark begin {topology} {operator}"


def begins_with(topology: Topology, operator: str) -> list[str]:
    """Returns *operator* and those behind it that have to begin with it, in order.

    When the next update of an id comes, a repartition with an id takes the last one out of the sums behind it. A sum of
    updates with two meanings would have neither, so the operators with such sums have to begin anew, too.
    """
    behind = [name for name in _behind(topology, operator) if _adds_up(topology.operators[name])]
    return [operator, *behind]


def goes_on_behind(topology: Topology, operator: str) -> list[str]:
    """Returns the operators behind *operator* that need not begin with it, in order."""
    return [name for name in _behind(topology, operator) if not _adds_up(topology.operators[name])]


def windowed(topology: Topology, names: Iterable[str]) -> list[Aggregate]:
    """Returns those of the operators *names* that aggregate over windows."""
    operators = map(topology.operators.__getitem__, names)
    return [each for each in operators if isinstance(each, Aggregate) and each.windows]


def _behind(topology: Topology, operator: str) -> list[str]:
    return within(topology.operators, reached([operator], topology.read_by)[1:])


def _adds_up(operator: Operator) -> bool:
    return isinstance(operator, Aggregate) or (isinstance(operator, Repartition) and bool(operator.id))


def keeps_states(topology: Topology, operator: str) -> bool:
    """Returns True if *operator* keeps states, without which it can begin anew."""
    described = topology.operators[operator]
    return f"operators.{operator}" in step_of(described).meaning(described)
