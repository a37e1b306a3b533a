"""Facts move from the journal to tables in groups, each once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from bench.commits import commits as count_commits
from bench.files import counted as count_files
from deltalake import DeltaTable

from support.crashes import Crash, crash_at
from support.latency_facts import listed, minute_row
from support.play import Play, Row, ms, without_clocks
from support.topologies import sink, source, table, topology_of
from tidemark.control.folder import Heartbeat, StreamState
from tidemark.control.process import wait_until
from tidemark.facts.fact_tables import FactTables, stored_in
from tidemark.facts.record_facts import StreamEvidence
from tidemark.facts.topology_tables import tables_of
from tidemark.kernels.columns.buckets import STATISTICS
from tidemark.kernels.columns.schemas import rows_of as in_form
from tidemark.kernels.updates.facts import add_up
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.layout import Layout
from tidemark.model.slas import sla_spec
from tidemark.model.tables.catalog import BATCHES, LATENCY_MINUTES, OPERATOR_BATCHES
from tidemark.query.sql import Warehouse
from tidemark.semantics.sla import Verdict
from tidemark.sla.measures.progress import unknown_if_behind, wait_for_facts
from tidemark.sla.measures.status import Status
from tidemark.stream.flush_timer import FlushTimer
from tidemark.stream.journal.unflushed import scan_facts
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings
from tidemark.stream.write.flushing import SELDOM

TOML = topology_of(
    {"level": "trace", "window": "2 s"},
    events=source(allowed_lateness="0 ms", max_ahead=None),
    newest=table(columns=["v"]),
    board=sink("newest", table="board"),
    out=sink("newest", topic="out"),
)
OUTPUTS = {"changes", "board"}
SUB = "events"
EVERY_MS = 10_000


def play(home: Path, *, facts_every_ms: int = EVERY_MS) -> Play:
    return Play(TOML, home, facts_every_ms=facts_every_ms)


def rows_of(playing: Play, number: int) -> list[Row]:
    """Returns batch *number*: new, repeated, late and unreadable records."""
    at_ms = ms(number)
    again = [playing.row("events", at_ms, key="a", id="a", v=number // 2) for _ in range(2)]
    late = [playing.row("events", ms(number - 30), key="b", id="b", v=number)] if number > 2 else []
    offset = playing.row("events", at_ms)["offset"]
    return [
        *again,
        *late,
        {"source": "events", "partition": 0, "offset": offset, "value": b"\xff", "reason": "null_key"},
    ]


def run(playing: Play, numbers: range, batches: dict[int, list[Row]]) -> None:
    """Runs batches, a second after each other.

    The records of a batch are generated once.
    """
    for number in numbers:
        rows = batches.get(number) or batches.setdefault(number, rows_of(playing, number))
        playing.process(number, rows, at_ms=ms(number))


def drain(playing: Play) -> None:
    playing.engine(SUB).flush()


def commits(home: Path) -> dict[str, int]:
    """The version of each table of the stream."""
    return {
        log.parent.name: DeltaTable(str(log.parent)).version() for log in home.glob(f"streams/play/{SUB}/*/_delta_log")
    }


@pytest.mark.parametrize("many", [5_000, 2])
def test_rows_and_files_of_a_sink_have_the_same_newest_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr("tidemark.stream.write.commit.MANY", many)
    playing = play(tmp_path, facts_every_ms=0)
    rows = [playing.row("events", at_ms, id=str(at_ms), v=1) for at_ms in (ms(5), ms(9) + 1, ms(7))]
    playing.batch(rows, at_ms=ms(10))
    newest_ms = {row["operator"]: row["newest_ms"] for row in playing.rows("operator_batches")}
    assert newest_ms == {"events": None, "newest": None, "board": ms(9) + 1, "out": None}


def test_a_batch_commits_outputs_and_ten_seconds_facts(tmp_path):
    playing, batches = play(tmp_path), {}
    run(playing, range(1), batches)
    before = commits(tmp_path)
    run(playing, range(1, 10), batches)
    of_batches = {name: version - before[name] for name, version in commits(tmp_path).items()}
    assert {name: n for name, n in of_batches.items() if n} == dict.fromkeys(OUTPUTS, 4)  # a new value every 2 s
    run(playing, range(10, 11), batches)
    of_facts = {name for name, n in commits(tmp_path).items() if n == 1 and name not in OUTPUTS}
    assert {"batches", "operator_batches", "suppressed", "operator_windows"} <= of_facts
    assert not of_facts & SELDOM
    drain(playing)
    assert {name for name, n in commits(tmp_path).items() if n == 1} - of_facts == SELDOM
    assert scan_of(playing, "batches").height == scan_of(playing, "partition_batches")["batch_id"].n_unique() == 11


def test_flights_make_few_commits(tmp_path):
    found = count_commits(tmp_path, facts_every_ms=EVERY_MS, trigger_s=5)
    assert found.of_a_batch <= 4
    assert found.of_ten_seconds <= 6.2  # one for each complete interval of the board, which has 15 s


@pytest.mark.long  # a minute
def test_a_stream_has_few_files_of_facts_and_control(tmp_path: Path) -> None:
    counts = list(count_files(tmp_path, hours=1.1))
    # Tables of facts and heartbeats have 20 small files and as many commits. Beside these are the files that were
    # replaced, and the commits that were made, in 15 and 10 minutes.
    assert max(count.total() for count in counts) <= 750


def scan_of(playing: Play, name: str) -> pl.DataFrame:
    """Returns the rows of the table without the journal."""
    return pl.DataFrame(DeltaTable(str(playing.table(name, SUB))).to_pyarrow_table()).sort(pl.all())


def test_a_batch_has_one_file_in_the_journal(tmp_path):
    playing = play(tmp_path)
    run(playing, range(4), {})
    names = sorted(path.name for path in (tmp_path / "control" / "play" / SUB / "journal").iterdir())
    assert names == [*(f"{number:020d}.data.zip" for number in range(4)), "carried_out"]


def of_tables(playing: Play) -> dict[str, pl.DataFrame]:
    """The rows of each table; those of `latency_minutes` are in other tests."""
    of_batches = commits(playing.home).keys() - {"latency_minutes", "heartbeats"}
    return {name: scan_of(playing, name) for name in of_batches}


def counted(playing: Play) -> list[tuple[object, ...]]:
    """What the rows of `latency_minutes` say by operator, task, window, minute and bucket."""
    rows = scan_of(playing, "latency_minutes")
    assert not rows.select("batch_id", "operator", "task_id", "window_start").is_duplicated().any()
    rows = rows.with_columns(minute=pl.col("finished_at").dt.truncate("1m"))
    of = ["operator", "task_id", "window_start", "minute"]
    buckets = rows.select(*of, "buckets").explode("buckets").unnest("buckets")
    counts = buckets.group_by(*of, "bucket").agg(pl.sum("n"))
    whole = rows.group_by(of).agg(pl.sum("sum_ms", "negative_n"), pl.min("min_ms"), pl.max("max_ms"))
    assert rows["n"].sum() == counts["n"].sum()
    return whole.join(counts, on=of).sort(pl.all()).rows()


@pytest.fixture(scope="module")
def of_each_batch(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """A stream that flushes with each batch."""
    playing = play(tmp_path_factory.mktemp("once"), facts_every_ms=0)
    run(playing, range(13), {})
    return playing


@pytest.fixture(scope="module")
def at_once(of_each_batch: Play) -> dict[str, pl.DataFrame]:
    """The tables of that stream."""
    return of_tables(of_each_batch)


def test_each_row_has_the_decision_time_of_its_batch(at_once: dict[str, pl.DataFrame]) -> None:
    decided = dict(at_once["batches"].select("batch_id", "decided_at").iter_rows())
    for name in ("changes", "suppressed", "operator_windows"):
        rows = at_once[name]
        assert rows.columns[:4] == ["topology", "sub_topology", "batch_id", "decided_at"]
        assert [*map(decided.get, rows["batch_id"])] == rows["decided_at"].to_list() != []


def test_flushed_together_or_with_each_batch_facts_are_the_same(tmp_path, of_each_batch, at_once):
    playing = play(tmp_path)
    run(playing, range(13), {})
    drain(playing)
    found = of_tables(playing)
    assert found.keys() == at_once.keys()
    for name in found:
        assert found[name].equals(at_once[name]), name
    assert counted(playing) == counted(of_each_batch)
    once, by_batch = (scan_of(each, "latency_minutes") for each in (playing, of_each_batch))
    assert once.height < by_batch.height
    # Those of the source show which record let the windows close.
    assert once.filter("closed_windows").equals(by_batch.filter("closed_windows"))
    assert {*once.filter("closed_windows")["batch_id"]} == {*at_once["operator_windows"]["batch_id"]}
    assert once.filter("closed_windows")["operator"].unique().to_list() == ["events"]


STEPS = [
    "decided", "committed changes", "committed board", "committed out", "measured", "committed suppressed",
    "committed latency_minutes", "committed operator_batches", "committed batches",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_a_driver_loses_and_doubles_no_fact(tmp_path, at_once, step):
    """The next driver is killed at the same step, too.

    It is killed if it reaches the step before it has read anything.
    """
    playing, batches, last = play(tmp_path), {}, 4
    is_armed = False
    playing.start(SUB, reached=lambda name: crash_at(step)(name) if is_armed else None)
    run(playing, range(last), batches)
    is_armed = True
    for epoch in (2, 3):
        with suppress(Crash):
            run(playing, range(last, last + 1), batches)
            drain(playing)
            assert epoch == 3, "the step was not reached"
        playing.start(SUB, reached=crash_at(step) if epoch == 2 else lambda _: None, epoch=epoch)
    run(playing, range(last, last + 1), batches)
    drain(playing)
    assert told(of_tables(playing)) == told(at_once, up_to=last)


def told(tables: dict[str, pl.DataFrame], *, up_to: int = 99) -> dict[str, list[str]]:
    """Returns rows of *tables* up to a batch without clock columns.

    The clock of Delta's log is the machine's.
    """
    rows = {name: frame.filter(pl.col("batch_id") <= up_to) for name, frame in tables.items()}
    return {name: sorted(map(str, without_clocks(of).rows())) for name, of in rows.items()}


@pytest.mark.parametrize("planned", [2, 3], ids=["Spark runs it again", "Spark has committed it"])
def test_after_a_kill_the_last_batch_has_the_clock_of_recovery(tmp_path, planned):
    playing, batches = play(tmp_path), {}
    run(playing, range(3), batches)
    carried_out = tmp_path / "control" / "play" / SUB / "journal" / "carried_out"
    os.utime(carried_out, (ms(42) / 1_000, ms(42) / 1_000))
    playing.start(SUB, epoch=2)
    playing.broker.published.clear()
    run(playing, range(planned, 3), batches)
    playing.process(3, batches.setdefault(3, rows_of(playing, 3)), at_ms=ms(3), now_ms=ms(60))
    drain(playing)
    latency = scan_of(playing, "operator_batches").filter(pl.col("operator") == "out")
    assert dict(latency.select("batch_id", "recovered").rows()) == {0: False, 2: True}
    finished_at = scan_of(playing, "batches").select("batch_id", pl.col("finished_at").dt.epoch("ms"))
    assert dict(finished_at.rows())[2] == ms(42)
    assert not playing.broker.published  # the value of batch 2 is not sent again, and batch 3 has no other


@pytest.mark.parametrize("recorded", ["", "2 9 0"], ids=["not recorded", "another decision"])
def test_a_batch_that_may_not_have_been_sent_is_sent(tmp_path, recorded):
    playing, batches = play(tmp_path), {}
    run(playing, range(3), batches)
    (tmp_path / "control" / "play" / SUB / "journal" / "carried_out").write_text(recorded)
    playing.start(SUB, epoch=2)
    playing.broker.published.clear()
    run(playing, range(2, 3), batches)
    assert playing.broker.published


def test_in_silence_a_timer_flushes_what_the_newest_batch_has(tmp_path):
    playing = play(tmp_path)
    run(playing, range(3), {})
    playing.engine(SUB).flush_if_due(ms(9.9))
    assert not scan_of(playing, "batches").height
    playing.engine(SUB).flush_if_due(ms(10))
    assert scan_of(playing, "batches").height == 3


def test_batches_that_follow_each_other_share_flushes(tmp_path: Path) -> None:
    """A batch begins each ten seconds, and a timer asks each second."""
    playing = play(tmp_path, facts_every_ms=30_000)
    made: list[tuple[int, str]] = []

    def reached(step: str) -> None:
        made.append((second, step.removeprefix("committed ")))

    second = 0
    playing.start(SUB, reached=reached)
    for second in range(61):
        if second % 10 == 0:
            row = playing.row("events", ms(second), id="a", v=second)
            playing.process(second // 10, [row], at_ms=ms(second))
        playing.engine(SUB).flush_if_due(ms(second))
    assert [at for at, step in made if step == "batches"] == [30, 60]
    assert {(at, step) for at, step in made if step in SELDOM} == {(60, name) for name in SELDOM}


def test_facts_of_a_quiet_stream_do_not_wait_for_its_next_batch(tmp_path: Path) -> None:
    """A check waits 15 s for them."""
    playing = play(tmp_path, facts_every_ms=30_000)
    found = []
    for number, at_s in enumerate((0, 14)):
        playing.process(number, [playing.row("events", ms(at_s), id="a", v=number)], at_ms=ms(at_s))
        for later_s in (11.9, 12):
            playing.engine(SUB).flush_if_due(ms(at_s + later_s))
            found.append(scan_of(playing, "batches").height)
    assert found == [0, 1, 1, 2]


def test_a_stream_without_decisions_has_no_facts(tmp_path):
    playing = play(tmp_path)
    playing.start(SUB)
    assert scan_facts(playing.table("batches", SUB)).collect().is_empty()


def test_the_timer_of_a_driver_flushes_and_does_so_at_its_end(tmp_path):
    playing, now = play(tmp_path), [ms(2)]
    run(playing, range(3), {})
    timer = FlushTimer(playing.engine(SUB), lambda: now[0])
    now[0] = ms(60)
    wait_until(lambda: scan_of(playing, "batches").height == 3, "a flush in silence", 60)
    run(playing, range(3, 5), {})
    timer.end()
    assert scan_of(playing, "batches").height == scan_of(playing, "partition_batches")["batch_id"].n_unique() == 5


def test_readers_see_facts_that_only_the_journal_has(tmp_path):
    playing = play(tmp_path)
    run(playing, range(3), {})
    warehouse = Warehouse(tmp_path)
    facts = FactTables(stored_in(playing.table("batches", SUB).parent), ms(60))
    asked = "SELECT batch_id FROM batches ORDER BY 1"
    # What was measured of batch 2 is in the driver alone, until the next batch or a flush.
    assert warehouse.ask(asked).rows == ((0,), (1,))
    assert facts.batches["batch_id"].to_list() == [0, 1]
    of_topology = tables_of(Layout(tmp_path), "play")(BATCHES).collect()
    assert (of_topology.columns, of_topology["batch_id"].to_list()) == ([*BATCHES.names], [0, 1])
    assert facts.rows(OPERATOR_BATCHES).collect().height == 6  # batch 1 sends nothing on to the sinks
    assert sorted(scan_facts(playing.table("dead_letters", SUB)).collect()["batch_id"]) == [0, 1, 2]
    run(playing, range(3, 12), {})
    drain(playing)
    assert warehouse.ask(asked).rows == ((0,), (1,))
    assert Warehouse(tmp_path).ask(asked).rows == tuple((number,) for number in range(12))


def test_rows_of_files_and_of_the_journal_are_joined_by_one_query(tmp_path: Path) -> None:
    """DuckDB filters the files by the other side of a join, which it cannot do with the rows of the journal."""
    playing = play(tmp_path)
    run(playing, range(24), {})
    assert 0 < scan_of(playing, "batches").height < 23
    even = "SELECT batch_id FROM batches WHERE batch_id % 2 = 0"
    asked = f"SELECT count(DISTINCT batch_id) FROM operator_batches WHERE batch_id IN ({even})"
    assert Warehouse(tmp_path).ask(asked).rows == ((12,),)


def test_what_was_read_is_known_before_a_table_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables with batches are committed each ten seconds, `partition_batches` once a minute."""
    playing, batches = play(tmp_path), {}
    monkeypatch.setattr(playing.broker, "offsets", lambda _, partitions: dict.fromkeys(partitions, (0, 1_000)))
    servers = [Exporter(Layout(tmp_path), lambda: [playing.topology], clock=lambda at=at: ms(at)) for at in (60, 8)]

    def exported(server: Exporter = servers[0]) -> list[float]:
        """Returns lag and unread records of the partition."""
        return [sample.value for sample in server.samples() if sample.labels[-2:] == ("events", "0")]

    run(playing, range(11), batches)
    assert (scan_of(playing, "batches").height, scan_of(playing, "partition_batches").height) == (11, 0)
    # The first three batches have three records each, and later ones four.
    first = [0, 3, 6, *(9 + 4 * n for n in range(60))]
    query = "SELECT batch_id, from_offset, until_offset FROM partition_batches WHERE partition = 0 ORDER BY 1"
    assert Warehouse(tmp_path).ask(query).rows == tuple((n, first[n], first[n + 1]) for n in range(11))
    evidence_ = StreamEvidence(playing.stream(SUB))
    found = [evidence_.batch_of("events", 0, offset) for offset in (0, 8, 9, first[10], first[11])]
    assert found == [0, 2, 3, 10, None]
    # The newest record of batch 10 has the time of its decision, and the bound is one second.
    assert exported() == [50 + 1.001, 1_000 - first[11]]
    # Batches that the driver's clock puts later than that of the server do not count.
    assert exported(servers[1]) == [1.001, 1_000 - first[9]]
    run(playing, range(11, 14), batches)
    # What is not in `batches` yet does not count.
    assert exported() == [50 + 1.001, 1_000 - first[11]]
    run(playing, range(14, 62), batches)
    assert exported() == [1.001, 1_000 - first[61]]
    assert scan_of(playing, "partition_batches")["batch_id"].max() == 60


