from __future__ import annotations

import logging
import math
import random
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import rollup
from support.latency_facts import minute_row
from support.play import Play
from support.topologies import NEWEST_SENT
from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.kernels.reports.rollups import NO_OUTLINE, Outline
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval, instant_ms
from tidemark.model.tables.catalog import LATENCY_MINUTES, LATENCY_ROLLUP
from tidemark.reports.outline import outline
from tidemark.semantics.buckets import bucket_of, quantile
from tidemark.storage.delta.tables import create

MINUTE, HOUR, DAY = (grain.length_ms for grain in Grain)
MIDNIGHT = instant_ms("2026-03-01")


def test_minutes_hours_and_days_by_hand(warehouse):
    measured(warehouse, MIDNIGHT + 10 * HOUR, [100, 200, 300, -5], sub_topology="a")
    measured(warehouse, MIDNIGHT + 10 * HOUR + 59_999, [400], sub_topology="a", batch_id=1)
    measured(warehouse, MIDNIGHT + 10 * HOUR + 60_000, [1_000], sub_topology="a", batch_id=2)
    measured(warehouse, MIDNIGHT + 11 * HOUR, [7], sub_topology="a", batch_id=3)
    measured(warehouse, MIDNIGHT + 10 * HOUR, [0], sub_topology="b")

    roll_up(warehouse)

    rows = {
        (row["sub_topology"], row["grain"], f"{row['interval_start']:%H:%M}"): row
        for row in rows_in(warehouse, LATENCY_ROLLUP)
        if row["scope"] == "operator"
    }
    columns = ("n", "min_ms", "max_ms", "sum_ms", "negative_n", "avg_ms")
    assert {key: tuple(row[column] for column in columns) for key, row in rows.items()} == {
        ("a", "minute", "10:00"): (5, -5, 400, 995, 1, 199.0),
        ("a", "minute", "10:01"): (1, 1_000, 1_000, 1_000, 0, 1_000.0),
        ("a", "minute", "11:00"): (1, 7, 7, 7, 0, 7.0),
        ("a", "hour", "10:00"): (6, -5, 1_000, 1_995, 1, 332.5),
        ("a", "hour", "11:00"): (1, 7, 7, 7, 0, 7.0),
        ("a", "day", "00:00"): (7, -5, 1_000, 2_002, 1, 286.0),
        ("b", "minute", "10:00"): (1, 0, 0, 0, 0, 0.0),
        ("b", "hour", "10:00"): (1, 0, 0, 0, 0, 0.0),
        ("b", "day", "00:00"): (1, 0, 0, 0, 0, 0.0),
    }
    day = rows["a", "day", "00:00"]
    assert day["interval_end"].isoformat() == "2026-03-02T00:00:00+00:00"
    assert day["p50_ms"] == pytest.approx(200, rel=0.01)  # the fourth of -5, 7, 100, 200, 300, 400, 1000
    assert day["p99_ms"] == pytest.approx(1_000, rel=0.01)  # the seventh: six are 86 %


def test_all_scopes_count_the_same_records(warehouse):
    measured(warehouse, MIDNIGHT, [100, 3_000], operator="events", batch_id=0)
    measured(warehouse, MIDNIGHT, [200], operator="board", batch_id=1, task=0)
    measured(warehouse, MIDNIGHT, [4_000], operator="board", batch_id=2, task=1)
    measured(warehouse, MIDNIGHT, [500], operator="totals", sub_topology="z")

    paths = {"board": "events → board", "totals": "events → by_key → totals"}
    roll_up(warehouse, known=Outline(paths, {"board": 1_000}))

    of = ("scope", "sub_topology", "operator", "kind", "task_id", "path", "n", "max_ms", "sla_ms", "over_sla_n")
    assert [tuple(row[c] for c in of) for row in rows_in(warehouse, LATENCY_ROLLUP) if row["grain"] == "day"] == [
        ("operator", "s", "board", "sink", None, None, 2, 4_000, 1_000, 1),
        ("operator", "s", "events", "sink", None, None, 2, 3_000, None, None),
        ("operator", "z", "totals", "sink", None, None, 1, 500, None, None),
        ("path", None, None, None, None, "events → board", 2, 4_000, 1_000, 1),
        ("path", None, None, None, None, "events → by_key → totals", 1, 500, None, None),
        ("task", "s", "board", "sink", "s_0", None, 1, 200, 1_000, 0),
        ("task", "s", "board", "sink", "s_1", None, 1, 4_000, 1_000, 1),
        ("task", "s", "events", "sink", "s_0", None, 2, 3_000, None, None),
        ("task", "z", "totals", "sink", "z_0", None, 1, 500, None, None),
        ("topology", None, None, None, None, None, 3, 4_000, None, None),
    ]


