"""What is reasoned about: a topology, what its tables said at an instant, and words for what was found."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tidemark.spec.intervals import iso
from tidemark.spec.operators import HopSource, Operator, Source, Time
from tidemark.spec.topology import SubTopology, Topology
from tidemark.why.facts import StreamFacts
from tidemark.why.findings import EVENT_TIME, Cause, Finding


class Scene:
    """*topology* at *at_ms*, epoch ms, with the *facts* of each of its sub-topologies."""

    def __init__(self, topology: Topology, facts: Mapping[str, StreamFacts], at_ms: int) -> None:
        self.topology, self.at_ms = topology, at_ms
        self.facts = facts
        self._subs = {operator.name: sub for sub in topology.sub_topologies for operator in sub.operators}

    def operator(self, name: str) -> Operator:
        """The operator *name*."""
        return self.topology.operators[name]

    def sub(self, name: str) -> SubTopology:
        """The sub-topology that runs the operator *name*."""
        return self._subs[name]

    def of(self, name: str) -> StreamFacts:
        """What the tables say of the sub-topology that runs the operator *name*."""
        return self.facts[self._subs[name].name]

    def first_source(self, name: str) -> Source:
        """The source at the end of the first inputs of the operator *name*."""
        operator = self.operator(name)
        match operator:
            case Source():
                return operator
            case HopSource():
                return self.first_source(operator.repartition)
            case _:
                return self.first_source(operator.inputs[0])

    def sources(self, name: str) -> dict[str, Source]:
        """The sources whose records go through the operator *name*, by name."""
        operator = self.operator(name)
        if isinstance(operator, Source):
            return {name: operator}
        read = (operator.repartition,) if isinstance(operator, HopSource) else operator.flows
        return {each: source for upstream in read for each, source in self.sources(upstream).items()}

    def since(self, name: str, word: str) -> int | None:
        """When, after the newest result of the operator *name*, the first batch ended that counts any *word*."""
        return first(self.of(name).since_last_result(name), word)

    def found(
        self,
        cause: Cause,
        name: str,
        seen: str,
        remedy: str,
        *,
        input: str | None = None,
        partition: int | None = None,
        since_ms: int | None = None,
    ) -> Finding:
        """A finding about the operator *name*; where event time is the suspect, *remedy* names the way around it."""
        if cause in EVENT_TIME and self.topology.time is Time.EVENT:
            command = f"`tidemark run {self.topology.name} --time processing`"
            remedy += f"; for results that do not wait for event time: {command}"
        return Finding(
            cause=cause,
            sub_topology=self._subs[name].name,
            operator=name,
            input=input,
            partition=partition,
            since_ms=since_ms,
            seen=seen,
            remedy=remedy,
        )


def first(rows: pl.DataFrame, word: str) -> int | None:
    """When the first of *rows* finished in which the count *word* was above 0."""
    found = rows.filter(pl.col(word) > 0)["finished_at"].head(1)
    return found.item() if found.len() else None


def shown(at_ms: int | None) -> str:
    """ISO text of a watermark."""
    return "none yet" if at_ms is None else iso(at_ms)
