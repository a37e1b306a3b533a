"""The command line: `tidemark --help`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tidemark.cli import accept_loss, bound, demo, docs, doctor, incidents, path, requeue, reset_time, run, whatif, why
from tidemark.cli import topology as topology_command
from tidemark.cli.check import check
from tidemark.cli.inventory import Stored, inventory
from tidemark.cli.output import flush, say
from tidemark.cli.sql import Warehouse, attach_script
from tidemark.cli.text_table import FORMATS, aligned
from tidemark.clock import wall_clock_ms
from tidemark.embedded import airflow, broker, stack
from tidemark.embedded.conductor import Conductor
from tidemark.embedded.stack import Home
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.inert import inert, one_message
from tidemark.object_path import ObjectPath
from tidemark.place import location
from tidemark.report.batch_job import told, topology
from tidemark.spec.intervals import instant_ms
from tidemark.spec.layout import Layout
from tidemark.spec.project import CHECKOUT, Project
from tidemark.why import walk

DESCRIPTION = "How late your streams are, why, and which step to blame; and only what changed is sent on."
EXAMPLES = """\
examples:
  tidemark demo                                 the main job on real flights, in five to eight minutes
  tidemark up                                   start Kafka, Airflow and the streams, and leave them running
  tidemark run flights --time processing        its streams in the foreground, results without waiting for event time
  tidemark replay --speed 2880                  play two days of flights into what `up` has started
  tidemark check jobs/topologies/flights.toml   whether a topology can run, before it does
  tidemark docs                                 write docs/tables.md: what tables, views and columns are
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
  tidemark down                                 drain the streams and stop everything
