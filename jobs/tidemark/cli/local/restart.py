"""`tidemark restart`: restarts the driver of a stream by the local Airflow."""

from __future__ import annotations

import argparse

from tidemark.cli.project.plan import REFUSES, lines_of, status_of
from tidemark.cli.shared.local import Conductor, Home, airflow
from tidemark.cli.shared.options import place
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import add_stream, stream
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.reports.batch_job import topology_file
from tidemark.stream.startup.changes import changes_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_stream(parser)


def command(options: argparse.Namespace) -> int:
    """Restarts the driver, and waits until the new one runs; returns REFUSES if it would not start."""
    layout = Layout(place(options))
    topology_file(options.stream.partition("/")[0], layout)  # jobs have none
    topology, sub = stream(options.stream, layout)
    home = Home(options.home.resolve())
    if not airflow.runs(home.airflow):
        msg = f"nothing runs in {home.path}; `tidemark up {topology.name}` starts its streams"
        raise InvalidArgument(msg)
    changes = changes_of(Stream(topology, sub, layout))
    if status_of(changes) == REFUSES:
        say_inert("\n".join([*lines_of(topology.name, changes), "nothing was restarted"]))
        return REFUSES
    conductor = Conductor(home, topology, say_inert)
    with conductor.step(f"restarting {topology.name}/{sub.name}"):
        conductor.restart(airflow.api(home.airflow), sub.name)
    return 0
