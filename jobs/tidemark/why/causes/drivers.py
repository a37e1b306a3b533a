"""Finds what is wrong with the driver of an operator, and with the drivers of the streams before it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tidemark.control.folder import StreamState
from tidemark.errors import UnreadableFile
from tidemark.facts.heartbeat_facts import Beat
from tidemark.graph import reached
from tidemark.kernels.reports.restarts import STILL_AFTER_MS, TRIGGERS
from tidemark.model.settings.intervals import instant_ms, iso
from tidemark.model.settings.lengths import counted, for_people
from tidemark.semantics.liveness import ENDED_WELL, HAS_DRIVER, Liveness
from tidemark.storage.disk import BEFORE, is_over, past_trouble, since_of
from tidemark.why.causes.rights import without_right
from tidemark.why.evidence.commands import logs, start
from tidemark.why.evidence.findings import (
    BACKLOG,
    CATCHING_UP,
    NEVER_STARTED,
    Cause,
    Trait,
    WhyFinding,
)
from tidemark.why.evidence.snapshot import Scene

DRIVER_DEAD = Cause(
    "driver_dead",
    Trait.FAULT | Trait.SILENCE,
    "the driver failed or was killed, or the next one has not come five minutes after a rotation",
)
DRIVER_STUCK = Cause(
    "driver_stuck",
    Trait.FAULT | Trait.SILENCE,
    "the driver holds its lease, and has sent no heartbeat for a minute or has been starting for five",
)
DRIVER_UNKNOWN = Cause(
    "driver_unknown",
    Trait.FAULT | Trait.SILENCE,
    "you may not read the driver's control folder, and its heartbeats are missing or too old to tell",
)
DRAINED = Cause(
    "drained",
    Trait.USUAL | Trait.SILENCE,
    "the driver was asked to end, and did; who asked, and the command that starts the stream",
)
FINISHED = Cause(
    "finished",
    Trait.USUAL | Trait.SILENCE,
    "the job ended by itself, without an error",
)
FILE_UNREADABLE = Cause(
    "file_unreadable",
    Trait.FAULT | Trait.SILENCE,
    "a file or table of the stream is damaged; the finding has what [`tidemark "
    "doctor`](reliability.md#before-the-first-batch) says",
)
UPSTREAM_DEAD = Cause(
    "upstream_dead",
    Trait.FAULT | Trait.SILENCE,
    "the driver of an upstream sub-topology is dead",
)
DRIVER_STARTING = Cause(
    "driver_starting",
    Trait.USUAL,
    "the driver is starting, or about to replace one that was rotated",
)
DRIVER_RESTARTED = Cause(
    "driver_restarted",
    Trait.USUAL,
    "the driver was replaced less than a minute ago: the time without one, and the records that had come "
    "when the new one first looked",
)
CANNOT_WRITE = Cause(
    "cannot_write",
    Trait.FAULT,
    "the disk is full, over its quota, read-only or failing, or what waited for it is not done yet",
)
REGISTRY_SILENT = Cause(
    "registry_silent",
    Trait.FAULT,
    "the registry does not answer, and a batch has records of a schema that it must name",
)
BROKER_SILENT = Cause(
    "broker_silent",
    Trait.FAULT,
    "no broker of a Kafka cluster answers; it appears within 30 s, in an object store within 45 s",
)
SHORT_OF_MEMORY = Cause(
    "short_of_memory",
    Trait.FAULT,
    "the driver has less than a tenth of its memory left",
)
FIRST_BATCH = Cause(
    "first_batch",
    Trait.USUAL,
    "the first batch of the stream was planned or is running, and has told nothing yet",
)
SLOW_BATCH = Cause(
    "slow_batch",
    Trait.FAULT,
    "one batch has been running for more than 30 s and two triggers",
)

MIB = 2**20
WAITS_FOR_SCHEMA = "waits for the schema"
"""How the reason in a heartbeat begins if the driver waits for a schema of the registry."""
WAITS_FOR_KAFKA = re.compile(r"waits for Kafka: .* since (\S+)")
"""The reason in a heartbeat if the brokers do not answer."""
FREE_SPACE = "free space (`tidemark tables` shows large tables), or make the disk writable"
ENDS = {Liveness.DRAINED: DRAINED, Liveness.FINISHED: FINISHED, Liveness.ROTATED: DRIVER_STARTING}
"""Causes of drivers that ended as they should."""
TOLD_ENDS = frozenset({Liveness.FAILED, Liveness.DRAINED, Liveness.FINISHED})
"""The ends after which no other driver is on its way, and the last heartbeat says why the driver ended."""
RESTARTED_WITHIN_MS = 60_000
"""A restart counts as a reason until this long after the first batch of the new driver, ms."""


def drivers(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields what is wrong with the driver of the operator *name*, and then with the drivers upstream of it."""
    yield from _damages(scene, name)
    finding = _being_replaced(scene, name) or _driver(scene, name) or _find_restart(scene, name)
    if finding:
        yield finding
    yield from _catching_up(scene, name)
    for operator in _upstreams(scene, name):
        for writer in _writers(scene, operator):
            for upstream in drivers(scene, writer):
                is_dead = upstream.cause is DRIVER_DEAD
                yield replace(upstream, cause=UPSTREAM_DEAD) if is_dead else upstream


