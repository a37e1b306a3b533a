"""`tidemark publish`: gives BI tools one name per table and view, and tools of lineage the origin of columns.

`duckdb` writes a database file of views, `sql` prints a script that registers tables and views in a catalog of Spark.
`lineage` prints or sends the datasets and columns of each stream as events of OpenLineage.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say, say_inert
from tidemark.cli.shared.streams import valid_topologies
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, InvalidSpec, argument_type
from tidemark.model.project.extras import require
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import Topology, load_each
from tidemark.safe_text import one_message

FILE = "tidemark.duckdb"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    kinds = "a DuckDB file of views, a script for Spark SQL, or OpenLineage"
    parser.add_argument("kind", choices=["duckdb", "sql", "lineage"], help=kinds)
    parser.add_argument("--send", action="store_true", help="lineage: send the events by the configured client")
    runs = "lineage: the events of runs that were not sent yet, in place of the description of streams"
    parser.add_argument("--runs", action="store_true", help=runs)
    duckdb = parser.add_argument_group("duckdb")
    duckdb.add_argument(
        "--file", type=Path, help=f"the file, in place of an older one (default: {FILE} in the warehouse)"
    )
    duckdb.add_argument(
        "--install-extension",
        action="store_true",
        help="also install DuckDB's extension for Delta for this user, from the installed package; without it DuckDB "
        "downloads it when a view is read first",
    )
    sql = parser.add_argument_group("sql", "names of tables have _ for the . and - of a query's name")
    sql.add_argument(
        "--catalog", type=argument_type(_name), help="the catalog that has the schema (default: that of the session)"
    )
    sql.add_argument(
        "--schema",
        type=argument_type(_name),
        default="tidemark",
        help="the schema for tables and views, which is created (default: %(default)s)",
    )


def command(options: argparse.Namespace) -> int:
    """Publishes the tables; prints what was written.

    An invalid topology is named, and the lineage of the others is printed; then it returns 1. Raises InvalidArgument
    for a warehouse without tables, and for invalid options.
    """
    for option in ("send", "runs"):
        if getattr(options, option) and options.kind != "lineage":
            msg = f"--{option} is for lineage, got {options.kind}; leave it out"
            raise InvalidArgument(msg)
    if options.kind == "lineage":
        return _lineage(Project.here(), options)
    home = existing_warehouse(options)
    say_inert({"duckdb": _duckdb, "sql": _sql}[options.kind](home, options))
    return 0


def _name(text: str) -> str:
    """Returns the name of a catalog or schema."""
    if not text.strip():
        msg = "a catalog or schema needs a name; write one such as tidemark"
        raise InvalidArgument(msg)
    return text


def _sql(home: Path, options: argparse.Namespace) -> str:
    from tidemark.query.sql_script import script

    return script(Layout(home), schema=options.schema, catalog=options.catalog)


def _duckdb(home: Path, options: argparse.Namespace) -> str:
    from tidemark.query import attach

    file: Path = options.file or home / FILE
    names = attach.publish(home, file)
    if options.install_extension:
        attach.install_extension()
    return f"{file}: {len(names)} views"


def _lineage(project: Project, options: argparse.Namespace) -> int:
    """Prints or sends events of each stream.

    It returns 1 if a topology is invalid, or if an event was refused.
    """
    require("openlineage")
    from openlineage.client.serde import Serde

    from tidemark.cli.export.lineage import Sender, events, send_each
    from tidemark.cli.export.lineage_runs import RunReporter, unsent_events

    layout, now_ms = Layout(existing_warehouse(options)), wall_clock_ms()
    each = load_each(project.topologies).values()
    valid = [one for one in each if isinstance(one, Topology)]
    described = (event for one in valid for event in events(one, layout, iso(now_ms)))
    complain, is_sent = partial(say, stream=sys.stderr), True
    if not options.send:
        of_runs = (event for event, _ in unsent_events(layout, valid, now_ms))
        for event in of_runs if options.runs else described:
            say_inert(Serde.to_json(event))
    else:
        send = Sender()
        if options.runs:
            is_sent = RunReporter(layout, lambda: valid, send, complain).report()
        elif refusal := send_each((event.job.name, partial(send, event)) for event in described):
            is_sent = False
            complain(refusal)
        say(f"sent {send.sent} events by the transport {send.transport}")
    if of_jobs := [one.name for one in valid_topologies(layout) if one.jobs]:
        complain(f"left out: {', '.join(of_jobs)}: the columns that queries of jobs read and write are not known")
    errors = [one for one in each if isinstance(one, InvalidSpec)]
    for error in errors:
        complain(one_message(str(error)))
    return 0 if is_sent and not errors else 1
