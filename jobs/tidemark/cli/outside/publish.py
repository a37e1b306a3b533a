"""`tidemark publish`: gives BI tools one name per table and view.

`duckdb` writes a database file of views, `hive` registers tables and views in a Hive metastore.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert

FILE = "tidemark.duckdb"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("kind", choices=["duckdb"], help="a DuckDB file of views")
    parser.add_argument(
        "--file", type=Path, help=f"the file (default: {FILE} in the warehouse); an older one is replaced"
    )
    parser.add_argument(
        "--install-extension",
        action="store_true",
        help="also install DuckDB's extension for Delta for this user, from the installed package; without it DuckDB "
        "downloads it when a view is read first",
    )


def command(options: argparse.Namespace) -> int:
    """Publishes the tables; prints what was written."""
    from tidemark.query import attach

    home = existing_warehouse(options)
    file: Path = options.file or home / FILE
    names = attach.publish(home, file)
    if options.install_extension:
        attach.install_extension()
    say_inert(f"{file}: {len(names)} views")
    return 0
