"""`tidemark restart`: have the local Airflow end the driver of a stream and start another one."""

from __future__ import annotations

import argparse

from tidemark.cli.local import Conductor, Home, airflow
from tidemark.cli.output import say_inert
from tidemark.cli.streams import add_stream, stream
from tidemark.errors import InvalidArgument


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_stream(parser)


def command(options: argparse.Namespace) -> int:
    """Restart it, and wait until it runs."""
    topology, sub = stream(options.stream)
    home = Home(options.home.resolve())
    if not airflow.runs(home.airflow):
        msg = f"nothing runs in {home.path}; `tidemark up {topology.name}` starts its streams"
        raise InvalidArgument(msg)
    conductor = Conductor(home, topology, say_inert)
    with conductor.step(f"restarting {topology.name}/{sub.name}"):
        conductor.restart(airflow.api(home.airflow), sub.name)
    return 0
