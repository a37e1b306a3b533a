"""What each kind of operator does to one batch of records, given what it kept from earlier batches.

Beside its payload and meta columns an update has `_value`, the text of its value columns, and `_identity`, by which
values are compared; one that was sent on has `_old_identity` and `_old_timestamp_ms` too, of the update that it
replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.kernels import META
from tidemark.kernels.change import judge
from tidemark.kernels.expressions import Expressions
from tidemark.kernels.identity import identity_of
from tidemark.kernels.values import key_text, parsed, partition_of, value_text
from tidemark.semantics.change import Rule
from tidemark.spec.operators import Aggregate, Join, KeyedTable, Map, Repartition

STORED: Mapping[str, pl.DataType] = {
    "key": pl.String(),
    "value": pl.String(),
    "identity": pl.String(),
    "timestamp_ms": pl.Int64(),
}
"""A stored row: the update of a key that was sent on last."""


@dataclass(frozen=True)
class Judged:
    """Updates after the change rule: those sent on, one row per run of those that are not, and how many these are."""

    emitted: pl.DataFrame
    suppressed: pl.DataFrame
    suppressed_n: int

    @property
    def stored(self) -> pl.DataFrame:
        """The stored rows that the emitted updates leave: the last one of each key."""
        rows = self.emitted.select(key="_key", value="_value", identity="_identity", timestamp_ms="_timestamp_ms")
        return rows.unique("key", keep="last", maintain_order=True)


def judged(updates: pl.DataFrame, stored: pl.DataFrame, rule: Rule) -> Judged:
    """*updates* told apart by *rule* from what is *stored* of their keys, and from each other."""
    verdicts = judge(
        updates.select(key="_key", value="_identity", timestamp_ms="_timestamp_ms"),
        stored.select("key", "timestamp_ms", value="identity"),
        rule=rule,
    )
    rows = updates.with_columns(
        _emit=verdicts["emit"], _old_identity=verdicts["old_value"], _old_timestamp_ms=verdicts["old_timestamp_ms"]
    )
    skipped = rows.filter(~pl.col("_emit"))
    runs = skipped.group_by("_key", "_identity", "_old_timestamp_ms", "_partition", maintain_order=True).agg(
        n=pl.len(),
        first_offset=pl.col("_offset").min(),
        last_offset=pl.col("_offset").max(),
        max_timestamp=pl.col("_timestamp_ms").max(),
    )
    return Judged(rows.filter("_emit").drop("_emit"), runs, skipped.height)


def map_records(operator: Map, records: pl.DataFrame, sql: Expressions) -> pl.DataFrame:
    """The records for which `where` is true, with the columns that `select` names."""
    return sql.select(records, operator.select, keep=META, where=operator.where)


def table_updates(operator: KeyedTable, records: pl.DataFrame) -> pl.DataFrame:
    """*records* with the table's key and value; other columns are gone."""
    columns = value_columns(operator, records.columns)
    kept = records.select(*operator.key, *columns, *META)
    return with_value(kept, columns).with_columns(_key=key_text(operator.key, kept.schema))


