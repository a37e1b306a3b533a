"""Records queries of jobs as Spark reports them, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tidemark.api.listen import QueryRecord
from tidemark.api.query import Query
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms, iso

BOOTED_MS = instant_ms("2026-03-01T11:00")
"""When the host of the jobs was started."""


def topic(name: str, start: int, end: int, latest: int | None = None) -> dict[str, Any]:
    """Returns Spark's report of a topic with one partition."""
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": end if latest is None else latest}
    parts = {which: {name: {"0": offset}} for which, offset in offsets.items()}
    return {"description": f"KafkaV2[Subscribe[{name}]]", "numInputRows": end - start, **parts}


def files(name: str, n: int) -> dict[str, Any]:
    """Returns Spark's report of *n* records of a folder."""
    return {"description": f"FileStreamSource[file:/lake/{name}]", "numInputRows": n, "endOffset": {"logOffset": 0}}


def observation(began_ms: int, times_ms: Sequence[int], *limits_ms: int, too_early_n: int = 0) -> dict[str, int]:
    """Returns what Spark observes of records with these event times in a batch of the instant *began_ms*.

    The name of a count has the limit, and the length of the batch for which it counts: none, a tenth of the limit, ….
    Records of the year 1970 or before are only counted.
    """
    ages_ms = [began_ms - at_ms for at_ms in times_ms]
    metrics = {"n": len(ages_ms), "began_ms": began_ms, "too_early_n": too_early_n}
    if times_ms:
        metrics |= {"oldest_ms": min(times_ms), "newest_ms": max(times_ms), "sum_ms": sum(ages_ms)}
    for limit_ms in limits_ms:
        for tenths in range(11):
            took_ms = tenths * limit_ms // 10
            metrics[f"over_{limit_ms}_{took_ms}"] = sum(age_ms + took_ms > limit_ms for age_ms in ages_ms) + too_early_n
    return metrics


@dataclass
class Job:
    """A query *name* of the topology `shop`, as Spark reports it."""

    home: Path
    name: str
    sink: str = "ForeachBatchSink"
    query_id: str = "one"
    batches: int = 0
    lease: int | None = None
    record: QueryRecord = field(init=False)

    def __post_init__(self) -> None:
        self.record = QueryRecord(Query(Layout(self.home), "shop", self.name), "job", "/opt/job.py")

    def batch(
        self,
        at_ms: int,
        *sources: dict[str, Any],
        watermark_ms: int | None = None,
        newest_ms: int | None = None,
        oldest_ms: int | None = None,
        wrong_watermark: str | None = None,
        took_ms: int = 700,
        late: int = 0,
        observed: Mapping[str, int] | None = None,
        is_last: bool = True,
    ) -> None:
        """Records a batch that began at *at_ms*.

        It read for 100 ms, and committed for 50 ms. Batches before one that is not the last are written with it.
        """
        times = {} if newest_ms is None else dict.fromkeys(("min", "max", "avg"), iso(newest_ms))
        if oldest_ms is not None:
            times["min"] = iso(oldest_ms)
        if watermark_ms is not None:
            times["watermark"] = iso(watermark_ms)
        if wrong_watermark is not None:
            times["watermark"] = wrong_watermark
        state = {"operatorName": "s", "numRowsTotal": 1, "numRowsUpdated": 1, "memoryUsedBytes": 9}
        progress = {
            "id": self.query_id,
            "runId": self.query_id,
            "name": self.name,
            "batchId": self.batches,
            "timestamp": iso(at_ms),
            "durationMs": {
                "latestOffset": 100,
                "addBatch": took_ms - 150,
                "commitOffsets": 50,
                "triggerExecution": took_ms,
            },
            "numInputRows": sum(source["numInputRows"] for source in sources),
            "eventTime": times,
            "stateOperators": [state | {"numRowsDroppedByWatermark": late}] if late else [],
            "sources": list(sources),
            "sink": {"description": self.sink},
            "observedMetrics": {} if observed is None else {"tidemark": observed},
        }
        self.batches += 1
        self.record.add(progress, None, to_boot_ms=-BOOTED_MS, thread_id="app-1", lease=self.lease)
        if is_last:
            self.record.flush()

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        path = Layout(self.home).stream_table("shop", self.name, table)
        return sorted(tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().select(columns).to_pylist())

    def beat(self, at_ms: int, state: StreamState = StreamState.RUNNING, reason: str | None = None) -> None:
        control = Control(Layout(self.home).control("shop", self.name))
        control.beat(Heartbeat(state=state, epoch=1, launch_id="", at_ms=at_ms, pid=1, since_ms=at_ms, reason=reason))
