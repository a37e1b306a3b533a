"""Describes each input partition: its lag, its unread records, its silence.

Instants in the rows are timestamps in UTC, lengths are ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemark.collecting import names_in
from tidemark.model.settings.intervals import utc
from tidemark.model.topology import SubTopology
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
    for sub in scene.topology.sub_topologies:
        for row in _of_stream(scene, sub):
            rows.append({**row, "causes": [*causes.get((row["source"], row["partition"]), ())]})
    return rows


def _of_stream(scene: Scene, sub: SubTopology) -> Iterator[Row]:
    facts, sources = scene.facts[sub.name], names_in(sub.outside_sources)
    if not sources:
        return
    places = {(source, number) for source, number in facts.marks if source in sources and number is not None}
    last = facts.reads.last(sources, places)
    for source, number in sorted(places | last.keys(), key=lambda place: (sources.index(place[0]), place[1])):
        mark, whole = facts.marks.get((source, number)), facts.marks.get((source, None))
        watermark_ms = mark.watermark_ms if mark else None
        read_ms, unread = last.get((source, number), (None, None))
        yield {
            "source": source,
            "sub_topology": sub.name,
            "partition": number,
            "topic_partition": mark.topic_partition if mark else None,
            "watermark": None if watermark_ms is None else utc(watermark_ms),
            "lag_ms": None if watermark_ms is None else scene.at_ms - watermark_ms,
            "unread": unread,
            "last_read_at": None if read_ms is None else utc(read_ms),
            "silent_ms": None if read_ms is None else scene.at_ms - read_ms,
            "activity": mark.activity.value if mark and mark.activity else None,
            "holds_back": whole is not None and whole.held_by == str(number),
        }
