"""`tidemark up`: start Kafka, Airflow and the streams, and leave them running."""

from __future__ import annotations

import argparse

from tidemark.cli.local import Conductor, addresses, stack
from tidemark.cli.options import add_slow
from tidemark.cli.output import say_inert


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_slow(parser)


def command(options: argparse.Namespace) -> int:
    """Start what does not run."""
    conductor = Conductor.of(options.home, say_inert)
    started = False
    try:
        _, api = conductor.start()
        conductor.launch_streams(api, options.slow)
        for part in ("reports", "daily_reports", "sla_check", "maintenance"):
            api.unpause(conductor.dag(part))
        started = True
    finally:
        if not started:
            stack.stop(conductor.home)
    say_inert(addresses(conductor.home))
    return 0
