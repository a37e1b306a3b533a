"""Views give the same rows in Spark and DuckDB.

They are those that follow from the tables by hand.
"""

from __future__ import annotations

import pytest

from support.both_engines import BothEngines
from support.latency_facts import minute_row
from support.play import Play, ms
from support.sql_scripts import statements_of
from support.topologies import BOARD
from tidemark.clock import wall_clock_ms
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import (
    BATCHES,
    CHANGES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    DEAD_LETTERS,
    HEARTBEATS,
    INCIDENTS,
    LATENCY_MINUTES,
    LATENCY_ROLLUP,
    OPERATOR_BATCHES,
    OPERATOR_WINDOWS,
    PARTITION_BATCHES,
    SLA_RESULTS,
    TOPOLOGY_CHANGES,
)
from tidemark.query.sql_script import script
from tidemark.query.views import views

HOUR = 3_600_000
TEN = 1_772_359_200_000  # 2026-03-01T10:00:00Z


@pytest.fixture(scope="module")
def ask(spark, shared_warehouse):
    """Registers one warehouse in Spark for all tests, as that is slow."""
    for part in (changed, measured, finished, watched, judged_by_sla, counted, passed_by_tasks, died):
        part(shared_warehouse)
    return BothEngines(spark, shared_warehouse.layout)


def change(batch_id, seq, key, at_ms, value, **more):
    return {"batch_id": batch_id, "seq": seq, "operator": "o", "key": key, "timestamp": at_ms, "value": value, **more}


def changed(warehouse):
    """Writes unordered batches, equal instants, a past update and a deletion."""
    window = {"window_start": 0, "window_end": 5_000}
    rows = [
        change(1, 0, "twice", 1_000, "1"),
        change(1, 1, "twice", 1_000, "2"),
        change(1, 2, "gone", 1_000, "1"),
        change(2, 0, "gone", 3_000, None),
        change(1, 3, "late", 2_000, "new"),
        change(2, 1, "late", 1_500, "old"),
        change(10, 0, "late", 2_500, "newest of a"),
        change(2, 2, "window", 4_999, "w", **window),
    ]
    warehouse.write(CHANGES, rows, "a")
    warehouse.write(CHANGES, [change(3, 0, "late", 2_600, "b's")], "b")
    # It began anew in batch 2, of which two things are told, and in batch 10.
    begun = [(2, "o", "sum"), (2, "o", "key"), (10, "o", "sum"), (1, "other", "sum")]
    warehouse.write(TOPOLOGY_CHANGES, [{"batch_id": n, "operator": name, "told": told} for n, name, told in begun], "a")


def test_updates_of_an_operator_are_told_apart_by_its_meaning(ask):
    counted = "SELECT sub_topology, meaning, begun_with, count(*), min(batch_id) FROM changes_by_meaning"
    assert ask(f"{counted} WHERE operator = 'o' GROUP BY sub_topology, meaning, begun_with") == [
        ("a", 1, None, 4, 1),
        ("a", 2, 2, 3, 2),
        ("a", 3, 10, 1, 10),
        ("b", 1, None, 1, 3),
    ]


def test_the_state_of_a_key_is_its_last_update_unless_deleted(ask):
    assert ask("SELECT sub_topology, key, value, timestamp, window_end FROM latest_state WHERE operator = 'o'") == [
        ("a", "late", "newest of a", 2_500, None),
        ("a", "twice", "2", 1_000, None),
        ("a", "window", "w", 4_999, 5_000),
        ("b", "late", "b's", 2_600, None),
    ]


def test_a_value_is_valid_until_the_next_one_or_its_deletion(ask):
    assert ask("SELECT sub_topology, key, value, valid_from, valid_to FROM change_history WHERE operator = 'o'") == [
        ("a", "gone", "1", 1_000, 3_000),
        ("a", "late", "new", 2_000, 2_500),
        ("a", "late", "newest of a", 2_500, None),
        ("a", "late", "old", 1_500, 2_000),
        ("a", "twice", "1", 1_000, 1_000),
        ("a", "twice", "2", 1_000, None),
        ("a", "window", "w", 4_999, None),
        ("b", "late", "b's", 2_600, None),
    ]


@pytest.mark.parametrize(("at_ms", "valid"), [(999, []), (1_000, ["1", "2"]), (2_999, ["1", "2"]), (3_000, ["2"])])
def test_at_any_instant_a_key_has_at_most_one_value(ask, at_ms, valid):
    text = f"""SELECT value FROM change_history WHERE key IN ('gone', 'twice')
               AND unix_millis(valid_from) <= {at_ms} AND (valid_to IS NULL OR unix_millis(valid_to) > {at_ms})"""
    assert ask(text) == [(value,) for value in valid]


