"""What the tables keep of judged updates: each one sent on, and the proof of each that was not."""

from __future__ import annotations

import polars as pl

from tidemark.kernels.emission import Judged


def changes_rows(operator: str, result: Judged, **more: str) -> pl.DataFrame:
    """The updates that *operator* sent on, as rows of `changes`; *more* are columns that only some operators have."""
    return result.emitted.select(
        seq=pl.int_range(pl.len(), dtype=pl.Int64),
        operator=pl.lit(operator),
        key="_key",
        value="_value",
        timestamp="_timestamp_ms",
        old_timestamp="_old_timestamp_ms",
        value_hash="_identity",
        source_partition="_partition",
        source_offset="_offset",
        **more,
    )


def suppressed_rows(operator: str, result: Judged) -> pl.DataFrame:
    """The runs of updates that *operator* did not send on, as rows of `suppressed`."""
    return result.suppressed.select(
        "n",
        "first_offset",
        "last_offset",
        "max_timestamp",
        operator=pl.lit(operator),
        key="_key",
        source_partition="_partition",
        old_timestamp="_old_timestamp_ms",
        value_hash="_identity",
    )
