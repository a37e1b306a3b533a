"""Queries of jobs are streams for every command, here without Spark."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

import critical_path
from support.command_line import CommandOutput, tidemark
from support.recorded_jobs import BOOTED_MS, Job, files, observation, topic
from tidemark.api.listen import Listener
from tidemark.api.query import FactsWriter, Query
from tidemark.cli.explain import status
from tidemark.cli.export import serve_metrics
from tidemark.cli.local import logs
from tidemark.cli.main import main
from tidemark.cli.project.check import _not_measured, check
from tidemark.clock import wall_clock_ms
from tidemark.control.folder import StreamState
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.facts.measures import sla_facts
from tidemark.facts.measures.observed_latencies import observed_latencies
from tidemark.kernels.columns.schemas import rows_of
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, instant_ms, iso
from tidemark.model.slas.sla_spec import load_usable
from tidemark.model.tables.catalog import BATCHES
from tidemark.model.topology import JobLaunch, Topology
from tidemark.query.sql import Warehouse
from tidemark.recorded_jobs.queries import (
    FILE,
    RecordedQuery,
    read_query,
    recorded_topologies,
    recorded_topology,
    topology_of,
    write_launch,
    write_query,
)
from tidemark.reports.documents.status import status_document
from tidemark.reports.documents.why import why_document
from tidemark.sla.measures.status import statuses
from tidemark.sla.sla_text import measurement_text
from tidemark.storage.delta.log import TableLog
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.walk import why

NOON = instant_ms("2026-03-01T12:00")
SECOND, MINUTE = 1_000, 60_000


def shop(home: Path) -> Topology:
    topology = recorded_topology(Layout(home), "shop")
    assert topology is not None
    return topology


def findings(home: Path, at_ms: int, operator: str | None = None) -> list[WhyFinding]:
    return why(shop(home), Layout(home), at_ms=at_ms, operator=operator)


def first(home: Path, at_ms: int, operator: str | None = None) -> WhyFinding:
    return findings(home, at_ms, operator)[0]


# the topology


def test_queries_are_chained_by_the_places_that_they_share() -> None:
    queries = [
        RecordedQuery(name="totals", query_id="3", sources={"totals:clean": "delta:/lake/clean"}),
        RecordedQuery(
            name="clean",
            query_id="2",
            sources={"clean:orders": "topic:orders"},
            sink="delta:/lake/clean",
            trigger_ms=5_000,
        ),
        RecordedQuery(name="land", query_id="1", sources={"land:rate": "rate:"}, sink="topic:orders"),
    ]
    topology = topology_of("shop", queries)
    assert [sub.name for sub in topology.sub_topologies] == ["land", "clean", "totals"]
    assert dict(topology.upstreams) == {
        "land:rate": (), "land": ("land:rate",), "clean:orders": ("land",), "clean": ("clean:orders",),
        "totals:clean": ("clean",), "totals": ("totals:clean",),
    }  # fmt: skip
    assert (topology.terminals, topology.trigger_ms) == (("totals",), 5_000)


def test_queries_that_read_each_other_are_no_endless_path() -> None:
    there = RecordedQuery(name="there", query_id="1", sources={"there:b": "topic:b"}, sink="topic:a")
    back = RecordedQuery(name="back", query_id="2", sources={"back:a": "topic:a"}, sink="topic:b")
    upstreams = topology_of("shop", [there, back]).upstreams
    assert sorted(len(read) for name, read in upstreams.items() if ":" in name) == [0, 1]


BROKEN = {
    "[]": "it must be an object of JSON",
    '{"name": "clean", ': "it must be an object of JSON",
    '{"name": "clean"}': "query_id must be a text",
    '{"name": "clean", "query_id": 7}': "query_id must be a text",
    '{"name": "clean", "query_id": "1", "first_batch": "0"}': "first_batch must be a whole number",
    '{"name": "clean", "query_id": "1", "sources": {"clean:a": 1}}': (
        "sources must have a location for each name clean:PLACE"
    ),
    '{"name": "clean", "query_id": "1", "observed_limits_ms": [1.5]}': (
        "observed_limits_ms must be a list of whole numbers"
    ),
    '{"name": "../../x", "query_id": "1"}': "name must be that of its folder, clean",
}


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_description_of_a_query_hides_only_its_topology(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    layout = Layout(tmp_path)
    write_query(layout, "bakery", RecordedQuery(name="bake", query_id="1"))
    broken = layout.control("shop", "clean") / FILE
    broken.parent.mkdir(parents=True)
    broken.write_text(content)
    for _ in range(2):
        assert [each.name for each in recorded_topologies(layout)] == ["bakery"]
    problem = f"{broken}: {BROKEN[content]}; remove the file, and the next run of the query writes it"
    assert caplog.text.count(problem) == 1  # a page and metrics look again and again
    with pytest.raises(InvalidSpec, match=re.escape(problem)):
        recorded_topology(layout, "shop")


def test_a_damaged_heartbeat_hides_no_topology(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_query(layout, "bakery", RecordedQuery(name="bake", query_id="1"))
    write_query(layout, "shop", RecordedQuery(name="clean", query_id="1", job="cleaning"))
    write_launch(layout, "shop", "cleaning", JobLaunch(application="clean.py"))
    beat = layout.control("shop", "cleaning") / "heartbeat.json"
    for content in (b"", b"{", b"[1]", b'{"state": "running"}', b"\xff", None):
        if content is None:
            beat.unlink()
            beat.mkdir()
        else:
            beat.write_bytes(content)
        assert [each.name for each in recorded_topologies(layout)] == ["bakery", "shop"]


# what is recorded


def test_a_run_replaces_a_broken_description(tmp_path: Path) -> None:
    Job(tmp_path, "clean").batch(NOON, topic("orders", 0, 5))
    (Layout(tmp_path).control("shop", "clean") / FILE).write_text("[]")
    again = Job(tmp_path, "clean", batches=1)
    again.batch(NOON + SECOND, topic("orders", 5, 7))
    # Spark's number of the batch that is recorded as 1 is not known any more, so the next one is numbered on.
    assert again.rows("batches", "batch_id", "records_in") == [(0, 5), (2, 2)]
    assert shop(tmp_path).name == "shop"


def test_batches_of_a_new_checkpoint_are_numbered_on(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5))
    job.batch(NOON + SECOND, topic("orders", 5, 7))
    again = Job(tmp_path, "clean", query_id="two")
    again.batch(NOON + MINUTE, topic("orders", 0, 7))
    assert job.rows("batches", "batch_id", "records_in") == [(0, 5), (1, 2), (2, 7)]
    found = [each for each in findings(tmp_path, NOON + 2 * MINUTE) if each.cause == "new_checkpoint"]
    assert [each.since_ms for each in found] == [NOON + MINUTE]


TABLE = {"description": "DeltaSource[file:/lake/orders]", "numInputRows": 1, "endOffset": {"index": 1}}
RATE = {"description": "RateStreamV2[rowsPerSecond=1]", "numInputRows": 1, "endOffset": 1}


@pytest.mark.parametrize(
    ("sources", "begin"),
    [
        (
            [topic("orders", 0, 5)],
            ", so it reads topics from their startingOffsets: records may be read again, or left out",
        ),
        (
            [TABLE],
            ", so it reads tables from their startingVersion (default: all rows): records may be read again, or left "
            "out",
        ),
        ([files("raw", 5)], ", so it reads all files that are in its folders: records may be read again"),
        (
            [files("raw", 5), topic("orders", 0, 5)],
            ", so it reads topics from their startingOffsets, and all files that are in its folders: records may be "
            "read again, or left out",
        ),
        ([RATE], ": records may be read again, or left out"),
    ],
    ids=["topic", "table", "files", "both", "neither"],
)
def test_a_new_checkpoint_begins_where_its_sources_do(
    tmp_path: Path, sources: list[dict[str, object]], begin: str
) -> None:
    Job(tmp_path, "clean").batch(NOON, *sources)
    Job(tmp_path, "clean", query_id="two").batch(NOON + MINUTE, *sources)
    (found,) = [each for each in findings(tmp_path, NOON + 2 * MINUTE) if each.cause == "new_checkpoint"]
    assert found.seen == f"it began with a new checkpoint{begin}"


def test_a_batch_that_spark_reports_again_is_recorded_once(tmp_path: Path) -> None:
    Job(tmp_path, "clean").batch(NOON, topic("orders", 0, 5))
    again = Job(tmp_path, "clean")
    again.batch(NOON + MINUTE, topic("orders", 0, 5))
    again.batch(NOON + 2 * MINUTE, topic("orders", 5, 6))
    for table in ("batches", "operator_batches"):
        assert sorted({*again.rows(table, "batch_id")}) == [(0,), (1,)]
    assert again.rows("batches", "batch_id", "records_in") == [(0, 5), (1, 1)]


def test_a_later_write_opens_no_table_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, opened = Job(tmp_path, "clean"), list[Path]()
    job.batch(NOON, topic("orders", 0, 5))

    def opens(path: Path, app_id: str) -> TableLog:
        opened.append(path)
        return TableLog(path, app_id)

    monkeypatch.setattr("tidemark.storage.delta.tables.TableLog", opens)
    job.batch(NOON + SECOND, topic("orders", 5, 7))
    assert job.rows("batches", "batch_id", "records_in") == [(0, 5), (1, 2)]
    assert opened == []


def test_a_batch_that_another_operator_wrote_is_recorded_once(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5))
    query = Query(Layout(tmp_path), "shop", "clean")
    batch = rows_of(BATCHES, [{"records_in": 9}], **query.same(1))
    FactsWriter(query, "board", wall_clock_ms).append({"batches": batch}, 1)
    job.batch(NOON + SECOND, topic("orders", 5, 7))
    job.batch(NOON + 2 * SECOND, topic("orders", 7, 8))
    assert job.rows("batches", "batch_id", "records_in") == [(0, 5), (1, 9), (2, 1)]
    assert {batch_id for (batch_id,) in job.rows("operator_batches", "batch_id")} == {0, 1, 2}


def test_batches_wait_for_a_warehouse_that_cannot_be_written(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5))
    table = Layout(tmp_path).stream_table("shop", "clean", "batches")
    table.rename(hidden := table.with_name("hidden"))
    table.write_text("in the way")
    again = Job(tmp_path, "clean", batches=1)
    again.batch(NOON + SECOND, topic("orders", 5, 7))
    table.unlink()
    hidden.rename(table)
    again.batch(NOON + 2 * SECOND, topic("orders", 7, 8))
    assert job.rows("batches", "batch_id", "records_in") == [(0, 5), (1, 2), (2, 1)]
    assert {batch_id for (batch_id,) in job.rows("operator_batches", "batch_id")} == {0, 1, 2}


def test_first_batches_wait_for_an_unreadable_warehouse(tmp_path: Path) -> None:
    in_the_way = Layout(tmp_path).control("shop", "clean") / FILE
    in_the_way.mkdir(parents=True)
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5))
    job.batch(NOON + SECOND, topic("orders", 5, 7))
    in_the_way.rmdir()
    job.record.flush()
    assert job.rows("batches", "batch_id", "records_in") == [(0, 5), (1, 2)]
    assert not job.record.waits


def test_batches_wait_for_a_control_folder_that_cannot_be_made(tmp_path: Path) -> None:
    in_the_way = Layout(tmp_path).control("shop", "clean")
    in_the_way.parent.mkdir(parents=True)
    in_the_way.symlink_to(tmp_path / "gone")
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5))
    in_the_way.unlink()
    job.batch(NOON + SECOND, topic("orders", 5, 7))
    assert job.rows("batches", "batch_id", "records_in") == [(0, 5), (1, 2)]
    assert [source.name for source in shop(tmp_path).sub_topologies[0].sources] == ["clean:orders"]


def test_each_record_of_a_query_has_an_outcome(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5), topic("returns", 3, 6), late=2)
    columns = ("operator", "kind", "records_in", "passed", "late")
    assert job.rows("operator_batches", *columns) == [
        ("clean", "sink", 8, 6, 2), ("clean:orders", "source", 5, 5, 0), ("clean:returns", "source", 3, 3, 0)
    ]  # fmt: skip


# what was observed


LATENCY = ("n", "min_ms", "max_ms", "sum_ms", "negative_n", "over_limits")


def latency_of(job: Job) -> list[tuple[Any, ...]]:
    """LATENCY of each batch of the query."""
    rows = job.rows("operator_batches", "batch_id", "operator", *LATENCY)
    return [row for _, operator, *row in rows if operator == job.name]


def test_an_observed_batch_counts_its_records_over_each_limit(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    # Spark's instant is 12:00:00.100, and the batch ends at 12:00:00.700: it takes 600 ms, less than a tenth of 30 s.
    times_ms = [NOON - age_ms for age_ms in (40_000, 28_000, 26_000, 1_000)]
    observed = observation(NOON + 100, times_ms, 30_000, 60_000, too_early_n=5)
    job.batch(NOON, topic("orders", 0, 9), newest_ms=NOON, observed=observed)
    # Latencies are 40.7, 28.7, 26.7 and 1.7 s. Those above 27 s may be over 30 s; Spark's own times are those of input.
    over = [{"limit_ms": 30_000, "n": 2}, {"limit_ms": 60_000, "n": 0}]
    assert latency_of(job) == [[4, 1_700, 40_700, 97_800, 0, over]]


@pytest.mark.parametrize(
    ("took_ms", "slow"),
    [
        (3_100, 1),  # 3 s after Spark's instant: the latencies are 13, 28 and 31 s, and the limit is met exactly
        (3_101, 2),  # 1 ms more: for a batch of up to 6 s, what is over 24 s counts
        (25_000, 3),
        (90_000, 3),  # longer than the limit
    ],
)
def test_a_limit_is_counted_for_the_length_of_the_batch(tmp_path: Path, took_ms: int, slow: int) -> None:
    job = Job(tmp_path, "clean")
    times_ms = [NOON + 100 - age_ms for age_ms in (10_000, 25_000, 28_000)]
    job.batch(
        NOON, topic("orders", 0, 3), took_ms=took_ms, observed=observation(NOON + 100, times_ms, 30_000)
    )  # fmt: skip
    assert [row[-1] for row in latency_of(job)] == [[{"limit_ms": 30_000, "n": slow}]]


def test_records_of_the_future_are_not_slow_and_an_observed_batch_may_have_none(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 1), observed=observation(NOON, [NOON + MINUTE], 30_000))
    job.batch(NOON, topic("orders", 1, 2), newest_ms=NOON, observed=observation(NOON, [], 30_000))
    assert latency_of(job) == [
        [1, -59_300, -59_300, -59_300, None, [{"limit_ms": 30_000, "n": 0}]], [None] * len(LATENCY)
    ]  # fmt: skip


def test_a_description_has_the_limits_of_the_newest_batch_with_records(tmp_path: Path) -> None:
    def limits(job: Job) -> tuple[int, ...] | None:
        query = read_query(Layout(tmp_path).control("shop", "clean") / FILE)
        assert query is not None
        return query.observed_limits_ms

    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 1))
    assert limits(job) is None
    job.batch(NOON, topic("orders", 1, 2), observed=observation(NOON, [NOON], 60_000, 30_000))
    job.batch(NOON, topic("orders", 2, 2))
    assert limits(job) == (30_000, 60_000)
    job.batch(NOON, topic("orders", 2, 3), observed=observation(NOON, [NOON]))
    assert limits(job) == ()
    job.batch(NOON, topic("orders", 3, 4))
    assert limits(job) is None


BURNS = """
[shop.{name}]
subject = "clean"
measure = "burn_rate"
threshold = "{threshold}"
target = 0.9
error_at = 2
owner = "ann"
"""


def test_slow_records_of_an_observed_query_use_up_a_budget(tmp_path: Path) -> None:
    """Of 10 records 3 are slow, three times what a target of 0.9 allows."""
    job = Job(tmp_path, "clean")
    slow, quick = NOON - 40_000, NOON - 1_000
    eleven = NOON - 60 * MINUTE
    job.batch(eleven, topic("orders", 0, 1), observed=observation(eleven, [eleven - 40_000], 30_000))
    job.batch(NOON, topic("orders", 1, 7), observed=observation(NOON, [slow] * 2 + [quick] * 4, 30_000))
    job.batch(NOON, topic("orders", 7, 11), observed=observation(NOON, [slow] + [quick] * 3, 30_000, 5_000))
    file = tmp_path / "slas.toml"
    budget = '[shop.budget]\nsubject = "clean"\nobjective = { latency = "30 s", target = 0.95, min_records = 10 }\n'
    texts = [BURNS.format(name="half", threshold="30 s"), BURNS.format(name="new", threshold="5 s")]
    texts += [BURNS.format(name="other", threshold="1 min"), f'{budget}owner = "ann"']
    file.write_text("\n".join(texts))
    slas, at_ms = load_usable(file, shop(tmp_path)), NOON + SECOND
    assert not slas.errors
    facts = observed_latencies(Warehouse(tmp_path), shop(tmp_path), slas.specs, at_ms=at_ms)
    judged = {each.spec.name: each for each in statuses(slas.specs, shop(tmp_path), facts, [], at_ms=at_ms)}
    found = {name: (each.verdict, each.records, each.budget.burn_rate) for name, each in judged.items() if each.budget}
    assert {name: found[name] for name in ("half", "new", "other", "budget_1h")} == {
        "half": ("error", 10, 3.0),
        "new": ("error", 4, 2.5),  # declared later: only the newest batch has it
        "other": ("unknown", 0, None),
        "budget_1h": ("pass", 10, 6.0),  # the batch of 11:00 had ended at 11:00:00.700, over an hour before 12:00:01
    }  # fmt: skip
    early = "longer than 30 s in 10 min (or up to a tenth less, since Spark counted them before their batch ended), "
    assert f"30.00 % of the records of clean took {early}3 times 10 %" in measurement_text(judged["half"])
    whole = judged["budget_3d"].window_budget
    assert whole is not None
    assert (whole.records, whole.slow) == (11, 4)


# what a listener hears


class Session:
    """A session of Spark in which the runs *active* are."""

    def __init__(self, *active: str) -> None:
        self.streams = SimpleNamespace(active=[], removeListener=lambda _: None)
        self.sparkContext = SimpleNamespace(applicationId="app-1")
        self.runs(*active)

    def runs(self, *active: str) -> None:
        self.streams.active = [SimpleNamespace(runId=run, id=run, name=None) for run in active]


def test_a_query_without_a_name_gets_that_of_the_ended_one(tmp_path: Path) -> None:
    session = Session()
    with Listener(session, Layout(tmp_path), "shop", job="mine") as listener:
        names = []
        # `two` starts before Spark has reported that `one` has ended.
        for active in (["one"], ["two"], ["two", "three"]):
            session.runs(*active)
            run = session.streams.active[-1]
            listener.onQueryStarted(SimpleNamespace(id=run.id, runId=run.runId, name=None))
            names.append(listener.name_of(run))
        for run in ("one", "two", "three"):
            listener.onQueryTerminated(SimpleNamespace(id=run, runId=run))
    assert names == ["mine_1", "mine_1", "mine_2"]


def test_any_name_of_a_query_is_recorded_under_one_of_its_own(tmp_path: Path) -> None:
    names = [
        "orders",
        "orders enrich v2",
        "orders  enrich v2",
        "orders/enrich v2",
        "заказы",
        "заказ",
        "x" * 300,
        "..",
        " ",
    ]
    recorded: list[list[str]] = []
    for start in ("one", "two"):  # two starts, without a checkpoint: Spark's ids are new ones
        with Listener(Session(), Layout(tmp_path), "shop", job="mine") as listener:
            runs = [SimpleNamespace(id=f"{start}-{n}", runId=f"{start}-{n}", name=name) for n, name in enumerate(names)]
            recorded.append([listener.name_of(run) for run in runs])
            # A name that looks like one of these is another name, too.
            again = SimpleNamespace(id="x", runId="x", name=recorded[0][1])
            assert listener.name_of(again) not in recorded[0]
    first, second = recorded
    assert (first, len({*first})) == (second, len(names))
    assert first[:2] == ["orders", "orders_enrich_v2-b6a237ca4e8211cf"]
    for name in first:
        (Layout(tmp_path).control("shop", name)).mkdir(parents=True)


def test_a_wait_of_an_unknown_query_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Listener(Session(), Layout(tmp_path), "shop") as listener:
        listener.onQueryIdle(SimpleNamespace(id="one", runId="one", timestamp=iso(NOON)))
    assert caplog.messages == []


def test_a_look_in_vain_is_told_with_the_next_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Listener.__module__], "to_boot_ms", lambda: -BOOTED_MS)
    with Listener(Session(), Layout(tmp_path), "shop") as listener:
        for batch_id, at_ms in enumerate((NOON, NOON + 25 * SECOND)):
            progress = {
                "id": "one",
                "runId": "one",
                "name": "clean",
                "batchId": batch_id,
                "timestamp": iso(at_ms),
                "durationMs": {"latestOffset": 100, "triggerExecution": 700},
                "numInputRows": 5,
                "eventTime": dict.fromkeys(("min", "max", "avg"), iso(at_ms - 9 * SECOND)),
                "sources": [files("raw", 5)],
                "sink": {"description": "ForeachBatchSink"},
            }
            listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress))))
            for after_s in (10, 20):
                idle = {"id": "one", "runId": "one", "timestamp": iso(at_ms + after_s * SECOND)}
                listener.onQueryIdle(SimpleNamespace(**idle))
    query = Layout(tmp_path).stream_table("shop", "clean", "batches").parent
    batches = DeltaTable(query / "batches").to_pyarrow_table().sort_by("batch_id").to_pylist()
    looks = [(batch["excluded_boot_ms"], batch["looked_boot_ms"]) for batch in batches]
    began_ms = NOON - BOOTED_MS
    assert looks == [(None, began_ms + 100), (began_ms + 20 * SECOND, began_ms + 25 * SECOND + 100)]
    reads = DeltaTable(query / "partition_batches").to_pyarrow_table().to_pylist()
    # Before the first batch nobody had looked: its record came after its time.
    missed = [record["excluded_before_ms"] for row in reads for record in row["reads"] or ()]
    assert sorted(missed) == [5 * SECOND + 100, 9 * SECOND + 100]


# why


def test_the_error_of_a_query_is_named_with_its_job(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5))
    job.beat(NOON + SECOND)
    assert first(tmp_path, NOON + 2 * SECOND).cause == "nothing_wrong"
    job.beat(NOON + 3 * SECOND, StreamState.FAILED, "ValueError: amount is no number")
    finding = first(tmp_path, NOON + 4 * SECOND)
    assert (finding.cause, finding.operator, finding.since_ms) == ("driver_dead", "clean", NOON + 3 * SECOND)
    assert finding.seen == "the driver of clean failed: ValueError: amount is no number"
    assert "`tidemark run shop --application /opt/job.py` (in Airflow clear its task)" in finding.remedy


def test_an_error_of_kafka_has_the_topics_of_the_query(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("errors", 0, 5), topic("orders", 0, 5))
    denied = "org.apache.kafka.common.errors.TopicAuthorizationException: "
    unnamed = ["denied", "orders.v2", "old_orders", "orders-eu"]
    named = ["no orders", "[orders]", "orders-0 is gone.", "no such topic: orders."]
    for n, message in enumerate([*unnamed, *named]):
        seen = message + (" (it reads errors, orders)" if message in unnamed else "")
        job.beat(NOON + n * SECOND, StreamState.FAILED, denied + message)
        assert first(tmp_path, NOON + 9 * SECOND).seen == f"the driver of clean failed: {denied}{seen}"


def test_a_query_waits_for_the_job_that_writes_its_topic(tmp_path: Path) -> None:
    land, clean = Job(tmp_path, "land", sink="DeltaSink[/lake/orders]"), Job(tmp_path, "clean")
    land.batch(NOON, topic("raw", 0, 5))
    table = {"description": "DeltaSource[file:/lake/orders]", "numInputRows": 5, "endOffset": {"index": 3}}
    clean.batch(NOON + SECOND, table)
    clean.beat(NOON + 2 * SECOND)
    land.beat(NOON + 2 * SECOND, StreamState.FAILED, "Disk quota exceeded")
    finding = first(tmp_path, NOON + 4 * SECOND)
    assert (finding.cause, finding.operator) == ("upstream_dead", "land")
    assert finding.seen == "the driver of land failed: Disk quota exceeded"


def test_unread_records_of_a_query_are_a_backlog(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    for n in range(5):
        job.batch(NOON + n * SECOND, topic("orders", n, n + 1, latest=100 if n else 1), is_last=n == 4)
    job.beat(NOON + 5 * SECOND)
    assert first(tmp_path, NOON + 5 * SECOND).cause == "nothing_wrong"
    job.batch(NOON + 5 * SECOND, topic("orders", 5, 6, latest=100))
    finding = first(tmp_path, NOON + 6 * SECOND)
    assert (finding.cause, finding.input, finding.partition) == ("backlog", "clean:orders", 0)
    assert finding.seen.startswith("94 records of it wait unread; its last 5 batches read 5")


def test_old_records_of_a_source_without_known_backlog_are_named(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, files("raw", 5), newest_ms=NOON - 5 * MINUTE)
    finding = first(tmp_path, NOON + SECOND)
    assert (finding.cause, finding.input) == ("old_records", "clean:raw")
    # Its batch took 700 ms.
    assert finding.seen.startswith("every record of its last batch was 5 min old or more")
    assert "old_records" not in [each.cause for each in findings(tmp_path, NOON + 2 * MINUTE)]  # it is quiet
    job.batch(NOON + 2 * MINUTE, files("raw", 5), newest_ms=NOON + 2 * MINUTE)
    assert "old_records" not in [each.cause for each in findings(tmp_path, NOON + 2 * MINUTE + SECOND)]


def test_a_silent_source_holds_the_watermark_of_a_join_back(tmp_path: Path) -> None:
    job = Job(tmp_path, "pairs")
    for n in range(5):
        if n == 4:
            assert "source_holds_back" not in [each.cause for each in findings(tmp_path, NOON + n * SECOND)]
        sources = topic("orders", n, n + 1), topic("payments", 0, 0)
        job.batch(NOON + n * SECOND, *sources, watermark_ms=NOON - MINUTE, is_last=n >= 3)
    finding = next(each for each in findings(tmp_path, NOON + 5 * SECOND) if each.cause == "source_holds_back")
    # Each batch takes 700 ms.
    assert (finding.operator, finding.input, finding.since_ms) == ("pairs", "pairs:payments", NOON + 700)


def test_a_source_holds_the_watermark_back_since_its_last_record(tmp_path: Path) -> None:
    job = Job(tmp_path, "pairs")
    for n in range(9):
        sources = topic("orders", n, n + 1), topic("payments", min(n, 2), min(n + 1, 2))
        job.batch(NOON + n * SECOND, *sources, watermark_ms=NOON - MINUTE, is_last=n == 8)
    finding = next(each for each in findings(tmp_path, NOON + 9 * SECOND) if each.cause == "source_holds_back")
    assert (finding.input, finding.since_ms) == ("pairs:payments", NOON + SECOND + 700)


@pytest.mark.parametrize("cause", ["slow_phase", "old_records", "wrong_time_unit", "bound_too_small"])
def test_a_fault_of_a_query_began_with_its_first_batch_and_not_with_the_last_five(tmp_path: Path, cause: str) -> None:
    faulty = {
        "slow_phase": {"took_ms": 61 * SECOND},
        "old_records": {"newest_ms": NOON - 60 * MINUTE},
        "wrong_time_unit": {"wrong_watermark": "58059-11-05T06:26:40.000Z"},
        "bound_too_small": {"late": 5},
    }
    job = Job(tmp_path, "clean")
    for n in range(9):
        at_ms = NOON + 2 * n * MINUTE
        keys = {"newest_ms": at_ms, "took_ms": 700} | (faulty[cause] if n >= 2 else {})
        job.batch(at_ms, files("raw", 5), **keys, is_last=n == 8)
    took_ms = 61 * SECOND if cause == "slow_phase" else 700
    found = {each.cause: each.since_ms for each in findings(tmp_path, NOON + 16 * MINUTE + took_ms)}
    assert found[cause] == NOON + 4 * MINUTE + took_ms


def test_the_slowest_phase_of_long_batches_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    for n in range(5):
        at_ms = NOON + 2 * n * MINUTE
        times = {"newest_ms": at_ms, "watermark_ms": at_ms - MINUTE, "took_ms": 61 * SECOND}
        job.batch(at_ms, topic("orders", n, n + 1), **times, is_last=n == 4)
    finding = next(each for each in findings(tmp_path, NOON + 10 * MINUTE) if each.cause == "slow_phase")
    # Of 61 s, all but 150 ms are in addBatch.
    assert finding.seen == (
        "its batches take 1 min 1 s, longer than 1 min, and 1 min of it in the phase addBatch (reading, "
        "calculating and writing)"
    )
    assert "(maxOffsetsPerTrigger)" in finding.remedy
    assert "slow_operator" not in [each.cause for each in findings(tmp_path, NOON + 9 * MINUTE)]


def test_the_option_for_smaller_batches_is_that_of_the_source(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    for n in range(5):
        job.batch(NOON + 2 * n * MINUTE, files("raw", 5), took_ms=61 * SECOND, is_last=n == 4)
    finding = next(each for each in findings(tmp_path, NOON + 10 * MINUTE) if each.cause == "slow_phase")
    assert "(maxFilesPerTrigger)" in finding.remedy


def test_the_only_record_that_spark_dropped_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 1), late=1)
    assert first(tmp_path, NOON + SECOND).seen == "the only record of its last batch was behind its watermark"


def test_records_that_spark_dropped_are_named(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5), late=1)
    assert first(tmp_path, NOON + SECOND).cause == "nothing_wrong"
    job.batch(NOON, topic("orders", 5, 10), late=5)
    assert first(tmp_path, NOON + SECOND).seen == (
        "6 of the 10 records of its last 2 batches were behind its watermark"
    )


def test_a_watermark_in_a_wrong_unit_is_named_and_loses_no_batch(tmp_path: Path) -> None:
    job, text = Job(tmp_path, "clean"), "58059-11-05T06:26:40.000Z"
    job.batch(NOON, topic("orders", 0, 5), watermark_ms=NOON - MINUTE, is_last=False)
    job.batch(NOON + SECOND, topic("orders", 5, 9), newest_ms=NOON, wrong_watermark=text, late=4)
    wrong = {"which": "watermark", "text": text, "reason": "wrong_time_unit"}
    assert job.rows("batches", "batch_id", "records_in", "wrong_times") == [(0, 5, None), (1, 4, [wrong])]
    (_, (_, watermark)) = job.rows("batches", "batch_id", "watermark")
    assert watermark is None
    finding = first(tmp_path, NOON + 2 * SECOND)
    assert (finding.cause, finding.operator, finding.since_ms) == ("wrong_time_unit", "clean", NOON + 1_700)
    assert finding.seen == (
        f"its watermark is {text}, outside of the years 1971 to 2261, so all records with a right time are behind it"
    )


# paths, SLAs and commands


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a warehouse with a query that reads another one's table.

    `clean` begins a second after `land`. Both have passed the windows that end at 12:01 and 12:02.
    """
    home = tmp_path_factory.mktemp("chain")
    land, clean = Job(home, "land", sink="DeltaSink[/lake/orders]"), Job(home, "clean")
    for n in range(3):
        at_ms = NOON + (1 + 2 * n) * MINUTE
        table = {"description": "DeltaSource[file:/lake/orders]", "numInputRows": 1, "endOffset": {"index": n}}
        times = {"watermark_ms": NOON + n * MINUTE, "newest_ms": NOON + n * MINUTE}
        land.batch(at_ms, topic("raw", n, n + 1), **times, is_last=n == 2)
        clean.batch(at_ms + SECOND, table, **times, is_last=n == 2)
    return home


