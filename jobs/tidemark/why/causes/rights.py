"""Finds rights that a Kafka cluster did not grant to a driver."""

from __future__ import annotations

from tidemark.control.folder import StreamState
from tidemark.facts.heartbeat_facts import Beat
from tidemark.model.project.rights import acl, missing_right
from tidemark.why.evidence.commands import start
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding
from tidemark.why.evidence.snapshot import Scene

MISSING_RIGHT = Cause(
    "missing_right",
    Trait.FAULT | Trait.SILENCE,
    "a Kafka cluster does not grant the driver a right: operation, topic and cluster",
)


def without_right(scene: Scene, name: str, beat: Beat) -> WhyFinding | None:
    """Returns a finding if the driver of the operator *name* failed because Kafka did not grant it a right; else None.

    *beat* is the newest heartbeat of that driver.
    """
    right = missing_right(beat.reason or "") if beat.state is StreamState.FAILED else None
    if right is None:
        return None
    failure = f"the driver of {scene.sub(name).name} failed"
    observation = f"{failure}: kafka.{right.cluster} does not grant {right.operation} on {right.resource}"
    cluster = scene.topology.clusters.get(right.cluster)
    grant = acl(right, cluster.security.user, cluster.bootstrap) if cluster else acl(right)
    remedy = f"ask the administrator of that cluster to grant it: {grant}; then {start(scene, name)}"
    return scene.finding(MISSING_RIGHT, name, observation, remedy, since_ms=beat.at_ms)
