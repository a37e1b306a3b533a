"""`tidemark begin`: lets an operator whose key, window or function has changed begin anew.

The operator, and the sums behind it, begin without their states, with the next record, under their own names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tidemark.cli.repair.reshard import sharding_of
from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.plan import PlanChanged, RepairPlan, add_author, add_plan, carry_out
from tidemark.cli.shared.streams import topology_with_file
from tidemark.control.folder import Control, TopologyChange
from tidemark.errors import InvalidArgument
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.project.layout import Layout
from tidemark.model.settings.lengths import by_number, counted
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import CHANGES
from tidemark.model.topology import Topology
from tidemark.selection import names_in
from tidemark.semantics.progress import InputProgress, PartitionProgress
from tidemark.storage.delta.format import refuse_other
from tidemark.storage.delta.tables import delete_rows
from tidemark.storage.delta.types import owner_of
from tidemark.stream.journal.entries import Journal, newest_entry
from tidemark.stream.journal.layout import newest_batch_at
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.shards.resharding import forget, write_anew
from tidemark.stream.startup.changes import begins_with, goes_on_behind, keeps_states, windowed
from tidemark.stream.startup.state_compatibility import changed, meanings, types
from tidemark.stream.state.files import remove_unnamed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("topology", help="name of the topology, or its TOML file")
    parser.add_argument("operator", help="operator that begins anew")
    parser.add_argument("--drop-rows", action="store_true", help="also delete its former rows of `changes`")
    add_author(parser)
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Lets the operator begin anew, and says what became of it."""
    topology, warehouse = topology_with_file(options), existing_warehouse(options)
    planned = partial(begin_plan, topology, warehouse, options.operator, drop_rows=options.drop_rows)
    say_inert(carry_out(planned, options, Layout(warehouse), topology.name, note=options.note))
    return 0


def begin_plan(topology: Topology, warehouse: Path, operator: str, *, drop_rows: bool = False) -> RepairPlan:
    """Returns the plan to let *operator* begin without its states.

    Its effect names the operators that begin with it, and those behind it that go on. With *drop_rows* their former
    rows of `changes` are deleted.

    Raises:
        InvalidArgument: there is no such operator, it keeps nothing, a driver lives, or a stream behind it has not read
            all of its former updates.
        OtherFormat: a version with another format has written to the warehouse.
    """
    refuse_other(warehouse)
    if operator not in topology.operators or not keeps_states(topology, operator):
        known = ", ".join(name for name in topology.operators if keeps_states(topology, name)) or "none"
        msg = f"{operator}: is no operator of {topology.name} that keeps states; those are: {known}"
        raise InvalidArgument(msg)
    begin = begins_with(topology, operator)
    parts: list[_Part] = []
    for sub in topology.sub_topologies:
        if own := [name for name in names_in(sub.operators) if name in begin]:
            parts.append(_Part(Stream(topology, sub, Layout(warehouse)), own, operator))
    for part in parts:
        if Control(part.stream.control).is_held():
            msg = f"{part.name}: its driver is running; drain it first (`tidemark down {topology.name}`)"
            raise InvalidArgument(msg)
        part.refuse_unread()
    goes_on = goes_on_behind(topology, operator)
    lines = [part.line(drop_rows=drop_rows) for part in parts]
    lines += [f"go on behind it: {', '.join(goes_on)}"] if goes_on else []
    lines += _mixed(topology, begin, goes_on)
    return RepairPlan(
        topology=topology.name,
        sub_topology=parts[0].stream.sub.name,
        effect="\n".join(lines),
        state=(begin, drop_rows, [(part.name, part.batch_id) for part in parts]),
        apply=partial(_apply, parts, drop_rows=drop_rows),
        is_needed=any(part.newest for part in parts),
    )


def _mixed(topology: Topology, begin: Sequence[str], goes_on: Sequence[str]) -> Iterator[str]:
    """Yields where results of both meanings meet: in windows that are open, and in rows of one key."""
    for aggregate in windowed(topology, begin):
        yield f"windows of {aggregate.name} that are open then count only the records from then on"
    for sink in (sink for sub in topology.sub_topologies for sink in sub.sinks if sink.name in goes_on):
        if sink.table and sink.key:
            yield f"{sink.table} has one row per {', '.join(sink.key)}: a new row replaces a former one"


def _newest_sent(topology: Topology, layout: Layout, source: HopSource) -> int:
    """Returns the newest batch of which rows are in the hop of *source*, or will be; -1: none."""
    decided = newest_entry(layout.control(topology.name, source.upstream))
    # The driver may have been killed before the hop had the rows of what it decided, and the next one sends them.
    if decided is not None and (rows := decided.tables.get(source.repartition)) is not None and rows.num_rows:
        return decided.batch_id
    return newest_batch_at(layout.hop(topology.name, source.upstream, source.repartition), None)


