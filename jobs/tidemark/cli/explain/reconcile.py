"""`tidemark reconcile`: compares counts of records, from the broker to the tables."""

from __future__ import annotations

import argparse

from tidemark.cli.explain.audited import add_topology, tracer_and_topics
from tidemark.cli.shared.options import add_format
from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import LOCAL
from tidemark.model.settings.intervals import Grain, instant_ms, iso_day
from tidemark.query.text_table import as_csv, as_document, format_table
from tidemark.reports.batch_job import add_bootstrap
from tidemark.safe_text import one_line
from tidemark.trace.counts import OUTCOME_WORDS, Reconciliation, reconcile

FORMATS = ("table", "csv", "json")
COLUMNS = ("hour", "partition", "stage", "records", *OUTCOME_WORDS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("source", metavar="SOURCE", help="source operator, or its topic")
    parser.add_argument("--day", metavar="DAY", help="the hours of this day of record time, UTC; such as 2026-01-31")
    parser.add_argument("--from", dest="first", metavar="T", help="in place of --day: records at or after this instant")
    parser.add_argument("--to", dest="until", metavar="T", help="and before this instant")
    add_topology(parser)
    add_bootstrap(parser, LOCAL)
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the counts; returns 1 if some differ."""
    start_ms, end_ms = span_of(options)
    tracer, topics = tracer_and_topics(options, options.source)
    answer = reconcile(
        tracer,
        topics.ends,
        options.source,
        start_ms=start_ms,
        end_ms=end_ms,
        why_without_record=topics.why_without_record,
    )
    say_inert(as_text(answer, options.format))
    return 1 if answer.differences else 0


def span_of(options: argparse.Namespace) -> tuple[int, int]:
    """Returns first instant (inclusive) and last (exclusive) of the options, epoch ms.

    Raises:
        InvalidArgument: they name no span, or two.
    """
    if options.day and not options.first and not options.until:
        start_ms = instant_ms(f"{iso_day(options.day).isoformat()}T00:00:00Z")
        return start_ms, start_ms + Grain.DAY.length_ms
    if options.day or not (options.first and options.until):
        msg = "name the span: --day 2026-01-31, or --from and --to"
        raise InvalidArgument(msg)
    start_ms, end_ms = instant_ms(options.first), instant_ms(options.until)
    if start_ms >= end_ms:
        msg = f"--from {options.first} is not before --to {options.until}; exchange them"
        raise InvalidArgument(msg)
    return start_ms, end_ms


def as_text(answer: Reconciliation, form: str) -> str:
    """Returns the counts in the format *form*."""
    if form == "json":
        return as_document(answer.document)
    rows = [tuple(count.row[name] for name in COLUMNS) for count in answer.counts]
    if form == "csv":
        return as_csv(COLUMNS, rows)
    lines = [format_table(COLUMNS, rows), *(f"not counted: {one_line(remark)}" for remark in answer.remarks)]
    lines += [f"difference: {one_line(difference)}" for difference in answer.differences]
    return "\n".join([*lines, answer.conclusion])
