"""Runs a stream under its lease, and reports its end."""

from __future__ import annotations

import logging
from functools import partial

from tidemark.control.folder import KILLED, Control, LeaseLost, StreamState, TopologyChange, digest
from tidemark.errors import Contradiction, TidemarkError
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import slas_in
from tidemark.model.stream import Stream
from tidemark.model.topology import Time, load, on_processing_time
from tidemark.storage.delta.format import refuse_other
from tidemark.storage.disk import Disk, trouble_of_driver_before
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.driver.launch import take_lease
from tidemark.stream.driver.reason import as_reason
from tidemark.stream.driver.shared_session import SharedSession
from tidemark.stream.pulse import Pulse
from tidemark.stream.query import RunOptions, StreamQuery, check_may_go_on, read_secrets
from tidemark.stream.shards.resharding import forget
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.fatal import DEATH, cause_of, count_error, count_kill
from tidemark.stream.startup.soundness import refuse_unless_sound
from tidemark.stream.startup.source_list import follow, settle
from tidemark.stream.startup.state_compatibility import meanings
from tidemark.stream.startup.unread import skip_command, unread_clause

log = logging.getLogger("tidemark.stream")


def run_stream(options: RunOptions, session_of: SharedSession) -> int:
    """Takes the lease of a stream, runs it as a query of a session, and returns the exit status."""
    # The digest is taken before the file is read: a change in between shows as another digest, not as the same.
    running = digest(options.topology)
    topology = load(options.topology)
    if options.time is Time.PROCESSING:
        topology = on_processing_time(topology)
    sub = topology.sub_topology(options.sub_topology)
    control = Control(Layout(options.warehouse).control(topology.name, sub.name))
    if (epoch := take_lease(control, options)) is None:
        return 3  # tells Airflow that another driver runs the stream, which is no failure of this one
    project = Project.of(options.topology.parent)
    promise_ms = slas_in(project, topology).least_latency_ms if project else None
    stream_of = Stream(topology, sub, Layout(options.warehouse), promise_ms)
    before = control.heartbeat()
    history = Heartbeats(stream_of.home, topology=topology.name, sub_topology=sub.name)
    past = trouble_of_driver_before(before.reason, before.at_ms) if before else None
    disk = Disk(partial(check_may_go_on, control, epoch), past=past)
    pulse = Pulse(
        control, history, epoch, options.launch_id, disk=disk, digest=running, launched_by=options.launched_by
    )
    try:
        refuse_other(stream_of.layout.warehouse)
        follow_file(stream_of, control, epoch)
        if before and before.state in KILLED and (reading := unread_clause(stream_of.control, sub)):
            log.warning("the previous driver was killed: %s", reading)
        failed = count_kill(control, sub, before)
        secrets, state = read_secrets(options), None
        while state is None:
            # What a query has in memory may be ahead of its journal, so each one begins as a new driver does.
            state = StreamQuery(options, stream_of, control, pulse, failed, session_of, secrets, disk).run()
    except Exception as error:
        if (lost := _lost_lease(error, control, epoch)) is not None:
            pulse.end(StreamState.FAILED)
            log.error("%s", lost)
            return 3
        if not isinstance(error, TidemarkError) and (reading := unread_clause(stream_of.control, sub)):
            error.add_note(reading)
        # What a start raises is about no record of a batch.
        if pulse.is_in_batch or cause_of(error) == DEATH:
            record = count_error(control, sub, error).record
            if record:
                command = skip_command(topology.name, sub.name, record)
                error.add_note(f"to continue without the record {record}: {command}")
        log.exception("stream %s/%s failed", topology.name, sub.name)
        pulse.end(StreamState.FAILED, reason=as_reason(error))
        return 1
    pulse.end(state)
    return 0


def follow_file(stream_of: Stream, control: Control, epoch: int) -> None:
    """Has the stream continue with its file, which may have changed since the last driver.

    Raises:
        Unsound: the stream cannot go on with this file, or what the last driver left is damaged.
    """
    check_lease = partial(control.check_lease, epoch)
    settle(control, check_lease)
    # Before the first batch, which would write over the evidence.
    found = evidence(stream_of)
    refuse_unless_sound(found)
    reached = -1 if found.decided is None else found.decided
    if found.returning:
        # The old states of these operators, which `tidemark reshard` may have written again, lack what came while the
        # file was without them.
        forget(control.home)
        of_returning = "{} begins anew: it was left out of the file before"
        control.begin_anew(
            TopologyChange(name=name, after=reached, line=of_returning.format(name), read_by=stream_of.sub.behind(name))
            for name in found.returning
        )
    # The next start compares the file with these meanings, so a stream that is not sound keeps its old ones.
    control.keep_meanings(meanings(stream_of.sub))
    for change in follow(control, stream_of.sub, reached, check_lease):
        log.warning("%s", change.line)


def _lost_lease(error: Exception, control: Control, epoch: int) -> LeaseLost | None:
    """Returns the loss of the lease that is the reason of *error*."""
    if isinstance(error, LeaseLost):
        return error
    if isinstance(error, Contradiction):
        try:
            control.check_lease_anew(epoch)
        except LeaseLost as lost:
            return lost
        except OSError:
            pass  # a store that does not answer proves nothing
    return None
