"""Describes each input partition for pages: its lag, its unread records, and what is wrong with it.

Instants in the rows are timestamps in UTC, lengths are ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemark.facts.answers import Row
from tidemark.facts.stream_facts import StreamFacts
from tidemark.model.settings.intervals import utc
from tidemark.model.topology import SubTopology
from tidemark.selection import names_in, present
from tidemark.semantics.idleness import Activity
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.evidence.snapshot import Scene


def partitions(scene: Scene, findings: Iterable[WhyFinding]) -> list[Row]:
    """Returns a row for each partition of the outside sources in *scene*.

    `lag_ms` is how far its watermark is behind the clock. `unread` is how many records the newest batch left unread,
    when the broker was last asked. `holds_back` says whether the stream's watermark waits for the partition, and
    `holds_back_ms` for how long (None if the partition has no watermark yet). `causes` are those of *findings* about
    the partition.
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
    held_back = _held_back(facts, sub)
    inputs = {(source, number) for source, number in facts.marks if source in sources and number is not None}
    last_read_ms = facts.reads.last_read_ms(inputs)
    for source, number in sorted(inputs, key=lambda each: (sources.index(each[0]), each[1])):
        mark, read_ms = facts.marks[source, number], last_read_ms.get((source, number))
        yield {
            "source": source,
            "sub_topology": sub.name,
            "partition": number,
            "topic_partition": mark.topic_partition,
            "watermark": None if mark.watermark_ms is None else utc(mark.watermark_ms),
            "lag_ms": None if mark.watermark_ms is None else scene.at_ms - mark.watermark_ms,
            "unread": mark.unread,
            "last_read_at": None if read_ms is None else utc(read_ms),
            "silent_ms": None if read_ms is None else scene.at_ms - read_ms,
            "activity": mark.activity.value if mark.activity else None,
            "holds_back": (source, number) in held_back,
            "holds_back_ms": held_back.get((source, number)),
        }


def _held_back(facts: StreamFacts, sub: SubTopology) -> dict[tuple[str, int | None], int | None]:
    """Returns the partition that holds the watermark of *sub* back, if there is one, and by how many ms.

    Without that partition the watermark would be that much further. The length is None if there is no watermark at
    all because of it. A hop counts as one partition, with the number None. Idle partitions hold nothing back, nor do
    sources that only fill tables which joins look up.
    """
    tables = sub.table_inputs()
    leading = {operator.name: operator.reads_outside for operator in sub.sources if operator.name not in tables}
    awake: dict[tuple[str, int | None], int | None] = {}
    for (source, number), mark in facts.marks.items():
        # The watermark of a topic's source is made of those of its partitions.
        is_input = source is not None and leading.get(source) is (number is not None)
        if source is not None and is_input and mark.activity is not Activity.IDLE:
            awake[source, number] = mark.watermark_ms
    if len(awake) < 2:
        return {}
    (slowest, _), (_, next_ms), *_ = sorted(awake.items(), key=lambda each: (each[1] is not None, each[1] or 0))
    if next_ms is None:
        return {}
    if awake[slowest] is None:
        return {slowest: None}
    whole = facts.marks.get((None, None))
    # The partition may have fallen behind the stream's watermark, which does not go back.
    reached_ms = max(present((awake[slowest], whole.watermark_ms if whole else None)))
    return {slowest: next_ms - reached_ms} if next_ms > reached_ms else {}
