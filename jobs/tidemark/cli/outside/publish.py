"""`tidemark publish`: gives BI tools one name per table and view.

`duckdb` writes a database file of views, `hive` and `unity` register tables and views in a Hive metastore and in Unity
Catalog. `lineage` prints or sends the datasets and columns of each stream as events of OpenLineage.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from functools import partial
from pathlib import Path

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say, say_inert
from tidemark.cli.shared.streams import valid_topologies
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.escaping import one_message
from tidemark.model.project.extras import require
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import Topology, load_each
from tidemark.storage.warehouse import delta_tables, no_tables

FILE = "tidemark.duckdb"
TOKEN = "TIDEMARK_UNITY_TOKEN"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    kinds = "a DuckDB file of views, a Hive metastore, Unity Catalog, or OpenLineage"
    parser.add_argument("kind", choices=["duckdb", "hive", "unity", "lineage"], help=kinds)
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
    names = "names of tables have _ for the . and - of a query's name"
    hive = parser.add_argument_group("hive", names)
    hive.add_argument(
        "--metastore", metavar="URI", help="address of the metastore for hive, for example thrift://metastore:9083"
    )
    unity = parser.add_argument_group("unity", f"{names}, and lower case")
    unity.add_argument(
        "--server", metavar="URL", help="address of Unity Catalog, for example https://unity.example.org"
    )
    unity.add_argument("--catalog", default="unity", help="catalog of Unity Catalog (default: %(default)s)")
    unity.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the token for Unity Catalog (default: the environment variable {TOKEN}; neither: no token)",
    )
    several = parser.add_argument_group("hive, unity")
    several.add_argument(
        "--database", default="tidemark", help="database or schema for tables and views (default: %(default)s)"
    )


def command(options: argparse.Namespace) -> int:
    """Publishes the tables; prints what was written.

    An invalid topology is named, and the others are printed; then it returns 1. Raises InvalidArgument for a
    warehouse without tables, and for invalid options.
    """
    for option in ("send", "runs"):
        if getattr(options, option) and options.kind != "lineage":
            msg = f"--{option} is for lineage, got {options.kind}; leave it out"
            raise InvalidArgument(msg)
    if options.kind == "lineage":
        return _lineage(Project.here(), options)
    home = existing_warehouse(options)
    say_inert({"duckdb": _duckdb, "hive": _hive, "unity": _unity}[options.kind](home, options))
    return 0


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

    from tidemark.cli.outside.lineage import Sender, events, send_each
    from tidemark.cli.outside.lineage_runs import RunReporter, unsent_events

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


def _hive(home: Path, options: argparse.Namespace) -> str:
    address = _address(home, options, "metastore", "thrift://metastore:9083")
    from tidemark.query.catalogs import hive
    from tidemark.spark_session import session

    spark = session("tidemark publish", {**hive.SESSION, hive.METASTORE: address})
    try:
        names = hive.register_in_metastore(spark, Layout(home), options.database)
    finally:
        spark.stop()
    return f"{address}, database {options.database}: {len(names)} views"


def _unity(home: Path, options: argparse.Namespace) -> str:
    address = _address(home, options, "server", "https://unity.example.org")
    from tidemark.query.catalogs.unity import register_in_unity
    from tidemark.query.catalogs.unity_client import UnityClient

    try:
        token = options.token_file.read_text(encoding="utf-8") if options.token_file else os.environ.get(TOKEN, "")
    except OSError as error:
        msg = f"--token-file {options.token_file} cannot be read: {error.strerror}"
        raise InvalidArgument(msg) from error
    except UnicodeDecodeError:
        msg = f"--token-file {options.token_file} is not text in UTF-8; write the token alone into it"
        raise InvalidArgument(msg) from None  # the error has the content
    client = UnityClient(address, token.strip())
    done = register_in_unity(client, Layout(home), options.catalog, options.database)
    changes = f"{done.created} created, {done.dropped} dropped"
    return f"{address}, {options.catalog}.{options.database}: {len(done.names)} tables and views, {changes}"


def _address(home: Path, options: argparse.Namespace, option: str, example: str) -> str:
    """Returns the address of a catalog.

    Raises InvalidArgument for invalid options, and for a warehouse without tables.
    """
    address: str | None = getattr(options, option)
    if not address:
        msg = f"give the address with --{option}; for example {example}"
        raise InvalidArgument(msg)
    for name in ("database", "catalog"):
        if not re.fullmatch(r"\w+", value := getattr(options, name)):
            msg = f"--{name} must have letters, digits and _ only, got {value!r}"
            raise InvalidArgument(msg)
    if not delta_tables(home):
        raise no_tables(home)  # before a session or a request is made
    return address