def rolled_up(grain, start_ms, **more):
    interval = {"interval_start": start_ms, "interval_end": start_ms + HOUR}
    of = {"topology": "t", "sub_topology": "a", "operator": "o", "kind": "sink", "scope": "operator"}
    return {**of, "grain": grain, **interval, **more}


def measured(warehouse):
    rows = [rolled_up("hour", TEN, n=2, min_ms=-5, max_ms=10, avg_ms=2.5, negative_n=1), rolled_up("minute", TEN, n=9)]
    rows += [rolled_up("hour", TEN, n=1, scope="task", task_id="a_0")]
    warehouse.write(LATENCY_ROLLUP, rows)
    # ln 10 / ln 1.02 = 116.3, so bucket 1 + 117; ln 1000 likewise
    warehouse.write(LATENCY_MINUTES, [minute_row(TEN, [10, 10, 1_000], batch_id=4) | {"window_start": TEN - 60_000}])


def test_latency_by_hour_keeps_hours_with_negative_latencies(ask):
    text = "SELECT operator, hour, n, negative_n, min_ms, avg_ms, max_ms, p50_ms FROM latency_by_hour"
    assert ask(text) == [("o", TEN, 2, 1, -5, 2.5, 10, None)]


def test_latency_buckets_has_a_row_for_each_bucket(ask):
    text = (
        "SELECT batch_id, operator, task_id, finished_at, window_start, bucket, n FROM latency_buckets ORDER BY bucket"
    )
    same = (4, "o", "0_0", TEN, TEN - 60_000)
    assert ask(text) == [(*same, 118, 2), (*same, 350, 1)]


def closed(end_ms, leaf, latencies):
    """Writes a window's path, and a step per operator of *latencies*."""
    window = {"topology": "t", "window_start": end_ms - 5_000, "window_end": end_ms}
    total = sum(latencies.values()) if leaf else None
    path = {**window, "latency_ms": total, "queued_ms": 1, "leaf": leaf, "state": "measured"}
    path |= {"waited_ms": 2, "over_sla": total > 40 if leaf == "x" and total else None}
    places = enumerate(latencies.items())
    steps = [{**window, "operator": o, "latency_ms": ms, "step": place if leaf else None} for place, (o, ms) in places]
    return path, steps


def finished(warehouse):
    windows = [
        closed(TEN, "x", {"a": 0, "b": 30, "x": 10}),
        closed(TEN + 5_000, "x", {"a": 0, "b": 50, "x": 10}),
        closed(TEN + 10_000, "y", {"a": 0, "y": 0}),
        closed(TEN + 15_000, None, {"a": 0}),
        closed(TEN + HOUR, "x", {"a": 0, "b": 7, "x": 7}),
    ]
    warehouse.write(CRITICAL_PATHS, [path for path, _ in windows])
    warehouse.write(CRITICAL_PATH_STEPS, [step for _, steps in windows for step in steps])


def test_paths_by_hour_count_windows_and_name_the_slowest(ask):
    text = """SELECT hour, leaf, windows, avg_ms, p50_ms, p90_ms, max_ms, queued_ms, waited_ms, over_sla_windows,
              slowest_operator, slowest_share"""
    assert ask(f"{text} FROM paths_by_hour") == [
        (TEN, "x", 2, 50.0, 40, 60, 60, 2, 4, 1, "b", 0.8),
        (TEN, "y", 1, 0.0, 0, 0, 0, 1, 2, None, "a", None),
        (TEN + HOUR, "x", 1, 14.0, 14, 14, 14, 1, 2, 0, "b", 0.5),
    ]


def watched(warehouse):
    """Writes a stream with progress, and one that has read nothing."""
    rows = [change(1, 0, "k", TEN, "1"), change(2, 0, "k", TEN - 5, "2")]
    warehouse.write(CHANGES, [{**row, "operator": "table"} for row in rows], "watched")
    mark = {"source": "in", "decided_at": TEN}
    marks = [
        {**mark, "batch_id": 1, "partition": 0, "newest_timestamp": TEN + 7},
        {**mark, "batch_id": 1, "watermark": TEN - 1_000, "activity": "active", "blocked_by": "0"},
        {**mark, "batch_id": 2, "watermark": TEN - 500, "activity": "idle"},
        {"batch_id": 2, "watermark": TEN - 400, "blocked_by": "in"},
    ]
    warehouse.write(PARTITION_BATCHES, marks, "watched")
    warehouse.write(
        PARTITION_BATCHES, [{"batch_id": 0, "source": "in", "decided_at": TEN, "activity": "active"}], "silent"
    )
    beats = [{"beat_at": TEN, "state": "running"}, {"beat_at": TEN + 9, "state": "drained"}]
    warehouse.write(HEARTBEATS, beats, "watched")


