"""Sets time back on request (`tidemark reset-time`), once.

How it works: a request lies in the control folder and stays there. The batch that is decided next starts from the
progress that the request makes; its journal entry has that progress and the request's id, so that a batch that is run
again, or a driver that starts again, does not apply it twice. Windows that were closed stay closed: they are looked up
once, in the tables, and the progress has them until the watermark has passed them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from tidemark.control.folder import TimeReset
from tidemark.model.tables.catalog import CHANGES, OPERATOR_WINDOWS
from tidemark.model.topology import SubTopology
from tidemark.selection import omit
from tidemark.semantics.event_time import set_back, watermark_over_inputs
from tidemark.semantics.progress import STREAMING, StreamProgress
from tidemark.semantics.watermark import is_window_late
from tidemark.storage.delta.tables import scan
from tidemark.stream.decide.reopenings import forgotten
from tidemark.stream.journal.unflushed import scan_facts

Closed = Mapping[str, tuple[tuple[int, int], ...]]
"""Closed windows as (start, end), by aggregate, and streaming windows under STREAMING, as in `stay_closed`."""


class TimeResets:
    """Applies requests to set time back.

    Args:
        sub: the sub-topology.
        home: the folder of its tables.
        requested: returns the requests.
        window_ms: the length of a streaming window.
        flush: writes all facts to their tables.
    """

    def __init__(
        self,
        sub: SubTopology,
        home: Path,
        requested: Callable[[], list[TimeReset]],
        *,
        window_ms: int,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._flush = flush
        self._sub, self._home, self._requested, self._window_ms = sub, home, requested, window_ms
        self._windows = sub.windows()

    def applied(self, was: StreamProgress, batch_id: int) -> StreamProgress:
        """Returns the progress *was*, with time set back by all requests that are due and not done.

        *batch_id* is the batch that carries them out. Without such a request the result is *was* itself.
        """
        now = self._pruned(was) if was.stay_closed else was
        # Requests stay in the folder; the progress knows which ones were carried out.
        for reset in self._requested():
            source = was.inputs.get(reset.source)
            part = source.partitions.get(reset.partition) if source else None
            if reset.id not in was.resets and part is not None and part.until_offset >= reset.from_offset:
                now = self._set_back(now, reset, batch_id)
        return now

    def _set_back(self, was: StreamProgress, reset: TimeReset, batch_id: int) -> StreamProgress:
        # Closed windows are looked up in the tables, which need all facts first.
        self._flush()
        now = self.preview(was, reset.source, reset.partition, reset.to_ms)
        return replace(now, resets={**was.resets, reset.id: batch_id})

    def preview(self, was: StreamProgress, source: str, partition: int, to_ms: int) -> StreamProgress:
        """Returns the progress *was* with the time of a *partition* of *source* set back to *to_ms*."""
        part = was.inputs[source].partitions[partition]
        if part.max_timestamp_ms is None or was.inputs[source].watermark_ms is None or part.max_timestamp_ms <= to_ms:
            return was
        operator = next(o for o in self._sub.operators if o.name == source)
        back = set_back(was.inputs[source], partition, to_ms=to_ms, bound_ms=operator.out_of_order_ms)
        inputs = {**was.inputs, source: back}
        leading = omit(inputs, self._sub.table_inputs())
        # A table input does not hold back the watermark of its stream.
        if source not in leading or was.watermark_ms is None:
            return replace(was, inputs=inputs)
        reached_ms = leading[source].watermark_ms
        assert reached_ms is not None
        # A watermark never regresses by itself, so the previous one is lowered first.
        time = watermark_over_inputs(leading, previous_ms=min(was.watermark_ms, reached_ms))
        closed = self._closed(was, was.watermark_ms, time.watermark_ms)
        together: dict[str, tuple[tuple[int, int], ...]] = {}
        for name in {*was.stay_closed, *closed}:
            together[name] = *was.stay_closed.get(name, ()), *closed.get(name, ())
        return replace(
            was,
            inputs=inputs,
            watermark_ms=time.watermark_ms,
            held_by=time.held_by,
            idle=time.idle,
            stay_closed={name: tuple(sorted({*windows})) for name, windows in together.items()},
            forgotten=self._forgotten(was, time.watermark_ms, together),
            ended={},
        )

    def _forgotten(self, was: StreamProgress, now_ms: int | None, closed: Closed) -> dict[str, int]:
        """Returns, by aggregate, the latest end of a window whose states are removed, with time set back to *now_ms*.

        A window behind all those that stay *closed* may open as a new one, so it does not count as removed.
        """
        latest_ends = {}
        for name, end_ms in forgotten(self._windows, was).items():
            ends = [end for _, end in closed.get(name, ())]
            ends += [] if now_ms is None else [self._windows[name].closed_up_to_ms(now_ms)]
            latest_ends[name] = min(end_ms, max(ends, default=end_ms))
        return latest_ends

    def _closed(self, was: StreamProgress, was_ms: int, now_ms: int | None) -> Closed:
        """Returns the windows that were closed at the watermark *was_ms* and would be open again at *now_ms*.

        *was* is the progress before time is set back.
        """

        def kept(rows: pl.DataFrame, closed_ms: int, allowed_ms: int) -> tuple[tuple[int, int], ...]:
            # Rows without a window have a null end, which this filter drops, too.
            in_order = rows.unique().filter(pl.col("end") <= closed_ms).sort("start")
            return _open_at(now_ms, in_order.select("start", "end").iter_rows(), allowed_ms)

        start, end = (pl.col(f"window_{edge}").dt.epoch("ms").alias(edge) for edge in ("start", "end"))
        changes = scan(self._home / CHANGES.name).select("operator", start, end)
        closed_windows = {}
        for name, settings in self._windows.items():
            results = changes.filter(pl.col("operator") == name).drop("operator").collect()
            closed_ms = settings.closed_up_to_ms(was_ms, was.ended.get(name))
            closed_windows[name] = kept(results, closed_ms, settings.allowed_lateness_ms)
        windows = scan_facts(self._home / OPERATOR_WINDOWS.name).select(start).collect()
        # A window is closed when the watermark has reached its last millisecond, so its end may be 1 ms later.
        closed_windows[STREAMING] = kept(windows.with_columns(end=pl.col("start") + self._window_ms), was_ms + 1, 0)
        return _without_empty(closed_windows)

    def _pruned(self, was: StreamProgress) -> StreamProgress:
        """Returns *was* without windows that are closed by the watermark again, with their allowed lateness."""
        still_closed: dict[str, tuple[tuple[int, int], ...]] = {}
        for name, windows in was.stay_closed.items():
            # Streaming windows, which have no operator, allow no lateness.
            allowed_ms = self._windows[name].allowed_lateness_ms if name in self._windows else 0
            still_closed[name] = _open_at(was.watermark_ms, windows, allowed_ms)
        return replace(was, stay_closed=_without_empty(still_closed))


def _open_at(
    watermark_ms: int | None, windows: Iterable[tuple[int, int]], allowed_ms: int
) -> tuple[tuple[int, int], ...]:
    """Returns those *windows*, given as (start, end), that are still open at *watermark_ms*."""
    open_windows: list[tuple[int, int]] = []
    for start, end in windows:
        if not is_window_late(end, watermark_ms, allowed_lateness_ms=allowed_ms):
            open_windows.append((start, end))
    return tuple(open_windows)


def _without_empty(windows: Closed) -> Closed:
    return {name: closed for name, closed in windows.items() if closed}
