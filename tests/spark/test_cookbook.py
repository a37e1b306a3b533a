"""Questions of docs/cookbook.md have equal answers in Spark and DuckDB.

The feed alone explains them. Every reader reads its reports alike.
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from support.all_readers import by_all_readers, differences, of_all_types, types_of
from support.both_engines import BothEngines, Rows
from support.flights_day import FlightsDay, PartitionIntake
from tidemark.demo.feed_record import FLIGHT_EVENTS, RecordKind
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES
from tidemark.storage.delta.tables import scan
from tidemark.storage.warehouse import delta_tables

OF_AIRFLOW = ("decisions", "published_intervals", "requeued")
"""Tables that only Airflow's tasks and commands of people write."""
REPORTS = [table for table in TABLES.values() if table.written_by == "report" and table.name not in OF_AIRFLOW]
COOKBOOK = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text(encoding="utf-8")
QUESTIONS = {int(number): text for number, text in re.findall(r"## (\d+)\. .*?```sql\n(.*?)```", COOKBOOK, re.DOTALL)}
FLIGHT = "UA753-2013-06-27-EWR"
HOUR_MS = 3_600_000
MARCH_1 = 1_772_323_200_000  # 2026-03-01 00:00 UTC
WEATHER = ("temp_f", "wind_mph", "precip_in", "visibility_mi")


@dataclass(frozen=True)
class Told:
    """A changed update: its key, its value, and its record."""

    key: str
    value: tuple[object, ...]
    arrived: PartitionIntake


class Expected:
    """Expected results from the feed of *day* and its late records."""

    def __init__(self, day: FlightsDay, layout: Layout) -> None:
        self.day = day
        rows = scan(layout.stream_table("flights", "status", "dead_letters")).filter(pl.col("kind") == "late").collect()
        self.late = set(rows.select("partition", "offset").rows())
        self.flights = day.flights(self.late)
        self.told = told([(a.record.key, flight_value(a), a) for a in self.flights])
        self.newest = {one.key: one for one in self.told}


def told(updates: list[tuple[str, tuple[object, ...], PartitionIntake]]) -> list[Told]:
    """Returns *updates* without repetitions of a value at a later instant."""
    stored: dict[str, Told] = {}
    sent = []
    for key, value, arrived in updates:
        was = stored.get(key)
        if was is None or was.value != value or arrived.at_ms <= was.arrived.at_ms:
            stored[key] = Told(key, value, arrived)
            sent.append(stored[key])
    return sent


def flight_value(a: PartitionIntake) -> tuple[object, ...]:
    """Carrier, origin, destination, status and delay in minutes."""
    of = a.record.fields
    delay = of["dep_delay_min"] if of["arr_delay_min"] is None else of["arr_delay_min"]
    return of["carrier"], of["origin"], of["dest"], str(of["status"]), delay


@pytest.fixture(scope="module")
def expected(flights_day) -> Expected:
    return Expected(*flights_day)


@pytest.fixture(scope="module")
def answers(spark, flights_day):
    asked = BothEngines(spark, flights_day[1], *QUESTIONS.values())

    def answer(number: int) -> Rows:
        """DuckDB's answer, which is Spark's too, in the same order."""
        of_spark, of_duckdb = asked.of_spark(QUESTIONS[number]), asked.of_duckdb(QUESTIONS[number])
        assert of_spark == of_duckdb
        assert of_duckdb or number in NO_ROWS
        return of_duckdb

    return answer


NO_ROWS = {2, 13}
"""The questions to which no row is the right answer."""


def test_there_are_24_questions_and_each_has_its_test():
    tested = {int(name[5:7]) for name in globals() if re.match(r"test_\d\d_", name)}
    assert set(QUESTIONS) == tested == set(range(1, 25))


def test_01_every_record_of_the_feed_was_read_and_accounted_for(answers, expected):
    records = Counter(a.record.topic for a in expected.day.arrived)
    late = len(expected.late)
    assert answers(1) == [
        ("flight_events", records[FLIGHT_EVENTS], 12, late, records[FLIGHT_EVENTS] - 12 - late),
        ("weather", records["weather"], 0, 0, records["weather"]),
    ]


def test_02_all_batches_close(answers):
    assert answers(2) == []


def test_03_quarantine_has_the_broken_records_by_reason(answers):
    # Twelve, one fault after the other: of the seven the first five came twice.
    assert answers(3) == [
        ("flight_events", "timestamp_out_of_range", 6),
        ("flight_events", "invalid_utf8", 2),
        ("flight_events", "malformed_json", 2),
        ("flight_events", "null_value", 2),
    ]


def test_04_late_are_records_of_aircraft_that_were_offline(answers, expected):
    came = {(a.partition, a.offset): a for a in expected.day.flights()}
    assert all(came[place].record.was_held_back for place in expected.late)
    by_partition = Counter(partition for partition, _ in expected.late)
    rows = answers(4)
    assert [row[:3] for row in rows] == [
        ("flight_events", partition, by_partition[partition]) for partition in sorted(by_partition)
    ]
    assert all(latest_ms > 0 for *_, latest_ms in rows)


