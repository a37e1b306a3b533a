"""`tidemark publish`: gives BI tools one name per table and view.

`duckdb` writes a database file of views, `hive` registers tables and views in a Hive metastore. `dbt` prints dbt's
sources with the freshness that the SLAs promise.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tidemark.cli.outside.dbt_sources import sources
from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.sla_spec import load
from tidemark.model.topology import load_each

FILE = "tidemark.duckdb"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "kind", choices=["duckdb", "hive", "dbt"], help="a DuckDB file of views, a Hive metastore, or dbt's sources"
    )
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
    hive = parser.add_argument_group("hive, dbt")
    hive.add_argument(
        "--metastore", metavar="URI", help="address of the metastore for hive, for example thrift://metastore:9083"
    )
    hive.add_argument("--database", default="tidemark", help="database for tables and views (default: %(default)s)")


def command(options: argparse.Namespace) -> int:
    """Publishes the tables; prints what was written.

    Raises InvalidArgument for a warehouse without tables, and for invalid options; InvalidSpec for an invalid topology
    or SLA of a project that is published for dbt.
    """
    if options.kind == "dbt":
        say_inert(_dbt(Project.here(), options.database))
        return 0
    home = existing_warehouse(options)
    say_inert(_hive(home, options) if options.kind == "hive" else _duckdb(home, options))
    return 0


def _duckdb(home: Path, options: argparse.Namespace) -> str:
    from tidemark.query import attach

    file: Path = options.file or home / FILE
    names = attach.publish(home, file)
    if options.install_extension:
        attach.install_extension()
    return f"{file}: {len(names)} views"


def _dbt(project: Project, schema: str) -> str:
    slas = []
    for topology in load_each(project.topologies).values():
        if isinstance(topology, InvalidSpec):
            raise topology
        slas.append((topology.name, load(project.slas, topology)))
    return sources(slas, file=project.slas.name, schema=schema)


def _hive(home: Path, options: argparse.Namespace) -> str:
    if not options.metastore:
        msg = "give the address of the metastore with --metastore; for example thrift://metastore:9083"
        raise InvalidArgument(msg)
    if not re.fullmatch(r"\w+", options.database):
        msg = f"--database must have letters, digits and _ only, got {options.database!r}"
        raise InvalidArgument(msg)
    from tidemark.query import hive
    from tidemark.spark_session import session

    spark = session("tidemark publish", {**hive.SESSION, hive.METASTORE: options.metastore})
    try:
        names = hive.register_in_metastore(spark, Layout(home), options.database)
    finally:
        spark.stop()
    return f"{options.metastore}, database {options.database}: {len(names)} views"
