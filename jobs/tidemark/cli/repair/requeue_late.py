"""Reads late records for `tidemark requeue --late`, with key, value and place."""

from __future__ import annotations

import polars as pl
from confluent_kafka import Consumer

from tidemark.cli.repair.set_aside import IN_KAFKA, dead_letters, requeued_rows
from tidemark.control.folder import Control
from tidemark.errors import InvalidArgument
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import Cluster
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.selection import index_by_name, present
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.stream.decide.reopenings import LATE_ID
from tidemark.stream.kafka.messages import messages_at

REASON = "late"
COLUMNS = ["sub_topology", "source", "topic", "partition", "offset", "reason", "key", "value", "decided_at", "kept"]


def late_rows(topology: Topology, layout: Layout) -> pl.DataFrame:
    """Returns all late records, once for each operator they were late for.

    Column `kept` is True if the row contains key and value: a source was the operator. Others have to be read again.
    """
    frames = [_late_rows_of(topology, sub.name, layout) for sub in topology.sub_topologies]
    return pl.concat(present(frames), how="vertical_relaxed")


def _late_rows_of(topology: Topology, sub: str, layout: Layout) -> pl.DataFrame | None:
    late = dead_letters(layout.stream(topology.name, sub), DeadLetterKind.LATE)
    requested = requested_places(topology, sub, layout)
    late = late.join(requested, on=requested.columns, how="anti")
    source_names: dict[str, str] = {}
    topics: dict[str, str | None] = {}
    for name in late["operator"].unique():
        source = source_of(topology, name)
        source_names[name], topics[name] = source.name, source.topic
    return late.with_columns(
        source=pl.col("operator").replace_strict(source_names, return_dtype=pl.String),
        topic=pl.col("operator").replace_strict(topics, return_dtype=pl.String),
        # A source keeps the bytes of its late records; other operators had their columns only.
        kept=pl.col("operator").is_in(list(source_names.values())),
        reason=pl.lit(REASON),
    ).select(COLUMNS)


def requested_places(topology: Topology, sub: str, layout: Layout) -> pl.DataFrame:
    """Returns the late records of requests to reopen closed windows of *sub*.

    It returns their operators and places. `tidemark requeue --late --reopen` makes these requests.
    """
    control = Control(layout.control(topology.name, sub))
    rows: list[tuple[object, ...]] = []
    for id_ in control.reopenings():
        reopening = control.reopening(id_)
        rows += [(reopening.operator, *place) for place in reopening.late]
    requested = pl.DataFrame(rows, schema={"operator": pl.String(), **LATE_ID}, orient="row")
    return pl.concat([requested, reopened_places(topology, sub, layout)]).unique()


def reopened_places(topology: Topology, sub: str, layout: Layout) -> pl.DataFrame:
    """Returns operator and place of late records in `requeued`."""
    rows = requeued_rows(layout, topology.name)
    rows = rows.filter(pl.col("late_batch").is_not_null(), pl.col("sub_topology") == sub)
    return rows.select("partition", "offset", operator="source", batch_id="late_batch").select("operator", *LATE_ID)


def source_of(topology: Topology, name: str) -> Source:
    """Returns the source whose records the operator *name* reads.

    Raises:
        InvalidArgument: there are several.
    """
    sources = index_by_name(sources_of(topology, name))
    if len(sources) != 1:
        msg = (
            f"late records of {name} may come from {' or '.join(sorted(sources))}, and late_records does not name "
            "their source; send them again from their producers"
        )
        raise InvalidArgument(msg)
    return next(iter(sources.values()))


def sources_of(topology: Topology, name: str) -> list[Source]:
    """Returns the sources whose records the operator *name* reads."""
    if name not in topology.operators:
        msg = f"late_records names {name}, which is not an operator of {topology.name} now; give its old topology file"
        raise InvalidArgument(msg)
    return [operator for operator in topology.path_into(name) if isinstance(operator, Source)]


def with_bytes(rows: pl.DataFrame, cluster: Cluster) -> pl.DataFrame:
    """Returns *rows* with key and value.

    Where the rows do not contain them, they are read from the topics.
    """
    again = rows.filter(~pl.col("kept"))
    if again.is_empty():
        return rows
    group = {"group.id": "tidemark-requeue", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**cluster.client, **group})
    records: list[dict[str, object]] = []
    for (topic, number, in_kafka), part in again.group_by("topic", "partition", IN_KAFKA, maintain_order=True):
        offsets = part["offset"].sort().to_list()
        for message in messages_at(consumer, str(topic), int(str(in_kafka)), offsets):
            place = {"topic": topic, "partition": number, "offset": message.offset()}
            records.append({**place, "key": message.key(), "value": message.value()})
    consumer.close()
    schema = {"topic": pl.String(), "partition": pl.Int32(), "offset": pl.Int64()}
    read = pl.DataFrame(records, schema={**schema, "key": pl.Binary(), "value": pl.Binary()})
    # The join leaves out records that are gone from their topic.
    completed = again.drop("key", "value").join(read, on=list(schema), how="inner").select(rows.columns)
    return pl.concat([rows.filter("kept"), completed]).sort(list(schema))
