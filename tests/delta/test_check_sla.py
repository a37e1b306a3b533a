from __future__ import annotations

import json
import shutil
import warnings
from datetime import UTC, datetime
from operator import itemgetter

import pandas as pd
import pytest

from support.latency_facts import minute_row
from support.topologies import sink, source, table, topology_of
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidSpec
from tidemark.facts.measures import sla_facts
from tidemark.facts.measures.groups import groups_seen
from tidemark.model import topology
from tidemark.model.kinds.registry import KINDS
from tidemark.model.project.files import CHECKOUT
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import (
    ALERTS,
    BATCHES,
    CHANGES,
    COUNTED,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    DEAD_LETTERS,
    EXPECTATION_RESULTS,
    HEARTBEATS,
    INCIDENTS,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    SLA_RESULTS,
    SUPPRESSED,
    WINDOW_PARTS,
)
from tidemark.query import sql
from tidemark.sla.contracts.contract_sql import COUNTS
from tidemark.sla.contracts.counts import ContractCounts
from tidemark.sla.contracts.verdicts import verdicts_by_limits
from tidemark.storage.delta import datasets

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla.check import run as run_check
    from tidemark.sla.check import verdicts_of_suites
    from tidemark.sla.contracts.quality import Quality

NOW = 1_770_000_000_000
TOPOLOGY = topology.parse(
    {
        "name": "t",
        "operators": {
            "events": source(
                "id string", sub_topology="s", timestamp_range=["2000-01-01", "2100-01-01"], bound="3 s", max_ahead=None
            ),
            "latest": table(),
            "alarms": {"kind": "sink", "input": "latest", "topic": "alarms"},
        },
    },
    file="t.toml",
)
SLAS = {
    "fresh": {"subject": "changes", "measure": "staleness", "warn_after": "1 s", "error_after": "10 s"},
    "in_time": {"subject": "alarms", "measure": "latency_p99", "warn_after": "150 ms", "error_after": "1 s"},
    "quick": {"subject": "latest", "measure": "operator_latency_p50", "warn_after": "150 ms", "error_after": "300 ms"},
    "complete": {"subject": "outcomes", "measure": "completeness", "error_after": "1 ms"},
}


def test_sound_slas_pass_with_all_their_expectations(warehouse):
    streamed(warehouse)

    check(warehouse)

    assert verdicts(warehouse) == {"fresh": "pass", "in_time": "pass", "quick": "pass", "complete": "pass"}
    observed = {row["sla"]: row["observed_ms"] for row in warehouse.report(SLA_RESULTS)}
    assert observed == {
        "fresh": 500,
        "in_time": pytest.approx(100, rel=0.01),
        "quick": pytest.approx(90, rel=0.01),
        "complete": 0,
    }
    assert {row["success"] for row in warehouse.report(EXPECTATION_RESULTS)} == {True}


def test_a_slow_operator_breaks_its_sla_and_is_named(warehouse):
    streamed(warehouse, latest_ms=400, latency_ms=500)

    check(warehouse)

    results = {row["sla"]: row for row in warehouse.report(SLA_RESULTS)}
    assert {name: (row["verdict"], row["culprit"]) for name, row in results.items()} == {
        "fresh": ("pass", None),
        "in_time": ("warn", None),  # no fact says when its records waited
        "quick": ("error", "latest"),
        "complete": ("pass", None),
    }
    assert results["quick"]["observed_ms"] == pytest.approx(400, rel=0.01)
    assert broken(warehouse) == {
        ("sla_status", "verdict", "critical"): 1,
        ("sla_status", "verdict", "warning"): 1,
        ("sla_status", "error_after_ms, observed_ms", "critical"): 1,
        ("sla_status", "warn_after_ms, observed_ms", "warning"): 2,
    }


def test_an_sla_without_rows_does_not_pass(warehouse):
    check(warehouse)

    assert verdicts(warehouse) == dict.fromkeys(("fresh", "in_time", "quick", "complete"), "unknown")
    assert broken(warehouse)["sla_status", "measured", "critical"] == 4
    assert ("outcomes", None, "critical") in broken(warehouse)


def test_what_never_started_pages_after_the_first_interval_since_the_first_check(warehouse):
    slas = {
        "fresh": {"subject": "changes", "measure": "staleness", "error_after": "10 s", "owner": "o"},
        "enough": {"subject": "alarms", "measure": "records", "error_below": 1, "over": "20 s", "owner": "o"},
    }
    specs = parse({"t": slas}, TOPOLOGY, file="slas.toml")
    found = {}
    for second in (0, 9, 13, 19, 21):
        run_check(warehouse.layout, TOPOLOGY, specs, at_ms=NOW + second * 1_000, run_id=f"r{second}", project=None)
        rows = [row for row in warehouse.report(SLA_RESULTS) if row["run_id"] == f"r{second}"]
        found[second] = {row["sla"]: row["verdict"] for row in rows}
    assert [each["fresh"] for each in found.values()] == ["unknown", "unknown", *["never_loaded"] * 3]
    assert [each["enough"] for each in found.values()] == [*["unknown"] * 4, "error"]
    opened = [row for row in warehouse.report(INCIDENTS) if row["change"] == "opened"]
    since = {row["sla"]: round(row["broken_since"].timestamp() * 1_000) - NOW for row in opened}
    # The first row was due at 10 s. The records of 20 s can be counted from 20 s on.
    assert since == {"fresh": 10_000, "enough": 20_000}


