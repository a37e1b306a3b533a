"""A driver's heartbeats are kept as history and never block its stream."""

import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.play import Play
from support.quiet_broker import Ends
from support.topologies import EVENTS, NEWEST, operators, repartition, sink
from tidemark.clock import boot_clock_ms, wall_clock_ms
from tidemark.control.folder import Control, Heartbeat, StreamState, TimeTold
from tidemark.control.process import wait_until
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.query.sql import Warehouse
from tidemark.semantics.segments import Gap, Segment
from tidemark.semantics.skew import Skew
from tidemark.storage.delta.compaction import data_files_of
from tidemark.storage.delta.tables import scan
from tidemark.stream.driver.heartbeats import ClockOffset, Heartbeats
from tidemark.stream.driver.usage import usage_of
from tidemark.stream.pulse import Pulse

NOON = 1_400_000_000_000
BEAT = Heartbeat(state=StreamState.STARTING, epoch=3, launch_id="l", at_ms=NOON, pid=1)


def rows(home: Path, *columns: str) -> list[tuple[Any, ...]]:
    return scan(home / "heartbeats").collect().sort("beat_at").select(columns).rows()


def history(home: Path) -> Heartbeats:
    return Heartbeats(home, topology="flights", sub_topology="status")


def test_the_first_beat_of_a_state_and_one_per_15_s_are_kept(tmp_path: Path) -> None:
    told = history(tmp_path)
    told.write_if_due(BEAT, thread_id=None, batch_started_at_ms=None)
    running = replace(BEAT, state=StreamState.RUNNING, batch_id=7)
    for seconds in (1, 15, 15.999, 16, 29.999):
        beat = replace(running, at_ms=NOON + round(seconds * 1_000))
        told.write_if_due(beat, thread_id="app-1", batch_started_at_ms=NOON + 500)
    failed = replace(running, state=StreamState.FAILED, at_ms=NOON + 30_000, reason="Boom: no")
    told.write_if_due(failed, thread_id="app-1", batch_started_at_ms=None)
    kept = rows(tmp_path, "topology", "sub_topology", "state", "epoch", "thread_id", "batch_id", "reason")
    assert kept == [
        ("flights", "status", "starting", 3, None, -1, None),
        ("flights", "status", "running", 3, "app-1", 7, None),
        ("flights", "status", "running", 3, "app-1", 7, None),
        ("flights", "status", "failed", 3, "app-1", 7, "Boom: no"),
    ]
    clocks = [tuple(at and round(at.timestamp() * 1_000) - NOON for at in row) for row in rows(
        tmp_path, "beat_at", "batch_started_at"
    )]  # fmt: skip
    assert clocks == [(0, None), (1_000, 500), (16_000, 500), (30_000, None)]


def test_a_clock_that_goes_back_does_not_end_the_history(tmp_path: Path) -> None:
    told = history(tmp_path)
    for at_ms in (NOON, NOON - 3_600_000):
        told.write_if_due(replace(BEAT, at_ms=at_ms), thread_id=None, batch_started_at_ms=None)
    assert len(rows(tmp_path, "beat_at")) == 2


def test_a_driver_compacts_its_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.stream.driver.heartbeats.FACTS_EVERY", 4)
    told = history(tmp_path)
    files = []
    for number in range(9):
        beat = replace(BEAT, at_ms=NOON + 15_000 * number)
        told.write_if_due(beat, thread_id=None, batch_started_at_ms=None)
        files.append(len(data_files_of(tmp_path / "heartbeats")))
    # The first commit of a driver is a try, and then each fourth: five files become one.
    assert files == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert rows(tmp_path, "beat_at") == [(utc(NOON + 15_000 * number),) for number in range(9)]


def test_a_failed_write_of_a_heartbeat_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").touch()
    with caplog.at_level(logging.ERROR):
        history(tmp_path / "taken").write_if_due(BEAT, thread_id=None, batch_started_at_ms=None)
    assert "heartbeats: cannot write rows" in caplog.text