def statuses_of_flight(expected: Expected) -> list[PartitionIntake]:
    return [a for a in expected.flights if a.record.key == FLIGHT and a.record.kind is RecordKind.STATUS]


def test_05_a_flight_is_where_its_last_status_says(answers, expected):
    last = statuses_of_flight(expected)[-1]
    assert answers(5) == [("arrived", "-15.0", last.at_ms)]


def test_06_a_flight_was_in_each_status_until_the_next(answers, expected):
    of_flight = statuses_of_flight(expected)
    ends = [*(after.at_ms for _, after in pairwise(of_flight)), None]
    assert answers(6) == [
        (status, a.at_ms, end)
        for status, a, end in zip(("scheduled", "departed", "arrived"), of_flight, ends, strict=True)
    ]


def test_07_in_the_air_are_departed_flights_without_arrival(answers, expected):
    at_ms = 1_772_359_200_000 + 90 * 60_000  # 11:30
    known: dict[str, Told] = {}
    for one in sorted(expected.told, key=lambda one: one.arrived.at_ms):
        if one.arrived.at_ms <= at_ms:
            known[one.key] = one
    in_the_air = Counter(one.value[1] for one in known.values() if one.value[3] == "departed")
    assert answers(7) == sorted(in_the_air.items())


def band(delays: list[float]) -> str:
    if len(delays) < 3:
        return "too few"
    average = sum(delays) / len(delays)
    return "severe" if average >= 45 else "late" if average >= 15 else "on time"


def test_08_a_carrier_is_as_late_as_the_average_of_its_flights(answers, expected):
    delays = defaultdict(list)
    for one in expected.newest.values():
        carrier, origin, _, _, delay = one.value
        delays[carrier, origin] += [] if delay is None else [delay]
    assert answers(8) == [(*key, band(delays[key])) for key in sorted(delays)]


def test_09_every_carrier_of_the_feed_has_had_a_delay_band(answers, expected):
    rows = answers(9)
    assert {carrier for carrier, *_ in rows} == {one.value[0] for one in expected.told}
    assert all(changes >= 1 for _, changes, _ in rows)


def test_10_arrivals_and_delays_are_complete_in_any_weather(answers, expected):
    delays = [one.value[4] for one in expected.told if one.value[3] == "arrived"]
    rows = answers(10)
    assert [weather for weather, *_ in rows] == ["dry", "rain"]
    assert sum(arrivals for _, arrivals, _ in rows) == len(delays)
    assert sum(arrivals * average for _, arrivals, average in rows) == pytest.approx(sum(delays))


def test_11_latency_of_a_source_is_the_age_when_read(answers, expected):
    ages_ms = [a.read_at_ms - a.at_ms for a in expected.day.flights()]
    (row,) = (row for row in answers(11) if row[1] == "flight_events")
    _, _, records, min_ms, avg_ms, max_ms = row
    assert records == len(ages_ms)
    took_ms = pytest.approx(50, abs=50)  # the clock of a batch, 3 ms a look
    assert min_ms - min(ages_ms) == took_ms
    assert max_ms - max(ages_ms) == took_ms
    assert avg_ms - sum(ages_ms) / len(ages_ms) == took_ms