@pytest.mark.parametrize(("begun_ms", "verdict"), [(NOW - 9_999, "unknown"), (NOW - 10_000, "never_loaded")])
def test_a_new_topology_has_time_for_its_first_row(warehouse, begun_ms, verdict):
    warehouse.write(HEARTBEATS, [{"beat_at": begun_ms + 5_000, "step_began_at": begun_ms, "state": "running"}])

    check(warehouse)

    found = verdicts(warehouse)
    assert (found["fresh"], found["complete"]) == (verdict, "unknown")
    opened = [row["sla"] for row in warehouse.report(INCIDENTS)]
    assert opened == (["fresh"] if verdict == "never_loaded" else [])


def test_an_unbalanced_account_names_its_operator(warehouse):
    streamed(warehouse)
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": NOW - 40_000}])
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=10, emitted=6, suppressed=3)])

    check(warehouse)

    (complete,) = (row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "complete")
    assert (complete["verdict"], complete["observed_ms"]) == ("error", 40_000)
    assert broken(warehouse)["outcomes", "updates_in, updates_out", "critical"] == 1
    (pair,) = (row for row in warehouse.report(EXPECTATION_RESULTS) if row["column"] == "updates_in, updates_out")
    assert json.loads(pair["observed"]) == [[20, 19]]


def test_a_check_opens_no_files_of_old_batches(warehouse, monkeypatch):
    for module in (datasets, sql):  # of many files; to look into a few takes no longer than to read what logs say
        monkeypatch.setattr(module, "MOST_FILES", 0)
    warehouse.write(BATCHES, [{"batch_id": 0, "finished_at": NOW - 90_000_000}])
    warehouse.write(OPERATOR_BATCHES, [outcome(0, records_in=10, emitted=6, suppressed=3)])
    (old,) = warehouse.layout.stream_table("t", "s", OPERATOR_BATCHES.name).glob("*.parquet")
    old.write_bytes(b"nobody reads this")
    streamed(warehouse, batch_id=1)

    check(warehouse, contract="operator_batches")

    assert verdicts(warehouse)["complete"] == "pass"
    (n_in,) = (row for row in warehouse.report(EXPECTATION_RESULTS) if row["column"] == "updates_in, updates_out")
    assert n_in["success"]


def test_an_open_account_is_reported_until_it_closes(warehouse):
    streamed(warehouse)
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": NOW}, {"batch_id": 2, "finished_at": NOW + 1}])
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=10, emitted=6), outcome(2, records_in=1, emitted=1)])
    found = {}
    for at_ms in (NOW + 3_600_000, NOW + 3_700_000, NOW + 14_400_000):  # the last looks back for an hour by itself
        check(warehouse, at_ms=at_ms, run_id=str(at_ms))
        found[at_ms - NOW] = completeness(warehouse, at_ms)
    assert found == {ms: ("error", ms) for ms in (3_600_000, 3_700_000, 14_400_000)}
    shutil.rmtree(warehouse.layout.stream_table("t", "s", OPERATOR_BATCHES.name))
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=10, emitted=10), outcome(2, records_in=1, emitted=1)])
    check(warehouse, at_ms=NOW + 14_500_000, run_id="closed")
    assert completeness(warehouse, NOW + 14_500_000) == ("pass", 0)


def test_a_first_check_looks_for_open_accounts_of_an_hour(warehouse):
    streamed(warehouse)
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": NOW}, {"batch_id": 2, "finished_at": NOW + 1}])
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=10, emitted=6), outcome(2, records_in=1, emitted=1)])
    check(warehouse, at_ms=NOW + 3_600_002)
    assert completeness(warehouse, NOW + 3_600_002) == ("pass", 0)


def test_a_past_instant_is_judged_by_what_could_be_seen_then(warehouse):
    streamed(warehouse)
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": NOW + 1}])
    warehouse.write(CHANGES, [{"batch_id": 1, "operator": "latest", "timestamp": NOW - 100}])
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=10, emitted=6, suppressed=3)])

    check(warehouse, at_ms=NOW)
    assert {row["sla"]: row["observed_ms"] for row in warehouse.report(SLA_RESULTS)}["fresh"] == 500
    assert verdicts(warehouse)["complete"] == "pass"

    check(warehouse, at_ms=NOW + 1)
    assert {row["sla"]: row["observed_ms"] for row in warehouse.report(SLA_RESULTS)}["fresh"] == 101


def test_an_idle_source_excuses_a_stale_table_in_all_verdicts(warehouse):
    streamed(warehouse)
    warehouse.write(
        PARTITION_BATCHES, [{"batch_id": n, "source": "events", "activity": a} for n, a in ((3, "active"), (4, "idle"))]
    )

    check(warehouse, at_ms=NOW + 3_600_000, ignore_when_idle=True)

    assert verdicts(warehouse)["fresh"] == "pass"
    assert not any(suite == "sla_status" and column and "after" in column for suite, column, _ in broken(warehouse))


