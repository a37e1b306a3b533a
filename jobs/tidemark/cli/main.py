"""The command line: `tidemark --help`."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import NoReturn

import tidemark.arrow  # noqa: F401 - first, before others import pandas
from tidemark.cli.shared.output import flush, say, with_place
from tidemark.errors import TidemarkError, argument_type
from tidemark.extensions import entry_points_of
from tidemark.model.project.extras import EXTRAS, missing
from tidemark.model.project.files import VARIABLE, Project
from tidemark.safe_text import inert, is_text, one_message
from tidemark.storage.location import location

DESCRIPTION = "Measures the latency of streams, finds the operator that causes it, and sends on only changed values."
EXAMPLES = """\
examples:
  tidemark demo                                 runs the topology of real flights, in three to four minutes
  tidemark init sensors                         creates a project in the folder sensors
  tidemark init --from-topic readings --bootstrap localhost:9092   also writes a topology from a sample of the topic
  tidemark up                                   starts Kafka, Airflow and all streams of the project
  tidemark up sensors                           starts only the topology sensors
  tidemark status                               shows streams, their progress, and causes of missing results
  tidemark logs flights/status -f               follows the log of the driver of a stream
  tidemark restart flights/status               replaces the driver of a stream
  tidemark topic create readings --partitions 3
  tidemark run flights --time processing        runs its drivers in the foreground, by processing time
  tidemark replay --speed 2880                  plays two days of flights into the Kafka of `tidemark up`
  tidemark check jobs/topologies/flights.toml   validates a topology file
  tidemark check --live                         also validates it against topics and a sample of their records
  tidemark test                                 runs the tests of topologies, without Spark and Kafka
  tidemark test flights                         runs those of one topology
  tidemark jars                                 downloads the JVM jars, if no `make setup` has done it
  tidemark docs                                 for developers: writes the references of docs/
  tidemark watch /data/gold --limit "1 h"       shows the age of Delta tables that any program writes, and who writes
  tidemark tables                               lists the tables and their sizes
  tidemark sql "select operator, max(max_ms) from operator_batches group by 1"
  tidemark sql --format csv "from batches"      prints a table; the dialect is DuckDB's
  tidemark sql "from latest_state"              prints a view; docs/cookbook.md has 24 questions
  tidemark publish duckdb                       writes a DuckDB file of views, for BI tools
  tidemark publish lineage --send               sends streams and origins of columns by the client of OpenLineage
  tidemark publish sql --schema tidemark        prints a script that registers tables and views in a catalog of Spark
  tidemark schema --into .schemas               writes JSON Schemas of topology and other files, for editors
  tidemark why flights                          explains missing results: blocked operators, causes, remedies
  tidemark why silver.orders                    names the first late table upstream of a watched one, and its writer
  tidemark topology flights                     shows latency, records/s, watermark and backlog of its operators
  tidemark path flights --last 3                shows the critical path of the newest windows, and the culprit
  tidemark incidents flights                    lists broken SLAs, since when, and who acknowledged them
  tidemark suggest slas flights                 proposes limits of SLAs, from the last seven days
  tidemark suggest slas watch                   proposes SLAs of watched tables, from their recorded commits
  tidemark metrics rules flights                writes alerting rules for Prometheus from the SLAs
  tidemark serve-metrics --port 9477            serves metrics to a Prometheus on this machine
  tidemark whatif flights --operator carrier_state --scale 0.5
  tidemark trace flights --record flight_events/0/1234   shows what became of a record at each operator, and since when
  tidemark trace flights --row flight_board UA753-2013-06-27-EWR   shows the records of a flight, and makes it again
  tidemark reconcile flight_events --day "$(date -u +%F)"   compares today's counts per hour, from broker to tables
  tidemark complete flight_board --at 14:00     says if an hour of a table is complete; while it is not, why
  tidemark bound flights                        compares bounds: share of late records, and delay of results
  tidemark doctor flights                       checks that its streams can continue, and shows remedies
  tidemark requeue flights --reason malformed_json --dry-run
  tidemark requeue flights --late --dry-run
  tidemark accept-loss flights status --source weather --partition 0 --until 512 --by Ann --reason "retention"
  tidemark reset-time flights status --source weather --partition 0 --to 2014-05-13T12:00 --by Ann --reason "2090"
  tidemark plan flights                         what a changed topology file would do to its streams
  tidemark begin flights carrier_state --dry-run   shows what begins anew with the operator whose meaning has changed
  tidemark start-over flights --dry-run         shows what a fresh start of a topology would delete
  tidemark reshard flights status --shards 8    run it between a drain and the start with `shards = 8`
  tidemark down                                 drains the streams and stops everything