def test_freshness_is_how_far_record_and_watermark_are_behind(ask):
    before_ms = wall_clock_ms()
    told = "operator, newest_at, watermark, activity, blocked_by, last_beat_at, driver_state"
    assert ask(f"SELECT {told} FROM freshness_now WHERE sub_topology = 'watched'") == [
        ("in", TEN + 7, TEN - 500, "idle", None, TEN + 9, "drained"),
        ("table", TEN, TEN - 400, None, "in", TEN + 9, "drained"),
    ]
    behind = """SELECT newest_at, stale_ms, watermark, watermark_behind_ms, as_of FROM freshness_now
                WHERE sub_topology = 'watched'"""
    for newest_at, stale_ms, watermark, behind_ms, as_of in ask.of_spark(behind) + ask.of_duckdb(behind):
        assert before_ms <= as_of <= wall_clock_ms()
        assert abs(newest_at + stale_ms - as_of) <= 1  # as_of has microseconds, and is rounded here
        assert abs(watermark + behind_ms - as_of) <= 1


def test_what_a_stream_has_not_measured_is_not_fresh_but_unknown(ask):
    text = "SELECT operator, newest_at, stale_ms, watermark_behind_ms, driver_state FROM freshness_now"
    assert ask(f"{text} WHERE sub_topology = 'silent'") == [("in", None, None, None, None)]


def judged_by_sla(warehouse):
    judged = ["pass", "error", "error", "pass", "never_loaded"]
    rows = [
        {"topology": "t", "sla": "s", "subject": "board", "measure": "staleness", "verdict": verdict}
        | {"checked_at": TEN + place, "run_id": f"r{place}", "observed_ms": None if place > 3 else 10.0 * place}
        for place, verdict in enumerate(judged)
    ]
    burning = {"topology": "t", "sla": "budget", "measure": "burn_rate", "run_id": "r", "owner": "o", "over_ms": HOUR}
    rows += [
        {**burning, "checked_at": TEN + 24 * HOUR, "verdict": "warn", "burn_rate": 3.0, "budget_left": -2.0},
        {**burning, "checked_at": TEN + 25 * HOUR, "verdict": "unknown"},
        {**burning, "checked_at": TEN + 26 * HOUR, "verdict": "error", "excluded_because": "maintenance"},
    ]
    held = {"topology": "t", "sla": "open", "measure": "records", "resolve_after_ms": HOUR}
    rows += [
        {**held, "checked_at": TEN + 20, "run_id": "a", "verdict": "error", "records": 4},
        {**held, "checked_at": TEN + 21, "run_id": "b", "verdict": "pass", "records": 9},
        {**held, "checked_at": TEN + 22, "run_id": "c", "verdict": "pass", "records": 9},
    ]
    whole = {"objective": "promise", "target": 0.75, "window_ms": 10 * HOUR, "window_records": 400, "window_slow": 20}
    whole |= {"topology": "t", "measure": "burn_rate", "checked_at": TEN, "verdict": "pass", "budget_left": 0.8}
    rates = {"1h": (HOUR, 0.5), "6h": (6 * HOUR, None), "3d": (72 * HOUR, 0.25)}
    rows += [
        {**whole, "sla": f"promise_{name}", "run_id": "r", "over_ms": over_ms, "burn_rate": rate}
        for name, (over_ms, rate) in rates.items()
    ]
    warehouse.write(SLA_RESULTS, rows)
    told = {"topology": "t", "incident": "s-1", "sla": "s", "opened_at": TEN + 1, "broken_since": TEN}
    changes = [
        {**told, "change": "opened", "changed_at": TEN + 1, "verdict": "warn", "culprit": "a", "severity": "info"},
        {**told, "change": "escalated", "changed_at": TEN + 2, "verdict": "error", "culprit": "b", "message": "late"},
        {**told, "change": "acknowledged", "changed_at": TEN + 3, "verdict": "error", "decided_by": "Ann"},
        {**told, "change": "resolved", "changed_at": TEN + 4, "verdict": "pass"},
        {
            **told,
            "incident": "s-2",
            "change": "opened",
            "changed_at": TEN + 9,
            "opened_at": TEN + 9,
            "verdict": "never_loaded",
        },
        {
            **told,
            "incident": "o",
            "sla": "open",
            "change": "opened",
            "changed_at": TEN + 20,
            "opened_at": TEN + 20,
            "unit": "records",
        },
    ]
    warehouse.write(INCIDENTS, changes)


