"""What all accounts need of the facts, worked out once: clocks of drivers, timelines of streams, batches and debts."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tidemark.account.clocks import DRIVER, driver_clocks
from tidemark.account.debts import debts_of, with_extra_time
from tidemark.account.facts import BEGINS, AccountFacts
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.timeline import timeline_of


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The facts, and what follows from them by the reference clock.

    Attributes:
        facts: the facts as they were recorded.
        timeline: TIMELINE of all streams.
        batches: `excluded_ms` and `looked_ms` of BATCHES by the reference clock, by `stream` and `batch_id`, with the
            `driver` and its clock.
        begun: BEGINS with two instants by the reference clock: the first look at the source, `begun_ms`, and the end
            of the last driver without it, `without_ms`.
        waiting: SHARES of the time for which records waited that a plan left behind.
        clocks: the clocks of drivers, as `driver_clocks` returns them.
    """

    facts: AccountFacts
    timeline: pl.DataFrame
    batches: pl.DataFrame
    begun: pl.DataFrame
    waiting: pl.DataFrame
    clocks: pl.DataFrame

    @classmethod
    def of(cls, facts: AccountFacts) -> Ledger:
        """Works out the ledger of *facts*."""
        lives, batches = timeline_of(facts), batches_of(facts)
        debts = debts_of(facts, lives, batches)
        return cls(
            facts=facts,
            timeline=with_extra_time(lives, batches, debts.extra, facts.usual_lengths),
            batches=batches,
            begun=_with_end_of_last(begun_of(facts), lives),
            waiting=debts.waiting,
            clocks=driver_clocks(facts),
        )

    def made_visible(self, results: pl.DataFrame) -> pl.DataFrame:
        """Returns *results* with the instant `until_ms`, at which they were visible by the reference clock.

        A result has `stream`, `driver`, `visible_ms` and `visible_boot_ms`. It also gets `ahead_ms`, by which the wall
        clock of `visible_ms` was ahead of the reference, and the `host` and the `clock_error_ms` of that clock. If
        nothing measured that clock, it counts as right, with an unknown error (null).
        """
        until_ms = pl.coalesce(pl.col("visible_boot_ms") + pl.col("to_reference_ms"), "visible_ms")
        return (
            results.join(self.clocks, on=DRIVER, how="left", maintain_order="left")
            .with_columns(until_ms=until_ms, ahead_ms=pl.col("visible_ms") - until_ms)
            .drop("to_reference_ms")
        )


def begun_of(facts: AccountFacts) -> pl.DataFrame:
    """Returns BEGINS with `begun_ms`, the first look of the driver that began to read the source, by the reference."""
    looks = facts.segments.group_by(DRIVER).agg(pl.min("began_ms"))
    looked = looks.join(driver_clocks(facts), on=DRIVER).with_columns(
        begun_ms=pl.col("began_ms") + pl.col("to_reference_ms")
    )
    batches = facts.batches.select(*DRIVER, "batch_id").join(looked, on=DRIVER)
    return facts.begins.unique().join(batches, on=["stream", "batch_id"]).select(*BEGINS, "begun_ms").sort(*BEGINS)


def _with_end_of_last(begun: pl.DataFrame, lives: pl.DataFrame) -> pl.DataFrame:
    """Returns *begun* with `without_ms`, the end of the driver before, which did not read the source.

    *lives* is the TIMELINE of the streams.
    """
    absences = lives.filter(pl.col("owner") == ABSENCE).select("stream", "ended_ms", without_ms="began_ms")
    return begun.sort("begun_ms").join_asof(
        absences.sort("ended_ms"), left_on="begun_ms", right_on="ended_ms", by="stream", check_sortedness=False
    )


def batches_of(facts: AccountFacts) -> pl.DataFrame:
    """Returns `batches` of the Ledger of *facts*."""
    instants = ["excluded_ms", "looked_ms"]
    placed = facts.batches.join(driver_clocks(facts).drop("host"), on=DRIVER, maintain_order="left")
    return (
        placed.with_columns(pl.col(instants) + pl.col("to_reference_ms"))
        .sort("stream", "batch_id")
        .with_columns(excluded_ms=pl.col("excluded_ms").fill_null(pl.col("looked_ms").shift().over("stream")))
        .select("stream", "batch_id", "driver", *instants, "to_reference_ms", "clock_error_ms")
    )
