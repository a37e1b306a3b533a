"""What a world plays is what the engine measures, by hand.

Three records are sent to each of two partitions at 12:00:10, and arrive 200 ms later. A driver that looks each second
finds them at 11.020 s; Spark plans for 40 ms, reading takes 30 ms, each of two operators 10 ms, the journal 10 ms, and
each of two tables 20 ms: they are visible at 11.160 s.
"""

from __future__ import annotations

from pathlib import Path

from support.planted import InTransaction, Killed, Slow, Stepped, Stopped
from support.play import ms
from support.topologies import sink, source, table, topology_of
from support.world import Fault, World
from tidemark.storage.delta.tables import scan

TOML = topology_of(
    events=source("id string, amount double", sub_topology="reads"),
    newest=table(columns=["amount"]),
    board=sink("newest", table="board"),
)


def played(home: Path, until_s: float, *faults: Fault) -> World:
    world = World(TOML, home / "play").plant(*faults)
    world.run(until_s)
    return world


def batches(world: World) -> list[tuple[int, int]]:
    """Returns when the batches with records began and ended, by the driver's clock, ms after noon."""
    rows = [row for row in world.play.rows("batches") if row["records_in"]]
    return [(row["started_at"] - ms(0), row["finished_at"] - ms(0)) for row in rows]


def visible(world: World) -> list[int]:
    """Returns when batches were visible in the table `board`, true ms after noon."""
    return [at_ms - ms(0) for _, at_ms in world.drivers["reads"].visible["board"]]


def test_the_engine_measures_what_is_played(tmp_path: Path) -> None:
    world = played(tmp_path, 15)
    assert (batches(world), visible(world)) == ([(11_060, 11_160)], [11_160])
    latencies = [(task["min_ms"], task["max_ms"]) for task in world.play.tasks() if task["operator"] == "board"]
    assert latencies == [(1_160, 1_164), (1_161, 1_165)]  # partition 0 has the even times up to 10.000 s, 1 the odd
    seen = [read["latest_offset"] for reads in world.play.reads().values() for read in reads]
    assert seen == [0, 0, 3, 3]


def test_a_stopped_process_does_nothing_while_records_arrive_and_clocks_go_on(tmp_path: Path) -> None:
    world = played(tmp_path, 25, Stopped("reads", 11.05, 12_000))
    driver = world.drivers["reads"]
    # The records of 12:00:20 arrived meanwhile; the first look after the batch, at once, finds them.
    assert visible(world) == [23_160, 23_200 + 140]
    assert [look.at_ms - ms(0) for look in driver.looks if ms(11) < look.at_ms < ms(24)] == [11_020, 23_200]
    gap = [driver.host.boot_ms(ms(at_s)) for at_s in (11, 23.05)]
    assert driver.pulse_gaps(ms(0), ms(25)) == [tuple(gap)]
    # A row each 15 s.
    assert [row["beat_at"] - ms(0) for row in world.play.rows("heartbeats")] == [10_000, 25_000]


def test_a_wall_clock_steps_and_the_boot_clock_does_not(tmp_path: Path) -> None:
    world = played(tmp_path, 15, Stepped("reads", 11.1, -8_000))
    host = world.drivers["reads"].host
    assert batches(world) == [(11_060, 3_160)]
    assert visible(world) == [11_160]
    assert host.boot_ms(ms(11.2)) - host.boot_ms(ms(11)) == 200


def test_a_killed_driver_leaves_its_batch_to_the_next_one(tmp_path: Path) -> None:
    """It dies while it writes changes; the next one carries the batch out, and writes each row once."""
    world = played(tmp_path, 25, Killed("reads", 11.13, 5_000))
    driver = world.drivers["reads"]
    absent = [(each.began_ms - ms(0), each.ended_ms - ms(0)) for each in driver.life if each.owner == "absence"]
    assert absent == [(11_130, 16_130)]
    keys = scan(world.play.table("board")).select("id").collect()["id"].to_list()
    assert len(keys) == 12  # of the six keys of 12:00:10, and of 12:00:20
    assert visible(world)[0] > 16_130


def test_what_is_open_at_the_end_of_a_play_is_not_visible(tmp_path: Path) -> None:
    world = played(tmp_path, 15, Slow("operator", "newest", 60_000, 11, times=1))
    driver = world.drivers["reads"]
    assert (visible(world), driver.began_ms, driver.now_ms) == ([], ms(11.02), ms(15))
    assert (driver.life[-1].owner, driver.life[-1].detail) == ("operator", "newest")


def test_records_of_an_open_transaction_have_arrived_and_cannot_be_read(tmp_path: Path) -> None:
    world = played(tmp_path, 15, InTransaction(1, 0, until_s=13.5))
    ends = [(world.end("events", 1, ms(at_s)), world.stable_end("events", 1, ms(at_s))) for at_s in (10, 12, 14)]
    assert ends == [(0, 0), (3, 0), (3, 3)]
    assert visible(world) == [11_160, 14_160]
