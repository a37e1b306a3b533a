"""Reads the rows of a data file: lines of JSON, CSV or Parquet.

A file is one unit. It is read whole, or refused with the reason (`FileUnreadable`): it is empty, cut, of another
format, or lacks a column that the source declares. A row of a readable file that does not fit is a row with a reason,
and the rows around it are read.

CSV follows RFC 4180: commas, quotation marks (doubled inside a quoted value), and line breaks inside quoted values. The
first row names the columns, so their order does not matter. An empty value is null, and `""` is an empty text. Blanks
around numbers, booleans and times are ignored. Rows are numbered from 1; the row of names and blank lines do not count.
In a file of JSON each line counts, so that the number is the one that an editor shows.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from tidemark.kernels.columns.schemas import INSTANT, polars_type
from tidemark.kernels.columns.values import field_text
from tidemark.kernels.columns.years import within_years
from tidemark.kernels.formats.fitting import fits_digits
from tidemark.kernels.records.fields import INVALID_UTF8, WRONG_TYPE, texts_of
from tidemark.kernels.records.iso_times import instants_of
from tidemark.kernels.records.json_fields import json_of
from tidemark.kernels.records.numbers import SHOWN, numbers_of
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import digits_of, integer_digits, outermost, steps, whole_fields
from tidemark.selection import outside, within

MALFORMED_CSV = "malformed_csv"
MOST_BYTES = 1_000_000_000
"""Most bytes of a file once it is decompressed: a few bytes may expand to more than the memory of a driver."""
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_NOT_READ = frozenset({".xz", ".lz4", ".snappy", ".deflate", ".zip", ".z", ".7z", ".lzo", ".br"})
"""Suffixes of compressed files that are not read."""
_BOM = b"\xef\xbb\xbf"
_END = b"\0the end\0"
"""A value behind the last row of CSV. It is missing from the rows if the file ends inside quotation marks."""
_MOST_BLOCK = 1 << 30
"""The most bytes that pyarrow parses at once; a row must fit into it."""
_FITTING: Mapping[str, frozenset[str]] = {
    "boolean": frozenset({"bool"}),
    "int": frozenset({"int8", "int16", "int32", "uint8", "uint16"}),
    "bigint": frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}),
    "double": frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32", "halffloat", "float", "double"}),
}
"""Per declared type, the types of Parquet, by Arrow's names, of which every value fits."""
_DIGITS_OF_INTEGERS = {
    **{f"int{bits}": integer_digits(bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": integer_digits(bits, signed=False) for bits in (8, 16, 32, 64)},
}
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")


class FileUnreadable(Exception):
    """Raised for a file that is set aside whole; the text says why."""


def file_rows(content: bytes, name: str, source: Source) -> pl.DataFrame:
    """Returns the rows of the file *name* of *source*, whose bytes are *content*.

    `row` is the number of a row in the file, and `value` has its bytes (of CSV and Parquet its columns as a JSON
    object). Rows of CSV and Parquet also have their declared and other columns in a struct named as the source, with
    `reason` and `detail` where they do not fit; lines of JSON are parsed like the records of a topic.

    Raises:
        FileUnreadable: the file is not whole, or not of this format, or does not fit the declared columns.
    """
    if not content:
        msg = "has no bytes"
        raise FileUnreadable(msg)
    try:
        match source.format:
            case Format.PARQUET:
                return _parquet_rows(content, source)
            case Format.CSV:
                return _csv_rows(_decompressed(content, name), source)
            case _:
                return _lines(_decompressed(content, name))
    except (FileUnreadable, MemoryError):
        raise
    except Exception as error:  # whatever a library raises over the bytes of a file is a reason to set it aside
        msg = f"cannot be read as {source.format}: {_first_line(error)}"
        raise FileUnreadable(msg) from error


def lines_in(content: bytes) -> int:
    """Returns the number of lines in *content* that are not blank."""
    return sum(1 for line in content.splitlines() if line.strip())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _decompressed(content: bytes, name: str) -> bytes:
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    if suffix in _NOT_READ:
        msg = f"is compressed as {suffix}; only {', '.join(_COMPRESSIONS)} are read"
        raise FileUnreadable(msg)
    if suffix not in _COMPRESSIONS:
        return content
    compression = _COMPRESSIONS[suffix]
    try:
        with pa.input_stream(pa.BufferReader(content), compression=compression) as stream:
            text: bytes = stream.read(MOST_BYTES + 1)
    except OSError as error:
        msg = f"is not whole {compression}: {_first_line(error)}"
        raise FileUnreadable(msg) from error
    _refuse_large(len(text))
    return text


def _refuse_large(size: int) -> None:
    if size > MOST_BYTES:
        msg = f"has more than {MOST_BYTES:,} bytes once it is decompressed; split it"
        raise FileUnreadable(msg)


def _lines(text: bytes) -> pl.DataFrame:
    lines = pl.Series(text.removeprefix(_BOM).splitlines(), dtype=pl.Binary)
    rows = pl.DataFrame({"value": lines}).with_row_index("row", offset=1)
    is_blank = pl.Series([not line.strip() for line in lines], dtype=pl.Boolean)
    return rows.filter(~is_blank).select("value", pl.col("row").cast(pl.Int64))


def _csv_rows(text: bytes, source: Source) -> pl.DataFrame:
    text = text.removeprefix(_BOM)
    names = _header(text)
    _refuse_columns(names, source)
    wrong: dict[int, bytes] = {}
    # pyarrow gives up on a wrong row that is not UTF-8, so each byte of such a file becomes a character for a while.
    encoding = "utf-8" if _is_utf8(text) else "latin-1"
    text = text if encoding == "utf-8" else text.decode(encoding).encode()

    def note(row: pc.InvalidRow) -> str:
        wrong[row.number - 1] = row.text.encode(encoding)
        return "skip"

    columns = [f"f{number}" for number in range(len(names))]
    # The row of names has its own number of values, so it is read like the others: the first.
    ended = b"".join([text, b"\n\n", b",".join([_END] * len(names)), b"\n"])
    read = pc.read_csv(
        pa.BufferReader(ended),
        read_options=pc.ReadOptions(
            use_threads=False,  # rows have numbers only if one thread reads them
            block_size=min(len(ended) + 1, _MOST_BLOCK),
            autogenerate_column_names=True,
        ),
        parse_options=pc.ParseOptions(newlines_in_values=True, invalid_row_handler=note),
        convert_options=pc.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.binary()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    cells = pl.DataFrame(read)
    if not cells.height or cells[-1].row(0) != (_END,) * len(names):
        msg = "ends inside quotation marks"
        raise FileUnreadable(msg)
    cells = cells[1:-1].rename(dict(zip(columns, names, strict=True)))
    if encoding != "utf-8":
        cells = cells.select(_encoded(column, encoding) for column in cells.iter_columns())
    numbers = pl.int_range(1, cells.height + len(wrong) + 1, eager=True)
    rows = _typed_texts(cells, source).with_columns(row=numbers.filter(~numbers.is_in([*wrong])))
    return pl.concat([rows, _wrong_rows(wrong, len(names))], how="diagonal").sort("row") if wrong else rows


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encoded(cells: pl.Series, encoding: str) -> pl.Series:
    values = [None if cell is None else cell.decode().encode(encoding) for cell in cells]
    return pl.Series(cells.name, values, dtype=pl.Binary)


def _header(text: bytes) -> list[str]:
    """Returns the names of the columns of CSV, without blanks around them."""
    # Only the first row has to be text, and a comma is the same byte in both encodings.
    lines = io.TextIOWrapper(io.BytesIO(text), encoding="latin-1", newline="")
    row = next((row for row in csv.reader(lines) if row), None)
    if row is None:
        msg = "has no row with the names of its columns"
        raise FileUnreadable(msg)
    try:
        return [name.encode("latin-1").decode().strip() for name in row]
    except UnicodeDecodeError:
        msg = "has a first row that is not UTF-8"
        raise FileUnreadable(msg) from None


def _refuse_columns(names: Sequence[str], source: Source) -> None:
    """Raises FileUnreadable unless *names* are all declared columns, once each."""
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        msg = f"has the column {twice[0]!r} twice"
        raise FileUnreadable(msg)
    if missing := outside((steps(path)[0] for path in source.types_of_fields), names):
        msg = f"has no column {', '.join(missing)}; its columns are: {', '.join(names)}"
        raise FileUnreadable(msg)


def _wrong_rows(wrong: Mapping[int, bytes], columns: int) -> pl.DataFrame:
    """Returns the rows of CSV that have another number of values than *columns*."""
    return pl.DataFrame(
        {
            "row": [*wrong],
            "value": [*wrong.values()],
            "reason": MALFORMED_CSV,
            "detail": f"does not have {columns} values",
        },
        schema_overrides={"row": pl.Int64, "value": pl.Binary, "reason": pl.String, "detail": pl.String},
    )


def _typed_texts(cells: pl.DataFrame, source: Source) -> pl.DataFrame:
    """Returns the rows of CSV whose *cells* are bytes by column, with the types that *source* declares."""
    texts = cells.select(texts_of(column).alias(column.name) for column in cells.iter_columns())
    columns = {path: steps(path)[0] for path in source.types_of_fields}
    kept = texts.columns if source.other_fields else [*columns.values()]
    undecoded = {name: cells[name].is_not_null() & texts[name].is_null() for name in kept}
    typed: dict[str, pl.Series] = {}
    for path, word in source.types_of_fields.items():
        typed[path] = _converted(texts[columns[path]], word, is_time=path == source.time_field)
    written = pl.DataFrame(_json_text(_with_replacements(cells[name], texts[name])) for name in texts.columns)
    is_there = {path: written[column].is_not_null() for path, column in columns.items()}
    return _rows(written, typed, is_there, undecoded, source)


def _with_replacements(cells: pl.Series, texts: pl.Series) -> pl.Series:
    """Returns *texts* in which *cells* that are not UTF-8 have a replacement character for each wrong byte."""
    lost = (cells.is_not_null() & texts.is_null()).arg_true()
    if lost.is_empty():
        return texts
    return texts.scatter(lost, pl.Series([cell.decode(errors="replace") for cell in cells.gather(lost)]))


def _converted(texts: pl.Series, word: str, *, is_time: bool) -> pl.Series:
    """Returns *texts* as the declared type *word*; null where they do not fit."""
    if word == "string":
        return texts
    stripped = texts.str.strip_chars()
    if digits_of(word) or (is_time and word != "timestamp"):
        return numbers_of(stripped, word)
    match word:
        case "timestamp":
            return instants_of(stripped)
        case "boolean":
            lower = pl.DataFrame({"text": stripped.str.to_lowercase()})
            is_true, is_false = pl.col("text").is_in(_TRUE), pl.col("text").is_in(_FALSE)
            return lower.select(pl.when(is_true | is_false).then(is_true))["text"]
        case _:
            return stripped.cast(polars_type(word), strict=False)


def _parquet_rows(content: bytes, source: Source) -> pl.DataFrame:
    parquet = pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")
    groups = (parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups))
    _refuse_large(sum(group.total_byte_size for group in groups))
    schema = parquet.schema_arrow
    _refuse_columns(schema.names, source)
    kinds = {name: _value_type(schema.field(name).type) for name in schema.names}
    declared_types = source.types_of_fields
    kinds_at = {path: _type_at(schema, path) for path in declared_types}
    if wrong := [
        f"{path} is {kinds_at[path]}, not {word}"
        for path, word in declared_types.items()
        if not _fits(kinds_at[path], word)
    ]:
        msg = f"has other types: {'; '.join(wrong)}"
        raise FileUnreadable(msg)
    table = parquet.read()
    for at, name in enumerate(schema.names):
        if schema.field(name).type != kinds[name]:
            table = table.set_column(at, name, table[name].cast(kinds[name]))
    # Texts are not checked by the reader: as bytes they are, one by one.
    texts = [name for name, kind in kinds.items() if _is_text(kind)]
    for name in texts:
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.large_binary(), safe=False))
    table.validate(full=True)
    frame = pl.DataFrame(table)
    decoded = frame.with_columns(texts_of(frame[name]).alias(name) for name in texts)
    declared = outermost(declared_types)
    kept = texts if source.other_fields else within(texts, declared)
    undecoded = {name: frame[name].is_not_null() & decoded[name].is_null() for name in kept}
    typed = {path: _cast(_column_at(decoded, path), word) for path, word in declared_types.items()}
    shown = (_with_replacements(frame[name], decoded[name]) if name in texts else decoded[name] for name in kinds)
    is_there = {path: _column_at(frame, path).is_not_null() for path in declared_types}
    rows = _rows(pl.DataFrame(map(_json_text, shown)), typed, is_there, undecoded, source)
    return rows.with_columns(row=pl.int_range(1, pl.len() + 1, dtype=pl.Int64))


