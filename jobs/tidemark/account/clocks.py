"""Puts the clocks of drivers on one reference clock.

A driver's boot clock never steps, so one measurement of its wall clock places all of its life. A step of the wall clock
is what it moved against the boot clock: both are slowed and sped up alike by NTP.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.facts import AccountFacts

JITTER_MS = 20
"""Two clocks that are read one after the other may differ by this much without a step."""
DRIVER = ["stream", "driver"]


def driver_clocks(facts: AccountFacts) -> pl.DataFrame:
    """Returns the clock of each driver: `stream`, `driver`, `host`, `to_reference_ms` and `clock_error_ms`.

    The reference is boot + `to_reference_ms`. `clock_error_ms` is by how much that may be wrong, null where nothing
    measured the host's clock; its first reading is then taken for the reference.
    """
    readings = _readings(facts)
    first = readings.group_by(DRIVER, maintain_order=True).agg(pl.first("host", "since_boot_ms"))
    measured = (
        facts.clocks.join(first, on=[*DRIVER, "host"], maintain_order="left")
        .sort("at_ms")
        .join_asof(
            readings.select(*DRIVER, "boot_ms", "stepped_ms").sort("boot_ms"),
            left_on="at_ms",
            right_on="boot_ms",
            by=DRIVER,
            check_sortedness=False,
        )
        .with_columns(base_ms=pl.col("offset_ms") + pl.col("stepped_ms").fill_null(0))
        .sort("error_ms", "at_ms")
        .group_by(DRIVER, maintain_order=True)
        .agg(pl.first("base_ms"), clock_error_ms=pl.first("error_ms"))
    )
    placed = first.join(measured, on=DRIVER, how="left", maintain_order="left")
    to_reference_ms = pl.col("since_boot_ms") + pl.col("base_ms").fill_null(0)
    return placed.select(*DRIVER, "host", to_reference_ms=to_reference_ms, clock_error_ms="clock_error_ms")


def _readings(facts: AccountFacts) -> pl.DataFrame:
    """Returns all readings of drivers' clocks in order, with the wall clock when the boot clock was 0.

    `since_boot_ms` is that of the driver's first reading, and `stepped_ms` how far the wall clock had stepped since.
    """
    columns = [*DRIVER, "host", "boot_ms", "wall_ms"]
    read = pl.concat(
        [facts.batches.select(columns), facts.heartbeats.rename({"ended_ms": "boot_ms"}).select(columns)]
    ).sort(*DRIVER, "boot_ms")
    since_boot_ms = pl.col("wall_ms") - pl.col("boot_ms")
    first_ms = since_boot_ms.first().over(DRIVER)
    stepped_ms = pl.when((since_boot_ms - first_ms).abs() > JITTER_MS).then(since_boot_ms - first_ms).otherwise(0)
    return read.with_columns(since_boot_ms=first_ms, stepped_ms=stepped_ms)
