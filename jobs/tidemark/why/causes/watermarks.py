"""Finds the partition that holds a watermark back, in the stream itself or in a stream before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import assert_never

import polars as pl

from tidemark.facts.stream_facts import NewestWatermark
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.topology import SubTopology
from tidemark.selection import names_in, present
from tidemark.semantics.idleness import Activity
from tidemark.why.causes.inputs import Inputs
from tidemark.why.evidence.commands import LIVE
from tidemark.why.evidence.findings import (
    Cause,
    Trait,
    WhyFinding,
)
from tidemark.why.evidence.snapshot import Scene, watermark_text

UPSTREAM_IDLE = Cause(
    "upstream_idle",
    Trait.QUIET,
    "every upstream of a sub-topology is idle, so the watermark downstream of the hop does not advance",
)
PARTITION_IDLE_HOLDS_BACK = Cause(
    "partition_idle_holds_back",
    Trait.FAULT | Trait.EVENT_TIME,
    "a silent partition that does not count as idle holds the watermark back",
)
PARTITION_BEHIND_HOLDS_BACK = Cause(
    "partition_behind_holds_back",
    Trait.FAULT | Trait.EVENT_TIME,
    "a partition with older records than the others holds the watermark back",
)


class Watermarks:
    """The watermarks of the streams of *scene*."""

    def __init__(self, scene: Scene, inputs: Inputs) -> None:
        self._scene, self._inputs = scene, inputs

    def holding(self, sub: SubTopology, needed_ms: int) -> Iterator[WhyFinding]:
        """Yields what keeps the watermark of *sub* below *needed_ms*, epoch ms, although other records have come that
        far.
        """
        marks = self._scene.of(sub.operators[0].name).marks
        tables = sub.table_inputs()
        leading = [o for o in sub.sources if o.name not in tables]
        names = {*names_in(leading)}
        all_idle = all(_is_idle(marks.get((o.name, None))) for o in leading)
        ahead = {name for (name, _), mark in marks.items() if name in names and _has_reached(mark, needed_ms)}
        for source in leading:
            match source:
                case Source():
                    yield from self._source_holding(source, needed_ms, ahead=ahead)
                case HopSource():
                    mark = marks.get((source.name, None))
                    if not _has_reached(mark, needed_ms):
                        yield from self._inputs.hop(source) or self._hop_holding(
                            source, mark, needed_ms, all_idle=all_idle
                        )
                case _:
                    assert_never(source)

    def _hop_holding(
        self, source: HopSource, mark: NewestWatermark | None, needed_ms: int, *, all_idle: bool
    ) -> Iterator[WhyFinding]:
        """Yields what keeps the hop that *source* reads below *needed_ms*; *mark* is how far it has come.

        *all_idle* is True if every input of the stream is idle.
        """
        if not _is_idle(mark):
            yield from self.holding(self._scene.sub(source.repartition), needed_ms)
        # An idle hop holds nothing back unless every input is idle.
        elif all_idle:
            sources = self._scene.sources(source.repartition)
            names, has_topic = ", ".join(sources), any(outside.topic for outside in sources.values())
            yield self._scene.finding(
                UPSTREAM_IDLE,
                source.name,
                f"its upstream {source.repartition} is idle: nothing comes from {names}, and time stands at "
                f"{watermark_text(mark.watermark_ms if mark else None)}",
                f"check that the producer of {names} runs{f' ({LIVE})' if has_topic else ''}; if it may be silent, "
                f"idle_advances = true for {names} lets time advance",
                input=source.repartition,
                since_ms=max(present(map(self._inputs.last_read_ms, sources.values())), default=None),
            )

    def _source_holding(self, source: Source, needed_ms: int, *, ahead: Collection[str]) -> Iterator[WhyFinding]:
        partitions = self._inputs.partitions(source.name)
        # The watermark of a source is the lowest of its partitions that are not idle.
        behind: dict[int, NewestWatermark] = {}
        for number, mark in partitions.items():
            if mark.activity is not Activity.IDLE and not _has_reached(mark, needed_ms):
                behind[number] = mark
        if behind and self._inputs.never_read(source.name):
            yield from self._inputs.empty(source)
            return
        for number, mark in behind.items():
            findings = self._inputs.blocked(source, number)
            if not findings and ahead:
                coming = self._inputs.coming(source, number)
                findings = [coming or self._silent_or_behind(source, number, mark, needed_ms, ahead=ahead)]
            yield from findings

    def _silent_or_behind(
        self, source: Source, number: int, mark: NewestWatermark, needed_ms: int, *, ahead: Collection[str]
    ) -> WhyFinding:
        """Returns why a partition that its driver can read holds the watermark back: it is silent, or it is behind.

        Args:
            source: the source of the partition.
            number: the number of the partition.
            mark: how far the partition has come.
            needed_ms: the watermark that is waited for, epoch ms.
            ahead: the sources that have reached it.
        """
        facts = self._scene.of(source.name)
        reads = facts.reads.of_partition(source.name, number).filter(pl.col("n") > 0)
        newest = facts.reads.newest_batch
        last = reads.tail(1)
        if last.height and last["batch_id"].item() == newest:
            return self._scene.finding(
                PARTITION_BEHIND_HOLDS_BACK,
                source.name,
                f"it gives records, the newest of {watermark_text(mark.max_timestamp_ms)}, while others are ahead",
                "speed up its producer, or wait until it has caught up",
                input=source.name,
                partition=number,
                since_ms=facts.reached_ms(ahead, needed_ms),
            )
        since_ms = last["finished_at"].item() if last.height else facts.tables.first_finished_ms
        history = "it has been silent" if last.height else "no batch has read a record of it yet"
        if source.idle_after_ms is None:
            idle, setting = "the source has no idle_after, so it never counts as idle", 'an idle_after, such as "30 s"'
        else:
            idle = f"it counts as idle only after {for_people(source.idle_after_ms)} (idle_after)"
            setting = f'a shorter idle_after, such as "{length_in_toml(max(1, source.idle_after_ms // 2))}"'
        return self._scene.finding(
            PARTITION_IDLE_HOLDS_BACK,
            source.name,
            f"{history} and holds the watermark at {watermark_text(mark.watermark_ms)}; {idle}",
            f"give {source.name} {setting}, or send keep-alive records to the partition",
            input=source.name,
            partition=number,
            since_ms=since_ms,
        )

    def slowest(self, sub: SubTopology, source: str | None) -> int | None:
        """Returns the partition that holds the watermark of *source* in *sub* back; None if it is not known."""
        mark = self._scene.of(sub.operators[0].name).marks.get((source, None)) if source else None
        return int(mark.blocked_by) if mark and mark.blocked_by is not None else None


def _is_idle(mark: NewestWatermark | None) -> bool:
    return mark is not None and mark.activity is Activity.IDLE


def _has_reached(mark: NewestWatermark | None, needed_ms: int) -> bool:
    return mark is not None and mark.watermark_ms is not None and mark.watermark_ms >= needed_ms
