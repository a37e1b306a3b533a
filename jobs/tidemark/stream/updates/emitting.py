"""Decides which updates are sent on, suppressed, or held for later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from tidemark.kernels.aggregates.windows import ends_by, is_closed
from tidemark.kernels.updates.emission import JudgedUpdates, identified, judged, replacing, sent_on
from tidemark.model.settings.emission import Emission
from tidemark.model.settings.windows import Windows
from tidemark.semantics import strategy
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.keyed_rows import KeyedRows
from tidemark.stream.state.memory import HELD, Memory, Moves


@dataclass(frozen=True)
class EmissionResult:
    """Updates of an operator by outcome.

    Attributes:
        judged: the updates that were decided.
        repeated: results that were sent on before and are sent again.
        held_before: number of updates that waited before the batch.
        held_after: number of updates that wait for a later batch.
        ended: number of updates that delete the result of a key that became part of another key.
    """

    judged: JudgedUpdates
    repeated: pl.DataFrame
    held_before: int = 0
    held_after: int = 0
    ended: int = 0

    @property
    def output(self) -> pl.DataFrame:
        """All rows that the next operators read."""
        return pl.concat([self.judged.emitted, self.repeated], how="diagonal")

    @property
    def asserted(self) -> pl.DataFrame:
        """All updates in their order, sent on or not.

        Where the strategy holds updates, these are only the updates that it sends on.
        """
        return self.judged.asserted if self.judged.asserted.width else self.output

    @property
    def counts(self) -> Counter[str]:
        """Numbers of updates by outcome. The caller adds how many came in, and how many were set aside."""
        return Counter(
            held_before=self.held_before,
            emitted=self.judged.emitted.height,
            suppressed=self.judged.suppressed_n,
            superseded=self.judged.superseded,
            held_after=self.held_after,
            repeated=self.repeated.height,
        )


@dataclass(frozen=True)
class Emitter:
    """Decides by its *emission* which updates of an operator are sent on.

    Attributes:
        name: the operator.
        emission: its strategy and its rule of change.
        memory: the states in memory, which are only read here.
        prepared: turns states into updates, one for each.
        windows: the windows of the operator, or None if it has none.
        remembers_deleted: True if the states of deleted keys are kept.
    """

    name: str
    emission: Emission
    memory: Memory
    prepared: Callable[[pl.DataFrame], pl.DataFrame]
    windows: Windows | None = None
    remembers_deleted: bool = False

    def at_once(self, updates: pl.DataFrame, moves: Moves, *, superseded: int = 0) -> EmissionResult:
        """Decides *updates* that need not wait: each is sent on, or suppressed as unchanged.

        The new last updates are added to *moves*. *superseded* counts updates that these have already replaced.
        """
        stored = self.memory.stored[self.name].look_up(updates["_key"])
        result = sent_on(updates, stored, self.emission, with_times=self.name in self.memory.versions)
        moves.stored[self.name] = result.stored
        return EmissionResult(replace(result, superseded=result.superseded + superseded), result.emitted.clear())

    def keep(self, states: pl.DataFrame, gone: pl.Series, moves: Moves, moment: Moment) -> None:
        """Adds the new *states* to *moves*, without deciding anything.

        The states of keys *gone* are dropped, and the states of windows that are over after the batch of *moment*.
        """
        moves.states[self.name] = states
        moves.dropped[self.name] = pl.concat([gone, self._forgotten(states, moment)["_key"]])

    def hold(self, newest: pl.DataFrame, updates: int, gone: pl.Series, moves: Moves, moment: Moment) -> EmissionResult:
        """Holds the updates of the batch, and sends on the updates of this and earlier batches that are due.

        Args:
            newest: the states that the batch changed.
            updates: how many updates changed them.
            gone: keys that became part of other keys (merged sessions).
            moves: gets the changes to the states.
            moment: the times of the batch.
        """
        waiting = self._waiting(newest)
        released = self._released(waiting, gone, moment)
        rows = identified(self.prepared(released))
        if HELD not in rows.columns:
            rows = rows.with_columns(released[HELD])
        if self.emission.strategy is Strategy.ON_WINDOW_CLOSE:
            # The end of a window is exclusive: its result has the last millisecond inside as its time.
            rows = rows.with_columns(_timestamp_ms=pl.col("_window_end") - 1)
        ended = self._ended(gone)
        updates_now = pl.concat([ended, rows.filter(HELD).drop(HELD)])
        result = self._replacing(updates_now)
        settled = released.with_columns(pl.lit(value=False).alias(HELD), _repeated=pl.lit(value=True))
        moves.stored[self.name] = result.stored
        # A state that changed and is sent on in the same batch is in both frames: the settled one counts.
        moves.states[self.name] = pl.concat([waiting, settled]).unique("_key", keep="last", maintain_order=True)
        deleted = settled.clear() if self.remembers_deleted else settled.filter("_deleted")
        moves.dropped[self.name] = pl.concat([gone, self._forgotten(waiting, moment)["_key"], deleted["_key"]])
        # These updates were held before the batch, which replaces or ends them: they are never sent on.
        overtaken = int(self._states.look_up(pl.concat([waiting["_key"], gone]))[HELD].sum())
        held_before = self.memory.held[self.name]
        held_after = held_before - overtaken + waiting.height - int(released[HELD].sum())
        moves.held[self.name] = held_after
        repeated = rows.filter(~pl.col(HELD) & ~pl.col("_deleted")).drop(HELD)
        superseded = updates - waiting.height + overtaken
        return EmissionResult(replace(result, superseded=superseded), repeated, held_before, held_after, ended.height)

    def _replacing(self, updates: pl.DataFrame) -> JudgedUpdates:
        """Decides *updates* that replace results sent on before."""
        stored = self.memory.stored[self.name].look_up(updates["_key"])
        # A closed window that was corrected to the same value is suppressed.
        if self.emission.strategy is Strategy.ON_WINDOW_CLOSE:
            return judged(updates, stored, Rule.VALUE_ONLY)
        return replacing(updates, stored)

    def _waiting(self, newest: pl.DataFrame) -> pl.DataFrame:
        """Returns the states *newest*, marked as held."""
        before = self._states.look_up(newest["_key"]).select("_key", _known="_repeated")
        rows = newest.join(before, on="_key", how="left", maintain_order="left")
        # A state that only repeats a result stays a repetition only if the state that it replaces is one.
        repeated = pl.col("_repeated") & pl.col("_known").fill_null(value=True)
        return rows.with_columns(pl.lit(value=True).alias(HELD), _repeated=repeated).select(*self._states.schema)

    def _ended(self, gone: pl.Series) -> pl.DataFrame:
        """Returns updates that delete the results of keys *gone*, as far as results were sent on."""
        sent = self.memory.stored[self.name].look_up(gone).filter(pl.col("value").is_not_null())["key"]
        states = self._states.look_up(sent).with_columns(_deleted=pl.lit(value=True))
        return identified(self.prepared(states.drop(HELD)))

    @property
    def _states(self) -> KeyedRows:
        return self.memory.states[self.name]

    def _released(self, waiting: pl.DataFrame, gone: pl.Series, moment: Moment) -> pl.DataFrame:
        """Returns the states whose updates are sent on now.

        *waiting* are the states that the batch changed; *gone* keys have none any more.
        """
        closed = self._closed(waiting, moment).filter(~pl.col("_key").is_in(gone.implode()))
        end_ms = due_at_ms(self.emission, moment.was_decided_at_ms)
        if end_ms is None or moment.decided_at_ms < end_ms:
            return closed.filter(HELD)
        # The interval of a periodic strategy ends with this batch, so all states are due.
        rest = self._states.all().filter(~pl.col("_key").is_in(pl.concat([waiting["_key"], gone]).implode()))
        if self.windows is not None:
            # The result of a closed window is not repeated.
            rest = rest.filter(~is_closed(self.windows, moment.was_watermark_ms) | pl.col(HELD))
        return pl.concat([rest, waiting])

    def _closed(self, moved: pl.DataFrame, moment: Moment) -> pl.DataFrame:
        """Returns the states of windows that are closed after the batch.

        *moved* are the states that the batch changed.
        """
        return self._ended_by(Windows.closed_up_to_ms, moved, moment)

    def _forgotten(self, moved: pl.DataFrame, moment: Moment) -> pl.DataFrame:
        """Returns the states of windows that are dropped after the batch, because no correction is accepted any more.

        *moved* are the states that the batch changed.
        """
        return self._ended_by(Windows.forgotten_up_to_ms, moved, moment)

    def _ended_by(self, limit: Callable[[Windows, int], int], moved: pl.DataFrame, moment: Moment) -> pl.DataFrame:
        """Returns the states of windows whose end is at most the *limit* for the watermark after the batch.

        *moved* are the states that the batch changed.
        """
        if self.windows is None or moment.watermark_ms is None:
            return moved.clear()
        end_ms = limit(self.windows, moment.watermark_ms)
        before = self._states.where_at_most("window_end", end_ms).filter(~pl.col("_key").is_in(moved["_key"].implode()))
        return pl.concat([before, moved.filter(ends_by(end_ms))])


def due_at_ms(emission: Emission, was_decided_at_ms: int | None) -> int | None:
    """Returns when the interval of a periodic strategy that contains the instant *was_decided_at_ms* ends.

    The result is None for other strategies, and before the first batch.
    """
    if emission.interval_ms is None or was_decided_at_ms is None:
        return None
    return strategy.interval_end_ms(emission.interval_ms, was_decided_at_ms)
