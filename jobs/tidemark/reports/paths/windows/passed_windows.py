"""Finds the batches in which drivers passed windows."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True)
class PassedWindows:
    """Says when each sub-topology had passed a window.

    *batches* are rows of its batches.
    """

    batches: pl.DataFrame | None = None
    _by_sub: dict[str, tuple[list[int], list[tuple[int, int, int]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batches is not None:
            ms = pl.col("watermark", "started_at", "finished_at").dt.epoch("ms")
            rows = self.batches.drop_nulls("watermark").with_columns(ms).sort("batch_id")
            # A window that was passed stays passed, should time have been set back.
            rows = rows.with_columns(pl.col("watermark").cum_max().over("sub_topology"))
            for (sub,), part in rows.group_by("sub_topology", maintain_order=True):
                passed = part.select("batch_id", "started_at", "finished_at").rows()
                self._by_sub[str(sub)] = part["watermark"].to_list(), passed

    def batch(self, sub_topology: str, end_ms: int) -> tuple[int, int, int] | None:
        """Returns the first batch whose watermark passed *end_ms*.

        It is a batch of *sub_topology*: number, beginning and end, by its driver's clock. None: there is no such batch.
        """
        watermarks, batches = self._by_sub.get(sub_topology, ([], []))
        # A watermark passes a window when it reaches its last millisecond.
        at = bisect_left(watermarks, end_ms - 1)
        return batches[at] if at < len(batches) else None
