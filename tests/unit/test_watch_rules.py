"""The rules about watched tables, on commits that are written by hand."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.semantics.sla import Verdict
from tidemark.watch.commits import (
    UNBOUNDED,
    AddedFile,
    Change,
    ChosenColumn,
    Clock,
    Commit,
    FileTimes,
    History,
    Span,
    TimeColumn,
    Writer,
)
from tidemark.watch.rules import BY_COMMIT, BY_EVENT_TIME, TableAge, change_of, latency_of, past_commits, table_age
from tidemark.watch.statistics import TimeColumnRequest, choose_column, file_times, instant
from tidemark.watch.visible import ForgottenFilesError, VisibleFiles

AT = ChosenColumn(TimeColumn("at", "at", "timestamp"), ("at",))
HOUR = 3_600_000
UTC = ZoneInfo("UTC")


def times(oldest_ms: int, newest_ms: int) -> FileTimes:
    """Bounds as writers cut them: the newest row may be 1 ms newer."""
    return FileTimes(oldest_ms, Span(newest_ms, newest_ms + 1))


def added(path: str, of: FileTimes | None = UNBOUNDED, rows: int | None = 10, *, changes: bool = True) -> AddedFile:
    return AddedFile(path, 1_000, rows, changes, of)


def commit(version: int, at_ms: int, *files: AddedFile, operation: str = "WRITE", **more: object) -> Commit:
    return Commit(version, at_ms, Clock.WRITER, operation, Writer("spark"), files, **more)  # type: ignore[arg-type]


def history(*commits: Commit, chosen: ChosenColumn = AT, base_version: int = -1, **base: FileTimes | None) -> History:
    files = VisibleFiles(base)
    past = tuple(past_commits(commits, files, base_version))
    return History(Path("/t"), "id", commits[-1].version, chosen, past, base_version, files.newest)


def age(of: History, now_ms: int, limit_ms: int | None = HOUR, since_ms: int = 0) -> TableAge:
    return table_age(of, now_ms=now_ms, since_ms=since_ms, limit_ms=limit_ms)


NOT_DATA = {
    "OPTIMIZE": commit(1, 0, added("b", changes=False), operation="OPTIMIZE", removed=("a",)),
    "VACUUM": commit(1, 0, operation="VACUUM END"),
    "properties": commit(1, 0, operation="SET TBLPROPERTIES"),
    "RESTORE": commit(1, 0, added("a"), operation="RESTORE", removed=("b",), removes_data=True),
    "a streaming batch without rows": commit(1, 0, operation="STREAMING UPDATE"),
    "files without rows": commit(1, 0, added("b", None, 0)),
}
REMOVES = {
    "DELETE": commit(1, 0, operation="DELETE", removed=("a",), removes_data=True),
    "UPDATE": commit(1, 0, added("b"), operation="UPDATE", removed=("a",), removes_data=True),
    "MERGE": commit(1, 0, added("b"), operation="MERGE", removed=("a",), removes_data=True),
    "overwrite": commit(1, 0, added("b", times(0, 1)), removed=("a",), removes_data=True),
}


@pytest.mark.parametrize("name", NOT_DATA)
def test_what_brings_no_data_is_not_fresh(name: str) -> None:
    assert change_of(NOT_DATA[name]) is Change.NONE
    first = commit(0, 5, added("a", times(1, 2)))
    # At 1,000 the last commit that changed data is that of 5 ms, and the newest event time still that of 2 ms.
    table = age(history(first, NOT_DATA[name]), 1_000)
    assert (table.commit_at_ms, table.commit_age_ms) == (5, 995)


@pytest.mark.parametrize("name", REMOVES)
def test_a_commit_that_removes_data_has_an_age_and_no_latency(name: str) -> None:
    assert (change_of(REMOVES[name]), latency_of(REMOVES[name])) == (Change.REPLACED, None)
    table = age(history(commit(0, -9, added("a", times(1, 2))), REMOVES[name]), 1_000)
    assert (table.commit_at_ms, table.commit_age_ms) == (0, 1_000)
    assert (table.commits[0].latency, table.commits[0].verdict) == (None, None)


@pytest.mark.parametrize(
    ("files", "latency", "verdict"),
    [
        # Committed at 10 h with rows of 8:00 to 9:00 (or 1 ms later): 59 min 59.999 s to 2 h.
        ([times(8 * HOUR, 9 * HOUR)], Span(HOUR - 1, 2 * HOUR), Verdict.UNKNOWN),
        # One ms older, and even the newest row is as late as the limit.
        ([times(8 * HOUR, 9 * HOUR - 1)], Span(HOUR, 2 * HOUR), Verdict.ERROR),
        ([times(9 * HOUR + 1, 10 * HOUR)], Span(-1, HOUR - 1), Verdict.PASS),
        ([times(9 * HOUR, 9 * HOUR + 1)], Span(HOUR - 2, HOUR), Verdict.UNKNOWN),
        # The oldest row of one file and the newest one of the other count.
        ([times(HOUR, HOUR), times(9 * HOUR + 5, 9 * HOUR + 7)], Span(HOUR - 8, 9 * HOUR), Verdict.UNKNOWN),
        ([times(HOUR, HOUR), UNBOUNDED], Span(None, None), Verdict.UNKNOWN),
        ([times(9 * HOUR + 1, 9 * HOUR + 1), None], Span(HOUR - 2, HOUR - 1), Verdict.PASS),
        ([None], None, None),
    ],
)
def test_the_latency_of_an_append_is_an_interval(
    files: list[FileTimes | None], latency: Span | None, verdict: Verdict | None
) -> None:
    append = commit(0, 10 * HOUR, *(added(str(n), each) for n, each in enumerate(files)))
    shown = age(history(append), 10 * HOUR).commits[0]
    assert (shown.latency, shown.verdict) == (latency, verdict)


def test_files_that_are_only_moved_have_no_part_in_a_latency() -> None:
    both = commit(0, 100, added("a", times(90, 95)), added("b", times(1, 2), changes=False))
    assert latency_of(both) == Span(4, 10)


def test_the_peak_age_is_reached_just_before_a_commit_or_now() -> None:
    """Newest times 90, 150, 320 from the commits at 100, 200, 400: ages 110 and 250 before the next, at last 130."""
    commits = [
        commit(0, 100, added("a", times(80, 90))),
        commit(1, 200, added("b", times(90, 150))),
        commit(2, 400, added("c", times(150, 320))),
    ]
    assert age(history(*commits), 450).peak == Span(249, 250)
    # From 300 on, the age grew to 250 as well; from 401 on it is 450 - 320 at most.
    assert age(history(*commits), 450, since_ms=300).peak == Span(249, 250)
    assert age(history(*commits), 450, since_ms=401).peak == Span(129, 130)
    assert age(history(*commits), 800).peak == Span(479, 480)


def test_readers_see_older_data_again_after_a_removal() -> None:
    """The file with 190 is removed at 210, so that at 300 the newest is that of 50."""
    commits = [
        commit(0, 100, added("a", times(50, 50))),
        commit(1, 200, added("b", times(190, 190))),
        commit(2, 210, operation="DELETE", removed=("b",), removes_data=True),
    ]
    table = age(history(*commits), 300)
    assert (table.newest, table.age, table.peak) == (Span(50, 51), Span(249, 250), Span(249, 250))


def test_what_readers_saw_is_known_from_the_oldest_version_that_was_read() -> None:
    commits = [commit(version, version * 100, added(str(version), times(1, version * 100))) for version in (5, 6, 7)]
    table = age(history(*commits, base_version=6, a=times(1, 600)), 1_000)
    assert (table.peak_since_ms, table.peak) == (600, Span(299, 300))
    assert table.usual_gap_ms is None  # two gaps are not enough
    assert table.usual_rows == 10


def test_cadence_and_volume_are_medians_of_commits_that_changed_data() -> None:
    at_ms, rows = [0, 10, 30, 60, 1_000], [1, 2, 3, 100, 5]
    commits = [commit(n, at, added(str(n), UNBOUNDED, rows[n])) for n, at in enumerate(at_ms)]
    table = age(history(*commits, commit(5, 2_000, operation="VACUUM END")), 3_000)
    # Gaps of 10, 20, 30 and 940: the lower one in the middle.
    assert (table.usual_gap_ms, table.usual_rows, table.usual_bytes) == (20, 3, 1_000)
    assert [shown.version for shown in table.commits] == [4, 3, 2, 1, 0]


def test_writers_are_counted_without_their_runs() -> None:
    writers = [Writer("spark", query="q", batch=1), Writer("delta-rs"), Writer("spark", query="q", batch=2)]
    commits = [Commit(n, n, Clock.WRITER, "WRITE", writer, (added(str(n)),)) for n, writer in enumerate(writers)]
    counted = age(history(*commits), 9).writers
    assert [(each.writer.query, each.writer.batch, each.commits) for each in counted] == [("q", 2, 2), (None, None, 1)]


@pytest.mark.parametrize(
    ("of", "now_ms", "verdict", "by"),
    [
        (times(0, 1), HOUR, Verdict.PASS, BY_EVENT_TIME),  # 1 h - 2 ms, or 1 h - 1 ms
        (times(0, 1), HOUR + 1, Verdict.ERROR, BY_COMMIT),  # 1 h - 1 ms, or 1 h: but nothing came since 0
        (FileTimes(0, Span(-HOUR, 5)), 5, Verdict.UNKNOWN, BY_EVENT_TIME),  # 0 to 1 h + 5 ms
        (times(0, 1), HOUR + 2, Verdict.ERROR, BY_EVENT_TIME),
        (times(0, 1), 2 * HOUR, Verdict.ERROR, BY_EVENT_TIME),
        (times(0, 1), 5, Verdict.PASS, BY_EVENT_TIME),
        (times(0, 10), 5, Verdict.AHEAD_OF_CLOCK, BY_EVENT_TIME),  # at least 5 ms ahead
        (None, 5, Verdict.NEVER_LOADED, BY_EVENT_TIME),
        (UNBOUNDED, 5, Verdict.UNKNOWN, BY_EVENT_TIME),
        (UNBOUNDED, HOUR, Verdict.ERROR, BY_COMMIT),  # nothing came for an hour since the commit at 0
        (FileTimes(0, Span(None, HOUR)), 2 * HOUR, Verdict.ERROR, BY_EVENT_TIME),
        (FileTimes(0, Span(0, None)), 5, Verdict.PASS, BY_EVENT_TIME),
    ],
)
def test_a_table_is_judged_by_its_newest_event_time(
    of: FileTimes | None, now_ms: int, verdict: Verdict, by: str
) -> None:
    table = age(history(commit(0, 0, added("a", of))), now_ms)
    assert (table.verdict, table.judged_by) == (verdict, by)


@pytest.mark.parametrize(
    ("candidates", "at_ms", "verdict", "by"),
    [
        ((), 0, Verdict.ERROR, BY_COMMIT),
        ((), 1, Verdict.PASS, BY_COMMIT),
        ((), HOUR + 1, Verdict.AHEAD_OF_CLOCK, BY_COMMIT),
        (("made", "sold"), 0, Verdict.UNKNOWN, None),
    ],
)
def test_without_a_column_the_last_commit_is_judged_and_of_two_columns_none(
    candidates: tuple[str, ...], at_ms: int, verdict: Verdict, by: str | None
) -> None:
    of = history(commit(0, at_ms, added("a")), chosen=ChosenColumn(None, candidates))
    table = age(of, HOUR)
    assert (table.age, table.verdict, table.judged_by) == (None, verdict, by)
    assert age(of, HOUR, limit_ms=None).verdict is None


def test_a_clock_that_is_ahead_is_told_and_not_clamped() -> None:
    table = age(history(commit(0, 5_000, added("a", times(9_000, 9_000)))), 1_000)
    assert (table.commit_age_ms, table.age) == (-4_000, Span(-8_001, -8_000))
    assert table.commits[0].latency == Span(-4_001, -4_000)
    assert table.notes == (
        "the newest event time is 8 s ahead of this machine's clock",
        "the last commit is 4 s ahead of this machine's clock",
    )


@pytest.mark.parametrize(
    ("bound", "zone", "low", "high"),
    [
        ("2026-11-30T10:00:00.123Z", "UTC", "2026-11-30T10:00:00.123Z", 1),
        ("2026-11-30T10:00:00.123+01:00", "UTC", "2026-11-30T09:00:00.123Z", 1),
        ("2026-11-30T10:00:00.123456Z", "UTC", "2026-11-30T10:00:00.123Z", 1),
        ("2026-11-30 10:00:00.123", "Europe/Berlin", "2026-11-30T09:00:00.123Z", 1),
        # At 2:30 the clock of Berlin was set back by an hour: the time is 0:30 or 1:30 UTC.
        ("2026-10-25T02:30:00.000", "Europe/Berlin", "2026-10-25T00:30:00Z", HOUR + 1),
        # A day, here of 25 hours, is any time in it.
        ("2026-10-25", "Europe/Berlin", "2026-10-24T22:00:00Z", 25 * HOUR - 1),
    ],
)
def test_a_bound_stands_for_the_instants_that_it_may_mean(bound: str, zone: str, low: str, high: int) -> None:
    span = instant(bound, ZoneInfo(zone))
    expected = instant(low, UTC)
    assert expected is not None
    assert span == Span(expected.low_ms, (expected.low_ms or 0) + high)


@pytest.mark.parametrize("bound", ["", "yesterday", "2026-13-01", "+12026-01-01T00:00:00Z", 17, None])
def test_what_is_no_time_has_no_bounds(bound: object) -> None:
    assert instant(bound, UTC) is None


def stats(low: object, high: object, **more: object) -> dict[str, object]:
    return {"numRecords": 5, "minValues": {"at": low}, "maxValues": {"at": high}, "nullCount": {"at": 0}, **more}


ONE, TWO = "1970-01-01T00:00:01.000Z", "1970-01-01T00:00:02.000Z"
TEXT = TimeColumn("at", "at", "string")
LOOSE = {"tightBounds": False}
DELETED = {"deletionVector": {"cardinality": 2}}


@pytest.mark.parametrize(
    ("add", "bounds", "column", "rows", "expected"),
    [
        ({}, stats(ONE, TWO), AT.column, 5, times(1_000, 2_000)),
        ({}, {}, AT.column, None, UNBOUNDED),
        ({}, {"numRecords": 5}, AT.column, 5, UNBOUNDED),
        ({}, {"numRecords": 5, "nullCount": {"at": 5}}, AT.column, 5, None),
        ({}, {"numRecords": 0}, AT.column, 0, None),
        ({}, stats(ONE, TWO), TEXT, 5, times(1_000, 2_000)),
        # 10:00 in two zones: the greater text may be the earlier time.
        ({}, stats("2026-11-30T10:00:00+09:00", "2026-11-30T10:00:00Z"), TEXT, 5, UNBOUNDED),
        ({}, stats("a", "b"), TEXT, 5, UNBOUNDED),
        # Two of five rows are deleted: the newest of the others is between the bounds.
        (DELETED, stats(ONE, TWO, **LOOSE), AT.column, 3, FileTimes(1_000, Span(1_000, 2_001))),
        (DELETED, stats(ONE, TWO, tightBounds=True), AT.column, 3, times(1_000, 2_000)),
        # With nulls, those three may be null.
        (DELETED, stats(ONE, TWO, nullCount={"at": 1}, **LOOSE), AT.column, 3, FileTimes(1_000, Span(None, 2_001))),
        ({"deletionVector": {"cardinality": 5}}, stats(ONE, TWO, **LOOSE), AT.column, 0, None),
    ],
)  # fmt: skip
def test_bounds_of_a_file_say_what_is_known_of_its_times(
    add: dict[str, object], bounds: dict[str, object], column: TimeColumn, rows: int | None, expected: FileTimes | None
) -> None:
    assert file_times(add, bounds, column, UTC) == (rows, expected)


def metadata(fields: str, **more: object) -> dict[str, object]:
    pairs = [field.split(":") for field in fields.split()]
    named = ", ".join(f'{{"name": "{name}", "type": "{kind}", "metadata": {{}}}}' for name, kind in pairs)
    return {"schemaString": f'{{"fields": [{named}]}}', "partitionColumns": [], "configuration": {}, **more}


@pytest.mark.parametrize(
    ("fields", "names", "chosen", "candidates"),
    [
        ("id:long at:timestamp", (), "at", ("at",)),
        ("day:date at:timestamp_ntz", (), "at", ("at",)),
        ("day:date id:long", (), "day", ("day",)),
        ("made:timestamp sold:timestamp", (), None, ("made", "sold")),
        ("made:timestamp sold:timestamp", ("sold",), "sold", ("sold",)),
        ("made:timestamp", ("sold",), "made", ("made",)),
        ("made:timestamp at:string", ("sold", "at"), "at", ("at",)),
        ("at:string id:long", (), None, ()),
        ("at:long", ("at",), None, ()),
    ],
)
def test_the_column_is_named_or_the_only_one(
    fields: str, names: tuple[str, ...], chosen: str | None, candidates: tuple[str, ...]
) -> None:
    found = choose_column(metadata(fields), TimeColumnRequest(names))
    assert (found.column and found.column.name, found.candidates) == (chosen, candidates)


@pytest.mark.parametrize(
    ("before", "configuration", "why"),
    [
        (31, {}, ""),
        (32, {}, "it is column 33, and writers keep statistics of the first 32"),
        (32, {"delta.dataSkippingNumIndexedCols": "-1"}, ""),
        (2, {"delta.dataSkippingNumIndexedCols": "2"}, "it is column 3, and writers keep statistics of the first 2"),
        (32, {"delta.dataSkippingStatsColumns": "c0,at"}, ""),
        (0, {"delta.dataSkippingStatsColumns": "c0"}, "the property delta.dataSkippingStatsColumns does not name it"),
    ],
)
def test_a_column_beyond_the_indexed_ones_is_known(before: int, configuration: dict[str, str], why: str) -> None:
    fields = " ".join([*(f"c{n}:long" for n in range(before)), "at:timestamp"])
    column = choose_column(metadata(fields, configuration=configuration), TimeColumnRequest()).column
    assert column is not None
    assert column.unindexed == why


PATHS = st.sampled_from("abcdef")
TIMES = st.one_of(st.none(), st.just(UNBOUNDED), st.builds(times, st.integers(0, 9), st.integers(10, 99)))
STEPS = st.lists(st.tuples(st.lists(PATHS, unique=True), st.dictionaries(PATHS, TIMES)), max_size=8)


@given(st.dictionaries(PATHS, TIMES), STEPS)
def test_the_newest_visible_time_is_that_of_the_files_of_each_version(
    base: dict[str, FileTimes | None], steps: list[tuple[list[str], dict[str, FileTimes | None]]]
) -> None:
    expected, visible = all_versions(base, steps), VisibleFiles(base)
    past = [*past_commits(commits_of(steps), visible, 0)]
    assert [*(each.newest_before for each in past), visible.newest] == expected


@given(st.dictionaries(PATHS, TIMES), STEPS, st.integers(0, 8), st.integers(1, 3))
def test_of_files_without_their_times_nothing_wrong_is_said(
    base: dict[str, FileTimes | None],
    steps: list[tuple[list[str], dict[str, FileTimes | None]]],
    reduced_at: int,
    most: int,
) -> None:
    """From some version on only the newest files are known; what is said of the newest time is right all the same."""
    visible = VisibleFiles(base)
    for n, (commit_, expected) in enumerate(zip(commits_of(steps), all_versions(base, steps), strict=False)):
        visible = visible.with_newest_alone(most) if n == reduced_at else visible
        if n == reduced_at:
            assert visible.newest == expected
        try:
            assert visible.newest == expected
        except ForgottenFilesError:
            assert visible.others is not None
        visible.apply(commit_)


def test_the_log_is_read_again_if_all_newest_files_are_gone() -> None:
    visible = VisibleFiles({str(n): times(n, n) for n in range(9)}).with_newest_alone(2)
    assert ({*visible.times}, visible.others) == ({"7", "8"}, Span(6, 7))
    visible.apply(commit(1, 0, removed=("8", "3")))
    assert visible.newest == Span(7, 8)
    visible.apply(commit(2, 0, removed=("7",)))
    with pytest.raises(ForgottenFilesError):
        _ = visible.newest
    visible.apply(commit(3, 0, added("new", times(5, 6))))
    # The others may be as new as this file, but not newer.
    assert visible.newest == Span(6, 7)


def commits_of(steps: list[tuple[list[str], dict[str, FileTimes | None]]]) -> list[Commit]:
    return [
        commit(n, 0, *(added(path, of) for path, of in new.items()), removed=tuple(removed))
        for n, (removed, new) in enumerate(steps, 1)
    ]


def all_versions(
    base: dict[str, FileTimes | None], steps: list[tuple[list[str], dict[str, FileTimes | None]]]
) -> list[Span | None]:
    files, newest = dict(base), [newest_by_hand(base)]
    for removed, new in steps:
        files = {path: of for path, of in files.items() if path not in removed} | new
        newest.append(newest_by_hand(files))
    return newest


def newest_by_hand(files: dict[str, FileTimes | None]) -> Span | None:
    spans = [of.newest for of in files.values() if of is not None]
    if not spans:
        return None
    lows = [low for low, _ in spans if low is not None]
    highs = [high for _, high in spans]
    return Span(max(lows) if lows else None, None if None in highs else max(highs))  # type: ignore[type-var]
