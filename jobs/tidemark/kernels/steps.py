"""What each stateless step does to one batch of records, and what makes records updates of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels import META, payload
from tidemark.kernels.aggregate_function import OLD
from tidemark.kernels.aggregates import places_in_order
from tidemark.kernels.emission import with_value
from tidemark.kernels.expressions import Expressions
from tidemark.kernels.values import key_text, parsed, partition_of
from tidemark.spec.operators import Join, KeyedTable, Map, Repartition


def map_records(operator: Map, records: pl.DataFrame, sql: Expressions, *, updates: bool) -> pl.DataFrame:
    """The records for which `where` is true, with the columns that `select` names.

    One that deletes its key always goes on. So does, of *updates* of a table, one that `where` leaves out, and deletes
    its key from then on, for those behind had perhaps been given it.
    """
    condition = f"coalesce(({operator.where}), false)" if operator.where else "true"
    if not updates:
        return sql.select(records, operator.select, keep=META, where=f"_deleted or {condition}")
    mapped = sql.select(records, {**operator.select, "_kept": condition}, keep=META)
    return mapped.with_columns(_deleted=pl.col("_deleted") | ~pl.col("_kept")).drop("_kept")


def map_updates(operator: Map, records: pl.DataFrame, sql: Expressions) -> pl.DataFrame:
    """*records* of a map that tells changes: by the columns of its key or their own, and by its identity."""
    key = {"_key": key_text(operator.key, records.schema)} if operator.key else {}
    columns = tuple(operator.select)
    if operator.identity is None:
        return with_value(records.with_columns(**key), columns)
    told = sql.select(records.with_row_index("_row"), {"_told_by": operator.identity}, keep=("_row",))
    kept = records if told.height == records.height else records[told["_row"]]
    identified = with_value(kept.with_columns(told["_told_by"], **key), columns, identity=["_told_by"])
    return identified.drop("_told_by")


class InvalidColumns(InvalidArgument):
    """Raised where columns of one side do not fit those of the other, with all *problems*.

    *key* is the one of the operator that asks it.
    """

    def __init__(self, problems: Sequence[str], *, key: str) -> None:
        super().__init__("; ".join(problems))
        self.problems, self.key = tuple(problems), key


def united(inputs: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The records of all *inputs*, by the name of the operator that sends them, which have the same columns."""
    (first, records), *others = inputs.items()
    problems = []
    for name, other in others:
        if differing := sorted(f"{c} {kind}" for c, kind in {*other.schema.items()} ^ {*records.schema.items()}):
            columns = ", ".join(differing)
            problems.append(f"the columns of {first} and {name} differ in {columns}; a map makes them the same")
    if problems:
        raise InvalidColumns(problems, key="inputs")
    return pl.concat([part.select(records.columns) for part in inputs.values()])


def table_updates(operator: KeyedTable, records: pl.DataFrame) -> pl.DataFrame:
    """*records* with the table's key and value; other columns are gone."""
    columns = value_columns(operator, records.columns)
    kept = records.select(*operator.key, *columns, *META)
    return with_value(kept, columns).with_columns(_key=key_text(operator.key, kept.schema))


