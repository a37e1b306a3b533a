"""Windows of records for whole frames, against the rules for one record."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from reference.windows import Window, hopping, merged, session

from tidemark.kernels.aggregates.aggregation import Aggregation, merged_sessions
from tidemark.kernels.aggregates.functions import aggregate_functions
from tidemark.kernels.aggregates.windows import in_windows, is_closed
from tidemark.kernels.columns.schemas import META_SCHEMA
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.settings.windows import Shape, Windows
from tidemark.semantics.watermark import is_window_late

SCHEMA = {"device": pl.String(), "v": pl.Int64(), **META_SCHEMA}
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-40, 40)), max_size=10)
GAP = 7


def frame(records: list[tuple[str, int]]) -> pl.DataFrame:
    rows = [
        (device, 1, None, at_ms, 0, n, 0, False, None, at_ms, False, None) for n, (device, at_ms) in enumerate(records)
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@given(RECORDS, st.integers(1, 9), st.integers(1, 9), st.integers(-9, 9))
def test_a_record_is_in_the_windows_that_the_rule_says(records, hop_ms, more_ms, offset_ms):
    windows = Windows(shape=Shape.HOPPING, size_ms=hop_ms + more_ms, hop_ms=hop_ms, offset_ms=offset_ms)
    rows = in_windows(frame(records), windows).select("_offset", "window_start", "window_end").rows()
    expected = [
        (offset, window.start_ms, window.end_ms)
        for offset, (_, at_ms) in enumerate(records)
        for window in hopping(at_ms, size_ms=windows.size_ms, hop_ms=hop_ms, offset_ms=offset_ms)
    ]
    assert rows == expected


@given(st.integers(-20, 20), st.none() | st.integers(-20, 20), st.integers(0, 9))
def test_a_window_is_closed_when_the_rule_says(end_ms, watermark_ms, allowed_lateness_ms):
    windows = Windows(shape=Shape.TUMBLING, size_ms=5, hop_ms=5, allowed_lateness_ms=allowed_lateness_ms)
    closed = pl.DataFrame({"window_end": [end_ms]}).select(is_closed(windows, watermark_ms)).item()
    assert closed is is_window_late(end_ms, watermark_ms, allowed_lateness_ms=allowed_lateness_ms)


KERNEL = Aggregation(
    Aggregate(
        name="s",
        key=("device",),
        windows=Windows(shape=Shape.SESSION, size_ms=GAP, hop_ms=GAP),
        aggregates={"n": ("count", "*")},
        select={"n": "n"},
    ),
    aggregate_functions({"n": ("count", "*")}, SCHEMA),
    SCHEMA,
)


def sessions_of(records: list[tuple[str, int]]) -> dict[tuple[str, int, int], int]:
    """Records per device and session, by merging windows one after the other."""
    found = {}
    for device in {device for device, _ in records}:
        times = [at_ms for d, at_ms in records if d == device]
        for window in merged(session(at_ms, gap_ms=GAP) for at_ms in times):
            inside = [t for t in times if window.start_ms <= t and t + GAP <= window.end_ms]
            found[device, window.start_ms, window.end_ms] = len(inside)
    return found


@given(RECORDS, st.integers(0, 10))
def test_sessions_are_the_same_however_their_records_came(records, cut):
    windows = KERNEL.operator.windows
    assert windows is not None
    none = pl.DataFrame(schema=KERNEL.state_schema)
    first = merged_sessions(KERNEL, windows, none, frame(records[:cut]), None)
    assert first.gone.is_empty()
    second = merged_sessions(KERNEL, windows, first.moved, frame(records[cut:]), None)
    replaced = [*second.moved["_key"], *second.gone["_key"]]
    states = pl.concat([first.moved.filter(~pl.col("_key").is_in(replaced)), second.moved])
    seen = {(row["device"], row["window_start"], row["window_end"]): row["@n"] for row in states.to_dicts()}
    assert seen == sessions_of(records)


def test_a_record_between_two_sessions_merges_them():
    windows = KERNEL.operator.windows
    assert windows is not None
    none = pl.DataFrame(schema=KERNEL.state_schema)
    two = merged_sessions(KERNEL, windows, none, frame([("a", 0), ("a", 10)]), None).moved
    one = merged_sessions(KERNEL, windows, two, frame([("a", 5)]), None)
    assert one.moved.select("window_start", "window_end", "@n").rows() == [(0, 17, 3)]
    assert one.gone.select("window_start", "_deleted").rows() == [(10, True)]


def test_a_record_is_late_only_if_no_open_session_takes_it():
    windows = KERNEL.operator.windows
    assert windows is not None
    open_ = merged_sessions(KERNEL, windows, pl.DataFrame(schema=KERNEL.state_schema), frame([("a", 10)]), None).moved
    both = merged_sessions(KERNEL, windows, open_, frame([("a", 5), ("b", 5)]), 12)
    assert both.moved.select("device", "window_start", "window_end").rows() == [("a", 5, 17)]
    assert both.late["device"].to_list() == ["b"]
    assert Window(5, 12).end_ms - 1 <= 12
