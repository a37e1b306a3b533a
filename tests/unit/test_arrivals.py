"""Records of one source in a batch."""

from __future__ import annotations

from typing import Any

import polars as pl

from tidemark.kernels.columns.schemas import HEADERS
from tidemark.kernels.records.arrivals import hop_arrivals
from tidemark.model.kinds.repartition import HopSource
from tidemark.testing.rows import HOP as ROW

HOP = HopSource(name="by_carrier_source", repartition="by_carrier", upstream="status")


def raw(*rows: tuple[int, int | None, dict[str, Any]]) -> pl.DataFrame:
    """Returns rows of a hop: upstream batch, record time, and fields."""
    kinds = {
        "source": pl.String(),
        "partition": pl.Int32(),
        "offset": pl.Int64(),
        "timestamp_ms": pl.Int64(),
        "headers": HEADERS,
    }
    return pl.DataFrame(
        [{"source": HOP.name, "partition": 0, "offset": b, "timestamp_ms": t, HOP.name: row} for b, t, row in rows],
        schema={**kinds, HOP.name: ROW},
    )


def test_rows_of_a_hop_keep_the_order_of_the_upstream():
    rows = raw(
        (2, 30, {"seq": 0, "key": "c"}),
        (1, 20, {"seq": 1, "key": "b"}),
        (1, 10, {"seq": 0, "key": "a"}),
        (1, None, {"seq": 2, "watermark_ms": 15, "value": "[0, 5]"}),
    )
    arrived = hop_arrivals(HOP, rows)
    assert arrived.rows["_key"].to_list() == ["a", "b", "c"]
    assert (arrived.watermark_ms, arrived.windows, arrived.last_batch) == (15, (0, 5), 2)


def test_a_mark_has_the_time_of_idle_partitions():
    rows = raw((1, None, {"seq": 0, "watermark_ms": 15, "idle": False, "idle_watermark_ms": 7}))
    arrived = hop_arrivals(HOP, rows)
    assert (arrived.watermark_ms, arrived.idle, arrived.idle_watermark_ms) == (15, False, 7)


def test_an_update_with_a_null_key_is_an_update():
    arrived = hop_arrivals(HOP, raw((1, 10, {"seq": 0, "key": None, "value": '{"carrier":null}'})))
    assert arrived.rows["value"].to_list() == ['{"carrier":null}']
    assert arrived.watermark_ms is None


def test_a_batch_without_rows_of_the_hop_says_nothing():
    arrived = hop_arrivals(HOP, raw())
    assert (arrived.rows.height, arrived.watermark_ms, arrived.windows, arrived.last_batch) == (0, None, (), None)
