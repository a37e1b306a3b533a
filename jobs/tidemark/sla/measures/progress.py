"""Waits until the facts of streams cover the instant of a check.

The measurements of a driver's newest batch are written with its next batch, or with a flush, which comes within
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import polars as pl

from tidemark.clock import Clock
from tidemark.control.folder import BEATS_EVERY_MS, Control, beats_every_ms
from tidemark.control.liveness import liveness_of
from tidemark.facts.fact_tables import stored_in
from tidemark.model.measures.contract import CONTRACT
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES
from tidemark.model.topology import SubTopology, Topology
from tidemark.selection import names_in
from tidemark.semantics.liveness import HAS_DRIVER
from tidemark.semantics.sla import Verdict
from tidemark.sla.measures.status import Status

WAIT_MS = 15_000
"""Longest time that a check waits for facts, in ms, where heartbeats come every second.

If a driver has sent no heartbeat for longer, the check uses the facts that exist.
"""
POLL_S = 0.5


def wait_for_facts(
    layout: Layout, topology: Topology, *, at_ms: int, clock: Clock, sleep_s: Callable[[float], None]
) -> frozenset[str]:
    """Waits for facts, and returns the sub-topologies that lack them.

    Args:
        layout: layout of the warehouse.
        topology: the topology that is checked.
        at_ms: the instant that facts have to cover, epoch ms. An instant in the future counts as now.
        clock: returns the current time, epoch ms.
        sleep_s: sleeps for a number of seconds.

    Returns:
        Names of the sub-topologies whose facts do not cover *at_ms* after the wait.
    """
    began_ms = clock()
    # Facts cannot cover an instant in the future.
    at_ms = min(at_ms, began_ms)
    waiting = {*names_in(topology.sub_topologies)}
    wait_ms = _wait_ms(layout)
    while waiting := {name for name in waiting if not _has_passed(layout, topology.name, name, at_ms, clock())}:
        if clock() - began_ms >= wait_ms:
            break
        sleep_s(POLL_S)
    return frozenset(waiting)


def unknown_if_behind(status: Status, topology: Topology, names: Collection[str]) -> Status:
    """Returns *status*, or an unknown one if its SLA depends on one of *names*, sub-topologies whose facts are missing.

    The status of a contract is returned unchanged.
    """
    # A contract covers only batches with facts.
    if status.spec.measure is CONTRACT or not _subs_of(status.spec.subject, topology) & {*names}:
        return status
    return replace(Status(status.spec, Verdict.UNKNOWN), idle=status.idle)


def _subs_of(subject: str, topology: Topology) -> set[str]:
    """Returns the sub-topologies of *subject*, a table, an operator, a sub-topology or the topology.

    The topology, and a table that no sink writes, belong to all of them.
    """
    subjects = {sub.name: _subjects(sub) for sub in topology.sub_topologies}
    return {name for name, known in subjects.items() if subject in known} or {*subjects}


def _subjects(sub: SubTopology) -> set[str | None]:
    """Returns the names of *sub*, its operators and its sinks' tables."""
    operators = {*names_in(sub.operators)}
    tables = {o.result_table for o in sub.operators}
    return {sub.name, *operators, *tables}


def _has_passed(layout: Layout, topology: str, name: str, at_ms: int, now_ms: int) -> bool:
    """Returns True if the check need not wait for facts of the stream *name*.

    That is so if the stream has no driver, or one that has sent no heartbeat for longer than a check waits. Otherwise
    its heartbeat must be from *at_ms* or later, and the batch in the heartbeat must have facts.
    """
    home = layout.control(topology, name)
    try:
        beat, has_driver = Control(home).heartbeat(), liveness_of(home, now_ms) in HAS_DRIVER
    except PermissionError:
        return True
    if beat is None or not has_driver or now_ms - beat.at_ms > _wait_ms(layout):
        return True
    return beat.at_ms >= at_ms and beat.batch_id <= _newest_known(layout, topology, name)


def _wait_ms(layout: Layout) -> int:
    # In an object store heartbeats come less often.
    return WAIT_MS + beats_every_ms(layout.warehouse) - BEATS_EVERY_MS


def _newest_known(layout: Layout, topology: str, name: str) -> int:
    """Returns the newest batch with facts, -1 if there is none."""
    batches = stored_in(layout.stream(topology, name))(BATCHES, BATCHES.name)
    newest = batches.select(pl.col("batch_id").max()).collect().item()
    return -1 if newest is None else int(newest)
