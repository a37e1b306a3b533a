"""Finds restarts and standstills, in which no driver read, and the records that waited meanwhile."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import polars as pl

from tidemark.model.settings.intervals import iso

RUNNING = "running"
"""State in heartbeats: see control.StreamState."""
TRIGGERS = 2
"""A driver that was replaced within so many triggers counts as not restarted: no record waited for it."""
IDLE_FOR_MS = 60_000
"""A new driver that ran for longer than this before its first batch is no restart: there was nothing to read."""
STILL_AFTER_MS = 30_000
"""A driver without a sign of work for longer stood still; two heartbeats of 15 s take as long."""


class Restart(NamedTuple):
    """A time in which no driver read.

    Attributes:
        batch_id: the batch that read the records that waited.
        from_ms: its beginning, epoch ms of the driver's clock.
        to_ms: its end, epoch ms of the driver's clock.
        waited: how many records waited at least, namely those that the batch read. See `with_unread`.
        stood_still: the driver was not replaced; its process was stopped, or it hung.
    """

    batch_id: int
    from_ms: int
    to_ms: int
    waited: int
    stood_still: bool = False

    @property
    def seen(self) -> str:
        """The event as part of a sentence."""
        waited = f"{self.waited:,} records waited"
        return f"nothing was read from {iso(self.from_ms)} to {iso(self.to_ms)}, and {waited}"


def restarts(batches: pl.DataFrame, beats: pl.DataFrame, *, trigger_ms: int) -> list[Restart]:
    """Returns the times when no driver of one sub-topology read, oldest first.

    Drivers that finished no batch do not count. See `_standstill` for a driver that was not replaced.

    Args:
        batches: rows of `batches`, instants as epoch ms.
        beats: rows of `heartbeats`, instants as epoch ms.
        trigger_ms: the trigger interval of the topology.
    """
    last_beat_ms = dict(beats.group_by("epoch").agg(pl.col("beat_at").max()).iter_rows())
    running = beats.filter(pl.col("state") == RUNNING)
    idle = running.filter(pl.col("batch_started_at").is_null())
    idle_since_ms = dict(idle.group_by("epoch").agg(pl.col("beat_at").min()).iter_rows())
    signs = _signs(running)
    times: list[Restart] = []
    columns = ("batch_id", "epoch", "decided_at", "started_at", "finished_at", "records_in")
    in_order = batches.sort("batch_id").select(columns)
    # A driver that began a batch so soon after another did not stand still.
    is_long = (pl.col("started_at") - pl.col("finished_at").shift()).abs() > TRIGGERS * trigger_ms
    is_other = pl.col("epoch") != pl.col("epoch").shift()
    after = in_order.select((is_long | is_other).fill_null(value=True).alias("after"))["after"].arg_true()
    after = after.filter(after > 0)
    for before, batch in zip(in_order[after - 1].to_dicts(), in_order[after].to_dicts(), strict=True):
        epoch, decided_ms, ended_ms = batch["epoch"], batch["decided_at"], before["finished_at"]
        if epoch == before["epoch"]:
            if epoch in signs:
                times += _standstill(signs[epoch], ended_ms, batch, TRIGGERS * trigger_ms)
        elif decided_ms - idle_since_ms.get(epoch, decided_ms) <= IDLE_FOR_MS:
            # A driver reads nothing after its last batch or, where that is later, its last heartbeat.
            from_ms = max(ended_ms, last_beat_ms.get(before["epoch"], ended_ms))
            times.append(Restart(batch["batch_id"], from_ms, batch["finished_at"], batch["records_in"]))
    return [each for each in times if each.to_ms - each.from_ms > TRIGGERS * trigger_ms]


def with_unread(restart: Restart, reads: pl.DataFrame) -> Restart:
    """Returns *restart* with the number of all records that waited, also of those that its batch left for later ones.

    The records that were left lie between the offset to which the batch read and the end of the partition when the
    broker was first asked after the restart. For hops and tables, which have no such end, none are added.

    Args:
        restart: a time without reads.
        reads: rows of `partition_reads` of its batch and of later ones.
    """
    partition = ["source", "partition"]
    in_order = reads.sort("batch_id", maintain_order=True)
    first_ends = in_order.drop_nulls("latest_offset").unique(partition, keep="first", maintain_order=True)
    read = in_order.filter(pl.col("batch_id") == restart.batch_id).select(*partition, read_to="until_offset")
    unread = first_ends.join(read, on=partition, how="inner").select(pl.col("latest_offset") - pl.col("read_to"))
    left = int(unread.to_series().clip(lower_bound=0).sum())
    return restart._replace(waited=restart.waited + left)


class _Signs(NamedTuple):
    """The heartbeats of a driver in order.

    Attributes:
        at_ms: when it sent each.
        worked_ms: when it had last worked, according to each.
        lag_ms: the longest time without work that a heartbeat shows.
    """

    at_ms: list[int]
    worked_ms: list[int]
    lag_ms: int


def _signs(running: pl.DataFrame) -> dict[int, _Signs]:
    """Returns signs of work from the beats of *running* drivers, by epoch."""
    # While a driver waits and nothing is due, `step_began_at` moves along (Pulse.waits); in a hang it does not.
    worked = pl.coalesce("batch_started_at", "step_began_at", "beat_at")
    # The beats of a driver continue while it hangs, its work does not.
    in_order = running.sort("beat_at").select("epoch", "beat_at", worked.alias("worked_at"))
    by_epoch = in_order.partition_by("epoch", as_dict=True, maintain_order=True)
    return {epoch: _signs_of(beats["beat_at"], beats["worked_at"]) for (epoch,), beats in by_epoch.items()}


def _signs_of(at_ms: pl.Series, worked_ms: pl.Series) -> _Signs:
    lag_ms = (at_ms - worked_ms).max()
    return _Signs(at_ms.to_list(), worked_ms.to_list(), lag_ms if isinstance(lag_ms, int) else 0)


def _standstill(signs: _Signs, ended_ms: int, batch: Mapping[str, Any], short_ms: int) -> Iterator[Restart]:
    """Yields the standstill between two batches of one driver, if there was one.

    A standstill is a time between two signs of work that is longer than STILL_AFTER_MS and *short_ms*. It need only be
    longer than *short_ms* if a heartbeat shows that the driver had not worked for so long. The batch after it begins
    within *short_ms*.

    Args:
        signs: the signs of work of the driver.
        ended_ms: when the batch before ended, epoch ms.
        batch: the batch after it.
        short_ms: a shorter pause is none.
    """
    began_ms = batch["started_at"]
    longest_ms = max(STILL_AFTER_MS, short_ms)
    # Most pauses of a stream that goes on are too short, and no beat shows a longer one.
    if began_ms is None or (abs(began_ms - ended_ms) <= longest_ms and signs.lag_ms <= short_ms):
        return
    first, last = bisect_right(signs.at_ms, ended_ms), bisect_right(signs.at_ms, began_ms)
    between = [*zip(signs.at_ms[first:last], signs.worked_ms[first:last], strict=True)]
    worked = sorted({ended_ms, began_ms, *(worked_ms for _, worked_ms in between if worked_ms > ended_ms)})
    hung = {max(ended_ms, worked_ms) for at_ms, worked_ms in between if at_ms - max(ended_ms, worked_ms) > short_ms}
    for from_ms, to_ms in pairwise(worked):
        # Without later beats a driver is not assumed to have stood still: it may have been gone.
        is_long = to_ms - from_ms > longest_ms and signs.at_ms[-1] > from_ms
        if (is_long or from_ms in hung) and began_ms - to_ms <= short_ms:
            yield Restart(batch["batch_id"], from_ms, to_ms, batch["records_in"], stood_still=True)
