"""The critical path of streaming windows, with the addends of its sum, and whose the windows' age was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidemark.account.warehouse import AccountTables
from tidemark.facts.answers import Row, Tables, answers_over
from tidemark.facts.path_facts import windows_with_paths
from tidemark.facts.topology_changes import topology_changes, with_compared
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import known_slas
from tidemark.model.topology import Topology
from tidemark.reports.pages.topology_state import TopologyState, explained_slas
from tidemark.reports.paths.live_path import current_path, known_ms
from tidemark.reports.promises import promises


def path_document(
    warehouse: Path, topology: Topology, *, now_ms: int, at_ms: int | None = None, last: int | None = None
) -> Row:
    """Returns `windows` with their paths, and what changed in their time.

    Args:
        warehouse: the warehouse.
        topology: whose windows they are.
        now_ms: epoch ms; what was finished later is not known.
        at_ms: record time (epoch ms) in the window to show, as of the last report.
        last: number of newest windows, as of the last report. Without this and *at_ms* it is the oldest window that an
            operator has not finished, or else the newest one; then it is told why SLAs are broken now, too.

    Raises:
        InvalidArgument: no such window is closed.
    """
    tables, layout = answers_over(warehouse, topology.name), Layout(warehouse)
    if at_ms is not None or last is not None:
        windows = windows_with_paths(tables, topology.name, at_ms=at_ms, last=last or 1)
        return {"topology": topology.name, "windows": windows, "changes": _changes(tables, topology, windows)}
    of = AccountTables(layout, topology, tables.stored)
    window = current_path(tables, of, now_ms, promises(known_slas(topology).specs))
    state = TopologyState(tables.stored, layout, topology, at_ms=now_ms)
    windows = [window] if window else windows_with_paths(tables, topology.name)
    return {
        "topology": topology.name,
        "windows": windows,
        "changes": _changes(tables, topology, windows),
        "broken_slas": explained_slas(state.topology.name, state.slas),
    }


def _changes(tables: Tables, topology: Topology, windows: Sequence[Row]) -> list[Row]:
    """Returns the changes of *topology* from the time with which *windows* are compared until they were finished."""
    finished_ms = [*map(known_ms, windows)]
    over = with_compared(Interval(min(finished_ms), max(finished_ms) + 1))
    return [change.row for change in topology_changes(tables, topology.name, over)]
