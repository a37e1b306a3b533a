"""The input of all reasoning: a topology and its facts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from tidemark.collecting import in_order_of, index_by_name, names_in, omit, within
from tidemark.facts.outcome_facts import LATELY
from tidemark.facts.stream_facts import StreamFacts
from tidemark.graph import reached
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import SubTopology, Time, Topology
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding


class Scene:
    """*topology* at *at_ms*, epoch ms, with *facts* by sub-topology."""

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
        """Returns the folders of all tables of the streams."""
        homes = [facts.home for facts in self.facts.values() if facts.home.is_dir()]
        return [path for home in homes for path in sorted(home.iterdir())]

    def sources(self, name: str) -> dict[str, Source]:
        """Returns the sources, by name, whose records reach the operator *name*.

        Those that only fill tables which it looks up are not among them.
        """
        # A recorded query may write what a source reads: the walk ends at the source.
        sources = index_by_name(self.topology.outside_sources)
        return in_order_of(within(reached([name], omit(self.topology.upstream_flows, sources)), sources), sources)

    def since(self, name: str, word: str) -> int | None:
        """Returns when the first batch ended that counts any *word*.

        It is the first one after the newest result of the operator *name*.
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
            cause: its cause. Where it lies in event time, the remedy names the way around it, too.
            name: the operator without results.
            observation: what the tables show.
            remedy: what to do.
            input: the operator that it waits for.
            partition: the partition of the input.
            since_ms: when it began, a clock of the driver; None when it has always been so, or that is not known.
        """
        is_declared = not self.topology.jobs
        if is_declared and Trait.EVENT_TIME in cause.traits and self.topology.time is Time.EVENT:
            command = f"`tidemark run {self.topology.name} --time processing`"
            remedy += f"; for results that do not wait for event time: {command}"
        if partition is not None and (mark := self.of(input or name).marks.get((input or name, partition))):
            # A partition of several topics is known to people by its topic.
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
    """Returns when the first row with *word* above 0 finished."""
    finished_ms = rows.filter(pl.col(word) > 0)["finished_at"].head(1)
    return finished_ms.item() if finished_ms.len() else None


def began(batches: pl.DataFrame, has_fault: pl.Expr) -> int | None:
    """Returns when the first batch of a fault ended; None: none of *batches*, which are in order, has it.

    It lasts from batch to batch until LATELY in a row are without it: that is when `why` no longer names it.
    """
    faulty = batches.with_row_index("place").filter(has_fault)
    is_first = (pl.col("place").cast(pl.Int64).diff() > LATELY).fill_null(value=True)
    began_ms = faulty.filter(is_first)["finished_at"].tail(1)
    return began_ms.item() if began_ms.len() else None


def watermark_text(at_ms: int | None) -> str:
    """Returns ISO text of a watermark."""
    return "none yet" if at_ms is None else iso(at_ms)