@pytest.mark.parametrize(
    ("state", "beat_ms", "eta_at", "verdict"),
    [
        ("running", NOW - 1_000, NOW + 60_000, "pass"),
        ("running", NOW - 1_000, None, "error"),
        ("drained", NOW - 1_000, NOW + 60_000, "error"),
        ("running", NOW - 301_000, NOW + 60_000, "error"),
    ],
)
def test_a_stream_that_catches_up_excuses_a_stale_table(warehouse, state, beat_ms, eta_at, verdict):
    streamed(warehouse)
    beats = [("running", beat_ms - 15_000, NOW + 1), (state, beat_ms, eta_at)]
    warehouse.write(HEARTBEATS, [{"beat_at": at, "state": word, "epoch": 1, "eta_at": eta} for word, at, eta in beats])

    check(warehouse, at_ms=NOW + 5_000, error_after="1 s", warn_after="1 s", while_catching_up="excuse")

    assert verdicts(warehouse)["fresh"] == verdict
    judged = [row for row in broken(warehouse) if row[0] == "sla_status" and row[1] and "after" in row[1]]
    assert bool(judged) is (verdict == "error")


@pytest.mark.parametrize(
    "beat", [{"reason": "waits for Kafka: no answer of eu:9092 (cluster eu)"}, {"batch_started_at": NOW - 301_001}]
)
def test_a_driver_that_waits_or_hangs_catches_up_with_nothing(warehouse, beat):
    streamed(warehouse)
    running = {"beat_at": NOW - 1_000, "state": "running", "epoch": 1, "eta_at": NOW + 60_000}
    warehouse.write(HEARTBEATS, [{**running, **beat}])
    check(warehouse, at_ms=NOW + 5_000, error_after="1 s", warn_after="1 s", while_catching_up="excuse")
    assert verdicts(warehouse)["fresh"] == "error"


def seen_sensors(warehouse, keys, at_ms, *, batch_id, table=CHANGES, value="{}"):
    """Writes that *keys* were seen at *at_ms*, as changes or repeated values."""
    columns = {"timestamp": at_ms, "value": value} if table is CHANGES else {"max_timestamp": at_ms, "value_hash": "h"}
    rows = [{"batch_id": batch_id, "operator": "latest", "key": key, **columns} for key in keys]
    warehouse.write(table, [{**row, "seq": n} for n, row in enumerate(rows)] if table is CHANGES else rows)


def test_stale_keys_are_named_by_what_was_seen(warehouse):
    warehouse.write(BATCHES, [{"batch_id": n, "finished_at": NOW} for n in range(9)])
    seen_sensors(warehouse, ["a", "b", "c", "d", "gone"], NOW - 60_000, batch_id=1)
    # The value of b was repeated, which is no change; c went silent, and gone is deleted.
    seen_sensors(warehouse, ["b"], NOW - 1_000, batch_id=2, table=SUPPRESSED)
    seen_sensors(warehouse, ["a"], NOW - 2_000, batch_id=3)
    seen_sensors(warehouse, ["gone"], NOW - 50_000, batch_id=3, value=None)
    seen_sensors(warehouse, ["long_ago"], NOW - 3_700_000, batch_id=4)

    check(warehouse, subject="latest", by=["id"], over="1 h", warn_after="20 s", error_after="1 min")

    (row,) = (row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "fresh")
    assert (row["verdict"], row["observed_ms"], row["culprit"], row["records"]) == ("error", 60_000, "c", 2)
    assert row["message"] == (
        "staleness by id of latest is 1 min; warning from 20 s on, error from 1 min on; 2 of 4 are stale: c, d"
    )
    assert row["stale_groups"] == [{"name": name, "newest_ms": NOW - 60_000} for name in ("c", "d")]


def test_the_share_of_quarantined_records_breaks_an_sla(warehouse):
    warehouse.write(BATCHES, [{"batch_id": 0, "finished_at": NOW - 700_000}, {"batch_id": 1, "finished_at": NOW - 1}])
    of_source = {"operator": "events", "kind": "source"}
    before = {**outcome(0, records_in=100, passed=100), **of_source}  # more than 10 min ago
    poisoned = {**outcome(1, records_in=10, passed=5, quarantined=5), **of_source}
    warehouse.write(OPERATOR_BATCHES, [before, poisoned, outcome(1, records_in=5, emitted=5)])

    refused = {"batch_id": 1, "kind": "quarantined", "operator": "events", "partition": 1, "reason": "malformed_json"}
    warehouse.write(DEAD_LETTERS, [{**refused, "offset": n} for n in range(5)])

    limits = {"warn_after": None, "error_after": None, "warn_above": 0.01, "error_above": 0.3}
    check(warehouse, subject="events", measure="quarantined_share", **limits)

    (row,) = (row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "fresh")
    assert (row["verdict"], row["share"], row["records"], row["culprit"]) == ("error", 0.5, 10, "events")
    assert (row["cause"], row["cause_operator"], row["cause_partition"]) == ("producer", "events", 1)
    assert (
        row["blocked_by"]
        == "5 records of `events` partition 1, quarantined: malformed_json; this explains 100 % of 5 records"
    )
    assert row["message"] == (
        "5 of 10 records of events in 10 min were quarantined (50.00 %); warning above 1 %, error above 30 %"
    )
    (opened,) = (row for row in warehouse.report(INCIDENTS) if row["sla"] == "fresh")
    assert (opened["observed"], opened["threshold"], opened["unit"]) == (0.5, 0.3, "share")
    tables = sql.Warehouse(warehouse.layout.warehouse)
    history = tables.ask("SELECT worst_observed, unit FROM incident_history WHERE sla = 'fresh'")
    assert history.rows == ((0.5, "share"),)