"""
PASSED_ON = "replay"
"""The command that passes its options on to its job."""
LOCAL_STACK = frozenset({"up", "down", "status", "logs", "restart", "topic"})
WITHOUT_PROJECT = "init"
"""The command that makes a project."""
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("demo", "local.demo", "run the topology of real flights, print the results, and stop everything"),
    (WITHOUT_PROJECT, "project.init", "create a project: a folder of topologies and their SLAs"),
    ("up", "local.up", "start topologies, Kafka and Airflow on this machine, and wait for the first results"),
    ("status", "explain.status", "show the streams: state, records, first latency, and the cause of missing results"),
    ("logs", "local.logs", "show the log of a stream's driver"),
    ("restart", "local.restart", "restart the driver of a stream"),
    ("topic", "local.topic", "create or list topics at the local broker, or print its address"),
    ("down", "local.down", "drain all streams and stop everything, or drain the streams of some topologies"),
    ("run", "local.run", "run the drivers of one topology in the foreground; Ctrl-C drains them"),
    ("check", "project.check", "validate topology files, including columns and SQL, and SLAs"),
    ("test", "project.test", "run tests of topologies in memory: records that go in, and rows that must come out"),
    ("sql", "explain.query", "run a query over the Delta tables, with DuckDB"),
    ("publish", "export.publish", "give other tools tables and lineage: DuckDB, catalogs of Spark, OpenLineage"),
    (
        "schema",
        "export.schema",
        "print or write JSON Schemas of files of topologies, tests, SLAs and channels, for editors",
    ),
    ("watch", "explain.watch", "show the age of Delta tables that any program writes, from their logs"),
    ("why", "explain.why", "explain missing results of a topology, or a late watched table: causes, remedies"),
    ("trace", "explain.trace", "show what became of a record at each operator, or which records made a row"),
    ("reconcile", "explain.reconcile", "compare counts of records per hour: broker, source, operators and tables"),
    ("complete", "explain.complete", "say if an hour or a day of a table is complete, since when, or why not"),
    ("bound", "explain.bound", "compare bounds of a source: share of late records, and delay of results"),
    ("jars", "project.jars", "download the locked JVM jars of Spark and Kafka, and check their hashes"),
    ("docs", "project.docs", "write the references of docs/: every table, view and column, owners of time, measures"),
    ("topology", "explain.topology", "show the operators of a topology and their state"),
    ("path", "explain.path", "show the critical path of a streaming window, and its culprit"),
    ("whatif", "explain.whatif", "estimate the latency of windows with a quicker operator, another bound or trigger"),
    ("incidents", "explain.incidents", "list the incidents of broken SLAs; acknowledge, silence or snooze them"),
    ("suggest", "explain.suggest", "propose limits of SLAs, from what was measured"),
    ("tables", "explain.tables", "show the Delta tables: rows, files, bytes, version"),
    ("doctor", "repair.doctor", "check that checkpoints, journals and tables are consistent"),
    (
        "accept-loss",
        "repair.accept_loss",
        "continue without records that a topic or hop removed before they were read, or without one that is present",
    ),
    ("reset-time", "repair.reset_time", "set the time of a partition back after a record from the future"),
    ("plan", "project.plan", "compare a topology file with what its streams have kept: what goes on, begins, ends"),
    ("begin", "repair.begin", "let an operator begin anew, without its states, after its meaning has changed"),
    ("start-over", "local.start_over", "delete all that a topology has written, and start it as if it were new"),
    ("reshard", "repair.reshard", "change the number of shards of a drained stream"),
    ("upgrade", "repair.upgrade", "say whether the warehouse has the format of this version"),
    ("requeue", "repair.requeue", "send quarantined or late records to their topics again, each once"),
    ("metrics", "export.metrics", "print metrics for Prometheus, or alerting rules from the SLAs"),
    ("serve-metrics", "export.serve_metrics", "serve metrics to Prometheus, or push them to OpenTelemetry"),
    (PASSED_ON, "local.replay", "play real flights of 2013 into Kafka; `tidemark replay --help` shows how"),
)
"""Names of commands, their modules of `tidemark.cli`, and their help.