def _type_at(schema: pa.Schema, path: str) -> pa.DataType | None:
    """Returns the type of the column, or the field inside one, at *path*; None where there is none."""
    outermost, *inner = steps(path)
    kind = schema.field(outermost).type
    for name in inner:
        place = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if place < 0:
            return None
        kind = kind.field(place).type
    return _value_type(kind)


def _column_at(frame: pl.DataFrame, path: str) -> pl.Series:
    outermost, *inner = steps(path)
    column = frame[outermost]
    for name in inner:
        column = column.struct.field(name)
    return column


def _value_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values of *kind*, which may be a dictionary of them."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _fits(kind: pa.DataType | None, word: str) -> bool:
    if kind is None:
        return False
    if word == "string":
        return _is_text(kind)
    if digits_of(word):
        is_decimal = pa.types.is_decimal(kind)
        digits = (kind.precision, kind.scale) if is_decimal else (_DIGITS_OF_INTEGERS.get(str(kind), 0), 0)
        return fits_digits(digits, word)
    if word == "timestamp":
        return bool(pa.types.is_timestamp(kind))
    return str(kind) in _FITTING[word]


def _cast(column: pl.Series, word: str) -> pl.Series:
    """Returns a *column* of Parquet as the declared type *word*."""
    if word != "timestamp":
        return column.cast(polars_type(word))
    instants = column.cast(pl.Datetime("us", column.dtype.time_zone))  # type: ignore[attr-defined]
    zoned = instants.dt.replace_time_zone("UTC") if instants.dtype == pl.Datetime("us") else instants
    return within_years(zoned.dt.convert_time_zone("UTC").cast(INSTANT))


