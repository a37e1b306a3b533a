"""Reads the facts about the drivers of a topology, for callers that need no other facts."""

from __future__ import annotations

from tidemark.facts.fact_tables import RECENT_MS, FactTables, Stored, stored_in
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology


def drivers_of(
    layout: Layout, topology: Topology, *, at_ms: int, stored: Stored | None = None
) -> dict[str, HeartbeatFacts]:
    """Returns the facts about the drivers of each stream at *at_ms* (epoch ms), by the name of the sub-topology.

    *stored* are tables that were opened already; None opens the newest versions.
    """
    opened = stored or Stored()
    drivers: dict[str, HeartbeatFacts] = {}
    for sub in topology.sub_topologies:
        home = layout.stream(topology.name, sub.name)
        tables = FactTables(stored_in(home, opened), at_ms, recent_ms=RECENT_MS)
        drivers[sub.name] = HeartbeatFacts(tables, home, layout.control(topology.name, sub.name), topology.trigger_ms)
    return drivers