def drained(scene: Scene) -> Iterator[WhyFinding]:
    """Yields a finding for each stream whose driver was asked to end, and did."""
    for sub in scene.topology.sub_topologies:
        finding = _driver(scene, sub.operators[-1].name)
        if finding is not None and finding.cause is DRAINED:
            yield finding


def ended(scene: Scene, stream: str) -> WhyFinding | None:
    """Returns how the driver of *stream* (TOPOLOGY/SUB_TOPOLOGY) ended; None unless its last heartbeat says why."""
    for sub in scene.topology.sub_topologies:
        name = sub.operators[-1].name
        if stream == f"{scene.topology.name}/{sub.name}" and scene.of(name).driver.liveness in TOLD_ENDS:
            return _driver(scene, name)
    return None


def _damages(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields a finding for each damaged file that keeps a driver of the operator *name* from starting.

    There is none while a driver runs.
    """
    driver, sub = scene.of(name).driver, scene.sub(name).name
    # Queries of a team's own jobs have no such files, and of an earlier instant the files are not known.
    if driver.liveness in HAS_DRIVER or scene.topology.jobs or not driver.is_newest:
        return
    for damage in (*driver.damages, *driver.lost_commits(f"{scene.topology.name}/{sub}")):
        observation = f"no driver of {sub} can start: {damage.file}: {damage.found}"
        yield scene.finding(FILE_UNREADABLE, name, observation, f"{damage.remedy}; then {start(scene, name)}")


def file_unreadable(scene: Scene, name: str, damage: UnreadableFile) -> WhyFinding:
    """Returns the finding that facts about the operator *name* cannot be read. Its driver may run nevertheless."""
    observation = f"what is known of it cannot be read: {damage.file}: {damage.found}"
    return scene.finding(FILE_UNREADABLE, name, observation, damage.remedy)


def _driver(scene: Scene, name: str) -> WhyFinding | None:
    """Returns what is wrong with the driver of the operator *name* by its newest heartbeat; None if nothing is."""
    facts, sub = scene.of(name), scene.sub(name).name
    beat = facts.driver.beat
    if beat is None and facts.tables.batches.height:
        return None  # nothing but heartbeats tells of a driver
    if beat is None and facts.driver.liveness is Liveness.UNKNOWN:
        return _unknown(scene, name, "")
    if beat is None:
        return scene.finding(
            NEVER_STARTED, name, f"{sub} has never run: there is no heartbeat and no batch", start(scene, name)
        )
    if (missing_right := without_right(scene, name, beat)) is not None:
        return missing_right
    start_again, liveness = start(scene, name), facts.driver.liveness
    if (stuck := _stuck_or_unknown(scene, name, beat)) is not None:
        return stuck
    if (ended := _ended(scene, name, beat)) is not None:
        state, remedy = ended
        # The error of a team's own job may be about another disk.
        past = None if scene.topology.jobs else past_trouble(beat.reason, beat.at_ms)
        if past is not None:
            # The reason of a failure has the trouble already.
            state = state if liveness is Liveness.FAILED else f"{state}; before that {_clause(past)}"
            observation, since_ms = f"the driver of {sub} {state}", instant_ms(since_of(past))
            return scene.finding(
                CANNOT_WRITE, name, observation, f"{FREE_SPACE}; then {start_again}", since_ms=since_ms
            )
        reading = facts.driver.reading(scene.sub(name)) if liveness not in ENDED_WELL else ""
        if reading and (liveness is not Liveness.FAILED or reading in state):
            state = state if reading in state else f"{state}; {reading}"
            remedy += "; if it fails at the same records again, one of them may be too large when unpacked: "
            remedy += "after two such failures the next driver searches for that record and skips it"
        if beat.is_short_of_memory:
            state, remedy = f"{state}; before, {_memory(beat)}", f"give it more memory: {remedy}"
        cause = ENDS.get(liveness, DRIVER_DEAD)
        return scene.finding(cause, name, f"the driver of {sub} {state}", remedy, since_ms=beat.at_ms)
    return _explain_running(scene, name, beat)


def _ended(scene: Scene, name: str, beat: Beat) -> tuple[str, str] | None:
    """Returns how the driver of *name* ended, as a clause about it, and the remedy; None if it has not ended."""
    driver = scene.of(name).driver
    again, unless, look = start(scene, name), "unless Airflow is doing so", f"look at its log: {logs(scene, name)}"
    by = f" by {beat.drained_by}" if beat.drained_by else ""
    hung = f" because {beat.killed_for} hung in the same process" if beat.killed_for else ""
    match driver.liveness:
        case Liveness.FAILED:
            return f"failed: {beat.reason}{_topics_read(scene, name, beat)}", f"correct that and {again}"
        case Liveness.DRAINED:
            return f"was drained{by} at {iso(beat.at_ms)}", again
        case Liveness.FINISHED:
            return f"finished by itself at {iso(beat.at_ms)}", f"if it should go on, {again}"
        case Liveness.ROTATED | Liveness.DEAD if beat.state is StreamState.ROTATED:
            return "ended to be replaced by a new one", f"{again}, {unless}"
        case Liveness.DEAD if driver.is_from_folder:
            return f"was killed{hung}", f"{look}, and {again}, {unless}"
        case Liveness.DEAD:
            return "sends no heartbeat any more", f"{look}, and {again}"
        case _:
            return None


def _stuck_or_unknown(scene: Scene, name: str, beat: Beat) -> WhyFinding | None:
    """Returns a finding if the driver of *name* may be alive, but sends no heartbeat or never gets beyond its start."""
    driver, sub = scene.of(name).driver, f"the driver of {scene.sub(name).name}"
    look = f"look at its log: {logs(scene, name)}"
    if driver.liveness is Liveness.UNKNOWN:
        return _unknown(scene, name, f": the newest heartbeat that you may read is of {iso(beat.at_ms)}", beat.at_ms)
    if driver.liveness is not Liveness.STUCK:
        return None
    if driver.is_silent:
        observation = f"{sub} holds its lease, and has sent no heartbeat since {iso(beat.at_ms)}"
        remedy = f"see whether its host is suspended, paused or short of memory, {look}, and {start(scene, name)}"
        return scene.finding(DRIVER_STUCK, name, observation, remedy, since_ms=beat.at_ms)
    if beat.state is StreamState.STARTING:
        since_ms = driver.started_ms
        observation = f"{sub} has been starting since {iso(since_ms)}, and reads nothing yet"
        return scene.finding(DRIVER_STUCK, name, observation, f"{look}, and {start(scene, name)}", since_ms=since_ms)
    return None


def _unknown(scene: Scene, name: str, seen: str, since_ms: int | None = None) -> WhyFinding:
    observation = f"it is not known whether a driver of {scene.sub(name).name} lives{seen}"
    remedy = "ask as the user who runs the drivers, who may read the control folder"
    return scene.finding(DRIVER_UNKNOWN, name, observation, remedy, since_ms=since_ms)


def _topics_read(scene: Scene, name: str, beat: Beat) -> str:
    """Returns the topics of a job's query in brackets, if an error of Kafka ended it and names none of them."""
    topics = [source.topic for source in scene.sub(name).outside_sources if source.topic]
    reason = beat.reason or ""
    if not scene.topology.jobs or "org.apache.kafka" not in reason or any(_is_named(topic, reason) for topic in topics):
        return ""
    return f" (it reads {', '.join(topics)})" if topics else ""


def _is_named(topic: str, text: str) -> bool:
    """Returns True if *text* names *topic*, or a partition of it."""
    # Kafka writes partition 0 of `orders` as orders-0, and names its own packages in errors.
    return bool(re.search(rf"(?<![\w.-]){re.escape(topic)}(-\d+)?(?![\w-]|\.\w)", text))


def _explain_running(scene: Scene, name: str, beat: Beat) -> WhyFinding | None:
    """Returns why the running driver of the operator *name* does no work; None if it works.

    *beat* is the newest heartbeat of that driver.
    """
    facts, sub = scene.of(name), scene.sub(name).name
    if beat.reason and beat.reason.startswith(WAITS_FOR_SCHEMA):
        remedy = "start the registry or correct its url; the driver then continues by itself, as its log shows: "
        remedy += logs(scene, name)
        return scene.finding(REGISTRY_SILENT, name, f"the driver of {sub} {beat.reason}", remedy)
    if beat.reason and (silence := WAITS_FOR_KAFKA.match(beat.reason)):
        remedy = "start the brokers, repair the network to them, or correct the address; the driver then continues by "
        remedy += f"itself, as its log shows: {logs(scene, name)}"
        observation = f"the driver of {sub} {beat.reason}"
        return scene.finding(BROKER_SILENT, name, observation, remedy, since_ms=instant_ms(silence[1]))
    if beat.reason:
        return _disk_trouble(scene, name, beat)
    if beat.state is StreamState.STARTING and not facts.driver.finished_after(beat.at_ms):
        since_ms = facts.driver.started_ms
        observation = f"the driver of {sub} has been starting since {iso(since_ms)}, and reads nothing yet"
        remedy = f"wait; after a minute look at its log: {logs(scene, name)}, or {start(scene, name)}"
        return scene.finding(DRIVER_STARTING, name, observation, remedy, since_ms=since_ms)
    if beat.is_short_of_memory:
        remedy = "give its host or container more memory, or run it in shards on executors (shards); then "
        remedy += start(scene, name)
        return scene.finding(SHORT_OF_MEMORY, name, f"the driver of {sub}: {_memory(beat)}", remedy)
    began_ms = None if facts.driver.finished_after(beat.at_ms) else beat.batch_started_at_ms
    if began_ms is not None and (in_batch := _in_batch(scene, name, began_ms, beat.at_ms)) is not None:
        return in_batch
    if facts.has_finished or facts.planned.ends(scene.sub(name)) is not None:
        return _standing_still(scene, name)
    observation = f"the driver of {sub} is alive and has not finished a batch yet"
    remedy = f"wait, or look at its log: {logs(scene, name)}"
    since_ms = facts.driver.ran_ms or beat.at_ms
    return scene.finding(NEVER_STARTED, name, observation, remedy, since_ms=since_ms)


def _in_batch(scene: Scene, name: str, began_ms: int, at_ms: int) -> WhyFinding | None:
    """Returns a finding if the batch that runs takes long, or is the first one of the stream; None otherwise.

    The batch began at *began_ms*, and was still running at *at_ms*, the instant of the newest heartbeat.
    """
    facts, sub = scene.of(name), scene.sub(name)
    being_read = facts.driver.being_read(sub)
    records = " and ".join(f"{counted(n, 'record')} of {source}" for source, n in being_read.items())
    reads = f"; it reads up to {records}" if records else ""
    # The clock of the driver may have gone back.
    running = f"batch of {sub.name} has been running for {for_people(max(0, scene.at_ms - began_ms))}{reads}"
    if at_ms - began_ms > _still_after_ms(scene):
        remedy = f"look for the slow operator: `tidemark topology {scene.topology.name}`, or at the driver's log: "
        remedy += logs(scene, name)
        return scene.finding(SLOW_BATCH, name, f"one {running}", remedy, since_ms=began_ms)
    if facts.has_finished:
        return None
    input = next(iter(being_read), None)
    return scene.finding(FIRST_BATCH, name, f"the first {running}", "wait", input=input, since_ms=began_ms)


def _still_after_ms(scene: Scene) -> int:
    """Returns the longest time without a finished batch or another sign of work that is not reported, ms."""
    return max(STILL_AFTER_MS, TRIGGERS * scene.topology.trigger_ms)


def _disk_trouble(scene: Scene, name: str, beat: Beat) -> WhyFinding:
    """Returns the finding that a running driver cannot write, or has not caught up since it could not.

    *beat* is its newest heartbeat, whose reason tells of the disk.
    """
    reason, driver = beat.reason or "", f"the driver of {scene.sub(name).name}"
    past = past_trouble(reason, beat.at_ms)
    since_ms = None if past is None else instant_ms(since_of(past))
    if not is_over(reason):
        remedy = f"{FREE_SPACE}; the driver then continues by itself, as its log shows: {logs(scene, name)}"
        return scene.finding(CANNOT_WRITE, name, f"{driver} {reason}", remedy, since_ms=since_ms)
    state = f"{driver} is starting" if beat.state is StreamState.STARTING else f"{driver} lives"
    observation = f"{state}, and has not yet done what waited for the disk: {_clause(reason)}"
    remedy = f"wait: the driver does that by itself, as its log shows: {logs(scene, name)}"
    return scene.finding(CANNOT_WRITE, name, observation, remedy, since_ms=since_ms)


def _clause(past: str) -> str:
    """Returns a text of `past_trouble` as a clause about a driver."""
    return past if past.startswith(BEFORE) else f"it {past}"


def _catching_up(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields a finding for each source whose records wait while the driver of *name* catches up."""
    facts, sub = scene.of(name), scene.sub(name)
    beat = facts.driver.beat
    if beat is None or beat.eta_at_ms is None or facts.driver.liveness is not Liveness.CATCHING_UP:
        return
    # The estimate is made of the numbers in the heartbeat, which stand beside it. A batch since then may tell another.
    behind = beat.records_behind or 0
    of_all = f"; of all sources of {sub.name} {behind:,} wait, " if len(sub.outside_sources) > 1 else "; "
    rates = (
        f"{of_all}{beat.arrival_per_s:,.0f} a second come in and {beat.working_per_s:,.0f} are read, so that all will "
        f"be read about {iso(beat.eta_at_ms)}"
    )
    left_behind = facts.reads.left_behind()
    if len(sub.outside_sources) == 1:
        left_behind = dict.fromkeys(left_behind, behind)
    for source, n in left_behind.items():
        observation = f"{counted(n, 'record of it waits', 'records of it wait')} unread{rates}"
        yield scene.finding(CATCHING_UP, name, observation, "no action is needed", input=source)


def _standing_still(scene: Scene, name: str) -> WhyFinding | None:
    """Returns a finding if the driver of the operator *name* has shown no sign of work for long; None otherwise."""
    since_ms, sub = scene.of(name).driver.worked_ms, scene.sub(name).name
    if scene.at_ms - since_ms <= _still_after_ms(scene):
        return None
    if not scene.of(name).has_finished:
        # Spark may be planning it, or looking for records, of which heartbeats tell nothing.
        observation = f"the first batch of {sub} was planned, and has not finished; the newest sign of work is "
        observation += f"{for_people(scene.at_ms - since_ms)} old"
        remedy = f"look at the driver's log: {logs(scene, name)}; or {start(scene, name)}"
        return scene.finding(SLOW_BATCH, name, observation, remedy, since_ms=since_ms)
    observation = f"the driver of {sub} stands still, and reads nothing: no batch and no heartbeat with work for "
    observation += for_people(scene.at_ms - since_ms)
    remedy = f"{_why_still(scene, name)}; or {start(scene, name)}"
    return scene.finding(BACKLOG, name, observation, remedy, since_ms=since_ms)


def _why_still(scene: Scene, name: str) -> str:
    return (
        f"look at the driver's log of that time: {logs(scene, name)}, and whether its host was suspended, paused or "
        "short of memory"
    )


def _memory(beat: Beat) -> str:
    """Says how much memory the driver used by its heartbeat, and how much was left."""
    used, free, state = (round((n or 0) / MIB) for n in (beat.memory_bytes, beat.memory_free_bytes, beat.state_bytes))
    return f"it used {used:,} MiB, {state:,} of them for states of operators, and {free:,} MiB were free"


def restarts(scene: Scene, name: str, *, within_ms: int) -> Iterator[WhyFinding]:
    """Yields the interruptions of drivers, of the operator *name* and upstream of it, that ended lately.

    In an interruption a driver read nothing, because it was replaced or stood still. Those count after which the driver
    has read again in the last *within_ms*.
    """
    restart = _find_restart(scene, name, within_ms=within_ms)
    if restart:
        yield restart
    for operator in _upstreams(scene, name):
        for writer in _writers(scene, operator):
            yield from restarts(scene, writer, within_ms=within_ms)


def _being_replaced(scene: Scene, name: str) -> WhyFinding | None:
    """Returns a finding if the driver of *name* was being replaced, or stood still, at the instant of the scene.

    Only facts from after that instant can tell so.
    """
    restart = scene.of(name).driver.restart
    return None if restart is None or restart.to_ms <= scene.at_ms else _find_restart(scene, name)


def _find_restart(scene: Scene, name: str, *, within_ms: int = RESTARTED_WITHIN_MS) -> WhyFinding | None:
    """Returns a finding if the driver of *name* was replaced, or stood still, until at most *within_ms* ago."""
    restart = scene.of(name).driver.restart
    if restart is None or scene.at_ms - restart.to_ms > within_ms:
        return None
    restart = scene.of(name).driver.with_unread(restart)
    if restart.stood_still and not restart.waited:
        return None  # nothing came in that time, so that no result is late because of it
    driver = f"the driver of {scene.sub(name).name}"
    if restart.stood_still:
        observation = f"{driver} stood still and was not replaced: {restart.seen}"
        return scene.finding(BACKLOG, name, observation, _why_still(scene, name), since_ms=restart.from_ms)
    observation = f"{driver} was replaced: {restart.seen}"
    before = logs(scene, name, " --lines 1000")
    remedy = f"no action is needed after a deployment; otherwise look at the log of the driver before: {before}"
    return scene.finding(DRIVER_RESTARTED, name, observation, remedy, since_ms=restart.from_ms)


def _upstreams(scene: Scene, name: str) -> list[str]:
    """Returns *name* and the operators of the same sub-topology that are upstream of it."""
    return reached([name], {operator.name: operator.inputs for operator in scene.sub(name).operators})


def _writers(scene: Scene, name: str) -> tuple[str, ...]:
    """Returns the operators of other streams that write what the source *name* reads; none for other operators."""
    operator = scene.operator(name)
    return operator.upstreams if operator.is_source else ()
