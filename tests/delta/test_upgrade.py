"""Streams of an older version continue with nothing lost or repeated.

`warehouses/before_issue_18.tar.xz` was written by real drivers with a real broker: shop.toml, an operator of each kind.
Devices a, b and c at two sites reported temperatures; record times are seconds after START, in order of arrival:
partition 0: a 20.0 north at 1, b 21.5 south at 2, a 20.0 north at 5, a 22.5 south at 40; then b 21.5 south at 70;
partition 1: c 30.0 north at 3, 31.0 at 40; then 33.0 at 400 and 34.0 at 401, which waits for partition 0 (`max_drift`).
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.older_warehouse import BATCHES, START, STOPPED, reading, stopped
from support.play import Play
from support.separate_executors import Apart
from tidemark.cli.repair.reshard import reshard_plan
from tidemark.clock import wall_clock_ms
from tidemark.maintenance.upkeep import maintain_stream
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.storage.delta.compaction import files_of
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, findings, refuse_unless_sound


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Continues the first stream; tests copy it.

    Partition 0 reaches 390 s, which closes windows, then 395 s, which releases waiting records.
    """
    play = stopped(tmp_path_factory.mktemp("devices"))
    play.batch([reading(play, "b", 21.5, "south", 130), reading(play, "a", 22.5, "south", 390)], at_ms=STOPPED)
    play.batch([reading(play, "a", 35.0, "north", 395)], at_ms=STOPPED + 1_000)
    play.settle()
    return play


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, devices: Play) -> Play:
    """Also runs the streams downstream of `devices`."""
    play = devices.copied_to(tmp_path_factory.mktemp("shop") / "warehouse")
    play.hop("sites", at_ms=STOPPED + 7_200_000)  # more than an interval of site_pulse later
    play.hop("regions", at_ms=STOPPED + 2_000)
    play.settle()
    return play