def newest_by_time(updates: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Those of *updates* that are newer than all before them of their key, of which the newest ones are *known*.

    By record time; of one instant by partition, and then by offset.
    """
    places = ["_timestamp_ms", "_partition", "_offset"]
    both = pl.concat([known.select("_key", *places), updates.select("_key", *places)])
    rank = both.with_columns(_rank=places_in_order(both, places))
    before = pl.col("_rank").cum_max().shift().over("_key")
    is_newest = rank.select((pl.col("_rank") > before).fill_null(value=True)).to_series()
    return updates.filter(is_newest.slice(known.height))


def value_columns(operator: KeyedTable, columns: Sequence[str]) -> tuple[str, ...]:
    """Those of *columns* that make up the value: the ones named, or all of a record that are not its key."""
    return operator.columns or tuple(c for c in payload(columns) if c not in operator.key)


MATCHED = "_matched"
"""Of a version of a table: that there is a row, and not the end of one."""


def join_valid(
    operator: Join, records: pl.DataFrame, versions: pl.DataFrame, *, updates: bool, kept_from_ms: int | None = None
) -> pl.DataFrame:
    """*records* with the columns of the version valid at their timestamp; null where none was.

    *versions* has the key columns of the table, its value columns, and `_valid_from_ms`; of versions from one instant
    the last row wins. They are kept from *kept_from_ms* on: a record from before has the oldest one kept, which is the
    one that was valid then, or else the first one after.
    """
    _check_on(operator, records, versions)
    key = list(operator.on.values())
    right = versions.unique([*key, "_valid_from_ms"], keep="last", maintain_order=True).sort("_valid_from_ms")
    asked = pl.max_horizontal("_timestamp_ms", pl.lit(kept_from_ms, pl.Int64))
    left = records.with_row_index("_row").with_columns(_asked_ms=asked).sort("_asked_ms", maintain_order=True)
    joined = _as_of(operator, left, right, "backward")
    beyond = pl.col(MATCHED).is_null() & is_beyond(kept_from_ms)
    first_after = _as_of(operator, joined.filter(beyond).select(left.columns), right, "forward")
    joined = pl.concat([joined.filter(~beyond), first_after])
    added = [c for c in right.columns if c not in {*key, "_valid_from_ms", MATCHED}]
    return _joined(operator, joined.sort("_row"), records.columns, added, updates=updates)


def is_beyond(kept_from_ms: int | None) -> pl.Expr:
    """Whether a record asks for versions from before *kept_from_ms* (None: all are kept)."""
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


def join_newest(operator: Join, records: pl.DataFrame, rows: pl.DataFrame, *, updates: bool) -> pl.DataFrame:
    """*records* with the columns of the row of the same key, of several the last; null where there is none."""
    _check_on(operator, records, rows)
    key = list(operator.on.values())
    right = rows.unique(key, keep="last", maintain_order=True).with_columns(pl.lit(value=True).alias(MATCHED))
    joined = records.join(right, left_on=list(operator.on), right_on=key, how="left", maintain_order="left")
    added = [c for c in rows.columns if c not in key]
    return _joined(operator, joined, records.columns, added, updates=updates)


def _check_on(operator: Join, records: pl.DataFrame, rows: pl.DataFrame) -> None:
    """Raise InvalidColumns unless `on` names columns of both sides."""
    sides = (("the record", operator.on, records), ("the row", operator.on.values(), rows))
    problems = [
        f"names {unknown}, which are no columns of {side}; it has {', '.join(payload(frame.columns))}"
        for side, names, frame in sides
        if (unknown := sorted(set(names) - set(frame.columns)))
    ]
    if problems:
        raise InvalidColumns(problems, key="on")


def _joined(
    operator: Join, joined: pl.DataFrame, columns: Sequence[str], added: Sequence[str], *, updates: bool
) -> pl.DataFrame:
    """Of *updates* of a table, one without the match it must have deletes its key, as in `map_records`."""
    if both := sorted(set(columns) & set(added)):
        msg = f"{both} are columns of both sides; leave them out of the table's `columns`, or name them anew in a map"
        raise InvalidArgument(msg)
    matched = pl.col(MATCHED).fill_null(value=False) | pl.lit(value=not operator.inner)
    found = joined.with_columns(_deleted=pl.col("_deleted") | ~matched) if updates else joined
    return found.filter(matched | pl.col("_deleted")).select(*columns, *added)


def pruned(versions: pl.DataFrame, key: Sequence[str], *, before_ms: int) -> pl.DataFrame:
    """*versions* without those that were replaced at or before *before_ms*: no record that old will ask for them."""
    in_order = versions.sort("_valid_from_ms", maintain_order=True)
    replaced_at = pl.col("_valid_from_ms").shift(-1).over(key)
    return in_order.filter((replaced_at > before_ms) | replaced_at.is_null())


def repartition_columns(operator: Repartition) -> tuple[str, ...]:
    """The columns of what *operator* hands on: its key, then the others."""
    return tuple(dict.fromkeys((*operator.key, *operator.columns)))


def repartition_updates(operator: Repartition, records: pl.DataFrame) -> pl.DataFrame:
    """*records* as updates of their ids, with the text of the new key as `_group`."""
    return with_value(records, repartition_columns(operator)).with_columns(
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
    schema = {c: emitted.schema[c] for c in repartition_columns(operator)}
    rows = emitted.with_row_index("_row").with_columns(_old=parsed("_old_value", schema))
    old_group = rows.select(pl.col("_old").struct.field(*schema)).select(key_text(operator.key, schema)).to_series()
    rows = rows.with_columns(_old_group=pl.when(pl.col("_old_value").is_not_null()).then(old_group))
    rows = rows.with_columns(_group=pl.when("_deleted").then("_old_group").otherwise("_group"))
    moved = pl.col("_old_value").is_not_null() & pl.col("_old_group").ne_missing(pl.col("_group"))
    none = pl.lit(None, pl.String)
    # Nobody has counted what had no group.
    taken_back = rows.filter(moved & pl.col("_old_group").is_not_null()).with_columns(_group="_old_group", _value=none)
    added = rows.with_columns(_old_value=pl.when(moved).then(none).otherwise("_old_value"))
    both = pl.concat([taken_back, added]).sort("_row", maintain_order=True)
    # What deletes an id that was not there tells the groups nothing.
    both = both.filter(pl.col("_value").is_not_null() | pl.col("_old_value").is_not_null())
    return _rows_of_hop(operator, both)


def stream_hop_rows(operator: Repartition, records: pl.DataFrame) -> pl.DataFrame:
    """The rows that hand each of *records* on, which replace nothing."""
    updates = with_value(records, repartition_columns(operator))
    return _rows_of_hop(
        operator,
        updates.with_columns(
            _group=key_text(operator.key, records.schema),
            _key=pl.lit(None, pl.String),
            _old_value=pl.lit(None, pl.String),
            _old_timestamp_ms=pl.lit(None, pl.Int64),
        ),
    )


def _rows_of_hop(operator: Repartition, rows: pl.DataFrame) -> pl.DataFrame:
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
    )


def hop_records(operator: Repartition, rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """What the *rows* of a hop, with `value` and `old_value`, are to its readers: records with the columns of *schema*.

    Of updates the replaced columns are beside them, as OLD; one that only takes back has the key of what it takes.
    """
    new = rows.with_columns(_new=parsed("value", schema))
    columns = {c: pl.col("_new").struct.field(c) for c in schema}
    if not operator.id:
        return new.select(**columns, **{c: pl.col(c) for c in META})
    new = new.with_columns(parsed("old_value", schema).alias(OLD))
    columns |= {c: pl.coalesce(columns[c], pl.col(OLD).struct.field(c)) for c in operator.key}
    return new.select(**columns, **{c: pl.col(c) for c in META}, **{OLD: pl.col(OLD)})