def test_the_critical_path_goes_through_chained_jobs(chain: Path) -> None:
    layout, topology = Layout(chain), shop(chain)
    critical_path.run(layout, topology, [], Interval(NOON, NOON + 10 * MINUTE))
    paths = DeltaTable(layout.report_table("shop", "critical_paths")).to_pyarrow_table()
    rows = sorted(paths.select(["window_end", "path", "latency_ms"]).to_pylist(), key=str)
    # `land` reads within 100 ms and writes in 600 ms; `clean` reads what it wrote 400 ms later, and works for 600 ms.
    assert [(row["window_end"].minute, row["path"]) for row in rows] == [
        (minute, "land:raw (0 ms) → land (600 ms) → clean:orders (400 ms) → clean (600 ms) = 1,600 ms")
        for minute in (1, 2)
    ]


def test_of_a_window_of_a_query_is_known_what_followed_its_look(tmp_path: Path) -> None:
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5), newest_ms=NOON - MINUTE)
    job.batch(NOON + 2 * MINUTE, topic("orders", 0, 5), newest_ms=NOON, watermark_ms=NOON)
    critical_path.run(Layout(tmp_path), shop(tmp_path), [], Interval(NOON - MINUTE, NOON + 10 * MINUTE))
    table = DeltaTable(Layout(tmp_path).report_table("shop", "window_parts")).to_pyarrow_table()
    # The window ended at noon, and the batch looked 100 ms after 12:02. What let it pass is not recorded.
    assert {(row["owner"], row["detail"]): row["ms"] for row in table.to_pylist()} == {
        ("unknown", "passing"): 120_100,
        ("operator", "addBatch"): 550,
        ("target", "commitOffsets"): 50,
    }