def test_measurements_are_rolled_up_by_paths_of_the_topology(tmp_path):
    play = Play(NEWEST_SENT, tmp_path, partitions=2)
    rows = [play.row("events", MIDNIGHT, id="a"), play.row("events", MIDNIGHT - 500, partition=1, id="b")]
    play.batch(rows, at_ms=MIDNIGHT + 1_000)

    rollup.run(Layout(tmp_path), "play", topology_outline=outline(play.topology, ()))

    found = DeltaTable(Layout(tmp_path).report_table("play", LATENCY_ROLLUP.name)).to_pyarrow_table().to_pylist()
    of = ("scope", "operator", "task_id", "path", "n", "min_ms", "max_ms")
    assert {tuple(row[c] for c in of) for row in found if row["grain"] == "minute"} == {
        *(("operator", name, None, None, 2, 1_000, 1_500) for name in ("events", "board", "out")),
        *(("task", name, "events_0", None, 1, 1_000, 1_000) for name in ("events", "board", "out")),
        *(("task", name, "events_1", None, 1, 1_500, 1_500) for name in ("events", "board", "out")),
        ("topology", None, None, None, 4, 1_000, 1_500),
        ("path", None, None, "events → newest → board", 2, 1_000, 1_500),
        ("path", None, None, "events → newest → out", 2, 1_000, 1_500),
    }


def test_percentiles_are_those_of_ring_zero(warehouse):
    rng = random.Random(7)
    latencies = [round(rng.lognormvariate(5, 2)) * rng.choice((1, 1, 1, -1)) for _ in range(2_000)]
    measured(warehouse, MIDNIGHT, latencies)

    roll_up(warehouse)

    minute, _ = (row for row in rows_in(warehouse, LATENCY_ROLLUP) if row["grain"] == "minute")
    buckets = [(bucket_of(latency), 1) for latency in latencies]
    for column, q in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999)):
        expected = quantile(buckets, q, min_ms=min(latencies), max_ms=max(latencies))
        assert math.isclose(minute[column], expected or 0, rel_tol=1e-12)


def test_rollups_do_not_depend_on_pieces_or_order_of_facts(warehouse):
    rng = random.Random(3)
    for piece in range(4):
        for batch_id in range(3):
            at_ms = MIDNIGHT + rng.randrange(6 * HOUR)
            measured(warehouse, at_ms, [rng.randrange(-50, 9_000)], rng.choice("ab"), batch_id=3 * piece + batch_id)
        roll_up(warehouse, *rng.choice([(), (MIDNIGHT + HOUR, MIDNIGHT + 3 * HOUR)]))
    in_pieces = rolled_up(warehouse)

    forget(warehouse)
    roll_up(warehouse)

    assert rolled_up(warehouse) == in_pieces
    roll_up(warehouse, MIDNIGHT, MIDNIGHT + 6 * HOUR)
    assert rolled_up(warehouse) == in_pieces


