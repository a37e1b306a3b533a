"""Finds the cause that broken SLAs of one check have in common.

A cause has a place: a sub-topology, and in it an operator or a partition of a source. Findings of `tidemark why` about
consequences are replaced by what they follow from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from tidemark.model.sla_spec import Measure
from tidemark.model.topology import Topology
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.impact import upstream_of
from tidemark.sla.measures.status import RootCause, Status
from tidemark.why.causes.drivers import (
    BROKER_SILENT,
    CANNOT_WRITE,
    DRAINED,
    DRIVER_DEAD,
    DRIVER_RESTARTED,
    DRIVER_STARTING,
    DRIVER_STUCK,
    DRIVER_UNKNOWN,
    FILE_UNREADABLE,
    FINISHED,
    REGISTRY_SILENT,
    SHORT_OF_MEMORY,
    SLOW_BATCH,
    UPSTREAM_DEAD,
)
from tidemark.why.causes.inputs import ALIGNMENT_WAIT
from tidemark.why.causes.rights import MISSING_RIGHT
from tidemark.why.causes.slow_operators import SLOW_OPERATOR
from tidemark.why.causes.watermarks import PARTITION_BEHIND_HOLDS_BACK, PARTITION_IDLE_HOLDS_BACK
from tidemark.why.causes.windows import TIME_STANDS_STILL, WINDOW_NOT_CLOSED
from tidemark.why.evidence.findings import (
    BACKLOG,
    BEING_READ,
    CATCHING_UP,
    NEVER_STARTED,
    SOURCE_QUIET,
    UNEXPLAINED,
    WhyFinding,
)

OF_DRIVERS = frozenset(
    {
        DRAINED,
        FINISHED,
        DRIVER_DEAD,
        DRIVER_STUCK,
        DRIVER_UNKNOWN,
        DRIVER_STARTING,
        DRIVER_RESTARTED,
        FILE_UNREADABLE,
        CANNOT_WRITE,
        REGISTRY_SILENT,
        BROKER_SILENT,
        SHORT_OF_MEMORY,
        SLOW_BATCH,
        NEVER_STARTED,
        MISSING_RIGHT,
    }
)
"""Causes whose place is a driver: every operator of it waits."""
ABSENT = frozenset({DRAINED, FINISHED, DRIVER_DEAD, DRIVER_STARTING, FILE_UNREADABLE})
"""Causes of an operator that no driver works for."""
AFTERMATH = frozenset({DRIVER_STARTING, DRIVER_RESTARTED, BEING_READ, CATCHING_UP, WINDOW_NOT_CLOSED})
"""Causes that follow a fault which has ended.

An incident of another cause stays with that one.
"""
DRIVER = "driver"
"""Stands for all causes of a driver: they follow one another."""
FOLLOWS_FROM = {UPSTREAM_DEAD: DRIVER_DEAD, TIME_STANDS_STILL: SOURCE_QUIET}
"""Maps a consequence to its cause."""
HELD_BACK = frozenset({PARTITION_IDLE_HOLDS_BACK, PARTITION_BEHIND_HOLDS_BACK})
"""Causes for which other partitions of a source wait in alignment."""
OF_ROWS: Mapping[Measure, str] = MappingProxyType(
    {
        Measure.COMPLETENESS: "broken_rows",
        Measure.CONTRACT: "broken_rows",
        Measure.QUARANTINED_SHARE: "quarantined_records",
        Measure.LATE_SHARE: "late_records",
    }
)
"""The cause, by measure, where rows that exist break an SLA: the rows themselves name the culprit."""
_PARTITION = re.compile(r"(\w+) partition (\d+)")


def root_of(finding: WhyFinding, topology: Topology) -> RootCause:
    """Returns the cause of *finding* with its place."""
    cause = FOLLOWS_FROM.get(finding.cause, finding.cause)
    operator = finding.input or finding.operator
    is_of_driver = cause in OF_DRIVERS or (cause == BACKLOG and not topology.operators[operator].reads_outside)
    if is_of_driver:
        return RootCause(cause=str(cause), sub_topology=finding.sub_topology, since_ms=finding.since_ms)
    sub = topology.sub_topology_of(operator)
    partition = None if cause == SOURCE_QUIET else finding.partition
    since_ms = finding.since_ms
    return RootCause(str(cause), sub_topology=sub.name, operator=operator, partition=partition, since_ms=since_ms)


def root_of_part(culprit: str, blocked_by: str | None, subject: str, topology: Topology) -> RootCause:
    """Returns the cause of a part of a window's age.

    Args:
        culprit: the operator that worked, or a cause.
        blocked_by: the text that names the input and partition, if there is one.
        subject: the operator whose windows they are.
        topology: its topology.
    """
    if culprit in topology.operators:
        sub = topology.sub_topology_of(culprit)
        return RootCause(cause=str(SLOW_OPERATOR), sub_topology=sub.name, operator=culprit)
    match = _PARTITION.search(blocked_by or "")
    if match and match[1] in topology.operators:
        sub = topology.sub_topology_of(match[1])
        return RootCause(cause=culprit, sub_topology=sub.name, operator=match[1], partition=int(match[2]))
    return RootCause(cause=culprit, sub_topology=topology.sub_topology_of(subject).name)


def with_roots(statuses: Iterable[Status], topology: Topology) -> list[Status]:
    """Gives each broken SLA the cause that it shares with others.

    An SLA that is broken for no known reason has the cause of another one, if that lies upstream of its subject.
    """
    own_causes = [_own(status, topology) if status.verdict in BROKEN else status for status in statuses]
    roots = Counter(status.root for status in own_causes if status.root is not None)
    partitions = {root.operator: root for root in roots if root.cause in HELD_BACK}
    shared_causes = []
    for status in own_causes:
        root = status.root
        if root is not None and root.cause == ALIGNMENT_WAIT:
            # Others wait in alignment for the partition that holds time back.
            root = partitions.get(root.operator, root)
        if root is None and status.verdict in BROKEN:
            root = _shared(status, roots, topology)
        shared_causes.append(replace(status, root=root))
    return shared_causes


def _own(status: Status, topology: Topology) -> Status:
    """Adds the cause to a *status* whose culprit is an operator."""
    if status.root is not None or status.culprit is None or status.verdict is Verdict.AHEAD_OF_CLOCK:
        return status
    if (cause := OF_ROWS.get(status.spec.measure)) is None:
        return status
    is_operator = status.culprit in topology.operators
    sub_topology = topology.sub_topology_of(status.culprit).name if is_operator else None
    return replace(status, root=RootCause(cause=cause, sub_topology=sub_topology, operator=status.culprit))


def _shared(status: Status, roots: Counter[RootCause], topology: Topology) -> RootCause:
    upstream = upstream_of(status.spec.subject, topology)
    for root, _ in roots.most_common():
        if (root.operator or root.sub_topology) in upstream:
            return root
    return RootCause(cause=str(UNEXPLAINED), operator=status.spec.subject)
