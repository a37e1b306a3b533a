"""Tidemark: a source and a table at level info, in one driver."""

from __future__ import annotations

import sys
from typing import ClassVar

import polars as pl
from contests.peers.peer import PROJECT, Peer, Place, Promise, package_versions
from contests.workload import TYPES

from tidemark.control.folder import Control
from tidemark.model.project.extras import DISTRIBUTION
from tidemark.model.project.layout import Layout

TOPOLOGY = """\
name = "contest"
level = "info"

[operators.updates]
kind = "source"
topic = "{topic}"
fields = "id string, status string, amount bigint, note string, at bigint"
timestamp = "at"
bound = "3 s"

[operators.latest]
kind = "table"
input = "updates"
key = ["id"]
columns = ["status", "amount", "note"]
"""
STREAM = ("contest", "updates")


class Tidemark(Peer):
    """Journal, changes, proofs of suppression and latencies in Delta tables."""

    name = "tidemark"
    title = "**Tidemark, level info**"
    promise = Promise.EXACTLY_ONCE
    settings: ClassVar = {
        "level": "info",
        "shards": "1 (default)",
        "max_records": "200,000 (default)",
        "trigger": "1 s (default)",
    }

    def versions(self) -> dict[str, str]:
        return package_versions(DISTRIBUTION, "pyspark", "polars", "deltalake")

    def command(self, place: Place) -> list[str]:
        file = place.home / "contest.toml"
        file.write_text(TOPOLOGY.format(topic=place.input))
        options = ["--warehouse", str(place.home / "warehouse"), "--topology", str(file), "--sub-topology", "updates"]
        return [sys.executable, str(PROJECT / "jobs" / "stream.py"), *options, "--bootstrap", place.address]

    def progress(self, place: Place) -> dict[int, int]:
        beat = Control(self._layout(place).control(*STREAM)).heartbeat()
        offsets = beat.offsets if beat else {}
        return {int(part.partition("/")[2]): offset for part, offset in offsets.items()}

    def emitted(self, place: Place) -> pl.DataFrame:
        changes = pl.scan_delta(str(self._layout(place).stream_table(*STREAM, "changes"))).sort("batch_id", "seq")
        values = pl.Struct({name: TYPES[name] for name in ("status", "amount", "note")})
        columns = changes.select("key", pl.col("value").str.json_decode(values), at=pl.col("timestamp").dt.epoch("ms"))
        return columns.unnest("value").rename({"key": "id"}).select(TYPES.keys()).collect()

    def _layout(self, place: Place) -> Layout:
        return Layout(place.home / "warehouse")
