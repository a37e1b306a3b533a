"""Parses a file of JSON records into columns in memory."""

from __future__ import annotations

import sys
from pathlib import Path


def with_duckdb(file: Path) -> int:
    import duckdb

    columns = {"id": "VARCHAR", "status": "VARCHAR", "amount": "BIGINT", "note": "VARCHAR", "at": "BIGINT"}
    with duckdb.connect() as connection:
        rows = connection.read_json(str(file), columns=columns, format="newline_delimited")
        return rows.to_arrow_table().num_rows


def with_polars(file: Path) -> int:
    import polars as pl

    types = {"id": pl.String, "status": pl.String, "amount": pl.Int64, "note": pl.String, "at": pl.Int64}
    return pl.read_ndjson(file, schema=types).height


def with_pyarrow(file: Path) -> int:
    import pyarrow as pa
    from pyarrow import json

    types = {"id": pa.string(), "status": pa.string(), "amount": pa.int64(), "note": pa.string(), "at": pa.int64()}
    return json.read_json(file, parse_options=json.ParseOptions(explicit_schema=pa.schema(types))).num_rows


PARSERS = {"duckdb": with_duckdb, "polars": with_polars, "pyarrow": with_pyarrow}

if __name__ == "__main__":
    parser, path, records = sys.argv[1:]
    assert PARSERS[parser](Path(path)) == int(records)
