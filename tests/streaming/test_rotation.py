"""A real driver ends after so many batches, and the next one goes on: every record is there once."""

from __future__ import annotations

from pathlib import Path

from streaming.drivers import PATIENCE_S, OnlyDriver
from streaming.sending import passing, send_numbers

from tidemark.embedded import broker as embedded

TOPIC = "for_two_drivers"
TOML = passing("rotating", TOPIC)


def test_a_driver_that_has_run_its_batches_ends_and_the_next_goes_on(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    send_numbers(broker, TOPIC, 0, 1)
    with OnlyDriver(tmp_path, TOML, broker, "--rotate-after", "3") as first:
        assert first._process.wait(PATIENCE_S) == 0
        beat = first.control.heartbeat()
        assert beat is not None
        assert (beat.state, beat.epoch) == ("rotated", 1)
    # batches 0 to 2 were run; the fourth was planned and is left to the next driver
    plans = sorted(int(path.name) for path in (first.control.home / "checkpoint" / "offsets").glob("[0-9]*"))
    assert plans == [0, 1, 2, 3]
    send_numbers(broker, TOPIC, 2)
    with OnlyDriver(tmp_path, TOML, broker) as second:
        kept = second.wait_for("kept", 3)
        assert second.drain() == 0
    assert [row["n"] for row in kept] == [0, 1, 2]