class _Part:
    """The *operators* of *stream* that begin anew, because *first* does."""

    def __init__(self, stream: Stream, operators: Sequence[str], first: str) -> None:
        self.stream, self.operators, self._first = stream, operators, first
        self.name = f"{stream.topology.name}/{stream.sub.name}"
        self.newest = newest_entry(stream.control)
        self.batch_id = self.newest.batch_id if self.newest else None

    def refuse_unread(self) -> None:
        """Raises InvalidArgument if the stream has not read all updates that come from what begins.

        Those of the former meaning would be added to the new sums.
        """
        topology, layout = self.stream.topology, self.stream.layout
        changed_ones = {*begins_with(topology, self._first), *goes_on_behind(topology, self._first)}
        hops = [source for source in self.stream.sub.hops_read if source.repartition in changed_ones]
        inputs = self.newest.notes.progress.inputs if self.newest else {}
        for source in hops if self.newest else ():
            until = inputs.get(source.name, InputProgress()).partitions.get(0, PartitionProgress()).until_offset
            if (newest := _newest_sent(topology, layout, source)) >= until:
                msg = (
                    f"{self.name} has read {source.upstream} up to batch {until - 1}, and there is batch {newest}: "
                    "restore the previous file, run the streams until it has read that, drain them, and begin then"
                )
                raise InvalidArgument(msg)

    def line(self, *, drop_rows: bool) -> str:
        """Says which operators begin behind which batch, and what becomes of their rows."""
        names = ", ".join(self.operators)
        if self.newest is None:
            return f"{self.name}: no batch was decided yet, so {names} has nothing to begin without"
        held = sum(self.newest.notes.held(name) for name in self.operators)
        waiting = f"; {counted(held, 'update that waits is', 'updates that wait are')} dropped" if held else ""
        n = len(self.operators)
        verb, whose = by_number(n, "begins", "begin"), by_number(n, "its", "their")
        rows = f"{whose} former rows of `changes` are deleted" if drop_rows else f"{whose} former rows stay"
        return f"{self.name}: {names} {verb} anew behind batch {self.newest.batch_id}, and {rows}{waiting}"

    def refuse_stale(self) -> None:
        """Raises PlanChanged if the stream has a newer batch than was planned with."""
        newest = newest_entry(self.stream.control)
        if (newest.batch_id if newest else None) != self.batch_id:
            msg = f"{self.name}: it has decided another batch since; nothing was changed; look again"
            raise PlanChanged(msg)

    def apply(self, check_lease: Callable[[], None], *, drop_rows: bool) -> str:
        """Writes the states without those of the operators; no driver of the stream can start meanwhile."""
        newest, control = self.newest, Control(self.stream.control)
        if newest is None:
            return self.line(drop_rows=drop_rows)
        stream, journal = self.stream, Journal(self.stream.control / "journal", "data")
        steps = Steps(stream.topology, Reference(stream.layout.warehouse))
        forget(stream.control)
        remove_unnamed(stream.control, newest.notes.states, check_lease=check_lease)
        by = sharding_of(stream)
        kept, now = control.meanings(), {**meanings(stream.sub), **types(stream.sub, steps)}
        begun = self._changes(kept, now, newest.batch_id)
        # From here on a driver begins without the states: if none are written anew for it, it writes them.
        control.begin_anew(begun)
        write_anew(stream, journal, newest, by, lambda text: None, self.operators, check_lease=check_lease)
        control.begin_anew(begun, self._meanings(kept, now))
        return f"{self.line(drop_rows=drop_rows)}{self._dropped() if drop_rows else ''}"

    def _changes(self, kept: Mapping[str, str], now: Mapping[str, str], after: int) -> list[TopologyChange]:
        """Returns a line for each operator that begins behind the batch *after*; *kept* was its meaning until then."""
        all_changed, found = changed(kept, now), list[TopologyChange]()
        for name in self.operators:
            own = [change.of_owner for change in all_changed if change.operator == name]
            why = f": {'; '.join(own)}" if own else f" with {self._first}" if name != self._first else ""
            line, read_by = f"{name} begins anew{why}", self.stream.sub.behind(name)
            found.append(TopologyChange(name=name, after=after, line=line, read_by=read_by))
        return found

    def _meanings(self, kept: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
        """Returns the meanings *kept*, with those of *now* of the operators in place of theirs."""

        def is_own(name: str) -> bool:
            return owner_of(name)[0] in self.operators

        others = {name: text for name, text in kept.items() if not is_own(name)}
        return {**others, **{name: text for name, text in now.items() if is_own(name)}}

    def _dropped(self) -> str:
        """Deletes the former rows, and returns how many there were, as text."""
        names = ", ".join(f"'{name}'" for name in self.operators)
        n = delete_rows(self.stream.home / CHANGES.name, f"operator IN ({names})")
        return f" ({n:,} rows)"


def _apply(parts: Sequence[_Part], *, drop_rows: bool) -> str:
    with ExitStack() as leases:
        # All leases are taken before the first stream is changed.
        held = [leases.enter_context(Control(part.stream.control).held()) for part in parts if part.newest]
        changed = [part for part in parts if part.newest]
        for part in parts:
            part.refuse_stale()
            part.refuse_unread()
        # The stream of the operator itself comes last: until then its file is refused, and the command is given again.
        done = [part.apply(check, drop_rows=drop_rows) for part, check in reversed([*zip(changed, held, strict=True)])]
    return "\n".join([*reversed(done), *(part.line(drop_rows=drop_rows) for part in parts if not part.newest)])
