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
"""Reason of quarantine: an operator needs the key, which is no text in UTF-8."""
MOST_TRACES = 32
"""Most spans that a batch notes of a partition, the newest."""
MOST_HOPS = 32
"""Older hops are dropped: records may go round in a circle."""

_ID_FORM = r"^(?<writer>.+)/(?<epoch>\d{1,9})/(?<batch>\d{1,9})/(?<sequence>\d{1,9})$"
_ASCII = "^([0-7][0-9a-f])*$"
_SEQUENCES = 10**9
_WITHIN = ["partition", "writer"]


def headers_to_send(
    received: Iterable[Mapping[str, str | bytes | None]] | None, *, id_: str, hop: str, traceparent: str | None = None
) -> list[tuple[str, str | bytes | None]]:
    """Returns the headers of a record that is sent on.

    Args:
        received: the headers with which it came.
        id_: its new `tidemark-id`.
        hop: the value of the `tidemark-hop` that is added.
        traceparent: replaces the header of this name; None keeps the one that came.
    """
    replaced = {ID, KEY} if traceparent is None else {ID, KEY, TRACEPARENT, TRACESTATE}
    kept = [(str(header["key"]), header["value"]) for header in received or () if header["key"] not in replaced]
    # One hop is added now, so one less is kept.
    surplus = sum(key == HOP for key, _ in kept) + 1 - MOST_HOPS
    headers: list[tuple[str, str | bytes | None]] = []
    for key, value in kept:
        if key == HOP and surplus > 0:
            # The oldest hops come first.
            surplus -= 1
        else:
            headers.append((key, value))
    added: list[tuple[str, str | bytes | None]] = [(ID, id_), (HOP, hop)]
    return [*headers, *added, *([] if traceparent is None else [(TRACEPARENT, traceparent)])]


def with_unreadable_keys(headers: pl.Series, keys: pl.Series, texts: pl.Series) -> pl.Series:
    """Returns *headers*, where a record whose key is no text has that key as the header KEY.

    Args:
        headers: the headers of each record.
        keys: Kafka's keys, as bytes.
        texts: the same keys as text, null where a record has no key, or one that is no text.
    """
    rows = pl.DataFrame({"headers": headers, "key": keys})
    is_text = texts.is_not_null() | keys.is_null()
    name = pl.element().struct.field("key")
    if headers.explode().struct.field("key").eq(KEY).any():
        # Any producer may write such a header.
        rows = rows.with_columns(pl.col("headers").list.eval(pl.element().filter(name.ne_missing(KEY))))
    if is_text.all():
        return rows["headers"]
    key_header = pl.struct(key=pl.lit(KEY), value=pl.col("key").cast(pl.Binary))
    added = pl.concat_list(pl.col("headers").fill_null(pl.lit([], headers.dtype)), key_header)
    return rows.select(pl.when(is_text).then("headers").otherwise(added).alias("headers")).to_series()


def split_unreadable_keys(operator: str, records: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Splits *records*, whose key *operator* needs, into usable ones and rows of `dead_letters`.

    A record is unusable if its Kafka key is no text, and no operator before has replaced the key. Without a key it is
    usable.
    """
    key_header = pl.element().struct.field("value").filter(pl.element().struct.field("key") == KEY)
    unreadable = pl.when(pl.col("_key").is_null()).then(pl.col("_headers").list.eval(key_header).list.first())
    keys = records.select(unreadable.alias("key")).to_series()
    bad = records.filter(keys.is_not_null())
    rows = quarantine_rows(operator, bad, INVALID_KEY).with_columns(key=keys.drop_nulls())
    return records.filter(keys.is_null()), rows


def traces_read(rows: pl.DataFrame) -> dict[int, tuple[str, ...]]:
    """Returns, by partition, the distinct valid `traceparent` headers of *rows*, which are in offset order.

    Of more than MOST_TRACES the newest are returned.
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
    """Splits the *rows* of a topic into new ones and repeated ones, by the header `tidemark-id` of trusted writers.

    A row is repeated if a row of the same writer before it has a higher epoch, or a batch and sequence that is as high
    or higher.

    Args:
        rows: the rows, in offset order.
        newest: by partition and writer, the last record that was read.
        trusted: names of the trusted writers, those in the source's `written_by`.

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
    """Returns the positions among *newest* that are of *trusted* writers."""
    kept: dict[int, dict[str, WriterPosition]] = {}
    for partition, writers in newest.items():
        kept[partition] = {writer: writers[writer] for writer in trusted if writer in writers}
    return kept


def _ids(rows: pl.DataFrame, trusted: Collection[str]) -> pl.DataFrame:
    """Returns the id of each of *rows* that a trusted writer has sent.

    Columns are `row`, `partition`, `writer`, `epoch` and `position`, which is batch and sequence in one number.
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
    position = pl.col("batch") * _SEQUENCES + pl.col("sequence")
    return numbers.select("row", "partition", "writer", "epoch", position=position)


def _judged(ids: pl.DataFrame, newest: Mapping[int, Mapping[str, WriterPosition]]) -> pl.DataFrame:
    """Returns *ids* with `repeated`, and with `current`: the position of a row whose epoch is the newest so far, or
    null.

    *newest* has the last position of each writer before these rows.
    """
    positions: list[tuple[int, str, int, int]] = []
    for partition, writers in newest.items():
        for writer, sent in writers.items():
            positions.append((partition, writer, sent.epoch, sent.batch * _SEQUENCES + sent.sequence))
    schema = {"partition": ids.schema["partition"], "writer": pl.String(), "seen_epoch": pl.Int64(), "seen": pl.Int64()}
    seen = pl.DataFrame(positions, schema=schema, orient="row")
    compared = ids.join(seen, on=_WITHIN, how="left", maintain_order="left")
    compared = compared.with_columns(pl.col("seen_epoch", "seen").fill_null(-1))
    stale = pl.col("epoch") < pl.max_horizontal("seen_epoch", pl.col("epoch").cum_max().over(_WITHIN))
    # The position of a stale writer does not count: it may be ahead of the writer that took over from it.
    compared = compared.with_columns(current=pl.when(~stale).then("position"))
    before = pl.col("current").cum_max().forward_fill().shift(1).over(_WITHIN)
    return compared.with_columns(
        repeated=pl.col("current").is_null() | (pl.col("position") <= pl.max_horizontal("seen", before))
    )


def _newest(
    judged: pl.DataFrame, newest: Mapping[int, Mapping[str, WriterPosition]]
) -> dict[int, dict[str, WriterPosition]]:
    """Returns *newest* after the *judged* rows."""
    now = {partition: dict(writers) for partition, writers in newest.items()}
    reached = judged.group_by(_WITHIN, maintain_order=True).agg(
        epoch=pl.max_horizontal(pl.col("epoch").max(), pl.col("seen_epoch").max()),
        position=pl.max_horizontal(pl.col("current").max(), pl.col("seen").max()),
    )
    for partition, writer, epoch, position in reached.iter_rows():
        now.setdefault(partition, {})[writer] = WriterPosition(epoch, *divmod(position, _SEQUENCES))
    return now