def test_a_quantile_is_broken_since_the_second_that_broke_it(warehouse):
    fast = minute_row(NOW - 600_000, [100] * 90, operator="alarms")
    slow = minute_row(NOW - 250_000, [9_000] * 10, operator="alarms", batch_id=1)
    warehouse.write(LATENCY_MINUTES, [fast, slow])
    found = {}
    for minute in (-9, 0, 1):
        check(warehouse, at_ms=NOW + minute * 60_000 + 769, run_id=f"minute {minute}")
        (row,) = (
            row
            for row in warehouse.report(SLA_RESULTS)
            if (row["sla"], row["run_id"]) == ("in_time", f"minute {minute}")
        )
        found[minute] = row["verdict"], row["crossed_at"] and round(row["crossed_at"].timestamp() * 1_000) - NOW
    # The interval of a check does not include its end: the slow records of 250 s ago break it from the next second on.
    assert found == {-9: ("pass", None), 0: ("error", -249_000), 1: ("error", -249_000)}
    (opened,) = (row for row in warehouse.report(INCIDENTS) if row["sla"] == "in_time")
    assert round(opened["broken_since"].timestamp() * 1_000) - NOW == -249_000


def test_a_silent_partition_is_stale_by_itself(warehouse):
    warehouse.write(BATCHES, [{"batch_id": n, "finished_at": NOW} for n in range(3)])
    parts = [(0, 0, NOW - 90_000), (0, 1, NOW - 90_000), (1, 0, NOW - 3_000), (2, 0, NOW - 2_000)]
    rows = [{"batch_id": n, "source": "events", "partition": part, "newest_timestamp": at} for n, part, at in parts]
    warehouse.write(PARTITION_BATCHES, rows)

    check(warehouse, subject="events", by=["partition"], warn_after=None, error_after="1 min")

    (row,) = (row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "fresh")
    assert (row["verdict"], row["observed_ms"], row["culprit"], row["records"]) == ("error", 90_000, "1", 1)
    assert row["message"].endswith("; error from 1 min on; 1 of 2 is stale: 1")


def test_five_silent_keys_of_100_000_are_named(warehouse):
    warehouse.write(BATCHES, [{"batch_id": n, "finished_at": NOW} for n in range(2)])
    silent = {f"s{n}" for n in (7, 77, 777, 7_777, 77_777)}
    keys = [f"s{n}" for n in range(100_000)]
    seen_sensors(warehouse, keys, NOW - 100_000, batch_id=0)
    seen_sensors(warehouse, [key for key in keys if key not in silent], NOW - 10_000, batch_id=1)
    (spec,) = parse(
        {"t": {"fresh": {"subject": "latest", "by": ["id"], "error_after": "1 min", "owner": "o"}}},
        TOPOLOGY,
        file="slas.toml",
    )
    tables = sql.Warehouse(warehouse.layout.warehouse)
    seen = groups_seen(tables, TOPOLOGY, [spec], at_ms=NOW)["fresh"]
    assert (seen.n, seen.n_stale) == (100_000, 5)
    assert {name for name, _ in seen.oldest} == silent


def test_a_repeated_check_adds_nothing_and_a_new_run_adds_rows(warehouse):
    streamed(warehouse)
    check(warehouse)

    def said():
        """Returns the messages without those about the check's own tables.

        Their versions differ between runs.
        """
        own = {table.name for table in (SLA_RESULTS, EXPECTATION_RESULTS, INCIDENTS, ALERTS)}
        return warehouse.report(SLA_RESULTS), [
            row for row in warehouse.report(EXPECTATION_RESULTS) if row["table"] not in own
        ]

    once = said()

    check(warehouse)
    assert said() == once

    check(warehouse, run_id="it's another")
    assert len(warehouse.report(SLA_RESULTS)) == 2 * len(SLAS)
    expectations = [row for row in warehouse.report(EXPECTATION_RESULTS) if row["suite"] == "outcomes"]
    assert {(row["checks"], row["run_id"]) for row in expectations} == {(2, "it's another")}
    stored = warehouse.report(EXPECTATION_RESULTS)
    check(warehouse, at_ms=NOW - 60_000, run_id="back-filled")
    assert warehouse.report(EXPECTATION_RESULTS) == stored


ACCOUNT = {
    "sub_topology": "s", "operator": "o", "kind": "table", "batches": 1, "updates_in": 5, "updates_out": 5, "lowest": 0,
    "open_batches": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ([], None),
        ([ACCOUNT, ACCOUNT], "sub_topology, operator"),
        ([{**ACCOUNT, "kind": "no_kind"}], "kind"),
        ([{**ACCOUNT, "lowest": -1}], "lowest"),
        ([{**ACCOUNT, "updates_in": None}], "updates_in"),
        ([{**ACCOUNT, "updates_out": 4}], "updates_in, updates_out"),
        ([{**ACCOUNT, "open_batches": 1}], "open_batches"),
    ],
)
def test_the_contract_of_outcomes_finds_violations(rows, column):
    quality = Quality()

    found = quality.check("outcomes", pd.DataFrame(rows, columns=list(ACCOUNT)), kinds=[*KINDS])

    assert column in [row["column"] for row in found if not row["success"]]


