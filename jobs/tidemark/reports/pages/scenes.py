"""Reads a topology at an instant, for what asks SQL, too."""

from __future__ import annotations

from functools import cache

from tidemark.facts.answers import Tables
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.why.evidence.snapshot import Scene
from tidemark.why.walk import scene

NEWEST_BATCHES = """
    SELECT sub_topology, max(batch_id) AS batch_id FROM batches
    WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000) GROUP BY sub_topology
"""


def scene_of(tables: Tables, layout: Layout, topology: Topology, *, at_ms: int) -> Scene:
    """Returns the scene of *topology* at *at_ms*, with the batches that *tables* have.

    A driver goes on while it is read. A batch that finished before the instant may be written after it, so that of two
    readers, one after the other, only the second would see it.
    """

    @cache
    def newest() -> dict[str, int]:
        return {
            row["sub_topology"]: row["batch_id"] for row in tables.ask(NEWEST_BATCHES, [topology.name, at_ms]).objects
        }

    return scene(topology, layout, at_ms, last=lambda stream: newest().get(stream, -1))
