"""Time of flights through a night, by engine and Delta.

The night is from the last departure of a day to the first one of the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.play import Play
from support.quiet_broker import Silence
from support.topologies import aggregate, operators, sink
from tidemark.model.kinds.source import Source

T = 1_400_000_000_000
EWR, JFK, LGA = 0, 1, 2
DEPARTURES = (Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml").read_text() + operators(
    departures=aggregate(
        "flight_events",
        key=["origin"],
        window={"tumbling": "1 min"},
        strategy="on_window_close",
        aggregates={"flights": "count(*)"},
    ),
    departures_board=sink("departures", table="departures_board"),
)


class Unread(Silence):
    """A broker with unread records in given partitions of `flight_events`."""

    def __init__(self) -> None:
        super().__init__(3)
        self.latest: dict[int, int] = {}

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        known = super().offsets(source, partitions)
        unread = self.latest if source.topic == "flight_events" else {}
        return {n: (0, max(latest, unread.get(n, 0))) for n, (_, latest) in known.items()}


def play(home: Path) -> Play:
    played = Play(DEPARTURES, home, partitions=3)
    played.broker = Unread()
    return played


def flight(night: Play, second: float, airport: int, flight: str = "UA1", **fields: Any) -> dict[str, Any]:
    origin = ("EWR", "JFK", "LGA")[airport]
    known = {"flight": flight, "carrier": "UA", "origin": origin, "dest": "SFO", "status": "departed"}
    return night.row("flight_events", T + round(second * 1000), partition=airport, key=flight, **known | fields)


def boards(night: Play) -> list[tuple[str, float, int]]:
    rows = night.rows("departures_board", "status")
    return [(row["origin"], (row["window_start"] - T) / 1000, row["flights"]) for row in rows]


def watermark_s(night: Play) -> float:
    return (night.rows("batches", "status")[-1]["watermark"] - T) / 1000


def test_results_are_not_delayed_forever_in_a_quiet_night(tmp_path: Path) -> None:
    night = play(tmp_path)
    minute = -T % 60_000 / 1000  # a window starts so long after T
    evening = [
        flight(night, minute + 10 + at, airport, f"UA{at}{airport}") for at in (0, 5) for airport in (EWR, JFK, LGA)
    ]
    night.batch(evening, at_ms=T, sub="status")
    for second in (6, 8, 20, 30, 40, 80, 160, 3 * 3600):
        night.batch(at_ms=T + second * 1000, sub="status")
        if second == 40:
            assert boards(night) == [], "it is only so long after the last flight that the minute may be over"
    assert sorted(boards(night)) == [("EWR", minute, 2), ("JFK", minute, 2), ("LGA", minute, 2)]
    assert len(night.rows("batches", "status")) == 1 + 6, "each time the silence has doubled, and not every second"


def test_no_result_is_final_early_when_airports_wake_up_in_turn(tmp_path: Path) -> None:
    night = play(tmp_path)
    night.batch([flight(night, 1, airport) for airport in (EWR, JFK, LGA)], at_ms=T + 1_000, sub="status")
    morning = 8 * 3600
    night.broker.latest = {JFK: 3, LGA: 1}  # JFK has records that this batch did not get to; LGA still sleeps
    night.batch(
        [flight(night, morning, EWR), flight(night, morning + 300, EWR)], at_ms=T + (morning + 300) * 1000, sub="status"
    )
    rows = [row for row in night.rows("partition_batches", "status") if row["source"] == "flight_events"]
    partitions = {row["partition"]: row["activity"] for row in rows if row["batch_id"] == 1}
    assert (partitions[JFK], partitions[LGA]) == ("backlogged", "idle")
    assert watermark_s(night) == 1 - 3 - 0.001, "unread records of JFK hold the watermark back"
    assert boards(night) == []
    night.broker.latest = {JFK: 3, LGA: 1}
    woken = [flight(night, morning + 1, JFK, "UA7"), flight(night, morning + 301, JFK, "UA8")]
    night.batch(woken, at_ms=T + (morning + 301) * 1000, sub="status")
    night.batch(at_ms=T + (morning + 302) * 1000, sub="status")
    assert night.rows("late_records", "status") == []
    in_morning = [(origin, n) for origin, start, n in boards(night) if start > 3600]
    assert sorted(in_morning) == [("EWR", 1), ("JFK", 1)], "the minute that both were in, with the flights of both"


def test_a_partition_with_an_open_transaction_is_not_idle(tmp_path: Path) -> None:
    night = play(tmp_path)
    night.batch([flight(night, 1, airport) for airport in (EWR, JFK, LGA)], at_ms=T + 1_000, sub="status")
    night.broker.open = {JFK: 1}
    later = 3600
    night.batch([flight(night, later, EWR)], at_ms=T + later * 1000, sub="status")
    rows = [row for row in night.rows("partition_batches", "status") if row["source"] == "flight_events"]
    partitions = {row["partition"]: row["activity"] for row in rows if row["batch_id"] == 1}
    assert (partitions[JFK], partitions[LGA]) == ("backlogged", "idle")
    night.broker.open = {}
    night.batch([flight(night, 5, JFK, "UA7")], at_ms=T + (later + 1) * 1000, sub="status")
    assert night.rows("late_records", "status") == [], "the transaction held the watermark back until it ended"


def test_a_reconnected_aircraft_adds_latency_and_moves_no_time(tmp_path: Path) -> None:
    night = play(tmp_path)
    night.batch([flight(night, 100, airport) for airport in (EWR, JFK, LGA)], at_ms=T + 100_000, sub="status")
    before = watermark_s(night)
    old = flight(night, -80_000, JFK, "UA9", status="arrived")
    night.batch([flight(night, 100.5, JFK, "UA2"), old], at_ms=T + 101_000, sub="status")
    assert watermark_s(night) == before
    (late,) = night.rows("late_records", "status")
    assert (late["operator"], late["lateness_ms"]) == ("departures", round((before + 80_000) * 1000)), (
        "its minute is over"
    )
    (source,) = [
        (row["n"], row["min_ms"], row["max_ms"])
        for row in night.rows("operator_batches", "status")
        if row["batch_id"] == 1 and row["operator"] == "flight_events"
    ]
    assert source == (2, 500, 80_101_000), "it counts where it was read, and changes no other record's latency"
    (table,) = [
        (row["n"], row["max_ms"])
        for row in night.rows("operator_batches", "status")
        if row["batch_id"] == 1 and row["operator"] == "flight_status"
    ]
    assert table == (2, 80_101_000), "and a table, which closes nothing, has the aircraft"
