"""Runs one sub-topology of a topology as one streaming query.

It ends when a drain is requested, or after the batches that --rotate-after allows. With `--driver FOLDER` it runs all
sub-topologies that are requested in this folder (`tidemark.control.driver_folder`), as queries of one Spark session,
until all have ended. Each has a lease, a checkpoint and a journal of its own.

Exit status: 0 drained or rotated, 1 failed (the reason is in the heartbeat and in the log), 3 another driver runs this
stream, or has taken it over. With several streams it is the highest of theirs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tidemark.arrow  # noqa: F401 - first, before others import pandas
from tidemark.control.driver_folder import DriverFolder
from tidemark.errors import argument_type
from tidemark.model.topology import Time
from tidemark.reports.batch_job import add_bootstrap
from tidemark.safe_text import log_to_stderr
from tidemark.storage.location import location
from tidemark.stream.driver.launch import add_launch_options
from tidemark.stream.driver.shared_session import SharedSession
from tidemark.stream.query import RunOptions
from tidemark.stream.run import run_stream


def main() -> int:
    """Runs one stream, or those of a folder; returns the exit status."""
    shared_options, stream_arguments = several().parse_known_args()
    options = None if shared_options.driver else arguments().parse_args(stream_arguments, RunOptions())
    log_to_stderr(by_thread=options is None)
    if options is None:
        spark = SharedSession(f"tidemark-{DriverFolder(shared_options.driver).name}", is_shared=True)
        status = DriverFolder(shared_options.driver).drive(
            lambda launch_arguments: run_stream(arguments().parse_args(launch_arguments, RunOptions()), spark)
        )
    else:
        spark = SharedSession(f"tidemark-{options.topology.stem}-{options.sub_topology}", is_shared=False)
        status = run_stream(options, spark)
    spark.stop()
    return status


def several() -> argparse.ArgumentParser:
    """Returns the parser of the options for several streams."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--driver", type=Path, metavar="FOLDER", help="run only the streams that are requested in this folder"
    )
    return parser


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the options for one stream."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[several()]
    )
    place = "folder of the tables, or a URL such as s3://BUCKET/FOLDER"
    parser.add_argument("--warehouse", type=argument_type(location), required=True, help=place)
    parser.add_argument("--topology", type=Path, required=True, help="TOML file of the topology")
    parser.add_argument("--sub-topology", required=True, help="name of the sub-topology to run")
    add_bootstrap(parser)
    parser.add_argument(
        "--time",
        type=Time,
        choices=list(Time),
        default=Time.EVENT,
        help="processing: record time is the instant of the batch; tables and the checkpoint are separate "
        "(default: %(default)s)",
    )
    add_launch_options(
        parser,
        taken_over="that driver can no longer write",
        silence="; in an object store also without --take-over, and heartbeats come every 20 s there",
    )
    parser.add_argument(
        "--rotate-after",
        type=int,
        metavar="BATCHES",
        help="end after this many batches, so that a supervisor starts the next driver (default: never)",
    )
    parser.add_argument(
        "--slow",
        action="append",
        default=[],
        type=slow,
        metavar="OPERATOR=MS",
        help="let an operator sleep this long in each batch",
    )
    return parser


def slow(text: str) -> tuple[str, int]:
    """Returns the operator and the ms of `OPERATOR=MS`."""
    operator, _, ms = text.partition("=")
    return operator, int(ms)


if __name__ == "__main__":
    sys.exit(main())
