"""Whether the drivers live whose results an operator needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tidemark.control import StreamState
from tidemark.kernels.restarts import STILL_AFTER_MS, TRIGGERS
from tidemark.spec.intervals import iso
from tidemark.spec.operators import HopSource
from tidemark.spec.toml_keys import length
from tidemark.why.commands import logs, start
from tidemark.why.facts import BEATS_WITHIN_MS, Beat
from tidemark.why.findings import Cause, Finding
from tidemark.why.scene import Scene

MIB = 2**20
ENDED_WELL = frozenset({StreamState.DRAINED, StreamState.ROTATED})
RESTARTED_WITHIN_MS = 60_000
"""A restart explains results for as long after the first batch of the new driver."""
SLOW_AFTER_MS = 60_000
"""A batch that has been running for longer is worth a word."""


def drivers(scene: Scene, name: str) -> Iterator[Finding]:
    """What is wrong with the driver of the operator *name*, then with those of the sub-topologies it reads from."""
    own = _replaced_meanwhile(scene, name) or _driver(scene, name) or _restarted(scene, name)
    if own:
        yield own
    for operator in _upstreams(scene, name):
        hop = scene.operator(operator)
        if isinstance(hop, HopSource):
            for finding in drivers(scene, hop.repartition):
                dead = finding.cause is Cause.DRIVER_DEAD
                yield replace(finding, cause=Cause.UPSTREAM_DEAD) if dead else finding


def _driver(scene: Scene, name: str) -> Finding | None:
    facts, sub = scene.of(name), scene.sub(name).name
    beat = facts.beat
    if beat is None and facts.batches.height:
        return None  # Its driver is of a time before there were heartbeats.
    if beat is None:
        return scene.found(Cause.NEVER_STARTED, name, f"{sub} left no heartbeat and no batch", start(scene, name))
    again, look = start(scene, name), f"look at its log: {logs(scene, name)}"
    dead = {
        StreamState.FAILED: (f"failed: {beat.reason}", f"correct that and {again}"),
        StreamState.DRAINED: ("was drained", again),
        StreamState.ROTATED: ("ended so that a new one takes its place", f"{again}, unless Airflow just does"),
    }.get(beat.state)
    if dead is None and beat.is_gone:
        dead = ("was killed", f"{look}, and {again}, unless Airflow just does")
    if dead is None and scene.at_ms - beat.at_ms > BEATS_WITHIN_MS:
        dead = ("does not beat any more", f"{look}, and {again}")
    if dead is not None:
        said, remedy = dead
        reading = facts.reading(scene.sub(name)) if beat.state not in ENDED_WELL else ""
        if reading and (beat.state is not StreamState.FAILED or reading in said):
            said = said if reading in said else f"{said}; {reading}"
            remedy += "; if it dies of the same records again, one of them may be too large unpacked: "
            remedy += "the driver after two such deaths looks for that record and passes over it"
        if beat.is_short_of_memory:
            said, remedy = f"{said}; before, {_memory(beat)}", f"give it more memory: {remedy}"
        return scene.found(Cause.DRIVER_DEAD, name, f"the driver of {sub} {said}", remedy, since_ms=beat.at_ms)
    return _living(scene, name, beat)


def _living(scene: Scene, name: str, beat: Beat) -> Finding | None:
    """Why the running driver of the operator *name*, with the newest heartbeat *beat*, does no work; None: it works."""
    facts, sub = scene.of(name), scene.sub(name).name
    if beat.reason:
        remedy = "make space (`tidemark tables` shows what is large), or have the disk take writes; the driver goes on "
        remedy += f"by itself, as its log shows: {logs(scene, name)}"
        return scene.found(Cause.CANNOT_WRITE, name, f"the driver of {sub} {beat.reason}", remedy)
    if beat.state is StreamState.STARTING and not facts.finished_after(beat.at_ms):
        seen = f"the driver of {sub} is starting since {iso(facts.started_ms)}, and reads nothing yet"
        remedy = f"wait; after a minute look at its log: {logs(scene, name)}, or {start(scene, name)}"
        return scene.found(Cause.DRIVER_STARTING, name, seen, remedy, since_ms=facts.started_ms)
    if beat.is_short_of_memory:
        remedy = "give its host or container more memory, or run it in shards on executors (shards); then "
        remedy += start(scene, name)
        return scene.found(Cause.SHORT_OF_MEMORY, name, f"the driver of {sub}: {_memory(beat)}", remedy)
    began_ms = beat.batch_started_at_ms
    if began_ms is not None and beat.at_ms - began_ms > SLOW_AFTER_MS:
        seen = f"one batch of {sub} has been running for {length(beat.at_ms - began_ms)}"
        remedy = f"look for the slow operator: `tidemark topology {scene.topology.name}`, or at the driver's log: "
        remedy += logs(scene, name)
        return scene.found(Cause.SLOW_BATCH, name, seen, remedy, since_ms=began_ms)
    if facts.batches.height:
        return _standing_still(scene, name)
    seen = f"the driver of {sub} lives and has not finished a batch yet"
    remedy = f"wait, or look at its log: {logs(scene, name)}"
    return scene.found(Cause.NEVER_STARTED, name, seen, remedy, since_ms=beat.at_ms)


def _standing_still(scene: Scene, name: str) -> Finding | None:
    """That the driver of the operator *name* was not replaced and has shown no sign of work for long."""
    since_ms, sub = scene.of(name).worked_ms, scene.sub(name).name
    if scene.at_ms - since_ms <= max(STILL_AFTER_MS, TRIGGERS * scene.topology.trigger_ms):
        return None
    seen = f"the driver of {sub} stands still, and reads nothing: it has shown no sign of work for "
    seen += length(scene.at_ms - since_ms)
    remedy = f"{_why_still(scene, name)}; or {start(scene, name)}"
    return scene.found(Cause.BACKLOG, name, seen, remedy, since_ms=since_ms)


def _why_still(scene: Scene, name: str) -> str:
    return (
        f"look at the driver's log of that time: {logs(scene, name)}, and whether its host was suspended, paused or "
        "short of memory"
    )


def _memory(beat: Beat) -> str:
    """What the driver of *beat* had of memory, in words."""
    used, free, state = (round((n or 0) / MIB) for n in (beat.memory_bytes, beat.memory_free_bytes, beat.state_bytes))
    return f"it took {used:,} MiB, of which what the operators keep {state:,}, and {free:,} MiB were left"


def restarts(scene: Scene, name: str, *, within_ms: int) -> Iterator[Finding]:
    """The drivers, of the operator *name* and of the sub-topologies it reads from, that read nothing for a while.

    They were replaced or stood still, and read on in the last *within_ms*.
    """
    own = _restarted(scene, name, within_ms=within_ms)
    if own:
        yield own
    for operator in _upstreams(scene, name):
        hop = scene.operator(operator)
        if isinstance(hop, HopSource):
            yield from restarts(scene, hop.repartition, within_ms=within_ms)


def _replaced_meanwhile(scene: Scene, name: str) -> Finding | None:
    """That no driver ran the operator *name* at the instant, or it stood still, as is known afterwards."""
    restart = scene.of(name).restart
    return None if restart is None or restart.to_ms <= scene.at_ms else _restarted(scene, name)


def _restarted(scene: Scene, name: str, *, within_ms: int = RESTARTED_WITHIN_MS) -> Finding | None:
    """That the driver of *name* was replaced, or stood still, in the last *within_ms*, and what waited meanwhile."""
    restart = scene.of(name).restart
    if restart is None or scene.at_ms - restart.to_ms > within_ms:
        return None
    driver = f"the driver of {scene.sub(name).name}"
    if restart.stood_still:
        seen = f"{driver} stood still and was not replaced: {restart.seen}"
        return scene.found(Cause.BACKLOG, name, seen, _why_still(scene, name), since_ms=restart.from_ms)
    seen = f"{driver} was replaced: {restart.seen}"
    before = logs(scene, name, " --lines 1000")
    remedy = f"nothing is to be done if it was a deployment; otherwise look at the log of the driver before: {before}"
    return scene.found(Cause.DRIVER_RESTARTED, name, seen, remedy, since_ms=restart.from_ms)


def _upstreams(scene: Scene, name: str) -> dict[str, None]:
    """The operator *name* and those of its sub-topology that it needs, once each."""
    found = {name: None}
    for upstream in scene.operator(name).inputs:
        found |= _upstreams(scene, upstream)
    return found
