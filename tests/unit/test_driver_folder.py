"""A driver that only waits looks and writes seldom."""

from __future__ import annotations

import threading
from pathlib import Path

from tidemark.control.driver_folder import DriverFolder, StartRequest

MINUTE_MS = 60_000


def test_a_waiting_minute_is_120_looks_and_six_writes(tmp_path: Path) -> None:
    now_ms, looks, written_ms, is_over = [0], [0], set(), threading.Event()

    def sleep(seconds: float) -> None:
        looks[0] += 1
        written_ms.add(DriverFolder(tmp_path).running().at_ms)
        now_ms[0] += round(seconds * 1_000)
        if now_ms[0] == MINUTE_MS:
            counted.append(looks[0])
            is_over.set()

    counted: list[int] = []
    folder = DriverFolder(tmp_path, clock=lambda: now_ms[0], sleep_s=sleep)
    folder.ask(StartRequest("launch", str(tmp_path / "control"), ()))
    assert folder.drive(lambda _: 0 if is_over.wait() else 1) == 0
    assert counted == [120]
    assert sorted(at_ms for at_ms in written_ms if at_ms < MINUTE_MS) == [0, 10_000, 20_000, 30_000, 40_000, 50_000]
