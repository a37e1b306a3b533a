"""Measures what other tools cost: events of lineage, spans, schema watch.

Each is CPU of this process. The receivers are processes of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import polars as pl
from bench.ratios import Figure

from support.busy_warehouse import FLIGHTS, busy
from support.topologies import source, topology_of
from tidemark.cli.export.lineage_runs import RunReporter
from tidemark.clock import wall_clock_ms
from tidemark.kernels.formats.sampled_fields import field_sample, sampled_types
from tidemark.metrics.spans import SpanPusher
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES
from tidemark.model.topology import load, parse
from tidemark.semantics.schema_watch import SourceFields, step, watch
from tidemark.storage.delta.tables import scan

RECORDS, PARTITIONS, FIELDS = 20_000, 4, 20
RECEIVER = """
import sys
from support.otlp_receiver import OtlpReceiver
with OtlpReceiver() as receiver:
    print(receiver.traces_url, flush=True)
    sys.stdin.read()
"""


def figures(runs: int) -> Iterator[Figure]:
    """Measures each in turn; a first turn warms up."""
    with TemporaryDirectory() as folder, _receiver() as url:
        now_ms = wall_clock_ms()
        layout = Layout(busy(Path(folder), now_ms))
        events, reads = _lineage(layout, now_ms, runs + 1)
        yield Figure("an event of a run of `flights`", events[1:], unit="ms CPU")
        yield Figure("  a look without new events, of both streams", reads[1:], unit="ms CPU")
        spans, pushes = _spans(layout, now_ms, url, runs + 1)
        yield Figure("a span of a batch, of a push of all", spans[1:], unit="ms CPU")
        yield Figure("  a push without new batches, of both streams", pushes[1:], unit="ms CPU")
    yield Figure(
        f"schema watch of a batch, {PARTITIONS} partitions, {FIELDS} fields",
        _watch(runs),
        2.5,
        at_most=True,
        unit="ms CPU",
    )


def _lineage(layout: Layout, now_ms: int, runs: int) -> tuple[list[float], list[float]]:
    topology = load(FLIGHTS)
    of_event, of_look = [], []
    for _ in range(runs):
        sent: list[object] = []
        for file in layout.warehouse.rglob("lineage.json"):
            file.unlink()
        # Each stream has a START, and `carriers` an end.
        reporter = RunReporter(layout, lambda: [topology], sent.append, print, clock=lambda: now_ms)
        of_event.append(_cpu_ms(reporter.report) / len(sent))
        of_look.append(_cpu_ms(reporter.report))
    return of_event, of_look


def _spans(layout: Layout, now_ms: int, url: str, runs: int) -> tuple[list[float], list[float]]:
    topology = load(FLIGHTS)
    # Spans are of topologies with traces.
    ends = {o.name: replace(o, traces=True) for o in topology.kafka_ends}
    subs = [
        replace(sub, operators=tuple(ends.get(o.name, o) for o in sub.operators)) for sub in topology.sub_topologies
    ]
    traced = replace(topology, sub_topologies=tuple(subs))
    batches = sum(scan(layout.stream_table("flights", sub.name, BATCHES.name)).collect().height for sub in subs)
    of_span, of_push = [], []
    for _ in range(runs):
        pusher = SpanPusher(layout, lambda: [traced], url, clock=lambda: now_ms - 600_000)
        of_span.append(_cpu_ms(pusher.push) / batches)
        of_push.append(_cpu_ms(pusher.push))
    return of_span, of_push


def _watch(runs: int) -> list[float]:
    names = [f"f{number}" for number in range(FIELDS - 1)]
    toml = topology_of(events=source(", ".join(f"{name} string" for name in names)))
    (events,) = parse(tomllib.loads(toml), file="bench.toml").outside_sources
    assert isinstance(events, Source)
    record = json.dumps({**dict.fromkeys(names, "value"), "event_time": 1}).encode()
    parts = pl.Series([n * PARTITIONS // RECORDS for n in range(RECORDS)], dtype=pl.Int32)
    raw = pl.DataFrame({"value": [record] * RECORDS, "partition": parts})
    declared, was = frozenset(map(step, events.types_of_values)), SourceFields()

    def batch() -> None:
        watch(was, field_sample(sampled_types(raw, events, {})), declared, now_ms=0)

    return [_cpu_ms(batch) for _ in range(runs + 1)][1:]


def _cpu_ms(work: Callable[[], object]) -> float:
    begun_s = process_time()
    work()
    return (process_time() - begun_s) * 1_000


@contextmanager
def _receiver() -> Iterator[str]:
    """Runs a receiver of OTLP; its address."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", RECEIVER], **pipes) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdin is not None
        yield receiver.stdout.readline().strip()
        receiver.stdin.close()
