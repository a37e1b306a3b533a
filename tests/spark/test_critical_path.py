from __future__ import annotations

import random
import shutil
from functools import reduce

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

import critical_path as job
from tidemark.errors import InvalidArgument
from tidemark.report.critical_paths import critical_windows
from tidemark.report.promises import Promises
from tidemark.semantics.critical_path import critical_path, in_order, leaves, measure, parts, path_to
from tidemark.semantics.stram import critical_path as moving_average_path
from tidemark.semantics.what_if import slack_ms
from tidemark.spec.intervals import Interval
from tidemark.spec.operators import Kind, Level, Operator
from tidemark.spec.tables import CRITICAL_PATH_LEAVES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS
from tidemark.spec.topology import SubTopology, Topology

SEED = {"A": (), "B": ("A",), "C": ("A",), "D": ("B",), "E": ("C",), "F": ("C",)}
SEED_EWT = {"A": 0, "B": 5, "C": 100, "D": 35, "E": 120, "F": 102}
WINDOW_MS = 5_000


def test_the_worked_example(spark, warehouse):
    ewts = {name: 7_000 + ewt for name, ewt in SEED_EWT.items()}
    finished(warehouse, 0, ewts, queued={"C": 30}, began=6_990)

    report(spark, warehouse, SEED)

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
    assert [tuple(row[c] for c in columns) for row in warehouse.report(CRITICAL_PATH_LEAVES)] == [
        ("D", "A", 35, 2_000, 85), ("E", "A", 120, 2_000, 0), ("F", "A", 102, 2_000, 18),
    ]  # fmt: skip


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


def test_a_path_stays_when_the_facts_that_it_came_from_are_gone(spark, warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 6_010})
    upstreams = {"A": (), "B": ("A",)}
    report(spark, warehouse, upstreams)
    once = warehouse.report(CRITICAL_PATHS), warehouse.report(CRITICAL_PATH_STEPS)
    DeltaTable(warehouse.layout.stream_table("t", "s", OPERATOR_WINDOWS.name)).delete("operator = 'B'")

    with pytest.raises(InvalidArgument, match="1 windows that end from 1970-01-01T00:00:05"):
        report(spark, warehouse, upstreams)

    assert (warehouse.report(CRITICAL_PATHS), warehouse.report(CRITICAL_PATH_STEPS)) == once


def test_an_operator_that_finished_before_its_upstream_is_clamped_and_said_to_be(spark, warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 5_900})

    report(spark, warehouse, {"A": (), "B": ("A",)})

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert path["path"] == "A (0 ms) → B (0 ms, clamped_negative) = 0 ms"
    assert path["state"] == "clamped_negative"


def test_what_a_hop_waits_is_apart_from_the_work_and_from_the_queue(spark, warehouse):
    finished(warehouse, 0, {"A": 6_000, "R": 6_100}, sub_topology="a", began=5_900)
    finished(warehouse, 0, {"R_source": 7_100, "S": 7_250}, sub_topology="b", began=7_040, queued={"S": 30})

    report(spark, warehouse, {"A": (), "R": ("A",), "R_source": ("R",), "S": ("R_source",)})

    columns = ("latency_ms", "waited_ms", "queued_ms", "worked_ms")
    assert {row["operator"]: tuple(row[c] for c in columns) for row in warehouse.report(CRITICAL_PATH_STEPS)} == {
        "A": (0, 0, 0, 0), "R": (100, 0, 0, 100), "R_source": (1_000, 940, 0, 60), "S": (150, 0, 30, 120),
    }  # fmt: skip
    (path,) = warehouse.report(CRITICAL_PATHS)
    assert (path["latency_ms"], path["waited_ms"], path["queued_ms"]) == (1_250, 940, 30)


def test_rows_that_do_not_say_when_their_batch_began_leave_waiting_and_work_open(spark, warehouse):
    finished(warehouse, 0, {"A": 6_000, "B": 6_010}, queued={"B": 3})

    report(spark, warehouse, {"A": (), "B": ("A",)})

    (path,) = warehouse.report(CRITICAL_PATHS)
    assert (path["latency_ms"], path["waited_ms"], path["queued_ms"]) == (10, None, 3)
    (step,) = (row for row in warehouse.report(CRITICAL_PATH_STEPS) if row["operator"] == "B")
    assert (step["waited_ms"], step["worked_ms"]) == (None, None)


