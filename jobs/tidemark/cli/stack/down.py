"""`tidemark down`: drains streams, and stops the local stack.

With names of topologies it drains their streams alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from itertools import product, starmap

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
from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument, TidemarkError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    which = "drain only the streams of these topologies, and pause their DAGs (default: stop everything)"
    parser.add_argument("topologies", nargs="*", metavar="TOPOLOGY", help=which)


def command(options: argparse.Namespace) -> int:
    """Stops all that runs; the next `tidemark up` starts the same topologies."""
    home = Home(options.home.resolve())
    if not home.running():
        say_inert(f"nothing runs in {home.path}")
        return 0
    remembered = InstallationState.of(home)
    names = options.topologies or remembered.running
    if unknown := sorted({*names} - {*remembered.running}):
        running = ", ".join(remembered.running) or "none"
        msg = f"{', '.join(unknown)} was not started by `tidemark up`; running: {running}"
        raise InvalidArgument(msg)
    api = airflow.api(home.airflow) if airflow.runs(home.airflow) else None
    if api is not None:
        # Airflow may be on its way out, and not answer any more.
        with step(say_inert, "draining the streams"), suppress(TidemarkError, OSError):
            stack.drain(home, by="tidemark down", topologies=options.topologies or None)
            wait_for_drained(api, names)
        not_answering = () if options.topologies else (TidemarkError, OSError)
        with suppress(*not_answering):
            _pause(api, remembered, names)
    if not options.topologies or api is None:
        with step(say_inert, "stopping everything"):
            stack.stop(home)
    remembered.stopped(names)
    remembered.keep(home)
    if options.topologies:
        say_inert(f"still running: {', '.join(remembered.running) or 'Kafka and Airflow, which `tidemark down` stops'}")
    return 0


def _pause(api: AirflowApi, remembered: InstallationState, names: Sequence[str]) -> None:
    """Pauses the DAGs of topologies that `up` has unpaused.

    The next `up` unpauses them again.
    """
    # Otherwise runs that are due by then would take the slots before the streams do.
    for dag in starmap(dag_id, product(names, PARTS)):
        if dag in remembered.unpaused and not api.is_paused(dag):
            api.pause(dag)
            remembered.unpaused.remove(dag)
