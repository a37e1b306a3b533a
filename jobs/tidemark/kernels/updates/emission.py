"""Decides which updates of an operator are sent on, for whole batches.

In addition to its payload and meta columns an update has `_value`, the text of its value columns, and `_identity`, by
which values are compared. Both are null when it deletes its key. An update that was sent on also has `_old_identity`
and `_old_timestamp_ms` of the update that it replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from tidemark.kernels.columns.identity import identity_of
from tidemark.kernels.columns.schemas import INSTANT
from tidemark.kernels.columns.values import value_text
from tidemark.kernels.updates.change import judge
from tidemark.model.settings.emission import DecisionRate, Emission
from tidemark.selection import outside
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy

STORED: Mapping[str, pl.DataType] = {
    "key": pl.String(),
    "value": pl.String(),
    "identity": pl.String(),
    "timestamp_ms": pl.Int64(),
}
"""A stored row: the last emitted update of a key."""


_COMPARED_BY_TEXT = (
    *(pl.String(), pl.Boolean(), pl.Float32(), pl.Float64(), pl.Date(), INSTANT),
    *(pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64(), pl.UInt8(), pl.UInt16(), pl.UInt32(), pl.UInt64()),
)
"""Types of which two values are equal exactly if their texts are. Lists are not: in a list, NaN has the
text of null.
"""


@dataclass(frozen=True)
class JudgedUpdates:
    """Updates sorted by their decision.

    Attributes:
        emitted: updates that are sent on.
        suppressed: one row per run of suppressed updates.
        skipped: how many updates of each task were suppressed.
        superseded: how many were overtaken by a newer update of their key before anything was decided.
        asserted: all updates that were not superseded, in their order.
    """

    emitted: pl.DataFrame
    suppressed: pl.DataFrame
    skipped: Mapping[int, int] = field(default_factory=dict)
    superseded: int = 0
    asserted: pl.DataFrame = field(default_factory=pl.DataFrame)

    @property
    def suppressed_n(self) -> int:
        """The number of suppressed updates."""
        return sum(self.skipped.values())

    @property
    def stored(self) -> pl.DataFrame:
        """The stored rows after the emitted updates: the last of each key."""
        rows = self.emitted.select(key="_key", value="_value", identity="_identity", timestamp_ms="_timestamp_ms")
        return rows.unique("key", keep="last", maintain_order=True)


def with_value(records: pl.DataFrame, columns: Sequence[str], *, identity: Sequence[str] | None = None) -> pl.DataFrame:
    """Returns *records* as updates: with `_value`, the text of *columns*, and `_identity`, by which it is compared.

    Values are compared by the columns *identity*, or by *columns* without those. Where equal text means an equal value,
    `_identity` has the columns themselves, until `identified` calculates a hash for the few that are needed.
    """
    text = pl.when(~pl.col("_deleted")).then(value_text(columns, records.schema))
    if identity is None and columns and all(records.schema[c] in _COMPARED_BY_TEXT for c in columns):
        return records.with_columns(_value=text, _identity=pl.struct(columns))
    digest = identity_of(records, columns if identity is None else identity)
    return records.with_columns(_value=text, _identity=pl.when(~pl.col("_deleted")).then(digest))


def identified(updates: pl.DataFrame) -> pl.DataFrame:
    """Returns *updates* with the hash of each value as `_identity`, for those that do not have it yet."""
    if not _is_compared_by_text(updates):
        return updates
    compared = updates["_identity"].struct.unnest()
    digest = identity_of(compared, compared.columns)
    return updates.with_columns(_identity=pl.when(pl.col("_value").is_not_null()).then(digest))


def _is_compared_by_text(updates: pl.DataFrame) -> bool:
    return isinstance(updates.schema["_identity"], pl.Struct)


def sent_on(
    updates: pl.DataFrame, stored: pl.DataFrame, emission: Emission, *, with_times: bool = False
) -> JudgedUpdates:
    """Decides which *updates* are sent on at once, by a strategy under which none waits.

    Args:
        updates: the updates, in order.
        stored: the stored rows of their keys.
        emission: the strategy, its change rule, and whether it decides once for each key of a batch.
        with_times: as for `judged`.
    """
    decided = updates
    if emission.decide is DecisionRate.BATCH:
        decided = newest_per_key(updates)
    if emission.strategy is Strategy.ON_CHANGE:
        result = judged(decided, stored, emission.rule, with_times=with_times)
    else:
        result = replacing(decided, stored, everything=True)
    return replace(result, superseded=updates.height - decided.height, asserted=decided)


def newest_per_key(updates: pl.DataFrame) -> pl.DataFrame:
    """Returns the last of *updates* of each key."""
    # The result counts as repeated only if all updates of its key are.
    together = updates.with_columns(pl.col("_repeated").all().over("_key"))
    return together.unique("_key", keep="last", maintain_order=True)


def judged(updates: pl.DataFrame, stored: pl.DataFrame, rule: Rule, *, with_times: bool = False) -> JudgedUpdates:
    """Decides *updates*, in order, by comparing each with the *stored* row of its key or the update sent on before it.

    Args:
        updates: the updates, in order.
        stored: the stored rows of their keys.
        rule: when an update counts as unchanged.
        with_times: whether each run of suppressed updates lists the times of all of them, for the versions of a joined
            table.
    """
    by_text = _is_compared_by_text(updates)
    compared, stored_as = ("_value", "value") if by_text else ("_identity", "identity")
    verdicts = judge(
        updates.select(key="_key", value=compared, timestamp_ms="_timestamp_ms"),
        stored.select("key", "timestamp_ms", value=stored_as),
        rule=rule,
    )
    rows = updates.with_columns(
        verdicts["old_value"].alias(f"_old{compared}"),
        _old_timestamp_ms=verdicts["old_timestamp_ms"],
        _run=verdicts["run"],
        _old_run=verdicts["old_run"],
    )
    emitted = rows.filter(verdicts["emit"])
    of_version = (compared, "_old_timestamp_ms", "_run", "_old_run")
    skipped = rows.select("_key", *of_version, "_partition", "_offset", "_timestamp_ms", "_task")
    if with_times:
        # Of one instant the last update counts.
        skipped = skipped.with_columns(_stands=pl.struct("_key", "_timestamp_ms").is_last_distinct())
    skipped = skipped.filter(~verdicts["emit"])
    per_task = dict.fromkeys(updates["_task"].unique().to_list(), 0)
    per_task |= dict(skipped.group_by("_task").len().iter_rows())
    runs = _runs(skipped, compared, "_run")
    if by_text:
        emitted = identified(emitted)
        sent = emitted.select(_old_run="_run", _sent="_identity")
        emitted = emitted.with_columns(_old_identity=_compared_with(emitted, sent, stored))
        emitted = emitted.drop("_old_value")
        runs = runs.with_columns(_identity=_compared_with(runs, sent, stored)).drop("_value")
    return JudgedUpdates(emitted.drop("_run", "_old_run"), runs.drop("_run", "_old_run"), per_task)


def _compared_with(updates: pl.DataFrame, sent: pl.DataFrame, stored: pl.DataFrame) -> pl.Series:
    """Returns the identity of the value with which each of *updates* was compared.

    That value is the one that was *sent* on in the run `_old_run`, or without such a run the *stored* one of the key.
    """
    rows = updates.select("_key", "_old_run").join(sent, on="_old_run", how="left", maintain_order="left")
    old = rows.join(stored.select(_key="key", _stored="identity"), on="_key", how="left", maintain_order="left")
    return old.select(pl.when(pl.col("_old_run").is_null()).then("_stored").otherwise("_sent")).to_series()


def replacing(updates: pl.DataFrame, stored: pl.DataFrame, *, everything: bool = False) -> JudgedUpdates:
    """Sends all of *updates* on; each replaces the one before it, or the *stored* row of its key.

    The deletion of a key that does not exist is suppressed, unless *everything* is true.
    """
    old = stored.select(_key="key", _stored_identity="identity", _stored_ms="timestamp_ms")
    rows = (
        identified(updates)
        .join(old, on="_key", how="left", maintain_order="left")
        .with_columns(
            _old_identity=pl.col("_identity").shift().over("_key"),
            _old_timestamp_ms=pl.col("_timestamp_ms").shift().over("_key"),
        )
    )
    first = pl.col("_key").is_first_distinct()
    rows = rows.with_columns(
        _old_identity=pl.when(first).then("_stored_identity").otherwise("_old_identity"),
        _old_timestamp_ms=pl.when(first).then("_stored_ms").otherwise("_old_timestamp_ms"),
    )
    rows = rows.drop("_stored_identity", "_stored_ms")
    # Readers know no such key, so its deletion says nothing to them.
    is_void = pl.col("_deleted") & pl.col("_old_identity").is_null() & pl.lit(value=not everything)
    per_task = dict(rows.group_by("_task").agg(is_void.sum()).iter_rows())
    void = rows.filter(is_void).with_columns(_old_run=pl.lit(None, pl.Int64))
    runs = _runs(void, "_identity", "_key", "_old_timestamp_ms")
    return JudgedUpdates(rows.filter(~is_void), runs, per_task)


def _runs(skipped: pl.DataFrame, compared: str, *run: str) -> pl.DataFrame:
    """Returns a row for each run of suppressed updates, and partition.

    The updates of a run have equal values in the columns *run*. From these it follows that their keys are equal, what
    they are *compared* by, and the version that they repeat.
    """
    same = outside(("_key", compared, "_old_timestamp_ms", "_old_run"), run)
    times = {"asserted_ms": pl.col("_timestamp_ms").filter(pl.col("_stands"))} if "_stands" in skipped.columns else {}
    return skipped.group_by(*run, "_partition", maintain_order=True).agg(
        *(pl.col(name).first() for name in same),
        n=pl.len(),
        first_offset=pl.col("_offset").min(),
        last_offset=pl.col("_offset").max(),
        max_timestamp=pl.col("_timestamp_ms").max(),
        **times,
    )
