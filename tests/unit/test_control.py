"""The control folder of a stream."""

from __future__ import annotations

import fcntl
import threading

import pytest

from tidemark.control import AlreadyRunning, Control


def test_every_driver_gets_a_higher_epoch_and_one_at_a_time(tmp_path):
    first = Control(tmp_path)
    assert first.acquire() == 1
    with pytest.raises(AlreadyRunning, match=r"one driver per stream"):
        Control(tmp_path).acquire()
    assert Control(tmp_path).is_held()


def test_somebody_who_looks_for_a_driver_does_not_keep_one_from_starting(tmp_path):
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
