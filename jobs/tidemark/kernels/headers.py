"""The headers that records carry from one stream to the next through Kafka.

`tidemark-id` is `<topology>/<sub-topology>/<epoch>/<batch>/<sequence>`; what comes before the epoch names the writer.
A writer that runs a batch again sends its records again, with the same batch and sequence under a higher epoch, so a
reader can drop them. Anybody can write such a header, and whoever forwards records may copy it: only the ids of the
writers that a source names (`written_by`) are believed, all others are data. Whoever makes other records of them must
leave this header out.

`tidemark-hop` is `<topology>/<operator>:<epoch ms>`, once per stream passed: the clock before it was sent on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import polars as pl

from tidemark.semantics.progress import Sent

ID = "tidemark-id"
HOP = "tidemark-hop"
MOST_HOPS = 32
"""Of more hops the oldest are forgotten: records may go round in a circle."""

_ID_FORM = r"^(?<writer>.+)/(?<epoch>\d{1,9})/(?<batch>\d{1,9})/(?<sequence>\d{1,9})$"
_ASCII = "^([0-7][0-9a-f])*$"
_PLACES = 10**9
_WITHIN = ["partition", "writer"]


def headers_to_send(
    received: Iterable[Mapping[str, str | bytes | None]] | None, *, id_: str, hop: str
) -> list[tuple[str, str | bytes | None]]:
    """The headers of a record that came with those *received* and is sent on as *id_*, over a further *hop*."""
    kept = [(str(header["key"]), header["value"]) for header in received or () if header["key"] != ID]
    forgotten = sum(key == HOP for key, _ in kept) + 1 - MOST_HOPS
    for _ in range(forgotten):
        del kept[next(place for place, (key, _) in enumerate(kept) if key == HOP)]
    return [*kept, (ID, id_), (HOP, hop)]


def told_apart(
    rows: pl.DataFrame, newest: Mapping[int, Mapping[str, Sent]], trusted: Collection[str]
) -> tuple[pl.DataFrame, pl.DataFrame, dict[int, dict[str, Sent]]]:
    """The *rows* of a topic (in offset order) that are new, those that repeat, and what is now *newest*.

    Newest is said per partition and *trusted* writer. A row repeats when its epoch is lower than one seen before it, or
    its batch and sequence are not above all of those seen before it; without the id of a trusted writer it is always
    new.
    """
    known = believed(newest, trusted)
    ids = _ids(rows, trusted) if trusted else None
    if ids is None or not ids.height:
        return rows, rows.clear(), known
    judged = _judged(ids, known)
    repeated = pl.int_range(pl.len()).is_in(judged.filter("repeated")["row"].implode())
    return rows.filter(~repeated), rows.filter(repeated), _newest(judged, known)


def believed(newest: Mapping[int, Mapping[str, Sent]], trusted: Collection[str]) -> dict[int, dict[str, Sent]]:
    """What is *newest* of the *trusted* writers of each partition: of others nothing is kept."""
    return {
        partition: {writer: writers[writer] for writer in trusted if writer in writers}
        for partition, writers in newest.items()
    }


def _ids(rows: pl.DataFrame, trusted: Collection[str]) -> pl.DataFrame:
    """Row number, partition, writer, epoch and place (batch and sequence in one number) of *rows* with a trusted id.

    Of several in one record the last counts: whoever sends a record on adds its own behind those that it got.
    """
    headers = rows.select("partition", "headers", row=pl.int_range(pl.len())).explode("headers").unnest("headers")
    value = pl.col("value")
    from_trusted = pl.any_horizontal(value.bin.starts_with(f"{writer}/".encode()) for writer in trusted)
    found = headers.filter((pl.col("key") == ID) & from_trusted & value.bin.encode("hex").str.contains(_ASCII))
    read = found.with_columns(value.cast(pl.String).str.extract_groups(_ID_FORM)).unnest("value")
    read = read.filter(pl.col("writer").is_in(list(trusted)))
    numbers = read.unique("row", keep="last", maintain_order=True)
    numbers = numbers.with_columns(pl.col("epoch", "batch", "sequence").cast(pl.Int64))
    return numbers.select("row", "partition", "writer", "epoch", place=pl.col("batch") * _PLACES + pl.col("sequence"))


def _judged(ids: pl.DataFrame, newest: Mapping[int, Mapping[str, Sent]]) -> pl.DataFrame:
    """*ids* with `repeated`, and `current`: the place of a row of the newest epoch so far, null for those before it."""
    known = [
        (p, w, sent.epoch, sent.batch * _PLACES + sent.sequence) for p, of in newest.items() for w, sent in of.items()
    ]
    schema = {"partition": ids.schema["partition"], "writer": pl.String(), "seen_epoch": pl.Int64(), "seen": pl.Int64()}
    seen = pl.DataFrame(known, schema=schema, orient="row")
    both = ids.join(seen, on=_WITHIN, how="left", maintain_order="left")
    both = both.with_columns(pl.col("seen_epoch", "seen").fill_null(-1))
    stale = pl.col("epoch") < pl.max_horizontal("seen_epoch", pl.col("epoch").cum_max().over(_WITHIN))
    # A stale writer must not count as further along: it may be ahead of the one that took over from it.
    both = both.with_columns(current=pl.when(~stale).then("place"))
    before = pl.col("current").cum_max().forward_fill().shift(1).over(_WITHIN)
    return both.with_columns(
        repeated=pl.col("current").is_null() | (pl.col("place") <= pl.max_horizontal("seen", before))
    )


def _newest(judged: pl.DataFrame, newest: Mapping[int, Mapping[str, Sent]]) -> dict[int, dict[str, Sent]]:
    """*newest* with what the *judged* rows add to it."""
    now = {partition: dict(writers) for partition, writers in newest.items()}
    reached = judged.group_by(_WITHIN, maintain_order=True).agg(
        epoch=pl.max_horizontal(pl.col("epoch").max(), pl.col("seen_epoch").max()),
        place=pl.max_horizontal(pl.col("current").max(), pl.col("seen").max()),
    )
    for partition, writer, epoch, place in reached.iter_rows():
        now.setdefault(partition, {})[writer] = Sent(epoch, *divmod(place, _PLACES))
    return now
