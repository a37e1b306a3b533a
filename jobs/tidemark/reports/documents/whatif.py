"""How late windows would have been with other work of an operator, bound, trigger or another owner of time."""

from __future__ import annotations

from pathlib import Path

from tidemark.account.warehouse import AccountTables
from tidemark.facts.answers import Row, answers_over
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.reports.what_if.estimates import WorkChange
from tidemark.reports.what_if.facts import what_if_facts
from tidemark.reports.what_if.parts import PartChange, what_if_part


def whatif_document(
    warehouse: Path,
    topology: Topology,
    change: WorkChange | PartChange,
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Row:
    """Compares the closed windows of *topology* with and without *change*.

    If the latencies of critical paths are compared, and not ages, the document also has `other_path`.

    Args:
        warehouse: the warehouse.
        topology: the topology.
        change: the changed work of an operator, bound or trigger.
        start_ms: windows end then or later, record time, epoch ms; None sets no limit.
        end_ms: windows end before that; None sets no limit.

    Raises:
        InvalidArgument: there is nothing to compare, or no such operator.
    """
    tables = answers_over(warehouse, topology.name)
    # A path begins when its source has finished, so what comes before is in no path.
    if isinstance(change, WorkChange) and topology.upstreams.get(change.operator) != ():
        return what_if_facts(tables, topology, change, start_ms=start_ms, end_ms=end_ms)
    of = AccountTables(Layout(warehouse), topology, tables.stored)
    return what_if_part(tables, of, change, start_ms=start_ms, end_ms=end_ms)