A module has `add_options(parser)`, and `command(options)`, which returns the exit code. Other packages add commands by
entry points of the group `tidemark.commands`, whose values are such modules.
"""


def main() -> int:
    """Runs the command; returns its exit code.

    It is 0 if all is well, 1 if something is wrong, 2 for wrong usage, and 4 if a plan has changed.
    """
    # A command is short, and most of its objects are those of imported modules: to look for cycles among them takes a
    # tenth of its time.
    gc.set_threshold(50_000)
    try:
        return _main()
    finally:
        # If the reader of the output closes the pipe, the command continues without output.
        flush()


def _main() -> int:
    options = _options(sys.argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        if options.command != WITHOUT_PROJECT:
            _tell_of_override()
            options.named_place = _named_place(options)
            options.home = options.home or _home(options.command)
        command: Callable[[argparse.Namespace], int] = options.run
        return command(options)
    except TidemarkError as error:
        say(one_message(with_place(f"tidemark {options.command}: {error}", options)), sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as error:
        if error.name is None or (package := error.name.partition(".")[0]) not in EXTRAS:
            raise
        say(f"tidemark {options.command}: {missing(package)}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        say(f"tidemark {options.command}: interrupted", sys.stderr)
        return 130
    except Exception as error:
        damage = None if options.command == WITHOUT_PROJECT else _damage(options)
        if damage is None:
            raise
        say(one_message(f"tidemark {options.command}: {damage} ({type(error).__name__})"), sys.stderr)
        return damage.exit_status


def _options(line: Sequence[str]) -> argparse.Namespace:
    """Returns the options of the command *line*; a wrong one ends the program."""
    parser = _parser(line)
    options, rest = parser.parse_known_args(line[1:])
    if rest and options.command != PASSED_ON:
        options.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    for word in line:
        if not is_text(word):
            options.parser.error(f"{inert(word)}: it has half a character, or bytes that are not UTF-8; correct it")
    options.rest = rest
    return options


def _damage(options: argparse.Namespace) -> TidemarkError | None:
    """Returns the first damage of a table in the warehouse of *options*; None: none is found."""
    # Most commands need none of these, and to import them takes longer than to answer.
    from tidemark.cli.shared.options import place
    from tidemark.storage.delta.data_files import damage_of_table
    from tidemark.storage.warehouse import delta_tables

    try:
        tables = chain.from_iterable(delta_tables(place(options)).values())
        return next(filter(None, map(damage_of_table, tables)), None)
    except Exception:  # whatever ends the search, the error that it is to explain says more
        return None


def _tell_of_override() -> None:
    """Prints which project is used if a variable names another one than that of the working directory."""
    project, around = Project.here(), Project.around(Path.cwd())
    if around is not None and around.folder.resolve() != project.folder.resolve():
        say(f"${VARIABLE} names the project {project.folder}: that of {around.folder} is not used", sys.stderr)


def _named_place(options: argparse.Namespace) -> dict[str, str]:
    """Returns the values of `--home` and `--warehouse` that the command line has, and that other commands need, too."""
    named = {} if options.home is None else {"--home": str(options.home)}
    by_variable = os.environ.get("TIDEMARK_WAREHOUSE")
    if options.warehouse is not None and not (by_variable and options.warehouse == location(by_variable)):
        named["--warehouse"] = str(options.warehouse)
    return named


def _home(command: str) -> Path:
    """Returns the state folder if the command line names none.

    It prints the folder if a user may expect another one.
    """
    if named := os.environ.get("TIDEMARK_HOME"):
        return Path(named)
    project, here = Project.here(), Path.cwd()
    if command in LOCAL_STACK and project.is_checkout and not here.is_relative_to(project.folder):
        say(f"no project here (`tidemark init` creates one); using the demo's in {project.folder}", sys.stderr)
    return project.state


def _parser(words: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Returns the parser, with options of the commands in *words* (None: all)."""
    # Only the modules of these commands are imported: to import all takes longer than most commands.
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tidemark", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw)
    parser.add_argument("--home", type=Path, help="state folder (default: $TIDEMARK_HOME, or .tidemark of the project)")
    named = os.environ.get("TIDEMARK_WAREHOUSE")
    warehouse = location(named) if named else None
    place = "folder of the tables, or a URL such as s3://BUCKET/FOLDER"
    where = f"{place} (default: $TIDEMARK_WAREHOUSE, or `warehouse` in the state folder)"
    parser.add_argument("--warehouse", type=argument_type(location), default=warehouse, help=where)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    own = {name: (f"tidemark.cli.{module}", text) for name, module, text in COMMANDS}
    points = entry_points_of("tidemark.commands")
    others = {point.name: (point.value, f"added by {point.value}") for point in points if point.name not in own}
    for name, (module, text) in (own | others).items():
        added = commands.add_parser(name, help=text, description=text, add_help=name != PASSED_ON)
        if words is None or name in words:
            command = import_module(module)
            command.add_options(added)
            added.set_defaults(run=command.command, parser=added)
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Ends a command at SIGTERM and SIGHUP as Ctrl-C does."""
    # A command runs its clean-up only after an exception.
    raise KeyboardInterrupt
