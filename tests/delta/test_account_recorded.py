"""What a driver has recorded is enough to say to whom each ms of a result belongs.

The clock of these plays stands still but for writes, which take 10 ms each, and 20 ms between a look and its batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from support.play import BOOTED_MS, Play, ms
from support.recorded_facts import recorded_facts
from support.recorded_jobs import Job, topic
from support.separate_executors import Apart
from support.topologies import EVENTS, NEWEST, aggregate, operators, repartition, sink, source, table, topology_of
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.recorded import Recorded, with_usual
from tidemark.account.records import record_parts
from tidemark.account.steps import by_owner
from tidemark.account.windows import window_parts
from tidemark.control.folder import Heartbeat, StreamState, TimeTold
from tidemark.facts.fact_tables import nothing_in
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import HEARTBEATS, TABLES, TOPOLOGY_CHANGES
from tidemark.recorded_jobs.queries import recorded_topology
from tidemark.semantics.segments import NEXT, Segment
from tidemark.storage.delta.tables import scan
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.startup.source_list import follow

TOML = NEWEST + operators(
    by_id=repartition("events", key=["id"], columns=["v"]),
    far=sink("by_id", table="all_of_it", sub_topology="far"),
    sums=aggregate(key=["id"], window={"tumbling": "5 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"),
    closed=sink("sums", table="closed"),
)


@pytest.fixture(scope="module", params=[1, 2])
def play(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Play:
    """A batch each 5 s of a record that was sent 1.5 s before its look, and had arrived 1 s before it.

    The sub-topology `far` looks half a second after the batch. In shards it is all the same.
    """
    play = Play(TOML, tmp_path_factory.mktemp("recorded")).in_shards(request.param, Apart)
    play.write_ms = 10
    for n in range(5):
        at_ms = ms(10 + 5 * n)
        row = play.row("events", at_ms - 1_500, key="a", id="a", v=n)
        play.batch([{**row, "stamped_ms": at_ms - 1_000}], at_ms=at_ms, now_ms=at_ms + 20)
        play.hop("far", at_ms=at_ms + 500)
    for sub in play.topology.sub_topologies:
        history = Heartbeats(play.table("heartbeats", sub.name).parent, topology="play", sub_topology=sub.name)
        told = TimeTold(0, play.now_ms - BOOTED_MS, (), play.timeline(sub.name).open())
        beat = Heartbeat(
            state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=play.now_ms, pid=1, host="h", told=told
        )
        history.write_if_due(beat, thread_id=None, batch_started_at_ms=None)
    return play


@pytest.fixture(scope="module")
def facts(play: Play) -> AccountFacts:
    return recorded_facts(play.home, play.topology)


def account(parts: pl.DataFrame, results: pl.DataFrame, place: str, batch_id: int) -> Counter[str]:
    """Returns the parts of the results of a batch at a place, by OWNER DETAIL."""
    rows = results.with_row_index("result").cast({"result": pl.Int64})
    found = rows.filter(pl.col("place") == place, pl.col("batch_id") == batch_id)
    assert found.height == 1
    return Counter(
        {
            f"{owner} {detail}".strip(): length_ms
            for owner, detail, length_ms in by_owner(parts)
            .join(found, on="result")
            .select("owner", "detail", "ms")
            .rows()
        }
    )


TABLES_OF_JOBS = ("batches", "operator_batches", "partition_batches", "operator_windows")
PRODUCED = {"producer events/0": 500}
WAITED = {"trigger": 1_020, "target journal": 10, "target changes": 10}


def test_a_record_is_accounted_for_from_its_producer_to_its_table(facts: AccountFacts) -> None:
    parts = record_parts(Ledger.of(facts))
    assert account(parts, facts.results, "by_id", 2) == PRODUCED | WAITED | {"target hop_by_id": 10}
    assert account(parts, facts.results, "board", 2) == PRODUCED | WAITED | {
        "target hop_by_id": 10, "target changes_of_board": 10,
    }  # fmt: skip


def test_behind_a_hop_the_account_goes_on_in_the_batch_that_wrote(facts: AccountFacts) -> None:
    # The hop had the record at 50 ms after the look of its writer, and `far` looked at 500.
    assert account(record_parts(Ledger.of(facts)), facts.results, "far", 2) == PRODUCED | {
        "trigger": 1_020 + 450, "target journal": 10 + 10, "target changes": 10, "target hop_by_id": 10,
        "target all_of_it": 10,
    }  # fmt: skip


def test_a_result_of_a_window_was_held_until_its_window_closed(facts: AccountFacts) -> None:
    # The record of 13.5 s came with batch 1, whose work ended at 15.02 s, in the window until 15 s. The look at 20 s
    # found the record that let it close.
    held = {"window sums": 4_980}
    written = {f"target {name}": 10 for name in ("journal", "changes", "hop_by_id", "changes_of_board", "closed")}
    found = account(record_parts(Ledger.of(facts)), facts.results, "closed", 2)
    assert found == PRODUCED | {"trigger": 1_020 + 20} | held | written


@pytest.mark.parametrize("shards", [1, 2])
def test_a_result_of_an_interval_was_held_until_it_ended_and_is_none_when_it_is_repeated(
    tmp_path: Path, shards: int
) -> None:
    """The first batch decides at 20 s. The interval that began then ends at 30 s, and the batch of 35 s sends `a`."""
    toml = EVENTS + operators(often=table(strategy="periodic", interval="10 s"), out=sink("often", topic="out"))
    play = Play(toml, tmp_path).in_shards(shards, Apart)
    play.write_ms = 10
    for at_s, key in ((20, "x"), (25, "a"), (35, "b"), (45, "b")):
        row = play.row("events", ms(at_s) - 1_500, key=key, id=key)
        play.batch([{**row, "stamped_ms": ms(at_s) - 1_000}], at_ms=ms(at_s), now_ms=ms(at_s) + 20)
    results = recorded_facts(tmp_path, play.topology).results.filter(pl.col("place") == "out")
    held = results.sort("batch_id", "event_ms").with_columns(pl.col("event_ms", "due_ms") - ms(0))
    assert held.select("batch_id", "read_batch", "event_ms", "held_by", "held_detail", "due_ms").rows() == [
        (2, 0, 18_500, "interval", "often", 30_000),
        (2, 1, 23_500, "interval", "often", 30_000),
        (2, 2, 33_500, None, None, None),
        (3, 3, 43_500, None, None, None),
    ]


def test_what_was_ahead_waited_for_the_record_of_the_slow_partition(tmp_path: Path) -> None:
    """Partition 0 is at 20 s when its record of 34 s comes, and partition 1 at 1 s. The batch of 50 s reads 30 s there,
    which came at 49.5 s, so that of 55 s sends the record on, and passes the window until 25 s with it.
    """
    toml = topology_of(
        {"window": "5 s", "max_drift": "10 s"}, events=source(bound="1 s"), out=sink("events", topic="out")
    )
    play = Play(toml, tmp_path, partitions=2)
    reads = ((10, [(0, 1), (1, 1)]), (40, [(0, 20), (0, 34)]), (50, [(1, 30)]), (55, [(1, 31)]))
    for at_s, records in reads:
        rows = [play.row("events", ms(second), partition=partition) for partition, second in records]
        play.batch([row | {"stamped_ms": ms(at_s) - 500} for row in rows], at_ms=ms(at_s), now_ms=ms(at_s) + 20)
    found = recorded_facts(tmp_path, play.topology)
    ledger, waited = Ledger.of(found), found.results.filter(pl.col("read_batch") < pl.col("batch_id"))
    # From its look at 40 s it was worked on until 40.02 s.
    of_record = {"producer events/0": 5_500, "producer events/1": 9_480, "trigger": 520 + 5_520}
    assert account(record_parts(ledger, waited), waited, "out", 3) == of_record
    of_window = {"bound events": 1_000, "next_record events/0": 8_000} | of_record
    window = found.windows.filter(pl.col("end_ms") == ms(25), pl.col("place") == "out")
    assert account(window_parts(ledger, window), window, "out", 3) == of_window


@pytest.mark.parametrize("shards", [1, 2])
def test_a_phone_that_reconnects_is_named_among_old_records_and_among_late_ones(tmp_path: Path, shards: int) -> None:
    """Its 36 records are 208 s old and less, each 2 s newer than the one before. A latency of 30 s is promised."""
    play = Play(
        topology_of(events=source(bound="1 s"))
        + operators(sums=aggregate(key=["id"], window={"tumbling": "5 s"}, aggregates={"n": "count(*)"}))
        + operators(closed=sink("sums", table="closed")),
        tmp_path, partitions=2,
    ).in_shards(shards, Apart)  # fmt: skip
    play.promise_ms = 30_000
    on_time = [("k", 0, 300), ("k", 1, 300), ("old", 1, 250)]
    phone = [("phone", 0, 102 + 2 * n) for n in range(36)]
    for at_s, records in ((301, on_time), (310, [*phone, ("k", 0, 310)])):
        rows = [play.row("events", ms(at), partition=part, key=key, id=key) for key, part, at in records]
        play.batch(rows, at_ms=ms(at_s))
    told = scan(play.table("partition_batches")).filter(pl.col("slow_keys").is_not_null()).collect()
    found = told.explode("slow_keys").select("batch_id", "partition", pl.col("slow_keys").struct.unnest())
    assert found.sort("batch_id").rows() == [
        (0, 1, "old", 1, 51_000, 51_000),
        (1, 0, "phone", 36, 36 * 208_000 - 2_000 * sum(range(36)), 208_000),
    ]
    late = scan(play.table("dead_letters")).filter(pl.col("kind") == "late").collect()
    by_key = late.group_by("partition", "key").agg(
        n=pl.len(), oldest=(pl.col("decided_at") - pl.col("timestamp")).max()
    )
    assert by_key.rows() == [(0, b"phone", 36, timedelta(seconds=208))]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_held_result_names_the_batch_that_read_its_newest_record(tmp_path: Path, shards: int) -> None:
    """Of `b` a batch reads an older record last. A batch after the result's own reads a record of `a` and one of `b`
    at the time of the newest ones, too late, and so does one of the other source, at the same offset, in time.
    """
    toml = (
        topology_of(events=source(bound="1 s"))
        + operators(more=source(topic="more", bound="1 s"))
        + operators(both={"kind": "union", "inputs": ["events", "more"]})
        + operators(ends=aggregate("both", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"},
                                   strategy="on_window_close"))
        + operators(gaps=aggregate("both", key=["id"], window={"session": "3 s"}, aggregates={"n": "count(*)"},
                                   strategy="on_window_close"))
        + operators(ends_out=sink("ends", table="ends"), gaps_out=sink("gaps", table="gaps"))
    )  # fmt: skip
    play = Play(toml, tmp_path).in_shards(shards, Apart)
    batches = [
        [("events", 3, "a"), ("more", 2, "c")],
        [("events", 5, "b"), ("more", 1, "a")],
        [("events", 4, "b"), ("more", 3, "d")],
        [("events", 30, "z"), ("more", 30, "z")],
        [("events", 3, "a"), ("more", 5, "b")],
        [("events", 60, "z"), ("more", 60, "z")],
    ]
    for n, rows in enumerate(batches):
        play.batch([play.row(name, ms(at), key=key, id=key, v=n) for name, at, key in rows], at_ms=ms(70 + n))
    results = recorded_facts(tmp_path, play.topology).results.filter(pl.col("place").is_in(["ends_out", "gaps_out"]))
    named = results.with_columns(at=(pl.col("event_ms") - ms(0)) // 1_000).sort("place", "event_ms", "read_batch")
    of_windows = [("events", 0, 3, 3), ("events", 1, 3, 5), ("more", 0, 3, 2), ("more", 2, 3, 3)]
    found = sorted(
        named.filter(pl.col("batch_id") == 3).select("place", "input", "read_batch", "batch_id", "at").rows()
    )
    assert found == sorted((place, *row) for place in ("ends_out", "gaps_out") for row in of_windows)
    assert {*results["held_by"]} == {"window"}
    assert {*results["held_detail"]} == {"ends", "gaps"}
    assert results.filter(pl.col("read_batch") >= pl.col("batch_id")).is_empty()


def test_a_window_is_accounted_for_from_its_end(facts: AccountFacts) -> None:
    # The bound ends at 11 s, and the first record after it is that of 13.5 s.
    assert account(window_parts(Ledger.of(facts)), facts.windows, "board", 1) == {
        "bound events": 1_000, "next_record events/0": 2_500,
    } | PRODUCED | WAITED | {"target hop_by_id": 10, "target changes_of_board": 10}  # fmt: skip


def test_before_its_first_batch_nobody_ran_a_stream_and_nothing_is_unknown(facts: AccountFacts) -> None:
    """The record of the first batch had arrived 1 s before its look, and 20 ms later the driver had it."""
    ledger = Ledger.of(facts)
    assert window_parts(ledger).filter(pl.col("owner") == "unknown").is_empty()
    assert record_parts(ledger).filter(pl.col("owner") == "unknown").is_empty()
    assert account(record_parts(ledger), facts.results, "by_id", 0)["absence play/events"] == 1_020


@pytest.mark.parametrize(
    ("told", "absent_s"),
    [
        ([("trigger", "", 20)], 20),
        ([("broker", "events", 12), ("spark", "commit", 13), ("trigger", "", 20)], 20),  # a batch that changed nothing
        ([("spark", "commit", 13), ("trigger", "", 18), ("broker", "events", 19), ("spark", "planning", 20)], 18),
    ],
)
@pytest.mark.parametrize("looks", [True, False])
def test_a_driver_is_absent_from_the_work_that_it_did_not_decide_until_the_next_one_looks(
    tmp_path: Path, told: list[tuple[str, str, int]], absent_s: int, *, looks: bool
) -> None:
    """The last heartbeat of the first one is of 20 s; the next one starts from 25 s to 41 s, and looks at 43 s."""
    play = Play(NEWEST, tmp_path)
    play.batch([play.row("events", ms(9), key="a", id="a", v=1)], at_ms=ms(10))
    (sub,) = play.topology.sub_topologies
    history = Heartbeats(play.table("heartbeats").parent, topology="play", sub_topology=sub.name)
    running, starting = StreamState.RUNNING, StreamState.STARTING
    looked = [("broker", "events", 43, 50)] if looks else []
    lived = [(owner, detail, began, until) for (*_, began), (owner, detail, until) in pairwise([("", "", 10), *told])]
    for state, epoch, from_s, at_s, segments in (
        (running, 1, 10, 20, lived),
        (starting, 2, 25, 25, []),
        (starting, 2, 25, 41, []),
        (running, 2, 41, 50, looked),
    ):
        spent = [Segment(*of, NEXT, ms(began) - BOOTED_MS, ms(until) - BOOTED_MS) for *of, began, until in segments]
        of_time = TimeTold(ms(from_s) - BOOTED_MS, ms(at_s) - BOOTED_MS, (), tuple(spent))
        beat = Heartbeat(state=state, epoch=epoch, launch_id="", at_ms=ms(at_s), pid=1, host="h", told=of_time)
        history.write_if_due(beat, thread_id=None, batch_started_at_ms=None)
    pieces = Ledger.of(recorded_facts(tmp_path, play.topology)).timeline
    absences = pieces.filter(pl.col("owner") == "absence").select("began_ms", "ended_ms")
    assert absences.rows() == [(ms(absent_s), ms(43))] * looks
    unknown = pieces.filter(pl.col("owner") == "unknown", pl.col("began_ms") > ms(10))
    # Nobody knows yet what came after the last sign.
    assert unknown["began_ms"].to_list() == [ms(50 if looks else 20)]


def test_what_came_before_the_file_had_its_source_belongs_to_the_change(tmp_path: Path) -> None:
    """Without `more` the driver ends at 20 s. The next one looks at 30 s, and reads the record of `more` of 12 s.

    The record of 39.5 s is seen at 40 s, so the usual delay is 500 ms.
    """

    def file(**sources: dict[str, object]) -> str:
        both = {"kind": "union", "inputs": [*sources]}
        return topology_of(**sources, both=both, log=sink("both", table="log"))

    events, more = (source(topic=name, sub_topology="all") for name in ("events", "more"))
    play = Play(file(events=events), tmp_path)
    play.start()
    follow(play.control, play.topology.sub_topologies[0], -1)
    play.batch([play.row("events", ms(9.5), id="a", v=1)], at_ms=ms(10))
    history = Heartbeats(play.table("heartbeats").parent, topology="play", sub_topology="all")
    waited = Segment("trigger", "", NEXT, ms(10) - BOOTED_MS, ms(20) - BOOTED_MS)
    told = TimeTold(ms(10) - BOOTED_MS, ms(20) - BOOTED_MS, (), (waited,))
    beat = Heartbeat(state=StreamState.DRAINED, epoch=1, launch_id="", at_ms=ms(20), pid=1, host="h", told=told)
    history.write_if_due(beat, thread_id=None, batch_started_at_ms=None)

    later = Play(file(events=events, more=more), tmp_path)
    follow(later.control, later.topology.sub_topologies[0], 0)
    later.resume({"all": 1}, {("events", 0): 1})
    later.start(epoch=2)
    later.batch([later.row("more", ms(12), id="b", v=2)], at_ms=ms(30))
    later.batch([later.row("more", ms(39.5), id="b", v=3)], at_ms=ms(40))
    facts = recorded_facts(tmp_path, later.topology)
    assert account(record_parts(Ledger.of(facts)), facts.results, "log", 1) == {
        "producer more/0": 500, "topology_change more": 7_500, "absence play/all": 10_000,
    }  # fmt: skip
    assert account(record_parts(Ledger.of(facts)), facts.results, "log", 2) == {"producer more/0": 500}


def test_records_that_nobody_stamped_arrived_between_looks(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    # The look of the batch is at 10 s. Looks 3 s and 1 s before it saw the ends 1 and 2 of the partition.
    play.looks = lambda at_ms, source: [(0, 1, 3_000), (0, 2, 1_000)] if source == "events" else []
    play.batch([play.row("events", ms(n), key="a", id="a", v=n) for n in range(3)], at_ms=ms(10))
    ((row,),) = play.reads().values()
    assert [(read["n"], read["seen_before_ms"], read["excluded_before_ms"]) for read in row["reads"]] == [
        (1, 3_000, None), (1, 1_000, 3_000), (1, None, 1_000),
    ]  # fmt: skip


def test_a_record_that_nobody_stamped_arrived_after_the_newest_look_without_it(tmp_path: Path) -> None:
    """A driver looks at 3 s while it works, and then again with each batch."""
    play = Play(NEWEST, tmp_path)
    play.looks = lambda at_ms, source: [(0, 0, at_ms - (ms(3) - BOOTED_MS))] if source == "events" else []
    for n, event_s in enumerate((9, 10, 3)):
        play.batch([play.row("events", ms(event_s), key="a", id="a", v=n)], at_ms=ms(10 + n))
    reads = recorded_facts(tmp_path, play.topology).reads
    assert reads["arrived_ms"].to_list() == [ms(10), ms(11), ms(11)]


def test_a_window_that_time_in_silence_closed_waited_for_that_silence(tmp_path: Path) -> None:
    silent = source(bound="5 s", idle_after="5 s", idle_advances=True)
    play = Play(topology_of({"window": "5 s"}, events=silent, kept=sink("events", table="kept")), tmp_path)
    play.batch([play.row("events", ms(8.5), key="a", id="a", v=1)], at_ms=ms(10))
    # In silence since 10 s, time is as far as a record of 13.5 s would have it from 15 s on, and one of 18.5 s from 20.
    for at_s in (15.1, 20.1):
        play.batch([], at_ms=ms(at_s), now_ms=ms(at_s) + 20)
    found = recorded_facts(tmp_path, play.topology)
    parts = window_parts(Ledger.of(found))
    assert account(parts, found.windows, "events", 2) == {
        "bound events": 5_000, "silence events/0 idle_advances": 5_000, "trigger": 120,
    }  # fmt: skip


JOB = {"producer clean:orders": 200, "operator addBatch": 550, "target commitOffsets": 50}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> AccountFacts:
    """A query of a job, of which each batch takes 700 ms: 100 for its look, and 50 for its commit at the end.

    They begin each 10 s, and five records come in between. The batch of 30 s leaves three behind, for that of 40 s.
    """
    home, noon_ms = tmp_path_factory.mktemp("job"), ms(0)
    job = Job(home, "clean")
    job.batch(noon_ms, topic("orders", 0, 5), newest_ms=noon_ms - 500, is_last=False)
    times = {"oldest_ms": noon_ms + 2_000, "newest_ms": noon_ms + 9_900}
    job.batch(noon_ms + 10_000, topic("orders", 5, 10), **times, is_last=False)
    job.batch(noon_ms + 20_000, topic("orders", 10, 15), newest_ms=noon_ms + 19_000, is_last=False)
    job.batch(noon_ms + 30_000, topic("orders", 15, 17, latest=20), newest_ms=noon_ms + 29_000, is_last=False)
    job.batch(noon_ms + 40_000, topic("orders", 17, 20, latest=25), newest_ms=noon_ms + 29_500, is_last=False)
    job.batch(noon_ms + 50_000, topic("orders", 20, 25), topic("returns", 0, 1), newest_ms=noon_ms + 49_000)
    topology = recorded_topology(Layout(home), "shop")
    assert topology is not None
    tables = {name: scan(Layout(home).stream_table("shop", "clean", name)).collect() for name in TABLES_OF_JOBS}
    beats, changes = (nothing_in(table).collect() for table in (HEARTBEATS, TOPOLOGY_CHANGES))
    return with_usual(Recorded(**tables, heartbeats=beats, topology_changes=changes).facts(topology))


def accounts(facts: AccountFacts, batch_id: int) -> list[dict[str, int]]:
    """Returns the parts of each result of a batch, by OWNER DETAIL."""
    parts, results = record_parts(Ledger.of(facts)), facts.results.with_row_index("result").cast({"result": pl.Int64})
    found = by_owner(parts).join(results.filter(pl.col("batch_id") == batch_id), on="result", maintain_order="left")
    return [
        {
            f"{owner} {detail}".strip(): length_ms
            for owner, detail, length_ms in rows.select("owner", "detail", "ms").rows()
        }
        for _, rows in found.group_by("result", maintain_order=True)
    ]


def test_a_batch_of_a_job_is_accounted_for_by_its_earliest_and_its_latest_record(job: AccountFacts) -> None:
    # The latest record, of 9.9 s, was seen at 10.1 s: no other was seen sooner, so that is the usual delay. All came
    # after the look of the batch before. The batch ended at 10.7 s.
    assert accounts(job, 1) == [JOB | {"trigger": 7_800, "broker latestOffset": 100}, JOB]


def test_records_that_spark_left_behind_waited_for_its_limit(job: AccountFacts) -> None:
    # The record of 29.5 s arrived at 29.7 s, and was there when the batch of 30 s looked, until 30.1 s. The next
    # one looked until 40.1 s.
    (found,) = accounts(job, 4)
    assert found == JOB | {"trigger": 300, "broker latestOffset": 100, "max_records clean:orders": 10_000}


def test_records_of_one_of_several_sources_have_an_account_without_it(job: AccountFacts) -> None:
    # It was seen at 50.1 s, and may have arrived at any time from its own, 49 s, on: no look at the new source had
    # missed it. It is the only record of its kind, so its delay is the usual one.
    assert accounts(job, 5) == [{"producer": 1_100, "operator addBatch": 550, "target commitOffsets": 50}]
    reads = job.reads.filter(pl.col("batch_id") == 5)
    assert reads.select("input", "partition", "arrival_error_ms").rows() == [(None, None, 1_100)]


def test_a_stream_without_rows_has_no_facts(play: Play) -> None:
    empty = {each.name: nothing_in(TABLES.get(each.name, HEARTBEATS)).collect() for each in fields(Recorded)}
    assert record_parts(Recorded(**empty).ledger(play.topology)).is_empty()