def _json_text(column: pl.Series) -> pl.Series:
    """Returns each value of *column* as JSON; null for null."""
    name, kind = column.name, column.dtype
    if isinstance(kind, pl.Datetime):
        # Spark writes instants with a T, and so does `why` show them.
        zone = "Z" if kind.time_zone else ""
        inside = within_years(column.cast(pl.Datetime("us", kind.time_zone)) if kind.time_unit == "ns" else column)
        texts = inside.dt.replace_time_zone(None).dt.strftime(f"%Y-%m-%dT%H:%M:%S%.6f{zone}")
        column = texts.zip_with(texts.is_not_null(), column.to_physical().cast(pl.String))
    elif not (kind.is_integer() or kind.is_float() or isinstance(kind, pl.Boolean | pl.String)):
        values = [None if value is None else json_of(value) for value in column.to_list()]
        return pl.Series(name, values, dtype=pl.String)
    text = pl.when(pl.col(name).is_not_null()).then(field_text(name, column.dtype))
    return pl.DataFrame({name: column}).select(text.alias(name))[name]


def _rows(
    written: pl.DataFrame,
    typed: Mapping[str, pl.Series],
    is_there: Mapping[str, pl.Series],
    undecoded: Mapping[str, pl.Series],
    source: Source,
) -> pl.DataFrame:
    """Returns the rows of a file.

    Args:
        written: all columns of the file, each value as JSON.
        typed: by the path of a declared field, its values with the declared type, null where they do not fit.
        is_there: by that path, True where the file has a value.
        undecoded: by column, True where the value is not UTF-8.
        source: declares the fields.
    """
    columns = {column: typed[path].alias(column) for column, path in source.field_of.items()}
    if source.other_fields:
        others = outside(written.columns, whole_fields(source.types_of_fields))
        columns[source.other_fields] = _objects(written, others, empty=None)
    nothing = pl.Series([None], dtype=pl.String).new_from_index(0, written.height)
    reasons = pl.DataFrame({"reason": nothing, "detail": nothing})
    for path, word in source.types_of_fields.items():
        is_lost = is_there[path] & typed[path].is_null()
        value = written[steps(path)[0]].str.head(SHOWN)
        reasons = _marked(
            reasons, is_lost, WRONG_TYPE, pl.format("column {}: {} is no {}", pl.lit(path), value, pl.lit(word))
        )
    for name, is_undecoded in undecoded.items():
        reasons = _marked(reasons, is_undecoded, INVALID_UTF8, pl.lit(f"column {name}"))
    own = pl.DataFrame({name: columns[name] for name in source.columns}).to_struct(source.name)
    return reasons.with_columns(_objects(written, written.columns, empty="{}").cast(pl.Binary).alias("value"), own)


def _marked(reasons: pl.DataFrame, holds: pl.Series, reason: str, detail: pl.Expr) -> pl.DataFrame:
    """Returns *reasons* in which rows for which *holds* is true have *reason* and *detail*."""
    if not holds.any():
        return reasons
    return reasons.with_columns(
        reason=pl.when(holds).then(pl.lit(reason)).otherwise("reason"),
        detail=pl.when(holds).then(detail).otherwise("detail"),
    )


def _objects(written: pl.DataFrame, names: Sequence[str], *, empty: str | None) -> pl.Series:
    """Returns the columns *names* of *written*, which have JSON, as one JSON object per row without null fields.

    A row in which all of them are null gets the text *empty*.
    """
    fields = [pl.concat_str(pl.lit(f",{json.dumps(name)}:"), name).fill_null("") for name in names]
    joined = pl.concat_str(fields) if fields else pl.lit("")
    braced = pl.concat_str(pl.lit("{"), joined.str.slice(1), pl.lit("}"))
    object_or_empty = pl.when(joined != "").then(braced).otherwise(pl.lit(empty, pl.String))
    return written.with_columns(_object=object_or_empty)["_object"]