def test_the_attainment_of_a_week_is_of_checks_with_a_verdict(ask):
    text = "SELECT sla, week, checks, held, broken, unknown, attainment, owner FROM sla_attainment_by_week"
    text += " WHERE sla IN ('budget', 's')"
    monday = TEN - 10 * HOUR - 6 * 24 * HOUR  # TEN is on a Sunday
    assert ask(text) == [
        ("budget", monday + 7 * 24 * HOUR, 2, 0, 1, 1, 0.0, "o"),
        ("s", monday, 5, 2, 3, 0, 0.4, None),
    ]


def test_the_burn_rate_of_a_budget_is_there_for_each_check(ask):
    assert ask(
        "SELECT sla, checked_at, over_ms, burn_rate, budget_left, verdict FROM burn_rates WHERE sla = 'budget'"
    ) == [
        ("budget", TEN + 24 * HOUR, HOUR, 3.0, -2.0, "warn"),
        ("budget", TEN + 25 * HOUR, HOUR, None, None, "unknown"),
    ]


def test_an_incident_is_one_row_with_its_worst_text(ask):
    text = """SELECT incident, state, severity, broken_since, opened_at, escalated_at, acknowledged_at, acknowledged_by,
              resolved_at, worst_verdict, culprit, message FROM incident_history WHERE sla = 's'"""
    times = (TEN, TEN + 1, TEN + 2, TEN + 3, "Ann", TEN + 4)
    assert ask(text) == [
        # The newest check that found it broken names no culprit, and no longer that of its worst change.
        ("s-1", "resolved", "info", *times, "error", None, "late"),
        ("s-2", "open", None, TEN, TEN + 9, None, None, None, None, "never_loaded", None, None),
    ]


def test_an_incident_has_the_state_of_the_newest_check(ask):
    text = """SELECT incident, verdict, checked_at, passes_since, resolves_at, worst_observed, unit, broke_again
              FROM incident_history"""
    assert ask(text) == [
        ("o", "pass", TEN + 22, TEN + 21, TEN + 21 + HOUR, 4.0, "records", 0),
        # It was resolved although it had just broken again.
        ("s-1", "never_loaded", TEN + 4, None, None, 20.0, None, 1),
        ("s-2", None, None, None, None, None, None, None),
    ]


def test_an_error_budget_is_one_row_for_each_check(ask):
    """A quarter of 400 records may be slow, and 20 were."""
    text = """SELECT objective, checked_at, window_ms, records, slow_records, allowed_records, budget_left,
              burn_rate_1h, burn_rate_6h, burn_rate_3d FROM error_budgets"""
    assert ask(text) == [("promise", TEN, 10 * HOUR, 400, 20, 100.0, 0.8, 0.5, None, 0.25)]


def test_the_history_of_an_sla_is_its_verdicts_with_durations(ask):
    assert ask("SELECT since, until, verdict, checks, worst_observed_ms FROM sla_history WHERE sla = 's'") == [
        (TEN, TEN, "pass", 1, 0.0),
        (TEN + 1, TEN + 2, "error", 2, 20.0),
        (TEN + 3, TEN + 3, "pass", 1, 30.0),
        (TEN + 4, TEN + 4, "never_loaded", 1, None),
    ]


def counted(warehouse):
    counts = [
        {"batch_id": 0, "decided_at": TEN, "operator": "table", "emitted": 1, "suppressed": 3},
        {"batch_id": 0, "decided_at": TEN, "operator": "map", "emitted": 0, "suppressed": 0, "passed": 4},
        {"batch_id": 1, "decided_at": TEN + HOUR, "operator": "table", "emitted": 5, "suppressed": 0},
        {"batch_id": 2, "operator": "table", "emitted": 0, "suppressed": 1},
    ]
    warehouse.write(OPERATOR_BATCHES, counts, "a")