def test_a_job_that_has_not_finished_a_batch_yet_is_not_absent(chain: Path, tmp_path: Path) -> None:
    """Batches have the lease 0 here, and the heartbeat that of the next driver."""
    home = Path(shutil.copytree(chain, tmp_path / "chain"))
    at_ms = NOON + 30 * MINUTE

    def said() -> list[tuple[str, str]]:
        document = why_document(home, shop(home), at_ms=at_ms + SECOND, operator="clean")
        return [(finding.cause, finding.seen.partition(";")[0]) for finding in document.findings]

    # The batch began at 12:05:01 and took 700 ms.
    assert said()[0] == ("absence", "nobody ran `shop/clean` for 24 min 59 s")
    for name in ("land", "clean"):
        Job(home, name).beat(at_ms)
    assert said() == [("nothing_wrong", "1 result came, of the newest records that were read")]


def test_metrics_have_the_watermark_that_rules_compare(chain: Path) -> None:
    exporter = Exporter(Layout(chain), lambda: [shop(chain)], clock=lambda: NOON + 6 * MINUTE)
    samples = [each for each in exporter.samples() if each.metric == "tidemark_watermark_lag_seconds"]
    # Both watermarks are 12:02.
    assert {each.labels: each.value for each in samples} == {
        ("shop", "land", "land:raw", ""): 240, ("shop", "clean", "clean:orders", ""): 240
    }  # fmt: skip