def with_value(records: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """*records* with the text and the identity of the value that *columns* make up."""
    return records.with_columns(_value=value_text(columns, records.schema), _identity=identity_of(records, columns))


def value_columns(operator: KeyedTable, columns: Sequence[str]) -> tuple[str, ...]:
    """Those of *columns* that make up the value: the ones named, or all that are neither key nor meta."""
    return operator.columns or tuple(c for c in columns if c not in {*operator.key, *META})


def join_valid(operator: Join, records: pl.DataFrame, versions: pl.DataFrame) -> pl.DataFrame:
    """*records* with the columns of the version valid at their timestamp; null where none was.

    *versions* has the key columns of the table, its value columns, and `_valid_from_ms`; of versions from one instant
    the last row wins.
    """
    key = list(operator.on.values())
    right = versions.unique([*key, "_valid_from_ms"], keep="last", maintain_order=True).sort("_valid_from_ms")
    left = records.with_row_index("_row").sort("_timestamp_ms", maintain_order=True)
    joined = left.join_asof(
        right,
        left_on="_timestamp_ms",
        right_on="_valid_from_ms",
        by_left=list(operator.on),
        by_right=key,
        strategy="backward",
        check_sortedness=False,
    )
    added = [c for c in right.columns if c not in {*key, "_valid_from_ms"}]
    return joined.sort("_row").select(*records.columns, *added)


def pruned(versions: pl.DataFrame, key: Sequence[str], *, before_ms: int) -> pl.DataFrame:
    """*versions* without those that were replaced at or before *before_ms*: no record that old will ask for them."""
    in_order = versions.sort("_valid_from_ms", maintain_order=True)
    replaced_at = pl.col("_valid_from_ms").shift(-1).over(key)
    return in_order.filter((replaced_at > before_ms) | replaced_at.is_null())


def repartition_updates(operator: Repartition, records: pl.DataFrame) -> pl.DataFrame:
    """*records* with the id as key, key and value columns as value, and the text of the new key as `_group`."""
    columns = tuple(dict.fromkeys((*operator.key, *operator.columns)))
    return with_value(records, columns).with_columns(
        _key=key_text(operator.id, records.schema), _group=key_text(operator.key, records.schema)
    )


def with_old_value(emitted: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """*emitted* updates with `_old_value`, the text of what they replaced: a *stored* value, or one of theirs."""
    texts = pl.concat(
        [emitted.select("_key", "_identity", "_value"), stored.select(_key="key", _identity="identity", _value="value")]
    )
    named = texts.unique(["_key", "_identity"]).rename({"_identity": "_old_identity", "_value": "_old_value"})
    return emitted.join(named, on=["_key", "_old_identity"], how="left", maintain_order="left")


def hop_rows(operator: Repartition, emitted: pl.DataFrame) -> pl.DataFrame:
    """The rows that take each old value back and add each new one: two rows where the new key is another one.

    *emitted* has `_old_value`.
    """
    schema = {c: emitted.schema[c] for c in dict.fromkeys((*operator.key, *operator.columns))}
    rows = emitted.with_row_index("_row").with_columns(_old=parsed("_old_value", schema))
    old_group = rows.select(pl.col("_old").struct.field(*schema)).select(key_text(operator.key, schema)).to_series()
    rows = rows.with_columns(_old_group=pl.when(pl.col("_old_value").is_not_null()).then(old_group))
    moved = (pl.col("_old_group") != pl.col("_group")).fill_null(value=False)
    none = pl.lit(None, pl.String)
    taken_back = rows.filter(moved).with_columns(_group="_old_group", _value=none)
    added = rows.with_columns(_old_value=pl.when(moved).then(none).otherwise("_old_value"))
    both = pl.concat([taken_back, added]).sort("_row", maintain_order=True)
    return both.select(
        seq=pl.int_range(pl.len(), dtype=pl.Int64),
        partition=partition_of(both["_group"], operator.partitions),
        id="_key",
        key="_group",
        old_value="_old_value",
        value="_value",
        value_hash="_identity",
        timestamp="_timestamp_ms",
        old_timestamp="_old_timestamp_ms",
        source_partition="_partition",
        source_offset="_offset",
    )


def aggregated(
    operator: Aggregate,
    hop: pl.DataFrame,
    accumulators: pl.DataFrame,
    schema: Mapping[str, pl.DataType],
    key: Sequence[str],
) -> pl.DataFrame:
    """*hop* rows, in order, each with the aggregates after it, the *key* columns, and the newest record time so far.

    *hop* has old_value and value, texts of the columns of *schema*; *accumulators* the aggregates of earlier batches
    per key, and max_timestamp_ms.
    """
    was = {name: f"_was_{name}" for name in operator.aggregates}
    rows = hop.with_columns(_new=parsed("value", schema), _old=parsed("old_value", schema)).join(
        accumulators.rename(was), left_on="_key", right_on="key", how="left", maintain_order="left"
    )
    running = {
        name: pl.col(was[name]).fill_null(0) + _contribution(function, column).cum_sum().over("_key")
        for name, (function, column) in operator.aggregates.items()
    }
    key_columns = {
        c: pl.coalesce(pl.col("_new").struct.field(c), pl.col("_old").struct.field(c)) for c in key
    }  # fmt: skip
    newest = pl.max_horizontal("_timestamp_ms", "max_timestamp_ms").cum_max().over("_key")
    return rows.select(pl.col(META).exclude("_timestamp_ms"), **key_columns, **running, _timestamp_ms=newest)


def _contribution(function: str, column: str) -> pl.Expr:
    """What one row adds to an aggregate: the new value's part less the old one's."""
    return _part("_new", "value", function, column) - _part("_old", "old_value", function, column)


def _part(struct: str, text: str, function: str, column: str) -> pl.Expr:
    if column == "*":
        return pl.col(text).is_not_null().cast(pl.Int64)
    field = pl.col(struct).struct.field(column)
    return field.fill_null(0) if function == "sum" else field.is_not_null().cast(pl.Int64)