def test_late_facts_recompute_only_their_minute_hour_and_day(warehouse):
    for batch_id, hour in enumerate((9, 10, 11)):
        measured(warehouse, MIDNIGHT + hour * HOUR, [hour], batch_id=batch_id)
        measured(warehouse, MIDNIGHT + hour * HOUR + MINUTE, [hour], batch_id=batch_id, operator="p")
    roll_up(warehouse)
    were = files(warehouse, LATENCY_ROLLUP)
    touched = {path for path in files(warehouse, LATENCY_MINUTES) if batches(path) == {1}}

    measured(warehouse, MIDNIGHT + 10 * HOUR + 1, [20], batch_id=3)
    touched |= {path for path in files(warehouse, LATENCY_MINUTES) if batches(path) == {3}}
    with without(warehouse, keep=touched):
        roll_up(warehouse)

    home = place(warehouse, LATENCY_ROLLUP)
    gone = [path.parent.relative_to(home) for path in were - files(warehouse, LATENCY_ROLLUP)]
    grains, scopes = ("day", "hour", "minute"), ("operator", "task")
    assert sorted(map(str, gone)) == [f"grain={grain}/scope={scope}" for grain in grains for scope in scopes]
    rows = [row for row in rows_in(warehouse, LATENCY_ROLLUP) if row["scope"] == "operator" and row["operator"] == "o"]
    assert sorted((row["grain"], f"{row['interval_start']:%H:%M}", row["n"], row["max_ms"]) for row in rows) == [
        ("day", "00:00", 4, 20),
        *(("hour", "09:00", 1, 9), ("hour", "10:00", 2, 20), ("hour", "11:00", 1, 11)),
        *(("minute", "09:00", 1, 9), ("minute", "10:00", 2, 20), ("minute", "11:00", 1, 11)),
    ]


def test_without_new_facts_a_rollup_reads_and_commits_nothing(warehouse):
    measured(warehouse, MIDNIGHT, [1], "a")
    measured(warehouse, MIDNIGHT, [1], "b")
    roll_up(warehouse)
    were = version(warehouse)

    with without(warehouse, keep=set()):
        roll_up(warehouse)

    assert version(warehouse) == were


def test_an_explicit_interval_is_always_rolled_up_again(warehouse):
    for batch_id, minute in enumerate((0, 30, 59, 60)):
        measured(warehouse, MIDNIGHT + minute * MINUTE, [minute], batch_id=batch_id)
    roll_up(warehouse)
    were = rolled_up(warehouse)
    opened(warehouse, LATENCY_ROLLUP).delete("interval_start < '2026-03-01T01:00:00Z'")

    roll_up(warehouse)
    assert len(rolled_up(warehouse)) < len(were)
    roll_up(warehouse, MIDNIGHT + 30 * MINUTE, MIDNIGHT + 31 * MINUTE)

    assert rolled_up(warehouse) == were


@pytest.mark.parametrize("commits", range(2))
def test_the_next_rollup_completes_a_killed_one(warehouse, monkeypatch, commits):
    measured(warehouse, MIDNIGHT, [1])
    roll_up(warehouse)
    measured(warehouse, MIDNIGHT + 1, [2], batch_id=1)
    measured(warehouse, MIDNIGHT + HOUR, [3], batch_id=2)
    made, replace_in = [], rollup.replace_in

    def killed(*given, **named):
        if len(made) == commits:
            raise KeyboardInterrupt
        made.append(replace_in(*given, **named))

    monkeypatch.setattr(rollup, "replace_in", killed)
    with pytest.raises(KeyboardInterrupt):
        roll_up(warehouse)
    monkeypatch.undo()
    roll_up(warehouse)

    made_good = rolled_up(warehouse)
    forget(warehouse)
    roll_up(warehouse)
    assert rolled_up(warehouse) == made_good
    assert len(made_good) == 2 * (2 + 2 + 1)  # operator and task; minutes, hours and the day


def test_later_facts_of_a_second_operator_are_not_missed(warehouse):
    measured(warehouse, MIDNIGHT, [1], operator="inner")
    roll_up(warehouse)
    measured(warehouse, MIDNIGHT, [1], operator="outer")

    roll_up(warehouse)

    assert {row["operator"] for row in rows_in(warehouse, LATENCY_ROLLUP)} == {"inner", "outer"}


