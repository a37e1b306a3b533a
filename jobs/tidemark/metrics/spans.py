"""Pushes a span for each batch, by OTLP over HTTP.

Spans follow from the rows of `batches`. So no driver waits for a collector, and a span that is pushed twice is the
same. A span links to those whose records the batch read: for topics by headers `traceparent`, for hops by the batches
that `partition_batches` has as offsets.
Clock: the drivers'.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

import polars as pl
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

from tidemark.clock import Clock, wall_clock_ms
from tidemark.facts.fact_tables import stored_in
from tidemark.facts.kept_rows import TableRows
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES, PARTITION_BATCHES
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.tracing import SpanId, span_in, span_of_batch

log = logging.getLogger(__name__)
RECENT_MS = 900_000
"""The first push has the batches of so many ms."""
MOST_LINKS = 128
"""Most links of a span, the newest ones; it is OpenTelemetry's default."""
MOST_SPANS = 500
"""Most spans of a request: collectors refuse large ones."""
NS_OF_MS = 1_000_000


class SpanPusher:
    """Pushes the spans of *topologies* with `traces` to *url*, for example http://collector:4318/v1/traces.

    The environment variables of OpenTelemetry's exporter apply. *clock* returns epoch ms.
    """

    def __init__(
        self, layout: Layout, topologies: Callable[[], Iterable[Topology]], url: str, *, clock: Clock = wall_clock_ms
    ) -> None:
        self._layout, self._topologies, self._otlp = layout, topologies, OTLPSpanExporter(endpoint=url)
        self._rows, self._since_ms = TableRows(), clock() - RECENT_MS
        self._pushed: dict[tuple[str, str], tuple[datetime, int]] = {}

    def push(self) -> bool:
        """Pushes the spans of new batches; returns False if any were refused.

        Refused spans, and later ones of their stream, wait for the next push.
        """
        are_taken = True
        for topology in self._topologies():
            for sub in topology.sub_topologies if any(end.traces for end in topology.kafka_ends) else ():
                try:
                    are_taken &= self._push_stream(topology, sub)
                except Exception:  # one stream in trouble must not hold the others
                    log.exception("the spans of %s/%s cannot be pushed", topology.name, sub.name)
        return are_taken

    def _push_stream(self, topology: Topology, sub: SubTopology) -> bool:
        stream = topology.name, sub.name
        batches = self._batches(*stream)
        if stream in self._pushed:
            # A stream that was reset counts its batches from 0 again, at later decision times.
            decided_at, number = self._pushed[stream]
            is_later, is_equal = pl.col("decided_at") > decided_at, pl.col("decided_at") == decided_at
            batches = batches.filter(is_later | (is_equal & (pl.col("batch_id") > number)))
        if batches.is_empty():  # spans of its upstreams, up to an hour of rows, are not needed
            return True
        links = self._links_to_hops(topology, sub, batches)
        for piece in batches.iter_slices(MOST_SPANS):
            if self._otlp.export([*_spans(topology, sub, piece, links)]) is not SpanExportResult.SUCCESS:
                return False
            self._pushed[stream] = piece["decided_at"][-1], piece["batch_id"][-1]
        return True

    def _batches(self, topology: str, sub: str) -> pl.DataFrame:
        rows = self._rows.snapshot().rows(BATCHES, self._layout.stream_table(topology, sub, BATCHES.name))
        return rows.filter(pl.col("finished_at").dt.epoch("ms") >= self._since_ms).sort("decided_at", "batch_id")

    def _links_to_hops(self, topology: Topology, sub: SubTopology, batches: pl.DataFrame) -> Mapping[int, list[SpanId]]:
        """Returns the spans of the upstreams' batches that each of *batches* of *sub* read."""
        links: dict[int, list[SpanId]] = defaultdict(list)
        if not sub.hops_read:
            return links
        # The rows of the last minute are only in the journal.
        rows = stored_in(self._layout.stream(topology.name, sub.name))(PARTITION_BATCHES, PARTITION_BATCHES.name)
        among = pl.col("batch_id").is_between(batches["batch_id"].min(), batches["batch_id"].max())
        reads = rows.filter(among).select("batch_id", "source", "from_offset", "until_offset").collect()
        for hop in sub.hops_read:
            spans = self._by_id(topology.name, hop.upstream)
            for batch_id, _, first, until in reads.filter(pl.col("source") == hop.name).drop_nulls().iter_rows():
                # A first read may span far more batches than are known, so the loop is over the known ones.
                links[batch_id] += (span for number, span in spans.items() if first <= number < until)
        return links

    def _by_id(self, topology: str, sub: str) -> dict[int, SpanId]:
        rows = self._batches(topology, sub).with_columns(pl.col("decided_at").dt.epoch("ms"))
        return {row["batch_id"]: _span(row) for row in rows.to_dicts()}


def _spans(
    topology: Topology, sub: SubTopology, batches: pl.DataFrame, links_to_hops: Mapping[int, list[SpanId]]
) -> Iterator[ReadableSpan]:
    resource, scope = Resource.create({"service.name": "tidemark"}), InstrumentationScope("tidemark")
    for row in batches.with_columns(pl.col("started_at", "finished_at", "decided_at").dt.epoch("ms")).to_dicts():
        read = chain(map(span_in, row["read_traces"] or ()), links_to_hops.get(row["batch_id"], ()))
        links = [Link(_context(span, is_remote=True)) for span in read if span is not None]
        yield ReadableSpan(
            name=f"{topology.name}/{sub.name}",
            context=_context(_span(row), is_remote=False),
            resource=resource,
            attributes={
                "tidemark.topology": topology.name,
                "tidemark.sub_topology": sub.name,
                "tidemark.batch_id": row["batch_id"],
                "tidemark.epoch": row["epoch"],
                "tidemark.records_in": row["records_in"],
            },
            links=links[-MOST_LINKS:],
            kind=SpanKind.CONSUMER,
            start_time=row["started_at"] * NS_OF_MS,
            end_time=row["finished_at"] * NS_OF_MS,
            instrumentation_scope=scope,
        )


def _span(row: Mapping[str, Any]) -> SpanId:
    """Returns the span of a row of `batches` with the decision time in epoch ms."""
    writer = f"{row['topology']}/{row['sub_topology']}"
    return span_of_batch(writer, row["epoch"], row["batch_id"], row["decided_at"])


def _context(span: SpanId, *, is_remote: bool) -> SpanContext:
    return SpanContext(span.trace, span.span, is_remote, TraceFlags(TraceFlags.SAMPLED))
