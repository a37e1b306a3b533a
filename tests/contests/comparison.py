"""Compares emitted rows with expected ones, per key and in order."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Comparison:
    """Numbers of rows and keys by which an emission differs.

    `missing`: expected rows that were not emitted. `unexpected`: emitted rows that are not expected. `duplicates`:
    further copies of a row. `disordered`: keys whose rows, without those, are in another order.
    """

    expected: int
    emitted: int
    missing: int
    unexpected: int
    duplicates: int
    disordered: int

    @property
    def is_complete(self) -> bool:
        """Returns True if all is there, at least once, and nothing else."""
        return not (self.missing or self.unexpected or self.disordered)

    @property
    def is_exact(self) -> bool:
        """Returns True if all is there exactly once, and nothing else."""
        return self.is_complete and not self.duplicates


def compare(expected: pl.DataFrame, emitted: pl.DataFrame) -> Comparison:
    """Compares *emitted* with *expected*, key by key.

    Both have `id`, and the rows of a key in order. No expected row exists twice.
    """
    columns = expected.columns
    once = emitted.select(columns).unique(maintain_order=True, keep="first")
    both = once.join(expected, on=columns, how="semi", nulls_equal=True, maintain_order="left")
    place = expected.with_row_index("place")
    places = both.join(place, on=columns, how="left", nulls_equal=True, maintain_order="left")
    is_back = pl.col("place") < pl.col("place").shift().over("id")
    return Comparison(
        expected=expected.height,
        emitted=emitted.height,
        missing=expected.height - both.height,
        unexpected=once.height - both.height,
        duplicates=emitted.height - once.height,
        disordered=places.filter(is_back)["id"].n_unique(),
    )
