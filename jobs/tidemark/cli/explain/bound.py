"""Shows the cost of each bound of a source.

It is computed from the disorder in which the source's records arrived.
"""

from __future__ import annotations

import argparse

from tidemark.cli.shared.options import add_format, add_topology, existing_warehouse, span_ms
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import topology_with_file
from tidemark.query.text_table import FORMATS
from tidemark.reports.documents.bound import COLUMNS, bound_document
from tidemark.semantics.bounds import COUNTED_AS_LATE


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    parser.add_argument("--source", help="only this source (default: all)")
    parser.add_argument(
        "--from", dest="start", metavar="INSTANT", help="only batches with this decision time or a later one, ISO 8601"
    )
    parser.add_argument(
        "--to", dest="end", metavar="INSTANT", help="only batches with an earlier decision time, ISO 8601"
    )
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the cost of each bound."""
    start_ms, end_ms = span_ms(options)
    of = topology_with_file(options)
    document = bound_document(existing_warehouse(options), of, source=options.source, start_ms=start_ms, end_ms=end_ms)
    say_inert(FORMATS[options.format](COLUMNS, [[*row.values()] for row in document["bounds"]]))
    if options.format == "table":
        say_inert(COUNTED_AS_LATE)
    return 0
