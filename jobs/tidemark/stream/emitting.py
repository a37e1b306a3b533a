"""What becomes of an operator's updates in one batch: sent on, suppressed, or held for a later one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from tidemark.kernels.emission import Judged, judged, replacing, sent_on
from tidemark.kernels.windows import ends_by, is_closed
from tidemark.semantics import strategy
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Decision, Strategy
from tidemark.spec.operators import Emission, Windows
from tidemark.stream.batch import Moment
from tidemark.stream.keyed_rows import KeyedRows
from tidemark.stream.state import HELD, Memory, Moves


@dataclass(frozen=True)
class Emitted:
    """Updates as they were judged; `repeated` results had been sent on before; the held ones wait for a later batch.

    `ended` of them delete what had been sent on of keys that became part of others.
    """

    judged: Judged
    repeated: pl.DataFrame
    held_before: int = 0
    held_after: int = 0
    ended: int = 0

    @property
    def output(self) -> pl.DataFrame:
        """All that the next operators read."""
        return pl.concat([self.judged.emitted, self.repeated], how="diagonal")

    @property
    def asserted(self) -> pl.DataFrame:
        """The updates in their order, sent on or not; of a strategy that holds, those that it sends on."""
        return self.judged.asserted if self.judged.asserted.width else self.output

    @property
    def counts(self) -> Counter[str]:
        """Updates by outcome; what came in and was set aside is the caller's to know."""
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
    """Sends on the updates of the operator *name* by its *emission*, and says what is kept of them.

    *prepared* turns state rows into updates, one for each; *windows* are those that the states are about. The states of
    deleted keys are kept where it *remembers_deleted* ones.
    """

    name: str
    emission: Emission
    memory: Memory
    prepared: Callable[[pl.DataFrame], pl.DataFrame]
    windows: Windows | None = None
    remembers_deleted: bool = False

    def at_once(self, updates: pl.DataFrame, moves: Moves, *, superseded: int = 0) -> Emitted:
        """What becomes of *updates* that need not wait; so many were *superseded* on the way to them."""
        result = sent_on(updates, self.memory.stored[self.name].of(updates["_key"]), self.emission)
        moves.stored[self.name] = result.stored
        return Emitted(replace(result, superseded=result.superseded + superseded), updates.clear())

    def keep(self, states: pl.DataFrame, gone: pl.Series, moves: Moves, moment: Moment) -> None:
        """Have *states* kept as they are and those of the keys *gone*, and of windows that are over, forgotten."""
        moves.states[self.name] = states
        moves.dropped[self.name] = pl.concat([gone, self._forgotten(states, moment)["_key"]])

    def hold(self, newest: pl.DataFrame, updates: int, gone: pl.Series, moves: Moves, moment: Moment) -> Emitted:
        """What becomes of the states *newest*, which so many *updates* moved, and of those held from earlier batches.

        The keys *gone* are part of others now.
        """
        waiting = self._waiting(newest)
        released = self._released(waiting, gone, moment)
        rows = self.prepared(released)
        if HELD not in rows.columns:
            rows = rows.with_columns(released[HELD])
        if self.emission.strategy is Strategy.ON_WINDOW_CLOSE:
            rows = rows.with_columns(_timestamp_ms=pl.col("_window_end") - 1)
        ended = self._ended(gone)
        updates_now = pl.concat([ended, rows.filter(HELD).drop(HELD)])
        result = self._replacing(updates_now)
        settled = released.with_columns(pl.lit(value=False).alias(HELD), _repeated=pl.lit(value=True))
        moves.stored[self.name] = result.stored
        moves.states[self.name] = pl.concat([waiting, settled]).unique("_key", keep="last", maintain_order=True)
        deleted = settled.clear() if self.remembers_deleted else settled.filter("_deleted")
        moves.dropped[self.name] = pl.concat([gone, self._forgotten(waiting, moment)["_key"], deleted["_key"]])
        overtaken = int(self._states.of(pl.concat([waiting["_key"], gone]))[HELD].sum())
        held_before = self.memory.held[self.name]
        held_after = held_before - overtaken + waiting.height - int(released[HELD].sum())
        moves.held[self.name] = held_after
        repeated = rows.filter(~pl.col(HELD) & ~pl.col("_deleted")).drop(HELD)
        superseded = updates - waiting.height + overtaken
        return Emitted(replace(result, superseded=superseded), repeated, held_before, held_after, ended.height)

    def _replacing(self, updates: pl.DataFrame) -> Judged:
        """*updates* in place of what was sent on; a closed window that was corrected to the same value says nothing."""
        stored = self.memory.stored[self.name].of(updates["_key"])
        if self.emission.strategy is Strategy.ON_WINDOW_CLOSE:
            return judged(updates, stored, Rule.VALUE_ONLY)
        return replacing(updates, stored)

    def _waiting(self, newest: pl.DataFrame) -> pl.DataFrame:
        """The states *newest*, held: they only repeat what was sent on if those that they replace do, too."""
        known = self._states.of(newest["_key"]).select("_key", _known="_repeated")
        rows = newest.join(known, on="_key", how="left", maintain_order="left")
        repeated = pl.col("_repeated") & pl.col("_known").fill_null(value=True)
        return rows.with_columns(pl.lit(value=True).alias(HELD), _repeated=repeated).select(*self._states.schema)

    def _ended(self, gone: pl.Series) -> pl.DataFrame:
        """What deletes the keys *gone*, of those that were sent on."""
        sent = self.memory.stored[self.name].of(gone).filter(pl.col("value").is_not_null())["key"]
        states = self._states.of(sent).with_columns(_deleted=pl.lit(value=True))
        return self.prepared(states.drop(HELD))

    @property
    def _states(self) -> KeyedRows:
        return self.memory.states[self.name]

    def _released(self, waiting: pl.DataFrame, gone: pl.Series, moment: Moment) -> pl.DataFrame:
        """The states whose updates are sent on now: of windows that are closed, or of all when an interval ends."""
        closed = self._closed(waiting, moment).filter(~pl.col("_key").is_in(gone.implode()))
        if not is_due(self.emission, moment.was_decided_at_ms, moment.decided_at_ms):
            return closed.filter(HELD)
        rest = self._states.all().filter(~pl.col("_key").is_in(pl.concat([waiting["_key"], gone]).implode()))
        if self.windows is not None:  # the result of a window is not repeated once it is closed
            rest = rest.filter(~is_closed(self.windows, moment.was_watermark_ms) | pl.col(HELD))
        return pl.concat([rest, waiting])

    def _closed(self, moved: pl.DataFrame, moment: Moment) -> pl.DataFrame:
        """The states, the ones that *moved* among them, whose windows are closed after the batch."""
        return self._up_to(Windows.closed_up_to_ms, moved, moment)

    def _forgotten(self, moved: pl.DataFrame, moment: Moment) -> pl.DataFrame:
        """Those of closed windows that are not kept after the batch."""
        return self._up_to(Windows.forgotten_up_to_ms, moved, moment)

    def _up_to(self, limit: Callable[[Windows, int], int], moved: pl.DataFrame, moment: Moment) -> pl.DataFrame:
        """The states, the ones that *moved* among them, of windows up to the *limit* at the watermark."""
        if self.windows is None or moment.watermark_ms is None:
            return moved.clear()
        end_ms = limit(self.windows, moment.watermark_ms)
        before = self._states.up_to("window_end", end_ms).filter(~pl.col("_key").is_in(moved["_key"].implode()))
        return pl.concat([before, moved.filter(ends_by(end_ms))])


def is_due(emission: Emission, was_decided_at_ms: int | None, decided_at_ms: int) -> bool:
    """Whether an interval of *emission* has ended since the batch that was decided at *was_decided_at_ms*."""
    if emission.interval_ms is None or was_decided_at_ms is None:
        return False
    ends = strategy.periodic(emission.interval_ms, held_since_ms=was_decided_at_ms, now_ms=decided_at_ms)
    return ends is Decision.EMIT
