"""The rows of `late_records` as `tidemark requeue --late` sends them again: key, value and place in a topic."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from confluent_kafka import Consumer, TopicPartition

from tidemark.cli.set_aside import requeued, with_decided_at
from tidemark.control import Control
from tidemark.errors import InvalidArgument
from tidemark.spec.connections import Cluster
from tidemark.spec.layout import Layout
from tidemark.spec.operators import HopSource, Source
from tidemark.spec.tables import LATE_RECORDS, REQUEUED
from tidemark.spec.topology import Topology
from tidemark.stream.reopenings import PLACE

REASON = "late"
SILENT_S = 10.0
"""When a topic says nothing for so long, it has no more of what is asked for."""
COLUMNS = ["sub_topology", "source", "topic", "partition", "offset", "reason", "key", "value", "decided_at", "kept"]


def late_rows(topology: Topology, layout: Layout) -> pl.DataFrame:
    """All late records of topics, once for each operator that found them late; whether their bytes are *kept* there.

    They are where a source found them late; what another operator found late has to be read again.
    """
    frames = [_of(topology, sub.name, layout) for sub in topology.sub_topologies]
    return pl.concat([frame for frame in frames if frame is not None], how="vertical_relaxed")


def _of(topology: Topology, sub: str, layout: Layout) -> pl.DataFrame | None:
    path = layout.stream_table(topology.name, sub, LATE_RECORDS.name)
    late = with_decided_at(path)
    reopened = asked_before(topology, sub, layout)
    late = late.join(reopened, on=reopened.columns, how="anti")
    sources = {name: source_of(topology, name) for name in late["operator"].unique()}
    return late.with_columns(
        source=pl.col("operator").replace_strict({n: s.name for n, s in sources.items()}, return_dtype=pl.String),
        topic=pl.col("operator").replace_strict({n: s.topic for n, s in sources.items()}, return_dtype=pl.String),
        kept=pl.col("operator").is_in([name for name, source in sources.items() if name == source.name]),
        key=pl.col("key").cast(pl.Binary),
        reason=pl.lit(REASON),
    ).select(COLUMNS)


def asked_before(topology: Topology, sub: str, layout: Layout) -> pl.DataFrame:
    """Operator and place of the late records that closed windows of *sub* were asked to take in again."""
    control = Control(layout.control(topology.name, sub))
    waiting = [control.reopening(id_) for id_ in control.reopenings()]
    rows = [(each.operator, *place) for each in waiting for place in each.late]
    asked = pl.DataFrame(rows, schema={"operator": pl.String(), **PLACE}, orient="row")
    return pl.concat([asked, reopened(topology, sub, layout)]).unique()


def reopened(topology: Topology, sub: str, layout: Layout) -> pl.DataFrame:
    """Those of which `requeued` has a row."""
    rows = requeued(layout.report_table(topology.name, REQUEUED.name))
    if "late_batch" not in rows.collect_schema():  # of an older version
        return pl.DataFrame(schema={"operator": pl.String(), **PLACE})
    rows = rows.filter(pl.col("late_batch").is_not_null(), pl.col("sub_topology") == sub)
    return (
        rows.select("partition", "offset", operator="source", batch_id="late_batch")
        .select("operator", *PLACE)
        .collect()
    )


def source_of(topology: Topology, name: str) -> Source:
    """The source whose records the operator *name* reads; raises InvalidArgument where there are several."""
    found = {source.name: source for source in sources_of(topology, name)}
    if len(found) != 1:
        msg = (
            f"late records of {name} may be of {' or '.join(sorted(found))}, and the table does not say which; "
            "send them again from where their producers keep them"
        )
        raise InvalidArgument(msg)
    return next(iter(found.values()))


def sources_of(topology: Topology, name: str) -> Iterator[Source]:
    """The sources whose records the operator *name* reads."""
    operator = topology.operators.get(name)
    if operator is None:
        msg = f"late_records names {name}, which is no operator of {topology.name} now; give the file that had it"
        raise InvalidArgument(msg)
    if isinstance(operator, Source):
        yield operator
    for read in (operator.repartition,) if isinstance(operator, HopSource) else operator.flows:
        yield from sources_of(topology, read)


def with_bytes(rows: pl.DataFrame, cluster: Cluster) -> pl.DataFrame:
    """*rows* with key and value as their topics have them, where they are not kept; without those that are gone."""
    again = rows.filter(~pl.col("kept"))
    if again.is_empty():
        return rows
    consumer = Consumer({**cluster.client, "group.id": "tidemark-requeue", "enable.auto.commit": False})
    found = [
        {"topic": topic, "partition": number, "offset": offset, "key": key, "value": value}
        for (topic, number), part in again.group_by("topic", "partition", maintain_order=True)
        for offset, key, value in _read_again(consumer, str(topic), int(str(number)), part["offset"].sort().to_list())
    ]
    consumer.close()
    place = {"topic": pl.String(), "partition": pl.Int32(), "offset": pl.Int64()}
    read = pl.DataFrame(found, schema={**place, "key": pl.Binary(), "value": pl.Binary()})
    told = again.drop("key", "value").join(read, on=list(place), how="inner").select(rows.columns)
    return pl.concat([rows.filter("kept"), told]).sort(list(place))


def _read_again(
    consumer: Consumer, topic: str, number: int, offsets: list[int]
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of the records of one partition at *offsets*, in order, but for those that are gone."""
    wanted = set(offsets)
    first, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=SILENT_S)
    wanted &= set(range(first, end)) if wanted else set()
    if not wanted:
        return
    consumer.assign([TopicPartition(topic, number, min(wanted))])
    while (message := consumer.poll(SILENT_S)) is not None:
        offset = message.offset()
        if message.error() is None and offset in wanted:
            yield offset, message.key(), message.value()
        if offset is None or offset >= max(wanted):
            return
