"""`tidemark sql`: answers a query over the Delta tables.

It can also print the SQL that gives any DuckDB access to them.
"""

from __future__ import annotations

import argparse
import re
import threading
import time
from concurrent.futures import Future, wait

from tidemark.cli.shared.options import add_format, existing_warehouse, seconds
from tidemark.cli.shared.output import say, say_inert
from tidemark.errors import InvalidArgument, argument_type
from tidemark.facts.answers import Tables, answers_over
from tidemark.query.attach import attach_script
from tidemark.query.sql import MEMORY, QueryResult
from tidemark.query.text_table import FORMATS
from tidemark.storage.warehouse import no_tables

TIMEOUT_S = 300.0
NOTICED_WITHIN_S = 3.0
"""DuckDB notices an interruption within this."""
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
        type=argument_type(seconds),
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
    if options.script:
        say_inert(attach_script(existing_warehouse(options).resolve()))
        return 0
    answer = _Question(options).answer()
    say(FORMATS[options.format](answer.columns, answer.rows))  # CSV is exact, whatever a terminal does
    return 0


class _Question:
    """The query of *options* in a thread of its own.

    In the main thread DuckDB would handle signals itself, and ignore some. There it only waits. The process does not
    wait for the thread at its end: a store that does not answer may hold it for minutes.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._tables: Tables | None = None
        self._answer: Future[QueryResult] = Future()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def answer(self) -> QueryResult:
        """Returns the answer.

        Raises:
            InvalidArgument: the query is not valid, or takes longer than its time limit.
        """
        timeout_s: float = self._options.timeout
        until = time.monotonic() + timeout_s
        self._thread.start()
        try:
            # A signal that comes just before a wait is noticed when the wait ends.
            while not self._answer.done() and (left_s := until - time.monotonic()) > 0:
                wait([self._answer], min(left_s, NOTICED_WITHIN_S))
            return self._answer.result(0)
        except TimeoutError:
            msg = f"the query took longer than {timeout_s:g} s; read less, or give more time with --timeout"
            if self._tables is None:
                where = self._options.warehouse or self._options.home
                msg = f"{where}: its tables could not be listed within {timeout_s:g} s; see if the store answers"
            raise InvalidArgument(msg) from None
        finally:
            self._interrupt()

    def _interrupt(self) -> None:
        """Ends the query, if it is DuckDB that takes so long."""
        until = time.monotonic() + NOTICED_WITHIN_S
        # A query that has not begun yet does not notice an interruption.
        while not self._answer.done() and time.monotonic() < until:
            if self._tables is not None:
                self._tables.interrupt()
            wait([self._answer], 0.1)

    def _ask(self) -> None:
        try:
            home = existing_warehouse(self._options)
            self._tables = answers_over(home, memory=self._options.memory)
            if not self._tables.tables:
                raise no_tables(home)
            self._answer.set_result(self._tables.ask(self._options.query))
        except BaseException as error:
            self._answer.set_exception(error)
