"""Epochs and signs of life tell whether a writer without lock lives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemark.control.folder import AlreadyRunning, Control, Heartbeat, LeaseLost, StreamState
from tidemark.control.lease import Lease, LeaseHeld
from tidemark.errors import InvalidArgument
from tidemark.semantics.liveness import SILENT_AFTER_MS
from tidemark.storage.object_path import ObjectPath

MINUTE_MS = 60_000


class Holder:
    """A lease of *home* whose clock moves only by waits and tests."""

    def __init__(self, home: Path, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.beat: tuple[int, int] | None = None
        self.beats = False
        self.lease = Lease(home, lambda: self.beat, clock=lambda: self.now_ms, sleep_s=self._wait)

    def _wait(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1_000)
        if self.beats:
            self.beat = (1, self.now_ms)


def test_every_holder_gets_a_higher_epoch_and_gives_it_back(warehouse):
    first, second = Holder(warehouse), Holder(warehouse)
    assert not first.lease.is_held(MINUTE_MS)
    assert first.lease.acquire(MINUTE_MS) == 1
    assert second.lease.is_held(MINUTE_MS)
    first.lease.release(1)
    assert not second.lease.is_held(MINUTE_MS)
    assert second.lease.acquire(MINUTE_MS) == 2
    assert second.now_ms == 0


def test_a_silent_holder_is_waited_for_until_its_time_is_over(warehouse):
    assert Holder(warehouse, now_ms=5_000).lease.acquire(MINUTE_MS) == 1
    newer = Holder(warehouse, now_ms=20_000)
    assert newer.lease.acquire(MINUTE_MS) == 2
    assert newer.now_ms == 65_000


def test_a_holder_that_beats_meanwhile_is_not_replaced(warehouse):
    Holder(warehouse).lease.acquire(MINUTE_MS)
    newer = Holder(warehouse, now_ms=1_000)
    newer.beats = True
    with pytest.raises(LeaseHeld, match="another process with this lease is still alive"):
        newer.lease.acquire(MINUTE_MS)
    assert newer.lease.epoch() == 1


def test_of_two_drivers_that_start_at_once_one_gets_the_epoch(warehouse):
    late = Holder(warehouse)
    late.lease.acquire(MINUTE_MS)
    late.lease.release(1)

    def _another_is_faster() -> int:
        Holder(warehouse).lease.acquire(MINUTE_MS)
        return 1

    late.lease.epoch = _another_is_faster  # type: ignore[method-assign]
    with pytest.raises(LeaseHeld, match="another process is taking this lease"):
        late.lease.acquire(MINUTE_MS)


def test_a_store_that_makes_an_object_twice_is_refused(warehouse, monkeypatch):
    monkeypatch.setattr(ObjectPath, "create", ObjectPath.write_bytes)
    with pytest.raises(InvalidArgument, match="this object store overwrites an object"):
        Holder(warehouse).lease.acquire(MINUTE_MS)


def test_old_epochs_are_forgotten(warehouse):
    holder = Holder(warehouse)
    for epoch in range(1, 6):
        assert holder.lease.acquire(MINUTE_MS) == epoch
        holder.lease.release(epoch)
    assert sorted(int(path.name) for path in (warehouse / "epochs").iterdir()) == [3, 4, 5]


def test_a_replaced_driver_may_not_write(warehouse):
    older, newer = Control(warehouse), Control(warehouse)
    epoch = older.acquire()
    older.beat(Heartbeat(state=StreamState.RUNNING, epoch=epoch, launch_id="", at_ms=1, pid=1))
    older.check_lease(1)
    (warehouse / "epochs" / f"{1:020d}").write_text(json.dumps({"at_ms": 1, "released": False}))
    assert newer.acquire() == 2
    newer.check_lease(2)
    with pytest.raises(
        LeaseLost, match="another driver has taken over this stream with epoch 2; this driver, with epoch 1"
    ):
        older.check_lease(1)
    older.release()
    assert newer.is_held()


def test_a_refused_write_makes_a_driver_look_at_its_lease_anew(warehouse):
    control = Control(warehouse)
    epoch = control.acquire()
    control.check_lease(epoch)
    # Another process, of whose news this one has not heard yet.
    (warehouse / "epochs" / f"{epoch + 1:020d}").write_text(json.dumps({"at_ms": 1, "released": False}))
    control.check_lease(epoch)
    with pytest.raises(LeaseLost, match="another driver has taken over this stream with epoch 2"):
        control.check_lease_anew(epoch)


def test_a_lease_that_is_held_for_some_work_is_free_afterwards(warehouse):
    with Control(warehouse).held_alone():
        assert Control(warehouse).is_held()
    assert not Control(warehouse).is_held()


def test_a_second_exclusive_holder_waits_or_fails(warehouse, monkeypatch):
    monkeypatch.setattr("tidemark.control.lease.RENEWED_EVERY_S", 0.1)
    with (
        Control(warehouse).held_alone(),
        pytest.raises(AlreadyRunning, match="is still alive, and only one process writes these tables"),
        Control(warehouse).held_alone(),
    ):
        pass
    assert SILENT_AFTER_MS == MINUTE_MS


def test_on_a_disk_holding_alone_creates_no_file(tmp_path):
    with Control(tmp_path).held_alone(), Control(tmp_path).held_alone():
        assert list(tmp_path.iterdir()) == []
