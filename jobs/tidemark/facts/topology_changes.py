"""Finds the changes of a topology after which its numbers mean something else.

A change of the topology file is recorded by the first batch after it. A fresh start of the topology is recorded as the
decision of a person. Pages, reports, paths and `tidemark complete` all ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tidemark.facts.answers import Row, Tables
from tidemark.graph import reached
from tidemark.model.settings.intervals import Interval, epoch_ms, iso, utc
from tidemark.model.settings.retention import WEEK_MS
from tidemark.model.topology import Topology
from tidemark.selection import omit

COMPARED_MS = WEEK_MS
"""Reports compare with at most this much time before, ms, so a change in that time concerns them, too."""
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
"""Selects the decisions of people in [$2, $3), epoch ms, that were carried out, or whose plan was shown."""


@dataclass(frozen=True, kw_only=True)
class RecordedChange:
    """A change after which numbers of a topology do not compare with those before.

    Attributes:
        at_ms: decision time of the first batch after the change, epoch ms. For a fresh start it is the clock of the
            command.
        sub_topology: the stream that changed, None for all streams of the topology.
        operator: the operator that begins anew, or the source that begins, ends or goes on in another way, None for
            all operators.
        batch_id: the first batch after the change. After a fresh start it is None, since each stream begins with its
            batch 0.
        told: the change as a clause.
        read_by: the operators of the stream that read that operator, directly or not. If a source ends, those that
            read it until then.
    """

    at_ms: int
    sub_topology: str | None
    operator: str | None
    batch_id: int | None
    told: str
    read_by: tuple[str, ...] = ()

    @property
    def row(self) -> Row:
        """The change as a row of JSON, for programs; `at` is a timestamp."""
        return {"at": utc(self.at_ms), **omit(asdict(self), ("at_ms", "read_by"))}

    @property
    def line(self) -> str:
        """The change in one line for people, with its instant and batch."""
        return change_line(self.row)


def change_line(row: Row) -> str:
    """Returns a *row* of `RecordedChange.row` as one line for people."""
    batch = "" if row["sub_topology"] is None else f", batch {row['batch_id']} of {row['sub_topology']}"
    return f"since {iso(epoch_ms(row['at']))}{batch}: {row['told']}"


def with_compared(over: Interval) -> Interval:
    """Returns the interval *over* with the time before it that its numbers are compared with."""
    return Interval(over.start_ms - COMPARED_MS, over.end_ms)


def topology_changes(tables: Tables, topology: str, over: Interval) -> list[RecordedChange]:
    """Returns the changes of *topology* that lie in *over*, oldest first."""
    rows = tables.ask(CHANGES, [topology, over.start_ms, over.end_ms]).objects
    return [RecordedChange(**{**row, "read_by": (*(row["read_by"] or ()),)}) for row in rows]


def concerning(changes: Iterable[RecordedChange], topology: Topology, operator: str) -> list[RecordedChange]:
    """Returns those of *changes* after which numbers of *operator* mean something else.

    These are changes of the operator itself, and of operators upstream of it. If the file no longer has a changed
    operator, the change concerns the operators that read it, and all operators downstream of these.
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
