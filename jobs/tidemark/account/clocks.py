"""Puts the clocks of drivers on one reference clock.

The boot clock of a host never steps. So one measurement of the offset of its wall clock is enough to place all that a
driver has recorded by boot clock. NTP slows and speeds up both clocks alike: where one moves against the other, the
wall clock was stepped.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.facts import AccountFacts

JITTER_MS = 20
"""Two clocks are read one after the other, so they may differ by this much without a step, ms."""
DRIVER = ["stream", "driver"]


def driver_clocks(facts: AccountFacts) -> pl.DataFrame:
    """Returns the clock of each driver: `stream`, `driver`, `host`, `to_reference_ms` and `clock_error_ms`.

    The boot clock plus `to_reference_ms` is the reference clock, give or take `clock_error_ms`. That error is null if
    nothing measured the clock of the host: then the driver's first reading of it counts as right.
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
    """Returns all readings of drivers' clocks in order, with `since_boot_ms` and `stepped_ms`.

    `since_boot_ms` is the wall clock less the boot clock at the driver's first reading. `stepped_ms` is how far the
    wall clock had been stepped between that reading and this one.
    """
    columns = [*DRIVER, "host", "boot_ms", "wall_ms"]
    read = pl.concat(
        [facts.batches.select(columns), facts.heartbeats.rename({"ended_ms": "boot_ms"}).select(columns)]
    ).sort(*DRIVER, "boot_ms")
    since_boot_ms = pl.col("wall_ms") - pl.col("boot_ms")
    first_ms = since_boot_ms.first().over(DRIVER)
    stepped_ms = pl.when((since_boot_ms - first_ms).abs() > JITTER_MS).then(since_boot_ms - first_ms).otherwise(0)
    return read.with_columns(since_boot_ms=first_ms, stepped_ms=stepped_ms)
