"""`tidemark sql`: answer a query over the Delta tables, or print the SQL that makes any DuckDB one over them."""

from __future__ import annotations

import argparse
import signal

from tidemark.cli.options import warehouse
from tidemark.cli.output import say, say_inert
from tidemark.cli.sql import Warehouse, attach_script
from tidemark.cli.text_table import FORMATS
from tidemark.errors import InvalidArgument


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("query", nargs="?", help="one statement that reads, for example: select count(*) from changes")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")
    parser.add_argument(
        "--script", action="store_true", help="print the SQL that makes any DuckDB one over these tables"
    )


def command(options: argparse.Namespace) -> int:
    """Show the answer; raises InvalidArgument for what is no query, and where there is nothing to ask."""
    if options.script == (options.query is not None):
        msg = "it takes either a query or --script"
        raise InvalidArgument(msg)
    home = warehouse(options)
    if options.script:
        say_inert(attach_script(home.resolve()))
        return 0
    # DuckDB would make an error of a signal, or not hear it; there is nothing to clean up.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    tables = Warehouse(home)
    if not tables.tables:
        msg = f"{home} has no Delta tables yet; --home or --warehouse names another place"
        raise InvalidArgument(msg)
    answer = tables.ask(options.query)
    say(FORMATS[options.format](answer.columns, answer.rows))  # CSV is exact, whatever a terminal does
    return 0