def imports_and_answer(home: Path, query: str) -> tuple[set[str], int]:
    """Runs `tidemark sql`; returns large packages that it imported, and its answer."""
    code = "import atexit, sys; sys.argv[0] = 'tidemark'; atexit.register(lambda: print(*sys.modules)); "
    arguments = ["--warehouse", str(home), "sql", "--format", "csv", query]
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}from tidemark.cli.main import main; main()", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    _, answer, modules = ran.stdout.splitlines()
    return {"duckdb", "pyarrow", "polars", "deltalake", "numpy", "pandas"} & {*modules.split()}, int(answer)


def test_a_query_of_flushed_facts_imports_duckdb_alone(tmp_path):
    """Arrow, polars and delta-rs take longer to import than the query takes."""
    playing = play(tmp_path)
    run(playing, range(3), {})
    imported, batches = imports_and_answer(tmp_path, "select count(*) from batches")
    assert ("pyarrow" in imported, batches) == (True, 2)
    drain(playing)
    assert imports_and_answer(tmp_path, "select count(*) from batches") == ({"duckdb"}, 3)


def test_killed_in_the_flush_of_a_start_a_stream_looks_sound(tmp_path, at_once):
    playing, batches = play(tmp_path), {}
    run(playing, range(12), batches)
    playing.start(SUB, reached=crash_at("committed suppressed"), epoch=2)
    with pytest.raises(Crash):
        run(playing, range(12, 13), batches)
    tables = {t.path.name: t.newest_batch for t in evidence(playing.stream(SUB)).tables}
    assert tables["suppressed"] == 11
    assert tables["batches"] == 10
    kinds = {finding.fault.value for finding in findings(evidence(playing.stream(SUB)))}
    assert kinds <= {"checkpoint_gone"}  # Spark has written none
    playing.start(SUB, epoch=3)
    run(playing, range(12, 13), batches)
    drain(playing)
    assert told(of_tables(playing)) == told(at_once)


