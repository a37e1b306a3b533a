"""Writes the data dictionary, docs/tables.md, from the specs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument
from tidemark.model.checks import CONDITIONS, SUMS
from tidemark.model.project.files import CHECKOUT
from tidemark.model.tables.catalog import HOP, TABLES, Table
from tidemark.query import kafka_metrics
from tidemark.query.sql import Warehouse
from tidemark.storage.warehouse import View, views
from tidemark.stream.write.sink_columns import BOUNDS, TIDEMARKS_OWN, WHY

HEAD = """\
# Tables and views

`tidemark docs` writes this page from `jobs/tidemark/model/tables/catalog.py` and `jobs/tidemark/views/`; change those
files instead of this page. [cookbook.md](cookbook.md) has questions with their SQL, and shows how to attach a reader.

Instants are timestamps in UTC. The text of each column names its clock: *record time* comes from the record;
*driver clock*, *finish clock* and *decision time* come from the machine that ran the stream. Lengths of time are whole
milliseconds, `_ms`. Null means unknown or none, never zero. Types have Spark's names. A column that was added to
a table is null in the rows before. Delta enforces the conditions of reports. The SLA check validates the
conditions and the unique keys of tables of streams, and writes `dq_results` (docs/alerts.md, Contracts).

`changes`, hops and tables of sinks get each batch at once. The other tables of streams are facts. While a stream runs,
they get a batch together, up to ten seconds later (`facts_every`, docs/reliability.md); `latency_buckets`,
`emission_metrics` and `partition_batches` up to a minute later. `tidemark sql` also reads facts that are not in tables
yet.
"""
OF_SINKS = """\
## Tables of sinks and hops

A sink with a `table` writes a table of that name. It has the columns of its records, each with a comment on how the
topology computes it, and the columns below. `window_final` exists for results of windows, `last_seen_at` with the key
of that name, and `deleted` without `mode = "current"`, because a current table removes the row. Rows that are not in a
current table yet are in the table `changes_of_` plus its name; the view of its name has both. Start and end of windows
are timestamps, even if a map renames them.
"""


def add_options(_: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no arguments."""


def command(_: argparse.Namespace) -> int:
    """Writes the file.

    Raises:
        InvalidArgument: the package has no checkout.
    """
    file = CHECKOUT / "docs" / "tables.md"
    if not file.parent.is_dir():
        msg = "docs needs a checkout of Tidemark, whose pages it writes; run it in one"
        raise InvalidArgument(msg)
    file.write_text(dictionary(), encoding="utf-8")
    say_inert(f"wrote {file}")
    return 0


def dictionary() -> str:
    """Returns the text of docs/tables.md."""
    of_streams = [table for table in TABLES.values() if table.written_by == "stream"]
    of_reports = [table for table in TABLES.values() if table.written_by != "stream"]
    # A warehouse without tables still has all views, so DuckDB can describe their columns.
    with TemporaryDirectory() as nowhere:
        empty = Warehouse(Path(nowhere))
    parts = [
        HEAD,
        "## Views\n",
        *(_view(view, empty) for view in sorted([*views(), kafka_metrics.VIEW], key=lambda view: view.name)),
        "## Tables of streams\n",
        *map(_table, of_streams),
        "## Reports\n",
        *map(_table, of_reports),
        OF_SINKS,
        _columns(("column", "type", "meaning", "purpose"), _sink_section()),
        "The table `hop_<its name>` has the output of a repartition.\n",
        _table(HOP),
    ]
    return "\n".join(parts)


def _sink_section() -> Iterable[tuple[str, ...]]:
    for name, text in {**BOUNDS, **TIDEMARKS_OWN}.items():
        kind, why = WHY[name]
        yield f"`{name}`", f"`{kind}`", text, why


def _view(view: View, empty: Warehouse) -> str:
    described = empty.ask(f"DESCRIBE {view.name}").rows
    columns = ", ".join(f"`{name}` {_word(kind)}" for name, kind, *_ in described)
    only = ", for `tidemark sql` alone" if view is kafka_metrics.VIEW else ""
    return f"### {view.name}\n\nView{only}. One row per {view.row}.\n\n{columns}\n"


def _table(table: Table) -> str:
    rows = ((f"`{column.name}`", f"`{column.type}`", column.comment) for column in table.columns)
    columns = _columns(("column", "type", "meaning"), rows)
    holds: list[str] = []
    for conditions in CONDITIONS.get(table.name, {}).values():
        holds += conditions.values()
    if whole := SUMS.get(table.name):
        holds.append(f"{whole.whole} = sum of {whole.parts} in {whole.of}, by key")
    checks = "\nHolds:\n\n" + "".join(f"* `{condition}`\n" for condition in holds) if holds else ""
    key = f" Its key: {', '.join(f'`{name}`' for name in table.key)}." if table.key else ""
    return f"### {table.name}\n\nOne row per {table.row}.{key}\n\n{columns}{checks}"


def _columns(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    text = ""
    for line in lines:
        # A bar would end the cell, even in code.
        cells = [cell.replace("|", "\\|") for cell in line]
        text += f"| {' | '.join(cells)} |\n"
    return text


def _word(kind: str) -> str:
    return {"VARCHAR": "string", "TIMESTAMP WITH TIME ZONE": "timestamp", "INTEGER": "int"}.get(kind, kind.lower())
