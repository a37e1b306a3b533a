"""Runs the operators of a topology over some records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import polars as pl

from tidemark.kernels.records.arrivals import hop_updates
from tidemark.selection import index_by_name
from tidemark.stream.journal.batch import Moment
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.state.memory import Moves
from tidemark.trace.outcomes import RecordPosition
from tidemark.trace.record import Tracer

_END_MS = 253_402_300_799_000
_AT_THE_END = Moment(
    was_watermark_ms=None, watermark_ms=_END_MS, held_by=None, was_decided_at_ms=0, decided_at_ms=_END_MS
)
"""The moment of a batch in the year 9999.

All windows close, all intervals end, and nothing is late.
"""


def offsets_by_partition(places: Iterable[RecordPosition]) -> dict[tuple[str, int], list[int]]:
    """Returns the offsets of *places* by source and partition."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for source, partition, offset in sorted({*places}):
        offsets.setdefault((source, partition), []).append(offset)
    return offsets


def replayed(
    tracer: Tracer, places: Collection[RecordPosition], operator: str
) -> tuple[pl.DataFrame, Mapping[str, int]]:
    """Returns the output of *operator* after the records at *places* alone.

    The records come in one batch, without earlier state. Also returns, by source, how many could not be read again.
    """
    topology = tracer.topology
    steps = Steps(topology, Reference(tracer.layout.warehouse), schemas=tracer.steps.schemas)
    records: dict[str, list[pl.DataFrame]] = {}
    missing: Counter[str] = Counter()
    for (source, partition), offsets in offsets_by_partition(places).items():
        rows = tracer.read_again(tracer.source(source), partition, offsets, _END_MS)
        if rows is not None:
            records.setdefault(source, []).append(rows.passed)
        missing[source] += len(offsets) - (rows.passed.height if rows else 0)
    outputs: dict[str, pl.DataFrame] = {}
    for sub in topology.sub_topologies:
        moves, hops = Moves(), index_by_name(sub.hops_read)
        for each in sub.operators:
            if each.hands_out and not each.hop_table:
                continue  # a sink hands out what it reads
            schema = dict(steps.schemas[each.name])
            if each.name in hops:
                hop = hops[each.name]
                outputs[each.name] = steps.hop_records(hop, hop_updates(outputs[hop.repartition]))
            elif each.is_source:
                outputs[each.name] = pl.concat([pl.DataFrame(schema=schema), *records.get(each.name, [])])
            else:
                run = steps.run(each, [outputs[name] for name in each.inputs], moves, _AT_THE_END)
                outputs[each.name] = run.output
    return outputs[operator], +missing  # sources of which none is missing are left out
