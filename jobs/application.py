"""Runs a PySpark job, unchanged, as a supervised stream: docs/any-stream.md.

It takes a lease, sends heartbeats, ends after a batch when a drain is requested, and records the queries of the job.

Exit status: 0 drained, or the job has ended by itself; 1 failed (the reason is in the heartbeat and in the log); 3
another driver runs this job, or has taken it over.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

from tidemark.api.application import ApplicationOptions, run_application
from tidemark.control.driver_folder import DriverFolder
from tidemark.errors import argument_type
from tidemark.safe_text import log_to_stderr
from tidemark.storage.location import location
from tidemark.stream.driver.launch import add_launch_options


def main() -> int:
    """Runs the job of the command line or of a request."""
    log_to_stderr()
    if sys.argv[1:2] != ["--driver"]:
        return run_application(arguments().parse_args(sys.argv[1:], ApplicationOptions()))
    return _run_requested(DriverFolder(Path(sys.argv[2])))


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--application", type=Path, required=True, help="Python file of the job")
    place = "folder of the tables, or a URL such as s3://BUCKET/FOLDER"
    parser.add_argument("--warehouse", type=argument_type(location), required=True, help=place)
    parser.add_argument("--topology", required=True, help="name under which the tables of its queries are")
    parser.add_argument("--sub-topology", required=True, help="name of the job there")
    add_launch_options(parser, taken_over="see docs/any-stream.md for what it may still do")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="TEXT", help="an argument of the job; may be repeated"
    )
    parser.add_argument(
        "--consumer-groups",
        metavar="PREFIX",
        help="write the offsets of its queries into the consumer groups PREFIX-TOPOLOGY-QUERY",
    )
    observed = "count the latencies of the records that its queries write, by this TIMESTAMP column; may be repeated"
    parser.add_argument("--observe", action="append", metavar="COLUMN", help=observed)
    return parser


def _run_requested(folder: DriverFolder) -> int:
    """Runs the jobs that are requested in *folder*; returns the highest status.

    A folder runs them in threads, and a job may need the main thread, for example for signals.
    """
    handed_over: SimpleQueue[tuple[Sequence[str], Future[int]] | None] = SimpleQueue()
    statuses: list[int] = []

    def run(start_arguments: Sequence[str]) -> int:
        ended: Future[int] = Future()
        handed_over.put((start_arguments, ended))
        return ended.result()

    def drive() -> None:
        try:
            statuses.append(folder.drive(run))
        finally:
            handed_over.put(None)

    threading.Thread(target=drive, daemon=True).start()
    while (request := handed_over.get()) is not None:
        start_arguments, ended = request
        try:
            ended.set_result(run_application(arguments().parse_args(start_arguments, ApplicationOptions())))
        except BaseException as error:  # argparse exits
            ended.set_exception(error)
    return max(statuses, default=1)


if __name__ == "__main__":
    sys.exit(main())
