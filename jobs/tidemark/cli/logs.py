"""`tidemark logs`: what the driver of a stream has logged."""

from __future__ import annotations

import argparse
import time
from collections import deque
from pathlib import Path
from typing import TextIO

from tidemark.cli.options import place
from tidemark.cli.output import say_inert
from tidemark.cli.streams import add_stream, stream
from tidemark.errors import InvalidArgument
from tidemark.spec.layout import Layout

NAMES = ("driver.log", "run.log")
"""Of a driver that Airflow has launched, and of one that `tidemark run` has."""
POLL_S = 0.3


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_stream(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is logged, until Ctrl-C")
    parser.add_argument("-n", "--lines", type=int, default=100, help="the last so many lines (%(default)s)")


def command(options: argparse.Namespace) -> int:
    """Show the end of the newest log."""
    topology, sub = stream(options.stream)
    control = Layout(place(options)).control(topology.name, sub.name)
    logs = [control / name for name in NAMES if (control / name).is_file()]
    if not logs:
        msg = f"{topology.name}/{sub.name} has no log in {control}; `tidemark up {topology.name}` starts it"
        raise InvalidArgument(msg)
    newest = max(logs, key=lambda log: log.stat().st_mtime)
    with newest.open(encoding="utf-8", errors="replace") as log:
        for line in deque(log, maxlen=max(1, options.lines)):
            say_inert(line.rstrip("\n"))
        if options.follow:
            _follow(log, newest)
    return 0


def _follow(log: TextIO, path: Path) -> None:
    """Show what is added to *log*, the file at *path*, until that is gone."""
    while path.exists():
        if line := log.readline():
            say_inert(line.rstrip("\n"))
        else:
            time.sleep(POLL_S)
