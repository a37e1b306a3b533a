"""The Kafka headers that records carry from stream to stream.

`tidemark-id` is `<topology>/<sub-topology>/<epoch>/<batch>/<sequence>`; the text before the epoch names the writer. A
writer that runs a batch again sends its records again, with the same batch and sequence under a higher epoch, so a
reader can drop them. Any producer can write such a header, and a program that forwards records may copy it. So only the
ids of the writers that a source names (`written_by`) are trusted, all others are data. A program that makes other
records of them must leave this header out.

`traceparent` and `tracestate` (W3C Trace Context) are sent on as they came. A sink with `traces` replaces them by the
`traceparent` of its batch: it has no `tracestate`.

`tidemark-key` has the bytes of a Kafka key that is no text, and whose text `_key` therefore is null. A source adds it,
and no topic gets it: it tells operators that need the key what they cannot use.

`tidemark-hop` is `<topology>/<operator>:<epoch ms>`, once per stream passed: the clock before the record was sent on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import polars as pl

from tidemark.kernels.updates.proofs import quarantine_rows
from tidemark.semantics.progress import WriterPosition
from tidemark.semantics.tracing import FORM

ID = "tidemark-id"
HOP = "tidemark-hop"
KEY = "tidemark-key"
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
INVALID_KEY = "invalid_key"
"""Reason of quarantine: the key is needed, and is no text in UTF-8."""
MOST_TRACES = 32
"""Most spans that a batch notes of a partition, the newest."""
MOST_HOPS = 32
"""Older hops are dropped: records may go round in a circle."""

_ID_FORM = r"^(?<writer>.+)/(?<epoch>\d{1,9})/(?<batch>\d{1,9})/(?<sequence>\d{1,9})$"
_ASCII = "^([0-7][0-9a-f])*$"
_PLACES = 10**9
_WITHIN = ["partition", "writer"]


def headers_to_send(
    received: Iterable[Mapping[str, str | bytes | None]] | None, *, id_: str, hop: str, traceparent: str | None = None
) -> list[tuple[str, str | bytes | None]]:
    """Returns the headers of a record that is sent on.

    *received* are those that it came with, *id_* is its new id, *hop* is the further hop. *traceparent* replaces that
    of its trace (None: it is kept).
    """
    replaced = {ID, KEY} if traceparent is None else {ID, KEY, TRACEPARENT, TRACESTATE}
    kept = [(str(header["key"]), header["value"]) for header in received or () if header["key"] not in replaced]
    # One place is left for the hop that is added now.
    surplus = sum(key == HOP for key, _ in kept) + 1 - MOST_HOPS
    headers: list[tuple[str, str | bytes | None]] = []
    for key, value in kept:
        if key == HOP and surplus > 0:
            # The oldest hops come first.
            surplus -= 1
        else:
            headers.append((key, value))
    own: list[tuple[str, str | bytes | None]] = [(ID, id_), (HOP, hop)]
    return [*headers, *own, *([] if traceparent is None else [(TRACEPARENT, traceparent)])]


def with_unreadable_keys(headers: pl.Series, keys: pl.Series, texts: pl.Series) -> pl.Series:
    """Returns *headers* with the header KEY for those of *keys* that are no text.

    *texts* are the keys as text; null: there is no key, or it is no text.
    """
    rows = pl.DataFrame({"headers": headers, "key": keys})
    is_text = texts.is_not_null() | keys.is_null()
    name = pl.element().struct.field("key")
    if headers.explode().struct.field("key").eq(KEY).any():
        # Any producer may write such a header.
        rows = rows.with_columns(pl.col("headers").list.eval(pl.element().filter(name.ne_missing(KEY))))
    if is_text.all():
        return rows["headers"]
    own = pl.struct(key=pl.lit(KEY), value=pl.col("key").cast(pl.Binary))
    added = pl.concat_list(pl.col("headers").fill_null(pl.lit([], headers.dtype)), own)
    return rows.select(pl.when(is_text).then("headers").otherwise(added).alias("headers")).to_series()


def split_unreadable_keys(operator: str, records: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Splits *records* that *operator* needs the key of into those with a text or no key, and rows of `dead_letters`.

    The latter have a Kafka key that is no text, and that no operator before has replaced.
    """
    own = pl.element().struct.field("value").filter(pl.element().struct.field("key") == KEY)
    unreadable = pl.when(pl.col("_key").is_null()).then(pl.col("_headers").list.eval(own).list.first())
    keys = records.select(unreadable.alias("key")).to_series()
    bad = records.filter(keys.is_not_null())
    rows = quarantine_rows(operator, bad, INVALID_KEY).with_columns(key=keys.drop_nulls())
    return records.filter(keys.is_null()), rows


def traces_read(rows: pl.DataFrame) -> dict[int, tuple[str, ...]]:
    """Returns the distinct valid `traceparent` headers of *rows*, by partition.

    *rows* are in offset order.
    """
    headers = rows.select("partition", "headers").explode("headers").unnest("headers")
    # Bytes that are not ASCII would make the cast to text fail.
    ascii_only = pl.col("value").bin.encode("hex").str.contains(_ASCII)
    texts = headers.filter((pl.col("key") == TRACEPARENT) & ascii_only).with_columns(pl.col("value").cast(pl.String))
    valid = texts.filter(pl.col("value").str.contains(FORM)).unique(
        ["partition", "value"], keep="last", maintain_order=True
    )
    newest = valid.group_by("partition", maintain_order=True).agg(pl.col("value").tail(MOST_TRACES))
    return {partition: tuple(values) for partition, values in newest.iter_rows()}


