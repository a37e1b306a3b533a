"""Outstanding streaming windows: what a batch closes, and what it pays for."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidemark.semantics.progress import StreamProgress
from tidemark.semantics.watermark import is_window_late
from tidemark.stream.journal.notes import as_json
from tidemark.stream.journal.streaming_windows import StreamingWindows

BATCHES = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 30).map(lambda n: n * 10), st.integers(1, 3)), st.integers(0, 80)),
    max_size=8,
)


def played(batches: list[tuple[dict[int, int], int]], most: int) -> list[list[tuple[int, int | None]]]:
    """Per batch the windows that it closes: start and records."""
    windows, was = StreamingWindows(window_ms=10, most=most), StreamProgress()
    found = []
    for records, forward_ms in batches:
        watermark_ms = (was.watermark_ms or 0) + forward_ms
        now = msgspec.json.decode(as_json(replace(was, watermark_ms=watermark_ms)), type=StreamProgress)
        was, closed = windows.count(windows.with_opened(now, records), {"a": records})
        assert len(was.windows) <= most
        assert len(was.records["a"]) <= 2 * most
        found.append(sorted((w.start_ms, w.records and w.records["a"]) for w in closed))
    return found


@given(BATCHES)
def test_a_window_is_closed_once_with_all_its_records(batches):
    expected, open_, watermark_ms = [], {}, None
    for records, forward_ms in batches:
        watermark_ms = (watermark_ms or 0) + forward_ms
        open_ |= {start: open_.get(start, 0) + n for start, n in records.items()}
        passed = sorted(start for start in open_ if is_window_late(start + 10, watermark_ms))
        expected.append([(start, open_.pop(start)) for start in passed])
    assert played(batches, most=1_000) == expected


@given(BATCHES, st.integers(1, 4))
def test_windows_that_are_not_measured_are_closed_all_the_same(batches, most):
    def closed(most: int) -> list[list[int]]:
        return [[start for start, _ in of_batch] for of_batch in played(batches, most)]

    assert closed(most) == closed(1_000)


def test_so_many_of_the_newest_windows_are_measured():
    (closed,) = played([({0: 1, 10: 2, 20: 3, 60: 4}, 0)], most=2)[:1]
    assert closed == []
    *_, closed = played([({0: 1, 10: 2, 20: 3, 60: 4}, 0), ({0: 5, 20: 1}, 69)], most=2)
    assert closed == [(0, None), (10, None), (20, 4), (60, 4)]


def test_progress_is_small_however_many_windows_are_open():
    windows = StreamingWindows(window_ms=10, most=100)
    starts = dict.fromkeys(range(0, 1000000, 10), 1)
    now, closed = windows.count(windows.with_opened(StreamProgress(), starts), {"a": starts})
    assert (closed, now.uncounted, len(now.windows)) == ([], ((0, 998_990),), 100)
    assert len(as_json(now)) < 5_000
