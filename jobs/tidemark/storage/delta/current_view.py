"""Writes the SQL of a view of current rows.

The view joins a table that is merged now and then with the rows appended since the last merge. Spark SQL and DuckDB
both read the text, and read each of the two tables once. The result is exact whichever table is opened first: rows that
are merged already stay in the other table for a while (stream/write/current_tables.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from deltalake import DeltaTable

from tidemark.kernels.updates.final_rows import WINDOW_FINAL
from tidemark.kernels.updates.last_seen import LAST_SEEN_AT, SEEN_ANEW, SEEN_ONLY
from tidemark.selection import names_in
from tidemark.storage.delta.current_rows import CLOSED_UP_TO

KEPT_BY = "tidemark.current"
"""Property of a table `changes_of_T` that says how T keeps current rows, as JSON (see `kept_by`)."""

Read = Callable[[Path], str]
Named = Callable[[str], str]


def kept_by(key: Sequence[str], closed_column: str | None) -> str:
    """Returns the value of KEPT_BY.

    Args:
        key: columns that identify a row.
        closed_column: column with the end of a row's window; None if the rows have no windows.
    """
    return json.dumps({"key": list(key), "closed_column": closed_column})


def current_rows_sql(path: Path, changes: Path, read: Read, named: Named) -> str:
    """Returns a SELECT of the current rows of the table at *path*.

    Args:
        path: the table that is merged.
        changes: the table with the rows appended to it.
        read: returns the SQL that reads the table at a path.
        named: quotes a name.
    """
    appended = DeltaTable(str(changes))
    kept = json.loads(appended.metadata().configuration[KEPT_BY])
    there = {*names_in(appended.schema().fields)}
    tells_seen, closed_column = SEEN_ONLY in there, kept["closed_column"]
    shown = names_in(DeltaTable(str(path)).schema().fields)
    of_table = f"n.batch_id IS NULL OR n.{SEEN_ONLY}" if tells_seen else "n.batch_id IS NULL"
    columns = []
    for column in shown:
        name = named(column)
        value = f"CASE WHEN {of_table} THEN t.{name} ELSE n.{name} END" if column in there else f"t.{name}"
        if column == LAST_SEEN_AT and tells_seen:
            # A row that begins a new life of its key forgets when the old one was seen.
            merged_seen = f"CASE WHEN n._life IS NULL THEN coalesce(t.{name}, t.{named('timestamp')}) END"
            value = f"CASE WHEN n.batch_id IS NULL THEN t.{name} ELSE greatest(n._seen, {merged_seen}) END"
        if column == WINDOW_FINAL and closed_column:
            end = named(closed_column)
            ends = f"CASE WHEN {of_table} THEN t.{end} ELSE n.{end} END"
            closed = f"{ends} <= (SELECT max({CLOSED_UP_TO}) FROM appended)"
            value = f"CASE WHEN NOT ({value}) AND {closed} THEN true ELSE {value} END"
        columns.append(f"{value} AS {name}")
    alike = " AND ".join(f"n.{named(column)} IS NOT DISTINCT FROM t.{named(column)}" for column in kept["key"])
    is_row = (
        f"CASE WHEN n.{SEEN_ONLY} THEN t._is_there IS NOT NULL ELSE NOT n.deleted END"
        if tells_seen
        else "NOT n.deleted"
    )
    return (
        f"WITH appended AS (SELECT * FROM {read(changes)} AS c), "
        f"newest AS ({_newest([named(column) for column in kept['key']], tells_seen=tells_seen)}) "
        f"SELECT {', '.join(columns)} FROM (SELECT *, true AS _is_there FROM {read(path)} AS t) AS t "
        f"FULL JOIN newest AS n ON {alike} WHERE n.batch_id IS NULL OR {is_row}"
    )


def _newest(key: Sequence[str], *, tells_seen: bool) -> str:
    """Returns a SELECT of the newest appended row of each *key*, by the rule of `newest_rows` in kernels.

    With *tells_seen* the table may have rows that only say when a key was last seen.
    """
    by_key = f"PARTITION BY {', '.join(key)}"
    rows = "SELECT * FROM appended AS c WHERE deleted IS NOT NULL"
    # Only rows of sinks with `last_seen_at` may say nothing but when a key was seen.
    if not tells_seen:
        numbered = f"SELECT *, row_number() OVER ({by_key} ORDER BY batch_id DESC) AS _place FROM ({rows}) AS c"
        return f"SELECT * FROM ({numbered}) AS c WHERE _place = 1"
    begins = f"CASE WHEN deleted OR {SEEN_ANEW} THEN batch_id END"
    lives = f"SELECT *, max({begins}) OVER ({by_key}) AS _life FROM ({rows}) AS c"
    seen_at = f"CASE WHEN NOT deleted AND batch_id >= coalesce(_life, batch_id) THEN {LAST_SEEN_AT} END"
    # A row that says only when its key was seen comes after all rows with values.
    place = f"row_number() OVER ({by_key} ORDER BY coalesce({SEEN_ONLY}, false), batch_id DESC)"
    timed = f"SELECT *, max({seen_at}) OVER ({by_key}) AS _seen, {place} AS _place FROM ({lives}) AS c"
    return f"SELECT * FROM ({timed}) AS c WHERE _place = 1"
