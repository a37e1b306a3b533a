"""The operators of a topology and their state, and its critical path.

The document is like that of Apex's get-app-info and list-operators.
"""

from __future__ import annotations

from pathlib import Path

from tidemark.account.warehouse import AccountTables
from tidemark.facts.answers import Row, answers_over
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.reports.pages.topology_facts import topology_facts
from tidemark.reports.pages.topology_state import TopologyState, explained_slas
from tidemark.reports.paths.live_path import current_path, known_ms
from tidemark.reports.promises import Promises
from tidemark.selection import in_order_of

OF_PATH = ("window_end", "leaf", "age_ms", "latency_ms", "state", "path_text")
"""The fields of a window that the document has."""


def topology_document(warehouse: Path, topology: Topology, *, at_ms: int) -> Row:
    """Returns the state of a topology's operators at *at_ms* (epoch ms), and its critical path."""
    tables = answers_over(warehouse, topology.name)
    state = TopologyState(tables.stored, Layout(warehouse), topology, at_ms=at_ms)
    account = AccountTables(Layout(warehouse), topology, tables.stored)
    window = current_path(tables, account, at_ms, Promises(), has_parts=False)
    path: Row = dict.fromkeys((*OF_PATH, "finished_ago_ms")) | {"critical_path": []}
    if window is not None:
        path = {**in_order_of(OF_PATH, window), "finished_ago_ms": at_ms - known_ms(window)}
        path["critical_path"] = window["path"]
    broken = explained_slas(topology.name, state.slas)
    return {**topology_facts(tables, state.scene), **path, "broken_slas": broken}
