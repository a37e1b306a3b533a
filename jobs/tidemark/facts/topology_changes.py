"""Tells where numbers of a topology begin to mean something else.

The first batch after a change of the topology file records it, and a fresh start is a decision of a person. Pages,
reports, paths and `tidemark complete` all ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tidemark.collecting import omit
from tidemark.facts.answers import Row, Tables
from tidemark.graph import reached
from tidemark.model.settings.intervals import Interval, epoch_ms, iso, utc
from tidemark.model.settings.retention import WEEK_MS
from tidemark.model.topology import Topology

COMPARED_MS = WEEK_MS
"""What is usual is looked for in the week before, at most, so a change of that time concerns a report."""
CHANGES = """
    SELECT at_ms, sub_topology, operator, batch_id, told, read_by FROM (
        SELECT epoch_ms(decided_at) AS at_ms, sub_topology, operator, batch_id, told, read_by
        FROM topology_changes WHERE topology = $1
        UNION ALL
        SELECT epoch_ms(decided_at), NULL, NULL, NULL, 'the topology starts over', []
        FROM decisions WHERE topology = $1 AND decision = 'start-over' AND outcome = 'applied'
    ) WHERE at_ms >= $2 AND at_ms < $3
    ORDER BY at_ms, sub_topology, operator, told
"""
DECIDED = """
    SELECT decided_at, decision, subject, decided_by, note, effect FROM decisions
    WHERE topology = $1 AND outcome IN ('applied', 'shown') AND decided_at >= make_timestamptz($2 * 1000)
          AND decided_at < make_timestamptz($3 * 1000)
    ORDER BY decided_at DESC, subject, decision
"""
"""Selects the repairs, begins and fresh starts that people decided and that were carried out, and plans by name."""


@dataclass(frozen=True, kw_only=True)
class RecordedChange:
    """A change after which numbers of a topology do not compare with those before.

    Attributes:
        at_ms: decision time of the first batch with it, epoch ms; of a fresh start the clock of the command.
        sub_topology: the stream; None: all of the topology.
        operator: the operator that begins anew, or the source that begins, ends or goes on in another way; None: all.
        batch_id: that first batch of the stream; None: of each stream its batch 0.
        told: the change, for people.
        read_by: the operators of the stream that read it, directly or not; of a source that ends, until then.
    """

    at_ms: int
    sub_topology: str | None
    operator: str | None
    batch_id: int | None
    told: str
    read_by: tuple[str, ...] = ()

    @property
    def row(self) -> Row:
        """Its fields in documents for programs; `at` is a timestamp."""
        return {"at": utc(self.at_ms), **omit(asdict(self), ("at_ms", "read_by"))}

    @property
    def line(self) -> str:
        """The change with its place, for people."""
        return change_line(self.row)


def change_line(row: Row) -> str:
    """Returns a *row* of a document as a line for people."""
    place = "" if row["sub_topology"] is None else f", batch {row['batch_id']} of {row['sub_topology']}"
    return f"since {iso(epoch_ms(row['at']))}{place}: {row['told']}"


def with_compared(over: Interval) -> Interval:
    """Returns *over* and the time before it with which its numbers are compared."""
    return Interval(over.start_ms - COMPARED_MS, over.end_ms)


def topology_changes(tables: Tables, topology: str, over: Interval) -> list[RecordedChange]:
    """Returns the changes of *topology* that lie in *over*, oldest first."""
    rows = tables.ask(CHANGES, [topology, over.start_ms, over.end_ms]).objects
    return [RecordedChange(**{**row, "read_by": (*(row["read_by"] or ()),)}) for row in rows]


def concerning(changes: Iterable[RecordedChange], topology: Topology, operator: str) -> list[RecordedChange]:
    """Returns those of *changes* after which numbers of *operator* mean something else.

    They are its own, and those of the operators that it reads, directly or not. What the file does not have any more
    concerns those that have read it.
    """
    upstream = {*reached([operator], topology.upstreams)}

    def concerns(change: RecordedChange) -> bool:
        if change.operator is None or change.operator in upstream:
            return True
        return change.operator not in topology.operators and not upstream.isdisjoint(change.read_by)

    return [change for change in changes if concerns(change)]


def changes_by_operator(changes: Sequence[RecordedChange], topology: Topology) -> dict[str, list[RecordedChange]]:
    """Returns the *changes* that concern each operator of *topology*."""
    return {name: concerning(changes, topology, name) for name in topology.operators} if changes else {}