def test_savings_are_counted_by_the_hour_of_the_decision(ask):
    text = "SELECT operator, hour, judged, emitted, suppressed, suppressed_share FROM savings_by_hour"
    assert ask(text) == [
        ("table", TEN, 4, 1, 3, 0.75),
        ("table", TEN + HOUR, 5, 5, 0, 0.0),
        ("table", None, 1, 0, 1, 1.0),
    ]


def passed_by_tasks(warehouse):
    """Writes a window until TEN that batch 2 of two streams closed.

    Partitions 0 and 1 pass it in batch 1, and 2 in batch 2. Partition 3 is too late, and 4 has no time. Stream `one`
    has one shard, `two` has two, with partition 0 on a host 5 s ahead.
    """
    window = {"batch_id": 2, "window_start": TEN - 5_000, "window_end": TEN, "host": "driver", "skew_ms": 30}
    passed = [(0, 0, -9_000), (0, 1, -9_000), (0, 2, -9_000), (1, 0, 400), (1, 1, -1), (1, 2, -2), (2, 2, 9), (3, 3, 9)]
    marks = [{"batch_id": batch, "partition": number, "watermark": TEN + ms} for batch, number, ms in passed]
    marks += [{"batch_id": 0, "partition": 4}, {"batch_id": 0, "watermark": TEN}]
    for sub in ("one", "two"):
        closed = {"operator": f"in {sub}", "kind": "source", "ewt_at": TEN + 6_090}
        counts = {"operator": f"counts {sub}", "kind": "aggregate", "ewt_at": TEN + 6_200}
        warehouse.write(OPERATOR_WINDOWS, [{**window, **closed}, {**window, **counts}], sub)
        mark = {"source": f"in {sub}", "decided_at": TEN, "activity": "active"}
        warehouse.write(PARTITION_BATCHES, [{**mark, **row} for row in marks], sub)
    # Partition 1 passed by a mark of time, so that the source has no latency of it.
    task = {"task_id": "one_0", "partition": 0, "n": 5}
    measured = {"batch_id": 1, "operator": "in one", "finished_at": TEN + 2_070, "tasks": [task]}
    warehouse.write(OPERATOR_BATCHES, [measured], "one")
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": TEN + 2_150}], "one")
    tasks = [
        (1, {"partition": 0, "finished_at": TEN + 7_020, "records": 5, "skew_ms": -5_000}),
        (1, {"partition": 1, "finished_at": TEN + 2_040, "records": 6}),
        (2, {"partition": 0, "finished_at": TEN + 11_085, "records": 0, "skew_ms": -5_000}),
        (2, {"partition": 2, "finished_at": TEN + 6_030, "records": 7}),
    ]
    of_batches: dict[int, list[dict[str, object]]] = {1: [], 2: []}
    for batch_id, task in tasks:
        of_batches[batch_id].append({"host": "ahead" if "skew_ms" in task else "right", **task})
    taken_in = [{"batch_id": n, "operator": "in two", "tasks": of_batch} for n, of_batch in of_batches.items()]
    shard = {"finished_at": TEN + 6_150, "records": 3, "host": "right", "skew_ms": 20, "hot_key": "k", "hot_share": 0.5}
    shards = [{**shard, "shard": number} for number in (0, 1)]
    counted = {"batch_id": 2, "operator": "counts two", "finished_at": TEN + 6_200, "tasks": shards}
    warehouse.write(OPERATOR_BATCHES, [*taken_in, counted], "two")


def test_an_input_partition_ends_with_the_first_batch_past_it(ask):
    text = "SELECT partition, batch_id, host, ewt_at, ewt_adjusted_at, records FROM task_windows"
    assert ask(f"{text} WHERE sub_topology = 'one'") == [
        (0, 1, "driver", TEN + 2_070, TEN + 2_100, 5),
        (1, 1, "driver", TEN + 2_150, TEN + 2_180, 0),
        (2, 2, "driver", TEN + 6_090, TEN + 6_120, 0),
    ]
    assert ask(f"{text} WHERE sub_topology = 'two' AND partition IS NOT NULL") == [
        (0, 1, "ahead", TEN + 7_020, TEN + 2_050, 5),
        (1, 1, "right", TEN + 2_040, TEN + 2_070, 6),
        (2, 2, "right", TEN + 6_030, TEN + 6_060, 7),
    ]


def test_a_shard_ends_with_the_batch_that_closed_the_window(ask):
    text = (
        "SELECT shard, operator, batch_id, ewt_adjusted_at, records, hot_key, hot_share, window_end FROM task_windows"
    )
    ended = ("counts two", 2, TEN + 6_200, 3, "k", 0.5, TEN)
    assert ask(f"{text} WHERE shard IS NOT NULL") == [(0, *ended), (1, *ended)]


