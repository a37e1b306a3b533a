"""`tidemark requeue`: sends records to their topics again, each once.

They are quarantined records, or late ones.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import polars as pl
from confluent_kafka import KafkaError, Message, Producer

from tidemark.cli.repair.reopen import MOST_LISTED, reopen_plan
from tidemark.cli.repair.requeue_late import late_rows, with_bytes
from tidemark.cli.repair.set_aside import IN_KAFKA, dead_letters, requeued_rows, rows_in_span, with_kafka_partitions
from tidemark.cli.shared.local import running_broker
from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.plan import RepairPlan, add_author, add_plan, carry_out
from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidArgument, TidemarkError, argument_type
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.kernels.records.arrivals import ACCEPTED_LOSS, FAILS_DRIVERS, KILLS_DRIVERS
from tidemark.model.project.connections import DEFAULT, LOCAL, Cluster, addressed_clusters
from tidemark.model.project.layout import Layout, usable
from tidemark.model.tables.catalog import DEAD_LETTERS, REQUEUED
from tidemark.model.topology import Topology
from tidemark.reports.batch_job import add_bootstrap, given_secrets, report_lock, topology
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.storage.delta.tables import append, create
from tidemark.storage.warehouse import stream_tables
from tidemark.stream.kafka.access import Refusals

HEADER = "tidemark-requeued"
"""Header with `<partition>/<offset>` of the record that was sent again."""
PLACE = ("topic", "partition", "offset")
SENT_WITHIN_S = 60.0
AT_ONCE = 1_000
ByCluster = Callable[[pl.DataFrame], list[tuple[Cluster, pl.DataFrame]]]
"""Groups rows by the Kafka cluster that they go to."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("topology", type=argument_type(usable), help="name of the topology")
    late = "send late records instead of quarantined ones; all readers of the topic read them again"
    parser.add_argument("--late", action="store_true", help=late)
    closed = "with --late: send late records only to closed windows with `reopen_for`, and to no topic"
    parser.add_argument("--reopen", action="store_true", help=closed)
    parser.add_argument("--operator", help="with --reopen: only late records of this aggregate")
    parser.add_argument("--source", help="only records of this source operator")
    parser.add_argument("--reason", help="only records set aside for this reason, such as malformed_json")
    parser.add_argument("--from", dest="first", metavar="T", help="only records set aside at or after this instant")
    parser.add_argument(
        "--to",
        dest="until",
        metavar="T",
        help="only records set aside before this instant; for example 2026-01-31T12:00Z",
    )
    add_bootstrap(parser, LOCAL)
    add_author(parser)
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Sends the records and prints their number; with `--dry-run` says which it would send."""
    warehouse = existing_warehouse(options)
    planned = partial(requeue_plan, options, warehouse, running_broker(options.home))
    say_inert(carry_out(planned, options, Layout(warehouse), options.topology, note=options.note))
    return 0


def requeue_plan(
    options: argparse.Namespace,
    warehouse: Path,
    local: str | None,
    clock: Clock = wall_clock_ms,
    described: Callable[[str], Topology] = topology,
) -> RepairPlan:
    """Returns the plan to send records again that were not sent before.

    A record that is still unusable is quarantined again with its new offset, and may be sent again from there.

    Args:
        options: the command line.
        warehouse: the warehouse.
        local: the address of the broker for the cluster `default`, if nothing else gives one.
        clock: epoch ms UTC.
        described: reads a topology's file, which has the sources of late records and their Kafka clusters.
    """
    _refuse_unfitting(options)
    layout = Layout(warehouse)
    if options.reopen:
        return reopen_plan(options, described(options.topology), layout, clock)
    if options.late:
        rows = late_rows(described(options.topology), layout)
    else:
        rows = _quarantined_records(layout, options.topology)
    chosen = with_kafka_partitions(_chosen(rows, options), layout, options.topology)
    sent = requeued_rows(layout, options.topology)
    waiting = chosen.join(sent, on=list(PLACE), how="anti").sort(PLACE)

    def apply() -> str:
        by_cluster = partial(_group_by_cluster, options, described, local)
        with report_lock(layout, options.topology):
            return _requeued(options, waiting, chosen.height, layout, by_cluster, clock)

    return RepairPlan(
        topology=options.topology,
        sub_topology=None,
        effect="\n".join(_effect(waiting, chosen.height, is_late=options.late)),
        state=waiting.select("source", "reason", *PLACE).rows(),
        apply=apply,
        is_needed=waiting.height > 0,
    )


def _effect(waiting: pl.DataFrame, n: int, *, is_late: bool) -> Iterator[str]:
    """Yields lines on the records *waiting*, of *n* chosen ones."""
    yield f"{waiting.height} of {n} records would be sent again"
    offset = pl.col("offset")
    places = waiting.group_by("source", "reason", "topic", IN_KAFKA, maintain_order=True).agg(
        n=pl.len(), first=offset.min(), last=offset.max()
    )
    for row in places.head(MOST_LISTED).iter_rows(named=True):
        first, last = row["first"], row["last"]
        offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
        place = f"topic {row['topic']}, partition {row[IN_KAFKA]}, {offsets}"
        yield f"  {row['source']}, {row['reason']}: {row['n']} of {place}"
    if places.height > MOST_LISTED:
        yield f"  and from {places.height - MOST_LISTED} more partitions"
    if waiting.height and not is_late:
        yield "Correct the producer or the topology first: a record that still cannot be used is quarantined again"


def _refuse_unfitting(options: argparse.Namespace) -> None:
    """Raises InvalidArgument for options that do not go together."""
    if options.reopen and not options.late:
        msg = "--reopen: only late records can be processed again; write --late --reopen"
        raise InvalidArgument(msg)
    if options.operator and not options.reopen:
        msg = f"--operator {options.operator}: needs --reopen; add that, or choose by --source"
        raise InvalidArgument(msg)
    if options.reopen and (options.source or options.reason):
        msg = "--reopen: takes no --source and no --reason; choose by --operator, --from and --to"
        raise InvalidArgument(msg)


def _requeued(
    options: argparse.Namespace, waiting: pl.DataFrame, n: int, layout: Layout, by_cluster: ByCluster, clock: Clock
) -> str:
    """Sends the records that are *waiting*, of *n* that were chosen."""
    # Records are sent AT_ONCE at a time, and then recorded: an interrupted run may send as many twice.
    path = layout.report_table(options.topology, REQUEUED.name)
    parts, sent = by_cluster(waiting), 0
    create(path, arrow_schema(REQUEUED), description=REQUEUED.row)
    for cluster, of_cluster in parts:
        there = with_bytes(of_cluster, cluster) if options.late else of_cluster
        for part in there.iter_slices(AT_ONCE):
            # Recorded after each part, so that an interrupted run sends at most one part twice.
            accepted, failed = _send(part, cluster)
            requeued_rows = accepted.select("sub_topology", "source", *PLACE, "reason")
            append(path, rows_of(REQUEUED, requeued_rows, topology=options.topology, requeued_at=clock()))
            if failed:
                observation = f"{len(failed)} of {part.height} records were not accepted: {failed[0]}"
                msg = f"{cluster.bootstrap}: {observation}; run this again"
                raise TidemarkError(msg)
        sent += there.height
    gone = waiting.height - sent
    lost = f"; {gone} are no longer in their topics" if gone else ""
    return f"{sent} of {n} records were sent again{lost}"


def _group_by_cluster(
    options: argparse.Namespace, described: Callable[[str], Topology], local: str | None, rows: pl.DataFrame
) -> list[tuple[Cluster, pl.DataFrame]]:
    """Groups *rows* by the cluster that their sources read.

    The topology's file, read by *described*, has the clusters. Without the file it is the cluster `default`.
    """
    of: Topology | None = None
    with suppress(InvalidArgument):  # the file may be gone; the rows have all else that is needed
        of = described(options.topology)
    operators, configured = (of.operators, of.clusters) if of else ({}, {})
    names = {name: getattr(operators.get(name), "kafka", DEFAULT) for name in rows["source"].unique()}
    clusters = addressed_clusters(
        {*names.values()}, configured, options.bootstrap, os.environ, otherwise=local, secrets=given_secrets(options)
    )
    of_rows = rows["source"].replace_strict(names, return_dtype=pl.String)
    return [(clusters[name], rows.filter(of_rows == name)) for name in sorted({*names.values()})]


def _quarantined_records(layout: Layout, name: str) -> pl.DataFrame:
    """Returns the quarantined records of the topology *name*."""
    paths = stream_tables(layout, name, DEAD_LETTERS.name)
    if not paths:
        msg = f"{layout.warehouse} has no dead letters of a topology {name!r}; check the name, and the warehouse"
        raise InvalidArgument(msg)
    rows = pl.concat([dead_letters(path.parent, DeadLetterKind.QUARANTINED) for path in paths])
    return rows.rename({"operator": "source"})


def _chosen(rows: pl.DataFrame, options: argparse.Namespace) -> pl.DataFrame:
    """Returns the records among *rows* that *options* choose, once each."""
    # Rows of no topic cannot be sent, and records whose content is not known must not be.
    was_skipped = pl.col("reason").is_in([KILLS_DRIVERS, FAILS_DRIVERS, ACCEPTED_LOSS]).fill_null(value=False)
    is_unknown = was_skipped & pl.col("key").is_null() & pl.col("value").is_null()
    rows = rows.filter(pl.col("topic").is_not_null(), ~is_unknown)
    for column, wanted in (("source", options.source), ("reason", options.reason)):
        if wanted is not None:
            values = sorted(rows[column].drop_nulls().unique())
            if wanted not in values:
                msg = f"no record was set aside with the {column} {wanted!r}; known: {', '.join(values) or 'none'}"
                raise InvalidArgument(msg)
            rows = rows.filter(pl.col(column) == wanted)
    return rows_in_span(rows, options).unique(PLACE, keep="first", maintain_order=True)


def _send(rows: pl.DataFrame, cluster: Cluster) -> tuple[pl.DataFrame, list[str]]:
    """Sends key and value of *rows* to their partitions again.

    Returns the rows that the broker accepted, and its errors for the others.

    Raises:
        LoginDenied: the cluster refuses the login.
        LoginInterrupted: it ended the connection during the login.
    """
    refusals = Refusals()
    settings = {"enable.idempotence": True, "message.max.bytes": 100_000_000, "error_cb": refusals}
    producer = Producer({**cluster.client, **settings})
    accepted: list[int] = []
    failed: list[str] = []

    def delivered(row: int, error: KafkaError | None, _: Message) -> None:
        if error is None:
            accepted.append(row)
        else:
            failed.append(error.str())

    columns = ("topic", IN_KAFKA, "offset", "key", "value")
    for row, (topic, partition, offset, key, value) in enumerate(rows.select(columns).iter_rows()):
        headers: list[tuple[str, str | bytes | None]] = [(HEADER, f"{partition}/{offset}")]
        producer.produce(topic, value, key, partition, headers=headers, on_delivery=partial(delivered, row))
        # The producer calls `delivered` only within poll and flush.
        producer.poll(0)
    unsent = producer.flush(SENT_WITHIN_S)
    if unsent and not accepted:
        refusals.raise_for(cluster)
    return rows[sorted(accepted)], failed or ["the broker did not answer"] * unsent
