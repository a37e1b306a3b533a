"""Finds open incidents of SLAs, for `tidemark why`.

They are findings about an SLA's subject. No check uses them: an incident is no cause of an incident.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidemark.facts.answers import Row, Tables
from tidemark.facts.incidents import open_incidents, state_in_words
from tidemark.model.topology import Topology
from tidemark.selection import names_in
from tidemark.semantics.incidents import BROKEN, CHECKS
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.tables import worst_text
from tidemark.why.evidence.findings import INCIDENT_OPEN, WhyFinding


def sla_findings(
    tables: Tables, topology: Topology, *, at_ms: int, operator: str | None = None
) -> Iterator[WhyFinding]:
    """Yields a finding for each open incident.

    The state of an incident is that of the newest check, if that was made by *at_ms*.

    Args:
        tables: of the warehouse.
        topology: the topology.
        at_ms: the instant, epoch ms.
        operator: only findings about it and its table; None: all, also those about the whole topology.
    """
    places = _Places(topology, operator)
    for row in open_incidents(tables, topology.name, at_ms=at_ms):
        if place := places.of(row["subject"] or row["sla"]):
            yield _open_incident(row, topology, place)


def _open_incident(row: Row, topology: Topology, place: Mapping[str, Any]) -> WhyFinding:
    state, history = f"SLA {row['sla']} is broken", f"`tidemark incidents {topology.name} --history {row['incident']}`"
    remedy = f"{history} shows its changes, and who was told"
    if topology.is_watch and row["sla"] != CHECKS:  # that checks are missed is about no table
        remedy = f"`tidemark why {row['subject']}` explains it, and {remedy}"
    # Another check may have been the newest at the instant, and that checks are missed no check finds.
    is_present = row["now"] is not None and row["checked_at"] is not None
    if is_present:
        worst = worst_text(row)
        why = f": {row['blocked_by']}" if row["blocked_by"] and row["now"] in BROKEN else ""
        state = f"SLA {row['sla']} {state_in_words(row['now'])}{why}" + (f"; the worst was {worst}" if worst else "")
    if row["is_found"]:
        # No crossing of its limit is known, so that its cause may be older than the check that saw it.
        state += "; a check found it broken then, and since when is not known"
    by = f"; {row['acknowledged_by']} acknowledged it" if row["acknowledged_by"] else ""
    wait = "no action is needed if it holds; " if is_present and row["verdict"] == Verdict.PASS else ""
    since_ms = round(row["since"].timestamp() * 1_000)
    return WhyFinding(cause=INCIDENT_OPEN, **place, since_ms=since_ms, seen=f"{state}{by}", remedy=f"{wait}{remedy}")


class _Places:
    """Finds the operator that a subject of SLAs is about."""

    def __init__(self, topology: Topology, operator: str | None) -> None:
        self._topology, self._operator = topology, operator

    def of(self, subject: str) -> dict[str, Any]:
        """Returns `sub_topology` and `operator`; empty for another operator."""
        operators, subs = self._topology.operators, self._topology.sub_topologies
        sinks = (o.name for o in operators.values() if o.result_table == subject)
        name = subject if subject in operators else next(sinks, None)
        if name is not None:
            is_other = self._operator not in {None, name}
            return {} if is_other else {"sub_topology": self._topology.sub_topology_of(name).name, "operator": name}
        if self._operator is not None:
            return {}
        # A table of the whole topology, or a stream.
        return {"sub_topology": subject if subject in names_in(subs) else None, "operator": subject}
