"""Airflow launches, adopts, drains and restarts drivers, here stand-ins.

A stand-in uses the control protocol.
"""

import asyncio
import json
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from support.topologies import orders_in_files
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.folder import AcceptedLoss, Control, StreamState, digest
from tidemark.errors import InvalidArgument
from tidemark.model.topology import load
from tidemark.semantics.liveness import RightToKill
from tidemark_airflow.operators.driver import BY_CHANGE, NAME, Driver, DriverVerdict
from tidemark_airflow.operators.orphans import are_incomplete
from tidemark_airflow.operators.stream import BY_USER, StreamOperator, StreamTrigger, Supervision, kind, slow_arguments

HERE = Path(__file__).parent
FLIGHTS = HERE.parents[1] / "jobs" / "topologies" / "flights.toml"
RIGHT_TO_KILL = RightToKill(silent_s=1.0, starting_s=5.0, working_s=2.0, draining_s=1.0)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    folders = [str(HERE / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    control = tmp_path / "control" / "flights"
    found = Driver(control / "status", RIGHT_TO_KILL, shared=control / ".driver")
    yield found
    process.stop(found.process_home, NAME, grace_s=0)


def operator(driver: Driver, **changes: Any) -> StreamOperator:
    arguments = {
        "topology_file": FLIGHTS,
        "sub_topology": "status",
        "warehouse": str(driver.home.parents[2]),
        "bootstrap": "127.0.0.1:1",
        "application": str(HERE / "stand_in.py"),
        "supervision": Supervision(poll_s=0.05, first_look_s=0.05, restarts=1, right_to_kill=RIGHT_TO_KILL),
    }
    return StreamOperator(task_id="status", **{**arguments, **changes})


def behave(driver: Driver, how: str) -> None:
    driver.home.mkdir(parents=True, exist_ok=True)
    (driver.home / "behaviour").write_text(how)


def deferred(call: Callable[..., None], *args: Any, **kwargs: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as raised:
        call({}, *args, **kwargs)
    return raised.value


def event(trigger: StreamTrigger) -> dict[str, str]:
    async def first() -> dict[str, str]:
        async for fired in trigger.run():
            return fired.payload
        raise AssertionError

    return asyncio.run(asyncio.wait_for(first(), 10))


def running(driver: Driver) -> int:
    """Waits for the newest launch's heartbeat and returns its pid."""

    def beats() -> bool:
        beat, launch = driver.control.heartbeat(), driver.launch()
        return bool(beat and launch and beat.launch_id == launch.launch_id and beat.state is StreamState.RUNNING)

    process.wait_until(beats, "a running driver", 10)
    beat = driver.control.heartbeat()
    assert beat is not None
    return beat.pid


def test_a_launched_stream_runs_until_a_drain_and_succeeds(driver: Driver) -> None:
    waiting = deferred(operator(driver).execute)
    running(driver)
    assert driver.verdict(now_ms=wall_clock_ms()) is DriverVerdict.ALIVE
    driver.control.request_drain(by="tidemark down", now_ms=wall_clock_ms())
    assert event(waiting.trigger) == {"verdict": "drained"}
    operator(driver).resume({}, {"verdict": "drained"})
    assert not driver.control.is_held()


def test_a_job_of_a_teams_own_is_drained_like_a_stream(driver: Driver, tmp_path: Path) -> None:
    job = tmp_path / "status.py"
    code = f"from tidemark.control.folder import Control; from pathlib import Path; home = Path({str(driver.home)!r})"
    job.write_text(f"{code}\nimport sys, time\n(home / 'seen').write_text(sys.argv[1])\n"
                   "while not Control(home).drain_requested(): time.sleep(0.1)")  # fmt: skip
    of_team = {"topology_file": None, "sub_topology": "", "topology": "flights", "application": str(job)}
    right_to_kill = RightToKill(starting_s=120.0, draining_s=60.0)
    supervision = Supervision(poll_s=0.05, first_look_s=0.05, restarts=1, right_to_kill=right_to_kill)
    given = {"application_args": ["--day=7"], "consumer_groups": "acme", "observe": ["at"]}
    task = operator(driver, **of_team, **given, supervision=supervision)
    alone = Driver(driver.home, right_to_kill)
    try:
        waiting = deferred(task.execute)
        process.wait_until((driver.home / "seen").exists, "the job", 120)
        assert (driver.home / "seen").read_text() == "--day=7"
        assert waiting.trigger.serialize()[1]["shared"] is None
        launched = json.loads((driver.home / "job.json").read_text())
        assert (launched["consumer_groups"], launched["observe"]) == ("acme", ["at"])
        alone.control.request_drain(by="tidemark down", now_ms=wall_clock_ms())
        process.wait_until(lambda: not alone.control.is_held(), "its end", 120)
        assert event(waiting.trigger) == {"verdict": "drained"}
        task.resume({}, {"verdict": "drained"})
    finally:
        process.stop(alone.process_home, NAME, grace_s=0)


@pytest.mark.parametrize("named", [{}, {"topology_file": FLIGHTS}])
def test_an_operator_needs_a_stream_or_a_job(driver: Driver, named: dict[str, Path]) -> None:
    with pytest.raises(InvalidArgument, match="name a topology_file and its sub_topology, or the application"):
        StreamOperator(task_id="status", warehouse=str(driver.home), **named)


def test_a_job_needs_a_list_of_arguments_and_its_file(driver: Driver) -> None:
    named = {"task_id": "status", "warehouse": str(driver.home), "application": "gone.py"}
    with pytest.raises(InvalidArgument, match="application_args must be a list of arguments, got '--day 1'"):
        StreamOperator(**named, application_args="--day 1")
    with pytest.raises(InvalidArgument, match=r"observe must be a list of columns, got 'at'; write \['at'\]"):
        StreamOperator(**named, observe="at")
    with pytest.raises(InvalidArgument, match=r"application: gone\.py is not a file on this host"):
        operator(driver, topology_file=None, sub_topology="", topology="flights", application="gone.py").execute({})


@pytest.mark.parametrize("named", [{"topology": "../shop"}, {"sub_topology": "a/b"}])
def test_the_names_of_a_job_lead_to_no_other_folder(driver: Driver, named: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="a name must consist of letters"):
        StreamOperator(task_id="status", warehouse=str(driver.home), application="job.py", **named)


def test_spark_writes_its_files_below_the_control_folder(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    deferred(operator(driver).execute)
    variables = Path(f"/proc/{running(driver)}/environ").read_bytes().split(b"\0")
    (folder,) = (Path(value[17:].decode()) for value in variables if value.startswith(b"SPARK_LOCAL_DIRS="))
    assert folder == driver.process_home / "spark"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_processing_time_has_a_control_folder_of_its_own(driver: Driver) -> None:
    control = driver.home.parents[1] / "flights_on_processing_time"
    separate = Driver(control / "status", RIGHT_TO_KILL, shared=control / ".driver")
    waiting = deferred(operator(driver, time="processing").execute)
    try:
        running(separate)
        assert driver.launch() is None
        separate.control.request_drain(by="tidemark down", now_ms=wall_clock_ms())
        assert event(waiting.trigger) == {"verdict": "drained"}
        operator(driver, time="processing").resume({}, {"verdict": "drained"})
    finally:
        process.stop(separate.process_home, NAME, grace_s=0)


def test_a_rotated_driver_is_followed_by_the_next_one(driver: Driver) -> None:
    behave(driver, "rotate")
    fired = event(deferred(operator(driver, rotate_after=100).execute).trigger)
    assert fired == {"verdict": "rotated"}
    deferred(operator(driver, rotate_after=100).resume, fired)
    assert driver.failures() is None
    running(driver)
    assert driver.home.joinpath("epoch").read_text() == "2"


def test_a_drain_requested_between_two_drivers_is_kept(driver: Driver) -> None:
    behave(driver, "rotate")
    fired = event(deferred(operator(driver, rotate_after=100).execute).trigger)
    driver.control.request_drain(by="tidemark down", now_ms=wall_clock_ms())
    operator(driver, rotate_after=100).resume({}, fired)
    assert driver.home.joinpath("epoch").read_text() == "1"


def test_a_trigger_survives_the_trip_through_the_database(driver: Driver) -> None:
    path, kwargs = deferred(operator(driver).execute).trigger.serialize()
    assert import_string(path)(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)


def test_a_trigger_waits_once_before_it_fires(driver: Driver) -> None:
    looks = {"poll_s": 60.0, "first_look_s": 0.4}
    trigger = StreamTrigger(home=str(driver.home), launch_id="none", **looks, right_to_kill=asdict(RIGHT_TO_KILL))
    began = time.monotonic()
    assert event(trigger) == {"verdict": "dead"}
    assert time.monotonic() - began >= 0.4


def test_a_trigger_waits_for_a_control_folder_beyond_reach(driver: Driver) -> None:
    trigger = deferred(operator(driver).execute).trigger
    pid = running(driver)
    # A link to itself cannot be read, which is an OSError, as is a store that does not answer.
    file = driver.home / "launch.json"
    known = file.read_bytes()
    file.unlink()
    file.symlink_to(file)

    async def answers() -> dict[str, str]:
        looks = trigger.run()
        waiting = asyncio.ensure_future(anext(looks))
        ended, _ = await asyncio.wait({waiting}, timeout=0.5)  # ten looks
        assert not ended
        file.unlink()
        file.write_bytes(known)
        os.kill(pid, signal.SIGKILL)
        fired = await asyncio.wait_for(waiting, 10)
        return fired.payload

    assert asyncio.run(answers()) == {"verdict": "dead"}


def test_a_living_driver_is_adopted_and_not_doubled(driver: Driver) -> None:
    deferred(operator(driver).execute)
    pid = running(driver)
    with pytest.raises(TaskDeferred):
        tried(operator(driver), 1)
    assert running(driver) == pid
    assert driver.control.home.joinpath("epoch").read_text() == "1"
    launch = driver.launch()
    assert launch is not None
    assert driver.control.adopted_by(launch.launch_id) == "streams first try 1"


def test_a_driver_started_by_hand_is_adopted(driver: Driver) -> None:
    deferred(operator(driver).execute)
    pid = running(driver)
    (driver.home / "launch.json").unlink()
    (driver.process_home / "driver.pid.json").rename(driver.home / "hidden")
    adopted = deferred(operator(driver).execute).trigger
    assert running(driver) == pid
    driver.control.request_drain(by="hand", now_ms=wall_clock_ms())
    assert event(adopted) == {"verdict": "drained"}


def test_a_driver_that_drains_during_a_look_is_drained(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    deferred(operator(driver).execute)
    running(driver)

    def drains_meanwhile(self: Control, **known: int | None) -> bool:
        self.request_drain(by="hand", now_ms=wall_clock_ms())
        process.wait_until(lambda: not is_held(self, **known), "the end", 10)
        return False

    is_held = Control.is_held
    monkeypatch.setattr(Control, "is_held", drains_meanwhile)
    assert driver.verdict(now_ms=wall_clock_ms()) is DriverVerdict.DRAINED


def test_two_launches_at_once_make_one_driver(driver: Driver) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: deferred(operator(driver).execute), range(4)))
    running(driver)
    assert driver.home.joinpath("epoch").read_text() == "1"


def test_a_killed_driver_is_relaunched_so_often_in_a_row(driver: Driver) -> None:
    waiting = deferred(operator(driver).execute)
    first = running(driver)
    os.kill(first, signal.SIGKILL)
    fired = event(waiting.trigger)
    assert fired == {"verdict": "dead"}
    again = deferred(operator(driver).resume, fired)
    assert counted(driver) == ("status is dead: it was doing: batch #", 1)
    second = running(driver)
    assert second != first
    os.kill(second, signal.SIGKILL)
    with pytest.raises(
        AirflowException, match="fails 2 times in a row in the same way is not launched again: status is"
    ):
        operator(driver).resume({}, event(again.trigger))


def test_a_driver_that_fails_twice_in_one_way_shows_its_log(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    behave(driver, "fail")
    waiting = deferred(operator(driver).execute)
    again = deferred(operator(driver).resume, event(waiting.trigger))
    capsys.readouterr()
    with pytest.raises(AirflowFailException, match="no topic flight_events, asked 2 times"):
        operator(driver).resume({}, event(again.trigger))
    # Two drivers have appended a line each to the log.
    where = f"the whole log of the driver is {driver.process_home / 'driver.log'} on {platform.node()}"
    assert f"asked 2 times; {where}; its last lines:\nthe topic is gone\nthe topic is gone" in capsys.readouterr().out


def test_a_stream_goes_on_or_ends_as_a_person_answers(driver: Driver) -> None:
    behave(driver, "lose accept-loss flights status --source weather --partition 0 --until 9")
    fired = event(deferred(operator(driver).execute).trigger)
    # Without a DAG that asks it fails at once, as with an answer that is no approval.
    with pytest.raises(AirflowFailException, match="fails permanently is not launched again"):
        operator(driver).resume({}, fired)
    with pytest.raises(AirflowFailException, match="the answer is rejected: status is failed: DataLost"):
        operator(driver).answered({}, {"answer": "rejected"})
    loss = AcceptedLoss(source="weather", partition=0, from_offset=4, until_offset=9, by="ann", reason="gone", at_ms=0)
    driver.control.accept_loss(loss)
    deferred(operator(driver).answered, {"answer": "gone"})
    assert driver.failures() is None
    running(driver)
    driver.control.request_drain(by="tidemark down", now_ms=wall_clock_ms())
    operator(driver).answered({}, {"answer": "drained"})


def test_another_failure_is_counted_anew(driver: Driver) -> None:
    waiting = deferred(operator(driver).execute)
    os.kill(running(driver), signal.SIGKILL)
    behave(driver, "fail")
    again = deferred(operator(driver).resume, event(waiting.trigger))
    deferred(operator(driver).resume, event(again.trigger))
    assert counted(driver) == ("status is failed: no topic flight_events, asked # times", 1)


def test_failures_between_which_the_stream_gets_on_do_not_add_up(driver: Driver) -> None:
    behave(driver, "fail later")
    again = deferred(operator(driver).execute)
    for _ in range(3):
        again = deferred(operator(driver).resume, event(again.trigger))
        assert counted(driver)[1] == 1


def test_a_failure_is_counted_once_even_after_a_lost_try(driver: Driver) -> None:
    behave(driver, "fail")
    fired = event(deferred(operator(driver).execute).trigger)
    with pytest.raises(TaskDeferred) as again:
        tried(operator(driver), 2)
    assert event(again.value.trigger) == fired == {"verdict": "failed"}
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="2 times in a row"):
            operator(driver).resume({}, fired)
    with pytest.raises(TaskDeferred) as cleared:
        tried(operator(driver), 3)
    assert event(cleared.value.trigger) == fired
    deferred(operator(driver).resume, fired)
    assert counted(driver)[1] == 1


def test_a_stream_cleared_or_in_progress_ends_a_row_of_failures(driver: Driver) -> None:
    behave(driver, "fail")
    again = deferred(operator(driver).resume, event(deferred(operator(driver).execute).trigger))
    assert counted(driver)[1] == 1
    event(again.trigger)
    driver.control.request_drain(by=BY_USER, now_ms=wall_clock_ms())
    with pytest.raises(TaskDeferred) as cleared:
        tried(operator(driver), 2)
    assert driver.failures() is None
    failed = event(cleared.value.trigger)
    behave(driver, "")
    again = deferred(operator(driver).resume, failed)
    assert counted(driver)[1] == 1
    running(driver)
    driver.control.request_drain(by=BY_CHANGE, now_ms=wall_clock_ms())
    deferred(operator(driver).resume, event(again.trigger))
    assert driver.failures() is None


def counted(driver: Driver) -> tuple[str, int]:
    failures = driver.failures()
    assert failures is not None
    return failures.kind, failures.n


def test_failures_of_one_kind_differ_in_numbers_and_ids() -> None:
    one = "status is failed: Boom: offset 17 of run 3f2a9c in batch 8\nand more of that"
    assert kind(one) == kind("status is failed: Boom: offset 9 of run 77ab01 in batch 9")
    assert kind(one) == "status is failed: Boom: offset # of run # in batch #"
    assert kind(one) != kind("status is failed: Bang: offset 17 of run 3f2a9c in batch 8")


@pytest.mark.parametrize(("behaviour", "verdict"), [("hang", "stale"), ("stuck", "stuck")])
def test_a_silent_or_stuck_driver_is_replaced(driver: Driver, behaviour: str, verdict: str) -> None:
    behave(driver, behaviour)
    waiting = deferred(operator(driver).execute)
    first = running(driver)
    fired = event(waiting.trigger)
    assert fired == {"verdict": verdict}
    behave(driver, "")
    deferred(operator(driver).resume, fired)
    assert counted(driver) == (f"status is {verdict}: it was doing: batch #", 1)
    assert running(driver) != first


def test_a_stopped_process_is_stale_and_gives_way_to_a_new_one(driver: Driver) -> None:
    waiting = deferred(operator(driver).execute)
    os.kill(first := running(driver), signal.SIGSTOP)
    assert event(waiting.trigger) == {"verdict": "stale"}
    launch = driver.launch()
    context = {"ti": SimpleNamespace(dag_id="streams", run_id="first", try_number=1)}
    with pytest.raises(TaskDeferred):
        operator(driver).resume(context, {"verdict": "stale"})
    assert running(driver) != first
    assert launch is not None
    assert driver.control.killed_by(launch.launch_id) == "streams first try 1: stale"


def test_a_driver_that_wakes_up_before_anybody_acts_is_adopted(driver: Driver) -> None:
    waiting = deferred(operator(driver).execute)
    os.kill(first := running(driver), signal.SIGSTOP)
    fired = event(waiting.trigger)
    os.kill(first, signal.SIGCONT)
    process.wait_until(lambda: driver.verdict(now_ms=wall_clock_ms()) is DriverVerdict.ALIVE, "a beat", 5)
    deferred(operator(driver).resume, fired)
    assert running(driver) == first


def test_a_driver_of_an_older_file_is_drained_and_replaced(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "flights.toml"
    shutil.copy(FLIGHTS, file)
    waiting = deferred(operator(driver, topology_file=file).execute)
    first = running(driver)
    deferred(operator(driver, topology_file=file).execute)
    assert running(driver) == first
    with file.open("a") as changed:
        changed.write("# changed\n")
    deferred(operator(driver, topology_file=file).execute)
    assert running(driver) != first
    beat = driver.control.heartbeat()
    assert beat is not None
    assert (beat.digest, beat.epoch) == (digest(file), 2)
    assert driver.drained_by() is None
    assert waiting.trigger._verdict() is DriverVerdict.ALIVE


def test_a_task_killed_while_launching_leaves_no_driver(driver: Driver) -> None:
    task = operator(driver)
    deferred(task.execute)
    running(driver)
    task.on_kill()
    assert not driver.control.is_held()


@pytest.mark.parametrize("behaviour", ["", "ignore drain", "hang"])
def test_clearing_or_marking_the_task_leaves_no_driver(driver: Driver, behaviour: str) -> None:
    behave(driver, behaviour)
    waiting = deferred(operator(driver).execute)
    running(driver)
    asyncio.run(waiting.trigger.on_kill())
    assert not driver.control.is_held()
    assert process.find(driver.process_home, NAME) is None
    assert driver.drained_by() == BY_USER


def test_a_trigger_leaves_a_younger_driver_alone(driver: Driver) -> None:
    old = deferred(operator(driver).execute).trigger
    running(driver)
    asyncio.run(old.on_kill())
    deferred(operator(driver).execute)
    pid = running(driver)
    asyncio.run(old.on_kill())
    assert driver.control.is_held()
    assert running(driver) == pid


def test_a_driver_drained_for_an_older_try_is_launched_again(driver: Driver) -> None:
    older = deferred(operator(driver).execute).trigger
    running(driver)
    newer = deferred(operator(driver).execute).trigger
    asyncio.run(older.on_kill())
    assert event(newer) == {"verdict": "drained"}
    deferred(operator(driver).resume, {"verdict": "drained"})
    assert driver.failures() is None
    running(driver)


def tried(operator: StreamOperator, number: int, *, cleared_after: int = 0) -> None:
    """Runs *operator* as try *number*, cleared after *cleared_after* tries."""
    of_run = {"dag_id": "streams", "run_id": "first"}
    max_tries = cleared_after + (operator.retries or 0)
    operator.execute({"ti": SimpleNamespace(**of_run, try_number=number, max_tries=max_tries)})


def test_a_try_after_a_lost_one_heeds_a_drain_and_a_clear(
    driver: Driver,
) -> None:
    deferred(operator(driver).execute)
    running(driver)
    driver.control.request_drain(by="ann", now_ms=wall_clock_ms())
    tried(operator(driver), 2)
    assert not driver.control.is_held()
    with pytest.raises(TaskDeferred):
        tried(operator(driver), 3)
    running(driver)


def test_a_cleared_task_gets_a_new_driver_without_a_triggerer(driver: Driver) -> None:
    with pytest.raises(TaskDeferred):
        tried(operator(driver, retries=5), 1)
    pid = running(driver)
    with pytest.raises(TaskDeferred):
        tried(operator(driver, retries=5), 2)
    assert running(driver) == pid
    with pytest.raises(TaskDeferred):
        tried(operator(driver, retries=5), 3, cleared_after=2)
    assert running(driver) != pid


def test_a_first_try_starts_a_stream_that_somebody_had_drained(driver: Driver) -> None:
    driver.control.request_drain(by="ann", now_ms=wall_clock_ms())
    with pytest.raises(TaskDeferred):
        tried(operator(driver), 1)
    running(driver)


def test_a_draining_driver_is_waited_for_and_not_adopted(driver: Driver) -> None:
    behave(driver, "ignore drain")
    deferred(operator(driver).execute)
    first = running(driver)
    driver.control.request_drain(by="somebody", now_ms=wall_clock_ms())
    behave(driver, "")
    began = time.monotonic()
    deferred(operator(driver).execute)
    assert running(driver) != first
    assert time.monotonic() - began >= RIGHT_TO_KILL.draining_s


def test_an_unknown_connection_is_refused_and_nothing_submitted(driver: Driver) -> None:
    with pytest.raises(AirflowException, match="no_such_cluster"):
        operator(driver, conn_id="no_such_cluster").execute({})
    assert driver.launch() is None


def test_an_unknown_store_is_refused_and_no_such_folder_made(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="got 'ftp://bucket/warehouse'"):
        operator(driver, warehouse="ftp://bucket/warehouse").execute({})
    assert not [*tmp_path.iterdir()]


def test_a_driver_inherits_nothing_of_airflow(driver: Driver) -> None:
    deferred(operator(driver).execute)
    running(driver)
    seen = json.loads((driver.home / "seen.json").read_text())["env"]
    assert [name for name in seen if "AIRFLOW" in name] == []
    assert process.without_airflow({"AIRFLOW_CONN_DB": "secret", "_AIRFLOW_X": "1", "PATH": "/bin"}) == {"PATH": "/bin"}


def test_slow_goes_to_the_sub_topology_of_its_operator() -> None:
    flights = load(FLIGHTS)
    slow = ["carrier_state=400", "flight_status=5"]
    assert slow_arguments(slow, flights, "carriers") == ["--slow", "carrier_state=400"]
    assert slow_arguments(slow, flights, "status") == ["--slow", "flight_status=5"]
    with pytest.raises(InvalidArgument, match="got 'typo=1'"):
        slow_arguments(["typo=1"], flights, "status")


def test_no_dag_counts_as_removed_without_valid_topologies(tmp_path: Path) -> None:
    assert are_incomplete(tmp_path / "not_mounted")
    assert are_incomplete(tmp_path)
    orders = tmp_path / "orders.toml"
    orders.write_text(orders_in_files("orders", "inbox"))
    assert not are_incomplete(tmp_path)
    (tmp_path / "broken.toml").write_text("name =")
    assert are_incomplete(tmp_path)
