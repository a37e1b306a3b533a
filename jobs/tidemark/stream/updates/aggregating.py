"""Runs an aggregate over one batch, with states of earlier batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl

from tidemark.kernels import META
from tidemark.kernels.aggregates.aggregation import Aggregation, in_open_sessions, merged_sessions, with_session
from tidemark.kernels.aggregates.function import OLD
from tidemark.kernels.aggregates.functions import aggregate_functions
from tidemark.kernels.aggregates.windows import ends_by
from tidemark.kernels.columns.values import key_text
from tidemark.kernels.sql.expressions import PROBLEM, Expressions
from tidemark.kernels.updates.emission import with_value
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.settings.emission import DecisionRate
from tidemark.model.settings.windows import Shape, Windows
from tidemark.selection import within
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.keyed_rows import KeyedRows
from tidemark.stream.state.memory import HELD, Memory, Moves
from tidemark.stream.updates.emitting import EmissionResult, Emitter

GROUP = "_group"
"""Column of a session's state with the key without the window: sessions with the same group may merge."""


@dataclass(frozen=True)
class AggregateResult:
    """The result of an aggregate in one batch.

    Attributes:
        emitted: the updates by outcome.
        late: the records that no open window accepts.
        updates: how many updates the other records made: one for each window that a record is in, and one for each
            session that became part of another. Updates that were set aside count, too.
        reopened: how many of the updates are of late records of earlier batches.
    """

    emitted: EmissionResult
    late: pl.DataFrame
    updates: int
    reopened: int


@dataclass(frozen=True)
class _MovedStates:
    """The states that a batch changes.

    Attributes:
        newest: the new states of the keys that changed.
        gone: keys whose session became part of another.
        late: the records that no open window accepts.
        results: states whose results are judged one by one, in order.
        updates: how many updates there were, as in `AggregateResult`.
        reopened: how many of them are of late records of earlier batches.
        set_aside_n: how many records were set aside and changed no state, because a result would not fit its type.
    """

    newest: pl.DataFrame
    gone: pl.Series
    late: pl.DataFrame
    results: pl.DataFrame
    updates: int
    reopened: int = 0
    set_aside_n: int = 0