def test_a_stream_restarted_at_batch_0_adds_to_old_rollups(warehouse):
    measured(warehouse, MIDNIGHT, [1], batch_id=7)
    roll_up(warehouse)
    shutil.rmtree(place(warehouse, LATENCY_MINUTES))
    measured(warehouse, MIDNIGHT + MINUTE, [2])

    roll_up(warehouse)

    rows = [row for row in rows_in(warehouse, LATENCY_ROLLUP) if row["scope"] == "operator"]
    assert sorted((row["grain"], row["n"]) for row in rows) == [("day", 2), ("hour", 2), ("minute", 1), ("minute", 1)]
    were = version(warehouse)
    roll_up(warehouse)
    assert version(warehouse) == were


def test_facts_of_compacted_files_are_rolled_up_once(warehouse):
    for batch_id in range(3):
        measured(warehouse, MIDNIGHT + batch_id * MINUTE, [batch_id], batch_id=batch_id)
    roll_up(warehouse)
    measured(warehouse, MIDNIGHT + 2 * MINUTE, [9], batch_id=3)
    opened(warehouse, LATENCY_MINUTES).optimize.compact()

    roll_up(warehouse)

    rows = [row for row in rows_in(warehouse, LATENCY_ROLLUP) if row["scope"] == "operator"]
    assert sorted((row["grain"], row["n"]) for row in rows) == [
        ("day", 4), ("hour", 4), ("minute", 1), ("minute", 1), ("minute", 2),
    ]  # fmt: skip
    roll_up(warehouse)
    were = version(warehouse)
    roll_up(warehouse)
    assert version(warehouse) == were


def test_an_interval_of_deleted_facts_is_refused_and_rows_stay(warehouse):
    for batch_id, minute in enumerate((0, 1, 2)):
        measured(warehouse, MIDNIGHT + minute * MINUTE, [minute], batch_id=batch_id)
    roll_up(warehouse)
    were = rolled_up(warehouse)
    opened(warehouse, LATENCY_MINUTES).delete("batch_id < 2")

    gone = r"\[2026-03-01T00:00:00.000Z, 2026-03-01T00:02:00.000Z\) have fewer facts .* batches: 2 of s; choose a"
    with pytest.raises(InvalidArgument, match=gone):
        roll_up(warehouse, MIDNIGHT, MIDNIGHT + HOUR)

    assert rolled_up(warehouse) == were
    forget(warehouse)
    roll_up(warehouse, MIDNIGHT, MIDNIGHT + HOUR)
    assert {row["n"] for row in rows_in(warehouse, LATENCY_ROLLUP)} == {1}


def test_late_facts_of_a_deleted_minute_change_no_rollup(warehouse, caplog):
    measured(warehouse, MIDNIGHT, [1, 2])
    measured(warehouse, MIDNIGHT + MINUTE, [3], batch_id=1)
    roll_up(warehouse)
    opened(warehouse, LATENCY_MINUTES).delete("batch_id = 0")
    measured(warehouse, MIDNIGHT + 1, [4], batch_id=2)
    measured(warehouse, MIDNIGHT + MINUTE, [5], batch_id=3)

    with caplog.at_level(logging.WARNING, "tidemark.rollup"):
        roll_up(warehouse)
        roll_up(warehouse)

    (message,) = (record.getMessage() for record in caplog.records)
    assert "[2026-03-01T00:00:00.000Z, 2026-03-01T00:01:00.000Z) have fewer facts" in message
    rows = [row for row in rows_in(warehouse, LATENCY_ROLLUP) if row["scope"] == "operator"]
    assert sorted((row["grain"], row["n"], row["max_ms"]) for row in rows) == [
        ("day", 4, 5), ("hour", 4, 5), ("minute", 2, 2), ("minute", 2, 5),
    ]  # fmt: skip


@pytest.mark.parametrize("interval", [(), (MIDNIGHT, MIDNIGHT + HOUR)])
def test_a_topology_without_facts_gets_an_empty_table(warehouse, interval):
    roll_up(warehouse, *interval)

    assert rolled_up(warehouse) == []