def test_the_first_latency_is_that_of_the_present_checkpoint(tmp_path: Path) -> None:
    Job(tmp_path, "clean").batch(NOON, topic("orders", 0, 5), newest_ms=NOON - 5 * MINUTE)
    again = Job(tmp_path, "clean", query_id="two")
    again.batch(NOON + MINUTE, topic("orders", 0, 5), newest_ms=NOON)
    (stream,) = status_document(tmp_path, shop(tmp_path), at_ms=wall_clock_ms())["streams"]
    # Its batch took 700 ms.
    assert stream["first_latency_ms"] == MINUTE + 700


SLAS = """
[shop.keeps_up]
subject = "clean"
measure = "watermark_lag"
error_after = "1 min"
owner = "ann"

[shop.gets_orders]
subject = "clean"
measure = "records"
error_below = 1
over = "10 min"
owner = "ann"
"""


def test_slas_name_queries_of_jobs(chain: Path) -> None:
    file = chain / "slas.toml"
    file.write_text(SLAS)
    slas = load_usable(file, shop(chain))
    assert not slas.errors
    at_ms, tables = NOON + 6 * MINUTE, Warehouse(chain)
    facts = sla_facts.facts(tables, shop(chain), slas.specs, {}, at_ms=at_ms)
    accounts = sla_facts.accounts(tables, shop(chain), at_ms=at_ms, since_ms=NOON)
    judged = statuses(slas.specs, shop(chain), facts, accounts, [], at_ms=at_ms)
    # The watermark of `clean` is 12:02, and its three records came in the last 10 minutes.
    assert {each.spec.name: (each.verdict, each.observed_ms or each.records) for each in judged} == {
        "keeps_up": ("error", 4 * MINUTE), "gets_orders": ("pass", 3)
    }  # fmt: skip
    assert [(each["updates_in"], each["open_batches"]) for each in accounts] == [(3, 0)] * 4


