"""`tidemark down`: drain the streams and stop everything that runs."""

from __future__ import annotations

import argparse
from contextlib import suppress

from tidemark.cli.local import Conductor, airflow, stack
from tidemark.cli.output import say_inert
from tidemark.errors import TidemarkError


def add_options(_: argparse.ArgumentParser) -> None:
    """It takes none."""


def command(options: argparse.Namespace) -> int:
    """Stop what runs."""
    conductor = Conductor.of(options.home, say_inert)
    if not conductor.home.running():
        say_inert(f"nothing runs in {conductor.home.path}")
        return 0
    if airflow.runs(conductor.home.airflow):
        with conductor.step("draining the streams"), suppress(TidemarkError, OSError):  # it may not answer any more
            conductor.drain(airflow.api(conductor.home.airflow), by="tidemark down")
    with conductor.step("stopping everything"):
        stack.stop(conductor.home)
    return 0
