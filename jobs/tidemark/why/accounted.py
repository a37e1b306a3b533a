"""The first answer of `why`: who owns the time, or the records, for which results are missing.

It is that of the account of time (`account.silence`). The findings of the walk are remarks below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from tidemark.account.explanation import Answer, Explanation
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.owners.registry import OWNERS
from tidemark.account.silence import causes_of_silence
from tidemark.account.text import NO_HISTORY, each_did, remedy_of
from tidemark.errors import UnreadableFile
from tidemark.facts.fact_tables import Stored
from tidemark.model.project.layout import Layout
from tidemark.model.sla_events import AlertCause
from tidemark.model.topology import Topology
from tidemark.semantics.liveness import AT_REST
from tidemark.storage.delta.data_files import naming_damage
from tidemark.why.causes.drivers import ended
from tidemark.why.causes.inputs import Inputs
from tidemark.why.causes.registry import rules
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding, declared
from tidemark.why.evidence.snapshot import Scene


@cache
def cause_named(owner: str) -> Cause:
    """Returns the cause of findings that name *owner*: a rule may have declared one of that name."""
    rules()  # imports the files that declare causes
    return declared(owner) or Cause(owner, Trait.FAULT)


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
    explained = ((name, each) for name, each in found.items() if not _is_at_rest(scene, each))
    return [each for name, explanation in explained for each in _findings(scene, name, explanation)]


def _is_at_rest(scene: Scene, explanation: Explanation) -> bool:
    """Returns True if a stream that *explanation* names as absent has ended as it should, and left nothing unread.

    Nothing is known to be missing then: that records have come since is taken for granted by the account alone.
    """
    absent = {leaf.detail for leaf in explanation.leaves if leaf.owner == ABSENCE}
    streams = [sub for sub in scene.topology.sub_topologies if f"{scene.topology.name}/{sub.name}" in absent]
    return any(
        scene.facts[sub.name].driver.liveness in AT_REST and not Inputs(scene).has_unread(sub) for sub in streams
    )


def _findings(scene: Scene, operator: str, explanation: Explanation) -> Iterator[WhyFinding]:
    topology = scene.topology
    # What settings take needs no history.
    is_known = explanation.has_history or explanation.answer is Answer.CANNOT_BE_KEPT
    for leaf, whose in zip(explanation.leaves, each_did(explanation), strict=True):
        # Why nobody runs a stream whose driver has failed, or was drained, is known, and so is what to do.
        why = ended(scene, leaf.detail) if leaf.owner == ABSENCE else None
        said = [whose, *([why.seen] if why else []), *([] if is_known else [NO_HISTORY])]
        name, partition = AlertCause(owner=leaf.owner, detail=leaf.detail).place
        yield WhyFinding(
            cause=cause_named(leaf.owner),
            sub_topology=topology.sub_topology_of(operator).name,
            operator=operator,
            input=name if name in topology.operators else None,
            partition=partition,
            since_ms=leaf.since_ms,
            seen="; ".join(said),
            remedy=why.remedy if why else remedy_of(leaf),
            owner=leaf.owner,
            detail=leaf.detail or None,
            amount_ms=leaf.amount_ms,
            records=leaf.records,
            became=leaf.became,
            share=leaf.share,
        )


def of_broken_sla(topology: Topology, subject: str | None, cause: AlertCause, blocked_by: str) -> WhyFinding:
    """Returns the *cause* of a broken SLA about *subject*, which a check has told as *blocked_by*."""
    operators, (name, partition) = topology.operators, cause.place
    of_subject = [each.name for each in operators.values() if subject in {each.name, each.result_table}]
    sub = (cause.stream or "").split("/")[-1]
    of_stream = [name for each in topology.sub_topologies if each.name == sub for name in sorted(each.terminals())]
    is_operator = name in operators
    operator = [*of_subject, *([name or ""] if is_operator else []), *of_stream, *topology.terminals][0]
    return WhyFinding(
        cause=cause_named(cause.owner),
        sub_topology=topology.sub_topology_of(operator).name,
        operator=operator,
        input=name if is_operator else None,
        partition=partition,
        since_ms=cause.since_ms,
        seen=blocked_by,
        remedy=OWNERS[cause.owner].remedy,
        owner=cause.owner,
        detail=cause.detail,
        amount_ms=cause.amount_ms,
        records=cause.records,
        share=cause.share,
    )
