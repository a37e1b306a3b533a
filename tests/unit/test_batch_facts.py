"""Facts about batches with missing values."""

from __future__ import annotations

import tomllib

import numpy as np
import polars as pl
from tidemark.reports.paths.ages.batch_facts import BatchFacts

from support.topologies import sink, source, table, topology_of
from tidemark.facts.topology_tables import BatchRows
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import BATCHES, HEARTBEATS, LATENCY_MINUTES, PARTITION_BATCHES
from tidemark.model.topology import parse

TOML = topology_of(events=source(), newest=table(columns=["v"]), board=sink("newest", table="board"))


def test_a_partition_of_unknown_activity_was_not_idle():
    topology = parse(tomllib.loads(TOML), file="play.toml")
    (sub,), (events,) = topology.sub_topologies, topology.sub_topologies[0].outside_sources
    of_partition = {"topology": "play", "sub_topology": sub.name, "source": "events", "partition": 0}
    marks = [
        {**of_partition, "batch_id": batch_id, "watermark": utc(ms), "activity": activity, "decided_at": utc(ms)}
        for batch_id, ms, activity in [(0, 1_000, None), (1, 6_000, "active")]
    ]
    batches, beats, latencies = (pl.DataFrame(rows_of(each, [])) for each in (BATCHES, HEARTBEATS, LATENCY_MINUTES))
    rows = BatchRows(batches, beats, pl.DataFrame(rows_of(PARTITION_BATCHES, marks)), latencies)
    blockers = BatchFacts(rows, trigger_ms=1_000).blockers(sub, events, np.array([1]), np.array([5_000.0]))
    # The end of the window and the bound of 1 s.
    assert (blockers.names[0], blockers.ready_ms.tolist()) == ("events partition 0", [6_000.0])