def test_a_window_is_over_its_sla_when_it_is_older_than_its_leaf_promises_or_an_operator_works_longer(spark, warehouse):
    for window, (a, b) in enumerate([(6_000, 6_300), (11_000, 11_301), (16_700, 16_999)]):
        finished(warehouse, window, {"A": a, "B": b}, began=a - 10)
    upstreams = {"A": (), "B": ("A",)}

    assert over_sla(spark, warehouse, upstreams, end_to_end_ms={"B": 1_998}, work_ms={"B": 300}) == [
        ("A (0 ms) → B (300 ms) = 300 ms", 1_998, False),  # 1000 + 300 and 300 ms of work
        ("A (0 ms) → B (301 ms) = 301 ms", 1_998, True),
        ("A (0 ms) → B (299 ms) = 299 ms", 1_998, True),  # 1700 + 299
    ]
    assert [row[1:] for row in over_sla(spark, warehouse, upstreams)] == [(None, None)] * 3
    assert [row[1:] for row in over_sla(spark, warehouse, upstreams, work_ms={"B": 300})] == [
        (None, False), (None, True), (None, False),
    ]  # fmt: skip


def test_the_error_of_a_path_is_that_of_its_worst_clock_and_none_where_there_is_one_clock(spark, warehouse):
    upstreams = {"A": (), "B": ("A",)}
    hosts = {"one": {"host": "x"}, "two": {"host": "y", "skew_ms": 7, "skew_error_ms": 4}}
    told = {"host": "x", "skew_ms": 0, "skew_error_ms": 2}
    finished(warehouse, 0, {"A": 6_000, "B": 6_010}, **hosts["one"])
    finished(warehouse, 1, {"A": 11_000}, **told)
    finished(warehouse, 1, {"B": 11_010}, "b", **hosts["two"])
    finished(warehouse, 2, {"A": 16_000}, **hosts["one"])
    finished(warehouse, 2, {"B": 16_010}, "b", **hosts["two"])
    finished(warehouse, 3, {"A": 21_000, "B": 21_010})

    report(spark, warehouse, upstreams)

    assert [row["skew_error_ms"] for row in paths_in_order(warehouse)] == [0, 4, None, None]


def test_a_moving_average_is_over_ten_windows_whatever_interval_is_asked_for(spark, warehouse):
    own = [100, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10, 21]
    for window, ms in enumerate(own):
        finished(warehouse, window, {"A": window * WINDOW_MS, "B": window * WINDOW_MS + ms})
    upstreams = {"A": (), "B": ("A",)}

    report(spark, warehouse, upstreams)
    at_once = warehouse.report(CRITICAL_PATHS)
    # 109 / 10, (9 + 10) / 10, (9 + 10 + 21) / 10, truncated
    assert [row["moving_average_ms"] for row in paths_in_order(warehouse)][-3:] == [10, 1, 4]
    assert paths_in_order(warehouse)[-1]["moving_average_path"] == "A (0 ms) → B (4 ms) = 4 ms"

    forget(warehouse, CRITICAL_PATHS)
    for start_ms, end_ms in ((0, 50_000), (50_000, 60_000), (60_000, 60_001)):
        report(spark, warehouse, upstreams, start_ms, end_ms)
    assert warehouse.report(CRITICAL_PATHS) == at_once


def test_paths_made_again_from_facts_are_equal_row_for_row_even_after_a_death_half_way(spark, warehouse, monkeypatch):
    for window in range(3):
        finished(warehouse, window, {name: (window + 2) * WINDOW_MS + ewt for name, ewt in SEED_EWT.items()})
    report(spark, warehouse, SEED)
    tables = (CRITICAL_PATHS, CRITICAL_PATH_STEPS, CRITICAL_PATH_LEAVES)
    once = [warehouse.report(table) for table in tables]
    assert [len(rows) for rows in once] == [3, 18, 9]

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
        report(spark, warehouse, SEED)
    monkeypatch.undo()
    for _ in range(2):
        report(spark, warehouse, SEED)
        assert [warehouse.report(table) for table in tables] == once


