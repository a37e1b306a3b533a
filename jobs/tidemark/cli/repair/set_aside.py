"""Reads the rows for `tidemark requeue`.

These are the rows that were set aside, by the instant of that, and the rows that it has requeued before.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import polars as pl

from tidemark.facts.fact_tables import stored_in
from tidemark.facts.report_rows import report_rows
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instants_ms, utc
from tidemark.model.tables.catalog import DEAD_LETTERS, REQUEUED
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.stream.journal.entries import newest_entry

IN_KAFKA = "kafka_partition"
"""The column with Kafka's number of the partition of a row."""


def dead_letters(home: Path, kind: DeadLetterKind) -> pl.DataFrame:
    """Returns the rows of a *kind* that the stream in *home* has set aside."""
    return stored_in(home)(DEAD_LETTERS, DEAD_LETTERS.name).filter(pl.col("kind") == kind).collect()


def rows_in_span(rows: pl.DataFrame, options: Namespace) -> pl.DataFrame:
    """Returns the *rows* of batches decided in a span.

    It is [`first`, `until`) of the arguments *options*; an end that is None is open.
    """
    start_ms, end_ms = instants_ms(options.first, options.until)
    if start_ms is not None:
        rows = rows.filter(pl.col("decided_at") >= utc(start_ms))
    if end_ms is not None:
        rows = rows.filter(pl.col("decided_at") < utc(end_ms))
    return rows


def with_kafka_partitions(rows: pl.DataFrame, layout: Layout, topology: str) -> pl.DataFrame:
    """Returns *rows* with their topics and Kafka's partition numbers.

    If their source reads several topics, `partition` is an input partition. The progress of the stream has topic and
    number of each.
    """
    places: list[tuple[str, str, int, str, int]] = []
    for sub in sorted(rows["sub_topology"].unique()):
        home = layout.control(topology, sub)
        entry = newest_entry(home)
        for source, progress in entry.notes.progress.inputs.items() if entry else ():
            places += [(sub, source, number, *place) for number, place in enumerate(progress.places)]
    columns = {"sub_topology": pl.String, "source": pl.String, "partition": pl.Int32, "_topic": pl.String}
    numbers = pl.DataFrame(places, schema={**columns, IN_KAFKA: pl.Int32}, orient="row")
    joined = rows.join(numbers, on=["sub_topology", "source", "partition"], how="left", maintain_order="left")
    topic, in_kafka = pl.coalesce("_topic", "topic"), pl.coalesce(IN_KAFKA, "partition")
    return joined.with_columns(in_kafka.alias(IN_KAFKA), topic=topic).drop("_topic")


def requeued_rows(layout: Layout, topology: str) -> pl.DataFrame:
    """Returns the rows of *topology* that were requeued before."""
    return report_rows(layout, topology, REQUEUED)
