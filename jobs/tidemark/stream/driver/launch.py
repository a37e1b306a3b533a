"""Acquires the lease of a driver, as its command line asks for it."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.control.cluster_manager import managed_driver, record
from tidemark.control.folder import AlreadyRunning, Control
from tidemark.semantics.liveness import SILENT_AFTER_MS
from tidemark.spark_session import submitted_properties

log = logging.getLogger("tidemark.stream")


class LaunchOptions(argparse.Namespace):
    """The options of every driver.

    Attributes:
        warehouse: the folder of all tables.
        launch_id: identifies the driver in its heartbeat.
        launched_by: the task or command that starts it, for its heartbeats, or empty if unknown.
        take_over: replaces a driver without a heartbeat for `silent_after` (seconds).
    """

    warehouse: Path
    launch_id: str
    launched_by: str
    take_over: bool
    silent_after: float


def add_launch_options(parser: argparse.ArgumentParser, *, taken_over: str, silence: str = "") -> None:
    """Adds the options; *taken_over* ends the help of `--take-over`, *silence* the help of `--silent-after`."""
    parser.add_argument("--launch-id", default="", help="id of the driver in its heartbeat")
    parser.add_argument("--launched-by", default="", help="task or command that starts it, for its heartbeats")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help=f"replace a driver without a heartbeat for --silent-after; {taken_over}",
    )
    parser.add_argument(
        "--silent-after",
        type=float,
        default=SILENT_AFTER_MS / 1_000,
        metavar="SECONDS",
        help=f"time without a heartbeat after which a driver may be replaced (default: %(default)g){silence}",
    )


def take_lease(control: Control, options: LaunchOptions) -> int | None:
    """Acquires the lease of *control*, and returns its epoch, or None if another driver has it.

    The cluster manager that runs this driver is recorded in *control*.
    """
    try:
        epoch = control.acquire(
            take_over_at_ms=wall_clock_ms() if options.take_over else None,
            silent_after_ms=round(options.silent_after * 1_000),
        )
    except AlreadyRunning as error:
        log.error("%s", error)
        return None
    # Before anything that may hang: a supervisor kills a silent driver through the manager of its cluster.
    if managed := managed_driver(options.launch_id, os.environ, submitted_properties):
        record(control.home, managed)
    return epoch