def test_on_random_topologies_spark_and_ring_zero_say_the_same(spark, warehouse):
    rng = random.Random(11)
    topologies = {f"t{number}": random_topology(rng) for number in range(8)}
    windows = {(name, at): random_window(rng, dag) for name, dag in topologies.items() for at in range(40)}
    began = {window: rng.randint(9_990, 10_060) for window in windows}
    queued = {window: {name: rng.choice((0, 0, 3, 30)) for name in ewts} for window, ewts in windows.items()}
    rows = [
        {"topology": name, "batch_id": at, "operator": operator, "window_start": at * WINDOW_MS,
         "window_end": (at + 1) * WINDOW_MS, "ewt_adjusted_at": ewt, "batch_started_at": began[name, at],
         "queued_ms": queued[name, at][operator]}
        for (name, at), ewts in windows.items()
        for operator, ewt in ewts.items()
    ]  # fmt: skip
    warehouse.write(OPERATOR_WINDOWS, rows)
    facts = spark.read.format("delta").load(str(warehouse.layout.stream_table("t", "s", OPERATOR_WINDOWS.name)))

    frames = [
        critical_windows(facts.where(f"topology = '{name}'"), topology(dag, name), Promises())
        for name, dag in topologies.items()
    ]
    found = reduce(DataFrame.unionByName, frames).collect()

    assert len(found) == sum(1 for ewts in windows.values() if ewts)
    for row in found:
        window = row.topology, int(row.window_start.timestamp() * 1000 // WINDOW_MS)
        dag, ewts = topologies[row.topology], windows[window]
        assert told(row) == expected(dag, ewts), row
        assert spent(row) == expected_parts(dag, ewts, began[window], queued[window]), row
        assert averaged(row) == expected_average(dag, [windows[row.topology, at] for at in range(window[1] + 1)]), row


def finished(warehouse, window, ewts, sub_topology="s", *, queued=None, began=None, **same):
    """Operators that finished a window, each at an instant in epoch ms, in a batch that *began* at one."""
    start = window * WINDOW_MS
    rows = [
        {"batch_id": window, "operator": name, "window_start": start, "window_end": start + WINDOW_MS,
         "ewt_at": ewt, "ewt_adjusted_at": ewt, "queued_ms": (queued or {}).get(name, 0), "records": 1,
         "batch_started_at": began, **same}
        for name, ewt in ewts.items()
    ]  # fmt: skip
    warehouse.write(OPERATOR_WINDOWS, rows, sub_topology)


def topology(upstreams, name="t"):
    """One in which operators read each other like that."""
    names = in_order(upstreams)
    operators = tuple(Operator(name=o, kind=Kind.MAP, inputs=tuple(upstreams.get(o, ()))) for o in names)
    sub = SubTopology("s", operators)
    return Topology(name=name, level=Level.INFO, window_ms=WINDOW_MS, trigger_ms=1_000, sub_topologies=(sub,))


def report(spark, warehouse, upstreams, start_ms=0, end_ms=100_000):
    job.run(spark, warehouse.layout, topology(upstreams), (), Interval(start_ms, end_ms))


def forget(warehouse, table):
    """Have no rows of a report, as before its first run."""
    shutil.rmtree(warehouse.layout.report_table("t", table.name))


def paths_in_order(warehouse):
    return sorted(warehouse.report(CRITICAL_PATHS), key=lambda row: row["window_end"])


def over_sla(spark, warehouse, upstreams, **promised):
    facts = spark.read.format("delta").load(str(warehouse.layout.stream_table("t", "s", OPERATOR_WINDOWS.name)))
    found = critical_windows(facts, topology(upstreams), Promises(**promised)).orderBy("window_end").collect()
    return [(row.path, row.sla_ms, row.over_sla) for row in found]


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


def expected_parts(dag, ewts, began, queued):
    """Waited, queued and worked, of the operators with a latency."""
    spent = {}
    for name, step in measure(dag, ewts).items():
        if step.latency_ms is not None:
            before = began - ewts[step.slowest_upstream] if step.slowest_upstream else 0
            spent[name] = parts(step.latency_ms, before_batch_ms=before, queued_ms=queued[name])
    return {name: (one.waited_ms, one.queued_ms, one.worked_ms) for name, one in spent.items()}


def spent(row):
    found = {step.operator: (step.waited_ms, step.queued_ms, step.worked_ms) for step in row.steps}
    return {name: parts for name, parts in found.items() if parts != (None, None, None)}


def expected_average(dag, windows):
    """The sums to all leaves in the last of *windows*, and the path that sums highest by moving averages."""
    if set(windows[-1]) != set(dag):
        return None, None, None
    measured = [measure(dag, ewts) for ewts in windows[-10:]]
    averages = {}
    for name in dag:
        samples = [steps[name].latency_ms for steps in measured if steps[name].latency_ms is not None]
        averages[name] = sum(samples) // len(samples) if samples and dag[name] else 0
    steps = measured[-1]
    slowest = {name: step.slowest_upstream for name, step in steps.items() if step.slowest_upstream}
    path = moving_average_path({name: dag[name] for name in sorted(dag)}, slowest, averages)
    longest = critical_path(dag, steps).latency_ms
    walks = {leaf: path_to(leaf, steps) for leaf in leaves(dag)}
    sums = {leaf: (walk.steps[0].operator, walk.latency_ms, longest - walk.latency_ms) for leaf, walk in walks.items()}
    return path.latency_ms, str(path), sums


def averaged(row):
    sums = row.leaves and {leaf.leaf: (leaf.source, leaf.latency_ms, leaf.behind_ms) for leaf in row.leaves}
    return row.moving_average_ms, row.moving_average_path, sums


def told(row):
    measured = {step.operator: (step.state, step.latency_ms, step.slowest_upstream) for step in row.steps}
    judged = {step.operator: (step.step, step.share, step.slack_ms) for step in row.steps if row.path}
    return (row.path, row.latency_ms, row.state), measured, judged
