"""Decides which updates count as unchanged, for a whole batch at once.

A key without a stored version counts as a stored tombstone. A changed update is sent on and stored. An unchanged one
leaves the stored version as it is, with its older timestamp: "the record time represents the beginning of the validity
interval" (KIP-557). `tests/reference/change.py` decides the same, one update after the other.

Why it is the same. Put the updates of a key in order behind its stored version and call equal neighbours a *run* (a key
without a stored version starts with a tombstone, and null equals null). By every rule the stored version has the value
of the row before: it is that row, or an older one of its run. So the first row of a run is always sent on, of a run of
tombstones only that one, and within a run the rules differ in the timestamp that is stored by then:

* `value_only`: nothing else is sent on.
* `same_instant`: a row is sent on unless its timestamp is the stored one, so afterwards its timestamp is the stored
  one either way: compare with the row before.
* `strictly_newer`: a row is sent on unless it is later than the stored one, so the stored timestamp is the lowest of
  the run so far: compare with that. (Comparing with the row before sends too little on.)

And since only a row that is sent on is stored, the stored version before a row is the last one sent on before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tidemark.semantics.change import Rule

Array = np.ndarray[tuple[int], np.dtype[Any]]
NEVER_MS = np.iinfo(np.int64).max


def judge(updates: pl.DataFrame, stored: pl.DataFrame, *, rule: Rule) -> pl.DataFrame:
    """Decides each of *updates*, one row per update in their order.

    Args:
        updates: `key`, `value` (null is a tombstone) and `timestamp_ms` (Int64), in the order in which they are
            decided. Values of any one type that compares by equality; no null keys or timestamps.
        stored: the same columns, at most one row per key; keys without an update do no harm.
        rule: the change rule.

    Returns:
        A row for each update, with these columns:
        `emit` is true for an update that is sent on.
        `old_value` and `old_timestamp_ms` are the version that the update was compared with, which is also the one that
        it replaces if it is sent on; null where there is none.
        `run` is a number: an update that is sent on shares it with the updates after it that repeat its value.
        `old_run` is the run of the version that the update was compared with; null if that is not of this batch.
    """
    rows = _by_key(updates, stored)
    first = rows.first
    emit = _emits(rows, rule)
    last = _last_sent_before(emit, first)
    # Without an earlier update in the batch a row is compared with the stored version of its key.
    is_first_sent, earlier = pl.Series(last < 0), np.maximum(last, 0)
    old_value = rows.old_value.zip_with(is_first_sent, rows.value.gather(earlier))
    old_timestamp_ms = rows.old_timestamp_ms.zip_with(is_first_sent, rows.timestamp_ms.gather(earlier))
    run = pl.Series(np.cumsum(emit | first), dtype=pl.Int64)
    old = {"old_value": old_value, "old_timestamp_ms": old_timestamp_ms}
    verdicts = pl.DataFrame({"emit": emit, **old, "run": run, "old_run": run.gather(earlier).set(is_first_sent, None)})
    back = np.empty(len(emit), np.int64)
    back[rows.row] = np.arange(len(emit))
    return verdicts[back]


@dataclass(frozen=True)
class _RowsByKey:
    """Updates key by key, in order within each key.

    Attributes:
        row: the number of each among all updates.
        first: true for the first row of each key.
        value: the value of each.
        timestamp_ms: its record time.
        old_value: the value of its key's stored version.
        old_timestamp_ms: the record time of that version.
    """

    row: Array
    first: Array
    value: pl.Series
    timestamp_ms: pl.Series
    old_value: pl.Series
    old_timestamp_ms: pl.Series


def _by_key(updates: pl.DataFrame, stored: pl.DataFrame) -> _RowsByKey:
    old = stored.select("key", old_value="value", old_timestamp_ms="timestamp_ms")
    # polars keeps the order of rows within a group, so nothing is sorted.
    keys = updates.select("key").with_row_index("row").group_by("key").agg("row").join(old, on="key", how="left")
    n = keys["row"].list.len().to_numpy()
    row = keys["row"].explode(empty_as_null=False).to_numpy()
    first = np.zeros(len(row), dtype=bool)
    first[np.cumsum(n) - n] = True
    of_key = np.repeat(np.arange(len(n)), n)
    return _RowsByKey(
        row,
        first,
        updates["value"].gather(row),
        updates["timestamp_ms"].gather(row),
        keys["old_value"].gather(of_key),
        keys["old_timestamp_ms"].gather(of_key),
    )


def _emits(rows: _RowsByKey, rule: Rule) -> Array:
    """Returns True for rows that are sent on by *rule*; the module says why it is right."""
    first, value, timestamp_ms = rows.first, rows.value, rows.timestamp_ms.to_numpy()
    repeats = value.eq_missing(value.shift().zip_with(pl.Series(~first), rows.old_value)).to_numpy()
    # np.roll wraps around at row 0, which is the first row of its key and compared with the stored version.
    before_ms = np.where(first, rows.old_timestamp_ms.fill_null(NEVER_MS).to_numpy(), np.roll(timestamp_ms, 1))
    match rule:
        case Rule.STRICTLY_NEWER:
            # Where each row is later than the one before it, each is later than the lowest before it.
            if (changed := repeats & (timestamp_ms <= before_ms)).any():
                lowest_ms = _running_min(np.where(repeats, before_ms, NEVER_MS), starts=first | ~repeats)
                changed = timestamp_ms <= lowest_ms
        case Rule.SAME_INSTANT:
            changed = timestamp_ms != before_ms
        case Rule.VALUE_ONLY:
            changed = np.zeros(len(first), dtype=bool)
    emit: Array = ~repeats | (changed & value.is_not_null().to_numpy())
    return emit


def _running_min(values: Array, *, starts: Array) -> Array:
    """Returns the lowest value so far; a new stretch begins wherever *starts* is true.

    The work is log2(longest stretch) passes over all values.
    """
    # A parallel prefix scan: each pass doubles the distance over which minima are carried.
    stretch, lowest, step = np.cumsum(starts), values, 1
    while (together := stretch[step:] == stretch[:-step]).any():
        further = np.where(together, np.minimum(lowest[step:], lowest[:-step]), lowest[step:])
        lowest, step = np.concatenate([lowest[:step], further]), step * 2
    return lowest


def _last_sent_before(emit: Array, first: Array) -> Array:
    """Returns the index of the last emitted row of the same key before each row, or −1 where there is none."""
    positions = np.arange(len(emit))
    sent = np.maximum.accumulate(np.where(emit, positions, -1))
    before = np.concatenate([[-1], sent[:-1]])
    # A position before the first row of its key is that of another key.
    return np.where(before >= np.maximum.accumulate(np.where(first, positions, 0)), before, -1)
