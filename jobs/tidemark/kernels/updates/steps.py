"""The stateless steps on a batch of records, and updates of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels import META, payload
from tidemark.kernels.aggregates.function import OLD
from tidemark.kernels.aggregates.functions import ranks
from tidemark.kernels.columns.values import key_text, key_values, parsed, partition_of
from tidemark.kernels.sql.expressions import COMPARED, KEPT, Expressions
from tidemark.kernels.updates.emission import identified, with_value
from tidemark.model.kinds.join import Join
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.table import KeyedTable
from tidemark.selection import in_order_of, outside


def map_records(operator: Map, records: pl.DataFrame, sql: Expressions, *, updates: bool) -> pl.DataFrame:
    """Returns the selected columns of records for which `where` is true.

    A record that deletes its key is always sent on. Of updates of a table, one that `where` leaves out deletes its key,
    because downstream operators may have received it before.

    Args:
        operator: the map.
        records: its input.
        sql: evaluates the expressions.
        updates: *records* are updates of a table.
    """
    # As in SQL, a null condition leaves the record out.
    condition = f"coalesce(({operator.where}), false)" if operator.where else "true"
    if not updates:
        return sql.select(records, operator.select, keep=META, where=f"_deleted or {condition}")
    mapped = sql.select(records, {**operator.select, KEPT: condition}, keep=META)
    return mapped.with_columns(_deleted=pl.col("_deleted") | ~pl.col(KEPT)).drop(KEPT)


def map_updates(operator: Map, records: pl.DataFrame, sql: Expressions, compared: Sequence[str]) -> pl.DataFrame:
    """Returns the *records* that a map emits on change as updates.

    Args:
        operator: the map. If it names a key, updates have that; otherwise they keep the keys of the records.
        records: what it selected.
        sql: evaluates the map's `identity`, an expression by which values are compared.
        compared: the columns by which values are compared in a map without `identity`.
    """
    key = {"_key": key_text(operator.key, records.schema)} if operator.key else {}
    columns = tuple(operator.select)
    if operator.identity is None:
        return _with_compared(records.with_columns(**key), columns, compared)
    identities = sql.select(records.with_row_index("_row"), {COMPARED: operator.identity}, keep=("_row",))
    # Records whose identity cannot be evaluated are set aside.
    usable = records if identities.height == records.height else records[identities["_row"]]
    updates = with_value(usable.with_columns(identities[COMPARED], **key), columns, identity=[COMPARED])
    return updates.drop(COMPARED)


class InvalidColumns(InvalidArgument):
    """Raised where the columns of two inputs do not fit each other, with all *problems* at once.

    *key* is the key in the topology file that demands the fit, such as `on`.
    """

    def __init__(self, problems: Sequence[str], *, key: str) -> None:
        super().__init__("; ".join(problems))
        self.problems, self.key = tuple(problems), key


def unite(inputs: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Returns the records of all *inputs* one after the other; *inputs* has them by the operator that sends them.

    Raises:
        InvalidColumns: the inputs do not have the same columns.
    """
    (first, records), *others = inputs.items()
    problems = []
    for name, other in others:
        if differing := sorted(f"{c} {kind}" for c, kind in {*other.schema.items()} ^ {*records.schema.items()}):
            columns = ", ".join(differing)
            problems.append(f"the columns of {first} and {name} differ in {columns}; a map makes them the same")
    if problems:
        raise InvalidColumns(problems, key="inputs")
    return pl.concat([frame.select(records.columns) for frame in inputs.values()])


def table_updates(operator: KeyedTable, records: pl.DataFrame, compared: Sequence[str]) -> pl.DataFrame:
    """Returns *records* as updates of a table, with its key and value alone; *compared* are the columns that decide
    whether two values are equal.
    """
    columns = value_columns(operator, records.columns)
    kept = records.select(*operator.key, *columns, *META).with_columns(**key_values(operator.key, records.schema))
    return _with_compared(kept, columns, compared).with_columns(_key=key_text(operator.key, kept.schema))


