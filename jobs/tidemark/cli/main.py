"""The command line: `tidemark --help`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn

from tidemark.cli import (
    accept_loss,
    bound,
    check,
    demo,
    docs,
    doctor,
    down,
    incidents,
    init,
    logs,
    path,
    query,
    replay,
    requeue,
    reset_time,
    reshard,
    restart,
    run,
    status,
    tables,
    topic,
    topology,
    up,
    whatif,
    why,
)
from tidemark.cli.output import flush, say
from tidemark.errors import TidemarkError
from tidemark.inert import one_message
from tidemark.place import location
from tidemark.report.batch_job import told
from tidemark.spec.project import Project

DESCRIPTION = "How late your streams are, why, and which step to blame; and only what changed is sent on."
EXAMPLES = """\
examples:
  tidemark demo                                 the main job on real flights, in three to four minutes
  tidemark init sensors                         lay out a project of your own in the folder sensors
  tidemark init --from-topic readings --bootstrap localhost:9092   and write a topology for a topic, by its records
  tidemark up                                   start Kafka, Airflow and the project's streams, and leave them running
  tidemark up sensors                           only those of the topology sensors
  tidemark status                               which streams run, how far they are, what keeps them from results
  tidemark logs flights/status -f               what the driver of a stream logs
  tidemark restart flights/status               another driver for it
  tidemark topic create readings --partitions 3
  tidemark run flights --time processing        its streams in the foreground, results without waiting for event time
  tidemark replay --speed 2880                  play two days of flights into what `up` has started
  tidemark check jobs/topologies/flights.toml   whether a topology can run, before it does
  tidemark check --live                         and whether topics are there, and their records fit
  tidemark docs                                 for developers: write docs/tables.md
  tidemark tables                               which tables there are, and how large they are
  tidemark sql "select operator, max(max_ms) from operator_latency group by 1"
  tidemark sql --format csv "from watermarks"   any table, in DuckDB's SQL
  tidemark sql "from latest_state"              any view; docs/cookbook.md has twenty questions
  tidemark why flights                          why there are no results: who waits, for what, and what to do
  tidemark topology flights                     its operators: latency, records/s, watermark, what waits unread
  tidemark path flights --last 3                the critical path of the newest windows, and who is to blame
  tidemark incidents flights                    which SLAs are broken, since when, and who looks after it
  tidemark whatif flights --operator carrier_state --scale 0.5
  tidemark bound flights                        what a longer or shorter bound costs: late records against waiting
  tidemark doctor flights                       may its streams go on from what lies in the warehouse, and if not, how
  tidemark requeue flights --reason malformed_json --dry-run
  tidemark requeue flights --late --reopen --dry-run
  tidemark accept-loss flights status --source weather --partition 0 --until 512 --by Ann --reason "retention"
  tidemark reset-time flights status --source weather --partition 0 --to 2014-05-13T12:00 --by Ann --reason "2090"
  tidemark reshard flights status --shards 8    between a drain and the start with `shards = 8`
  tidemark down                                 drain the streams and stop everything
"""
PASSED_ON = "replay"
"""The command whose options belong to the job that it runs."""
LOCAL_STACK = frozenset({"up", "down", "status", "logs", "restart", "topic"})
WITHOUT_PROJECT = "init"
"""The command that makes one."""
COMMANDS: tuple[tuple[str, ModuleType, str], ...] = (
    ("demo", demo, "run the main job on real flights, print what it found, stop everything"),
    (WITHOUT_PROJECT, init, "lay out a project: a folder of topologies and what is expected of them"),
    ("up", up, "start topologies with all that they need on this machine, and wait for their first results"),
    ("status", status, "show the streams: state, records, first latency, and what keeps them from giving results"),
    ("logs", logs, "show what the driver of a stream has logged"),
    ("restart", restart, "end the driver of a stream and start another one"),
    ("topic", topic, "make topics at the broker of this machine, and list them"),
    ("down", down, "drain the streams and stop everything that runs, or only those of some topologies"),
    ("run", run, "run the drivers of one topology in the foreground; Ctrl-C drains them"),
    ("check", check, "see whether topology files can run, down to columns and SQL, and SLAs be used"),
    ("sql", query, "answer a query over the Delta tables, with DuckDB"),
    ("why", why, "say why a topology gives no results: who waits, for what, and what to do"),
    ("bound", bound, "compare bounds of a source: late records against waiting"),
    ("docs", docs, "write docs/tables.md: what every table, view and column is"),
    ("topology", topology, "show the operators of a topology and how they are doing"),
    ("path", path, "show the critical path of a streaming window, and who is to blame"),
    ("whatif", whatif, "say how late windows would have been had an operator worked less"),
    ("incidents", incidents, "show which SLAs are broken and who looks after them, or say that you do"),
    ("tables", tables, "show the Delta tables: rows, files, bytes, version"),
    ("doctor", doctor, "see whether checkpoints, journals and tables tell one story"),
    ("accept-loss", accept_loss, "go on without records that a topic lost unread"),
    ("reset-time", reset_time, "set the time of a partition back that a record moved too far"),
    ("reshard", reshard, "deal the state of a drained stream out to another number of shards, before its start"),
    ("requeue", requeue, "send records from quarantine, or late ones, to their topics again, each once"),
    (PASSED_ON, replay, "play real flights of 2013 into Kafka; `tidemark replay --help` shows how"),
)
"""Each is a module with `add_options(parser)`, and `command(options)`, which returns the exit code."""


def main() -> int:
    """Run the command; 0 when all is well, 1 when something is wrong, 2 when it was asked wrongly.

    Who reads its output may stop reading: the command is then done as ever, and says nothing more.
    """
    try:
        return _main()
    finally:
        flush()


def _main() -> int:
    parser = _parser()
    options, rest = parser.parse_known_args()
    if rest and options.command != PASSED_ON:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        if options.command != WITHOUT_PROJECT:
            options.home = options.home or _home(options.command)
        command: Callable[[argparse.Namespace], int] = options.run
        return command(options)
    except TidemarkError as error:
        say(one_message(f"tidemark {options.command}: {error}"), sys.stderr)
        return 1
    except KeyboardInterrupt:
        say(f"tidemark {options.command}: interrupted", sys.stderr)
        return 130


def _home(command: str) -> Path:
    """The state folder where none is named; says which that is where a user may expect another one."""
    if named := os.environ.get("TIDEMARK_HOME"):
        return Path(named)
    project, here = Project.here(), Path.cwd()
    if command in LOCAL_STACK and project.is_checkout and not here.is_relative_to(project.folder):
        say(f"no project here (`tidemark init` makes one): this is about the demo's, in {project.folder}", sys.stderr)
    return project.state


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tidemark", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw)
    parser.add_argument("--home", type=Path, help="state folder (TIDEMARK_HOME, else .tidemark of the project)")
    given = os.environ.get("TIDEMARK_WAREHOUSE")
    where = "folder of the tables, or s3a:// (TIDEMARK_WAREHOUSE, else `warehouse` in the state folder)"
    parser.add_argument("--warehouse", type=told(location), default=given and location(given), help=where)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module, text in COMMANDS:
        added = commands.add_parser(name, help=text, description=text, add_help=name != PASSED_ON)
        module.add_options(added)
        added.set_defaults(run=module.command)
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: by way of its clean-up."""
    raise KeyboardInterrupt
