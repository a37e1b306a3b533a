"""Collects facts about tables with current rows, from the merges that wrote their files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from tidemark.facts.measures.fact_kinds import Fact, FactKind
from tidemark.facts.measures.newest_times import newest_ms
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_keys import ResultPlace
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.storage.delta.merges import Merge, merges
from tidemark.storage.warehouse import stream_tables


def merged_facts(
    layout: Layout, topology: Topology, specs: Iterable[SlaSpec], readable: Container[Path], *, at_ms: int
) -> list[Fact]:
    """Returns the facts for the SLAs that are measured at the files of a table.

    Args:
        layout: where the tables of the topology are.
        topology: the topology that promises the SLAs.
        specs: SLAs; those that are measured elsewhere are skipped.
        readable: paths of the tables that can be read; others are skipped.
        at_ms: the instant of the check, epoch ms.
    """
    facts: list[Fact] = []
    for spec in specs:
        if spec.place is not ResultPlace.TABLE:
            continue
        for path in _tables(layout, topology, spec):
            if path in readable:
                facts += _facts(path, spec, at_ms)
    return facts


def _facts(path: Path, spec: SlaSpec, at_ms: int) -> Iterator[Fact]:
    shown = [merge for merge in merges(path) if merge.shown_at_ms <= at_ms]
    if spec.measure is STALENESS:
        yield Fact(what=FactKind.NEWEST_MERGED, subject=spec.subject, at_ms=_newest_ms(path, shown))
        return
    counts: Counter[int] = Counter()
    (over_ms,) = spec.counted_ms(at_ms)
    for merge in shown:
        if merge.shown_at_ms >= at_ms - over_ms:
            counts.update(merge.latencies)
    for bucket, n in sorted(counts.items()):
        yield Fact(what=FactKind.LATENCY_MERGED, subject=spec.subject, over_ms=over_ms, bucket=bucket, n=n)


def _tables(layout: Layout, topology: Topology, spec: SlaSpec) -> list[Path]:
    if spec.measure is STALENESS:
        return stream_tables(layout, topology.name, spec.subject)
    sink = topology.operators[spec.subject]
    sub = topology.sub_topology_of(sink.name)
    paths = stream_tables(layout, topology.name, str(sink.result_table))
    return [path for path in paths if path.parent.name == sub.name]


def _newest_ms(path: Path, shown: list[Merge]) -> int | None:
    """Returns the newest record time in the table at *path* after its merges *shown*, epoch ms; None without a row."""
    # Rows of later merges were not visible then.
    before_batch = max(merge.batch_id for merge in shown) + 1 if shown else None
    rows_ms = newest_ms(path, before_batch=before_batch) if shown else None
    merged_ms = [merge.newest_ms for merge in shown if merge.newest_ms is not None]
    return max([*merged_ms, *([] if rows_ms is None else [rows_ms])], default=None)
