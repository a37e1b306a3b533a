"""Operators that judge updates: what of them goes to tables, and how the newest update of each key is kept."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl

from tidemark.kernels.emission import newest_per_key
from tidemark.kernels.facts import times_of
from tidemark.kernels.proofs import changes_rows, quarantine_rows, suppressed_rows
from tidemark.kernels.schemas import META_SCHEMA
from tidemark.kernels.steps import newest_by_time
from tidemark.kernels.values import key_text, value_text
from tidemark.kernels.windows import WINDOW
from tidemark.spec.operators import Emission, Operator, emission_of
from tidemark.stream.batch import Moment
from tidemark.stream.emitting import Emitted, Emitter
from tidemark.stream.keyed_rows import KeyedRows
from tidemark.stream.operate.step import Op, Run, Step
from tidemark.stream.state import HELD, Moves

Tables = dict[str, pl.DataFrame]


class JudgingStep(Step[Op]):
    """An operator that judges updates, and keeps states."""

    @property
    def emission(self) -> Emission:
        """How it sends updates on."""
        emission = emission_of(self.operator)
        assert emission is not None
        return emission

    def judged_rows(self, emitted: Emitted, window: Mapping[str, str] | None = None) -> Tables:
        """Return the rows of `changes` and `suppressed`; *window* maps bounds to columns that have them."""
        name = self.operator.name
        changes = changes_rows(name, emitted.judged, **(window or {}))
        joined = name in self.shared.memory.versions
        return {"changes": changes, "suppressed": suppressed_rows(name, emitted.judged, joined=joined)}

    def state_rows(self, moves: Moves) -> Tables:
        """Return the states that moved, and those that are gone, as rows of their table."""
        name = self.operator.name
        if name not in moves.states:
            return {}
        states, dropped = moves.states[name], moves.dropped[name].unique()
        kept = states.filter(~pl.col("_key").is_in(dropped.implode()))
        columns = [c for c in kept.columns if not c.startswith("_") and c not in WINDOW]
        window = {c: c for c in WINDOW if c in kept.columns}
        moved = kept.select(
            operator=pl.lit(name),
            key="_key",
            state=value_text(columns, kept.schema),
            held=HELD,
            deleted="_deleted",
            headers="_headers",
            timestamp="_timestamp_ms",
            newest="_newest_ms",
            repeated="_repeated",
            partition="_task",
            source_partition="_partition",
            source_offset="_offset",
            **window,
        )
        known = dropped.filter(dropped.is_in(self.shared.memory.states[name].of(dropped)["_key"].implode()))
        gone = pl.DataFrame({"operator": pl.Series([name] * known.len(), dtype=pl.String), "key": known})
        return {"operator_state": pl.concat([moved, gone], how="diagonal")}

    def finished(self, records: pl.DataFrame, emitted: Emitted) -> pl.DataFrame:
        """Return the times of what it finished: *records*, or what it sends on where it holds and no one reads it."""
        waits = self.emission.holds and self.operator.name in self.shared.terminals
        return times_of(emitted.judged.emitted if waits else records)


class KeyedStep(JudgingStep[Op]):
    """An operator that judges the newest update of each key; `by_time`: the newest by record time, not by arrival."""

    by_time = False

    @abstractmethod
    def updates(self, records: pl.DataFrame) -> pl.DataFrame:
        """Return *records*, or states, as updates of their keys."""

    def state_schema(self) -> dict[str, pl.DataType]:
        """Return the columns of its states: those of the newest update of a key."""
        updates = self.updates(self.judged_records(pl.DataFrame(schema=self.shared.schemas[self.operator.inputs[0]])))
        payload = {c: kind for c, kind in updates.schema.items() if not c.startswith("_")}
        return {**payload, **META_SCHEMA, HELD: pl.Boolean()}

    def judged_records(self, records: pl.DataFrame) -> pl.DataFrame:
        """Return the records that it judges of those that it reads."""
        return records

    def prepare(self) -> None:
        """Keep the update of each key that was sent on last, and its newest one where that may be another."""
        keeps = self.emission.holds or self.by_time
        states = KeyedRows(self.state_schema(), key="_key") if keeps else None
        self.shared.memory.keep(self.operator.name, states)

    def newest(
        self, records: pl.DataFrame, moves: Moves, moment: Moment, columns: Sequence[str], *, finished: pl.DataFrame
    ) -> Run:
        """Judge the newest of *records* per key, and send on *columns* of it; all of those *finished* count."""
        updates, bad = with_key(self.operator, self.updates(records))
        emitted = self.emitted(updates, moves, moment)
        rows = {**self.judged_rows(emitted), **self.state_rows(moves), **bad}
        counts = emitted.counts + Counter(records_in=records.height, quarantined=records.height - updates.height)
        times = self.finished(finished, emitted)
        return Run(emitted.output.select(columns), times, counts, rows, emitted.judged.skipped, emitted.asserted)

    def emitted(self, updates: pl.DataFrame, moves: Moves, moment: Moment) -> Emitted:
        """Judge *updates* by the emission of the operator."""
        name, memory, emission = self.operator.name, self.shared.memory, self.emission
        emitter = Emitter(name, emission, memory, self.updates, remembers_deleted=self.by_time)
        kept = newest_by_time(updates, memory.states[name].of(updates["_key"])) if self.by_time else updates
        newest = newest_per_key(kept)
        if emission.holds:
            return emitter.hold(newest, updates.height, updates["_key"].clear(), moves, moment)
        if self.by_time:
            states = newest.with_columns(pl.lit(value=False).alias(HELD))
            emitter.keep(states.select(*memory.states[name].schema), updates["_key"].clear(), moves, moment)
        return emitter.at_once(kept, moves, superseded=updates.height - kept.height)


def with_key(
    operator: Operator, records: pl.DataFrame, key: tuple[str, ...] | None = None
) -> tuple[pl.DataFrame, Tables]:
    """Part *records* whose key is not null from the others, as rows of quarantine; the key is `_key` unless named."""
    text = pl.col("_key") if key is None else key_text(key, records.schema)
    bad = records.filter(text.is_null())
    rows = quarantine_rows(operator.name, bad, "null_key")
    return records.filter(text.is_not_null()), {"quarantine": rows}
