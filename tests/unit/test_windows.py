from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.windows import Window, hopping, merged, session, tumbling

from tidemark.errors import InvalidArgument
from tidemark.kernels.aggregates.windows import in_windows
from tidemark.model.settings.windows import Shape, Windows

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NEW_YORK = ZoneInfo("America/New_York")
# Clocks that go forward at midnight, by half an hour, back at midnight, and one that left a day out.
ZONES = [
    NEW_YORK,
    *map(ZoneInfo, ["America/Sao_Paulo", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia", "UTC"]),
]
SIZES = st.sampled_from([15 * MINUTE, 20 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY])


def at(text, zone=UTC, fold=0):
    return int(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp() * 1000)


TRANSITIONS = [
    *("2024-03-10T07:00", "2024-11-03T06:00"),  # New York
    *("2018-02-18T02:00", "2018-11-04T03:00"),  # São Paulo
    *("2024-04-06T15:00", "2024-10-05T15:30"),  # Lord Howe
    *("2024-03-10T05:00", "2024-11-03T05:00"),  # Havana
    "2011-12-30T10:00",  # Apia
]
INSTANTS = st.builds(int.__add__, st.sampled_from([at(text) for text in TRANSITIONS]), st.integers(-2 * DAY, 2 * DAY))


def day(timestamp_ms, zone):
    return tumbling(timestamp_ms, size_ms=DAY, zone=zone)


LOCAL = st.sampled_from([(zone.key, zone) for zone in ZONES])
HOPS = st.sampled_from([(HOUR, HOUR), (15 * MINUTE, 15 * MINUTE), (DAY, DAY), (7 * DAY, DAY), (6 * HOUR, 2 * HOUR)])


@given(st.lists(INSTANTS, max_size=8), LOCAL, HOPS, st.sampled_from([0, 15 * MINUTE, 9 * HOUR]))
def test_whole_columns_have_the_windows_of_a_local_clock(instants, local, lengths, offset_ms):
    (name, zone), (size_ms, hop_ms) = local, lengths
    windows = Windows(shape=Shape.HOPPING, size_ms=size_ms, hop_ms=hop_ms, offset_ms=offset_ms, timezone=name)
    frame = pl.DataFrame({"_timestamp_ms": instants}, schema={"_timestamp_ms": pl.Int64()})
    expected = [
        (at_ms, window.start_ms, window.end_ms)
        for at_ms in instants
        for window in hopping(at_ms, size_ms=size_ms, hop_ms=hop_ms, offset_ms=offset_ms, zone=zone)
    ]
    assert in_windows(frame, windows).rows() == expected


def test_windows_are_aligned_to_the_epoch():
    assert tumbling(12_345, size_ms=5_000) == Window(10_000, 15_000)
    assert tumbling(10_000, size_ms=5_000) == Window(10_000, 15_000)
    assert tumbling(-1, size_ms=5_000) == Window(-5_000, 0)


def test_or_to_an_offset():
    assert tumbling(12_345, size_ms=5_000, offset_ms=3_000) == Window(8_000, 13_000)
    assert tumbling(12_345, size_ms=5_000, offset_ms=-2_000) == Window(8_000, 13_000)


def test_a_window_is_half_open():
    window = Window(10, 20)
    assert [window.contains(t) for t in (9, 10, 19, 20)] == [False, True, True, False]


def test_hopping_windows_overlap_or_leave_gaps():
    assert hopping(12, size_ms=10, hop_ms=5) == (Window(5, 15), Window(10, 20))
    assert hopping(12, size_ms=10, hop_ms=4) == (Window(4, 14), Window(8, 18), Window(12, 22))
    assert hopping(12, size_ms=5, hop_ms=20) == ()
    assert hopping(22, size_ms=5, hop_ms=20) == (Window(20, 25),)


@pytest.mark.parametrize(("size_ms", "hop_ms"), [(0, 5), (5, 0), (-5, 5)])
def test_a_window_has_a_length(size_ms, hop_ms):
    with pytest.raises(InvalidArgument, match=f"got {size_ms} and {hop_ms}"):
        hopping(0, size_ms=size_ms, hop_ms=hop_ms)
    with pytest.raises(InvalidArgument, match="got 0"):
        session(0, gap_ms=0)


def test_a_day_in_new_york_has_23_24_or_25_hours():
    spring, summer, autumn = (day(at(text), NEW_YORK) for text in ("2024-03-10T20", "2024-07-01T12", "2024-11-03T20"))
    assert spring == Window(at("2024-03-10", NEW_YORK), at("2024-03-11", NEW_YORK))
    assert [window.end_ms - window.start_ms for window in (spring, summer, autumn)] == [23 * HOUR, 24 * HOUR, 25 * HOUR]


def test_an_hour_that_comes_twice_is_one_window():
    first, second = (at("2024-11-03T01:30", NEW_YORK, fold) for fold in (0, 1))
    window = tumbling(first, size_ms=HOUR, zone=NEW_YORK)
    assert window == tumbling(second, size_ms=HOUR, zone=NEW_YORK)
    assert window == Window(at("2024-11-03T01:00", NEW_YORK), at("2024-11-03T02:00", NEW_YORK))
    assert window.end_ms - window.start_ms == 2 * HOUR


def test_a_window_of_an_hour_that_is_left_out_has_no_length():
    jump = at("2024-03-10T07")
    assert tumbling(jump - 1, size_ms=HOUR, zone=NEW_YORK) == Window(jump - HOUR, jump)
    assert tumbling(jump, size_ms=HOUR, zone=NEW_YORK) == Window(jump, jump + HOUR)


def test_a_day_without_midnight_begins_at_the_jump_of_the_clock():
    jump = at("2018-11-04T03")
    assert day(jump, ZONES[1]) == Window(jump, jump + 23 * HOUR)
    assert day(jump - 1, ZONES[1]).end_ms == jump


def test_a_boundary_in_skipped_time_counts_at_the_jump():
    jump = at("2024-10-05T15:30")
    assert tumbling(jump, size_ms=20 * MINUTE, zone=ZONES[2]) == Window(jump, jump + 10 * MINUTE)
    assert tumbling(jump - 1, size_ms=20 * MINUTE, zone=ZONES[2]).end_ms == jump


def test_a_midnight_that_comes_twice_begins_one_day():
    twice = [at("2024-11-03T00:30", ZONES[3], fold) for fold in (0, 1)]
    assert (
        day(twice[0], ZONES[3])
        == day(twice[1], ZONES[3])
        == Window(at("2024-11-03", ZONES[3]), at("2024-11-04", ZONES[3]))
    )


@given(INSTANTS, SIZES, st.integers(-DAY, DAY), st.sampled_from([None, *ZONES]))
def test_every_instant_is_in_exactly_one_tumbling_window(timestamp_ms, size_ms, offset_ms, zone):
    how = {"size_ms": size_ms, "offset_ms": offset_ms, "zone": zone}
    window = tumbling(timestamp_ms, **how)
    assert window.contains(timestamp_ms)
    assert tumbling(window.start_ms, **how) == tumbling(window.end_ms - 1, **how) == window
    assert tumbling(window.end_ms, **how).start_ms == window.end_ms
    assert tumbling(window.start_ms - 1, **how).end_ms == window.start_ms


@given(INSTANTS, SIZES, st.sampled_from([MINUTE * 10, HOUR]), st.sampled_from([None, *ZONES]))
def test_an_instant_is_in_all_hopping_windows_that_contain_it(timestamp_ms, size_ms, hop_ms, zone):
    found = hopping(timestamp_ms, size_ms=size_ms, hop_ms=hop_ms, zone=zone)
    assert all(window.contains(timestamp_ms) for window in found)
    assert list(found) == sorted(found)
    if zone is None:
        first = (timestamp_ms - size_ms) // hop_ms * hop_ms
        candidates = [Window(s, s + size_ms) for s in range(first, timestamp_ms + 1, hop_ms)]
        assert list(found) == [window for window in candidates if window.contains(timestamp_ms)]


def test_sessions_that_overlap_or_touch_are_one():
    records = [session(t, gap_ms=10) for t in (0, 30, 8, 18, 41)]
    assert merged(records) == (Window(0, 28), Window(30, 40), Window(41, 51))
    assert merged([Window(0, 50), Window(10, 20)]) == (Window(0, 50),)
    assert merged([]) == ()


@given(st.lists(st.integers(0, 60), max_size=10), st.integers(1, 12))
def test_records_share_a_session_when_no_gap_is_longer(timestamps, gap_ms):
    sessions = merged(session(t, gap_ms=gap_ms) for t in timestamps)
    ordered = sorted(timestamps)
    breaks = sum(after - before > gap_ms for before, after in pairwise(ordered))
    assert len(sessions) == (breaks + 1 if timestamps else 0)
    assert all(sum(window.contains(t) for window in sessions) == 1 for t in timestamps)


@given(st.lists(st.integers(0, 60), max_size=10), st.integers(0, 10))
def test_sessions_may_be_merged_in_any_parts(timestamps, at):
    sessions = [session(t, gap_ms=5) for t in timestamps]
    assert merged([*merged(sessions[:at]), *merged(sessions[at:])]) == merged(sessions)
