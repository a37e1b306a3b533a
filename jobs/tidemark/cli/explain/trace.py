"""`tidemark trace`: follows a record, or a row to its records."""

from __future__ import annotations

import argparse
from typing import assert_never

from tidemark.cli.explain.audited import tracer_and_topics
from tidemark.cli.shared.options import add_format, whole_number
from tidemark.cli.shared.output import say_inert, with_place
from tidemark.errors import InvalidArgument
from tidemark.facts.versions import CommittedVersion, NoVersion
from tidemark.model.project.connections import LOCAL
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import by_number, counted
from tidemark.query.text_table import as_document, format_table
from tidemark.reports.batch_job import add_bootstrap
from tidemark.safe_text import one_line
from tidemark.trace.lineage import RowTrace, trace_row
from tidemark.trace.outcomes import RecordPosition, RecordTrace, Visible

FORMATS = ("table", "json")
RESULTS = ("sub_topology", "operator", "kind", "batch", "outcome", "key", "why")
BATCH_TIMES = ("sub_topology", "batch", "waiting_ms", "queued_ms", "working_ms")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    text = "name of the topology, or its TOML file (default: the one of the project that has the source or table)"
    parser.add_argument("topology", nargs="?", metavar="TOPOLOGY", help=text)
    which = parser.add_mutually_exclusive_group(required=True)
    record = "a record: its source or topic, input partition and offset, such as flight_events/0/1234"
    which.add_argument("--record", metavar="SOURCE/PARTITION/OFFSET", help=record)
    row = (
        "the newest row of a key, or of the only one that begins with KEY, such as flight_board UA753-2013-06-27-EWR; "
        "a key of several columns is a JSON object, or the value of its first column if only one key has it; if "
        "several keys fit, they are listed"
    )
    which.add_argument("--row", nargs=2, metavar=("TABLE", "KEY"), help=row)
    add_bootstrap(parser, LOCAL)
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the trace; returns 1 if a row is not verified."""
    if options.record is not None:
        place = record_place(options.record)
        tracer, _ = tracer_and_topics(options, place.source)
        answer = tracer.trace(place)
        say_inert(as_document(answer.document) if options.format == "json" else with_place(as_text(answer), options))
        return 0
    table, key = options.row
    tracer, _ = tracer_and_topics(options, table)
    row = trace_row(tracer, table, key)
    say_inert(as_document(row.document) if options.format == "json" else with_place(row_as_text(row), options))
    return 0 if row.is_verified else 1


def record_place(text: str) -> RecordPosition:
    """Reads the place of a record.

    Raises:
        InvalidArgument: it is not SOURCE/PARTITION/OFFSET.

    >>> str(record_place("flight_events/0/1234"))
    'flight_events/0/1234'
    """
    source, _, place = text.partition("/")
    partition, _, offset = place.partition("/")
    if not source or not offset:
        msg = f"a record is SOURCE/PARTITION/OFFSET, got {text!r}; write, for example, flight_events/0/1234"
        raise InvalidArgument(msg)
    return RecordPosition(source, whole_number(partition), whole_number(offset))


def as_text(trace: RecordTrace) -> str:
    """Returns the trace of a record for people."""
    at = f" of {iso(trace.timestamp_ms)}" if trace.timestamp_ms is not None else ""
    if trace.why_no_time:
        at = f": its time, and so how long it waited for its first batch, is not known ({trace.why_no_time})"
    results = [
        (f.sub_topology, f.operator, f.kind, _number(f.batch_id), f.outcome.value, f.key or "-", f.reason or "-")
        for f in trace.results
    ]
    batches = [
        (
            times.sub_topology,
            str(times.batch_id),
            "-" if times.waiting_ms is None else times.waiting_ms,
            times.queued_ms,
            times.working_ms,
        )
        for times in trace.batches
    ]
    parts = [f"{trace.place}{at}", format_table(RESULTS, results)]
    if batches:
        parts.append(format_table(BATCH_TIMES, batches))
    parts += [f"{each.table}: {counted(each.rows, 'row')} {_since(each)}" for each in trace.visible]
    return "\n".join(parts)


def row_as_text(row: RowTrace) -> str:
    """Returns the trace of a row for people."""
    columns = ", ".join(f"{name} = {value}" for name, value in row.row.items())
    # What a join added to a record is known only by reading that again.
    least, n = "at least " if row.missing else "", len(row.places)
    these = by_number(n, "this record", "these records")
    lines = [
        f"{row.table} {row.key}: {columns}",
        f"batch {row.batch_id}, {_version(row.commit)}",
        f"made of {least}{counted(n, 'record')}:",
    ]
    lines += [f"  {place}" for place in row.places]
    if not row.places:
        lines[-1] = "not verified: no fact names a record that made it"
    elif row.missing:
        which, reasons = by_number(n, these, f"{row.missing:,} of {these}"), "; ".join(row.why_missing)
        lines.append(f"not verified: {which} cannot be read again ({reasons})")
    elif row.differences:
        lines.append(f"not verified: made of {these} alone, it differs in {', '.join(row.differences)}")
    else:
        lines.append(f"verified: {these} alone {by_number(n, 'makes', 'make')} the same row")
    return "\n".join(one_line(line) for line in lines)


def _since(visible: Visible) -> str:
    """Returns since when readers of a table see its rows of a record."""
    if isinstance(visible.commit, CommittedVersion):
        return f"since {_version(visible.commit)}, {iso(visible.commit.at_ms)}"
    return f"of batch {visible.batch_id}, {_version(visible.commit)}"


def _version(commit: CommittedVersion | NoVersion) -> str:
    """Returns the version that has a batch, or a clause that says why none is named."""
    match commit:
        case NoVersion.NOT_MERGED:
            return "which is not merged into a version of the table yet"
        case NoVersion.NOT_COMMITTED:
            return "which no version of the table has yet"
        case NoVersion.NOT_IN_LOG:
            return "whose commit is no longer in the log of the table"
        case CommittedVersion():
            return f"version {commit.version}"
        case _:
            assert_never(commit)


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)