@pytest.mark.parametrize("is_recorded", [False, True])
def test_check_validates_slas_of_jobs(tmp_path: Path, *, is_recorded: bool) -> None:
    project, warehouse = Project(tmp_path), tmp_path / "warehouse"
    project.topologies.mkdir(parents=True)
    project.slas.parent.mkdir(parents=True, exist_ok=True)
    project.slas.write_text(f"{SLAS}\n[shop]\nrecorded = true\n")
    if is_recorded:
        job = Job(warehouse, "clean")
        job.batch(NOON, topic("orders", 0, 5))
    streams = "clean" if is_recorded else "none"
    assert check([], warehouse, project) == [
        f"shop, recorded from jobs: SLAs keeps_up, gets_orders; streams so far: {streams}"
    ]
    late = """
        [shop.slow]
        subject = "clean"
        measure = "latency_p99"
        error_after = "5 s"
        owner = "ann"
        [shop.old]
        subject = "changes"
        measure = "staleness"
        error_after = "5 s"
        owner = "ann"
        [shop.most]
        subject = "clean"
        objective = { latency = "30 s", target = 0.99 }
        owner = "ann"
        [shop.typo]
        subject = "clean"
        measures = "watermark_lag"
        [shop.nobody]
        subject = "nobody"
        measure = "records"
        error_below = 1
        owner = "ann"
    """
    project.slas.write_text(f"{SLAS}\n[shop]\nrecorded = true\n{late}")
    with pytest.raises(InvalidSpec) as refused:
        check([], warehouse, project)
    places = {line.split(": ")[1] for line in str(refused.value).splitlines()}
    unknown = {"shop.nobody.subject"} if is_recorded else set()
    assert {"shop.slow.measure", "shop.old.measure", "shop.most.objective", "shop.typo.measures"} | unknown <= places
    assert {place.rsplit(".", 1)[0] for place in places} == {
        "shop.slow", "shop.old", "shop.most", "shop.typo", *(["shop.nobody"] if is_recorded else []),
    }  # fmt: skip


