"""The control folder of a stream."""

from __future__ import annotations

import fcntl
import json
import os
import threading

import pytest

from tidemark.control import folder
from tidemark.control.folder import (
    AlreadyRunning,
    Control,
    Heartbeat,
    LeaseLost,
    StreamState,
    TimeReset,
)
from tidemark.semantics.liveness import SILENT_AFTER_MS


def beat(control: Control, *, epoch: int, at_ms: int) -> None:
    control.beat(Heartbeat(state=StreamState.RUNNING, epoch=epoch, launch_id="", at_ms=at_ms, pid=1))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers wait only 0.05 s for a lock; these are never released."""
    monkeypatch.setattr(folder, "PROBE_S", 0.05)


@pytest.mark.usefixtures("impatient")
def test_every_driver_gets_a_higher_epoch_and_one_at_a_time(tmp_path):
    first = Control(tmp_path)
    assert first.acquire() == 1
    with pytest.raises(AlreadyRunning, match=r"another driver of this stream holds driver\.lock"):
        Control(tmp_path).acquire()
    assert Control(tmp_path).is_held()


def test_looking_for_a_driver_does_not_keep_one_from_starting(tmp_path):
    with (tmp_path / "driver.lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        threading.Timer(0.2, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        assert Control(tmp_path).acquire() == 1


def test_a_drain_is_asked_for_once_and_can_be_withdrawn(tmp_path):
    control = Control(tmp_path)
    control.request_drain(by="ann", now_ms=1)
    control.request_drain(by="bob", now_ms=2)
    assert '"ann"' in (tmp_path / "drain.json").read_text()
    control.forget_drain()
    assert not control.drain_requested()


def test_each_request_and_another_driver_change_what_is_asked(tmp_path):
    control = Control(tmp_path)
    epoch = control.acquire()
    asked = [control.request_names(epoch)]
    assert asked == [()]
    for id_ in ("first", "second"):
        reset = TimeReset(
            id=id_, source="events", partition=0, to_ms=1, from_offset=0, by="ann", reason="clock", at_ms=2
        )
        control.request_time_reset(reset)
        asked.append(control.request_names(epoch))
    control.request_drain(by="ann", now_ms=3)
    asked.append(control.request_names(epoch))
    control.forget_drain()
    assert control.request_names(epoch) == asked[2]
    assert control.request_names(epoch - 1) == asked[3], "a driver that has lost its lease is to end, too"
    assert len({*asked}) == 4


def test_a_heartbeat_of_a_newer_version_can_be_read(tmp_path):
    control = Control(tmp_path)
    beat(control, epoch=1, at_ms=5)
    newer = {**json.loads((tmp_path / "heartbeat.json").read_text()), "mood": "good"}
    (tmp_path / "heartbeat.json").write_text(json.dumps(newer))
    read = control.heartbeat()
    assert read is not None
    assert read.at_ms == 5


@pytest.mark.usefixtures("impatient")
def test_a_driver_silent_for_a_minute_can_be_taken_over(tmp_path):
    older, newer = Control(tmp_path), Control(tmp_path)
    beat(older, epoch=older.acquire(), at_ms=5_000)
    with pytest.raises(AlreadyRunning, match="still sends heartbeats"):
        newer.acquire(take_over_at_ms=5_000 + SILENT_AFTER_MS - 1)
    older.check_lease(1)
    assert newer.acquire(take_over_at_ms=5_000 + SILENT_AFTER_MS) == 2
    newer.check_lease(2)
    with pytest.raises(LeaseLost, match="with epoch 2; this driver, with epoch 1, must not write"):
        older.check_lease(1)


@pytest.mark.usefixtures("impatient")
def test_a_new_holder_keeps_the_lock_against_the_older_driver(tmp_path):
    older, newer = Control(tmp_path), Control(tmp_path)
    beat(older, epoch=older.acquire(), at_ms=0)
    newer.acquire(take_over_at_ms=SILENT_AFTER_MS)
    assert older._lock is not None
    os.close(older._lock)
    assert newer.is_held()
    with pytest.raises(AlreadyRunning, match="drain it first"):
        Control(tmp_path).acquire()


@pytest.mark.usefixtures("impatient")
def test_a_driver_without_a_beat_is_not_taken_over_for_its_elder(tmp_path):
    first = Control(tmp_path)
    beat(first, epoch=first.acquire(), at_ms=0)
    Control(tmp_path).acquire(take_over_at_ms=SILENT_AFTER_MS)
    with pytest.raises(AlreadyRunning, match="has not sent a heartbeat yet"):
        Control(tmp_path).acquire(take_over_at_ms=SILENT_AFTER_MS)
    assert first.epoch() == 2


@pytest.mark.usefixtures("impatient")
def test_nobody_acquires_while_somebody_else_does(tmp_path):
    with (tmp_path / "acquire.lock").open("w") as acquiring:
        fcntl.flock(acquiring, fcntl.LOCK_EX)
        with pytest.raises(AlreadyRunning, match="another driver of this stream is starting"):
            Control(tmp_path).acquire()
    assert Control(tmp_path).epoch() == 0
