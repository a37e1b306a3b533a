"""Headers that identify records on their way through Kafka."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tidemark.kernels.columns.schemas import HEADERS
from tidemark.kernels.records.headers import (
    HOP,
    ID,
    KEY,
    headers_to_send,
    split_repeated,
    traces_read,
    with_unreadable_keys,
)
from tidemark.semantics.progress import WriterPosition


def rows(*ids: str | bytes | None, partition: int = 0) -> pl.DataFrame:
    """Rows of one partition at offsets from 0, each with its id."""
    other = {"key": "trace", "value": b"t"}
    headers = [
        [other, {"key": ID, "value": id_.encode() if isinstance(id_, str) else id_}] if id_ else None for id_ in ids
    ]
    schema = {"partition": pl.Int32(), "offset": pl.Int64(), "headers": HEADERS}
    return pl.DataFrame(
        {"partition": [partition] * len(ids), "offset": range(len(ids)), "headers": headers}, schema=schema
    )


def repeated(*ids: str | bytes | None, newest: dict[int, dict[str, WriterPosition]] | None = None) -> list[int]:
    return split_repeated(rows(*ids), newest or {}, ["t/s"])[1]["offset"].to_list()


def test_a_batch_that_is_sent_again_is_read_once():
    # Epoch 1 ends after two of three records; epoch 2 sends the batch again.
    sent = ["t/s/1/7/0", "t/s/1/7/1", "t/s/2/7/0", "t/s/2/7/1", "t/s/2/7/2", "t/s/2/8/0"]
    assert repeated(*sent) == [2, 3]


def test_what_was_seen_in_earlier_batches_counts():
    newest = {0: {"t/s": WriterPosition(2, 7, 1)}}
    new, again, now = split_repeated(rows("t/s/2/7/1", "t/s/2/7/2", "t/s/1/8/0"), newest, ["t/s"])
    assert (new["offset"].to_list(), again["offset"].to_list()) == ([1], [0, 2])
    assert now == {0: {"t/s": WriterPosition(2, 7, 2)}}


def test_a_replaced_writer_does_not_overtake_its_successor():
    # Epoch 1 wakes up in the middle of epoch 2's repetition and is ahead of it.
    sent = ["t/s/1/7/0", "t/s/2/7/0", "t/s/1/7/9", "t/s/2/7/1", "t/s/2/7/9"]
    assert repeated(*sent) == [1, 2]


def test_partitions_and_writers_are_apart():
    both = pl.concat([rows("t/s/1/7/5", "t/other/1/0/0"), rows("t/s/1/7/4", partition=1)])
    new, again, now = split_repeated(both, {}, ["t/s", "t/other"])
    assert (new.height, again.height) == (3, 0)
    assert now == {
        0: {"t/s": WriterPosition(1, 7, 5), "t/other": WriterPosition(1, 0, 0)},
        1: {"t/s": WriterPosition(1, 7, 4)},
    }


@pytest.mark.parametrize("id_", [None, b"\xff", "t/s/1/7", "t/s/1/7/x", "t/s/1/7/9999999999"])
def test_a_record_without_an_id_that_can_be_read_is_new(id_):
    newest = {0: {"t/s": WriterPosition(2, 9, 9)}}
    new, again, now = split_repeated(rows(id_, id_), newest, ["t/s"])
    assert (new.height, again.height, now) == (2, 0, newest)


def test_an_id_of_a_writer_that_nobody_named_is_data():
    ids = ["x/y/1/7/0", "x/y/1/7/0", "t/s/more/1/7/0", "t/s/more/1/7/0", "t/sea/1/0/0", "t/sea/1/0/0"]
    for trusted in ([], ["t/s"]):
        new, again, now = split_repeated(rows(*ids), {}, trusted)
        assert (new.height, again.height, now) == (6, 0, {})


def test_a_forwarded_id_does_not_hide_that_of_the_writer():
    twice = rows("t/s/1/7/0", "t/s/1/7/0").with_columns(
        headers=pl.concat_list(pl.col("headers"), rows("other/one/5/5/5", "other/one/5/5/6")["headers"])
    )
    assert split_repeated(twice, {}, ["t/s"])[1]["offset"].to_list() == [1]


def test_of_writers_that_are_no_longer_named_nothing_is_kept():
    newest = {0: {"t/s": WriterPosition(2, 7, 1), **{f"forged/{n}": WriterPosition(1, 0, 0) for n in range(1_000)}}}
    for ids in [(), ("t/s/2/7/1",), (None,)]:
        assert split_repeated(rows(*ids), newest, ["t/s"])[2] == {0: {"t/s": WriterPosition(2, 7, 1)}}


def test_a_sent_record_keeps_headers_and_gets_a_hop_and_an_id():
    received = [{"key": ID, "value": b"a/b/1/2/3"}, {"key": HOP, "value": b"a/x:5"}, {"key": "trace", "value": None}]
    sent = headers_to_send(received, id_="t/s/1/7/0", hop="t/alerts:9")
    assert sent == [(HOP, b"a/x:5"), ("trace", None), (ID, "t/s/1/7/0"), (HOP, "t/alerts:9")]
    assert headers_to_send(None, id_="t/s/1/7/0", hop="t/alerts:9") == [(ID, "t/s/1/7/0"), (HOP, "t/alerts:9")]


def test_a_traced_record_has_the_span_of_its_batch_alone():
    received = [
        {"key": "traceparent", "value": b"old"},
        {"key": "a", "value": b"1"},
        {"key": "tracestate", "value": b"v"},
    ]
    kept = headers_to_send(received, id_="i", hop="h")
    assert kept == [("traceparent", b"old"), ("a", b"1"), ("tracestate", b"v"), (ID, "i"), (HOP, "h")]
    sent = headers_to_send(received, id_="i", hop="h", traceparent="new")
    assert sent == [("a", b"1"), (ID, "i"), (HOP, "h"), ("traceparent", "new")]


def test_the_newest_distinct_spans_of_a_partition_are_noted():
    def traced(partition: int, *values: bytes | None) -> dict[str, Any]:
        return {"partition": partition, "headers": [{"key": "traceparent", "value": value} for value in values]}

    def span(number: int) -> bytes:
        return f"00-{number:032x}-{number:016x}-01".encode()

    frame = pl.DataFrame(
        [
            traced(0, span(1)), traced(0, span(2), span(1)), traced(0, b"00-1-2-01", b"\xff", None),
            {"partition": 0, "headers": [{"key": "trace", "value": span(9)}]}, {"partition": 0, "headers": None},
            *(traced(1, span(number)) for number in range(1, 41)),
        ],
        schema={"partition": pl.Int32(), "headers": HEADERS},
    )  # fmt: skip
    assert traces_read(frame) == {
        0: (span(2).decode(), span(1).decode()), 1: tuple(span(number).decode() for number in range(9, 41)),
    }  # fmt: skip
    assert traces_read(frame.clear()) == {}


def test_of_more_than_32_hops_the_newest_are_carried():
    received = [{"key": HOP, "value": str(number).encode()} for number in range(40)]
    hops = [value for key, value in headers_to_send(received, id_="i", hop="last") if key == HOP]
    assert hops == [*(str(number).encode() for number in range(9, 40)), "last"]


def test_a_key_that_is_no_text_travels_in_a_header_of_its_own() -> None:
    forged = [{"key": KEY, "value": b"x"}, {"key": "a", "value": b"1"}]
    headers = pl.Series("headers", [None, [], forged, forged, [{"key": "a", "value": None}]], dtype=HEADERS)
    keys = pl.Series([b"\xff", b"k", b"\xfe", None, b"\xfd"])
    texts = pl.Series([None, "k", None, None, None], dtype=pl.String)
    marked = with_unreadable_keys(headers, keys, texts)
    assert marked.to_list() == [
        [{"key": KEY, "value": b"\xff"}],
        [],
        [{"key": "a", "value": b"1"}, {"key": KEY, "value": b"\xfe"}],
        [{"key": "a", "value": b"1"}],
        [{"key": "a", "value": None}, {"key": KEY, "value": b"\xfd"}],
    ]
    sent = [name for name, _ in headers_to_send(marked.to_list()[2], id_="i", hop="h")]
    assert sent == ["a", ID, HOP]
    plain = pl.Series("headers", [None, [{"key": "a", "value": b"1"}]], dtype=HEADERS)
    assert with_unreadable_keys(plain, pl.Series([b"k", None]), pl.Series(["k", None])).to_list() == plain.to_list()
