"""The base of operators that judge updates: each is sent on or suppressed, and the newest of each key is kept."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import polars as pl

from tidemark.kernels import payload
from tidemark.kernels.columns.schemas import META_SCHEMA
from tidemark.kernels.columns.splitting import split
from tidemark.kernels.columns.values import key_text, value_text
from tidemark.kernels.records.headers import split_unreadable_keys
from tidemark.kernels.updates.emission import newest_per_key
from tidemark.kernels.updates.facts import times_of
from tidemark.kernels.updates.proofs import changes_rows, quarantine_rows, suppressed_rows
from tidemark.kernels.updates.steps import newest_by_time
from tidemark.model.kinds.operator import Operator
from tidemark.model.settings.emission import Emission
from tidemark.model.tables.catalog import DEAD_LETTERS, STATE, STATE_CHANGES
from tidemark.selection import in_order_of, outside
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.keyed_rows import KeyedRows
from tidemark.stream.state.memory import HELD, Moves
from tidemark.stream.updates.emitting import EmissionResult, Emitter
from tidemark.stream.updates.mistakes import Schema
from tidemark.stream.updates.step import Op, OperatorStep, Run

Tables = dict[str, pl.DataFrame]


class JudgingStep(OperatorStep[Op]):
    """An operator that judges updates, and keeps states."""

    @property
    def emission(self) -> Emission:
        """Returns how the operator sends updates on."""
        emission = self.operator.emission
        assert emission is not None
        return emission

    def kept_columns(self) -> Schema:
        """Returns the columns of its results and states."""
        name, memory = self.operator.name, self.shared.memory
        if name not in memory.stored:
            return {}
        of_states = memory.states[name].schema if name in memory.states else {}
        columns = {**self.shared.schemas[name], **of_states}
        return in_order_of(payload(columns), columns)

    def judged_rows(self, emitted: EmissionResult, window: Mapping[str, str] | None = None) -> Tables:
        """Returns rows of `changes` and `suppressed`.

        *window* names the columns with the bounds of a window, by `window_start` and `window_end`.
        """
        name = self.operator.name
        changes = changes_rows(name, emitted.judged, **(window or {}))
        return {"changes": changes, "suppressed": suppressed_rows(name, emitted.judged)}

    def state_rows(self, moves: Moves, window: Collection[str] = ()) -> Tables:
        """Returns rows of `state_changes`: the states that changed or are gone.

        *window* are the columns with the bounds of a window.
        """
        name = self.operator.name
        if name not in moves.states:
            return {}
        states, dropped = moves.states[name], moves.dropped[name].unique()
        kept = states.filter(~pl.col("_key").is_in(dropped.implode()))
        # Columns with an underscore are Tidemark's own.
        columns = outside(payload(kept.columns), window)
        moved = kept.select(
            operator=pl.lit(name),
            kind=pl.lit(STATE),
            key="_key",
            state=value_text(columns, kept.schema),
            held=HELD,
            deleted="_deleted",
            headers="_headers",
            timestamp="_timestamp_ms",
            newest_timestamp="_newest_ms",
            repeated="_repeated",
            partition="_task",
            source_partition="_partition",
            source_offset="_offset",
            **{column: column for column in window},
        )
        # A key that never had a state needs no row that ends it.
        dropped_with_state = dropped.filter(
            dropped.is_in(self.shared.memory.states[name].look_up(dropped)["_key"].implode())
        )
        gone = dropped_with_state.to_frame("key").select("key", operator=pl.lit(name), kind=pl.lit(STATE))
        return {STATE_CHANGES.name: pl.concat([moved, gone], how="diagonal")}

    def finished(self, records: pl.DataFrame, emitted: EmissionResult) -> pl.DataFrame:
        """Returns the times of the records that the operator has finished.

        As a rule these are *records*. An operator that holds updates, and that no other operator reads, finishes a
        record only when it sends its update on.
        """
        waits = self.emission.holds and self.operator.name in self.shared.terminals
        return times_of(emitted.judged.emitted if waits else records)


class KeyedStep(JudgingStep[Op]):
    """An operator that judges the newest update of each key, by arrival, or with `by_time` by record time."""

    by_time = False

    @abstractmethod
    def updates(self, records: pl.DataFrame) -> pl.DataFrame:
        """Returns *records*, or states, as updates of their keys."""

    def state_schema(self) -> dict[str, pl.DataType]:
        """Returns the columns of the operator's states: those of the newest update of a key."""
        updates = self.updates(self.judged_records(pl.DataFrame(schema=self.shared.schemas[self.operator.inputs[0]])))
        payload = {c: kind for c, kind in updates.schema.items() if not c.startswith("_")}
        return {**payload, **META_SCHEMA, HELD: pl.Boolean()}

    def judged_records(self, records: pl.DataFrame) -> pl.DataFrame:
        """Returns those of *records* that are judged: by default all that the operator reads."""
        return records

    def prepare(self) -> None:
        """Makes room for the last sent update of each key, and for its newest update where that may be another."""
        # Where updates are sent at once and in order of arrival, later ones are only compared with the last sent one.
        keeps = self.emission.holds or self.by_time
        states = KeyedRows(self.state_schema(), key="_key") if keeps else None
        self.shared.memory.keep(self.operator.name, states)

    def newest(
        self, records: pl.DataFrame, moves: Moves, moment: Moment, columns: Sequence[str], *, finished: pl.DataFrame
    ) -> Run:
        """Judges the newest of *records* per key.

        Args:
            records: The records to judge.
            moves: Collects the changes of states.
            moment: The times of the batch.
            columns: The columns to send on.
            finished: All records that count as finished.
        """
        updates, bad = with_key(self.operator, self.updates(records))
        emitted = self.emitted(updates, moves, moment)
        rows = {**self.judged_rows(emitted), **self.state_rows(moves), DEAD_LETTERS.name: bad}
        counts = emitted.counts + Counter(records_in=records.height, quarantined=records.height - updates.height)
        times = self.finished(finished, emitted)
        return Run(emitted.output.select(columns), times, counts, rows, emitted.judged.skipped, emitted.asserted)

    def emitted(self, updates: pl.DataFrame, moves: Moves, moment: Moment) -> EmissionResult:
        """Sends on or suppresses *updates*, or, where the emission holds updates, those that are due."""
        name, memory, emission = self.operator.name, self.shared.memory, self.emission
        emitter = Emitter(name, emission, memory, self.updates, remembers_deleted=self.by_time)
        kept = newest_by_time(updates, memory.states[name].look_up(updates["_key"])) if self.by_time else updates
        if emission.holds:
            return emitter.hold(newest_per_key(kept), updates.height, updates["_key"].clear(), moves, moment)
        if self.by_time:
            states = newest_per_key(kept).with_columns(pl.lit(value=False).alias(HELD))
            emitter.keep(states.select(*memory.states[name].schema), updates["_key"].clear(), moves, moment)
        return emitter.at_once(kept, moves, superseded=updates.height - kept.height)


def with_key(
    operator: Operator, records: pl.DataFrame, key: tuple[str, ...] | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Splits *records* into those with a key, and rows of `dead_letters` for the others.

    The key is the column `_key`, unless *key* names the columns that it consists of.
    """
    if key is not None:
        usable, bad = split(records, key_text(key, records.schema).is_not_null())
        return usable, quarantine_rows(operator.name, bad, "null_key")
    readable, unreadable = split_unreadable_keys(operator.name, records)
    usable, bad = split(readable, pl.col("_key").is_not_null())
    rows = [unreadable, quarantine_rows(operator.name, bad, "null_key")]
    return usable, pl.concat(rows, how="diagonal")