def test_a_published_script_gives_a_catalog_the_same_rows(spark, tmp_path):
    home = tmp_path / "it's ${here}"
    play = Play(BOARD, home)
    play.batch([play.row("events", ms(0), id="a", v=1), play.row("events", ms(0), id="b", v=2)], at_ms=ms(1))
    # A few names, because each takes Spark a moment; test_metastore reads all.
    few = ("board", "batches", "changes", "suppressed", "latest_state")
    made = tuple(f"CREATE OR REPLACE VIEW `{name}`" for name in few) + tuple(
        f"CREATE TABLE IF NOT EXISTS `play__events__{name}`" for name in (*few, "changes_of_board")
    )
    published = statements_of(script(Layout(home), schema="published"))
    statements = [text for text in published if text.startswith(("SET", "CREATE SCHEMA", "USE", *made))]
    spark = spark.newSession()  # without the temporary views of other tests, which have the same names
    try:
        for _ in range(2):  # a second run changes nothing
            for statement in statements:
                spark.sql(statement)
        play.batch([play.row("events", ms(2), id="a", v=3)], at_ms=ms(3))  # after the tables were published
        board = spark.sql("SELECT id, v FROM published.board ORDER BY id").collect()
        assert [tuple(row) for row in board] == [("a", 3), ("b", 2)]
        latest = spark.sql("SELECT key, value FROM published.latest_state ORDER BY key").collect()
        assert [tuple(row) for row in latest] == [("a", '{"v":3}'), ("b", '{"v":2}')]
        names = {row.tableName for row in spark.sql("SHOW TABLES IN published").collect() if not row.isTemporary}
        assert {*few, "play__events__board", "play__events__changes_of_board"} <= names
    finally:
        spark.sql("USE default")
        spark.sql("DROP SCHEMA IF EXISTS published CASCADE")
    assert play.rows("board")  # external tables stay


def died(warehouse):
    """Writes records that did not go on, of each kind."""
    place = {"partition": 2, "offset": 7, "value": b"\x00"}
    rows = [
        {"kind": "late", "batch_id": 1, **place, "key": "é".encode(), "timestamp": 5, "watermark": 9, "lateness_ms": 4},
        {"kind": "late", "batch_id": 2, **place, "key": b"\xff", "headers": [{"key": "h", "value": b"\xff"}]},
        {"kind": "quarantined", "batch_id": 3, **place, "key": b"\xff", "topic": "t", "reason": "null_key"},
        {"kind": "undeliverable", "batch_id": 4, **place, "key": None, "topic": "t", "detail": "too large"},
    ]
    warehouse.write(DEAD_LETTERS, [{"operator": "o", **row} for row in rows])


def test_dead_letters_are_seen_by_the_name_of_their_kind(ask):
    late = (
        "SELECT batch_id, operator, partition, key, timestamp, watermark, lateness_ms, value, headers FROM late_records"
    )
    assert ask(late) == [
        (1, "o", 2, "é", 5, 9, 4, b"\x00", None),
        (2, "o", 2, None, None, None, None, b"\x00", [{"key": "h", "value": b"\xff"}]),
    ]
    assert ask("SELECT batch_id, source, topic, partition, reason, key, value FROM quarantine") == [
        (3, "o", "t", 2, "null_key", b"\xff", b"\x00")
    ]
    refused = "SELECT batch_id, operator, topic, source_partition, source_offset, key, value, error FROM undeliverable"
    assert ask(refused) == [(4, "o", "t", 2, 7, None, b"\x00", "too large")]


# It comes last: the session has one set of views, and these are empty.
def test_an_empty_warehouse_has_every_view_without_rows(spark, tmp_path):
    ask = BothEngines(spark, Layout(tmp_path))
    for view in views():
        assert view.row, view.name
        assert ask(f"SELECT * FROM {view.name}") == []
        of_duckdb = ask.of_duckdb(f"DESCRIBE {view.name}")
        assert spark.table(view.name).dtypes == [(name, SPARKS[kind]) for name, kind, *_ in of_duckdb], view.name


SPARKS = {
    "VARCHAR": "string",
    "BIGINT": "bigint",
    "INTEGER": "int",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
    "BLOB": "binary",
    'STRUCT("key" VARCHAR, "value" BLOB)[]': "array<struct<key:string,value:binary>>",
}
"""Spark's words for the types of DuckDB."""
