"""`tidemark sql`: answers a query over the Delta tables.

It can also print the SQL that gives any DuckDB access to them.
"""

from __future__ import annotations

import argparse
import signal

from tidemark.cli.shared.options import add_format, warehouse
from tidemark.cli.shared.output import say, say_inert
from tidemark.errors import InvalidArgument
from tidemark.query.sql import Warehouse, attach_script
from tidemark.query.text_table import FORMATS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("query", nargs="?", help="one read-only statement, for example: select count(*) from changes")
    add_format(parser, FORMATS)
    parser.add_argument(
        "--script", action="store_true", help="print SQL that defines the tables and views in another DuckDB"
    )


def command(options: argparse.Namespace) -> int:
    """Prints the answer, or the script.

    Raises InvalidArgument for an invalid query, and for a warehouse without tables.
    """
    if options.script == (options.query is not None):
        msg = "give either a query or --script"
        raise InvalidArgument(msg)
    home = warehouse(options)
    if options.script:
        say_inert(attach_script(home.resolve()))
        return 0
    # DuckDB turns a signal into an error, or ignores it. There is nothing to clean up, so signals kill the process.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    tables = Warehouse(home)
    if not tables.tables:
        msg = f"{home} has no Delta tables yet; choose another place with --home or --warehouse"
        raise InvalidArgument(msg)
    answer = tables.ask(options.query)
    say(FORMATS[options.format](answer.columns, answer.rows))  # CSV is exact, whatever a terminal does
    return 0
