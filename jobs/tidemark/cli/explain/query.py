"""`tidemark sql`: answers a query over the Delta tables.

It can also print the SQL that gives any DuckDB access to them.
"""

from __future__ import annotations

import argparse
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tidemark.cli.shared.options import add_format, existing_warehouse
from tidemark.cli.shared.output import say, say_inert
from tidemark.errors import InvalidArgument, argument_type
from tidemark.query.sql import MEMORY, Answer, Warehouse, attach_script
from tidemark.query.text_table import FORMATS

TIMEOUT_S = 300.0
_SIZE = re.compile(r"[1-9][0-9]*[KMGT]i?B")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("query", nargs="?", help="one read-only statement, for example: select count(*) from changes")
    add_format(parser, FORMATS)
    parser.add_argument(
        "--script", action="store_true", help="print SQL that defines the tables and views in another DuckDB"
    )
    parser.add_argument(
        "--timeout",
        type=argument_type(_seconds),
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="stop a query that takes longer (default: %(default)g)",
    )
    parser.add_argument(
        "--memory",
        type=argument_type(_size),
        default=MEMORY,
        help="memory for the query; the rest is spilled to a temporary folder (default: %(default)s)",
    )


def _seconds(text: str) -> float:
    """Returns the positive number of *text*."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        msg = f"{text!r} is not a number of seconds above 0; for example 60"
        raise InvalidArgument(msg)
    return seconds


def _size(text: str) -> str:
    """Returns *text* if it is a size that DuckDB knows."""
    if not _SIZE.fullmatch(text):
        msg = f"{text!r} is not a size; for example 512MB or 4GB"
        raise InvalidArgument(msg)
    return text


def command(options: argparse.Namespace) -> int:
    """Prints the answer, or the script.

    Raises InvalidArgument for an invalid query, and for a warehouse without tables.
    """
    if options.script == (options.query is not None):
        msg = "give either a query or --script"
        raise InvalidArgument(msg)
    home = existing_warehouse(options)
    if options.script:
        say_inert(attach_script(home.resolve()))
        return 0
    # In the main thread DuckDB would handle signals itself, and ignore some. There it only waits.
    with ThreadPoolExecutor(1) as thread:
        tables = thread.submit(Warehouse, home, memory=options.memory).result()
        if not tables.tables:
            msg = f"{home} has no Delta tables yet; choose another place with --home or --warehouse"
            raise InvalidArgument(msg)
        answer = _result(thread.submit(tables.ask, options.query), tables, options.timeout)
    say(FORMATS[options.format](answer.columns, answer.rows))  # CSV is exact, whatever a terminal does
    return 0


def _result(answer: Future[Answer], tables: Warehouse, timeout_s: float) -> Answer:
    """Returns *answer*, for which a thread asks *tables*.

    Raises InvalidArgument if it takes longer than *timeout_s*.
    """
    try:
        return answer.result(timeout_s)
    except TimeoutError:
        msg = f"the query took longer than {timeout_s:g} s; read less, or give more time with --timeout"
        raise InvalidArgument(msg) from None
    finally:
        # A query that has not begun yet does not notice an interruption.
        while not answer.done():
            tables.interrupt()
            wait([answer], 0.1)