def test_check_accepts_quantiles_that_a_job_measures(tmp_path: Path) -> None:
    project, layout = Project(tmp_path), Layout(tmp_path / "warehouse")
    Job(layout.warehouse, "clean").batch(NOON, topic("orders", 0, 5))
    (topology,) = [*recorded_topologies(layout)]
    project.slas.parent.mkdir(parents=True, exist_ok=True)
    sla = '[shop.slow]\nsubject = "clean"\nmeasure = "latency_p99"\nerror_after = "5 s"\nowner = "ann"\n'
    project.slas.write_text(sla)
    assert len([*_not_measured(project, topology, layout)]) == 1
    layout.stream_table("shop", "clean", "latency_minutes").mkdir()
    assert [*_not_measured(project, topology, layout)] == []


def test_check_accepts_budgets_of_an_observed_query(tmp_path: Path) -> None:
    project, warehouse = Project(tmp_path), tmp_path / "warehouse"
    project.topologies.mkdir(parents=True)
    project.slas.parent.mkdir(parents=True, exist_ok=True)
    slas = """
        [shop]
        recorded = true
        [shop.most]
        subject = "clean"
        objective = { latency = "30 s", target = 0.99 }
        owner = "ann"
    """
    project.slas.write_text(slas)
    job = Job(warehouse, "clean")
    job.batch(NOON, topic("orders", 0, 1))
    with pytest.raises(
        InvalidSpec, match=r"shop.most.objective: .* not report; start the job with --observe COLUMN, or"
    ):
        check([], warehouse, project)
    job.batch(NOON, topic("orders", 1, 2), observed=observation(NOON, [NOON]))
    assert check([], warehouse, project) == [
        "slas.toml: warning: shop.most promises 30 s of clean, which counts this limit from the next start of its job; "
        "restart it",
        "shop, recorded from jobs: SLAs most_1h, most_6h, most_3d; streams so far: clean",
    ]
    job.batch(NOON, topic("orders", 2, 3), observed=observation(NOON, [NOON], 30_000))
    assert len(check([], warehouse, project)) == 1
    project.slas.write_text(slas.replace("0.99 }", '0.99, window = "31 d" }'))
    with pytest.raises(InvalidSpec, match=r'has a window of 31 d, .* kept for 30 d; write window = "30 d" or shorter'):
        check([], warehouse, project)
    quantile = '[shop.p99]\nsubject = "clean"\nmeasure = "latency_p99"\nerror_after = "5 s"\nowner = "ann"\n'
    project.slas.write_text(f"{slas}\n{quantile}")
    with pytest.raises(
        InvalidSpec, match=r"shop.p99.measure: .*; write an objective, and start the job with --observe"
    ):
        check([], warehouse, project)


