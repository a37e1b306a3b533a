"""`tidemark logs`: shows the log of the process that runs a stream.

Its lines name their stream.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from itertools import product
from pathlib import Path
from typing import TextIO

from tidemark.cli.local.run import NAME as RUN
from tidemark.cli.shared.options import place
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import add_stream, stream
from tidemark.control.driver_folder import processes_of
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.recorded_jobs.queries import FILE, read_query
from tidemark.why.evidence.commands import run_job

NAMES = ("driver.log", f"{RUN}.log")
"""Logs of drivers that Airflow and `tidemark run` have launched."""
POLL_S = 0.3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_stream(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow the log until Ctrl-C")
    parser.add_argument(
        "-n", "--lines", type=int, default=100, help="number of lines from the end (default: %(default)s)"
    )


def command(options: argparse.Namespace) -> int:
    """Prints the end of the newest log."""
    layout = Layout(place(options))
    topology, sub = stream(options.stream, layout)
    # The log of a query is that of its job.
    query = read_query(layout.control(topology.name, sub.name) / FILE)
    control = processes_of(layout.control(topology.name, (query.job if query else "") or sub.name))
    shared, of_topology = (processes_of(layout.driver(topology.name, name)) for name in (topology.driver, None))
    # `tidemark run` has a folder of its own for the process of a job.
    folders = [control, control / RUN, *shared.glob("*/"), *of_topology.glob("*/")]
    candidates = [folder / name for folder, name in product(folders, NAMES)]
    logs = list(filter(Path.is_file, candidates))
    if not logs:
        launch = topology.jobs.get(sub.name)
        if launch is None:
            remedy = f"`tidemark up {topology.name}` starts it"
        elif launch.application:
            remedy = f"its job has not run on this host: {run_job(topology.name, launch)}"
        else:
            remedy = "its log is that of the process that calls `listen()`"
        msg = f"{topology.name}/{sub.name} has no log in {control}; {remedy}"
        raise InvalidArgument(msg)
    newest = max(logs, key=lambda log: log.stat().st_mtime)
    with newest.open(encoding="utf-8", errors="replace") as log:
        for line in deque(log, maxlen=max(1, options.lines)):
            say_inert(line.rstrip("\n"))
        if options.follow:
            _follow(log, newest)
    return 0


def _follow(log: TextIO, path: Path) -> None:
    """Prints new lines of *log* until its file at *path* is removed."""
    while path.exists():
        if line := log.readline():
            say_inert(line.rstrip("\n"))
        else:
            time.sleep(POLL_S)
