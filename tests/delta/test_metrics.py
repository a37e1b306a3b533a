"""Metrics equal the tables, and Prometheus' own tools read them."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import rollup
from support.busy_warehouse import FLIGHTS, GOES_ON_MS, busy
from support.command_line import tidemark
from support.latency_facts import minute_row
from support.otlp_receiver import OtlpReceiver
from support.report_warehouse import TestWarehouse, reading
from support.topologies import source as source_of
from support.topologies import topology_of
from tidemark.cli.export import serve_metrics
from tidemark.cli.export.metrics import watched_topologies
from tidemark.control import process
from tidemark.errors import InvalidArgument
from tidemark.facts import kept_rows
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.reports.rollups import NO_OUTLINE
from tidemark.metrics import exporter as exporter_module
from tidemark.metrics.catalog import GROUPS, PERCENTILES, MetricType, Sample, metrics
from tidemark.metrics.exporter import Exporter
from tidemark.metrics.otlp import OtlpExporter
from tidemark.metrics.rules import rules_file
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import known_slas, parse
from tidemark.model.tables.catalog import COMPLETENESS, HEARTBEATS, LATENCY_MINUTES, LATENCY_ROLLUP
from tidemark.model.topology import Topology, load
from tidemark.selection import names_in
from tidemark.storage.delta import snapshots
from tidemark.storage.delta.snapshots import ReadLog, newest_log_file

NOON = 1_767_268_800_000  # 2026-01-01 12:00 UTC
NOW = NOON + GOES_ON_MS
OF_WATCHED = {*names_in(GROUPS["watched_tables"].metrics)}
"""Metrics that no topology with streams has; tests/delta/test_watch_ages.py has their values."""
DOCS = CHECKOUT / "docs"
TOOLS = f"{CHECKOUT / '.venv' / 'prometheus' / 'usr' / 'bin'}{os.pathsep}{os.environ['PATH']}"
PROMTOOL, PROMETHEUS = shutil.which("promtool", path=TOOLS), shutil.which("prometheus", path=TOOLS)
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool; `make prometheus` installs it")


@pytest.fixture(scope="module")
def flights() -> Topology:
    return load(FLIGHTS)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """`busy` at noon, and two complete intervals."""
    layout = Layout(busy(tmp_path_factory.mktemp("busy"), NOON))
    of_table = {"topology": "flights", "sub_topology": "status", "operator": "flight_board", "table": "flight_board"}
    complete = [
        {**of_table, "batch_id": n, "interval_end": NOON + n * 1_000, "interval_start": NOON + n * 1_000 - 1_000}
        for n in range(2)
    ]
    write_deltalake(layout.stream_table("flights", "status", "completeness"), rows_of(COMPLETENESS, complete))
    return layout


@pytest.fixture
def exporter(warehouse: Layout, flights: Topology) -> Exporter:
    return Exporter(warehouse, lambda: [flights], clock=lambda: NOW)


def values(exporter: Exporter, metric: str) -> dict[tuple[str, ...], Any]:
    """The values of *metric* by its labels but the topology."""
    return {sample.labels[1:]: sample.value for sample in exporter.samples() if sample.metric == metric}


def registry_of(exporter: Exporter) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(exporter)
    return registry


def test_values_are_those_of_the_tables(exporter: Exporter) -> None:
    states = values(exporter, "tidemark_stream_state")
    assert {sub: [word for word, is_so in each.items() if is_so] for (sub,), each in states.items()} == {
        "status": ["catching_up"], "carriers": ["failed"],
    }  # fmt: skip
    # The last heartbeat is 15 s old, and its estimate was an instant before now.
    assert values(exporter, "tidemark_heartbeat_age_seconds")["status",] == 15
    assert values(exporter, "tidemark_behind_records") == {("status",): 12_400}
    assert values(exporter, "tidemark_catch_up_seconds") == {("status",): 0}
    # The last batch ended 4 s ago with a watermark 8 s before; partition 2 is silent since 10 min before noon.
    lags = values(exporter, "tidemark_watermark_lag_seconds")
    assert {place[1:]: lag for place, lag in lags.items()} == {
        ("flight_events", "0"): 12, ("flight_events", "1"): 12, ("flight_events", "2"): 720 + 600 + 8,
        ("weather", "0"): 12,
    }  # fmt: skip
    unread = values(exporter, "tidemark_unread_records")
    assert (unread["status", "flight_events", "0"], unread["status", "flight_events", "2"]) == (6_200, 0)
    assert values(exporter, "tidemark_open_incidents") == {
        ("critical",): 3, ("warning",): 1, ("info",): 0,
    }  # fmt: skip
    levels = {labels[0]: level for labels, level in values(exporter, "tidemark_sla_level").items()}
    assert levels == {
        "board_budget_1h": 0, "board_is_fresh": 0, "changes_are_fresh": 0, "delays_are_fresh": 2, "delays_in_time": 2,
        "every_airport_sends": 1,
    }  # fmt: skip
    dead = "absence", "flights/carriers"
    assert values(exporter, "tidemark_sla_cause_ratio") == {
        ("delays_are_fresh", *dead): 0.92, ("delays_in_time", *dead): 0.92,
    }  # fmt: skip
    assert values(exporter, "tidemark_budget_left_ratio") == {("board_budget", "flight_board"): 0.625}
    assert values(exporter, "tidemark_check_age_seconds") == {(): 720 + 90}
    assert values(exporter, "tidemark_complete_lag_seconds") == {("flight_board", "flight_board"): 719}
    assert values(exporter, "tidemark_reopened_intervals") == {("flight_board", "flight_board"): 0}


def test_counters_begin_with_the_hour(exporter: Exporter) -> None:
    # From noon on there is a batch each 4 s for twelve minutes: 180.
    updates = values(exporter, "tidemark_updates")
    of_board = {outcome: n for (operator, outcome), n in updates.items() if operator == "flight_board"}
    assert of_board == {
        "emitted": 180 * 640, "suppressed": 180 * 240, "late": 360, "quarantined": 180, "duplicate": 0, "filtered": 0,
        "passed": 0, "superseded": 0,
    }  # fmt: skip
    by_edge, _ = values(exporter, "tidemark_latency_seconds")["flight_board",]
    assert by_edge[-1] == ("+Inf", 180 * 1_000)
    since = {sample.since_s for sample in exporter.samples() if metrics()[sample.metric].type is MetricType.COUNTER}
    assert since == {NOON / 1_000}


def test_percentiles_are_those_of_the_rollup(tmp_path: Path) -> None:
    tables = TestWarehouse(Layout(tmp_path))
    latencies = [n * n for n in range(-3, 300)]
    tables.write(LATENCY_MINUTES, [minute_row(NOON + 60_000, latencies)])
    rollup.run(tables.layout, "t", None, NO_OUTLINE)
    (hour,) = (row for row in tables.report(LATENCY_ROLLUP) if (row["scope"], row["grain"]) == ("operator", "hour"))
    exporter = Exporter(tables.layout, lambda: [reading({"o": ()})], clock=lambda: NOON + 61_000)
    recent = values(exporter, "tidemark_recent_latency_seconds")
    ordered = sorted(latencies)
    for name, q in PERCENTILES.items():
        exact_s = ordered[math.ceil(q * len(ordered)) - 1] / 1_000
        assert recent["o", name] == pytest.approx(exact_s, rel=0.01)
        assert recent["o", name] == pytest.approx(hour[f"{name}_ms"] / 1_000, rel=1e-9)
    by_edge, _ = values(exporter, "tidemark_latency_seconds")["o",]
    for edge, n in by_edge[:-1]:
        # The label has six digits, and latencies are whole ms.
        assert n == sum(latency <= float(edge) * 1_000 * 1.000_01 for latency in latencies), edge
    late = Exporter(tables.layout, lambda: [reading({"o": ()})], clock=lambda: NOON + 60_000 + 300_001)
    assert values(late, "tidemark_recent_latency_seconds") == {}


def test_a_batch_ahead_of_the_clock_counts_when_its_time_comes(warehouse: Layout, flights: Topology) -> None:
    """The driver's clock is 10 s ahead of the exporter's."""
    now_ms = [NOW - 10_000]
    exporter = Exporter(warehouse, lambda: [flights], clock=lambda: now_ms[0])
    exporter.samples()
    now_ms[0] = NOW
    assert values(exporter, "tidemark_watermark_lag_seconds")["status", "flight_events", "0"] == 12


def test_a_scrape_of_an_unchanged_warehouse_reads_no_file(
    warehouse: Layout, flights: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Layout(shutil.copytree(warehouse.warehouse, tmp_path / "own"))
    exporter = Exporter(own, lambda: [flights], clock=lambda: NOW)
    first = exporter.samples()
    read: list[str] = []

    whole = kept_rows.rows_of_files

    def counted(files: list[str], columns: pl.Schema) -> pl.LazyFrame:
        read.extend(files)
        return whole(files, columns)

    monkeypatch.setattr(kept_rows, "rows_of_files", counted)
    # The log of a known table is not read anew.
    monkeypatch.delattr(snapshots, "_actions_of")
    assert exporter.samples() == first
    assert read == []
    beats = own.stream_table("flights", "status", "heartbeats")
    beat = {"topology": "flights", "sub_topology": "status", "beat_at": NOW - 1_000, "state": "running", "epoch": 2}
    write_deltalake(beats, rows_of(HEARTBEATS, [beat]), mode="append")
    assert values(exporter, "tidemark_heartbeat_age_seconds")["status",] == 1
    assert len(read) == 1


def test_a_scrape_asks_little_of_files_logs_and_frames(
    warehouse: Layout, flights: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query of a frame takes 0.3 ms, a file 1 ms."""
    own = Layout(shutil.copytree(warehouse.warehouse, tmp_path / "own"))
    exporter = Exporter(own, lambda: [flights], clock=lambda: NOW)
    exporter.samples()
    counts: Counter[str] = Counter()

    def count(owner: object, name: str) -> None:
        whole = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return whole(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    # A query of a frame, also an eager one, begins with `lazy`.
    for owner, name in ((pl.DataFrame, "lazy"), (kept_rows, "rows_of_files"), (kept_rows, "read_log")):
        count(owner, name)
    exporter.samples()
    # Five tables and the heartbeats of two streams, and two reports.
    logs = {"read_log": 2 * 6 + 2}
    assert counts == {**logs, "lazy": 2}
    for name in ("status", "carriers"):
        for table in ("batches", "operator_batches", "latency_minutes", "partition_batches", "heartbeats"):
            path = own.stream_table("flights", name, table)
            write_deltalake(path, DeltaTable(path).to_pyarrow_table().slice(0, 1), mode="append")
    counts.clear()
    exporter.samples()
    # Nothing asks for the watermarks of a stream without partitions.
    assert counts == {**logs, "rows_of_files": 9, "lazy": 15}


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_recreated_table_shows_only_its_new_rows(tmp_path: Path, commits: int) -> None:
    """Its log is shorter than the old one, as long, or longer."""
    path, kept = tmp_path / HEARTBEATS.name, kept_rows.TableRows()

    def beat(epoch: int) -> None:
        row = {"topology": "t", "sub_topology": "s", "beat_at": NOON, "state": "running", "epoch": epoch}
        write_deltalake(path, rows_of(HEARTBEATS, [row]), mode="append")

    for _ in range(2):
        beat(1)
    assert kept.snapshot().rows(HEARTBEATS, path)["epoch"].to_list() == [1, 1]
    shutil.rmtree(path)
    for _ in range(commits):
        beat(2)
    assert kept.snapshot().rows(HEARTBEATS, path)["epoch"].to_list() == [2] * commits


def test_rows_that_delta_rs_had_to_read_are_not_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer may commit while the log is listed; then its files are known only by the next scrape."""
    path, kept = tmp_path / HEARTBEATS.name, kept_rows.TableRows()

    def beat(epoch: int) -> None:
        row = {"topology": "t", "sub_topology": "s", "beat_at": NOON, "state": "running", "epoch": epoch}
        write_deltalake(path, rows_of(HEARTBEATS, [row]), mode="append")

    beat(1)
    with monkeypatch.context() as racing:
        racing.setattr(kept_rows, "read_log", lambda path, _: ReadLog(newest_log_file(path)))
        assert kept.snapshot().rows(HEARTBEATS, path)["epoch"].to_list() == [1]
    beat(2)
    assert sorted(kept.snapshot().rows(HEARTBEATS, path)["epoch"]) == [1, 2]


def test_flights_have_few_series_and_more_are_cut(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for line in open_metrics(registry_of(exporter)).decode().splitlines() if not line.startswith("#")]
    assert len(lines) == sum(sample.series for sample in exporter.samples()) < 2_000
    assert values(exporter, "tidemark_dropped_series") == {(): 0}
    monkeypatch.setattr(exporter_module, "MOST_SERIES", 40)
    cut = exporter.samples()
    assert sum(sample.series for sample in cut) <= 40
    assert cut[-1] == Sample("tidemark_dropped_series", ("flights",), len(lines) - sum(each.series for each in cut))
    assert {sample.metric for sample in cut} >= {"tidemark_stream_state", "tidemark_sla_level"}


def test_a_topology_that_cannot_be_read_hides_no_other(
    warehouse: Layout, flights: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Exporter._read

    def read(self: Exporter, topology: Topology, now_ms: int) -> Iterator[Sample]:
        if topology.name == "t":
            msg = "a broken disk"
            raise OSError(msg)
        return whole(self, topology, now_ms)

    monkeypatch.setattr(Exporter, "_read", read)
    exporter = Exporter(warehouse, lambda: [reading({"o": ()}), flights], clock=lambda: NOW)
    readable = [(sample.labels, sample.value) for sample in exporter.samples() if sample.metric == "tidemark_readable"]
    assert readable == [(("t",), 0), (("flights",), 1)]


def test_the_exposition_is_openmetrics_as_documented(exporter: Exporter) -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(open_metrics(registry_of(exporter)).decode())
    }
    assert {name: (family.type, family.unit) for name, family in families.items()} == {
        name: (metric.type.value, metric.unit) for name, metric in metrics().items() if name not in OF_WATCHED
    }
    documented = re.findall(
        r"^\| `(tidemark_\w+)` \| (\w+) \| (\w+) \| (.*?) \| (.*?) \| (.*) \|$", page(), re.MULTILINE
    )
    for (name, kind, unit, labels, source, meaning), metric in zip(documented, metrics().values(), strict=True):
        assert (name.removesuffix("_total"), kind, source, meaning) == (
            metric.name, metric.type, metric.source, metric.meaning,
        )  # fmt: skip
        assert (unit.replace("none", ""), re.findall(r"`(\w+)`", labels)) == (metric.unit, [*metric.labels[1:]])


def page() -> str:
    return (DOCS / "metrics.md").read_text()


@needs_promtool
def test_promtool_finds_nothing_to_criticize(exporter: Exporter) -> None:
    subprocess.run([str(PROMTOOL), "check", "metrics"], input=generate_latest(registry_of(exporter)), check=True)


def rules_with(expressions: list[str]) -> str:
    rules = [{"record": f"r{n}", "expr": expression} for n, expression in enumerate(expressions)]
    return json.dumps({"groups": [{"name": "g", "rules": rules}]})


def test_the_dashboard_shows_only_metrics_that_exist(exporter: Exporter, tmp_path: Path) -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    text = generate_latest(registry_of(exporter)).decode()
    series = set(re.findall(r"^(tidemark_\w+)\{", text, re.MULTILINE))
    shown = set(re.findall(r"tidemark_\w+(?=\{)", " ".join(expressions)))
    assert shown <= series
    assert {"tidemark_recent_latency_seconds", "tidemark_updates_total", "tidemark_latency_seconds_bucket"} < shown
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    if PROMTOOL is not None:
        real = [each.replace("$topology", "flights").replace("$__rate_interval", "1m") for each in expressions]
        (tmp_path / "rules.yml").write_text(rules_with(real))
        subprocess.run([PROMTOOL, "check", "rules", str(tmp_path / "rules.yml")], check=True)


SLAS = {
    "flights": {
        "board_in_time": {
            "subject": "flight_board", "measure": "latency_p99", "warn_after": "30 s", "error_after": "2 min",
            "owner": "flight desk", "open_after": "1 min", "runbook": "see {{ the wiki }}",
        },
        "lag": {"subject": "flight_events", "measure": "watermark_lag", "error_after": "1 min", "owner": 'a "b"'},
        "fresh": {"subject": "flight_board", "measure": "staleness", "error_after": "2 min", "owner": "flight desk"},
    }
}  # fmt: skip
OF_TOPOLOGY = 'topology="flights"'


@needs_promtool
def test_rules_of_slas_alert_in_promtool(flights: Topology, tmp_path: Path) -> None:
    """High latency, a lag, staleness, and a failed stream."""
    (tmp_path / "rules.yml").write_text(rules_file([(flights, parse(SLAS, flights, file="slas.toml"))]))
    partition = f'tidemark_watermark_lag_seconds{{{OF_TOPOLOGY},sub_topology="status",source="flight_events",partition='
    series = {
        f'tidemark_recent_latency_seconds{{{OF_TOPOLOGY},operator="flight_board",percentile="p99"}}': "40x10 200x10",
        f'{partition}"0"}}': "3x20",
        f'{partition}"1"}}': "61x20",
        f'tidemark_sla_level{{{OF_TOPOLOGY},sla="fresh",subject="flight_board",measure="staleness"}}': "0x10 2x10",
        f'tidemark_stream_state{{{OF_TOPOLOGY},sub_topology="carriers",tidemark_stream_state="failed"}}': "1x20",
        f"tidemark_readable{{{OF_TOPOLOGY}}}": "1x20",
    }

    def alerts(at: str, expected: dict[str, tuple[str, str]]) -> dict[str, Any]:
        """At *at* the SLAs *expected* alert, by name with severity and owner."""
        found = [
            {"exp_labels": {"topology": "flights", "sla": sla, "severity": severity, "owner": owner, **more[sla]},
             "exp_annotations": said[sla, severity]}
            for sla, (severity, owner) in expected.items()
        ]  # fmt: skip
        return {"eval_time": at, "alertname": "TidemarkSla", "exp_alerts": found}

    more = {
        "board_in_time": {"operator": "flight_board", "percentile": "p99"},
        "lag": {},
        "fresh": {"subject": "flight_board", "measure": "staleness"},
    }
    latency = "latency_p99 of flight_board: it is"
    said = {
        ("board_in_time", "warning"): {"summary": f"{latency} 30 s or more", "runbook": "see {{ the wiki }}"},
        ("board_in_time", "critical"): {"summary": f"{latency} 2 min or more", "runbook": "see {{ the wiki }}"},
        ("lag", "critical"): {"summary": "watermark_lag of flight_events: it is 1 min or more"},
        ("fresh", "critical"): {"summary": "staleness of flight_board: the newest check found it broken"},
    }
    stopped = {
        "exp_labels": {
            "topology": "flights", "severity": "critical", "sub_topology": "carriers",
            "tidemark_stream_state": "failed",
        },
        "exp_annotations": {"summary": "the stream carriers is failed"},
    }  # fmt: skip
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": numbers} for name, numbers in series.items()],
        "alert_rule_test": [
            alerts("0m", {"lag": ("critical", 'a "b"')}),
            alerts("5m", {"lag": ("critical", 'a "b"'), "board_in_time": ("warning", "flight desk")}),
            alerts(
                "15m",
                {
                    "lag": ("critical", 'a "b"'),
                    "board_in_time": ("critical", "flight desk"),
                    "fresh": ("critical", "flight desk"),
                },
            ),
            {"eval_time": "5m", "alertname": "TidemarkStreamStopped", "exp_alerts": [stopped]},
            {"eval_time": "5m", "alertname": "TidemarkUnreadable", "exp_alerts": []},
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": [test]}))
    ran = subprocess.run(
        [str(PROMTOOL), "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "more", [{}, {"ignore_when_idle": True}, {"while_catching_up": "excuse"}, {"except": ["days_off"]}]
)
def test_a_rule_alerts_only_if_the_check_would(flights: Topology, more: dict[str, Any]) -> None:
    """Prometheus cannot see what excuses a late subject, and has no calendar."""
    days_off = {"zone": "Europe/Berlin", "weekdays": ["Sun"]}
    slas = {"calendars": {"days_off": days_off}, "flights": {"lag": SLAS["flights"]["lag"] | more}}
    specs = parse(slas, flights, file="slas.toml")
    text = rules_file([(flights, specs)])
    assert ("max(tidemark_watermark_lag_seconds" in text) == (not more)
    assert ("tidemark_sla_level{" in text) == bool(more)


@pytest.mark.parametrize(
    ("more", "asked"), [({}, "tidemark_recent_latency_seconds{"), ({"min_records": 100}, "tidemark_sla_level{")]
)
def test_a_percentile_that_needs_records_alerts_by_its_check(
    flights: Topology, more: dict[str, Any], asked: str
) -> None:
    """Prometheus' percentile does not say of how many records it is."""
    in_time = {"subject": "flight_board", "measure": "latency_p99", "error_after": "1 s", "owner": "desk", **more}
    text = rules_file([(flights, parse({"flights": {"in_time": in_time}}, flights, file="slas.toml"))])
    asks = ("tidemark_recent_latency_seconds{", "tidemark_sla_level{")
    assert [metric for metric in asks if metric in text] == [asked]


WARNS = {"warning": "the newest check has a warning", "critical": "the newest check found it broken"}


@pytest.mark.parametrize(
    ("sla", "levels"),
    [
        ({"measure": "staleness", "warn_after": "1 min", "error_after": "2 min"}, ["warning", "critical"]),
        # A table may be ahead of the clock, which is an error whatever its limits.
        ({"measure": "staleness", "warn_after": "1 min"}, ["warning", "critical"]),
        ({"measure": "staleness", "error_after": "1 min"}, ["critical"]),
        ({"measure": "operator_latency_p50", "subject": "carrier_state", "warn_after": "1 s"}, ["warning"]),
        ({"measure": "records", "warn_below": 5}, ["warning"]),
        ({"measure": "quarantined_share", "subject": "flight_events", "error_above": 0.1}, ["critical"]),
        ({"measure": "contract", "subject": "tables"}, ["critical"]),
    ],
)
def test_a_level_of_checks_has_a_rule_if_a_check_can_find_it(
    flights: Topology, sla: dict[str, Any], levels: list[str]
) -> None:
    written = {"subject": "flight_board", "owner": "o", **sla}
    text = rules_file([(flights, parse({"flights": {"sla": written}}, flights, file="slas.toml"))])
    of_sla = text[text.index('- alert: "TidemarkSla"') :]
    assert re.findall(r'"severity": "(\w+)"', of_sla) == levels
    assert re.findall(r'"summary": "[^:]+: ([^"]+)"', of_sla) == [WARNS[level] for level in levels]


@needs_promtool
def test_the_command_writes_rules_of_every_sla(flights: Topology, tmp_path: Path) -> None:
    printed = tidemark(CHECKOUT, "metrics", "rules", "flights").stdout
    (tmp_path / "rules.yml").write_text(printed)
    subprocess.run([str(PROMTOOL), "check", "rules", str(tmp_path / "rules.yml")], check=True)
    assert set(re.findall(r'"sla": "(\w+)"', printed)) == {spec.name for spec in known_slas(flights).specs}


def test_on_loopback_only_requests_for_this_machine_are_answered(exporter: Exporter) -> None:
    server, thread = serve_metrics.serve(registry_of(exporter), "127.0.0.1", 0)
    try:
        statuses = {}
        for host in (
            "127.0.0.1:9477",
            "localhost",
            "[::1]:80",
            "metrics.example.org:9477",
            "127.0.0.1.example.org",
            "",
        ):
            connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
            connection.putrequest("GET", "/metrics", skip_host=True)
            if host:
                connection.putheader("Host", host)
            connection.endheaders()
            statuses[host] = connection.getresponse().status
            connection.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert statuses == {
        "127.0.0.1:9477": 200, "localhost": 200, "[::1]:80": 200, "": 200, "metrics.example.org:9477": 421,
        "127.0.0.1.example.org": 421,
    }  # fmt: skip


@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus; `make prometheus` installs it")
def test_a_real_prometheus_scrapes_as_documented(exporter: Exporter, tmp_path: Path) -> None:
    server, thread = start_http_server(0, "127.0.0.1", registry_of(exporter))
    (scrape,) = re.findall(r"<!-- scrape configuration -->\n```yaml\n(.*?)```", page(), re.DOTALL)
    scrape = scrape.replace("9477", str(server.server_port)).replace("15s", "1s")
    (tmp_path / "prometheus.yml").write_text(scrape)
    port = process.free_port()
    flags = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")
    address = f"127.0.0.1:{port}"
    process.launch("prometheus", [str(PROMETHEUS), *flags, f"--web.listen-address={address}"], home=tmp_path, env={})

    def answer(query: str) -> dict[str, float]:
        try:
            with urlopen(f"http://{address}/api/v1/query?{urlencode({'query': query})}", timeout=5) as response:
                found = json.load(response)["data"]["result"]
        except OSError:
            return {}
        return {each["metric"].get("operator", ""): float(each["value"][1]) for each in found}

    def last(selector: str) -> str:
        # A later scrape may take longer than its interval here; Prometheus then has no newest value.
        return f"last_over_time({selector}[1h])"

    try:
        process.wait_until(lambda: bool(answer(last("tidemark_readable"))), "a scrape", 120)
        percentile = last('tidemark_recent_latency_seconds{percentile="p99"}')
        assert (
            answer(percentile)["flight_board"]
            == values(exporter, "tidemark_recent_latency_seconds")["flight_board", "p99"]
        )
        assert answer(last("tidemark_latency_seconds_count"))["flight_board"] == 180_000
        # Between two edges Prometheus interpolates, and ours are a factor of two apart.
        buckets = last("tidemark_latency_seconds_bucket")
        of_histogram = answer(f"histogram_quantile(0.99, {buckets})")["flight_board"]
        assert answer(percentile)["flight_board"] == pytest.approx(of_histogram, rel=0.5)
    finally:
        process.stop(tmp_path, "prometheus")
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def served(warehouse: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """`tidemark serve-metrics` of `busy`; it prints its address.

    It writes events of runs to a file.
    """
    transport = {"type": "file", "log_file_path": str(tmp_path / "events.jsonl"), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    with serving(warehouse, "--port", "0", "--lineage") as server:
        yield server


@contextmanager
def serving(layout: Layout, *options: str) -> Iterator[subprocess.Popen[str]]:
    words = ["--warehouse", str(layout.warehouse), "serve-metrics", "flights", *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = "from tidemark.cli.main import main; raise SystemExit(main())"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    server = subprocess.Popen([sys.executable, "-c", code, *words], cwd=CHECKOUT, env=environment, **pipes)
    try:
        yield server
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_the_command_serves_both_formats_and_sends_runs(served: subprocess.Popen[str], tmp_path: Path) -> None:
    assert served.stdout is not None
    url = served.stdout.readline().split()[-1]
    assert url.startswith("http://127.0.0.1:")
    last = 'tidemark_dropped_series{topology="flights"} 0.0'
    for accept, line in (("application/openmetrics-text", "# EOF"), ("text/plain", last)):
        with urlopen(Request(url, headers={"Accept": accept}), timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith(accept)
            text = answer.read().decode()
        assert 'tidemark_readable{topology="flights"} 1.0' in text
        assert text.splitlines()[-1] == line

    def runs() -> set[str]:
        # The file may not be there yet, and the newest line may be half written.
        file = tmp_path / "events.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return {event["job"]["name"] for event in map(json.loads, lines) if event["eventType"] == "START"}

    process.wait_until(lambda: runs() == {"flights.status", "flights.carriers"}, "events of both streams", 120)
    served.terminate()
    assert (served.wait(timeout=60), served.stderr and served.stderr.read()) == (
        130, "tidemark serve-metrics: interrupted\n",
    )  # fmt: skip


def test_a_command_prints_and_sends_runs_once(
    warehouse: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(warehouse.warehouse, tmp_path / "own", ignore=shutil.ignore_patterns("lineage.json"))
    runs = ("--warehouse", str(own), "publish", "lineage", "--runs")
    printed = [json.loads(line) for line in tidemark(CHECKOUT, *runs).stdout.splitlines()]
    starts = {each["job"]["name"] for each in printed if each["eventType"] == "START"}
    assert starts == {"flights.status", "flights.carriers"}
    transport = {"type": "file", "log_file_path": str(tmp_path / "events.jsonl"), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    for number in (len(printed), 0):
        sent = tidemark(CHECKOUT, *runs, "--send")
        assert (sent.returncode, sent.stdout) == (0, f"sent {number} events by the transport file\n"), sent.stderr


@pytest.mark.parametrize("option", ["--port=65536", "--port=-1", "--every=0", "--every=-1", "--every=nan"])
def test_numbers_out_of_range_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    serve_metrics.add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([option])
    assert f"argument {option.partition('=')[0]}: " in capsys.readouterr().err


def test_a_file_that_becomes_invalid_hides_its_topology_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path)
    project.topologies.mkdir(parents=True)
    for name in "ab":
        (project.topologies / f"{name}.toml").write_text(topology_of({"name": name}, events=source_of()))
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    topologies = watched_topologies(["a", "b"], Layout(tmp_path))
    (project.topologies / "a.toml").write_text("[")
    assert [each.name for each in topologies()] == ["b"]
    with pytest.raises(InvalidArgument, match="there is no topology a with a valid file"):
        watched_topologies(["a"], Layout(tmp_path))


@pytest.mark.long  # only the loop of the command is left to see; 4 CPU s
def test_the_command_pushes_until_it_is_stopped(warehouse: Layout) -> None:
    with OtlpReceiver() as receiver, serving(warehouse, "--otlp", receiver.url, "--every", "0.1"):
        process.wait_until(lambda: receiver.requests >= 2, "two pushes", 120)
    assert {"tidemark_readable", "tidemark_stream_state"} <= {*receiver.metrics}


def test_a_collector_that_refuses_is_told_from_one_that_accepts(exporter: Exporter) -> None:
    with OtlpReceiver(status=400) as receiver:
        assert not OtlpExporter(exporter, receiver.url).push()


def test_a_refusal_is_said_once_and_so_is_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    answers = iter([True, False, False, True, True])
    push = serve_metrics._saying(lambda: next(answers), "http://here", "the spans", 15.0)
    for _ in range(5):
        push()
    assert capfd.readouterr().err.splitlines() == [
        "http://here did not take the spans; they are pushed again every 15 s",
        "http://here takes the spans again",
    ]


def test_a_collector_gets_the_same_values(exporter: Exporter) -> None:
    with OtlpReceiver() as receiver:
        assert OtlpExporter(exporter, receiver.url).push()
    assert {*receiver.metrics} == {*metrics()} - OF_WATCHED
    (readable,) = receiver.metrics["tidemark_readable"].gauge.data_points
    assert readable.as_double == 1
    (board,) = receiver.metrics["tidemark_latency_seconds"].histogram.data_points
    by_edge, total_s = values(exporter, "tidemark_latency_seconds")["flight_board",]
    assert (board.count, board.sum, board.start_time_unix_nano) == (180_000, total_s, NOON * 1_000_000)
    assert [*board.explicit_bounds] == [float(edge) for edge, _ in by_edge[:-1]]
    assert sum(board.bucket_counts) == 180_000
    updates = receiver.metrics["tidemark_updates"].sum
    assert updates.is_monotonic
    late = [
        point.as_double
        for point in updates.data_points
        if {each.key: each.value.string_value for each in point.attributes}
        == {"topology": "flights", "operator": "flight_board", "outcome": "late"}
    ]
    assert late == [360]