def test_a_heartbeat_has_the_estimates_of_clocks_since_the_one_before(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    pulse = Pulse(control, history(tmp_path), control.acquire(), "l")
    offsets = [
        ClockOffset(
            host=host,
            estimated_at_ms=NOON + n,
            skew=Skew(offset_ms=-3, error_ms=2),
            samples=5,
            reference="brokers",
        )
        for n, host in enumerate(("h", "i", "h"))
    ]
    pulse.clock_offsets.add(*offsets[:1])
    pulse.clock_offsets.add(*offsets[1:])
    pulse.end(StreamState.FAILED)
    same = {"offset_ms": -3, "error_ms": 2, "samples": 5, "reference": "brokers"}
    at = [{"host": host, "estimated_at": utc(NOON + n), **same} for n, host in enumerate(("h", "i", "h"))]
    assert rows(tmp_path, "state", "clock_offsets") == [("starting", None), ("failed", at)]
    assert pulse.clock_offsets.taken() == []


def test_a_driver_reports_its_start_and_end(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    pulse = Pulse(control, history(tmp_path), control.acquire(), "l")
    pulse.end(StreamState.FAILED, reason="ValueError: no")
    assert rows(tmp_path, "state", "reason") == [("starting", None), ("failed", "ValueError: no")]


def test_a_driver_reports_adoption_and_the_kill_before_it(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    epoch = control.acquire()
    control.adopt("l", by="run 1 try 1")
    pulse = Pulse(control, history(tmp_path), epoch, "l", launched_by="run 1 try 1")
    control.adopt("l", by="run 2 try 1")
    pulse.end(StreamState.FAILED)
    # Another driver was killed meanwhile, and then this one.
    for launch in ("other", "l"):
        control.kill_for(launch, "", by="run 2 try 1: stuck")
        pulse = Pulse(control, history(tmp_path), control.acquire(), "m")
        pulse.end(StreamState.FAILED)
        control.beat(Heartbeat(state=StreamState.FAILED, epoch=control.epoch(), launch_id="l", at_ms=1, pid=1))
    assert rows(tmp_path, "adopted_by", "predecessor_killed_by") == [
        (None, None), ("run 2 try 1", None),
        *[(None, None)] * 2,
        *[(None, "run 2 try 1: stuck")] * 2,
    ]  # fmt: skip
    assert control.killed_for("l") is None


def test_a_pause_of_the_process_is_a_gap_of_its_pulse(tmp_path: Path) -> None:
    """The process is stopped, as by a debugger or a host that is suspended, and no code of it runs meanwhile."""
    script = (
        "import sys, time; from pathlib import Path; from tidemark.control.folder import Control, StreamState\n"
        "from tidemark.stream.driver.heartbeats import Heartbeats; from tidemark.stream.pulse import Pulse\n"
        "control = Control(Path(sys.argv[1]) / 'control')\n"
        "told = Heartbeats(Path(sys.argv[1]), topology='flights', sub_topology='status')\n"
        "pulse = Pulse(control, told, control.acquire(), 'l'); print('beats', flush=True); sys.stdin.readline()\n"
        "pulse.end(StreamState.DRAINED)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with driver:
        assert driver.stdin
        assert driver.stdout
        assert driver.stdout.readline() == "beats\n"
        driver.send_signal(signal.SIGSTOP)
        # The system says so when the last thread stands.
        _, status = os.waitpid(driver.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        began_ms = boot_clock_ms()
        wait_until(lambda: boot_clock_ms() - began_ms >= 2_500, "the pause", 30)
        paused_ms = boot_clock_ms() - began_ms
        driver.send_signal(signal.SIGCONT)
        driver.communicate("end\n")
    _, (told_ms, (gap, *_)) = rows(tmp_path, "pulse_boot_ms", "gaps")
    # The gap begins with the last beat of the pulse, which may be the one just before the first row was written.
    assert gap["began_ms"] <= began_ms
    assert gap["ended_ms"] - gap["began_ms"] >= paused_ms
    assert gap["ended_ms"] <= told_ms
    assert gap["cpu_ms"] < 1_000


def test_a_driver_that_was_killed_has_told_its_last_second(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    told = TimeTold(500, 9_500, (Gap(1_000, 3_000, 10),), (Segment("operator", "status", 4, 3_000, 9_500),))
    for state, is_row in ((StreamState.RUNNING, False), (StreamState.RUNNING, True), (StreamState.DRAINED, False)):
        control.beat(replace(BEAT, epoch=7, state=state, told=told, is_row=is_row))
        Pulse(control, history(tmp_path), control.acquire(), "l").end(StreamState.DRAINED)
    of_dead = [
        row
        for row in rows(tmp_path, "epoch", "pulse_from_boot_ms", "pulse_boot_ms", "gaps", "segments")
        if row[1] == 500
    ]
    # The second one had become a row already, and the third one ended as it should.
    assert of_dead == [(7, 500, 9_500, [told.gaps[0]._asdict()], [told.segments[0]._asdict()])]


def test_a_wait_for_brokers_is_no_slow_step(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    pulse = Pulse(control, history(tmp_path), control.acquire(), "l")
    engine = SimpleNamespace(reached=(-1, {}), batch_started_at_ms=None, load={})
    pulse.follow(engine, [SimpleNamespace(trouble="waits for Kafka")], "thread")
    pulse.begin(7)
    begun_ms = wall_clock_ms()
    while (beat := control.heartbeat()) is None or beat.reason is None:
        assert wall_clock_ms() - begun_ms < 30_000
    pulse.end(StreamState.FAILED)
    # The step begins anew, so that its age is not that of an outage.
    assert beat.since_ms is not None
    assert (beat.doing, beat.since_ms > begun_ms) == ("batch 7", True)


def test_a_heartbeat_has_memory_and_cpu_of_the_driver(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    pulse = Pulse(control, history(tmp_path), control.acquire(), "l")
    pulse.end(StreamState.DRAINED)
    columns = ("cpu_share", "memory_bytes", "memory_free_bytes", "checkpoint_bytes", "records_waiting")
    (_, _, free, _, _), (cpu, memory, _, checkpoint, waiting) = rows(tmp_path, *columns)
    assert free > 0
    assert memory > 10 * 2**20
    assert cpu >= 0
    assert (checkpoint, waiting) == (0, None)


def test_streams_of_a_process_share_a_measurement() -> None:
    first, second = (usage_of(os.getpid()) for _ in range(2))
    first.now()
    of_first = first.now()
    assert (second.now() is of_first, of_first["cpu_share"] is not None) == (True, True)


def test_an_engine_reports_its_backlog(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    play.broker = Ends(1)
    play.broker.ends = {0: 9}
    play.write_ms = 1_000
    play.batch([play.row("events", NOON, id="a", v=1), play.row("events", NOON, id="b", v=1)], at_ms=NOON)
    load = play._engines[play.sub].load
    assert (load["records_waiting"], load["last_batch_ms"] >= 3_000) == (7, True)
    assert load["state_bytes"] > 0


def test_an_engine_reports_when_it_will_have_caught_up(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    play.broker = Ends(1)

    def load_after(second: int, end: int) -> tuple[object, ...]:
        """Reads 100 records of a topic that ends at *end*."""
        play.broker.ends = {0: end}
        records = [play.row("events", NOON, id=str(number), v=second) for number in range(100)]
        play.batch(records, at_ms=NOON + second * 1_000)
        load = play._engines[play.sub].load
        return tuple(load[name] for name in ("records_behind", "arrival_per_s", "working_per_s", "eta_at"))

    assert load_after(0, 1_000) == (900, None, None, None)
    # In 10 s 100 were read and 50 came: 850 / 5 s⁻¹ = 170 s.
    assert load_after(10, 1_050) == (850, 5.0, 10.0, NOON + 180_000)
    # In 20 s 200 were read and 200 came: it is as far behind as at the beginning.
    assert load_after(20, 1_200) == (900, 10.0, 10.0, None)
    assert load_after(30, 400) == (0, None, None, None)


def test_the_backlog_of_a_hop_is_unknown(tmp_path: Path) -> None:
    hop = operators(by_v=repartition(key=["v"], columns=["id"]))
    far = operators(all=sink("by_v", table="all_of_it", sub_topology="far"))
    play = Play(EVENTS + hop + far, tmp_path)
    play.batch([play.row("events", NOON, id="a", v=1)], at_ms=NOON, sub="events")
    play.hop("far", at_ms=NOON)
    assert [play._engines[sub].load["records_waiting"] for sub in ("events", "far")] == [0, None]


def test_the_newest_beat_of_each_driver_is_its_load(tmp_path: Path) -> None:
    told = history(Layout(tmp_path).stream("flights", "status"))
    for second, free in ((0, 100), (15, 300)):
        beat = replace(BEAT, at_ms=NOON + second * 1_000)
        told.write_if_due(
            beat,
            thread_id=None,
            batch_started_at_ms=None,
            usage=lambda free=free: {"memory_bytes": 100, "memory_free_bytes": free},
        )
    text = "select sub_topology, memory_bytes, memory_free_bytes, memory_share, records_waiting from driver_load"
    assert Warehouse(tmp_path).ask(text).rows == (("status", 100, 300, 0.25, None),)


def test_each_driver_has_its_launch_and_its_end(tmp_path: Path) -> None:
    told = history(Layout(tmp_path).stream("flights", "status"))
    day_ms = 86_400_000
    drivers = [
        # epoch, first and last beat in seconds after noon, state at the end, and why
        (1, 0, 600, StreamState.DRAINED, {"drained_by": "ann"}),
        (2, 1_200, 1_800, StreamState.RUNNING, {"adopted_by": "streams run 2"}),
        (
            3,
            1_860,
            1_875,
            StreamState.FAILED,
            {"reason": "Unsound: no", "predecessor_killed_by": "streams run 2: stuck"},
        ),
        (4, day_ms // 1_000, day_ms // 1_000 + 30, StreamState.RUNNING, {"launched_by": "tidemark run by ann"}),
    ]
    for epoch, first_s, last_s, state, why in drivers:
        for second in range(first_s, last_s + 1, 15):
            is_last = second == last_s
            beat = replace(
                BEAT, epoch=epoch, at_ms=NOON + second * 1_000, host="h", digest="f", **(why if is_last else {})
            )
            beat = replace(beat, state=state if is_last else StreamState.RUNNING)
            told.write_if_due(beat, thread_id=None, batch_started_at_ms=None)
    columns = "epoch, ended, drained_by, reason, file_digest, host, adopted_by, killed_by"
    text = f"select {columns} from stream_uptime order by epoch"
    assert Warehouse(tmp_path).ask(text).rows == (
        (1, "drained", "ann", None, "f", "h", None, None),
        (2, "killed", None, None, "f", "h", "streams run 2", "streams run 2: stuck"),
        (3, "failed", None, "Unsound: no", "f", "h", None, None),
        (4, "running", None, None, "f", "h", None, None),
    )
    text = "select ended, cause, restarts, down_ms from restarts_by_cause order by ended"
    assert Warehouse(tmp_path).ask(text).rows == (
        ("drained", "ann", 1, 600_000),
        ("failed", "Unsound", 1, (day_ms // 1_000 - 1_875) * 1_000),
        ("killed", "stuck", 1, 60_000),
    )
    text = "select up_ms, available_share, drains, rotations, failures, kills from availability_by_day order by day"
    first, second = Warehouse(tmp_path).ask(text).rows
    # NOON is 16:53:20, 25,600 s before midnight. Up: 600 s, 600 s and the minute before the next driver, and 15 s.
    assert first == (1_275_000, pytest.approx(1_275 / 25_600), 1, 0, 1, 1)
    # On the next day the driver begins 60,800 s after midnight, and is up for 30 s.
    assert second == (30_000, pytest.approx(30 / 60_830), 0, 0, 0, 0)


def test_restarts_of_one_cause_are_one_row(tmp_path: Path) -> None:
    told = history(Layout(tmp_path).stream("flights", "status"))
    lost = "DataLost: topic 'events', partition {0}: offsets {0} until 9 were lost unread"
    ends = [
        (StreamState.FAILED, {"reason": lost.format(4)}),
        (StreamState.FAILED, {"reason": lost.format(7)}),
        (StreamState.RUNNING, {}),
        (StreamState.RUNNING, {"predecessor_killed_by": "streams manual__2026-01-01T00:00:00+00:00 try 1: stale"}),
        (StreamState.RUNNING, {"predecessor_killed_by": "streams manual__2026-01-02T00:00:00+00:00 try 3: stale"}),
    ]
    for epoch, (state, why) in enumerate(ends, start=1):
        beat = replace(BEAT, epoch=epoch, at_ms=NOON + epoch * 15_000, state=state, **why)
        told.write_if_due(beat, thread_id=None, batch_started_at_ms=None)
    text = "select ended, cause, restarts, down_ms from restarts_by_cause order by ended"
    # The last driver runs.
    assert Warehouse(tmp_path).ask(text).rows == (("failed", "DataLost", 2, 30_000), ("killed", "stale", 2, 30_000))


def test_no_share_of_a_day_is_above_one(tmp_path: Path) -> None:
    told = history(Layout(tmp_path).stream("flights", "status"))
    # NOON is 25,600 s before midnight. The first beat is 10 s before it, and counts until the next, 5 s after it.
    for second in (25_590, 25_605):
        beat = replace(BEAT, state=StreamState.RUNNING, at_ms=NOON + second * 1_000)
        told.write_if_due(beat, thread_id=None, batch_started_at_ms=None)
    text = "select up_ms, available_share from availability_by_day order by day"
    assert Warehouse(tmp_path).ask(text).rows == ((15_000, 1.0), (0, 0.0))
