"""A data file is read whole or refused, and a wrong row of it is named."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import shutil
import tomllib
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.parsed_source import NOON, source
from tidemark.kernels.formats.data_files import MALFORMED_CSV, FileUnreadable, file_rows
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.model.topology import parse
from tidemark.stream.read.data_files import files_of_batch, rows_of_files

CSV = f"id,n,at\na,1,{NOON}\nb,,{NOON}\n".encode()
TOML = """
name = "play"
[operators.t]
kind = "source"
files = "in"
format = "csv"
fields = "id string, n int, at bigint"
timestamp = "at"
bound = "0 s"
[operators.kept]
kind = "sink"
input = "t"
table = "kept"
"""
TABLE = pa.table({"id": ["a", "b"], "n": pa.array([1, None], pa.int16()), "at": [NOON, NOON]})


def reading(format_: Format, **changes: Any) -> Source:
    return source(format=format_, **changes)


def parquet(table: pa.Table, **options: Any) -> bytes:
    written = io.BytesIO()
    pq.write_table(table, written, **options)
    return written.getvalue()


def fields(content: bytes, format_: Format, name: str = "f", **changes: Any) -> list[tuple[Any, ...]]:
    """Returns row, reason, detail and fields of each row."""
    rows = file_rows(content, name, reading(format_, **changes)).to_dicts()
    return [(row["row"], row["reason"], row["detail"], row["t"] and tuple(row["t"].values())) for row in rows]


GOOD = [(1, None, None, ("a", 1, NOON)), (2, None, None, ("b", None, NOON))]


def test_whole_files_are_read_in_every_format_and_compression() -> None:
    assert fields(CSV, Format.CSV) == fields(parquet(TABLE), Format.PARQUET) == GOOD
    assert fields(gzip.compress(CSV[:20]) + gzip.compress(CSV[20:]), Format.CSV, "f.csv.gz") == GOOD
    assert fields(bz2.compress(CSV), Format.CSV, "f.CSV.BZ2") == GOOD
    encoded = TABLE.set_column(0, "id", TABLE["id"].dictionary_encode())
    assert fields(parquet(encoded), Format.PARQUET) == GOOD
    lines = file_rows(b'\xef\xbb\xbf{"n": 1}\r\n \n{"n":', "f.json", reading(Format.JSON)).rows()
    assert lines == [(b'{"n": 1}', 1), (b'{"n":', 3)]


@pytest.mark.parametrize(
    ("content", "name", "format_", "reason"),
    [
        (b"", "f.json", Format.JSON, "has no bytes"),
        (b"", "f.csv", Format.CSV, "has no bytes"),
        (b"", "f.parquet", Format.PARQUET, "has no bytes"),
        (CSV, "f.csv.gz", Format.CSV, "is not whole gzip: "),
        (gzip.compress(CSV, mtime=0)[:-4], "f.csv.gz", Format.CSV, "is not whole gzip: "),
        (b"{}", "f.json.xz", Format.JSON, "is compressed as .xz; only .gz, .bz2, .zst are read"),
        (b"\n\n", "f.csv", Format.CSV, "has no row with the names of its columns"),
        (b"\xff,n,at\n", "f.csv", Format.CSV, "has a first row that is not UTF-8"),
        (CSV.replace(b"n,", b"m,"), "f.csv", Format.CSV, "has no column n; its columns are: id, m, at"),
        (CSV.replace(b",", b";"), "f.csv", Format.CSV, "has no column id, n, at; its columns are: id;n;at"),
        (CSV.replace(b"id", b"n"), "f.csv", Format.CSV, "has the column 'n' twice"),
        (CSV.replace(b"b,", b'"b,'), "f.csv", Format.CSV, "ends inside quotation marks"),
        (CSV + b'c,1,"open\n', "f.csv", Format.CSV, "ends inside quotation marks"),
        (parquet(TABLE)[:-1], "f", Format.PARQUET, "cannot be read as parquet: "),
        (b"PAR1", "f", Format.PARQUET, "cannot be read as parquet: "),
        (CSV, "f", Format.PARQUET, "cannot be read as parquet: "),
        (parquet(TABLE.drop(["n"])), "f", Format.PARQUET, "has no column n; its columns are: id, at"),
        (parquet(TABLE.set_column(1, "n", TABLE["at"])), "f", Format.PARQUET, "has other types: n is int64, not int"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_the_reason(content: bytes, name: str, format_: Format, reason: str) -> None:
    with pytest.raises(FileUnreadable) as refused:
        file_rows(content, name, reading(format_))
    assert str(refused.value).startswith(reason)


def test_a_few_bytes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.kernels.formats.data_files.MOST_BYTES", 1_000)
    for content, format_ in (
        (gzip.compress(CSV + b"\n" * 1_000, mtime=0), Format.CSV),
        (parquet(pa.concat_tables([TABLE] * 100), use_dictionary=False), Format.PARQUET),
    ):
        with pytest.raises(FileUnreadable, match=r"more than 1,000 bytes once it is decompressed; split it"):
            file_rows(content, "f.gz", reading(format_))


def test_csv_is_read_by_the_names_of_its_columns() -> None:
    content = f' at , zone,n,id\r\n{NOON},"a ""z""\nof two lines", 7 ,\n\n{NOON},,+7,""\n'.encode()
    assert fields(content, Format.CSV, other_fields="rest") == [
        (1, None, None, (None, 7, NOON, r'{"zone":"a \"z\"\nof two lines"}')),
        (2, None, None, ("", 7, NOON, None)),
    ]
    typed = {"id": "string", "yes": "boolean", "x": "double", "at": "timestamp"}
    content = b"id,yes,x,at\na,TRUE,-1e3,2014-05-13\nb, n ,NaN,2014-05-13 16:53:20.5+02:00\n"
    one, two = (row for *_, row in fields(content, Format.CSV, fields=typed))
    assert (one[1], one[2], one[3].isoformat()) == (True, -1_000.0, "2014-05-13T00:00:00+00:00")
    assert (two[1], str(two[2]), two[3].isoformat()) == (False, "nan", "2014-05-13T14:53:20.500000+00:00")


def test_a_wrong_row_of_csv_is_named_and_the_others_are_read() -> None:
    content = b"id,n,at\na,1,2\nb,two,2\nc,3\n\xff,\xff,1,2\n\xff,1,2\nd,2147483648,x\ne,1,2\n"
    assert fields(content, Format.CSV) == [
        (1, None, None, ("a", 1, 2)),
        (2, "wrong_type", 'column n: "two" is no int', ("b", None, 2)),
        (3, MALFORMED_CSV, "does not have 3 values", None),
        (4, MALFORMED_CSV, "does not have 3 values", None),
        (5, "invalid_utf8", "column id", (None, 1, 2)),
        (6, "wrong_type", 'column at: "x" is no bigint', ("d", None, None)),
        (7, None, None, ("e", 1, 2)),
    ]
    values = file_rows(content, "f.csv", reading(Format.CSV))["value"].to_list()
    assert values[1:3] == [b'{"id":"b","n":"two","at":"2"}', b"c,3"]


def test_a_wrong_row_of_parquet_is_named_and_the_others_are_read() -> None:
    at = pa.array([0, 2**62, 1], pa.timestamp("us"))
    text = pa.array([b"a", b"b", b"\xff"]).cast(pa.string(), safe=False)
    nested = [{"x": b"\0", "y": float("nan")}, None, None]
    content = parquet(pa.table({"id": text, "at": at, "list": [[1], None, None], "nested": nested}))
    found = fields(content, Format.PARQUET, fields={"id": "string", "at": "timestamp"}, other_fields="rest")
    assert [row[:3] for row in found] == [
        (1, None, None),
        (2, "wrong_type", 'column at: "4611686018427387904" is no timestamp'),
        (3, "invalid_utf8", "column id"),
    ]
    assert [row[3][2] for row in found] == ['{"list":[1],"nested":{"x":"AA==","y":null}}', None, None]


BYTES = st.binary(max_size=200)


@given(st.sampled_from([CSV, gzip.compress(CSV, mtime=0), parquet(TABLE)]), st.data())
def test_no_content_of_a_file_raises_another_error(whole: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(whole)))
    content = whole[:start] + data.draw(BYTES) + whole[data.draw(st.integers(start, len(whole))) :]
    for format_ in (Format.JSON, Format.CSV, Format.PARQUET):
        for name in ("f", "f.gz"):
            with suppress(FileUnreadable):
                rows = file_rows(content, name, reading(format_, other_fields="rest"))
                assert rows["row"].is_unique().all()


def test_a_file_that_goes_between_plan_and_reading_is_set_aside_alone(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    names = ("gone.csv", "goes.csv", "turns.csv", "stays.csv")
    notes = [json.dumps({"path": f"file://{folder}/{name}", "timestamp": 1, "batchId": 0}) for name in names]
    for place, lines in (("offsets/0", ["{}", "0", '{"logOffset":0}']), ("sources/1/0", notes)):
        (checkpoint / place).parent.mkdir(parents=True)
        (checkpoint / place).write_text("\n".join(["v1", *lines]))
    for name in names[1:]:
        (folder / name).write_bytes(CSV)
    topology = parse(tomllib.loads(TOML), file="play.toml")
    (sub,) = topology.sub_topologies
    files = files_of_batch(sub, tmp_path, checkpoint, 0, None)
    assert files.sizes == {"t": dict.fromkeys(names[1:], len(CSV))}
    for name in names[1:3]:
        (folder / name).unlink()
    (folder / "turns.csv").mkdir()
    (folder / "stays.csv").write_bytes(CSV + b"added,1,1\n")  # what was added since is not read
    raw = pl.DataFrame(files.rows, schema_overrides={"reason": pl.String, "detail": pl.String})
    rows = rows_of_files(raw, sub.operators)
    told = [(row["written"]["file"], row["reason"], row["detail"]) for row in rows.to_dicts()]
    gone = "was gone when it was to be read"
    whys = (gone, gone, "cannot be opened: Is a directory")
    set_aside = [(f"{folder}/{name}", "unreadable_file", why) for name, why in zip(names, whys, strict=False)]
    assert told == [*set_aside, *[(f"{folder}/stays.csv", None, None)] * 2]
    # A host that does not have the folder loses no file.
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        rows_of_files(raw, sub.operators)


def test_a_path_leads_into_a_column_of_parquet_and_decimals_keep_their_digits() -> None:
    inner = pa.struct([("at", pa.int64()), ("fare", pa.decimal128(9, 2)), ("zone", pa.string())])
    data = pa.array(
        [{"at": NOON, "fare": Decimal("7.31"), "zone": "z"}, {"at": NOON, "fare": None, "zone": None}, None], inner
    )
    declared = {"fields": {"fare": "decimal(12,2)", "zone": "string", "at": "bigint"}}
    named = {name: f"data.{name}" for name in declared["fields"]}
    rows = fields(parquet(pa.table({"data": data})), Format.PARQUET, **declared, named=named)
    assert [row[3] for row in rows] == [(Decimal("7.31"), "z", NOON), (None, None, NOON), (None, None, None)]
    with pytest.raises(FileUnreadable, match=r"data.fare is decimal128\(9, 2\), not decimal\(8,2\)"):
        fields(parquet(pa.table({"data": data})), Format.PARQUET, fields={"fare": "decimal(8,2)"}, named=named)


def test_decimals_and_the_time_in_csv_are_read_from_their_texts() -> None:
    csv = f"fare,at\n7.31,{NOON}\n 2e1 ,1.4e12\n7.311,{NOON}\n,{NOON}\n".encode()
    rows = fields(csv, Format.CSV, fields={"fare": "decimal(12,2)", "at": "bigint"})
    assert [row[3] for row in rows] == [
        (Decimal("7.31"), NOON),
        (Decimal(20), NOON),
        (None, NOON),
        (None, NOON),
    ]
    assert [row[1:3] for row in rows[1:3]] == [(None, None), ("wrong_type", 'column fare: "7.311" is no decimal(12,2)')]
