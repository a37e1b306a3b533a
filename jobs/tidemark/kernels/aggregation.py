"""What an aggregate makes of one batch, given the states of the keys that it touches.

A state row has the key columns, WINDOW where there are windows, the columns of the aggregate functions, and the meta
columns: `_key` names key and window start, `_timestamp_ms` is the newest record time taken in, and it is `_repeated` if
all that it took in is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.kernels.aggregate_function import AggregateFunction
from tidemark.kernels.schemas import META_SCHEMA
from tidemark.kernels.values import key_text
from tidemark.kernels.windows import WINDOW, ends_by, in_windows
from tidemark.spec.operators import Aggregate, Shape, Windows

_GROWING = ("_timestamp_ms", "_newest_ms")
"""Times of which a state has the largest."""


@dataclass(frozen=True)
class Aggregation:
    """The kernel of *operator*, whose *functions* read records with *schema*."""

    operator: Aggregate
    functions: Sequence[AggregateFunction]
    schema: Mapping[str, pl.DataType]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell one result from another."""
        return (*self.operator.key, *(("window_start",) if self.operator.windows else ()))

    @property
    def state_schema(self) -> dict[str, pl.DataType]:
        """The columns of a state row."""
        columns = {c: self.schema[c] for c in self.operator.key} | (WINDOW if self.operator.windows else {})
        return {**columns, **{c: kind for f in self.functions for c, kind in f.schema.items()}, **META_SCHEMA}

    def states_of(self, records: pl.DataFrame) -> pl.DataFrame:
        """A state row for each of *records*, which have WINDOW where there are windows."""
        columns = {name: state for f in self.functions for name, state in f.of_rows(records).items()}
        keyed = records.with_columns(_key=key_text(self.key, records.schema), **columns)
        return keyed.with_columns(_deleted=pl.lit(value=False)).select(self.state_schema.keys())

    def merged(self, states: pl.DataFrame, by: str = "_key") -> pl.DataFrame:
        """One state row for each group of *states*: their newest record's place, their latest time."""
        plain = [
            c for c in self.state_schema if not c.startswith("@") and c not in {by, *_GROWING, "_repeated", *WINDOW}
        ]
        windows = [pl.col("window_start").min(), pl.col("window_end").max()] if self.operator.windows else []
        functions = {name: state for f in self.functions for name, state in f.merged().items()}
        groups = states.group_by(by, maintain_order=True)
        times = pl.col(_GROWING).max(), pl.col("_repeated").all()
        found = groups.agg(pl.col(plain).last(), *windows, *times, **functions)
        return found.with_columns(**{name: column for f in self.functions for name, column in f.settled(found).items()})

    def results(self, states: pl.DataFrame) -> pl.DataFrame:
        """*states* with the aggregates by name."""
        return states.with_columns(**{f.name: f.result() for f in self.functions})

    def problems(self, results: pl.DataFrame) -> pl.Series:
        """What is wrong with each of *results*; null: nothing."""
        whys = [
            pl.when(fails).then(pl.lit(f"aggregates.{f.name}: the sum needs more than 64 bits; sum up doubles instead"))
            for f in self.functions
            if (fails := f.does_not_fit()) is not None
        ]
        return results.select(pl.coalesce(pl.lit(None, pl.String), *whys)).to_series()

    def running(self, known: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
        """*states* with the aggregates after each, on top of what is *known* of their keys."""
        both = pl.concat([known, states])
        growing = [*_GROWING, *(("window_end",) if self.operator.windows else ())]
        so_far = pl.col(growing).cum_max().over("_key")
        return both.with_columns(so_far, **{f.name: f.running(both) for f in self.functions}).slice(known.height)

    def assigned(
        self, records: pl.DataFrame, closed_ms: int | None, stay_closed: Sequence[tuple[int, int]] = ()
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """*records* in the windows that end after *closed_ms*, and those that have none; not for sessions.

        Those that *stay_closed* (start and end) are not open either.
        """
        windows = self.operator.windows
        if windows is None or windows.shape is Shape.SESSION:
            return records, records.clear()
        rows = in_windows(records.with_row_index("_row"), windows).filter(~ends_by(closed_ms))
        rows = rows.filter(~pl.col("window_start").is_in([start for start, _ in stay_closed]))
        return _assigned(rows, records)

    def reopened(self, late: pl.DataFrame, forgotten_ms: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
        """*late* records in the windows whose states are kept, closed or not, and those that have none."""
        assert self.operator.windows is not None
        rows = in_windows(late.with_row_index("_row"), self.operator.windows)
        return _assigned(rows.filter(~ends_by(forgotten_ms)), late)


def _assigned(rows: pl.DataFrame, records: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """*rows* of windows, and those of *records* that are in none of them, by their place `_row`."""
    others = records.with_row_index("_row").join(rows.select("_row").unique(), on="_row", how="anti")
    return rows.drop("_row"), others.sort("_row").drop("_row")


def in_open_sessions(
    kernel: Aggregation, windows: Windows, known: pl.DataFrame, records: pl.DataFrame, closed_ms: int | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """*records* with the session that each is in, and those of keys for which this way of finding it does not do.

    It does where the records of a key are in order and none is before the start of its newest session that is *known*:
    then no two sessions merge, each record goes on with the newest one or opens another. A record alone in a session
    that would end at *closed_ms* at the latest is left to `merged_sessions` too.
    """
    group = key_text(kernel.operator.key, records.schema)
    newest = known.with_columns(_group=group).sort("window_start").unique("_group", keep="last", maintain_order=True)
    newest = newest.select("_group", _newest_start="window_start", _newest_end="window_end")
    at = pl.col("_timestamp_ms")
    rows = records.with_columns(_group=group, window_end=at + windows.size_ms)
    rows = rows.join(newest, on="_group", how="left", maintain_order="left", nulls_equal=True)
    before = at.shift().over("_group")
    orderly = (at >= pl.coalesce(before, "_newest_start", at)) & ~ends_by(closed_ms)
    rows = rows.with_columns(
        _orderly=orderly.all().over("_group"),
        _reach=pl.coalesce(pl.max_horizontal(before + windows.size_ms, "_newest_end"), at - 1),
    )
    opens = at > pl.col("_reach")
    start = pl.when(opens).then(at).forward_fill().over("_group")
    found = rows.with_columns(window_start=pl.coalesce(start, "_newest_start"))
    columns = [*records.columns, *WINDOW]
    return found.filter("_orderly").select(columns), rows.filter(~pl.col("_orderly")).select(records.columns)


@dataclass(frozen=True)
class Sessions:
    """What some records made of the sessions of their keys.

    `moved`: the states of those that took one, in the order in which they did; `gone`: the states that became part of
    another session by that, under their old keys, at the time of the new one; `late`: the records whose session had
    closed.
    """

    moved: pl.DataFrame
    gone: pl.DataFrame
    late: pl.DataFrame


def merged_sessions(
    kernel: Aggregation, windows: Windows, known: pl.DataFrame, records: pl.DataFrame, closed_ms: int | None
) -> Sessions:
    """The sessions that *records* make, all of them at once, of each other and of the open ones *known* of their keys.

    A session that ends at *closed_ms* at the latest when all are in it takes none of them.
    """
    gap = pl.col("_timestamp_ms") + windows.size_ms
    alone = kernel.states_of(records.with_columns(window_start="_timestamp_ms", window_end=gap))
    states = pl.concat([known, alone]).with_row_index("_row")
    states = states.with_columns(
        _group=key_text(kernel.operator.key, states.schema), _new=pl.col("_row") >= known.height
    )
    states = states.sort("_group", "window_start", "_row")
    reach = pl.col("window_end").cum_max().shift().over("_group")
    states = states.with_columns(_session=(pl.col("window_start") > reach).fill_null(value=True).cum_sum()).sort("_row")
    whole = kernel.merged(states, by="_session").with_columns(_key=key_text(kernel.key, states.schema))
    parts = states.group_by("_session").agg(pl.col("_new").any(), last=pl.col("_row").max())
    whole = whole.join(parts, on="_session").filter("_new").sort("last")
    closed = whole.filter(ends_by(closed_ms))
    moved = whole.join(closed, on="_session", how="anti", maintain_order="left")
    place = ("_partition", "_offset", "_task", *_GROWING, "_repeated")
    at = moved.select("_session", *place, _into="_key")
    gone = states.filter(~pl.col("_new")).drop(place).join(at, on="_session")
    late = states.filter("_new").join(closed, on="_session", how="semi")["_row"].sort() - known.height
    columns = list(kernel.state_schema)
    return Sessions(
        moved=moved.select(columns),
        gone=gone.filter(pl.col("_key") != pl.col("_into")).with_columns(_deleted=pl.lit(value=True)).select(columns),
        late=records[late.to_list()],
    )
