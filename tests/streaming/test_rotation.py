"""A driver ends after some batches and its successor doubles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from streaming.drivers import OnlyDriver
from streaming.sending import passing, send_numbers

from tidemark.local import broker as embedded

TOPIC = "for_two_drivers"
TOML = passing("rotating", TOPIC)


@pytest.mark.long  # a minute, for starts that other tests make
def test_a_driver_ends_after_its_batches_and_the_next_continues(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    send_numbers(broker, TOPIC, 0, 1)
    with OnlyDriver(tmp_path, TOML, broker, "--rotate-after", "2") as first:
        first.wait_for("kept", 2)
        send_numbers(broker, TOPIC, 2)
        assert first.exit() == 0
        beat = first.control.heartbeat()
        assert beat is not None
        assert (beat.state, beat.epoch) == ("rotated", 1)
    # batches 0 and 1 were run; the third was planned and is left to the next driver
    plans = sorted(int(path.name) for path in (first.control.home / "checkpoint" / "offsets").glob("[0-9]*"))
    assert plans == [0, 1, 2]
    send_numbers(broker, TOPIC, 3)
    with OnlyDriver(tmp_path, TOML, broker) as second:
        kept = second.wait_for("kept", 4)
        assert second.drain() == 0
    assert [row["n"] for row in kept] == [0, 1, 2, 3]