class Aggregator:
    """Runs an aggregate, batch by batch.

    Args:
        operator: the aggregate.
        schema: the columns of the records that it reads.
        sql: evaluates its expressions, and sets aside records for which they fail.
        memory: has its states, which are only read here.
    """

    def __init__(
        self, operator: Aggregate, schema: Mapping[str, pl.DataType], sql: Expressions, memory: Memory
    ) -> None:
        self._operator, self._sql = operator, sql
        self.kernel = Aggregation(operator, aggregate_functions(operator.aggregates, schema), schema)
        schema_of_states = {**self.kernel.state_schema, **({GROUP: pl.String()} if self._in_sessions else {})}
        # Closed windows are found by their end, sessions that may merge by their group.
        indexed = within(("window_end", GROUP), schema_of_states)
        states = KeyedRows({**schema_of_states, HELD: pl.Boolean()}, key="_key", by=indexed)
        memory.keep(operator.name, states)
        self._states = states
        self.emitter = Emitter(operator.name, operator.emission, memory, self._updates_of, operator.windows)

    @property
    def _in_sessions(self) -> bool:
        return self._operator.windows is not None and self._operator.windows.shape is Shape.SESSION

    def _closed_ms(self, moment: Moment) -> int | None:
        """Returns the latest end of a window that accepts no more records, or None if every window accepts records."""
        if self._operator.windows is None or moment.was_watermark_ms is None:
            return None
        return self._operator.windows.closed_up_to_ms(moment.was_watermark_ms, moment.ended.get(self._operator.name))

    def run(self, records: pl.DataFrame, moves: Moves, moment: Moment) -> AggregateResult:
        """Aggregates *records*, all of which have a key.

        The changes of states are added to *moves*; *moment* has the times of the batch.
        """
        windows = self._operator.windows
        if windows is not None and windows.shape is Shape.SESSION:
            moved = self._aggregate_sessions(windows, records, moment)
        else:
            moved = self._aggregate_windows(records, moment)
        if self._operator.emission.holds:
            emitted = self.emitter.hold(self._with_group(moved.newest), moved.updates, moved.gone, moves, moment)
        else:
            # Sessions that are judged once a batch have one result for several records: those before it are superseded.
            merged = moved.updates - moved.results.height
            emitted = self.emitter.at_once(self._updates_of(moved.results), moves, superseded=merged)
            kept = self._with_group(moved.newest).with_columns(pl.lit(value=False).alias(HELD))
            self.emitter.keep(kept.select(*self._states.schema), moved.gone, moves, moment)
        updates = moved.updates + moved.set_aside_n + emitted.ended
        return AggregateResult(emitted, moved.late, updates, moved.reopened)

    def _aggregate_windows(self, records: pl.DataFrame, moment: Moment) -> _MovedStates:
        name = self._operator.name
        assigned, late = self.kernel.assigned(records, self._closed_ms(moment), moment.stay_closed.get(name, ()))
        if name not in moment.reopened:
            return self._aggregate_assigned(assigned, late)
        # Late records that `tidemark requeue --reopen` sends again count if the state of their window is still kept.
        again = moment.reopened[name].select(records.columns)
        reopened, still_late = self.kernel.reopened(again, moment.forgotten.get(name))
        accepted = pl.concat([reopened.select(assigned.columns), assigned])
        return replace(self._aggregate_assigned(accepted, pl.concat([still_late, late])), reopened=reopened.height)

    def _aggregate_assigned(self, assigned: pl.DataFrame, late: pl.DataFrame) -> _MovedStates:
        """Adds records that are *assigned* to windows to the states of these windows.

        No two windows merge here, so each record is a result of its own. *late* are the records that no open window
        accepts.
        """
        fresh = self.kernel.states_of(assigned)
        earlier = self._states.look_up(fresh["_key"]).select(fresh.columns)
        refusals = self.kernel.refusals(earlier, fresh) if refuses(assigned) else none_of(fresh)
        set_aside_n = self._set_aside(assigned, refusals)
        if set_aside_n:
            fresh = fresh.filter(refusals.is_null())
            earlier = earlier.filter(pl.col("_key").is_in(fresh["_key"].implode()))
        newest = self.kernel.merged(pl.concat([earlier, fresh]))
        # Held results are judged when they are due, not record by record.
        results = fresh.clear() if self._operator.emission.holds else fresh
        running = self.kernel.running(earlier, results)
        return _MovedStates(newest, _NO_KEYS, late, running, fresh.height, set_aside_n=set_aside_n)

    def _set_aside(self, records: pl.DataFrame, refusals: pl.Series) -> int:
        """Sets aside those of *records* that have one of *refusals*, and returns how many."""
        refused = records.with_columns(refusals.alias(PROBLEM)).filter(refusals.is_not_null())
        if refused.height:
            self._sql.set_aside(refused)
        return refused.height

    def _aggregate_sessions(self, windows: Windows, records: pl.DataFrame, moment: Moment) -> _MovedStates:
        """Adds *records* to sessions. Those that only extend an open session are added at once, the others in turns."""
        group = records.select(key_text(self._operator.key, records.schema)).to_series()
        earlier = self._states.where_in(GROUP, group).select(self.kernel.state_schema.keys())
        alone = records.select(window_end=pl.col("_timestamp_ms") + windows.size_ms)
        # Lateness depends on the order of records: an earlier one may have opened a session for a later one.
        any_late = bool(alone.select(ends_by(self._closed_ms(moment)).any()).item())
        emission = self._operator.emission
        number_in_key = pl.int_range(pl.len()).over(group)
        doubtful = self._doubtful(windows, earlier, records)
        if emission.decide is DecisionRate.BATCH or (emission.holds and not any_late):
            # Where a result may not fit, records take turns, so that the one that does not fit is found.
            turn = pl.when(doubtful).then(number_in_key).otherwise(0)
            return self._aggregate_in_turns(windows, earlier, records, moment, turn=turn)
        closed_ms = self._closed_ms(moment)
        assigned, rest = in_open_sessions(self.kernel, windows, earlier, records.filter(~doubtful), closed_ms)
        rest = pl.concat([rest, records.filter(doubtful)])
        plain = self._aggregate_assigned(assigned, records.clear())
        if rest.is_empty():
            return plain
        turn = pl.int_range(pl.len()).over(rest.select(key_text(self._operator.key, rest.schema)).to_series())
        other = self._aggregate_in_turns(windows, earlier, rest, moment, turn=turn)
        return _MovedStates(
            newest=pl.concat([plain.newest.select(other.newest.columns), other.newest]),
            gone=other.gone,
            late=other.late,
            results=pl.concat([plain.results.select(other.results.columns), other.results]),
            updates=plain.updates + other.updates,
            set_aside_n=other.set_aside_n,
        )

    def _aggregate_in_turns(
        self, windows: Windows, earlier: pl.DataFrame, records: pl.DataFrame, moment: Moment, *, turn: pl.Expr
    ) -> _MovedStates:
        """Adds *records* to sessions, which may merge.

        Args:
            windows: the gap and the lateness of sessions.
            earlier: the states of open sessions of the same keys, from before the batch.
            records: the records.
            moment: the times of the batch.
            turn: the number of each record's turn. The records of a turn are added together, one turn after the other.
        """
        closed_ms = self._closed_ms(moment)
        open_, late, results, moved_keys, set_aside_n = earlier, records.clear(), [earlier.clear()], [_NO_KEYS], 0
        # Where each record decides, the first records of all keys are one turn, their second records the next, and so
        # on.
        turns = records.with_columns(_turn=turn).partition_by("_turn", maintain_order=True, include_key=False)
        for turn_records in turns:
            sessions = merged_sessions(self.kernel, windows, open_, turn_records, closed_ms)
            refusals = self._refusals(turn_records, sessions.moved)
            if refusals.null_count() < len(refusals):
                set_aside_n += self._set_aside(turn_records, refusals)
                fitting = turn_records.filter(refusals.is_null())
                sessions = merged_sessions(self.kernel, windows, open_, fitting, closed_ms)
            replaced = pl.concat([sessions.moved["_key"], sessions.gone["_key"]])
            open_ = pl.concat([open_.filter(~pl.col("_key").is_in(replaced.implode())), sessions.moved])
            late = pl.concat([late, sessions.late])
            results += [sessions.gone, sessions.moved]
            moved_keys.append(sessions.moved["_key"])
        newest = open_.filter(pl.col("_key").is_in(pl.concat(moved_keys).implode()))
        # A session that merged into another is gone under its old key.
        gone = earlier.filter(~pl.col("_key").is_in(open_["_key"].implode()))["_key"]
        judged = self.kernel.results(pl.concat(results))
        # A session that ends in another one is an update that deletes its old key.
        merges = 0 if self._operator.emission.holds else int(judged["_deleted"].sum())
        updates = records.height - late.height - set_aside_n + merges
        return _MovedStates(newest, gone, late, judged, updates, set_aside_n=set_aside_n)

    def _doubtful(self, windows: Windows, earlier: pl.DataFrame, records: pl.DataFrame) -> pl.Series:
        """Returns True for each of *records* where a result of its key might not fit its type."""
        if not (refuses(records) and self.kernel.may_not_fit):
            return pl.repeat(value=False, n=records.height, dtype=pl.Boolean, eager=True)
        both = pl.concat([earlier, self.kernel.states_of(with_session(records, windows))])
        return self.kernel.doubtful(both, key_text(self._operator.key, both.schema)).tail(records.height)

    def _refusals(self, records: pl.DataFrame, moved: pl.DataFrame) -> pl.Series:
        """Returns, for each of *records*, why the result of its session does not fit its type, or null if it fits.

        *moved* are the states of the sessions that the records changed.
        """
        if not (refuses(records) and self.kernel.may_not_fit):
            return none_of(records)
        problems = self.kernel.problems(self.kernel.results(moved))
        if problems.null_count() == len(problems):
            return none_of(records)
        group = key_text(self._operator.key, records.schema)
        wrong = moved.select(group.alias(GROUP), problems.alias(PROBLEM)).filter(pl.col(PROBLEM).is_not_null())
        # A key whose result may not fit has one record in a turn.
        return records.select(group.alias(GROUP)).join(wrong, on=GROUP, how="left", maintain_order="left")[PROBLEM]

    def _updates_of(self, states: pl.DataFrame) -> pl.DataFrame:
        """Returns *states* as updates: with their results, as `select` of the operator shows them.

        States whose results do not fit their types are set aside.
        """
        operator = self._operator
        results = states if {*operator.aggregates} <= {*states.columns} else self.kernel.results(states)
        problems = self.kernel.problems(results)
        if problems.null_count() < len(problems):
            self._sql.set_aside(results.with_columns(problems.alias(PROBLEM)).filter(problems.is_not_null()))
            results = results.filter(problems.is_null())
        kept = ["_window_end"] if operator.windows else []
        kept += [HELD] if HELD in results.columns else []
        results = results.with_columns(_window_end="window_end") if operator.windows else results
        selected = self._sql.select(results, operator.select, keep=(*self.kernel.key, *META, *kept))
        return with_value(selected, tuple(operator.select))

    def _with_group(self, states: pl.DataFrame) -> pl.DataFrame:
        if not self._in_sessions:
            return states
        return states.with_columns(key_text(self._operator.key, states.schema).alias(GROUP))


_NO_KEYS = pl.Series("_key", [], pl.String())


def refuses(records: pl.DataFrame) -> bool:
    """Returns True if a record whose result does not fit its type is set aside, and the state stays as it was.

    Where *records* may replace others this is False: a later record may take the value away again, so the state has to
    include it, and only the result is set aside.
    """
    return OLD not in records.columns


def none_of(rows: pl.DataFrame) -> pl.Series:
    """Returns a series of null texts, one for each of *rows*."""
    return pl.Series([None], dtype=pl.String).new_from_index(0, rows.height)
