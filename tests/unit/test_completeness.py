"""The rule of complete intervals, with values worked out by hand."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import polars as pl
import pytest

from tidemark.kernels.updates.facts import per_interval
from tidemark.model.settings.declared_tables import TableForm, Values
from tidemark.model.settings.windows import COMPLETE, intervals_of
from tidemark.semantics import completeness
from tidemark.semantics.completeness import IntervalCount, Intervals, PathTime, complete, newest_complete, path_time
from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress, TableIntervals
from tidemark.stream.journal.notes import as_json

S = 1_000
H = 3_600_000
TENS = Intervals(10 * S)
BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1_000)


def record(n: int = 1, *, place: tuple[int, int] = (0, 0)) -> IntervalCount:
    return IntervalCount(n, n, place)


def passed(end_s: float | None, **more: object) -> PathTime:
    return PathTime(passed_ms=None if end_s is None else round(end_s * S), **more)


# In 2026 Berlin's clock goes from 2 to 3 o'clock on 29 March, and from 3 to 2 o'clock on 25 October.
@pytest.mark.parametrize(
    ("day", "next_day", "hours"),
    [("2026-03-28", "2026-03-29", 24), ("2026-03-29", "2026-03-30", 23), ("2026-10-25", "2026-10-26", 25)],
)
def test_a_local_day_has_the_hours_of_its_clock(day, next_day, hours):
    days, start = Intervals(24 * H, BERLIN), at(f"{day}T00:00", BERLIN)
    assert [*days.between(start, at(f"{next_day}T00:00", BERLIN))] == [(start, start + hours * H)]
    assert {days.start_of(start), days.start_of(start + hours * H - 1)} == {start}
    assert len([*Intervals(H, BERLIN).between(start, start + hours * H)]) == hours, "each hour has 3,600 s"


def test_parts_of_a_long_day_are_counted_from_midnight():
    start = at("2026-10-25T00:00", BERLIN)
    parts = [(end - begin) // H for begin, end in Intervals(6 * H, BERLIN).between(start, start + 25 * H)]
    assert parts == [6, 6, 6, 6, 1], "the last one ends with its day"
    assert Intervals(6 * H, BERLIN).start_of(start + 25 * H - 1) == start + 24 * H


def test_intervals_without_a_zone_are_those_of_utc():
    assert Intervals(7 * H).start_of(15 * H) == 14 * H
    assert [*Intervals(7 * H).between(0, 20 * H)] == [(0, 7 * H), (7 * H, 14 * H)]


@pytest.mark.parametrize("every", [H, 6 * H, 24 * H], ids=["hours", "quarters", "days"])
@pytest.mark.parametrize("zone", [None, BERLIN, "Asia/Kolkata", "America/Havana"])
def test_the_kernel_finds_the_intervals_of_the_rule(every, zone):
    # Half hours of two days on which clocks change in Berlin and Havana; the records are in pairs.
    days = [at("2026-10-24T20:00"), at("2026-03-28T20:00"), at("2026-11-01T00:00"), at("2026-03-08T00:00")]
    times = [start + n * H // 2 for start in days for n in range(80)]
    rule = Intervals(every, zone)
    frame = pl.DataFrame({"_timestamp_ms": times, "n": [2] * len(times)}, schema_overrides={"n": pl.UInt32})
    results = frame.with_columns(
        _partition=pl.lit(1, pl.Int32), _offset=pl.int_range(pl.len()).cast(pl.Int64), _repeated=pl.lit(value=False)
    )
    expected: dict[int, IntervalCount] = {}
    for offset, time in enumerate(times):
        start = rule.start_of(time)
        expected[start] = expected.get(start, IntervalCount()).plus(IntervalCount(2, 1, (1, offset)))
        assert start <= time < rule.end_of(start)
    assert per_interval(frame, results, rule) == expected


def test_an_interval_completes_when_time_has_passed_its_end():
    now, done = complete(TENS, None, {0: record(3)}, passed(9.999))
    assert (done, now.up_to_ms) == ([], 0)
    now, done = complete(TENS, now, {10 * S: record(2)}, passed(10))
    assert [(each.start_ms, each.end_ms, each.records, each.emitted) for each in done] == [(0, 10 * S, 3, 3)]
    assert (now.up_to_ms, now.counts) == (10 * S, {10 * S: (2, 2)})
    assert complete(TENS, now, {}, passed(19.999))[1] == [], "once"


def test_time_has_passed_an_end_and_the_lateness_after_it():
    part = PartitionProgress(watermark_ms=14_999)
    source = {"events": InputProgress(partitions={0: part}, watermark_ms=14_999)}
    found = path_time(source, source, 14_999, allowed_lateness_ms=5 * S, held_by=None, since_ms=0, blocked_by=None)
    # At 14.999 s the last instant before 10 s is 5 s ago: a record of it is late now.
    assert (found.passed_ms, found.fastest_ms, found.idle_ms) == (10 * S, 10 * S, None)


def test_intervals_without_records_complete_as_well():
    _, done = complete(TENS, None, {0: record(), 30 * S: record()}, passed(40))
    assert [(each.start_ms // S, each.records) for each in done] == [(0, 1), (10, 0), (20, 0), (30, 1)]


def test_nothing_completes_before_the_first_record():
    now, done = complete(TENS, None, {}, passed(100))
    assert (now.first_ms, done) == (None, [])
    # The first record is behind time already: its interval is complete with it.
    _, done = complete(TENS, now, {50 * S: record()}, passed(70))
    assert [each.start_ms // S for each in done] == [50, 60]


def test_a_late_result_reopens_its_interval_once():
    now, _ = complete(TENS, None, {0: record()}, passed(20))
    now, (again,) = complete(TENS, now, {0: record(2, place=(1, 7))}, passed(20))
    assert (again.start_ms, again.is_reopened, again.records, again.first) == (0, True, 2, (1, 7))
    assert complete(TENS, now, {}, passed(20))[1] == []


def test_a_late_record_without_a_result_reopens_nothing():
    now, _ = complete(TENS, None, {0: record()}, passed(20))
    assert complete(TENS, now, {0: IntervalCount(1)}, passed(20))[1] == []


def test_a_record_before_the_first_interval_is_no_reopening():
    now, _ = complete(TENS, None, {40 * S: record()}, passed(50))
    now, done = complete(TENS, now, {20 * S: record()}, passed(50))
    assert [(each.start_ms // S, each.records, each.is_reopened) for each in done] == [(20, 1, False), (30, 0, False)]
    _, (again,) = complete(TENS, now, {30 * S: record()}, passed(50))
    assert again.is_reopened


def test_an_interval_names_what_it_waited_for_longest():
    now, _ = complete(TENS, None, {0: record()}, passed(5))
    for holder, since in (("events/2", 4), ("events/1", 6), ("events/2", 3)):
        time = passed(5, fastest_ms=10 * S, held_by=holder, since_ms=since * S)
        now, done = complete(TENS, now, {}, time)
        assert done == []
    _, (one,) = complete(TENS, now, {}, passed(10))
    assert (one.waited_for, one.waited_ms) == ("events/2", 7 * S)


def test_no_interval_waits_before_a_path_has_passed_it():
    now, _ = complete(TENS, None, {0: record()}, passed(5))
    _, (one,) = complete(TENS, now, {}, passed(10, fastest_ms=9_999, held_by="events/2", since_ms=4 * S))
    assert (one.waited_for, one.waited_ms) == (None, 0)


@pytest.mark.parametrize(("idle_s", "by_idleness"), [(None, False), (10, False), (9.999, True)])
def test_an_idle_partition_that_did_not_pass_completes_it(idle_s, by_idleness):
    idle_ms = None if idle_s is None else round(idle_s * S)
    _, (one,) = complete(TENS, None, {0: record()}, passed(10, idle_ms=idle_ms))
    assert one.by_idleness is by_idleness


def test_a_partition_without_a_record_is_behind_every_end():
    empty = PartitionProgress(activity=Activity.IDLE)
    source = {"events": InputProgress(partitions={0: PartitionProgress(watermark_ms=20 * S), 1: empty})}
    found = path_time(source, source, 20 * S, allowed_lateness_ms=0, held_by=None, since_ms=0, blocked_by=None)
    assert found.idle_ms == completeness.NEVER


def test_held_results_keep_passed_intervals_open():
    now, done = complete(TENS, None, {0: record()}, passed(10, blocked_by="newest"))
    assert (done, now.blocked_by) == ([], "newest")
    _, (one,) = complete(TENS, now, {}, passed(10, fastest_ms=10 * S, since_ms=2 * S, held_by="events/0"))
    assert (one.waited_for, one.waited_ms) == ("newest", 2 * S)


def test_time_that_goes_back_leaves_intervals_complete():
    now, _ = complete(TENS, None, {0: record()}, passed(20))
    assert complete(TENS, now, {}, passed(5)) == (now, [])


def test_other_intervals_begin_where_the_last_ones_ended():
    now, _ = complete(TENS, None, {0: record()}, passed(20))
    longer = Intervals(30 * S)
    now, done = complete(longer, now, {20 * S // (30 * S): record()}, passed(29))
    assert (done, now.up_to_ms, now.every_ms) == ([], 0, 30 * S)
    assert [each.end_ms // S for each in complete(longer, now, {}, passed(30))[1]] == [30]


def test_intervals_open_at_a_change_are_not_counted():
    now, _ = complete(TENS, None, {0: record(), 40 * S: record()}, passed(20))
    longer = Intervals(30 * S)
    _, done = complete(longer, now, {30 * S: record(), 60 * S: record(2)}, passed(90))
    # Those from 0 s and from 30 s have records of before.
    assert [(each.start_ms // S, each.records) for each in done] == [(0, None), (30, None), (60, 2)]
    now, _ = complete(TENS, None, {0: record()}, passed(30))
    assert [each.records for each in complete(longer, now, {30 * S: record()}, passed(60))[1]] == [1]


def test_after_a_change_the_interval_before_is_the_newest():
    now, _ = complete(TENS, None, {0: record()}, passed(20))
    now, _ = complete(Intervals(30 * S), now, {}, passed(29))
    assert newest_complete(now) == (10 * S, 20 * S)
    assert msgspec.json.decode(as_json(now), type=TableIntervals) == now
    now, _ = complete(Intervals(30 * S), now, {}, passed(30))
    assert newest_complete(now) == (0, 30 * S)


def test_a_late_record_after_a_change_takes_nothing_back():
    now, _ = complete(TENS, None, {0: record()}, passed(50))
    longer = Intervals(30 * S)
    now, _ = complete(longer, now, {}, passed(50, blocked_by="newest"))
    now, done = complete(longer, now, {0: record()}, passed(50, blocked_by="newest"))
    # The record is added to those before the change, which are complete, and whose records had another length.
    assert [(each.start_ms // S, each.end_ms // S, each.records) for each in done] == [(0, 30, None)]
    assert (now.up_to_ms, newest_complete(now)) == (30 * S, (40 * S, 50 * S))
    now, done = complete(longer, now, {0: record()}, passed(60))
    assert [(each.start_ms // S, each.is_reopened) for each in done] == [(0, True), (30, False)]
    assert newest_complete(now) == (30 * S, 60 * S)


def test_a_record_of_a_wrong_year_makes_few_rows(monkeypatch):
    monkeypatch.setattr(completeness, "MOST", 3)
    now, done = complete(TENS, None, {0: record(), 900 * S: record(4)}, passed(1_000))
    assert [(each.start_ms // S, each.records) for each in done] == [(0, 1), (10, 0), (20, 0), (900, 4)]
    assert now.up_to_ms == 1_000 * S


def test_of_too_many_open_intervals_the_later_are_not_counted(monkeypatch):
    monkeypatch.setattr(completeness, "MOST", 2)
    counts = {start * S: record() for start in (0, 10, 20, 30)}
    now, _ = complete(TENS, None, counts, passed(None))
    assert (now.counts, now.uncounted) == ({0: (1, 1), 10 * S: (1, 1)}, (20 * S, 30 * S))
    monkeypatch.setattr(completeness, "MOST", 9)
    _, done = complete(TENS, now, {20 * S: record()}, passed(40))
    assert [each.records for each in done] == [1, 1, None, None]


def test_the_journal_keeps_the_intervals():
    table = TableIntervals(
        every_ms=H, timezone=BERLIN, first_ms=0, up_to_ms=H, counts={H: (2, 1)}, uncounted=(2 * H, 3 * H),
        waits={H: {"events/1": 5}}, blocked_by="newest",
    )  # fmt: skip
    progress = StreamProgress(complete={"board": table, "new": TableIntervals(every_ms=H)})
    assert msgspec.json.decode(as_json(progress), type=StreamProgress) == progress


def read(written: object) -> Values:
    return TableForm(keys=(COMPLETE,)).read("play.toml", "operators.board", {"complete": written})


@pytest.mark.parametrize(
    ("written", "intervals"),
    [
        ({"every": "1 h"}, Intervals(H)),
        ({"every": "7 h"}, Intervals(7 * H)),
        ({"every": "1 d", "timezone": BERLIN}, Intervals(24 * H, BERLIN)),
        ({"every": "15 min", "timezone": BERLIN}, Intervals(H // 4, BERLIN)),
    ],
)
def test_a_topology_names_the_length_and_the_zone(written, intervals):
    assert intervals_of(read(written)[COMPLETE]) == intervals


@pytest.mark.parametrize(
    ("written", "mistake"),
    [
        ("1 h", "operators.board.complete: is '1 h'; write complete = { every = \"1 h\", timezone = "),
        ({}, 'operators.board.complete.every: is missing; write every = "1 h"'),
        ({"timezone": BERLIN}, 'operators.board.complete.every: is missing; write every = "1 h"'),
        ({"every": "1 hour"}, "operators.board.complete.every: is '1 hour', which has no known unit"),
        ({"every": "10 ms"}, 'operators.board.complete.every: is \'10 ms\'; write "1 s" or more, such as "1 h"'),
        (
            {"every": "1 h", "timezone": "Europe/Berln"},
            "operators.board.complete.timezone: is 'Europe/Berln', which is not a known time zone; use an IANA name, "
            "such as Europe/Berlin",
        ),
        (
            {"every": "7 h", "timezone": BERLIN},
            "operators.board.complete.every: is '7 h', which divides no day of Europe/Berlin; write a part of a day "
            'such as "1 h", or whole days such as "1 d"',
        ),
        ({"every": "1 h", "zone": BERLIN}, "operators.board.complete.zone: is not a valid key here"),
    ],
    ids=["no table", "empty", "no length", "no unit", "short", "no zone", "no part of a day", "other key"],
)
def test_a_mistake_names_key_value_and_remedy(written, mistake):
    (told,) = read(written).mistakes
    assert mistake in str(told)
