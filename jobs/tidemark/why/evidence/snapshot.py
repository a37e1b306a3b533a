"""What all rules of `why` start from: a topology, and the facts of its streams at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from tidemark.facts.outcome_facts import LATELY
from tidemark.facts.stream_facts import StreamFacts
from tidemark.graph import reached
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import SubTopology, Time, Topology
from tidemark.selection import in_order_of, index_by_name, names_in, omit, within
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding


class Scene:
    """The *topology* at *at_ms*, epoch ms, with the *facts* of each sub-topology by its name."""

    def __init__(self, topology: Topology, facts: Mapping[str, StreamFacts], at_ms: int) -> None:
        self.topology, self.at_ms = topology, at_ms
        self.facts = facts
        self._subs: dict[str, SubTopology] = {}
        for sub in topology.sub_topologies:
            self._subs |= dict.fromkeys(names_in(sub.operators), sub)

    def operator(self, name: str) -> Operator:
        """Returns the operator *name*."""
        return self.topology.operators[name]

    def sub(self, name: str) -> SubTopology:
        """Returns the sub-topology that runs the operator *name*."""
        return self._subs[name]

    def of(self, name: str) -> StreamFacts:
        """Returns the facts of the sub-topology that runs the operator *name*."""
        return self.facts[self._subs[name].name]

    def tables(self) -> list[Path]:
        """Returns the folders in the homes of the streams: each is a table."""
        homes = [facts.home for facts in self.facts.values() if facts.home.is_dir()]
        return [path for home in homes for path in sorted(home.iterdir())]

    def sources(self, name: str) -> dict[str, Source]:
        """Returns the sources, by name, whose records reach the operator *name*.

        A source that only fills a table which a join looks up is not among them.
        """
        # A recorded query may write what a source reads: the walk ends at the source.
        sources = index_by_name(self.topology.outside_sources)
        return in_order_of(within(reached([name], omit(self.topology.upstream_flows, sources)), sources), sources)

    def since(self, name: str, word: str) -> int | None:
        """Returns when the outcome *word* first occurred since the newest result of the operator *name*.

        The instant is the end of the batch, epoch ms; None if no update had that outcome since.
        """
        return first(self.of(name).outcomes.since_last_result(name), word)

    def finding(
        self,
        cause: Cause,
        name: str,
        observation: str,
        remedy: str,
        *,
        input: str | None = None,
        partition: int | None = None,
        since_ms: int | None = None,
    ) -> WhyFinding:
        """Returns a finding about the operator *name*.

        Args:
            cause: why there are no results. If the cause lies in event time, the remedy also says how to run the
                topology without it.
            name: the operator without results.
            observation: what the tables show.
            remedy: what to do.
            input: the input that the operator waits for.
            partition: the partition of that input.
            since_ms: when the cause began, a clock of the driver, epoch ms. The value is None if it has always been so,
                or if the beginning is not known.
        """
        is_declared = not self.topology.jobs
        if is_declared and Trait.EVENT_TIME in cause.traits and self.topology.time is Time.EVENT:
            command = f"`tidemark run {self.topology.name} --time processing`"
            remedy += f"; for results that do not wait for event time: {command}"
        if partition is not None and (mark := self.of(input or name).marks.get((input or name, partition))):
            # A source of several topics numbers their partitions anew: people know a partition by its topic.
            observation = f"{mark.topic_partition}: {observation}" if mark.topic_partition else observation
        return WhyFinding(
            cause=cause,
            sub_topology=self._subs[name].name,
            operator=name,
            input=input,
            partition=partition,
            since_ms=since_ms,
            seen=observation,
            remedy=remedy,
        )


def first(rows: pl.DataFrame, word: str) -> int | None:
    """Returns when the first batch of *rows* with the outcome *word* finished, epoch ms; None without such a batch."""
    finished_ms = rows.filter(pl.col(word) > 0)["finished_at"].head(1)
    return finished_ms.item() if finished_ms.len() else None


def began(batches: pl.DataFrame, has_fault: pl.Expr) -> int | None:
    """Returns when the newest fault began: the end of its first batch, epoch ms; None if none of *batches* has a fault.

    The batches are in order. A fault is over after LATELY batches in a row without it: then `why` no longer names it.
    """
    faulty = batches.with_row_index("position").filter(has_fault)
    is_first = (pl.col("position").cast(pl.Int64).diff() > LATELY).fill_null(value=True)
    began_ms = faulty.filter(is_first)["finished_at"].tail(1)
    return began_ms.item() if began_ms.len() else None


def watermark_text(at_ms: int | None) -> str:
    """Returns a watermark, epoch ms, as an ISO instant in text."""
    return "none yet" if at_ms is None else iso(at_ms)
