"""Aggregates one batch, given the states of the keys that it touches.

A state row has the key columns, WINDOW where there are windows, the columns of the aggregate functions, and the meta
columns. `_key` is the key with the window start. `_timestamp_ms` is the newest record time that the state includes, and
`_repeated` is true if all of its records are repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.kernels.aggregates.function import AggregateFunction, Limit
from tidemark.kernels.aggregates.windows import WINDOW, ends_by, in_windows
from tidemark.kernels.columns.schemas import META_SCHEMA
from tidemark.kernels.columns.values import key_text, key_values
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.settings.windows import Shape, Windows
from tidemark.selection import in_order_of

_ALMOST = 1 - 1e-6
_GROWING = ("_timestamp_ms", "_newest_ms")
"""Columns of time: merged states have the largest."""


@dataclass(frozen=True)
class Aggregation:
    """Aggregates records with the columns *schema* by the *functions* of *operator*."""

    operator: Aggregate
    functions: Sequence[AggregateFunction]
    schema: Mapping[str, pl.DataType]

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that identify a result."""
        return (*self.operator.key, *(("window_start",) if self.operator.windows else ()))

    @property
    def state_schema(self) -> dict[str, pl.DataType]:
        """Columns of a state row."""
        columns = in_order_of(self.operator.key, self.schema) | (WINDOW if self.operator.windows else {})
        for function in self.functions:
            columns |= function.schema
        return {**columns, **META_SCHEMA}

    def states_of(self, records: pl.DataFrame) -> pl.DataFrame:
        """Returns a state row for each single record; records have WINDOW where there are windows."""
        columns: dict[str, pl.Expr | pl.Series] = {}
        for function in self.functions:
            columns |= function.of_rows(records)
        key = key_values(self.operator.key, records.schema)
        keyed = records.with_columns(_key=key_text(self.key, records.schema), **columns, **key)
        return keyed.with_columns(_deleted=pl.lit(value=False)).select(self.state_schema.keys())

    def merged(self, states: pl.DataFrame, by: str = "_key") -> pl.DataFrame:
        """Merges each group of *states*, which have equal values of *by*, into one state row.

        The row has partition and offset of the group's last record, and its latest times. Where results wait to
        be sent, `_read` is from the newest record, and otherwise from the last record.
        """
        others = {by, *_GROWING, "_repeated", "_read", *WINDOW}
        plain = [c for c in self.state_schema if not c.startswith("@") and c not in others]
        windows = [pl.col("window_start").min(), pl.col("window_end").max()] if self.operator.windows else []
        states_merged: dict[str, pl.Expr] = {}
        for function in self.functions:
            states_merged |= function.merged()
        groups = states.group_by(by, maintain_order=True)
        times = pl.col(_GROWING).max(), pl.col("_repeated").all()
        read = pl.col("_read")
        if self.operator.emission.holds:
            read = read.sort_by("_newest_ms", maintain_order=True)
        merged = groups.agg(pl.col(plain).last(), read.last(), *windows, *times, **states_merged)
        settled: dict[str, pl.Series] = {}
        for function in self.functions:
            settled |= function.settled(merged)
        return merged.with_columns(**settled)

    def results(self, states: pl.DataFrame) -> pl.DataFrame:
        """Returns *states* with a column for the result of each function."""
        return states.with_columns(**{f.name: f.result() for f in self.functions})

    def problems(self, results: pl.DataFrame) -> pl.Series:
        """Returns why each of *results* is unusable, such as a sum beyond its type; null for a usable one."""
        problems = [pl.lit(None, pl.String)]
        for name, limit in self._limits.items():
            # Without values a result is null, too.
            fails = pl.col(name).is_null() & (pl.col(limit.values) > 0)
            problems.append(pl.when(fails).then(pl.lit(_problem_of(name, limit))))
        return results.select(pl.coalesce(problems)).to_series()

    def refusals(self, earlier: pl.DataFrame, states: pl.DataFrame) -> pl.Series:
        """Returns why each of *states* cannot be added to the states of its key before it, or null where it can.

        The states are added one after the other to the *earlier* states of their keys. A state with which the result
        would not fit its type is skipped, and the states after it are added to the sum without it.
        """
        none = pl.Series([None], dtype=pl.String).new_from_index(0, states.height)
        if not self.may_not_fit:
            return none
        in_order = pl.concat([earlier, states])
        # Only the states of keys with a result that may not fit are gone through one by one.
        is_doubtful = self.doubtful(in_order, pl.col("_key"))
        rows, keys = is_doubtful.arg_true(), in_order["_key"].filter(is_doubtful)
        doubtful = in_order.filter(is_doubtful)
        addends = {name: doubtful.select(limit.addends).rows() for name, limit in self._limits.items()}
        reasons: dict[int, str] = {}
        totals: dict[tuple[str, str], list[int]] = {}
        for number, (row, key) in enumerate(zip(rows, keys, strict=True)):
            after: dict[tuple[str, str], list[int]] = {}
            wrong: list[str] = []
            for name, limit in self._limits.items():
                before = totals.get((key, name), [0] * len(limit.addends))
                after[key, name] = [sum(pair) for pair in zip(before, addends[name][number], strict=True)]
                if not limit.fits(after[key, name]):
                    wrong.append(_problem_of(name, limit))
            if wrong and row >= earlier.height:
                reasons[row - earlier.height] = wrong[0]
            else:
                totals |= after
        return none.scatter([*reasons], pl.Series([*reasons.values()], dtype=pl.String)) if reasons else none

    @property
    def may_not_fit(self) -> bool:
        """True if a result may not fit its type."""
        return bool(self._limits)

    def doubtful(self, states: pl.DataFrame, by: pl.Expr) -> pl.Series:
        """Returns True for each of *states* whose group, of equal *by*, may have a result that does not
        fit its type.
        """
        # No sum of some numbers is larger than that of all of them without their signs.
        sizes = states.select(by.alias("_by"), **{name: limit.size for name, limit in self._limits.items()})
        totals = sizes.select(pl.all().exclude("_by").sum().over("_by"))
        # Sums of doubles are rounded, so one that is close to the limit is doubtful, too.
        beyond = (pl.col(name) > limit.most * _ALMOST for name, limit in self._limits.items())
        return totals.select(pl.any_horizontal(beyond)).to_series()

    @property
    def _limits(self) -> dict[str, Limit]:
        """The limits of results that may not fit, by the name of the function."""
        return {function.name: function.limit for function in self.functions if function.limit is not None}

    def running(self, earlier: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
        """Returns *states* with the results after each of them, which include the *earlier* states of its key."""
        in_order = pl.concat([earlier, states])
        growing = [*_GROWING, *(("window_end",) if self.operator.windows else ())]
        so_far = pl.col(growing).cum_max().over("_key")
        values = pl.col([limit.values for limit in self._limits.values()]).cum_sum().over("_key")
        results = {function.name: function.running(in_order) for function in self.functions}
        return in_order.with_columns(so_far, values, **results).slice(earlier.height)

    def assigned(
        self, records: pl.DataFrame, closed_ms: int | None, stay_closed: Sequence[tuple[int, int]] = ()
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Splits *records* into those in open windows, once for each window, and those whose windows are all closed.

        Sessions are not assigned here. A window is open if it ends after *closed_ms* and is not among *stay_closed*,
        windows as (start, end) that were closed before time was set back.
        """
        windows = self.operator.windows
        if windows is None or windows.shape is Shape.SESSION:
            return records, records.clear()
        rows = in_windows(records.with_row_index("_row"), windows).filter(~ends_by(closed_ms))
        # After a reset these windows end after the watermark, but their results were sent on.
        closed_starts = [start for start, _ in stay_closed]
        rows = rows.filter(~pl.col("window_start").is_in(closed_starts))
        return _assigned(rows, records)

    def reopened(self, late: pl.DataFrame, forgotten_ms: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Splits *late* records into those in windows whose states are still kept, and others.

        The windows may be closed. States of windows that end by *forgotten_ms* were removed.
        """
        assert self.operator.windows is not None
        rows = in_windows(late.with_row_index("_row"), self.operator.windows)
        return _assigned(rows.filter(~ends_by(forgotten_ms)), late)


def _problem_of(name: str, limit: Limit) -> str:
    return f"aggregates.{name}: {limit.problem}"


def _assigned(rows: pl.DataFrame, records: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns *rows* of windows, and *records* whose `_row` has none."""
    others = records.with_row_index("_row").join(rows.select("_row").unique(), on="_row", how="anti")
    return rows.drop("_row"), others.sort("_row").drop("_row")


def in_open_sessions(
    kernel: Aggregation, windows: Windows, open_states: pl.DataFrame, records: pl.DataFrame, closed_ms: int | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Finds the sessions of records whose keys need no merge of two sessions.

    These are the keys whose records are in order, with none before the start of the key's newest session: each record
    then continues the newest session or opens another. Returns the records of these keys with their sessions, and the
    records of all other keys, for `merged_sessions`.

    Args:
        kernel: the aggregation.
        windows: its sessions.
        open_states: states of the open sessions of these keys.
        records: the records of the batch.
        closed_ms: sessions that end by then are closed; None before any is.
    """
    group = key_text(kernel.operator.key, records.schema)
    newest = (
        open_states.with_columns(_group=group).sort("window_start").unique("_group", keep="last", maintain_order=True)
    )
    newest = newest.select("_group", _newest_start="window_start", _newest_end="window_end")
    at = pl.col("_timestamp_ms")
    rows = records.with_columns(_group=group, window_end=at + windows.size_ms)
    rows = rows.join(newest, on="_group", how="left", maintain_order="left", nulls_equal=True)
    before = at.shift().over("_group")
    # A record alone in a session that would be closed is left to `merged_sessions`.
    orderly = (at >= pl.coalesce(before, "_newest_start", at)) & ~ends_by(closed_ms)
    rows = rows.with_columns(
        _orderly=orderly.all().over("_group"),
        _reach=pl.coalesce(pl.max_horizontal(before + windows.size_ms, "_newest_end"), at - 1),
    )
    opens = at > pl.col("_reach")
    start = pl.when(opens).then(at).forward_fill().over("_group")
    in_sessions = rows.with_columns(window_start=pl.coalesce(start, "_newest_start"))
    columns = [*records.columns, *WINDOW]
    others = rows.filter(~pl.col("_orderly")).select(records.columns)
    return in_sessions.filter("_orderly").select(columns), others


def with_session(records: pl.DataFrame, windows: Windows) -> pl.DataFrame:
    """Returns *records* with the session that each would make alone: from its time until the gap after it."""
    end = pl.col("_timestamp_ms") + windows.size_ms
    return records.with_columns(window_start="_timestamp_ms", window_end=end)


@dataclass(frozen=True)
class Sessions:
    """The effect of some records on the sessions of their keys.

    Attributes:
        moved: states of the sessions that got a record, in the order of their last records.
        gone: states of sessions that were merged into another one, under their old keys and at the time of the merger.
        late: records whose session had closed.
    """

    moved: pl.DataFrame
    gone: pl.DataFrame
    late: pl.DataFrame


def merged_sessions(
    kernel: Aggregation, windows: Windows, open_states: pl.DataFrame, records: pl.DataFrame, closed_ms: int | None
) -> Sessions:
    """Merges *records* and open sessions of their keys into new sessions.

    The arguments are those of `in_open_sessions`.
    """
    alone = kernel.states_of(with_session(records, windows))
    states = pl.concat([open_states, alone]).with_row_index("_row")
    states = states.with_columns(
        _group=key_text(kernel.operator.key, states.schema), _new=pl.col("_row") >= open_states.height
    )
    states = states.sort("_group", "window_start", "_row")
    # Rows of a group are sorted by start: a row that starts beyond the ends of all before it opens a session.
    reach = pl.col("window_end").cum_max().shift().over("_group")
    states = states.with_columns(_session=(pl.col("window_start") > reach).fill_null(value=True).cum_sum()).sort("_row")
    whole = kernel.merged(states, by="_session").with_columns(_key=key_text(kernel.key, states.schema))
    members = states.group_by("_session").agg(pl.col("_new").any(), last=pl.col("_row").max())
    whole = whole.join(members, on="_session").filter("_new").sort("last")
    closed = whole.filter(ends_by(closed_ms))
    moved = whole.join(closed, on="_session", how="anti", maintain_order="left")
    cause = ("_partition", "_offset", "_task", *_GROWING, "_repeated", "_read")
    mergers = moved.select("_session", *cause, _into="_key")
    gone = states.filter(~pl.col("_new")).drop(cause).join(mergers, on="_session")
    # A session that is closed when all its records are in takes none of them.
    late = states.filter("_new").join(closed, on="_session", how="semi")["_row"].sort() - open_states.height
    columns = list(kernel.state_schema)
    return Sessions(
        moved=moved.select(columns),
        gone=gone.filter(pl.col("_key") != pl.col("_into")).with_columns(_deleted=pl.lit(value=True)).select(columns),
        late=records[late.to_list()],
    )