def _with_compared(records: pl.DataFrame, columns: Sequence[str], compared: Sequence[str]) -> pl.DataFrame:
    return with_value(records, columns, identity=None if {*columns} == {*compared} else compared)


def newest_by_time(updates: pl.DataFrame, earlier: pl.DataFrame) -> pl.DataFrame:
    """Returns those of *updates* that are newer than all earlier ones of their key.

    An update is newer if its record time is; at one instant the partition decides, and then the offset.

    Args:
        updates: the updates in the order in which they came.
        earlier: the newest updates of these keys so far.
    """
    age = ["_timestamp_ms", "_partition", "_offset"]
    both = pl.concat([earlier.select("_key", *age), updates.select("_key", *age)])
    rank = both.with_columns(_rank=ranks(both, age))
    before = pl.col("_rank").cum_max().shift().over("_key")
    is_newest = rank.select((pl.col("_rank") > before).fill_null(value=True)).to_series()
    return updates.filter(is_newest.slice(earlier.height))


def value_columns(operator: KeyedTable, columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns of the table's value: those that the topology names, or all payload but the key."""
    return operator.columns or tuple(outside(payload(columns), operator.key))


MATCHED = "_matched"
"""Column of a table version, true if the version has a row. A version without a row ends the one before it."""


def join_valid(
    operator: Join, records: pl.DataFrame, versions: pl.DataFrame, *, updates: bool, kept_from_ms: int | None = None
) -> pl.DataFrame:
    """Joins each record with the version of the table's row that was valid at the record's timestamp.

    The table's columns are null where no version was valid.

    Args:
        operator: the join.
        records: its left side.
        versions: the key columns of the table, its value columns, and `_valid_from_ms`; of versions from one instant
            the last row wins.
        updates: *records* are updates of a table.
        kept_from_ms: older versions than those from here on were deleted; None if all are kept. A record from before
            gets the oldest version that is kept: the one that was valid at *kept_from_ms*, or else the first after it.
    """
    check_on(operator, records, versions)
    key = list(operator.on.values())
    right = versions.unique([*key, "_valid_from_ms"], keep="last", maintain_order=True).sort("_valid_from_ms")
    lookup_ms = pl.max_horizontal("_timestamp_ms", pl.lit(kept_from_ms, pl.Int64))
    left = records.with_row_index("_row").with_columns(_asked_ms=lookup_ms).sort("_asked_ms", maintain_order=True)
    # join_asof needs both sides in order of time; `_row` restores the order of the records.
    joined = _as_of(operator, left, right, "backward")
    beyond = pl.col(MATCHED).is_null() & is_beyond(kept_from_ms)
    first_after = _as_of(operator, joined.filter(beyond).select(left.columns), right, "forward")
    joined = pl.concat([joined.filter(~beyond), first_after])
    added = outside(right.columns, {*key, "_valid_from_ms", MATCHED})
    return _joined(operator, joined.sort("_row"), records.columns, added, updates=updates)


def is_beyond(kept_from_ms: int | None) -> pl.Expr:
    """Returns True for a record whose version was deleted: its time is before *kept_from_ms* (None if all are kept)."""
    return (pl.col("_timestamp_ms") < pl.lit(kept_from_ms, pl.Int64)).fill_null(value=False)


def _as_of(
    operator: Join, left: pl.DataFrame, right: pl.DataFrame, strategy: Literal["backward", "forward"]
) -> pl.DataFrame:
    return left.join_asof(
        right,
        left_on="_asked_ms",
        right_on="_valid_from_ms",
        by_left=list(operator.on),
        by_right=list(operator.on.values()),
        strategy=strategy,
        check_sortedness=False,
    )


def one_row_per_key(operator: Join, rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Returns one row for each key of a Delta table that *operator* joins, and how many keys have more than one row.

    Of the rows of one key the smallest is joined, compared by its columns in their order, nulls first and NaN last. The
    order of the rows in the files must not decide, because OPTIMIZE changes it. A row with a null in its key is never
    joined.
    """
    key = list(operator.on.values())
    joinable = rows.drop_nulls(key)
    is_alone = pl.len().over(key) == 1
    ambiguous = joinable.filter(~is_alone)
    smallest = ambiguous.sort(ambiguous.columns).unique(key, keep="first", maintain_order=True)
    return pl.concat([joinable.filter(is_alone), smallest]), smallest.height


def join_newest(operator: Join, records: pl.DataFrame, rows: pl.DataFrame, *, updates: bool) -> pl.DataFrame:
    """Joins *records* with the row of their key; the row's columns are null where there is no such row.

    Args:
        operator: the join.
        records: its left side.
        rows: its right side, from `one_row_per_key`.
        updates: *records* are updates of a table.
    """
    key = list(operator.on.values())
    right = rows.with_columns(pl.lit(value=True).alias(MATCHED))
    joined = records.join(right, left_on=list(operator.on), right_on=key, how="left", maintain_order="left")
    added = outside(rows.columns, key)
    return _joined(operator, joined, records.columns, added, updates=updates)


def check_on(operator: Join, records: pl.DataFrame, rows: pl.DataFrame) -> None:
    """Raises InvalidColumns unless `on` names columns of both sides."""
    sides = (("the record", operator.on, records), ("the row", operator.on.values(), rows))
    problems: list[str] = []
    for side, names, frame in sides:
        if unknown := sorted(set(names) - set(frame.columns)):
            own = ", ".join(payload(frame.columns))
            problems.append(f"names {unknown}, which are no columns of {side}; it has {own}")
    if problems:
        raise InvalidColumns(problems, key="on")


def _joined(
    operator: Join, joined: pl.DataFrame, columns: Sequence[str], added: Sequence[str], *, updates: bool
) -> pl.DataFrame:
    """Returns the result of an inner or a left join.

    In an inner join a record without a match is dropped. If it is an update of a table, it becomes a deletion instead,
    because downstream operators may have received an earlier version of it.

    Args:
        operator: the join.
        joined: all records with the columns of their match.
        columns: the columns of the records.
        added: the columns of the match.
        updates: the records are updates of a table.

    Raises:
        InvalidArgument: records and match have columns of the same name.
    """
    if both := sorted(set(columns) & set(added)):
        msg = f"{both} are columns of both sides; remove them from `columns` of the table, or rename them in a map"
        raise InvalidArgument(msg)
    matched = pl.col(MATCHED).fill_null(value=False) | pl.lit(value=not operator.inner)
    marked = joined.with_columns(_deleted=pl.col("_deleted") | ~matched) if updates else joined
    return marked.filter(matched | pl.col("_deleted")).select(*columns, *added)


def pruned(versions: pl.DataFrame, key: Sequence[str], *, before_ms: int) -> pl.DataFrame:
    """Drops the *versions* that were replaced by *before_ms*, since no record asks for them any more."""
    in_order = versions.sort("_valid_from_ms", maintain_order=True)
    replaced_at = pl.col("_valid_from_ms").shift(-1).over(key)
    # The newest version of a key is replaced by none, and stays.
    return in_order.filter((replaced_at > before_ms) | replaced_at.is_null())


def repartition_columns(operator: Repartition) -> tuple[str, ...]:
    """Returns the columns that *operator* sends on: its key, then the others."""
    return tuple(dict.fromkeys((*operator.key, *operator.columns)))


def repartition_updates(operator: Repartition, records: pl.DataFrame) -> pl.DataFrame:
    """Returns *records* as updates of the rows that the operator's `id` names; `_group` is the text of
    their new key.
    """
    return identified(with_value(records, repartition_columns(operator))).with_columns(
        _key=key_text(operator.id, records.schema), _group=key_text(operator.key, records.schema)
    )


def with_old_value(emitted: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """Adds `_old_value` to *emitted* updates: the text of the value that each replaces.

    This is the *stored* value of its key, or the value of an earlier emitted update.
    """
    texts = pl.concat(
        [emitted.select("_key", "_identity", "_value"), stored.select(_key="key", _identity="identity", _value="value")]
    )
    named = texts.unique(["_key", "_identity"]).rename({"_identity": "_old_identity", "_value": "_old_value"})
    return emitted.join(named, on=["_key", "_old_identity"], how="left", maintain_order="left")


def hop_rows(operator: Repartition, emitted: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows by which a repartition sends *emitted* updates, which have `_old_value`, to the next stream.

    A row retracts the old value of its key and adds the new one. Where an update moves to another key there are two
    rows: one retracts under the old key, one adds under the new key.
    """
    schema = in_order_of(repartition_columns(operator), emitted.schema)
    rows = emitted.with_row_index("_row").with_columns(_old=parsed("_old_value", schema))
    old_group = rows.select(pl.col("_old").struct.field(*schema)).select(key_text(operator.key, schema)).to_series()
    rows = rows.with_columns(_old_group=pl.when(pl.col("_old_value").is_not_null()).then(old_group))
    rows = rows.with_columns(_group=pl.when("_deleted").then("_old_group").otherwise("_group"))
    # ne_missing: null and null are the same group.
    moved = pl.col("_old_value").is_not_null() & pl.col("_old_group").ne_missing(pl.col("_group"))
    none = pl.lit(None, pl.String)
    # A value without a group was never counted, so it is not retracted.
    retracted = rows.filter(moved & pl.col("_old_group").is_not_null()).with_columns(_group="_old_group", _value=none)
    added = rows.with_columns(_old_value=pl.when(moved).then(none).otherwise("_old_value"))
    both = pl.concat([retracted, added]).sort("_row", maintain_order=True)
    # The deletion of an id that did not exist changes no group.
    both = both.filter(pl.col("_value").is_not_null() | pl.col("_old_value").is_not_null())
    return _hop_columns(operator, both)


def stream_hop_rows(operator: Repartition, records: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows that send each of *records* on; they replace nothing."""
    updates = identified(with_value(records, repartition_columns(operator)))
    return _hop_columns(
        operator,
        updates.with_columns(
            _group=key_text(operator.key, records.schema),
            _key=pl.lit(None, pl.String),
            _old_value=pl.lit(None, pl.String),
            _old_timestamp_ms=pl.lit(None, pl.Int64),
        ),
    )


def _hop_columns(operator: Repartition, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        seq=pl.int_range(pl.len(), dtype=pl.Int64),
        partition=partition_of(rows["_group"], operator.partitions),
        id="_key",
        key="_group",
        old_value="_old_value",
        value="_value",
        value_hash="_identity",
        timestamp="_timestamp_ms",
        old_timestamp="_old_timestamp_ms",
        source_partition="_partition",
        source_offset="_offset",
        headers="_headers",
        newest="_newest_ms",
        repeated="_repeated",
        result_row="_read",
    )


def hop_records(operator: Repartition, rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Returns the *rows* that a repartition wrote (see `hop_rows`) as records of the next stream.

    Rows have `value` and `old_value` as text, records have the columns of *schema*. Updates also have the columns of
    the value that they replace, as the struct OLD. An update that only retracts has the key of the retracted value.
    """
    new = rows.with_columns(_new=parsed("value", schema))
    columns = {c: pl.col("_new").struct.field(c) for c in schema}
    if not operator.id:
        return new.select(**columns, **{c: pl.col(c) for c in META})
    new = new.with_columns(parsed("old_value", schema).alias(OLD))
    columns |= {c: pl.coalesce(columns[c], pl.col(OLD).struct.field(c)) for c in operator.key}
    return new.select(**columns, **{c: pl.col(c) for c in META}, **{OLD: pl.col(OLD)})
