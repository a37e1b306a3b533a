"""What a batch read and made visible, counted in rows of records that came about alike."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tidemark.kernels.records.read_ages import (
    FIRSTS,
    LOOKS,
    OPEN_SPANS,
    PLANS,
    READS,
    RESULTS,
    SOURCE_RECORDS,
    WRITTEN_RECORDS,
    cell_of,
    first_records,
    passing_records,
    places_of,
    results_by_row,
    slow_keys,
    source_reads,
    summed,
    written_reads,
)

DECIDED_MS = 100_000
LENGTHS = st.integers(-(10**9), 10**9)
RECORDS = [
    (0, 10, 90_000, 95_000),
    (0, 11, 90_010, 95_010),
    (0, 12, 90_020, 95_020),
    (0, 13, 90_030, 95_030),
    (0, 14, 90_030, 90_040),
    (1, 7, 90_000, 95_000),
    (1, 8, 100_500, 95_000),
]
"""Ages of 10 s and waits of 5 s, which lie in one cell each; a wait of 10 s; and an event time of the future."""


def frame(rows: list[tuple[object, ...]], schema: pl.Schema) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


def shown(rows: pl.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return rows.select(columns).rows()


@given(st.lists(LENGTHS, min_size=2, max_size=2))
def test_lengths_in_a_cell_differ_by_4_percent_and_40_ms(lengths):
    cells = pl.DataFrame({"ms": lengths}).select(cell_of(pl.col("ms"))).to_series()
    least, most = sorted(map(abs, lengths))
    if cells[0] == cells[1]:
        assert (lengths[0] < 0) == (lengths[1] < 0)
        assert most - least <= 0.0405 * (least + 1_000)
    else:
        assert lengths[0] != lengths[1]


def test_records_that_came_about_alike_are_one_row():
    """The plan of batch 3 left offsets 10 and 11 behind, and that of batch 4 12, too. A transaction held 12 back."""
    left = frame([(0, 12, 3), (0, 13, 4), (0, 13, 5)], PLANS)
    spans = frame([(0, 12, 13)], OPEN_SPANS)
    rows, numbers = source_reads(frame(RECORDS, SOURCE_RECORDS), DECIDED_MS, plans=left, open_spans=spans)
    assert rows.columns == ["partition", *READS]
    assert shown(rows, "partition", "n", "age_ms", "min_age_ms", "wait_ms", "left_by", "in_transaction") == [
        (0, 2, 10_000 + 9_990, 9_990, 5_000 + 4_990, 3, False),
        (0, 1, 9_980, 9_980, 4_980, 4, True),
        (0, 1, 9_970, 9_970, 4_970, None, False),
        (0, 1, 9_970, 9_970, 9_960, None, False),
        (1, 1, -500, -500, 5_000, None, False),
        (1, 1, 10_000, 10_000, 5_000, None, False),
    ]
    assert numbers.to_list() == [0, 0, 1, 2, 3, 5, 4]


def test_what_nobody_stamped_lies_between_two_looks():
    """Looks 3 s and 1 s before this one saw the partition until 11 and 13, and this one until 15."""
    looks = frame([(0, 11, 3_000), (0, 13, 1_000), (0, 13, 500), (0, 15, 0)], LOOKS)
    records = frame([(*record[:3], None) for record in RECORDS if record[0] == 0], SOURCE_RECORDS)
    rows, _ = source_reads(records, DECIDED_MS, looks=looks)
    assert shown(rows, "n", "wait_ms", "seen_before_ms", "excluded_before_ms") == [
        (1, None, 3_000, None),
        (2, None, 1_000, 3_000),
        (2, None, 0, 500),
    ]


def test_records_of_a_hop_keep_the_rows_of_their_writer():
    # Results that were held reflect rows of earlier batches, and of one it is not known.
    written = [(5, 90_000, 5, 1), (5, 90_000, 5, None), (5, 99_000, 5, 1), (6, 99_000, 6, 2**40)]
    records = frame([(0, *record) for record in written], WRITTEN_RECORDS)
    rows, numbers = written_reads(records, DECIDED_MS, plans=frame([(0, 6, 2)], PLANS))
    assert rows.columns == ["partition", *READS]
    assert shown(rows, "writer_batch", "writer_row", "n", "age_ms", "wait_ms", "left_by") == [
        (5, None, 1, 10_000, None, 2),
        (5, 1, 2, 11_000, None, 2),
        (6, 2**40, 1, 1_000, None, None),
    ]
    assert numbers.to_list() == [1, 0, 1, 2]


def test_the_first_record_of_each_partition_that_passed_is_kept():
    """Windows waited for 90,000, 90,015, 90,020 and 100,000. Partition 0 had reached 90,000 before."""
    instants_ms = pl.Series([90_015, 90_000, 90_020, 100_000, 200_000])
    newest_ms = pl.DataFrame({"partition": [0], "newest_ms": [90_000]}, schema_overrides={"partition": pl.Int32()})
    left = frame([(0, 12, 3)], PLANS)
    rows = first_records(frame(RECORDS, SOURCE_RECORDS), instants_ms, newest_ms, DECIDED_MS, plans=left)
    assert rows.columns == ["partition", *FIRSTS]
    assert shown(rows, "partition", "age_ms", "reached_age_ms", "wait_ms", "left_by") == [
        (0, 9_980, 9_990, 4_980, None),
        (1, 10_000, None, 5_000, None),
        (1, -500, 10_000, 5_000, None),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60))),
    st.lists(st.integers(-1, 9), min_size=1),
    st.sampled_from([None, 0, 25]),
)
def test_the_first_records_are_among_those_that_may_be(rows, windows, newest_ms):
    """Windows of 10 ms wait for 3 ms."""
    rows = sorted(rows, key=lambda row: row[0])
    records = frame([(part, n, at_ms, at_ms) for n, (part, at_ms) in enumerate(rows)], SOURCE_RECORDS)
    passing = passing_records(records, size_ms=10, after_ms=3)
    instants_ms = pl.Series([10 * window + 3 for window in windows])
    before = pl.DataFrame([(0, newest_ms)], {"partition": pl.Int32(), "newest_ms": pl.Int64()}, orient="row")
    known = instants_ms, before.drop_nulls(), DECIDED_MS
    assert first_records(passing, *known).equals(first_records(records, *known))
    assert passing.height <= 2 * (1 + 7)


def test_results_are_counted_by_the_row_that_they_came_from():
    """Two of row 7 are not neighbours, the arrival of one that was held is not known, nor is the row of the last."""
    made = [(7, 90_000, 95_000), (2, 80_000, None), (2, 80_010, 85_000), (7, 90_010, 95_010), (None, 90_010, None)]
    schema = pl.Schema({"row": pl.Int64(), "event_ms": pl.Int64(), "arrived_ms": pl.Int64()})
    rows = results_by_row(frame(made, schema), DECIDED_MS)
    assert rows.schema == RESULTS
    assert rows.rows() == [(None, 1, 9_990, None), (2, 2, 39_990, None), (7, 2, 19_990, 9_990)]
    of_shards = [results_by_row(frame(part, schema), DECIDED_MS) for part in (made[:2], made[2:])]
    assert summed(pl.concat(of_shards), "row").equals(rows)


def test_a_result_finds_its_record_by_partition_and_offset():
    asked = pl.DataFrame(
        {"partition": [1, 0, 0, 1], "offset": [7, 14, 15, 9]}, schema_overrides={"partition": pl.Int32()}
    )
    records = frame(RECORDS, SOURCE_RECORDS)
    assert places_of(records, asked).to_list() == [5, 4, None, None]
    assert places_of(records.clear(), asked).to_list() == [None] * 4


def test_the_keys_with_most_old_records_of_each_partition_are_named():
    """Of `a` two are older than 10 s, of `b` and `d` one. `c` is 10 s old, `e` comes after three, one is no text."""
    made = [
        (0, b"a", 80_000), (0, b"b", 81_000), (0, b"a", 89_999), (0, b"a", 95_000), (0, b"c", 90_000), (0, b"e", 1),
        (0, b"d", 2), (0, None, 3), (1, b"\xff", 4), (1, b"a", 5),
    ]  # fmt: skip
    schema = pl.Schema({"partition": pl.Int32(), "key": pl.Binary(), "event_ms": pl.Int64()})
    rows = slow_keys(frame(made, schema), 10_000, DECIDED_MS)
    assert rows.rows() == [
        (0, "a", 2, 30_001, 20_000), (0, "b", 1, 19_000, 19_000), (0, "d", 1, 99_998, 99_998),
        (1, "a", 1, 99_995, 99_995),
    ]  # fmt: skip


def test_without_records_there_are_no_rows():
    nothing = SOURCE_RECORDS.to_frame()
    rows, numbers = source_reads(nothing, DECIDED_MS)
    newest_ms = pl.DataFrame(schema={"partition": pl.Int32(), "newest_ms": pl.Int64()})
    assert rows.is_empty()
    assert numbers.is_empty()
    assert first_records(nothing, pl.Series([1]), newest_ms, DECIDED_MS).is_empty()
    assert written_reads(WRITTEN_RECORDS.to_frame(), DECIDED_MS)[0].is_empty()