def test_lineage_of_runs_leaves_the_queries_of_jobs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, works = tmp_path / "events.jsonl", list[Callable[[], None]]()
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    monkeypatch.setattr(serve_metrics, "_beside", lambda work, _: works.append(work))
    job = Job(tmp_path, "clean")
    job.batch(NOON, topic("orders", 0, 5))
    job.beat(NOON + SECOND, StreamState.DRAINED)
    serve_metrics._send_lineage(Layout(tmp_path), partial(serve_metrics._of_streams, lambda: [shop(tmp_path)]))
    for work in works:
        work()
    assert (len(works), events.exists()) == (1, False)


@pytest.mark.parametrize(
    ("job", "application", "folder", "remedy"),
    [
        ("", "", "clean", "its log is that of the process that calls `listen()`"),
        (
            "mine",
            "/opt/mine.py",
            "mine",
            "its job has not run on this host: `tidemark run shop --application /opt/mine.py` "
            "(in Airflow clear its task)",
        ),
    ],
)
def test_a_query_without_a_log_names_its_folder_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, application: str, folder: str, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    layout = Layout(tmp_path / "warehouse")
    write_query(layout, "shop", RecordedQuery(name="clean", query_id="1", job=job, application=application))
    options = SimpleNamespace(stream="shop/clean", warehouse=layout.warehouse, home=tmp_path, follow=False, lines=1)
    with pytest.raises(InvalidArgument) as refused:
        logs.command(options)
    assert str(refused.value) == f"shop/clean has no log in {layout.control('shop', folder)}; {remedy}"


