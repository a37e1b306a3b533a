"""What all accounts share, worked out once from the facts: clocks, timelines, batches and debts."""

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
    """Facts by the reference clock.

    Attributes:
        facts: as they were recorded.
        timeline: TIMELINE of all streams.
        batches: `excluded_ms` and `looked_ms` by the reference, with their `driver` and its clock, of each `stream` and
            `batch_id`.
        begun: BEGINS with the first look at the source, `begun_ms`, and the end of the last driver without it,
            `without_ms`, reference.
        waiting: SHARES of the time for which records waited that a plan left behind.
        clocks: of drivers, by `driver_clocks`.
    """

    facts: AccountFacts
    timeline: pl.DataFrame
    batches: pl.DataFrame
    begun: pl.DataFrame
    waiting: pl.DataFrame
    clocks: pl.DataFrame

    @classmethod
    def of(cls, facts: AccountFacts) -> Ledger:
        """Returns the ledger of *facts*."""
        lives, batches = timeline_of(facts), batches_of(facts)
        debts = debts_of(facts, lives, batches)
        return cls(
            facts=facts,
            timeline=with_extra_time(lives, batches, debts.extra, facts.usual_lengths),
            batches=batches,
            begun=_without(begun_of(facts), lives),
            waiting=debts.waiting,
            clocks=driver_clocks(facts),
        )

    def made_visible(self, results: pl.DataFrame) -> pl.DataFrame:
        """Returns *results* with `until_ms`, their `visible_ms` by the reference, and with `ahead_ms`, by how much the
        wall clock that they were read from was ahead; also with `host` and `clock_error_ms` of that clock.

        A result has `stream`, `driver`, `visible_ms` and `visible_boot_ms`. A wall clock that nothing places is taken
        for the reference, with an error that is not known.
        """
        until_ms = pl.coalesce(pl.col("visible_boot_ms") + pl.col("to_reference_ms"), "visible_ms")
        return (
            results.join(self.clocks, on=DRIVER, how="left", maintain_order="left")
            .with_columns(until_ms=until_ms, ahead_ms=pl.col("visible_ms") - until_ms)
            .drop("to_reference_ms")
        )


def begun_of(facts: AccountFacts) -> pl.DataFrame:
    """Returns BEGINS with the first look of the driver that began to read the source, `begun_ms`, reference."""
    looks = facts.segments.group_by(DRIVER).agg(pl.min("began_ms"))
    looked = looks.join(driver_clocks(facts), on=DRIVER).with_columns(
        begun_ms=pl.col("began_ms") + pl.col("to_reference_ms")
    )
    batches = facts.batches.select(*DRIVER, "batch_id").join(looked, on=DRIVER)
    return facts.begins.unique().join(batches, on=["stream", "batch_id"]).select(*BEGINS, "begun_ms").sort(*BEGINS)


def _without(begun: pl.DataFrame, lives: pl.DataFrame) -> pl.DataFrame:
    """Returns *begun* with `without_ms`, when the driver before, which did not read the source, had ended."""
    absences = lives.filter(pl.col("owner") == ABSENCE).select("stream", "ended_ms", without_ms="began_ms")
    return begun.sort("begun_ms").join_asof(
        absences.sort("ended_ms"), left_on="begun_ms", right_on="ended_ms", by="stream", check_sortedness=False
    )


def batches_of(facts: AccountFacts) -> pl.DataFrame:
    """Returns the `batches` of a Ledger of *facts*."""
    instants = ["excluded_ms", "looked_ms"]
    placed = facts.batches.join(driver_clocks(facts).drop("host"), on=DRIVER, maintain_order="left")
    return (
        placed.with_columns(pl.col(instants) + pl.col("to_reference_ms"))
        .sort("stream", "batch_id")
        .with_columns(excluded_ms=pl.col("excluded_ms").fill_null(pl.col("looked_ms").shift().over("stream")))
        .select("stream", "batch_id", "driver", *instants, "to_reference_ms", "clock_error_ms")
    )
