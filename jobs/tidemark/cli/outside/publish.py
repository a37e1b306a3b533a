"""`tidemark publish`: gives BI tools one name per table and view.

`duckdb` writes a database file of views, `hive` registers tables and views in a Hive metastore.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout

FILE = "tidemark.duckdb"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("kind", choices=["duckdb", "hive"], help="a DuckDB file of views, or a Hive metastore")
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
    hive = parser.add_argument_group("hive")
    hive.add_argument(
        "--metastore", metavar="URI", help="address of the metastore, for example thrift://metastore:9083"
    )
    hive.add_argument("--database", default="tidemark", help="database for tables and views (default: %(default)s)")


def command(options: argparse.Namespace) -> int:
    """Publishes the tables; prints what was written.

    Raises InvalidArgument for a warehouse without tables, and for invalid options.
    """
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