def test_the_checkers_verdicts_on_counts_are_those_of_the_suites(tmp_path):
    fine = dict.fromkeys(COUNTS, 0)
    of_latest = {"sub_topology": "s", "path": tmp_path, "version": 3, "batch_id": 7, "rows": 5, "culprit": "latest"}
    columns = {"unreadable": 0, "missing_columns": 0, "wrong_types": 0}
    counts = [
        ContractCounts("sound", schema=columns, counts=fine, **of_latest),
        ContractCounts("twice", schema=columns, counts={**fine, "duplicate_keys": 2}, **of_latest),
        ContractCounts("without_keys", schema=columns, counts={"not_adding_up": 1}, **of_latest),
        ContractCounts("other", schema={**columns, "missing_columns": 1}, counts={}, **of_latest),
        ContractCounts("gone", schema={**columns, "unreadable": 1}, counts={}, **{**of_latest, "version": None}),
    ]

    by_suites = [*verdicts_of_suites(Quality(), counts, NOW)]

    found = verdicts_by_limits(counts, at_ms=NOW)
    order = itemgetter("suite", "column", "table")
    assert sorted(found, key=order) == sorted(by_suites, key=order)
    assert [(row["table"], row["column"], row["observed"]) for row in found if not row["success"]] == [
        ("other", "missing_columns", "1"),
        ("gone", "unreadable", "1"),
        ("twice", "duplicate_keys", "2"),
        ("without_keys", "not_adding_up", "1"),
    ]


def streamed(warehouse, latest_ms=90, latency_ms=100, batch_id=0):
    """Writes a batch with a recent change, ten records, a window.

    The change is half a second old.
    """
    warehouse.write(
        CHANGES,
        [
            {"batch_id": batch_id, "operator": "latest", "seq": seq, "timestamp": NOW - age_ms}
            for seq, age_ms in enumerate((9_000, 500))
        ],
    )
    latencies = {NOW - 1: latency_ms, NOW - 600_001: 9_000}
    rows = [
        {**minute_row(at_ms, [ms] * 10, batch_id=batch_id, operator="alarms"), "window_start": at_ms - ms}
        for at_ms, ms in latencies.items()
    ]
    warehouse.write(LATENCY_MINUTES, rows)
    window(warehouse, NOW - 61_000, latest_ms=latest_ms)
    warehouse.write(
        OPERATOR_BATCHES, [outcome(batch_id, records_in=8, held_before=2, emitted=5, suppressed=4, held_after=1)]
    )
    proof = {"batch_id": batch_id, "operator": "latest", "key": "a", "n": 4, "first_offset": 1, "last_offset": 9}
    warehouse.write(SUPPRESSED, [proof])
    warehouse.write(BATCHES, [{"batch_id": batch_id, "finished_at": NOW - 50_000}])


def window(warehouse, end_ms, *, latest_ms, before_source_ms=60_000):
    """Writes a window whose path has all operators but one."""
    of = {"topology": "t", "window_start": end_ms - 5_000, "window_end": end_ms}
    steps = [("events", 0, 0, "input", None), ("latest", 1, latest_ms, "measured", "events")]
    steps += [("alarms", 2, 10, "measured", "latest"), ("off_the_path", None, 9_000, "measured", "latest")]
    names = ("operator", "step", "latency_ms", "state", "slowest_upstream")
    rows = [{**of, **dict(zip(names, step, strict=True)), "worked_ms": step[2]} for step in steps]
    warehouse.write(CRITICAL_PATH_STEPS, rows)
    parts = [{**of, "owner": "operator", "detail": name, "ms": ms} for name, _, ms, _, _ in steps if ms]
    warehouse.write(WINDOW_PARTS, parts)
    warehouse.write(CRITICAL_PATHS, [{**of, "before_source_ms": before_source_ms, "latency_ms": latest_ms + 10}])


def outcome(batch_id, **counts):
    zero = dict.fromkeys(COUNTED, 0)
    return {"batch_id": batch_id, "operator": "latest", "kind": "table", **zero, **counts}


def check(warehouse, *, at_ms=NOW, run_id="r1", ignore_when_idle=False, contract=None, project=None, **keys):
    promised = SLAS | ({"kept": {"subject": contract, "measure": "contract"}} if contract else {})
    slas = {name: {**sla, "owner": "o", "ignore_when_idle": ignore_when_idle} for name, sla in promised.items()}
    slas["fresh"] = {key: value for key, value in {**slas["fresh"], **keys}.items() if value is not None}
    specs = parse({"t": slas}, TOPOLOGY, file="slas.toml")
    run_check(warehouse.layout, TOPOLOGY, specs, at_ms=at_ms, run_id=run_id, project=project)


def completeness(warehouse, at_ms):
    """Returns verdict and observed ms of `complete` at *at_ms*."""
    rows = (row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "complete")
    (found,) = (row for row in rows if row["checked_at"].timestamp() * 1000 == at_ms)
    return found["verdict"], found["observed_ms"]


def verdicts(warehouse):
    return {row["sla"]: row["verdict"] for row in warehouse.report(SLA_RESULTS)}


def broken(warehouse):
    """How many rows broke each expectation that does not hold."""
    return {
        (row["suite"], row["column"], row["severity"]): row["unexpected_count"]
        for row in warehouse.report(EXPECTATION_RESULTS)
        if not row["success"]
    }


