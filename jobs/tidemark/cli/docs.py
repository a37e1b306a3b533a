"""The data dictionary, docs/tables.md: what the tables and views are, from what they are made of (ring 2)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.cli import kafka_metrics
from tidemark.cli.output import say_inert
from tidemark.cli.sql import Warehouse
from tidemark.spec.checks import CONDITIONS, SUMS
from tidemark.spec.project import CHECKOUT
from tidemark.spec.tables import HOP, TABLES, Table
from tidemark.stream.sink_columns import BOUNDS, TIDEMARKS_OWN, WHY
from tidemark.warehouse import View, views

HEAD = """\
# Tables and views

Written by `tidemark docs` from `jobs/tidemark/spec/tables.py` and `jobs/tidemark/views/`: change those, not this.
[cookbook.md](cookbook.md) has questions with their SQL, and how to attach a reader.

Instants are timestamps in UTC. Each says its clock: *record time* is what a record says of itself; *driver clock*,
*finish clock* and *decision time* are those of the machine that ran the stream. Lengths of time are whole
milliseconds, `_ms`. Null means not known or none, never zero. Types are Spark's words. A column that a newer version
has added is null in older rows. What is said to hold is kept by Delta in reports; in tables of streams the SLA check
looks, as it does whether keys are unique, and writes `dq_results` (docs/alerts.md, Contracts).
"""
OF_SINKS = """\
## Tables of sinks and hops

A sink with a `table` writes one of that name: the columns of its records, each with a comment that says what the
topology computes it from, and these. `window_final` is there for results of windows, `last_seen_at` with the key of
that name, and `deleted` without `mode = "current"`: a current table removes the row. Columns of records that are bounds
of windows are timestamps, whatever a map calls them; in a table that a version before them created they stay bigint,
epoch ms.
"""


def add_options(_: argparse.ArgumentParser) -> None:
    """It takes none."""


def command(_: argparse.Namespace) -> int:
    """Write the file."""
    file = CHECKOUT / "docs" / "tables.md"
    file.write_text(dictionary(), encoding="utf-8")
    say_inert(f"wrote {file}")
    return 0


def dictionary() -> str:
    """The text of docs/tables.md."""
    of_streams = [table for table in TABLES.values() if table.written_by == "stream"]
    of_reports = [table for table in TABLES.values() if table.written_by != "stream"]
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
        _columns(("column", "type", "what it is", "what for"), _of_sinks()),
        "What a repartition hands on lies in `hop_<its name>`.\n",
        _table(HOP),
    ]
    return "\n".join(parts)


def _of_sinks() -> Iterable[tuple[str, ...]]:
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
    columns = _columns(("column", "type", "what it is"), rows)
    holds = [condition for named in CONDITIONS.get(table.name, {}).values() for condition in named.values()]
    if whole := SUMS.get(table.name):
        holds.append(f"{whole.whole} = sum of {whole.parts} in {whole.of}, by key")
    checks = "\nHolds:\n\n" + "".join(f"* `{condition}`\n" for condition in holds) if holds else ""
    key = f" Its key: {', '.join(f'`{name}`' for name in table.key)}." if table.key else ""
    return f"### {table.name}\n\nOne row per {table.row}.{key}\n\n{columns}{checks}"


def _columns(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _word(kind: str) -> str:
    return {"VARCHAR": "string", "TIMESTAMP WITH TIME ZONE": "timestamp", "INTEGER": "int"}.get(kind, kind.lower())
