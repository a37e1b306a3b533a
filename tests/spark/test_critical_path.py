from __future__ import annotations

import random
from functools import reduce

from pyspark.sql import DataFrame

import critical_path as job
from tidemark.report.critical_paths import critical_windows
from tidemark.semantics.critical_path import critical_path, in_order, measure
from tidemark.semantics.what_if import slack_ms
from tidemark.spec.intervals import Interval
from tidemark.spec.tables import CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS

SEED = {"A": (), "B": ("A",), "C": ("A",), "D": ("B",), "E": ("C",), "F": ("C",)}
SEED_EWT = {"A": 0, "B": 5, "C": 100, "D": 35, "E": 120, "F": 102}
WINDOW_MS = 5_000


def test_the_worked_example(spark, warehouse):
    finished(warehouse, 0, {name: 7_000 + ewt for name, ewt in SEED_EWT.items()}, queued={"C": 30})

    report(spark, warehouse, SEED)

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert path["path"] == "A (0 ms) → C (100 ms) → E (20 ms) = 120 ms"
    assert (path["latency_ms"], path["queued_ms"], path["leaf"], path["state"]) == (120, 30, "E", "measured")
    assert path["before_source_ms"] == 2_000
    columns = ("step", "slowest_upstream", "latency_ms", "queued_ms", "share", "slack_ms", "state")
    assert {row["operator"]: tuple(row[c] for c in columns) for row in warehouse.report(CRITICAL_PATH_STEPS)} == {
        "A": (0, None, 0, 0, 0.0, 0, "input"),
        "B": (None, "A", 5, 0, None, 85, "measured"),
        "C": (1, "A", 100, 30, 100 / 120, 0, "measured"),
        "D": (None, "B", 30, 0, None, 85, "measured"),
        "E": (2, "C", 20, 0, 20 / 120, 0, "measured"),
        "F": (None, "C", 2, 0, None, 18, "measured"),
    }


def test_a_path_crosses_sub_topologies(spark, warehouse):
    finished(warehouse, 0, {"A": 6_000, "R": 6_100}, sub_topology="a")
    finished(warehouse, 0, {"R_source": 7_100, "S": 7_150}, sub_topology="b")

    report(spark, warehouse, {"A": (), "R": ("A",), "R_source": ("R",), "S": ("R_source",)})

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert path["path"] == "A (0 ms) → R (100 ms) → R_source (1000 ms) → S (50 ms) = 1150 ms"


def test_a_window_that_somebody_has_not_finished_has_no_path_but_says_who(spark, warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 6_010})

    report(spark, warehouse, {"A": (), "B": ("A",), "C": ("B",), "D": ("C",)})

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


def test_a_later_run_replaces_what_was_not_closed_and_leaves_other_windows_alone(spark, warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 6_010})
    finished(warehouse, 1, {"A": 11_000})
    upstreams = {"A": (), "B": ("A",)}
    report(spark, warehouse, upstreams, 0, 20_000)
    finished(warehouse, 1, {"B": 11_020})

    for _ in range(2):
        report(spark, warehouse, upstreams, 10_000, 10_001)

    assert sorted(row["path"] for row in warehouse.report(CRITICAL_PATHS)) == [
        "A (0 ms) → B (10 ms) = 10 ms",
        "A (0 ms) → B (20 ms) = 20 ms",
    ]
    assert len(warehouse.report(CRITICAL_PATH_STEPS)) == 4


def test_an_operator_that_finished_before_its_upstream_is_clamped_and_said_to_be(spark, warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 5_900})

    report(spark, warehouse, {"A": (), "B": ("A",)})

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert path["path"] == "A (0 ms) → B (0 ms, clamped_negative) = 0 ms"
    assert path["state"] == "clamped_negative"


def test_on_random_topologies_spark_and_ring_zero_say_the_same(spark, warehouse):
    rng = random.Random(11)
    topologies = {f"t{number}": random_topology(rng) for number in range(8)}
    windows = {(name, at): random_window(rng, dag) for name, dag in topologies.items() for at in range(40)}
    rows = [
        {"topology": name, "batch_id": at, "operator": operator, "window_start": at * WINDOW_MS,
         "window_end": (at + 1) * WINDOW_MS, "ewt_adjusted_at": ewt, "queued_ms": 0}
        for (name, at), ewts in windows.items()
        for operator, ewt in ewts.items()
    ]  # fmt: skip
    warehouse.write(OPERATOR_WINDOWS, rows)
    facts = spark.read.format("delta").load(str(warehouse.layout.stream_table("t", "s", OPERATOR_WINDOWS.name)))

    frames = [critical_windows(facts.where(f"topology = '{name}'"), dag) for name, dag in topologies.items()]
    found = reduce(DataFrame.unionByName, frames).collect()

    assert len(found) == sum(1 for ewts in windows.values() if ewts)
    for row in found:
        at = row.window_start.timestamp() * 1000 // WINDOW_MS
        assert told(row) == expected(topologies[row.topology], windows[row.topology, at]), row


def finished(warehouse, window, ewts, *, queued=None, sub_topology="s"):
    """Operators that finished a window, each at an instant in epoch ms."""
    start = window * WINDOW_MS
    rows = [
        {"batch_id": window, "operator": name, "window_start": start, "window_end": start + WINDOW_MS,
         "ewt_at": ewt, "ewt_adjusted_at": ewt, "queued_ms": (queued or {}).get(name, 0), "records": 1}
        for name, ewt in ewts.items()
    ]  # fmt: skip
    warehouse.write(OPERATOR_WINDOWS, rows, sub_topology)


def report(spark, warehouse, upstreams, start_ms=0, end_ms=60_000):
    job.run(spark, warehouse.layout, "t", upstreams, Interval(start_ms, end_ms))


def random_topology(rng):
    names = [f"o{n}" for n in rng.sample(range(10), rng.randint(2, 7))]
    dag = {name: tuple(rng.sample(names[:n], rng.randint(0, min(n, 3)))) for n, name in enumerate(names)}
    return {**dag, names[-1]: dag[names[-1]] or (names[0],)}


def random_window(rng, dag):
    """EWTs that mostly grow downstream, often tie, and sometimes are missing."""
    ewts = {}
    gap = rng.choice((0, 0, 0.2))
    for name in in_order(dag):
        ewts[name] = max((ewts[u] for u in dag[name]), default=10_000) + rng.choice((0, 0, 1, 5, 40, 100, -7))
    return {name: ewt for name, ewt in ewts.items() if rng.random() >= gap}


def expected(dag, ewts):
    steps = measure(dag, ewts)
    measured = {name: (step.state, step.latency_ms, step.slowest_upstream) for name, step in steps.items()}
    if set(ewts) != set(dag):
        return (None, None, "no_window_yet"), measured, {}
    path, slack = critical_path(dag, steps), slack_ms(dag, ewts, steps)
    places = {step.operator: (place, path.share_of(step.operator)) for place, step in enumerate(path.steps)}
    judged = {name: (*places.get(name, (None, None)), slack[name]) for name in dag}
    return (str(path), path.latency_ms, path.state), measured, judged


def told(row):
    measured = {step.operator: (step.state, step.latency_ms, step.slowest_upstream) for step in row.steps}
    judged = {step.operator: (step.step, step.share, step.slack_ms) for step in row.steps if row.path}
    return (row.path, row.latency_ms, row.state), measured, judged
