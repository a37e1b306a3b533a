"""The simulation of a year of watched tables (`make bench PARTS=year`), in short.

The week is that of Thanksgiving, 2025: on Thursday there is no session, and on Friday one until 13:00 in New York.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from support.watched_year import (
    DAY,
    HOUR,
    MINUTE,
    Definition,
    Exchange,
    Fault,
    Played,
    Rhythm,
    Session,
    Stop,
    alarms,
    at_clock,
    calendars,
    outcome,
    planted,
    promises,
    runs_of,
    specs_of,
    tables_of,
)
from tidemark.sla.watched import watched_statuses
from tidemark.watch.commits import Change, History
from tidemark.watch.kept import KeptHistories
from tidemark.watch.reading import read_history
from tidemark.watch.statistics import TimeColumnRequest

NEW_YORK = ZoneInfo("America/New_York")
DAYS = [date(2025, 11, day) for day in (*range(3, 8), *range(10, 15), *range(17, 22), 24, 25, 26, 28)]
DAYS += [date(2025, 12, day) for day in range(1, 6)]
FRIDAY = date(2025, 11, 28)
SESSIONS = [
    Session(day, at_clock(day, NEW_YORK, 9, 30), at_clock(day, NEW_YORK, 13 if day == FRIDAY else 16)) for day in DAYS
]
NYSE = Exchange(name="XNYS", zone=NEW_YORK, opens="09:30", closes="16:00", sessions=SESSIONS)
SINCE, LOOKED, UNTIL = (at_clock(date(2025, *day), ZoneInfo("UTC"), 0) for day in ((11, 3), (11, 22), (12, 3)))


def table(rhythm: Rhythm, **columns: Any) -> Definition:
    late_ms = {Rhythm.BARS: 10 * MINUTE, Rhythm.HOURLY: HOUR}.get(rhythm, 3 * HOUR)
    return Definition(name=rhythm.name.lower(), rhythm=rhythm, exchange=NYSE, rows=500, late_ms=late_ms, **columns)


def found(definition: Definition, folder: Path, stop: Stop | None = None) -> tuple[list[str], list[float]]:
    """The SLAs of the alarms of two weeks, and how many hours after SINCE each began."""
    specs = specs_of(promises(definition), calendars([NYSE], folder), folder)
    runs = runs_of(definition, SINCE, UNTIL + DAY, seed=1)
    if stop is not None:
        runs, stop = planted(definition, runs, stop)
    told = alarms(Played(definition, runs), specs, LOOKED, UNTIL)
    of_plan = outcome(definition, stop, told, LOOKED)
    assert of_plan.false == ()
    assert stop is None or of_plan.found is not None
    return [" ".join(each.slas) for each in told], [
        (each.since_ms - (stop.start_ms if stop else 0)) / HOUR for each in told
    ]


@pytest.mark.parametrize("rhythm", [Rhythm.BARS, Rhythm.HOURLY, Rhythm.EVENING, Rhythm.NIGHT, Rhythm.DAILY])
def test_thanksgiving_and_an_early_close_are_no_alarm(rhythm: Rhythm, tmp_path: Path) -> None:
    assert found(table(rhythm), tmp_path) == ([], [])


def stop_at(definition: Definition, fault: Fault, day: date, hour: int, hours: int) -> Stop:
    start_ms = at_clock(day, NEW_YORK, hour)
    return Stop(table=definition.name, fault=fault, start_ms=start_ms, end_ms=start_ms + hours * HOUR)


def test_bars_that_stop_on_wednesday_are_found_on_wednesday(tmp_path: Path) -> None:
    bars = table(Rhythm.BARS)
    # The bar of 14:00 is lost; the one of 13:55 is 15 min old at 14:10. At 14:30 seven of twelve bars are left.
    names, hours = found(bars, tmp_path, stop_at(bars, Fault.SILENT, date(2025, 11, 26), 14, 48))
    assert (names, hours) == (["bars_stale bars_rows"], [pytest.approx(10 / 60, abs=0.001)])


def test_a_load_that_is_lost_before_a_day_off_is_found_before_it(tmp_path: Path) -> None:
    evening = table(Rhythm.EVENING, has_events=False)
    names, hours = found(evening, tmp_path, stop_at(evening, Fault.SILENT, date(2025, 11, 26), 20, 12))
    # The load of Tuesday came some minutes after 20:00, and the promise is 27 h.
    assert names == ["evening_age"]
    assert 3 < hours[0] < 4


def test_merges_without_newer_events_are_stale(tmp_path: Path) -> None:
    hourly = table(Rhythm.HOURLY)
    names, hours = found(hourly, tmp_path, stop_at(hourly, Fault.NOTHING_NEWER, date(2025, 11, 25), 3, 24))
    # The event of 02:00 is 2 h old at 04:00.
    assert (names, hours) == (["hourly_stale"], [pytest.approx(1, abs=0.001)])


def test_half_of_the_rows_is_found_by_their_number(tmp_path: Path) -> None:
    hourly = table(Rhythm.HOURLY)
    names, hours = found(hourly, tmp_path, stop_at(hourly, Fault.HALF, date(2025, 11, 25), 3, 48))
    # After h hours they are 24 - h / 2 of 24: fewer than 60 % after 19.2 h, give or take what runs differ by.
    assert names == ["hourly_rows"]
    assert 15 < hours[0] < 25


def test_a_seed_gives_the_same_tables_and_runs() -> None:
    first, second = (tables_of([NYSE], random.Random("7"), {Rhythm.POISSON: 2, Rhythm.HEAVY: 1}) for _ in range(2))
    assert first == second
    assert [runs_of(each, SINCE, UNTIL, 7) for each in first] == [runs_of(each, SINCE, UNTIL, 7) for each in second]
    assert runs_of(first[0], SINCE, UNTIL, 7) != runs_of(first[0], SINCE, UNTIL, 8)


def test_played_commits_are_judged_as_a_log_with_the_same_commits_is(tmp_path: Path) -> None:
    """Real logs, read as they grow: appends, then OPTIMIZE alone, then MERGEs without newer events."""
    hourly = table(Rhythm.HOURLY, clock_ahead_ms=90_000)
    specs = specs_of(promises(hourly), calendars([NYSE], tmp_path), tmp_path)
    runs = runs_of(hourly, SINCE, SINCE + 7 * DAY, seed=1)
    for fault, day in ((Fault.MAINTENANCE, 2), (Fault.NOTHING_NEWER, 5)):
        since_ms = SINCE + day * DAY
        runs, _ = planted(
            hourly, runs, Stop(table="hourly", fault=fault, start_ms=since_ms, end_ms=since_ms + DAY // 2)
        )
    played = Played(hourly, runs)
    every = played.history(UNTIL, None).commits
    log, kept, written = tmp_path / "hourly" / "_delta_log", KeptHistories(tmp_path / "kept"), 0
    log.mkdir(parents=True)
    verdicts = set()
    for at_ms in range(SINCE + HOUR, SINCE + 7 * DAY, 4 * HOUR):
        while written < len(every) and played.commits_ms[written] <= at_ms:
            (log / f"{written:020d}.json").write_text(_content(played.history(played.commits_ms[written], None)))
            written += 1
        read = read_history(log.parent, TimeColumnRequest(), at_ms - DAY, kept)
        assert isinstance(read, History)
        of_log = watched_statuses(specs, {"lake.hourly": read}, at_ms=at_ms)
        of_play = watched_statuses(specs, {"lake.hourly": played.history(at_ms, DAY)}, at_ms=at_ms)
        assert [(each.verdict, each.observed_ms, each.records, each.crossed_ms) for each in of_log] == [
            (each.verdict, each.observed_ms, each.records, each.crossed_ms) for each in of_play
        ]
        verdicts |= {(each.spec.measure.name, each.verdict.value) for each in of_log}
    assert verdicts >= {("staleness", "error"), ("commit_age", "error"), ("volume", "error"), ("volume", "pass")}


def _content(history: History) -> str:
    """The newest commit of a played history, as the log of a table has it."""
    commit = history.commits[-1]
    info = {"timestamp": commit.at_ms, "operation": commit.operation, "engineInfo": "simulated"}
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    if commit.version == 0:
        fields = [{"name": "at", "type": "timestamp", "nullable": True, "metadata": {}}]
        metadata = {"id": "hourly", "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
        metadata |= {"schemaString": json.dumps({"type": "struct", "fields": fields}), "configuration": {}}
        actions += [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    assert history.newest is not None
    assert history.newest.low_ms is not None
    newest = datetime.fromtimestamp(history.newest.low_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    is_new = commit.change is not Change.NONE
    stats = {"numRecords": commit.rows or 1, "minValues": {"at": newest}, "maxValues": {"at": newest}}
    path = f"{commit.version}.parquet"
    about = {"path": path, "size": commit.bytes, "modificationTime": commit.at_ms, "partitionValues": {}}
    actions.append({"add": {**about, "dataChange": is_new, "stats": json.dumps({**stats, "nullCount": {"at": 0}})}})
    if commit.change is not Change.APPENDED:
        before = f"{commit.version - 1}.parquet"
        actions.append({"remove": {"path": before, "deletionTimestamp": commit.at_ms, "dataChange": is_new}})
    return "\n".join(map(json.dumps, actions))