def test_a_broken_contract_names_table_operator_row_and_version(warehouse):
    streamed(warehouse)
    check(warehouse, contract="tables")
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": NOW + 5_000}])
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=3, emitted=3)] * 2)

    check(warehouse, at_ms=NOW + 10_000, run_id="r2", contract="tables")

    runs = {row["run_id"]: row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "kept"}
    before, after = runs["r1"], runs["r2"]
    assert (before["verdict"], before["message"]) == ("pass", "the contract of tables holds for all new rows")
    assert (after["verdict"], after["culprit"], after["records"]) == ("error", "latest", 1)
    example = '{"batch_id":1,"operator":"latest"}'
    assert after["message"] == f"the contract of tables is broken: operator_batches: duplicate_keys 1, {example}"
    (told,) = (
        row for row in warehouse.report(EXPECTATION_RESULTS) if row["suite"] == "contract" and not row["success"]
    )
    place = ("table", "sub_topology", "table_version", "batch_id", "rows", "culprit", "example", "observed", "run_id")
    assert tuple(told[name] for name in place) == ("operator_batches", "s", 2, 1, 3, "latest", example, "1", "r2")


@pytest.mark.parametrize(
    "table",
    [
        *("batches", "changes", "critical_paths"),
        *(pytest.param(n, marks=pytest.mark.long) for n in ("operator_batches", "partition_batches")),
    ],
)
def test_a_damaged_table_is_reported_and_the_check_continues(warehouse, table):
    streamed(warehouse)
    warehouse.write(PARTITION_BATCHES, [{"batch_id": 0, "source": "events", "activity": "idle"}])
    for commit in warehouse.layout.warehouse.glob(f"*/t/**/{table}/_delta_log/*.json"):
        commit.write_text("{")
    of_others = warehouse.layout.stream_table("others", "s", OPERATOR_BATCHES.name) / "_delta_log"
    of_others.mkdir(parents=True)
    (of_others / f"{0:020}.json").write_text("{")

    check(warehouse, ignore_when_idle=True, contract="tables")

    (kept,) = (row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "kept")
    assert (kept["verdict"], kept["message"].partition(": ")[2][: len(table)]) == ("error", table)


def test_all_rows_since_the_previous_check_are_judged(warehouse):
    streamed(warehouse)
    check(warehouse, contract="operator_batches")
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": NOW + 5_000}])
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=3, emitted=2)])

    check(warehouse, at_ms=NOW + 86_400_000, run_id="r2", contract="operator_batches")
    check(warehouse, at_ms=NOW + 90_100_000, run_id="r3", contract="operator_batches")

    kept = {row["run_id"]: row["verdict"] for row in warehouse.report(SLA_RESULTS) if row["sla"] == "kept"}
    assert kept == {"r1": "pass", "r2": "error", "r3": "unknown"}


def kept(warehouse):
    """Returns verdict and number of broken rows of the contract, by run."""
    return {
        row["run_id"]: (row["verdict"], row["records"]) for row in warehouse.report(SLA_RESULTS) if row["sla"] == "kept"
    }


def test_a_broken_row_is_found_once_and_breaks_its_contract_for_an_hour(warehouse):
    streamed(warehouse)
    checks = {"contract": "operator_batches"}
    check(warehouse, **checks)
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=3, emitted=2)])
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": NOW + 5_000}])
    check(warehouse, at_ms=NOW + 600_000, run_id="found", **checks)
    # A check that is made again finds what it found before.
    for run_id in ("found", "again"):
        check(warehouse, at_ms=NOW + 600_000, run_id=run_id, **checks)
    check(warehouse, at_ms=NOW + 4_199_999, run_id="last", **checks)
    check(warehouse, at_ms=NOW + 4_200_000, run_id="over", **checks)

    assert kept(warehouse) == {
        "r1": ("pass", None),
        **dict.fromkeys(("found", "again", "last"), ("error", 1)),
        "over": ("unknown", None),
    }
    (period,) = (
        row for row in warehouse.report(EXPECTATION_RESULTS) if row["suite"] == "contract" and not row["success"]
    )
    assert (period["checks"], period["rows"], period["judged_at"]) == (3, 2, period["first_checked_at"])


