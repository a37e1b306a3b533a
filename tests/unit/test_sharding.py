"""Columns that distribute a sub-topology's records, and unsuitable sub-topologies."""

from __future__ import annotations

import tomllib

import polars as pl
import pytest

from support.topologies import map_of, operators, sink, source, topology_of
from tidemark.model.topology import on_processing_time, parse
from tidemark.stream.operate.steps import Steps
from tidemark.stream.shards.sharding import Sharding, ShardingImpossible, sharding

SOURCE = topology_of(events=source("id string, grp string, v int", max_ahead=None))
MAP = operators(renamed=map_of(select={"name": "id", "grp": "grp", "big": "v * 10"}))


def table(name: str, read: str, *key: str) -> str:
    return f'[operators.{name}]\nkind = "table"\ninput = "{read}"\nkey = {list(key)}\n'


def shared(toml: str, *, change=lambda topology: topology) -> Sharding:
    topology = change(parse(tomllib.loads(toml), file="play.toml"))

    def nothing(place: str) -> pl.DataFrame:
        raise AssertionError(place)

    return sharding(topology, topology.sub_topologies[0], Steps(topology, nothing))


def test_records_are_sharded_by_the_key_under_any_name_of_a_map():
    assert shared(SOURCE + MAP + table("newest", "renamed", "name")).by == {"events": ("id",)}


def test_of_several_keys_what_they_have_in_common_counts():
    toml = SOURCE + MAP + table("one", "renamed", "name", "grp") + table("other", "renamed", "grp", "big")
    assert shared(toml).by == {"events": ("grp",)}


def test_without_a_key_records_are_dealt_out_by_partition():
    kafka = operators(out=sink("renamed", topic="out"))
    found = shared(SOURCE + MAP + kafka)
    assert found.by == {"events": ()}
    records = pl.DataFrame({"_task": [0, 1, 2, 3, 0]}, schema={"_task": pl.Int32()})
    dealt = found.dealt("events", records, 3, partitions=4)
    assert [part["_task"].to_list() for part in dealt] == [[0, 1, 0], [2], [3]]


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        (SOURCE + MAP + table("newest", "renamed", "big"), "newest groups by big, but no column of events"),
        (SOURCE + table("one", "events", "id") + table("other", "one", "grp"), "other groups by grp, but no column"),
        ('max_drift = "1 s"\n' + SOURCE + table("one", "events", "id"), "max_drift"),
        (
            # Records of one Kafka key would come to the topic in any order.
            SOURCE + table("one", "events", "id") + operators(out=sink("events", topic="out")),
            "out groups by _key",
        ),
    ],
    ids=["a key that is calculated", "another key further on", "alignment", "a topic in the order of another key"],
)
def test_what_cannot_be_shared_is_named(toml, why):
    with pytest.raises(ShardingImpossible, match=why):
        shared(toml)


def test_on_processing_time_nothing_is_shared():
    with pytest.raises(ShardingImpossible, match="instant of a batch"):
        shared(SOURCE + table("one", "events", "id"), change=on_processing_time)


def test_a_state_is_where_the_records_of_its_key_are():
    found = shared(SOURCE + MAP + table("one", "renamed", "name", "grp") + table("other", "renamed", "grp"))
    groups = [*"abcdefgh", None]
    names = [f"n{n}" for n in range(len(groups))]
    records = pl.DataFrame({"id": names, "grp": groups}, schema={"id": pl.String(), "grp": pl.String()})
    keys = [
        f'{{"name":"{n}","grp":{"null" if g is None else chr(34) + g + chr(34)}}}'
        for n, g in zip(names, groups, strict=True)
    ]
    rows = pl.DataFrame({"key": keys, "grp": groups})
    for number, part in enumerate(found.dealt("events", records, 4, partitions=1)):
        assert found.in_shard(number, 4, "one", rows, "key")["grp"].to_list() == part["grp"].to_list()
        mine = found.in_shard(number, 4, "other", pl.DataFrame({"key": groups[:-1]}), "key")["key"]
        assert mine.to_list() == part["grp"].drop_nulls().to_list()