"""
PASSED_ON = "replay"
"""The command whose options belong to the job that it runs."""


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
        command: Callable[[argparse.Namespace], int] = options.run
        return command(options)
    except TidemarkError as error:
        say(one_message(f"tidemark {options.command}: {error}"), sys.stderr)
        return 1
    except KeyboardInterrupt:
        say(f"tidemark {options.command}: interrupted", sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tidemark", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw)
    home = Path(os.environ.get("TIDEMARK_HOME", Project.here().state))
    parser.add_argument("--home", type=Path, default=home, help="state folder (TIDEMARK_HOME, else %(default)s)")
    given = os.environ.get("TIDEMARK_WAREHOUSE")
    where = "folder of the tables, or s3a:// (TIDEMARK_WAREHOUSE, else `warehouse` in the state folder)"
    parser.add_argument("--warehouse", type=told(location), default=given and location(given), help=where)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, job: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, add_help=name != PASSED_ON)
        added.set_defaults(run=job)
        return added

    _demo_options(command("demo", _demo, "run the main job on real flights, print what it found, stop everything"))
    _slow_option(command("up", _up, "start Kafka, Airflow and the streams, and leave them running"))
    command("down", _down, "drain the streams and stop everything that runs")
    foreground = command("run", _run, "run the drivers of one topology in the foreground; Ctrl-C drains them")
    _topology_option(foreground)
    run.add_options(foreground)
    checked = command("check", _check, "see whether topology files can run, down to columns and SQL, and SLAs be used")
    checked.add_argument("files", nargs="*", type=Path, help="TOML files (all of jobs/topologies)")
    checked.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka broker to ask (the one that `up` started)")
    sql = command("sql", _sql, "answer a query over the Delta tables, with DuckDB")
    sql.add_argument("query", nargs="?", help="one statement that reads, for example: select count(*) from changes")
    sql.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")
    sql.add_argument("--script", action="store_true", help="print the SQL that makes any DuckDB one over these tables")
    _why_options(command("why", _why, "say why a topology gives no results: who waits, for what, and what to do"))
    _bound_options(command("bound", _bound, "compare bounds of a source: late records against waiting"))
    command("docs", _docs, "write docs/tables.md: what every table, view and column is")
    shown = command("topology", _topology, "show the operators of a topology and how they are doing")
    walked = command("path", _path, "show the critical path of a streaming window, and who is to blame")
    asked = command("whatif", _whatif, "say how late windows would have been had an operator worked less")
    broken = command("incidents", _incidents, "show which SLAs are broken and who looks after them, or say that you do")
    for parser_of, options in ((shown, topology_command), (walked, path), (asked, whatif), (broken, incidents)):
        _topology_option(parser_of)
        options.options(parser_of)
    command("tables", _tables, "show the Delta tables: rows, files, bytes, version")
    doctor.options(command("doctor", _doctor, "see whether checkpoints, journals and tables tell one story"))
    accept_loss.options(command("accept-loss", _accept_loss, "go on without records that a topic lost unread"))
    reset_time.options(
        command("reset-time", _reset_time, "set the time of a partition back that a record moved too far")
    )
    requeue.options(
        command("requeue", _requeue, "send records from quarantine, or late ones, to their topics again, each once")
    )
    command(PASSED_ON, _replay, "play real flights of 2013 into Kafka; `tidemark replay --help` shows how")
    return parser


def _demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="first", default="2013-06-27", help="first New York day of 2013 (%(default)s)")
    parser.add_argument("--to", dest="until", default="2013-06-29", help="the day before which to end (%(default)s)")
    parser.add_argument("--speed", type=float, default=1440, help="1440 plays a day in a minute (%(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same feed (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave Kafka and Airflow running when all went well")
    _slow_option(parser, "carrier_state=400")


def _why_options(parser: argparse.ArgumentParser) -> None:
    _topology_option(parser)
    parser.add_argument("operator", nargs="?", help="the operator without results (each that nobody reads)")
    parser.add_argument("--at", metavar="INSTANT", help="ask about a past instant, ISO 8601 (now)")
    parser.add_argument("--format", choices=why.FORMATS, default="table", help="(%(default)s)")


def _bound_options(parser: argparse.ArgumentParser) -> None:
    _topology_option(parser)
    parser.add_argument("--source", help="one source (all)")
    parser.add_argument("--from", dest="start", metavar="INSTANT", help="first instant of decision, ISO 8601 (all)")
    parser.add_argument("--to", dest="end", metavar="INSTANT", help="the instant before which to end (none)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")


def _topology_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology", metavar="TOPOLOGY", help="its name, or its TOML file")


def _slow_option(parser: argparse.ArgumentParser, *default: str) -> None:
    text = f"make an operator sleep after each batch, to see an SLA break ({' '.join(default) or 'none'})"
    parser.add_argument("--slow", nargs="*", default=list(default), metavar="OPERATOR=MS", help=text)


def _demo(options: argparse.Namespace) -> int:
    settings = demo.DemoSettings(
        first=options.first,
        until=options.until,
        speed=options.speed,
        seed=options.seed,
        slow=tuple(options.slow),
        keep=options.keep,
    )
    wrong = demo.run(options.home, settings, _say)
    for problem in wrong:
        say(f"tidemark demo: {problem}", sys.stderr)
    if options.keep:
        _say_addresses(Home(options.home.resolve()))
    _say('the tables are there to be asked: .venv/bin/tidemark sql "from critical_paths"')
    return 1 if wrong else 0


def _up(options: argparse.Namespace) -> int:
    conductor = Conductor.of(options.home, _say)
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
    _say_addresses(conductor.home)
    return 0


def _down(options: argparse.Namespace) -> int:
    conductor = Conductor.of(options.home, _say)
    if not conductor.home.running():
        _say(f"nothing runs in {conductor.home.path}")
        return 0
    if airflow.runs(conductor.home.airflow):
        with conductor.step("draining the streams"), suppress(TidemarkError, OSError):  # it may not answer any more
            conductor.drain(airflow.api(conductor.home.airflow), by="tidemark down")
    with conductor.step("stopping everything"):
        stack.stop(conductor.home)
    return 0


def _run(options: argparse.Namespace) -> int:
    home = Home(options.home.resolve())
    bootstrap = options.bootstrap or _running_broker(home)
    return run.run(options, options.warehouse or home.warehouse, bootstrap, _say)


def _check(options: argparse.Namespace) -> int:
    home = Home(options.home.resolve())
    bootstrap = options.bootstrap or _running_broker(home)
    warehouse, must_answer = options.warehouse or home.warehouse, options.bootstrap is not None
    _say("\n".join(check(options.files, warehouse, bootstrap=bootstrap, must_answer=must_answer)))
    return 0


def _sql(options: argparse.Namespace) -> int:
    if options.script == (options.query is not None):
        msg = "it takes either a query or --script"
        raise InvalidArgument(msg)
    if options.script:
        _say(attach_script(_warehouse(options).resolve()))
        return 0
    # DuckDB would make an error of a signal, or not hear it; there is nothing to clean up.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    warehouse = Warehouse(_warehouse(options))
    if not warehouse.tables:
        msg = f"{_warehouse(options)} has no Delta tables yet; --home or --warehouse names another place"
        raise InvalidArgument(msg)
    answer = warehouse.ask(options.query)
    say(FORMATS[options.format](answer.columns, answer.rows))  # CSV is exact, whatever a terminal does
    return 0


def _why(options: argparse.Namespace) -> int:
    at_ms = instant_ms(options.at) if options.at else wall_clock_ms()
    layout = Layout(_warehouse(options))
    found = walk.why(topology(options.topology), layout, at_ms=at_ms, operator=options.operator)
    _say(why.FORMATS[options.format](found))
    return 0


def _topology(options: argparse.Namespace) -> int:
    _say(topology_command.topology(options, _warehouse(options), topology(options.topology)))
    return 0


def _path(options: argparse.Namespace) -> int:
    _say(path.path(options, _warehouse(options), topology(options.topology).name))
    return 0


def _whatif(options: argparse.Namespace) -> int:
    _say(whatif.whatif(options, _warehouse(options), topology(options.topology)))
    return 0


def _incidents(options: argparse.Namespace) -> int:
    _say(incidents.incidents(options, _warehouse(options), topology(options.topology).name))
    return 0


def _bound(options: argparse.Namespace) -> int:
    start_ms, end_ms = (instant_ms(text) if text else None for text in (options.start, options.end))
    of = topology(options.topology)
    rows = bound.bound_rows(_warehouse(options), of, source=options.source, start_ms=start_ms, end_ms=end_ms)
    _say(FORMATS[options.format](bound.COLUMNS, rows))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    layout = Layout(_warehouse(options))
    found = doctor.doctor(
        topology(options.topology), layout, options.sub_topology, remove_torn=options.apply == doctor.REMOVE_TORN
    )
    for sub_topology, faults in found.items():
        _say(f"{sub_topology}: {'unsound' if faults else 'sound'}")
        if faults:
            _say(faults)
    for sub_topology, reading in doctor.begun(topology(options.topology), layout, options.sub_topology).items():
        _say(f"{sub_topology}: its newest batch is not decided: {reading}")
    return 1 if any(found.values()) else 0


def _docs(_: argparse.Namespace) -> int:
    file = CHECKOUT / "docs" / "tables.md"
    file.write_text(docs.dictionary(), encoding="utf-8")
    _say(f"wrote {file}")
    return 0


def _tables(options: argparse.Namespace) -> int:
    _say(aligned(Stored._fields, inventory(_warehouse(options))))
    return 0


def _accept_loss(options: argparse.Namespace) -> int:
    _say(accept_loss.accept_loss(options, _warehouse(options)))
    return 0


def _reset_time(options: argparse.Namespace) -> int:
    _say(reset_time.reset_time(options, _warehouse(options), topology(options.topology)))
    return 0


def _requeue(options: argparse.Namespace) -> int:
    bootstrap = options.bootstrap or _running_broker(Home(options.home.resolve()))
    _say(requeue.requeue(options, _warehouse(options), bootstrap))
    return 0


def _warehouse(options: argparse.Namespace) -> Path:
    """Where the tables are; raises InvalidArgument for a folder that is not there, which an object store cannot say."""
    found: Path = options.warehouse or Home(options.home).warehouse
    if not isinstance(found, ObjectPath) and not found.is_dir():
        msg = f"{found}: there is no such folder, and no warehouse; --home or --warehouse names another place"
        raise InvalidArgument(msg)
    return found


def _running_broker(home: Home) -> str | None:
    """The address of the broker that `up` started; None when none runs."""
    return broker.start(home.broker).address if f"broker/{broker.NAME}" in home.running() else None


def _replay(options: argparse.Namespace) -> int:
    home = Home(options.home.resolve())
    job = [sys.executable, str(CHECKOUT / "jobs" / "replay.py")]
    if (address := _running_broker(home)) is not None:
        job += ["--bootstrap", address]
    os.execv(sys.executable, [*job, *options.rest])


def _say_addresses(home: Home) -> None:
    api = airflow.api(home.airflow)
    _say(
        f"Airflow    {api.url}\n"
        f"login      {api.user}, password in {home.airflow / 'passwords.json'}\n"
        f"Kafka      {broker.start(home.broker).address}\n"
        f"warehouse  {home.warehouse}\n"
        "play flights into it with `tidemark replay`, stop everything with `tidemark down`"
    )


def _say(text: str) -> None:
    say(inert(text))


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: by way of its clean-up."""
    raise KeyboardInterrupt