def test_12_the_slowest_hour_is_that_of_the_highest_percentile(answers, expected):
    ages_ms = defaultdict(list)
    for a in expected.day.flights():
        ages_ms[a.read_at_ms // HOUR_MS * HOUR_MS].append(a.read_at_ms - a.at_ms)
    p99_ms = {hour: sorted(ages)[math.ceil(0.99 * len(ages)) - 1] for hour, ages in ages_ms.items()}
    (row,) = (row for row in answers(12) if row[0] == "flight_events")
    slowest = max(p99_ms, key=lambda hour: p99_ms[hour])
    assert row[1:3] == (slowest, len(ages_ms[slowest]))
    assert row[4] == pytest.approx(p99_ms[slowest], rel=0.011)


def test_13_nothing_comes_from_the_future(answers, expected):
    assert all(a.at_ms <= a.read_at_ms for a in expected.day.flights())
    assert answers(13) == []


def test_14_saved_is_what_was_said_again(answers, expected):
    seen = [(a.record.key, tuple(a.record.fields[name] for name in WEATHER), a) for a in expected.day.weather]
    judged = {operator: row for operator, *row in answers(14)}
    flights, again = len(expected.flights), len(expected.flights) - len(expected.told)
    assert judged["flight_status"] == [flights, again, pytest.approx(again / flights)]
    same_weather = len(seen) - len(told(seen))
    assert judged["weather_now"] == [len(seen), same_weather, pytest.approx(same_weather / len(seen))]
    assert judged["by_carrier"] == [len(expected.told), 0, 0.0]


def test_15_not_sent_on_was_what_repeated_the_status_before(answers, expected):
    of_flight = [a for a in expected.flights if a.record.key == FLIGHT]
    repeats = [(was, a) for was, a in pairwise(of_flight) if a.record.kind is RecordKind.REPEAT]
    assert answers(15) == [(1, a.partition, a.offset, a.offset, was.at_ms, a.at_ms) for was, a in repeats]


def test_16_a_watermark_is_held_by_partitions_of_its_source(answers):
    rows = answers(16)
    assert {blocked_by for source, blocked_by, _ in rows if source == "flight_events"} <= {"0", "1", "2"}
    assert sum(batches for source, _, batches in rows if source == "flight_events") <= 19  # batches that there were


def critical(layout: Layout) -> list[tuple[int, str]]:
    """Returns latency in ms and leaf of windows with a critical path."""
    paths = scan(layout.report_table("flights", "critical_paths")).collect()
    return [(latency_ms, leaf) for latency_ms, leaf in paths.select("latency_ms", "leaf").rows() if leaf]


def test_17_each_window_is_counted_in_one_hour(answers, flights_day):
    rows, windows = answers(17), critical(flights_day[1])
    assert sum(row[2] for row in rows) == len(windows)
    assert max(row[4] for row in rows) == max(latency_ms for latency_ms, _ in windows)
    assert all(0 < share <= 1 for *_, share in rows)


def test_18_operators_share_the_time_of_the_critical_paths(answers, flights_day):
    rows = answers(18)
    assert sum(latency_ms for _, _, latency_ms, _ in rows) == sum(ms for ms, _ in critical(flights_day[1]))
    assert sum(share for *_, share in rows) == pytest.approx(1)


def test_19_everything_is_as_fresh_as_its_newest_record(answers, expected):
    newest = {operator: newest_at for _, operator, newest_at, *_ in answers(19)}
    assert newest["flight_events"] == max(a.at_ms for a in expected.flights)
    assert newest["weather"] == max(a.at_ms for a in expected.day.weather)
    assert newest["flight_status"] == max(one.arrived.at_ms for one in expected.told)


def test_20_a_broken_sla_lasts_from_its_first_to_its_last_check(answers):
    first_ms = 1_772_359_200_000 + 600_000
    broken = ("board_in_time", "error", first_ms, first_ms + 600_000, 2, 595_000.0, 120_000.0)
    assert answers(20) == [broken]


def test_21_the_percentile_of_a_week_is_that_of_all_its_records(answers, expected, flights_day):
    ages_ms = sorted(a.read_at_ms - a.at_ms for a in expected.day.flights())
    of_sql = answers(21)
    (row,) = (row for row in of_sql if row[0] == "flight_events")
    assert row == ("flight_events", len(ages_ms), pytest.approx(ages_ms[math.ceil(0.99 * len(ages_ms)) - 1], rel=0.011))

    (text,) = re.findall(r"## 21\. .*?```python\n(.*?)```", COOKBOOK, re.DOTALL)
    of_polars: dict[str, pl.LazyFrame] = {}
    exec(text.replace(".tidemark/warehouse", str(flights_day[1].warehouse)), of_polars)
    assert of_polars["week"].collect().sort("operator").rows() == [
        (operator, records, pytest.approx(p99_ms)) for operator, records, p99_ms in of_sql
    ]


def test_22_watched_tables_were_older_than_an_hour_before_two_commits(answers):
    assert answers(22) == [
        ("/lake/orders", 3, MARCH_1 + 24 * HOUR_MS + 600_000, 46_200_000, "MERGE"),
        ("/lake/orders", 2, MARCH_1 + 11 * HOUR_MS + 1_800_000, 5_460_000, "WRITE"),
    ]


def test_23_the_oldest_row_of_a_day_of_appends_is_that_of_its_latest_one(answers):
    assert answers(23) == [("/lake/orders", MARCH_1, 2, 600_000, 1_200_000)]


def test_24_writers_are_told_with_their_commits(answers):
    assert answers(24) == [
        ("/lake/days", "delta-rs:py-1.6.6", 1, None, 9_000, None, MARCH_1 + 9 * HOUR_MS),
        ("/lake/orders", "load.orders", 1, 10, 2_000, 45_600_000, MARCH_1 + 24 * HOUR_MS + 600_000),
        ("/lake/orders", "q", 2, 150, 15_000, 5_400_000, MARCH_1 + 11 * HOUR_MS + 1_800_000),
    ]


@pytest.mark.parametrize("table", of_all_types(REPORTS))
def test_every_report_reads_alike_before_and_after_compaction(spark, flights_day, tmp_path, table):
    (written,) = delta_tables(flights_day[1].warehouse)[table.name]
    path = Path(shutil.copytree(written, tmp_path / table.name))
    before = by_all_readers(spark, path)
    assert before.num_rows
    assert types_of(before) == {column.name: column.type for column in table.columns}

    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    DeltaTable(path).delete("topology = 'another'")
    assert differences(by_all_readers(spark, path), before) == []

    protocol = DeltaTable(path).protocol()
    assert (protocol.min_reader_version, protocol.reader_features) == (1, None)
