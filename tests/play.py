"""Plays a topology without Spark: the rows that Spark would read are written by hand, and so is every clock."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tidemark.delta import scan
from tidemark.kernels.schemas import HEADERS
from tidemark.spec.layout import Layout
from tidemark.spec.operators import HopSource, Source
from tidemark.spec.topology import SubTopology, parse
from tidemark.stream.engine import Engine
from tidemark.stream.sources import TICK
from tidemark.stream.wiring import Stream, build_engine
from tidemark.why.findings import Finding
from tidemark.why.walk import why

NOON = 1_399_982_400_000
"""2014-05-13 12:00 UTC: the times of a play are seconds after it."""
_KINDS = {"string": pl.String(), "double": pl.Float64(), "bigint": pl.Int64()}
_HOP = {
    **{name: pl.String() for name in ("id", "key", "old_value", "value")},
    **{name: pl.Int64() for name in ("seq", "old_timestamp_ms", "source_offset", "watermark_ms")},
    "source_partition": pl.Int32(),
}


def ms(seconds: float) -> int:
    return NOON + round(seconds * 1_000)


class Play:
    """The topology *toml* in the warehouse *home*; its topics have *partitions*, with records unread where said."""

    def __init__(self, home: Path, toml: str, *, partitions: int = 1) -> None:
        self.topology = parse(tomllib.loads(toml), file="play.toml")
        self.layout = Layout(home)
        self.unread: dict[int, int] = {}
        self._partitions, self._now_ms = partitions, NOON
        self._offsets: dict[tuple[str, int], int] = {}
        self._engines: dict[str, Engine] = {}
        self._batches: dict[str, int] = {}

    def partitions(self, topic: str) -> int:
        return self._partitions

    def offsets(self, topic: str, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        ends = {number: self._offsets.get((topic, number), 0) + self.unread.get(number, 0) for number in partitions}
        return {number: (0, end) for number, end in ends.items()}

    def publish(self, *_: Any, **__: Any) -> None:
        """Nobody reads the topics of a play."""

    def batch(self, at_s: float, *rows: dict[str, Any], sub: str = "0") -> None:
        """The next batch of *sub*, whose only tick and every clock are *at_s*; offsets are given to *rows* in order."""
        self._now_ms = ms(at_s)
        part = self.topology.sub_topology(sub)
        if sub not in self._engines:
            stream = Stream(self.topology, part, self.layout)
            self._engines[sub] = build_engine(
                stream, self, thread_id="t", epoch=1, slow_ms={}, clock=lambda: self._now_ms
            )
        number = self._batches.get(sub, 0)
        self._batches[sub] = number + 1
        numbered = [self._numbered(row) for row in rows]
        tick = {"source": TICK, "partition": 0, "offset": number, "timestamp_ms": self._now_ms}
        raw = pl.DataFrame([*numbered, *self._hops(part), tick], schema=_schema(part)).to_arrow()
        self._engines[sub].process(number, lambda late: raw)

    def why(self, at_s: float, operator: str | None = None) -> list[Finding]:
        return why(self.topology, self.layout, at_ms=ms(at_s), operator=operator)

    def _numbered(self, row: dict[str, Any]) -> dict[str, Any]:
        place = (row["source"], row["partition"])
        offset = self._offsets.get(place, 0)
        self._offsets[place] = offset + 1
        return {**row, "offset": offset}

    def _hops(self, sub: SubTopology) -> list[dict[str, Any]]:
        """The rows of the hops that *sub* reads and has not read yet, as Spark reads them."""
        found = []
        for source in sub.operators:
            if isinstance(source, HopSource):
                path = self.layout.hop(self.topology.name, source.upstream, source.repartition)
                read = self._offsets.get((source.name, 0), -1)
                rows = scan(path).collect().filter(pl.col("batch_id") > read).to_dicts()
                found += [_hop_row(source.name, row) for row in rows]
                self._offsets[source.name, 0] = max((row["batch_id"] for row in rows), default=read)
        return found


def _schema(sub: SubTopology) -> dict[str, pl.DataType]:
    payloads: dict[str, pl.DataType] = {}
    for source in sub.operators:
        if isinstance(source, Source):
            payloads[source.name] = pl.Struct({name: _KINDS[word] for name, word in source.columns.items()})
        elif isinstance(source, HopSource):
            payloads[source.name] = pl.Struct(_HOP)
    return {
        "source": pl.String(), "partition": pl.Int32(), "offset": pl.Int64(), "key": pl.Binary(), "value": pl.Binary(),
        "headers": HEADERS, "deleted": pl.Boolean(), "timestamp_ms": pl.Int64(), "reason": pl.String(), **payloads,
    }  # fmt: skip


def _hop_row(source: str, row: dict[str, Any]) -> dict[str, Any]:
    fields = {name: row[name] for name in ("seq", "id", "key", "old_value", "value")}
    fields |= {name: row[name] for name in ("source_partition", "source_offset")}
    fields |= {f"{name}_ms": _epoch_ms(row[name]) for name in ("old_timestamp", "watermark")}
    at = {"partition": row["partition"], "offset": row["batch_id"], "timestamp_ms": _epoch_ms(row["timestamp"])}
    return {"source": source, **at, source: fields}


def _epoch_ms(at: Any) -> int | None:
    return None if at is None else round(at.timestamp() * 1_000)


def record(
    at_s: float, key: str = "a", amount: float = 1.0, *, part: int = 0, source: str = "events"
) -> dict[str, Any]:
    """A record of that time of one of the plays' sources."""
    fields = {"id": key, "amount": amount, "event_time": ms(at_s)}
    return {
        **{"source": source, "partition": part, "key": key.encode(), "deleted": False},
        **{"timestamp_ms": ms(at_s), source: fields},
    }


def bad(reason: str, value: bytes = b"\xff", *, part: int = 0) -> dict[str, Any]:
    """A record that cannot be used."""
    return {"source": "events", "partition": part, "value": value, "reason": reason}