def test_a_check_that_dies_before_it_has_stored_what_it_found_finds_it_again(warehouse, monkeypatch):
    streamed(warehouse)
    check(warehouse, contract="operator_batches")
    warehouse.write(OPERATOR_BATCHES, [outcome(1, records_in=3, emitted=2)])
    warehouse.write(BATCHES, [{"batch_id": 1, "finished_at": NOW + 5_000}])
    stored = warehouse.report(EXPECTATION_RESULTS)
    with monkeypatch.context() as dies:
        dies.setattr("tidemark.sla.check.replace_in", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            check(warehouse, at_ms=NOW + 600_000, run_id="r2", contract="operator_batches")
    assert warehouse.report(EXPECTATION_RESULTS) == stored

    check(warehouse, at_ms=NOW + 600_000, run_id="r2", contract="operator_batches")

    assert kept(warehouse)["r2"] == ("error", 1)
    broken_rows = [
        row for row in warehouse.report(EXPECTATION_RESULTS) if row["suite"] == "contract" and not row["success"]
    ]
    assert [(row["column"], row["checks"]) for row in broken_rows] == [("not_adding_up", 1)]


def test_the_first_check_of_a_day_compares_keys_in_whole_reports(warehouse):
    streamed(warehouse)
    warehouse.write(WINDOW_PARTS, warehouse.report(WINDOW_PARTS))
    # To the checks of the day after tomorrow these files are old.
    midnight = (wall_clock_ms() // DAY_MS + 2) * DAY_MS
    for hour in (1, 3, 24, 26):
        check(warehouse, at_ms=midnight + hour * 3_600_000, run_id=str(hour), contract="window_parts")

    assert kept(warehouse) == {
        **dict.fromkeys(("1", "3", "26"), ("unknown", None)),
        "24": ("error", 3),  # the work of three operators is a part of the window
    }


def test_an_incident_opens_once_and_resolves_after_some_time(warehouse, own_project):
    streamed(warehouse)
    (own_project.topologies / "invalid.toml").write_text("name = 7")
    reader = topology_of({"name": "reader"}, alarms=source(topic="alarms"), copy=sink("alarms", table="copy"))
    (own_project.topologies / "reader.toml").write_text(reader)

    def checked(second, run_id, *, change_at=None):
        """Returns the incidents after a check; a change may precede it."""
        if change_at is not None:
            rows = [{"batch_id": second, "operator": "latest", "timestamp": NOW + int(change_at * 1_000)}]
            warehouse.write(CHANGES, rows)
        check(warehouse, at_ms=NOW + second * 1_000, run_id=run_id, project=own_project.topologies)
        rows = [row for row in warehouse.report(INCIDENTS) if row["sla"] == "fresh"]
        return [(row["change"], (row["changed_at"].timestamp() * 1_000 - NOW) / 1_000, row["run_id"]) for row in rows]

    assert checked(0, "a") == []
    opened = ("opened", 20.0, "b")
    assert checked(20, "b") == checked(20, "b") == [opened]
    assert checked(5, "back-filled") == checked(25, "c") == [opened]
    assert checked(60, "d", change_at=59.5) == checked(659, "e", change_at=658.5) == [opened]
    assert checked(660, "f", change_at=659.5) == [opened, ("resolved", 660.0, "f")]
    (incident,) = (row for row in warehouse.report(INCIDENTS) if row["sla"] == "fresh" and row["change"] == "opened")
    assert incident["incident"] == "fresh-20260202T024020"  # NOW is 2026-02-02T02:40:00Z
    assert (incident["verdict"], incident["severity"], incident["culprit"]) == ("error", "critical", "events")
    assert incident["message"] == "staleness of changes is 20.5 s; warning from 1 s on, error from 10 s on"
    assert incident["blocked_by"].startswith("the records of `events` were not produced; ")
    (alert,) = (row for row in warehouse.report(ALERTS) if row["change"] == "opened" and row["sla"] == "fresh")
    assert (alert["topics"], alert["tables"]) == (["alarms"], ["reader/copy"])
    quiet = {row["run_id"]: row["excluded_because"] for row in warehouse.report(SLA_RESULTS)}
    assert quiet == {"back-filled": "past", **dict.fromkeys("abcdef")}


@pytest.mark.parametrize(
    ("state", "age_ms", "verdict"),
    [
        ("running", 60_000, "pass"),
        ("running", 60_001, "error"),
        ("drained", 300_000, "pass"),
        ("drained", 300_001, "error"),
        ("failed", 1, "error"),
    ],
)
def test_an_idle_source_excuses_until_five_minutes_after_its_driver_was_drained(warehouse, state, age_ms, verdict):
    """The next heartbeat, after the check's instant, is of the same driver: it held its lease meanwhile."""
    streamed(warehouse)
    at_ms = NOW + 3_600_000
    warehouse.write(PARTITION_BATCHES, [{"batch_id": 0, "source": "events", "activity": "idle"}])
    beats = [(NOW, "running"), (at_ms - age_ms, state), (at_ms + 1, "running")]
    warehouse.write(HEARTBEATS, [{"beat_at": beat_ms, "state": word, "epoch": 1} for beat_ms, word in beats])

    check(warehouse, at_ms=at_ms, ignore_when_idle=True)

    (fresh,) = (row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "fresh")
    assert fresh["verdict"] == verdict
    # Nothing came in the hour before, while drivers looked.
    assert fresh["cause"] == (None if verdict == "pass" else "topic")
    assert ("while its sources have nothing to send" in fresh["message"]) == (verdict == "pass")


@pytest.mark.parametrize(
    ("drained_ms", "causes"),
    # The newest row came from a batch at NOW − 50 s. What takes less than a tenth of the time since then is not named.
    [(500, ["absence"]), (1_800_000, ["topic", "absence"]), (3_500_000, ["topic"])],
)
def test_silence_before_a_drain_belongs_to_the_topic(warehouse, drained_ms, causes):
    streamed(warehouse)
    warehouse.write(HEARTBEATS, [{"beat_at": NOW + drained_ms, "state": "drained", "drained_by": "ann", "epoch": 1}])

    check(warehouse, at_ms=NOW + 3_600_000)

    (fresh,) = (row for row in warehouse.report(SLA_RESULTS) if row["sla"] == "fresh")
    assert fresh["verdict"] == "error"
    assert [fresh["cause"], *(other["owner"] for other in fresh["other_causes"])] == causes


@pytest.mark.parametrize(("age_ms", "verdict"), [(86_400_000, "pass"), (86_400_001, "error")])
def test_without_heartbeats_an_idle_source_excuses_for_a_day(warehouse, age_ms, verdict):
    streamed(warehouse)  # its batch was finished at NOW − 50 s
    warehouse.write(PARTITION_BATCHES, [{"batch_id": 0, "source": "events", "activity": "idle"}])

    check(warehouse, at_ms=NOW - 50_000 + age_ms, ignore_when_idle=True)

    assert verdicts(warehouse)["fresh"] == verdict


def test_streams_that_start_are_known_by_their_heartbeats(warehouse):
    beats = {
        "first": [(1, 0, "starting")],
        "again": [(1, -900, "drained"), (2, 10, "running")],
        "waits": [(1, -900, "running"), (1, -899, "drained")],
        "works": [(1, -900, "drained"), (2, 5, "running")],
        "fails": [(1, -60, "failed"), (2, 5, "starting")],
        "killed": [(1, -60, "running"), (2, 5, "starting")],
        "loops": [(1, 300, "failed"), (2, 305, "starting")],
    }
    for sub, rows in beats.items():
        of_sub = [
            {"sub_topology": sub, "epoch": epoch, "beat_at": NOW + s * 1_000, "state": state}
            for epoch, s, state in rows
        ]
        warehouse.write(HEARTBEATS, of_sub)
    finished = [("again", 0, NOW - 890_000), ("works", 0, NOW - 890_000), ("works", 1, NOW + 6_000)]
    warehouse.write(BATCHES, [{"sub_topology": sub, "batch_id": n, "finished_at": at} for sub, n, at in finished])
    specs = parse({"t": {"fresh": {**SLAS["fresh"], "owner": "o", "ignore_when_idle": True}}}, TOPOLOGY, file="s.toml")

    def starting(at_ms):
        found = sla_facts.facts(sql.Warehouse(warehouse.layout.warehouse), TOPOLOGY, specs, {}, at_ms=at_ms)
        return sorted(fact.subject for fact in found if fact.what == "starting")

    assert starting(NOW + 20_000) == ["again", "first", "waits"]
    # The newest driver that began without a failure before it did so at 10 s.
    assert starting(NOW + 310_000) == ["again", "first", "waits"]
    assert starting(NOW + 310_001) == []


def test_a_future_instant_is_refused(tmp_path, check_job, capsys):
    with pytest.raises(SystemExit, match="2"):
        check_job(tmp_path, "flights", "2100-01-01T00:00Z", "r")
    assert "2100-01-01T00:00:00.000Z is in the future" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_sla_fails_a_check_and_keeps_its_incident(warehouse, tmp_path, own_project, check_job):
    topology_file = tmp_path / "t.toml"
    events = 'topic = "e"\nfields = "id string, at bigint"\ntimestamp = "at"\nbound = "0 s"\n'
    topology_file.write_text(f'name = "t"\n[operators.events]\nkind = "source"\n{events}')
    first_check = {"topology": "t", "checked_at": datetime(2026, 1, 1, 11, 58, tzinfo=UTC), "run_id": "first"}
    warehouse.write(SLA_RESULTS, [{**first_check, "sla": "one", "verdict": "unknown"}])

    def checked(minute, **limits):
        """Returns the SLAs judged at *minute* and all incidents by then.

        The file has SLAs of such limits.
        """
        tables = (
            f'[t.{name}]\nsubject = "changes"\nmeasure = "staleness"\nowner = "o"\n{limit} = "1 min"\n'
            for name, limit in limits.items()
        )
        own_project.slas.write_text("".join(tables))
        try:
            check_job(warehouse.layout.warehouse, topology_file, f"2026-01-01T12:{minute:02}Z", str(minute))
        finally:
            judged = {row["sla"] for row in warehouse.report(SLA_RESULTS) if row["run_id"] == str(minute)}
            found.append((judged, {(row["incident"], row["change"]) for row in warehouse.report(INCIDENTS)}))

    found = []
    checked(0, one="error_after")
    with pytest.raises(
        InvalidSpec, match=r"^slas\.toml: t\.one\.error_aftr: .*\nslas\.toml: t\.two\.warn: is not a valid key"
    ):
        checked(10, one="error_aftr", other="error_after", two="warn")
    checked(20, one="error_after", other="error_after")
    first, other = ("one-20260101T120000", "opened"), ("other-20260101T121000", "opened")
    assert found == [({"one"}, {first}), ({"other"}, {first, other}), ({"one", "other"}, {first, other})]


def test_without_a_valid_sla_a_check_fails_and_writes_nothing(tmp_path, own_project, check_job):
    flights = CHECKOUT / "jobs" / "topologies" / "flights.toml"
    own_project.slas.write_text('[flights.mine]\nsubject = "flight_board"\n[flights.other]\nover = 1\n')
    with pytest.raises(
        InvalidSpec,
        match=r"flights\.mine\.owner: .*\n.*flights\.mine\.warn_after: .*\n(.*\n)*.*other\.subject: is missing",
    ):
        check_job(tmp_path / "warehouse", flights, "2026-01-01T12:00Z", "r")
    assert not (tmp_path / "warehouse").exists()
