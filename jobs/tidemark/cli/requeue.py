"""`tidemark requeue`: send records from quarantine, or late ones, to their topics again, each of them once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import polars as pl
from confluent_kafka import KafkaError, Message, Producer

from tidemark.cli import options
from tidemark.cli.local import running_broker
from tidemark.cli.output import say_inert
from tidemark.cli.reopen import reopen
from tidemark.cli.requeue_late import late_rows, with_bytes
from tidemark.cli.set_aside import in_time, requeued, with_decided_at
from tidemark.clock import Clock, wall_clock_ms
from tidemark.delta import append, create
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.kernels.arrivals import KILLS_DRIVERS
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.report.batch_job import add_bootstrap, told, topology, writing
from tidemark.spec.connections import DEFAULT, LOCAL, Cluster, addressed
from tidemark.spec.layout import Layout, usable
from tidemark.spec.tables import QUARANTINE, REQUEUED
from tidemark.spec.topology import Topology

HEADER = "tidemark-requeued"
"""`<partition>/<offset>` of the record that was sent again."""
PLACE = ("topic", "partition", "offset")
SENT_WITHIN_S = 60.0
AT_ONCE = 1_000
ByCluster = Callable[[pl.DataFrame], list[tuple[Cluster, pl.DataFrame]]]
"""Deals rows out by the Kafka cluster that they go to."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("topology", type=told(usable))
    late = "what was found late, and not what is in quarantine; all that reads the topic reads it again"
    parser.add_argument("--late", action="store_true", help=late)
    closed = "of --late: have closed windows with reopen_for take them in again, and send nothing to a topic"
    parser.add_argument("--reopen", action="store_true", help=closed)
    parser.add_argument("--operator", help="of --reopen: only what this aggregate found late")
    parser.add_argument("--source", help="only what this source operator read")
    parser.add_argument("--reason", help="only what was set aside for this reason, such as malformed_json")
    parser.add_argument("--from", dest="first", metavar="T", help="only what was set aside at or after this instant")
    parser.add_argument("--to", dest="until", metavar="T", help="and before this one, both as in 2026-01-31T12:00Z")
    add_bootstrap(parser, LOCAL)
    parser.add_argument("--dry-run", action="store_true", help="say how many records it would send")


def command(asked: argparse.Namespace) -> int:
    """Send them, and say how many."""
    say_inert(requeue(asked, options.warehouse(asked), running_broker(asked.home)))
    return 0


def requeue(
    asked: argparse.Namespace,
    warehouse: Path,
    local: str | None,
    clock: Clock = wall_clock_ms,
    described: Callable[[str], Topology] = topology,
) -> str:
    """Send what was *asked* for and has not been sent; the answer says how much that was.

    Which source late records are from, and which Kafka cluster a source reads, is *described* by the topology's file.
    The cluster `default` is the broker at *local* where nothing else has its address.

    Records are sent AT_ONCE at a time and then written down as sent: who is interrupted may send as many twice. Two of
    these must not run at once. A record that is unusable still comes to quarantine with an offset of its own, and may
    be sent again from there.
    """
    layout = Layout(warehouse)
    _refuse_unfitting(asked)
    with writing(layout, asked.topology):
        if asked.reopen:
            return reopen(asked, described(asked.topology), layout, clock)
        rows = late_rows(described(asked.topology), layout) if asked.late else _quarantined(layout, asked.topology)
        return _requeued(asked, _chosen(rows, asked), layout, partial(_by_cluster, asked, described, local), clock)


def _refuse_unfitting(asked: argparse.Namespace) -> None:
    """Raise InvalidArgument for options that say nothing beside each other."""
    if asked.reopen and not asked.late:
        msg = "--reopen: only late records can be taken in again; write --late --reopen"
        raise InvalidArgument(msg)
    if asked.operator and not asked.reopen:
        msg = f"--operator {asked.operator}: only --reopen goes by operators; give it too, or choose by --source"
        raise InvalidArgument(msg)
    if asked.reopen and (asked.source or asked.reason):
        msg = "--reopen: takes no --source and no --reason; choose by --operator, --from and --to"
        raise InvalidArgument(msg)


