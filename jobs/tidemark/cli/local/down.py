"""`tidemark down`: drains streams, and stops the local stack.

With names of topologies it drains their streams alone, wherever they were launched.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import product, starmap
from pathlib import Path

from tidemark.cli.shared.local import (
    PARTS,
    AirflowApi,
    Home,
    InstallationState,
    airflow,
    dag_id,
    stack,
    step,
    wait_for_drained,
)
from tidemark.cli.shared.options import place
from tidemark.cli.shared.output import say_inert, say_with_commands
from tidemark.cli.shared.streams import valid_topologies
from tidemark.clock import wall_clock_ms
from tidemark.control.folder import Control
from tidemark.control.liveness import liveness_of
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.layout import Layout
from tidemark.selection import outside, within
from tidemark.semantics.liveness import HAS_DRIVER

BY = "tidemark down"
"""Who asks drivers to end."""
AFTER_TRIGGER_S = 120.0
"""Time that a driver has for its last batch, in addition to its trigger."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    which = "drain only the streams of these topologies, and pause their DAGs (default: stop everything)"
    parser.add_argument("topologies", nargs="*", metavar="TOPOLOGY", help=which)


def command(options: argparse.Namespace) -> int:
    """Stops all that runs; the next `tidemark up` starts the same topologies."""
    home, warehouse = Home(options.home.resolve()), place(options)
    if options.topologies:
        return drain(home, warehouse, options.topologies)
    if home.running():
        _stop(home)
    else:
        say_inert(f"nothing runs in {home.path}")
    # Another Airflow or a person launched these streams.
    living = [control for control in stack.controls_in(warehouse) if control.is_held()]
    _tell_of(living)
    if living:
        names = " ".join(sorted({control.home.parent.name for control in living}))
        drains = f"`tidemark down {names}` drains what writes to {warehouse}, wherever it was launched"
        say_with_commands(drains, options)
    return 1 if living else 0


def _stop(home: Home) -> None:
    """Drains the streams that were launched in *home*, and stops everything there."""
    remembered = InstallationState.of(home)
    names = remembered.running
    if airflow.runs(home.airflow):
        api = airflow.api(home.airflow)
        # Airflow may be on its way out, and not answer any more.
        with step(say_inert, "draining the streams"), suppress(TidemarkError, OSError):
            stack.drain(stack.controls_in(home.warehouse), by=BY)
            wait_for_drained(api, names)
        with suppress(TidemarkError, OSError):
            _pause(api, remembered, names)
    with step(say_inert, "stopping everything"):
        stack.stop(home)
    remembered.stopped(names)
    remembered.keep(home)


def drain(home: Home, warehouse: Path, names: Sequence[str]) -> int:
    """Drains the streams of the topologies *names*, wherever they were launched; returns 1 if one does not end.

    A driver gets as long as its trigger and AFTER_TRIGGER_S for its last batch.
    """
    remembered = InstallationState.of(home)
    topologies = {topology.name: topology for topology in valid_topologies(Layout(warehouse))}
    known = {*topologies, *remembered.running, *(control.home.parent.name for control in stack.controls_in(warehouse))}
    if unknown := outside(names, known):
        msg = f"there is no topology {', '.join(unknown)}; known: {', '.join(sorted(known)) or 'none'}"
        raise InvalidArgument(msg)
    living = [control for control in stack.controls_in(warehouse, names) if control.is_held()]
    triggers_ms = [topologies[name].trigger_ms for name in names if name in topologies]
    within_s = max(triggers_ms, default=0) / 1_000 + AFTER_TRIGGER_S
    left: list[Control] = []
    if living:
        with step(say_inert, f"draining {', '.join(map(_stream, living))}"):
            left = stack.drain(living, by=BY, within_s=within_s)
    else:
        say_inert(f"no stream of {', '.join(names)} runs in {warehouse}")
    if ours := within(names, remembered.running):
        if airflow.runs(home.airflow):
            api = airflow.api(home.airflow)
            with suppress(TidemarkError, OSError):
                wait_for_drained(api, ours)
            _pause(api, remembered, ours)
        remembered.stopped(ours)
        remembered.keep(home)
    _tell_of(left)
    if left:
        say_inert(f"they were asked to end {within_s:g} s ago, and end after their batch; `tidemark status` shows it")
    return 1 if left else 0


def _tell_of(living: Iterable[Control]) -> None:
    """Names the streams that are still *living*, with their states."""
    for control in living:
        beat = control.heartbeat()
        where = f" on {beat.host}, process {beat.pid}" if beat is not None and beat.host else ""
        doing = f": {beat.doing}" if beat is not None and beat.doing else ""
        state = liveness_of(control.home, wall_clock_ms())
        # A driver that has only just taken the lease has sent no heartbeat yet.
        so_far = f", {state}" if state in HAS_DRIVER else ""
        say_inert(f"{_stream(control)} still has a driver{where}{so_far}{doing}")


def _stream(control: Control) -> str:
    return f"{control.home.parent.name}/{control.home.name}"


def _pause(api: AirflowApi, remembered: InstallationState, names: Sequence[str]) -> None:
    """Pauses the DAGs of topologies that `up` has unpaused.

    The next `up` unpauses them again.
    """
    # Otherwise runs that are due by then would take the slots before the streams do.
    for dag in starmap(dag_id, product(names, PARTS)):
        if dag in remembered.unpaused and not api.is_paused(dag):
            api.pause(dag)
            remembered.unpaused.remove(dag)