def test_commands_find_the_queries_of_a_job(chain: Path) -> None:
    (chain / "project" / "topologies").mkdir(parents=True)
    (chain / "project" / "expectations").mkdir()

    def said(*words: str) -> str:
        answer = tidemark(chain / "project", "--warehouse", str(chain), *words)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    owner, remark = said("why", "shop", "clean").splitlines()
    assert owner.startswith("absence: clean since 2026-03-01T12:05:01.700Z: nobody ran `shop/clean` for ")
    assert remark.startswith("source_quiet: clean ← clean:orders since 2026-03-01T12:05:01.700Z")
    job_log = Layout(chain).control("shop", "job") / "driver.log"
    job_log.parent.mkdir()
    job_log.write_text("a line of the job\n")
    assert said("logs", "shop/clean") == "a line of the job\n"
    streams = [line.split()[:3] for line in said("status").splitlines() if line.startswith("shop/")]
    assert streams == [["shop/land", "unknown", "3"], ["shop/clean", "unknown", "3"]]
    assert "land:raw" in said("topology", "shop")
    (source,) = [line.split() for line in said("topology", "shop").splitlines() if line.startswith("clean:orders")]
    assert source[-2:] == ["-", "0"]  # Spark does not report unread records of tables


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["why", "shoop"], "there is no topology 'shoop' in .*; known: clicks, shop$"),
        (["incidents", "shoop"], "there is no topology 'shoop' in .*; known: clicks, shop$"),
        (["status", "shoop"], "there is no topology shoop; known: clicks, shop$"),
        (["doctor", "shop"], "shop has no topology file: it is recorded from jobs"),
        (["bound", "shop"], "shop has no topology file: it is recorded from jobs"),
        (["restart", "shop/clean"], "shop has no topology file: it is recorded from jobs"),
        (["suggest", "slas", "shop"], "shop has no topology file: it is recorded from jobs"),
        (["check", "shop"], "shop has no topology file: it is recorded from jobs"),
        (["check", "shoop"], "there is no topology 'shoop' in .*; known: clicks, shop$"),
        (["check", "clicks.toml"], "clicks.toml: there is no such file"),
        (["run", "shop", "--argument=--x"], "--argument is for a job; name its Python file with --application"),
        (
            ["run", "shop", "--consumer-groups=acme"],
            "--consumer-groups is for a job; write consumer_groups in the topology's file",
        ),
        (["run", "shop", "--observe=at"], "--observe is for a job; streams of a topology measure the latency of every"),
        (["run", "shop", "--application", "."], "is a folder; name the Python file of a job"),
    ],
)
def test_commands_know_the_names_of_recorded_jobs(tmp_path: Path, words: list[str], said: str) -> None:
    project = Project(tmp_path)
    project.topologies.mkdir(parents=True)
    (project.topologies / "clicks.toml").write_text(CLICKS)
    Job(tmp_path / ".tidemark" / "warehouse", "clean").batch(NOON, topic("orders", 0, 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Project, "here", lambda: project)
        answer = tidemark(tmp_path, "--home", str(tmp_path / ".tidemark"), *words)
    assert answer.returncode == 1
    assert re.search(said, answer.stderr.strip()), answer.stderr


@pytest.mark.parametrize("name", ["shop", "a.shop"])
def test_commands_name_a_broken_description_and_its_remedy(tmp_path: Path, name: str) -> None:
    Project(tmp_path).topologies.mkdir(parents=True)
    layout = Layout(tmp_path / ".tidemark" / "warehouse")
    write_query(layout, "bakery", RecordedQuery(name="bake", query_id="1"))
    broken = layout.control(name, "clean") / FILE
    write_query(layout, name, RecordedQuery(name="clean", query_id="1"))
    broken.write_text("[]")
    problem = f"{broken}: it must be an object of JSON; remove the file, and the next run of the query writes it"

    def run(*words: str) -> CommandOutput:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Project, "here", lambda: Project(tmp_path))
            return tidemark(tmp_path, "--home", str(tmp_path / ".tidemark"), *words)

    for words in (["restart", f"{name}/clean"], ["doctor", name], ["why", name]):
        assert run(*words) == (1, "", f"tidemark {words[0]}: {problem}\n")
    nothing = status.NO_TOPOLOGY.replace("tidemark init", f"tidemark --home {tmp_path}/.tidemark init")
    assert run("status", name) == (0, f"{nothing}\n{problem}\n", "")
    assert run("restart", "nobody").stderr.endswith("known: bakery\n")
    of_all = json.loads(run("status", "--format", "json").stdout)
    assert ([each["topology"] for each in of_all["topologies"]], of_all["broken"]) == (["bakery"], {name: problem})
    broken.unlink()
    broken.mkdir()
    problem = f"a file about the jobs of {name} cannot be read: [Errno 21] Is a directory: '{broken}'; make it readable"
    assert problem in run("restart", name).stderr
    assert problem in run("status").stdout


def test_status_shows_an_invalid_file_in_place_of_its_queries(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.topologies.mkdir(parents=True)
    (project.topologies / "sales.toml").write_text('name = "shop"\n')
    write_query(Layout(tmp_path / ".tidemark" / "warehouse"), "shop", RecordedQuery(name="clean", query_id="1"))
    for words in ([], ["shop"], ["sales"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Project, "here", lambda: project)
            shown = tidemark(tmp_path, "--home", str(tmp_path / ".tidemark"), "status", *words, "--format", "json")
        assert shown.returncode == 0, shown.stderr
        models = json.loads(shown.stdout)
        assert (models["topologies"], [*models["broken"]]) == ([], ["sales.toml"])


def test_an_unknown_option_is_explained_by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tidemark", "run", "shop", "--aplication", "x"])
    with redirect_stderr(StringIO()) as said, pytest.raises(SystemExit):
        main()
    assert said.getvalue().startswith("usage: tidemark run ")


@pytest.mark.parametrize(("name", "folder", "status", "said"), [
    ("shop", "", 0, "has no query of shop yet"),
    ("shoop", "", 2, "there is no topology 'shoop'"),
    ("shop", "mistyped", 2, "mistyped: no such folder; give the right folder"),
])  # fmt: skip
def test_a_batch_job_has_nothing_to_do_before_the_first_query(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    folder: str,
    status: int,
    said: str,
) -> None:
    project = Project(tmp_path)
    project.topologies.mkdir(parents=True)
    project.slas.parent.mkdir(parents=True, exist_ok=True)
    project.slas.write_text("[shop]\nrecorded = true\n")
    monkeypatch.setattr(Project, "here", lambda: project)
    warehouse, hour = str(tmp_path / folder), ["--from", "2026-01-01T12:00", "--to", "2026-01-01T13:00"]
    monkeypatch.setattr(sys, "argv", ["critical_path.py", "--warehouse", warehouse, "--topology", name, *hour])
    with pytest.raises(SystemExit) as ended:
        critical_path.main()
    assert ended.value.code == status
    assert said in capsys.readouterr().err


CLICKS = """
name = "clicks"
[operators.pages]
kind = "source"
topic = "pages"
fields = "id string"
bound = "1 s"
[operators.out]
kind = "sink"
input = "pages"
table = "out"
"""