def split_repeated(
    rows: pl.DataFrame, newest: Mapping[int, Mapping[str, WriterPosition]], trusted: Collection[str]
) -> tuple[pl.DataFrame, pl.DataFrame, dict[int, dict[str, WriterPosition]]]:
    """Splits the *rows* of a topic into new and repeated ones.

    A row repeats when its epoch is lower than one before it, or its batch and sequence are not above all of those
    before it.

    Args:
        rows: in offset order.
        newest: by partition and writer, the last record that was read.
        trusted: names of the trusted writers.

    Returns:
        The new rows, the repeated ones, and *newest* after them.
    """
    last_sent = trusted_positions(newest, trusted)
    # A row without the id of a trusted writer is always new: any producer may write such a header.
    ids = _ids(rows, trusted) if trusted else None
    if ids is None or not ids.height:
        return rows, rows.clear(), last_sent
    judged = _judged(ids, last_sent)
    repeated = pl.int_range(pl.len()).is_in(judged.filter("repeated")["row"].implode())
    return rows.filter(~repeated), rows.filter(repeated), _newest(judged, last_sent)


def trusted_positions(
    newest: Mapping[int, Mapping[str, WriterPosition]], trusted: Collection[str]
) -> dict[int, dict[str, WriterPosition]]:
    """Returns the part of *newest* that is about *trusted* writers."""
    of_trusted: dict[int, dict[str, WriterPosition]] = {}
    for partition, writers in newest.items():
        of_trusted[partition] = {writer: writers[writer] for writer in trusted if writer in writers}
    return of_trusted


def _ids(rows: pl.DataFrame, trusted: Collection[str]) -> pl.DataFrame:
    """Returns the trusted id of each of *rows* that has one.

    Columns are row number, partition, writer, epoch and place, which is batch and sequence in one number.
    """
    headers = rows.select("partition", "headers", row=pl.int_range(pl.len())).explode("headers").unnest("headers")
    value = pl.col("value")
    from_trusted = pl.any_horizontal(value.bin.starts_with(f"{writer}/".encode()) for writer in trusted)
    # Bytes that are not ASCII cannot match the form, and would make the cast to text fail.
    with_id = headers.filter((pl.col("key") == ID) & from_trusted & value.bin.encode("hex").str.contains(_ASCII))
    read = with_id.with_columns(value.cast(pl.String).str.extract_groups(_ID_FORM)).unnest("value")
    read = read.filter(pl.col("writer").is_in(list(trusted)))
    # A program that sends a record on adds its own id behind those that it received, so the last one counts.
    numbers = read.unique("row", keep="last", maintain_order=True)
    numbers = numbers.with_columns(pl.col("epoch", "batch", "sequence").cast(pl.Int64))
    # Batch and sequence have at most 9 digits each, so both fit into 64 bits.
    return numbers.select("row", "partition", "writer", "epoch", place=pl.col("batch") * _PLACES + pl.col("sequence"))


def _judged(ids: pl.DataFrame, newest: Mapping[int, Mapping[str, WriterPosition]]) -> pl.DataFrame:
    """Marks each of *ids* that is `repeated`, and the `current` place.

    The current place is that of a row of the newest epoch so far, null for rows of older epochs.
    """
    places: list[tuple[int, str, int, int]] = []
    for partition, writers in newest.items():
        for writer, sent in writers.items():
            places.append((partition, writer, sent.epoch, sent.batch * _PLACES + sent.sequence))
    schema = {"partition": ids.schema["partition"], "writer": pl.String(), "seen_epoch": pl.Int64(), "seen": pl.Int64()}
    batch_places = pl.DataFrame(places, schema=schema, orient="row")
    both = ids.join(batch_places, on=_WITHIN, how="left", maintain_order="left")
    both = both.with_columns(pl.col("seen_epoch", "seen").fill_null(-1))
    stale = pl.col("epoch") < pl.max_horizontal("seen_epoch", pl.col("epoch").cum_max().over(_WITHIN))
    # The place of a stale writer does not count: it may be ahead of the writer that took over from it.
    both = both.with_columns(current=pl.when(~stale).then("place"))
    before = pl.col("current").cum_max().forward_fill().shift(1).over(_WITHIN)
    return both.with_columns(
        repeated=pl.col("current").is_null() | (pl.col("place") <= pl.max_horizontal("seen", before))
    )


def _newest(
    judged: pl.DataFrame, newest: Mapping[int, Mapping[str, WriterPosition]]
) -> dict[int, dict[str, WriterPosition]]:
    """Returns *newest* after the *judged* rows."""
    now = {partition: dict(writers) for partition, writers in newest.items()}
    reached = judged.group_by(_WITHIN, maintain_order=True).agg(
        epoch=pl.max_horizontal(pl.col("epoch").max(), pl.col("seen_epoch").max()),
        place=pl.max_horizontal(pl.col("current").max(), pl.col("seen").max()),
    )
    for partition, writer, epoch, place in reached.iter_rows():
        now.setdefault(partition, {})[writer] = WriterPosition(epoch, *divmod(place, _PLACES))
    return now