def _requeued(
    asked: argparse.Namespace, rows: pl.DataFrame, layout: Layout, by_cluster: ByCluster, clock: Clock
) -> str:
    path = layout.report_table(asked.topology, REQUEUED.name)
    waiting = rows.join(_sent(path), on=list(PLACE), how="anti").sort(PLACE)
    if asked.dry_run:
        return f"{waiting.height} of {rows.height} records would be sent again"
    parts, sent = by_cluster(waiting), 0
    create(path, arrow_schema(REQUEUED), description=REQUEUED.row)
    for cluster, of_cluster in parts:
        there = with_bytes(of_cluster, cluster) if asked.late else of_cluster
        for part in there.iter_slices(AT_ONCE):
            taken, failed = _send(part, cluster)
            done = taken.select("sub_topology", "source", *PLACE, "reason")
            append(path, rows_of(REQUEUED, done, topology=asked.topology, requeued_at=clock()))
            if failed:
                seen = f"{len(failed)} of {part.height} records were not taken: {failed[0]}"
                msg = f"{cluster.bootstrap}: {seen}; run this again"
                raise TidemarkError(msg)
        sent += there.height
    gone = waiting.height - sent
    lost = f"; {gone} are no longer in their topics" if gone else ""
    return f"{sent} of {rows.height} records were sent again{lost}"


def _by_cluster(
    asked: argparse.Namespace, described: Callable[[str], Topology], local: str | None, rows: pl.DataFrame
) -> list[tuple[Cluster, pl.DataFrame]]:
    """*rows* by the cluster that their sources read, as the topology is *described*; without its file by `default`."""
    of: Topology | None = None
    with suppress(InvalidArgument):  # its file may be gone; quarantine has what else is needed
        of = described(asked.topology)
    operators, known = (of.operators, of.clusters) if of else ({}, {})
    names = {name: getattr(operators.get(name), "kafka", DEFAULT) for name in rows["source"].unique()}
    clusters = addressed({*names.values()}, known, asked.bootstrap, os.environ, otherwise=local)
    of_rows = rows["source"].replace_strict(names, return_dtype=pl.String)
    return [(clusters[name], rows.filter(of_rows == name)) for name in sorted({*names.values()})]


def _sent(path: Path) -> pl.DataFrame:
    """The places of the records that were sent again before."""
    return requeued(path).select(PLACE).collect()


def _quarantined(layout: Layout, name: str) -> pl.DataFrame:
    """The records in quarantine of the topology *name*."""
    pattern = layout.stream_table(name, "*", QUARANTINE.name).relative_to(layout.warehouse)
    paths = sorted(layout.warehouse.glob(str(pattern)))
    if not paths:
        msg = f"{layout.warehouse} has no quarantine of a topology {name!r}; check the name, and the warehouse"
        raise InvalidArgument(msg)
    return pl.concat([with_decided_at(path) for path in paths])


def _chosen(rows: pl.DataFrame, asked: argparse.Namespace) -> pl.DataFrame:
    """The records of topics among *rows* that were *asked* for, once each."""
    rows = rows.filter(pl.col("topic").is_not_null(), pl.col("reason").ne_missing(KILLS_DRIVERS))
    for column, wanted in (("source", asked.source), ("reason", asked.reason)):
        if wanted is not None:
            known = sorted(rows[column].drop_nulls().unique())
            if wanted not in known:
                msg = f"no record was set aside with the {column} {wanted!r}; known: {', '.join(known) or 'none'}"
                raise InvalidArgument(msg)
            rows = rows.filter(pl.col(column) == wanted)
    return in_time(rows, asked).unique(PLACE, keep="first", maintain_order=True)


def _send(rows: pl.DataFrame, cluster: Cluster) -> tuple[pl.DataFrame, list[str]]:
    """Send key and value of *rows* to where they came from: those that the broker took, and what it said of others."""
    producer = Producer({**cluster.client, "enable.idempotence": True, "message.max.bytes": 100_000_000})
    taken: list[int] = []
    failed: list[str] = []

    def delivered(row: int, error: KafkaError | None, _: Message) -> None:
        if error is None:
            taken.append(row)
        else:
            failed.append(error.str())

    for row, (topic, partition, offset, key, value) in enumerate(rows.select(*PLACE, "key", "value").iter_rows()):
        headers: list[tuple[str, str | bytes | None]] = [(HEADER, f"{partition}/{offset}")]
        producer.produce(topic, value, key, partition, headers=headers, on_delivery=partial(delivered, row))
        producer.poll(0)
    unsent = producer.flush(SENT_WITHIN_S)
    return rows[sorted(taken)], failed or ["the broker did not answer"] * unsent
