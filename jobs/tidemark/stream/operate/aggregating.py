"""One aggregate in one batch: its kernel, with the states of earlier batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl

from tidemark.kernels import META
from tidemark.kernels.aggregates import aggregate_functions
from tidemark.kernels.aggregation import Aggregation, in_open_sessions, merged_sessions
from tidemark.kernels.emission import with_value
from tidemark.kernels.expressions import PROBLEM, Expressions
from tidemark.kernels.values import key_text
from tidemark.kernels.windows import ends_by
from tidemark.spec.operators import Aggregate, Decide, Shape, Windows
from tidemark.stream.batch import Moment
from tidemark.stream.emitting import Emitted, Emitter
from tidemark.stream.keyed_rows import KeyedRows
from tidemark.stream.state import HELD, Memory, Moves

GROUP = "_group"
"""Of the state of a session: the key without the window, by which the sessions that may merge are found."""


@dataclass(frozen=True)
class Aggregated:
    """What became of the records: `emitted` as updates, and those `late` that no open window takes.

    `updates` counts the others after fan-out: one for each window that a record is in, and each session that ended by
    becoming part of another. So many of them are late records of earlier batches that were `reopened`.
    """

    emitted: Emitted
    late: pl.DataFrame
    updates: int
    reopened: int


@dataclass(frozen=True)
class _Moved:
    """`newest` states of the keys that moved, `gone` keys, `late` records, and `results` to be judged one by one."""

    newest: pl.DataFrame
    gone: pl.Series
    late: pl.DataFrame
    results: pl.DataFrame
    updates: int
    reopened: int = 0


class Aggregating:
    """The aggregate *operator* over records with *schema*; what it keeps is in *memory*."""

    def __init__(
        self, operator: Aggregate, schema: Mapping[str, pl.DataType], sql: Expressions, memory: Memory
    ) -> None:
        self._operator, self._sql = operator, sql
        self.kernel = Aggregation(operator, aggregate_functions(operator.aggregates, schema), schema)
        schema_of_states = {**self.kernel.state_schema, **({GROUP: pl.String()} if self._in_sessions else {})}
        by = [c for c in ("window_end", GROUP) if c in schema_of_states]
        states = KeyedRows({**schema_of_states, HELD: pl.Boolean()}, key="_key", by=by)
        memory.keep(operator.name, states)
        self._states = states
        self.emitter = Emitter(operator.name, operator.emission, memory, self._updates_of, operator.windows)

    @property
    def _in_sessions(self) -> bool:
        return self._operator.windows is not None and self._operator.windows.shape is Shape.SESSION

    def _closed_ms(self, moment: Moment) -> int | None:
        """The latest end of a window that takes no more records; None: there is none."""
        if self._operator.windows is None or moment.was_watermark_ms is None:
            return None
        return self._operator.windows.closed_up_to_ms(moment.was_watermark_ms, moment.ended.get(self._operator.name))

    def run(self, records: pl.DataFrame, moves: Moves, moment: Moment) -> Aggregated:
        """What becomes of *records*, which have a key."""
        windows = self._operator.windows
        if windows is not None and windows.shape is Shape.SESSION:
            moved = self._sessions(windows, records, moment)
        else:
            moved = self._windows(records, moment)
        if self._operator.emission.holds:
            emitted = self.emitter.hold(self._kept(moved.newest), moved.updates, moved.gone, moves, moment)
        else:
            # Of sessions that are judged once a batch, several records are one result.
            merged = moved.updates - moved.results.height
            emitted = self.emitter.at_once(self._updates_of(moved.results), moves, superseded=merged)
            kept = self._kept(moved.newest).with_columns(pl.lit(value=False).alias(HELD))
            self.emitter.keep(kept.select(*self._states.schema), moved.gone, moves, moment)
        return Aggregated(emitted, moved.late, moved.updates + emitted.ended, moved.reopened)

    def _windows(self, records: pl.DataFrame, moment: Moment) -> _Moved:
        name = self._operator.name
        assigned, late = self.kernel.assigned(records, self._closed_ms(moment), moment.stay_closed.get(name, ()))
        if name not in moment.reopened:
            return self._each(assigned, late)
        again = moment.reopened[name].select(records.columns)
        reopened, refused = self.kernel.reopened(again, moment.forgotten.get(name))
        moved = self._each(pl.concat([reopened.select(assigned.columns), assigned]), pl.concat([refused, late]))
        return replace(moved, reopened=reopened.height)

    def _each(self, assigned: pl.DataFrame, late: pl.DataFrame) -> _Moved:
        """What moves when every one of the *assigned* records is a result, for which the windows need not be merged."""
        fresh = self.kernel.states_of(assigned)
        known = self._states.of(fresh["_key"]).select(fresh.columns)
        newest = self.kernel.merged(pl.concat([known, fresh]))
        results = fresh.clear() if self._operator.emission.holds else fresh
        return _Moved(newest, _NO_KEYS, late, self.kernel.running(known, results), fresh.height)

    def _sessions(self, windows: Windows, records: pl.DataFrame, moment: Moment) -> _Moved:
        group = records.select(key_text(self._operator.key, records.schema)).to_series()
        known = self._states.with_any(GROUP, group).select(self.kernel.state_schema.keys())
        alone = records.select(window_end=pl.col("_timestamp_ms") + windows.size_ms)
        any_late = bool(alone.select(ends_by(self._closed_ms(moment)).any()).item())
        emission = self._operator.emission
        if emission.decide is Decide.BATCH or (emission.holds and not any_late):
            return self._merging(windows, known, records, moment, turn=pl.lit(0))
        assigned, rest = in_open_sessions(self.kernel, windows, known, records, self._closed_ms(moment))
        plain = self._each(assigned, records.clear())
        if rest.is_empty():
            return plain
        turn = pl.int_range(pl.len()).over(rest.select(key_text(self._operator.key, rest.schema)).to_series())
        other = self._merging(windows, known, rest, moment, turn=turn)
        return _Moved(
            newest=pl.concat([plain.newest.select(other.newest.columns), other.newest]),
            gone=other.gone,
            late=other.late,
            results=pl.concat([plain.results.select(other.results.columns), other.results]),
            updates=plain.updates + other.updates,
        )

    def _merging(
        self, windows: Windows, known: pl.DataFrame, records: pl.DataFrame, moment: Moment, *, turn: pl.Expr
    ) -> _Moved:
        """What moves when sessions may merge: one pass for all *records* of a *turn*.

        Since each record decides, they take turns: the first of each key, the second, and so on.
        """
        closed_ms = self._closed_ms(moment)
        open_, late, results, moved = known, records.clear(), [known.clear()], [_NO_KEYS]
        for part in records.with_columns(_turn=turn).partition_by("_turn", maintain_order=True, include_key=False):
            made = merged_sessions(self.kernel, windows, open_, part, closed_ms)
            replaced = pl.concat([made.moved["_key"], made.gone["_key"]])
            open_ = pl.concat([open_.filter(~pl.col("_key").is_in(replaced.implode())), made.moved])
            late = pl.concat([late, made.late])
            results += [made.gone, made.moved]
            moved.append(made.moved["_key"])
        newest = open_.filter(pl.col("_key").is_in(pl.concat(moved).implode()))
        gone = known.filter(~pl.col("_key").is_in(open_["_key"].implode()))["_key"]
        judged = self.kernel.results(pl.concat(results))
        merges = 0 if self._operator.emission.holds else int(judged["_deleted"].sum())
        return _Moved(newest, gone, late, judged, records.height - late.height + merges)

    def _updates_of(self, states: pl.DataFrame) -> pl.DataFrame:
        """The updates that *states* are; those that have no results yet are given them."""
        operator = self._operator
        results = states if {*operator.aggregates} <= {*states.columns} else self.kernel.results(states)
        problems = self.kernel.problems(results)
        if problems.null_count() < len(problems):
            self._sql.set_aside(results.with_columns(problems.alias(PROBLEM)).filter(problems.is_not_null()))
            results = results.filter(problems.is_null())
        beside = ["_window_end"] if operator.windows else []
        beside += [HELD] if HELD in results.columns else []
        results = results.with_columns(_window_end="window_end") if operator.windows else results
        selected = self._sql.select(results, operator.select, keep=(*self.kernel.key, *META, *beside))
        return with_value(selected, tuple(operator.select))

    def _kept(self, states: pl.DataFrame) -> pl.DataFrame:
        if not self._in_sessions:
            return states
        return states.with_columns(key_text(self._operator.key, states.schema).alias(GROUP))


_NO_KEYS = pl.Series("_key", [], pl.String())
