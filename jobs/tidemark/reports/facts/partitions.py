"""Describes each input partition: its lag, its unread records, its silence.

Instants in the rows are timestamps in UTC, lengths are ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from tidemark.collecting import omit
from tidemark.model.settings.intervals import utc
from tidemark.reports.paths.path_facts import Row
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.evidence.snapshot import Scene


def partitions(scene: Scene, findings: Iterable[WhyFinding]) -> list[Row]:
    """Returns a row for each partition of the outside sources in *scene*.

    `lag_ms` is the distance of its watermark to the clock, `unread` the records that its newest batch left when the
    broker was asked, `holds_back` whether its source's watermark waits for it, and `causes` are those of *findings*
    about it.
    """
    causes: dict[tuple[str | None, int | None], dict[str, None]] = {}
    for finding in findings:
        causes.setdefault((finding.input, finding.partition), {})[str(finding.cause)] = None
    rows = []
    for source in scene.topology.outside_sources:
        for row in _of_source(scene, source.name):
            rows.append({**row, "causes": [*causes.get((source.name, row["partition"]), ())]})
    return rows


def _of_source(scene: Scene, source: str) -> Iterator[Row]:
    facts = scene.of(source)
    numbers = {number for name, number in facts.marks if name == source and number is not None}

    def has_answer(recent: pl.DataFrame) -> bool:
        return numbers <= {*recent.filter(pl.col("n") > 0)["partition"]}

    reads = facts.reads_of(source, has_answer).group_by("partition").agg(
        read_ms=pl.col("finished_at").filter(pl.col("n") > 0).max(),
        unread=pl.col("unread").drop_nulls().last(),
    )  # fmt: skip
    last = {row["partition"]: omit(row, ("partition",)) for row in reads.to_dicts()}
    whole = facts.marks.get((source, None))
    for number in sorted(numbers | {*last}):
        mark = facts.marks.get((source, number))
        watermark_ms = mark.watermark_ms if mark else None
        read_ms = last[number]["read_ms"] if number in last else None
        yield {
            "source": source,
            "sub_topology": scene.sub(source).name,
            "partition": number,
            "topic_partition": mark.topic_partition if mark else None,
            "watermark": None if watermark_ms is None else utc(watermark_ms),
            "lag_ms": None if watermark_ms is None else scene.at_ms - watermark_ms,
            "unread": last[number]["unread"] if number in last else None,
            "last_read_at": None if read_ms is None else utc(read_ms),
            "silent_ms": None if read_ms is None else scene.at_ms - read_ms,
            "activity": mark.activity.value if mark and mark.activity else None,
            "holds_back": whole is not None and whole.held_by == str(number),
        }