@pytest.mark.parametrize("second_hour", [10, 11])
def test_concurrent_rollups_leave_the_same_as_consecutive_ones(warehouse, monkeypatch, second_hour):
    for batch_id, hour in enumerate((10, 11)):
        measured(warehouse, MIDNIGHT + hour * HOUR, [hour], batch_id=batch_id)
    roll_up(warehouse)
    were = rolled_up(warehouse)
    measured(warehouse, MIDNIGHT + second_hour * HOUR, [12], batch_id=2)
    both_have_read = threading.Barrier(2)
    shrunk, waited = rollup.shrunk_minutes, threading.local()

    def when_both_have_read(*given):
        if not hasattr(waited, "once"):
            waited.once = True
            both_have_read.wait(60)
        return shrunk(*given)

    monkeypatch.setattr(rollup, "shrunk_minutes", when_both_have_read)
    with ThreadPoolExecutor(2) as pool:
        starts = [MIDNIGHT + hour * HOUR for hour in (10, second_hour)]
        for done in [pool.submit(roll_up, warehouse, start, start + HOUR) for start in starts]:
            done.result()

    monkeypatch.undo()

    at_once = rolled_up(warehouse)
    assert at_once != were
    forget(warehouse)
    roll_up(warehouse)
    assert rolled_up(warehouse) == at_once


@pytest.mark.parametrize("end", ["--from", "--to"])
def test_an_interval_with_one_end_is_refused(monkeypatch, capsys, end):
    monkeypatch.setattr(sys, "argv", ["rollup", "--warehouse", "w", "--topology", "flights", end, "2026-03-01"])
    with pytest.raises(SystemExit):
        rollup.main()
    assert "give both --from and --to, or neither" in capsys.readouterr().err


@pytest.fixture
def warehouse(tmp_path):
    return Layout(tmp_path / "it's here")


def measured(warehouse, finished_at_ms, latencies, sub_topology="s", *, batch_id=0, operator="o", task=0):
    """Writes facts of *operator* for one batch."""
    row = minute_row(finished_at_ms, latencies, batch_id=batch_id, operator=operator, task_id=f"{sub_topology}_{task}")
    path = place(warehouse, LATENCY_MINUTES, sub_topology)
    create(path, arrow_schema(LATENCY_MINUTES))
    same = {"topology": "t", "sub_topology": sub_topology}
    write_deltalake(path, rows_of(LATENCY_MINUTES, [row], **same), mode="append")


def roll_up(warehouse, start_ms=None, end_ms=None, known=NO_OUTLINE):
    interval = None if start_ms is None else Interval(start_ms, end_ms)
    rollup.run(warehouse, "t", interval, known)


def rolled_up(warehouse):
    return rows_in(warehouse, LATENCY_ROLLUP)


def forget(warehouse):
    shutil.rmtree(place(warehouse, LATENCY_ROLLUP))


def rows_in(warehouse, table):
    return sorted(opened(warehouse, table).to_pyarrow_table().to_pylist(), key=str)


def opened(warehouse, table):
    return DeltaTable(place(warehouse, table))


def place(warehouse, table, sub_topology="s"):
    if table is LATENCY_MINUTES:
        return warehouse.stream_table("t", sub_topology, table.name)
    return warehouse.report_table("t", table.name)


def files(warehouse, table):
    """Paths of the data files that *table* has now."""
    log = pl.DataFrame(opened(warehouse, table).get_add_actions())
    return {place(warehouse, table) / path for path in log["path"]}


def version(warehouse):
    return opened(warehouse, LATENCY_ROLLUP).version()


def batches(file):
    return set(pq.read_table(file, columns=["batch_id"])["batch_id"].to_pylist())


@contextmanager
def without(warehouse, *, keep):
    """Makes all data files of facts unreadable but those to *keep*."""
    streams = warehouse.warehouse / "streams"
    hidden = [path for path in streams.rglob("*.parquet") if path not in keep and "_delta_log" not in path.parts]
    assert hidden
    for path in hidden:
        path.rename(path.with_suffix(".hidden"))
    yield
    for path in hidden:
        path.with_suffix(".hidden").rename(path)