def test_sums_stay_in_their_minute_and_window():
    """The batches 0 to 2 finish in one minute, and batch 3 in the next."""
    batches = [(50, [3_000]), (52, [2_990, 3_000]), (58, [3_000]), (61, [9, 7])]
    rows = [
        # 47 s and 49 s are in one window, 55 s in the next.
        {**minute_row(ms(at_s), latencies, batch_id=number), "window_start": ms(at_s - 3) // 10_000 * 10_000}
        for number, (at_s, latencies) in enumerate(batches)
    ]
    found = add_up(pl.DataFrame(in_form(LATENCY_MINUTES, rows)))
    assert found.select("batch_id", *STATISTICS).rows() == [
        (1, 3, 2_990, 3_000, 8_990, 0), (2, 1, 3_000, 3_000, 3_000, 0), (3, 2, 7, 9, 16, 0)
    ]  # fmt: skip
    assert found["buckets"].to_list() == [listed([2_990, 3_000, 3_000]), listed([3_000]), listed([7, 9])]
    assert found["finished_at"].dt.epoch("ms").to_list() == [ms(52), ms(58), ms(61)]


def test_a_batch_that_closed_windows_keeps_rows_of_its_own():
    """Batches 1 and 2 closed some; 0 and 3 are added up around them."""
    rows = [
        {**minute_row(ms(number), [5], batch_id=number), "window_start": ms(0), "closed_windows": number in (1, 2)}
        for number in range(4)
    ]
    found = add_up(pl.DataFrame(in_form(LATENCY_MINUTES, rows)))
    assert found.select("batch_id", "closed_windows", "n").rows() == [(1, True, 1), (2, True, 1), (3, False, 2)]


def beat(playing: Play, state: StreamState = StreamState.RUNNING, *, at_s: float, batch_id: int) -> None:
    playing.control.beat(Heartbeat(state=state, epoch=1, launch_id="", at_ms=ms(at_s), pid=1, batch_id=batch_id))


def test_a_check_waits_until_its_instant_is_passed(tmp_path):
    playing, clock = play(tmp_path), [ms(20)]

    def behind_after(sleep: Callable[[], None]) -> tuple[set[str], float]:
        clock[0] = ms(20)

        def sleep_s(length_s: float) -> None:
            clock[0] += round(length_s * 1_000)
            sleep()

        layout = Layout(tmp_path)
        found = wait_for_facts(layout, playing.topology, at_ms=ms(18), clock=lambda: clock[0], sleep_s=sleep_s)
        return {*found}, (clock[0] - ms(20)) / 1_000

    run(playing, range(3), {})
    beat(playing, at_s=19, batch_id=2)
    assert behind_after(lambda: None) == (set(), 2.5)  # nobody holds the lease, which is asked after 3 s
    lease = playing.control
    lease.acquire()
    assert behind_after(lambda: None) == (set(), 14.5)  # the driver has not beaten since
    beat(playing, at_s=20, batch_id=2)
    assert behind_after(lambda: None) == ({SUB}, 15)
    assert behind_after(playing.engine(SUB).flush) == (set(), 0.5)
    beat(playing, at_s=17, batch_id=2)
    assert behind_after(lambda: beat(playing, at_s=18, batch_id=2)) == (set(), 0.5)
    beat(playing, StreamState.DRAINED, at_s=19, batch_id=3)
    assert behind_after(lambda: None) == (set(), 0)


def test_facts_of_a_stream_that_is_behind_are_unknown(tmp_path):
    topology = play(tmp_path).topology
    sla = {"measure": "staleness", "error_after": "1 min", "owner": "desk"}
    for subject, verdict in (("board", Verdict.UNKNOWN), ("newest", Verdict.UNKNOWN)):
        of = {**sla, "subject": subject, "measure": "staleness" if subject == "board" else "latency_p99"}
        (spec,) = sla_spec.parse({"play": {"late": of}}, topology, file="slas.toml")[:1]
        status = Status(spec, Verdict.PASS, 1.0)
        assert unknown_if_behind(status, topology, {SUB}) == Status(spec, verdict)
        assert unknown_if_behind(status, topology, {"another"}) == status


def test_the_next_flush_writes_what_a_failed_one_left(tmp_path, at_once):
    playing, batches = play(tmp_path), {}
    fails = False

    def reached(step: str) -> None:
        if fails and step == "committed board":  # a timer flushes while the batch is carried out
            with pytest.raises(Crash):
                playing.engine(SUB).flush()
            playing.engine(SUB).flush()
        elif fails and step == "committed operator_batches" and not failed:
            failed.append(step)
            raise Crash

    failed: list[str] = []
    playing.start(SUB, reached=reached)
    run(playing, range(4), batches)
    fails = True
    run(playing, range(4, 5), batches)
    fails = False
    run(playing, range(5, 13), batches)
    drain(playing)
    assert failed
    assert told(of_tables(playing)) == told(at_once)
