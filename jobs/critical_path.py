"""Finds the critical paths of a topology's windows, across its sub-topologies.

These are the windows that were open at any time in [--from, --to): those that end in it, and with their hours those of
the day before that an operator finished later, or has not finished yet. So a driver that was down over night appears in
the report of the day that it worked on later.

A second run replaces the windows by their current state. It fails if the facts of a window that had a path were
removed. With --html it also writes a page about the interval, from the tables after the run.
"""

from __future__ import annotations

import tidemark.arrow  # noqa: F401 - first, before others import pandas
from tidemark.clock import wall_clock_ms
from tidemark.errors import argument_type
from tidemark.facts.answers import answers_over
from tidemark.model.settings.intervals import Interval
from tidemark.reports.batch_job import interval_parser, load_usable_slas, parse, report_lock
from tidemark.reports.pages.interval_page import write_pages
from tidemark.reports.paths.report import SPARK_ABOVE, run
from tidemark.storage.location import location


def main() -> None:
    """Replaces the paths that the command line asks for."""
    parser = interval_parser(__doc__)
    parser.add_argument(
        "--html",
        type=argument_type(location),
        metavar="FILE|FOLDER",
        help="write the page to this file; to a folder also the page of the day",
    )
    spark_above = "rows of operator_windows above which Spark reads them by hour (default: %(default)s)"
    parser.add_argument("--spark-above", type=int, default=SPARK_ABOVE, metavar="ROWS", help=spark_above)
    arguments = parse(parser)
    interval, specs = Interval(arguments.start_ms, arguments.end_ms), load_usable_slas(arguments.topology)
    with report_lock(arguments.warehouse, arguments.topology.name):
        earlier_hours = run(arguments.warehouse, arguments.topology, specs, interval, spark_above=arguments.spark_above)
    if arguments.html:
        tables = answers_over(arguments.warehouse.warehouse, arguments.topology.name)
        others = [] if arguments.html.suffix == ".html" else earlier_hours
        for each in dict.fromkeys([*others, interval]):
            write_pages(tables, arguments.topology, each, arguments.html, now_ms=wall_clock_ms())


if __name__ == "__main__":
    main()