def new_rows(play: Play, table: str, sub: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns *columns* written after the upgrade, window starts in seconds."""
    seconds = {"window_start"} & {*columns}
    return [
        tuple((row[c] - START) // 1_000 if c in seconds else row[c] for c in columns)
        for row in play.rows(table, sub)
        if row["batch_id"] >= BATCHES[sub]
    ]


def test_streams_of_an_older_version_are_sound(tmp_path: Path) -> None:
    shop = stopped(tmp_path)
    for sub in shop.topology.sub_topologies:
        refuse_unless_sound(evidence(Stream(shop.topology, sub, Layout(shop.home))))


def test_unnamed_streams_are_refused_with_the_lines_to_add(tmp_path: Path) -> None:
    shop = stopped(tmp_path)
    unnamed = Play(re.sub(r"^sub_topology.*\n", "", shop.toml, flags=re.MULTILINE), shop.home, partitions=2).topology
    found = [findings(evidence(Stream(unnamed, sub, Layout(shop.home)))) for sub in unnamed.sub_topologies]
    lines = [[finding.ways[0] for finding in each if finding.fault is Fault.STREAM_RENAMED] for each in found]
    assert [sub.name for sub in unnamed.sub_topologies] == ["readings", "by_site", "by_region"]
    for sub, ways, old in zip(unnamed.sub_topologies, lines, ["devices", "sites", "regions"], strict=True):
        first = next(o.name for o in sub.operators if not isinstance(o, HopSource))
        assert f'write sub_topology = "{old}" below [operators.{first}]' in " ".join(ways)


def test_maintenance_leaves_streams_of_an_older_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = stopped(tmp_path)
    for sub in shop.topology.sub_topologies:
        stream = Stream(shop.topology, sub, Layout(shop.home))
        before = files_of(stream.home / "changes")
        maintain_stream(stream, now_ms=wall_clock_ms() + 10_000, closed_after_ms=0)
        assert files_of(stream.home / "changes") == before
        assert f"shop/{sub.name} is left as it is: its tables are of an older version" in caplog.text


def test_streams_of_an_older_version_continue(shop: Play) -> None:
    board = {row["device"]: (row["temp_c"], row["site"]) for row in shop.rows("devices_board")}
    assert board == {"a": (35.0, "north"), "b": (21.5, "south"), "c": (34.0, "north")}
    placed = new_rows(shop, "placed_board", "devices", "device", "temp_c", "region", "owner")
    assert sorted(placed) == [("a", 22.5, "S", "bob"), ("a", 35.0, "N", "ann"), ("b", 21.5, "S", "bob"),
                              ("c", 34.0, "N", "ann")]  # fmt: skip
    assert new_rows(shop, "late_records", "devices", "operator") == []


def test_windows_opened_by_an_older_version_close(shop: Play) -> None:
    assert sorted(new_rows(shop, "minutes", "devices", "device", "window_start", "n", "mean_c")) == [
        ("b", 60, 1, 21.5), ("b", 120, 1, 21.5),
    ]  # fmt: skip
    rows = new_rows(shop, "region_board", "regions", "region", "window_start", "n")
    last = {(region, start): n for region, start, n in rows}
    assert last == {("S", 120): 1, ("S", 360): 1, ("N", 360): 3}


def test_states_of_an_older_version_are_kept(shop: Play) -> None:
    ever = {row["key"]: row["value"] for row in shop.rows("changes") if row["operator"] == "ever"}
    assert ever == {"N": '{"n":7,"sum_c":203.0}', "S": '{"n":5,"sum_c":109.5}'}
    sites = {row["site"]: (row["n"], row["sum_c"], row["mean_c"]) for row in shop.rows("site_board", "sites")}
    assert sites == {"north": (2, 69.0, 34.5), "south": (1, 21.5, 21.5)}
    pulses = [row for row in shop.rows("changes", "sites") if row["operator"] == "site_pulse"]
    assert {row["key"]: row["value"] for row in pulses} == {"north": '{"n":2}', "south": '{"n":1}'}


def test_results_sent_by_an_older_version_are_not_sent_again(shop: Play) -> None:
    assert [(topic, row["device"], row["temp_c"]) for topic, row in shop.broker.published] == [("bands", "a", 35.0)]
    suppressed = [
        row["key"] for row in shop.rows("suppressed") if row["batch_id"] >= 14 and row["operator"] == "device_now"
    ]
    assert sorted(suppressed) == ["a", "b"]


def test_accounting_closes_across_an_upgrade(shop: Play) -> None:
    for sub in shop.topology.sub_topologies:
        rows = [row for row in shop.rows("outcomes", sub.name) if row["batch_id"] >= BATCHES[sub.name]]
        assert rows
        for row in rows:
            assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row


@pytest.mark.parametrize("is_dealt_out_before", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_stream_of_an_older_version_continues_in_shards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, devices: Play, shop: Play, *, is_dealt_out_before: bool
) -> None:
    caplog.set_level(logging.INFO, "tidemark.stream")
    play = devices.copied_to(tmp_path / "warehouse")
    # The upstream still has max_drift, and ran in the driver.
    play.topology = replace(play.topology, max_drift_ms=None, shards={"sites": 3, "regions": 2})
    lines = []
    if is_dealt_out_before:
        for sub, shards in play.topology.shards.items():
            lines += reshard_plan(play.topology, play.home, sub, shards).apply().splitlines()
    play.executors = Apart
    play.hop("sites", at_ms=STOPPED + 7_200_000)
    play.hop("regions", at_ms=STOPPED + 2_000)
    for table, sub in (("site_board", "sites"), ("region_board", "regions")):
        found, expected = ([tuple(sorted(row.items())) for row in each.rows(table, sub)] for each in (play, shop))
        assert sorted(map(str, found)) == sorted(map(str, expected))
    assert f"{play.home}/streams/shop/sites: loading the state from the tables of an older version" in caplog.text
    if is_dealt_out_before:
        assert [re.sub(r"\d+ rows \([\d,]+ bytes\)", "n rows", line) for line in lines] == [
            "shop/sites: n rows of its state after batch 18 went from the tables of an older version to 3 shards; "
            "start its driver",
            "shop/regions: n rows of its state after batch 11 went from the tables of an older version to 2 shards; "
            "start its driver",
        ]
    else:
        assert "partitioning the state into 3 shards; `tidemark reshard` does this before a start" in caplog.text
