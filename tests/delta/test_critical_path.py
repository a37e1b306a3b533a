from __future__ import annotations

import shutil

import pytest
from deltalake import DeltaTable

from support.latency_facts import minute_row
from support.report_warehouse import WINDOW_MS, reading
from tidemark.errors import InvalidArgument
from tidemark.model.measures.latency import LATENCY_P99
from tidemark.model.measures.operator_latency import OPERATOR_LATENCY_P50
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    LATENCY_MINUTES,
    OPERATOR_WINDOWS,
)
from tidemark.reports.paths import report as job
from tidemark.semantics.sla import Sla

SEED = {"A": (), "B": ("A",), "C": ("A",), "D": ("B",), "E": ("C",), "F": ("C",)}
SEED_EWT = {"A": 0, "B": 5, "C": 100, "D": 35, "E": 120, "F": 102}


def test_the_worked_example(warehouse):
    ewts = {name: 7_000 + ewt for name, ewt in SEED_EWT.items()}
    finished(warehouse, 0, ewts, queued={"C": 30}, began=6_990)

    report(warehouse, SEED)

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert path["path"] == "A (0 ms) → C (100 ms) → E (20 ms) = 120 ms"
    assert (path["latency_ms"], path["queued_ms"], path["leaf"], path["state"]) == (120, 30, "E", "measured")
    assert path["before_source_ms"] == 2_000
    assert (path["waited_ms"], path["moving_average_ms"], path["moving_average_path"]) == (0, 120, path["path"])
    columns = ("step", "slowest_upstream", "latency_ms", "queued_ms", "share", "slack_ms", "state")
    assert {row["operator"]: tuple(row[c] for c in columns) for row in warehouse.report(CRITICAL_PATH_STEPS)} == {
        "A": (0, None, 0, 0, 0.0, 0, "input"),
        "B": (None, "A", 5, 0, None, 85, "measured"),
        "C": (1, "A", 100, 30, 100 / 120, 0, "measured"),
        "D": (None, "B", 30, 0, None, 85, "measured"),
        "E": (2, "C", 20, 0, 20 / 120, 0, "measured"),
        "F": (None, "C", 2, 0, None, 18, "measured"),
    }
    columns = ("leaf", "source", "latency_ms", "before_source_ms", "behind_ms")
    assert [tuple(leaf[c] for c in columns) for leaf in path["leaves"]] == [
        ("E", "A", 120, 2_000, 0), ("F", "A", 102, 2_000, 18), ("D", "A", 35, 2_000, 85),
    ]  # fmt: skip


def test_a_path_crosses_sub_topologies(warehouse):
    finished(warehouse, 0, {"A": 6_000, "R": 6_100}, sub_topology="a")
    finished(warehouse, 0, {"R_source": 7_100, "S": 7_150}, sub_topology="b")

    report(warehouse, {"A": (), "R": ("A",), "R_source": ("R",), "S": ("R_source",)})

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert path["path"] == "A (0 ms) → R (100 ms) → R_source (1,000 ms) → S (50 ms) = 1,150 ms"


def test_an_unfinished_window_has_no_path_but_names_operators(warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 6_010})

    report(warehouse, {"A": (), "B": ("A",), "C": ("B",), "D": ("C",)})

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert (path["state"], path["path"], path["latency_ms"], path["leaf"]) == ("no_window_yet", None, None, None)
    steps = {
        row["operator"]: (row["state"], row["latency_ms"], row["slack_ms"])
        for row in warehouse.report(CRITICAL_PATH_STEPS)
    }
    assert steps == {
        "A": ("input", 0, None),
        "B": ("measured", 10, None),
        "C": ("no_window_yet", None, None),
        "D": ("no_window_yet", None, None),
    }


def test_a_later_run_replaces_only_open_windows(warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 6_010})
    finished(warehouse, 1, {"A": 11_000})
    upstreams = {"A": (), "B": ("A",)}
    report(warehouse, upstreams, 0, 20_000)
    finished(warehouse, 1, {"B": 11_020})

    for _ in range(2):
        report(warehouse, upstreams, 10_000, 10_001)

    assert sorted(row["path"] for row in warehouse.report(CRITICAL_PATHS)) == [
        "A (0 ms) → B (10 ms) = 10 ms",
        "A (0 ms) → B (20 ms) = 20 ms",
    ]
    assert len(warehouse.report(CRITICAL_PATH_STEPS)) == 4


