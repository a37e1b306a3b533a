"""A loop by hand: confluent-kafka, polars and delta-rs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import polars as pl
from contests.peers.peer import Peer, Place, Promise, committed, package_versions
from contests.workload import TYPES

PROGRAM = Path(__file__).parents[1] / "programs" / "loop.py"


class Loop(Peer):
    """The values of all keys in a frame, which a crash loses."""

    name = "loop"
    title = "polars + confluent-kafka + delta-rs loop by hand"
    promise = Promise.NONE
    settings: ClassVar = {"records at once": "100,000", "state": "a frame in memory"}

    def versions(self) -> dict[str, str]:
        return package_versions("polars", "confluent-kafka", "deltalake")

    def command(self, place: Place) -> list[str]:
        return [sys.executable, str(PROGRAM), place.address, place.input, place.group, str(place.home / "table")]

    def progress(self, place: Place) -> dict[int, int]:
        return committed(place)

    def emitted(self, place: Place) -> pl.DataFrame:
        return pl.scan_delta(str(place.home / "table")).select(TYPES.keys()).sort("at").collect()
