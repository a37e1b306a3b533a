"""Names and declares the Delta tables that the batches of a stream write."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import assert_never

import polars as pl
import pyarrow as pa

from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.kinds.boundary import HandingOut
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.tables.catalog import CHANGES, HEARTBEATS, HOP, TABLES
from tidemark.model.topology import SubTopology
from tidemark.selection import index_by_name, names_in, outside
from tidemark.storage.delta.current_rows import CLOSED_UP_TO, OF_REPLACING
from tidemark.storage.delta.current_view import KEPT_BY, kept_by
from tidemark.storage.delta.log import HOP_LOG, KEPT_LOG, SHORT_LOG
from tidemark.storage.delta.requirements import Access
from tidemark.storage.delta.tables import DeclaredTable
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.operate.sink import sink_rows
from tidemark.stream.write.open_windows import closed_column
from tidemark.stream.write.sink_columns import commented

_OWN = tuple(table for table in TABLES.values() if table.written_by == "stream")


def table_names(sub: SubTopology) -> list[str]:
    """Returns the names of all tables that batches of *sub* write."""
    tables: dict[str, None] = {}
    for operator in sub.operators:
        if operator.result_table:
            # A sink without a key appends to its table itself, which then has both names.
            tables |= dict.fromkeys((operator.result_table, operator.appends_to or operator.result_table))
    return [*names_in(_OWN), *_hops(sub), *tables]


def tables_written(sub: SubTopology) -> dict[str, Access]:
    """Returns how batches of *sub* write each table, by name."""
    of_sinks = {str(sink.table): Access.REPLACES if sink.key else Access.ROWS for sink in sub.sinks if sink.table}
    return {name: of_sinks.get(name, Access.OWN_ROWS) for name in table_names(sub)}


def tables_alone(home: Path, sub: SubTopology) -> list[str]:
    """Returns the names of the tables of *sub* that only its driver may write."""
    # In an object store only one process may write a table into which a driver commits its batches.
    if isinstance(home, ObjectPath):
        return outside(table_names(sub), {HEARTBEATS.name})
    # A driver relies on having written every row of these tables itself.
    changes = [o.appends_to for o in sub.operators if o.appends_to and o.appends_to != o.output_table]
    return [*_hops(sub), *changes]


def _hops(sub: SubTopology) -> list[str]:
    return [o.hop_table for o in sub.operators if o.hop_table]


def create_tables(
    home: Path, sub: SubTopology, schemas: Mapping[str, Mapping[str, pl.DataType]], *, without: Collection[str] = ()
) -> None:
    """Creates the Delta tables that the driver of *sub* writes and that do not exist yet, but for those in *without*.

    *schemas* has the columns of each operator's output.
    """
    for declared in declared_tables(home, sub, schemas):
        if declared.path.name not in without:
            declared.ensure()


def declared_tables(
    home: Path, sub: SubTopology, schemas: Mapping[str, Mapping[str, pl.DataType]]
) -> Iterator[DeclaredTable]:
    """Yields the tables that `create_tables` would create."""
    for table in _OWN:
        log = KEPT_LOG if table is CHANGES else SHORT_LOG
        yield DeclaredTable(home / table.name, arrow_schema(table), table.row, log)
    for operator in sub.handing_out:
        if operator.output_table:
            yield from _declared_output(home / operator.output_table, operator, sub, schemas)


def _declared_output(
    path: Path, operator: HandingOut, sub: SubTopology, schemas: Mapping[str, Mapping[str, pl.DataType]]
) -> Iterator[DeclaredTable]:
    """Yields the tables that *operator* needs for its rows, the one at *path* first."""
    match operator:
        case Repartition():
            yield DeclaredTable(path, arrow_schema(HOP), HOP.row, HOP_LOG)
        case Sink():
            sent = pl.DataFrame(schema=dict(schemas[operator.name])).to_arrow()
            schema = sink_rows(operator, sent, 0).schema
            operators = index_by_name(sub.operators)
            yield from _declared_sink(path.parent, operator, commented(schema, operator, operators, schemas))
        case _:
            assert_never(operator)


def _declared_sink(home: Path, sink: Sink, schema: pa.Schema) -> Iterator[DeclaredTable]:
    """Yields the table of *sink*, and, if it has current rows, the table of changes that are to be merged into it."""
    own = [field for field in schema if field.name not in OF_REPLACING]
    yield DeclaredTable(
        home / str(sink.table), pa.schema(own) if sink.key else schema, f"records of the sink {sink.name}"
    )
    if not sink.key:
        return
    column = closed_column(sink)
    if column is not None:
        schema = schema.append(pa.field(CLOSED_UP_TO, schema.field(column).type))
    yield DeclaredTable(
        home / str(sink.appends_to),
        schema,
        f"rows to be merged into {sink.table}",
        SHORT_LOG,
        properties={KEPT_BY: kept_by(sink.key, column)},
    )
