"""The first answer of `why`: who owns the time, or the records, for which results are missing.

It is that of the account of time (`account.silence`). The findings of the walk are remarks below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemark.account.explanation import Explanation, Leaf
from tidemark.account.owners import OWNERS
from tidemark.account.silence import causes_of_silence
from tidemark.account.text import NO_HISTORY, remedy_of, sentence_of
from tidemark.errors import UnreadableFile
from tidemark.facts.fact_tables import Stored
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.storage.delta.data_files import naming_damage
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding
from tidemark.why.evidence.snapshot import Scene

OF_OWNERS = {name: Cause(name, Trait.FAULT) for name in OWNERS}
"""By owner, the cause of a finding from the account."""


def accounted(scene: Scene, layout: Layout, operators: Sequence[str], *, stored: Stored) -> list[WhyFinding]:
    """Returns whose it is that *operators* give no results at the instant of *scene*: who owns most comes first.

    There are none of an operator whose results come as usual, or if a table is damaged: the walk names the damage.
    """
    topology = scene.topology
    try:
        with naming_damage(scene.tables):
            found = causes_of_silence(topology, layout, tuple(operators), at_ms=scene.at_ms, stored=stored)
    except UnreadableFile:
        return []
    return [each for name, explanation in found.items() for each in _findings(topology, name, explanation)]


def _findings(topology: Topology, operator: str, explanation: Explanation) -> Iterator[WhyFinding]:
    for leaf in explanation.leaves:
        said = [sentence_of(leaf), *([] if explanation.has_history else [NO_HISTORY])]
        name, partition = _place(leaf)
        yield WhyFinding(
            cause=OF_OWNERS[leaf.owner],
            sub_topology=topology.sub_topology_of(operator).name,
            operator=operator,
            input=name if name in topology.operators else None,
            partition=partition,
            since_ms=leaf.since_ms,
            seen="; ".join(said),
            remedy=remedy_of(leaf),
            owner=leaf.owner,
            detail=leaf.detail or None,
            amount_ms=leaf.amount_ms,
            records=leaf.records,
            share=leaf.share,
        )


def _place(leaf: Leaf) -> tuple[str, int | None]:
    """Returns the detail of *leaf* without a partition, and the partition."""
    name, slash, partition = leaf.detail.rpartition("/")
    return (name, int(partition)) if slash and partition.isdecimal() else (leaf.detail, None)