def test_a_path_remains_after_its_facts_are_deleted(warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 6_010})
    upstreams = {"A": (), "B": ("A",)}
    report(warehouse, upstreams)
    once = warehouse.report(CRITICAL_PATHS), warehouse.report(CRITICAL_PATH_STEPS)
    DeltaTable(warehouse.layout.stream_table("t", "s", OPERATOR_WINDOWS.name)).delete("operator = 'B'")

    with pytest.raises(InvalidArgument, match="1 windows that end from 1970-01-01T00:00:05"):
        report(warehouse, upstreams)

    assert (warehouse.report(CRITICAL_PATHS), warehouse.report(CRITICAL_PATH_STEPS)) == once


def test_an_operator_that_ends_before_its_upstream_is_clamped(warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 5_900})

    report(warehouse, {"A": (), "B": ("A",)})

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert path["path"] == "A (0 ms) → B (0 ms, clamped_negative) = 0 ms"
    assert path["state"] == "clamped_negative"


def test_waiting_of_a_hop_is_separate_from_work_and_queue(warehouse):
    finished(warehouse, 0, {"A": 6_000, "R": 6_100}, sub_topology="a", began=5_900)
    finished(warehouse, 0, {"R_source": 7_100, "S": 7_250}, sub_topology="b", began=7_040, queued={"S": 30})

    report(warehouse, {"A": (), "R": ("A",), "R_source": ("R",), "S": ("R_source",)})

    columns = ("latency_ms", "waited_ms", "queued_ms", "worked_ms")
    assert {row["operator"]: tuple(row[c] for c in columns) for row in warehouse.report(CRITICAL_PATH_STEPS)} == {
        "A": (0, 0, 0, 0), "R": (100, 0, 0, 100), "R_source": (1_000, 940, 0, 60), "S": (150, 0, 30, 120),
    }  # fmt: skip
    (path,) = warehouse.report(CRITICAL_PATHS)
    assert (path["latency_ms"], path["waited_ms"], path["queued_ms"]) == (1_250, 940, 30)


def test_without_the_start_of_a_batch_waiting_and_work_are_null(warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 6_010}, queued={"B": 3})

    report(warehouse, {"A": (), "B": ("A",)})

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert (path["latency_ms"], path["waited_ms"], path["queued_ms"]) == (10, None, 3)
    (step,) = (row for row in warehouse.report(CRITICAL_PATH_STEPS) if row["operator"] == "B")
    assert (step["waited_ms"], step["worked_ms"]) == (None, None)


def test_a_window_is_over_its_sla_by_its_records_or_by_work(warehouse):
    for window, (a, b) in enumerate([(6_000, 6_300), (11_000, 11_301), (16_700, 16_999)]):
        finished(warehouse, window, {"A": a, "B": b}, began=a - 10)
    latencies(warehouse, 0, finished_at=4_000, latency_ms=1_990)
    latencies(warehouse, 1, finished_at=9_000, latency_ms=1_990)
    latencies(warehouse, 2, finished_at=17_099, latency_ms=2_100)  # its timestamp is the last of the third window

    # B worked 300, 301 and 299 ms on them.
    by_records, by_work = ("latency_p99", 0.99, 2_000), ("operator_latency_p50", None, 300)
    assert judged(warehouse, latency_ms=2_000, work_ms=300) == [
        (True, [(*by_work, 300, True), (*by_records, 1_990, False)]),
        (True, [(*by_work, 301, True), (*by_records, 1_990, False)]),
        (True, [(*by_records, 2_100, True), (*by_work, 299, False)]),
    ]
    assert judged(warehouse) == [(None, None)] * 3
    assert judged(warehouse, work_ms=300) == [
        (True, [(*by_work, 300, True)]), (True, [(*by_work, 301, True)]), (False, [(*by_work, 299, False)])
    ]  # fmt: skip


def test_the_error_of_a_path_is_that_of_its_worst_clock(warehouse):
    upstreams = {"A": (), "B": ("A",)}
    hosts = {"one": {"host": "x"}, "two": {"host": "y", "skew_ms": 7, "skew_error_ms": 4}}
    told = {"host": "x", "skew_ms": 0, "skew_error_ms": 2}
    finished(warehouse, 0, {"A": 6_000, "B": 6_010}, **hosts["one"])
    finished(warehouse, 1, {"A": 11_000}, **told)
    finished(warehouse, 1, {"B": 11_010}, "b", **hosts["two"])
    finished(warehouse, 2, {"A": 16_000}, **hosts["one"])
    finished(warehouse, 2, {"B": 16_010}, "b", **hosts["two"])
    finished(warehouse, 3, {"A": 21_000, "B": 21_010})

    report(warehouse, upstreams)

    assert [row["skew_error_ms"] for row in paths_in_order(warehouse)] == [0, 4, None, None]


