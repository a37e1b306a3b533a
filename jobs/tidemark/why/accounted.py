"""The first answer of `why`: who owns the time, or the records, for which results are missing.

The account of time gives that answer (`account.silence`). What the walk upstream finds is listed below it as remarks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from tidemark.account.explanation import Answer, Explanation
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.silence import causes_of_silence
from tidemark.account.text import NO_HISTORY, deed_of, each_did, remedy_of, remedy_of_cause
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
    """Returns the cause that a rule has declared under the name of *owner*; without one, a fault of that name."""
    rules()  # imports the files that declare causes
    return declared(owner) or Cause(owner, Trait.FAULT)


def accounted(scene: Scene, layout: Layout, operators: Sequence[str], *, stored: Stored) -> list[WhyFinding]:
    """Returns a finding for each owner because of whom *operators* give no results at the instant of *scene*.

    The owner of most of the time, or of most records, comes first. An operator whose results come as usual has no
    finding. If a table is damaged there is no finding at all: the walk names the damage.

    Args:
        scene: the facts of the topology at the instant that is asked about.
        layout: where the tables of the topology are.
        operators: names of operators of that topology.
        stored: the tables that were opened already, so that all answers come from the same versions.
    """
    topology = scene.topology
    try:
        with naming_damage(scene.tables):
            found = causes_of_silence(topology, layout, tuple(operators), at_ms=scene.at_ms, stored=stored)
    except UnreadableFile:
        return []
    return [
        finding
        for operator, explanation in found.items()
        if not _is_at_rest(scene, explanation)
        for finding in _findings(scene, operator, explanation)
    ]


def _is_at_rest(scene: Scene, explanation: Explanation) -> bool:
    """Returns True if a stream that *explanation* blames for its absence has ended as it should, with nothing unread.

    Then nothing is known to be missing. The account assumes that records have come since the driver ended; here nobody
    has seen any.
    """
    absent_streams = {leaf.detail for leaf in explanation.leaves if leaf.owner == ABSENCE}
    absent = [sub for sub in scene.topology.sub_topologies if f"{scene.topology.name}/{sub.name}" in absent_streams]
    return any(scene.facts[sub.name].driver.liveness in AT_REST and not Inputs(scene).has_unread(sub) for sub in absent)


def _findings(scene: Scene, operator: str, explanation: Explanation) -> Iterator[WhyFinding]:
    topology = scene.topology
    # The lengths that settings take are known without a history.
    is_usual_known = explanation.has_history or explanation.answer is Answer.CANNOT_BE_KEPT
    for leaf, what_it_did in zip(explanation.leaves, each_did(explanation), strict=True):
        # A driver that has failed, or was drained, has left a reason and a remedy, which are better than the owner's.
        end = ended(scene, leaf.detail) if leaf.owner == ABSENCE else None
        sentences = [what_it_did, *([end.seen] if end else []), *([] if is_usual_known else [NO_HISTORY])]
        name, partition = AlertCause(owner=leaf.owner, detail=leaf.detail).place
        deed = deed_of(leaf.became, leaf.amount_ms, leaf.records)
        yield WhyFinding(
            cause=cause_named(leaf.owner),
            sub_topology=topology.sub_topology_of(operator).name,
            operator=operator,
            input=name if name in topology.operators else None,
            partition=partition,
            since_ms=leaf.since_ms,
            seen="; ".join(sentences),
            remedy=end.remedy if end else remedy_of(topology.name, leaf.owner, leaf.detail, leaf.stream, deed),
            owner=leaf.owner,
            detail=leaf.detail or None,
            amount_ms=leaf.amount_ms,
            records=leaf.records,
            became=leaf.became,
            share=leaf.share,
        )


def finding_of_sla(topology: Topology, subject: str | None, cause: AlertCause, blocked_by: str) -> WhyFinding:
    """Returns the *cause* of a broken SLA as a finding.

    The finding is shown at an operator of the SLA's subject. If the subject is none, the operator that the cause names
    is next, then a terminal operator of the stream to blame, and last one of the topology.

    Args:
        topology: the topology that the SLA is about.
        subject: the operator or table of the SLA.
        cause: the owner that the check has blamed.
        blocked_by: the sentence in which the check has told that cause.
    """
    operators, (name, partition) = topology.operators, cause.place
    of_subject = [operator.name for operator in operators.values() if subject in {operator.name, operator.result_table}]
    blamed = (cause.stream or "").split("/")[-1]
    of_stream = [name for sub in topology.sub_topologies if sub.name == blamed for name in sorted(sub.terminals())]
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
        remedy=remedy_of_cause(topology.name, cause),
        owner=cause.owner,
        detail=cause.detail,
        amount_ms=cause.amount_ms,
        records=cause.records,
        share=cause.share,
    )