def test_a_moving_average_is_over_ten_windows_in_any_interval(warehouse):
    own = [100, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10, 21]
    for window, ms in enumerate(own):
        finished(warehouse, window, {"A": window * WINDOW_MS, "B": window * WINDOW_MS + ms})
    upstreams = {"A": (), "B": ("A",)}

    report(warehouse, upstreams)
    at_once = warehouse.report(CRITICAL_PATHS)
    # 109 / 10, (9 + 10) / 10, (9 + 10 + 21) / 10, truncated
    assert [row["moving_average_ms"] for row in paths_in_order(warehouse)][-3:] == [10, 1, 4]
    assert paths_in_order(warehouse)[-1]["moving_average_path"] == "A (0 ms) → B (4 ms) = 4 ms"

    forget(warehouse, CRITICAL_PATHS)
    for start_ms, end_ms in ((0, 50_000), (50_000, 60_000), (60_000, 60_001)):
        report(warehouse, upstreams, start_ms, end_ms)
    assert warehouse.report(CRITICAL_PATHS) == at_once


def test_recomputed_paths_are_equal_even_after_a_crash(warehouse, monkeypatch):
    for window in range(3):
        finished(warehouse, window, {name: (window + 2) * WINDOW_MS + ewt for name, ewt in SEED_EWT.items()})
    report(warehouse, SEED)
    tables = (CRITICAL_PATHS, CRITICAL_PATH_STEPS)
    once = [warehouse.report(table) for table in tables]
    assert [len(rows) for rows in once] == [3, 18]

    for table in tables:
        forget(warehouse, table)
    replace, written = job.replace_rows, []

    def dies_after_one(rows, table, path, *, where):
        if written:
            raise KeyboardInterrupt
        written.append(table)
        replace(rows, table, path, where=where)

    monkeypatch.setattr(job, "replace_rows", dies_after_one)
    with pytest.raises(KeyboardInterrupt):
        report(warehouse, SEED)
    monkeypatch.undo()
    for _ in range(2):
        report(warehouse, SEED)
        assert [warehouse.report(table) for table in tables] == once


def finished(warehouse, window, ewts, sub_topology="s", *, queued=None, began=None, **same):
    """Writes operators that finished a window, each at an epoch-ms instant.

    Their batch *began* at one.
    """
    start = window * WINDOW_MS
    rows = [
        {"batch_id": window, "operator": name, "window_start": start, "window_end": start + WINDOW_MS,
         "ewt_at": ewt, "ewt_adjusted_at": ewt, "queued_ms": (queued or {}).get(name, 0), "records": 1,
         "batch_started_at": began, **same}
        for name, ewt in ewts.items()
    ]  # fmt: skip
    warehouse.write(OPERATOR_WINDOWS, rows, sub_topology)


def report(warehouse, upstreams, start_ms=0, end_ms=100_000):
    job.run(warehouse.layout, reading(upstreams), (), Interval(start_ms, end_ms))


def forget(warehouse, table):
    """Have no rows of a report, as before its first run."""
    shutil.rmtree(warehouse.layout.report_table("t", table.name))


def paths_in_order(warehouse):
    return sorted(warehouse.report(CRITICAL_PATHS), key=lambda row: row["window_end"])


def latencies(warehouse, batch_id, *, finished_at, latency_ms):
    """Ten records of one latency that B finished."""
    row = minute_row(finished_at, [latency_ms] * 10, batch_id=batch_id, operator="B", task_id="s_0")
    warehouse.write(LATENCY_MINUTES, [row | {"window_start": (finished_at - latency_ms) // WINDOW_MS * WINDOW_MS}])


def judged(warehouse, *, latency_ms=None, work_ms=None):
    """Returns for each window if it broke an SLA of B, and its verdicts.

    A verdict has the SLA, the quantile, the limit, the value (of records to 1 %), and if it is broken.
    """
    promised = {LATENCY_P99: latency_ms, OPERATOR_LATENCY_P50: work_ms}
    specs = [
        SlaSpec(name=measure.name, subject="B", measure=measure, limits=Sla(error_after_ms=ms), owner="o",
                over_ms=600_000, ignore_when_idle=False)
        for measure, ms in promised.items() if ms is not None
    ]  # fmt: skip
    job.run(warehouse.layout, reading({"A": (), "B": ("A",)}), specs, Interval(0, 100_000))
    found = []
    for row in paths_in_order(warehouse):
        assert {verdict["operator"] for verdict in row["verdicts"] or ()} <= {"B"}
        verdicts = [
            (each["sla"], each["quantile"], each["limit_ms"], pytest.approx(each["value_ms"], rel=0.01), each["broken"])
            for each in row["verdicts"] or ()
        ]
        found.append((row["over_sla"], verdicts if row["verdicts"] else None))
    return found
