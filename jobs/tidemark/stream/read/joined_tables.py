"""Reads the Delta tables that joins look up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import polars as pl
from deltalake import DeltaTable

from tidemark.errors import InvalidArgument
from tidemark.storage.delta.datasets import dataset_of


class Reference:
    """Reads whole Delta tables that others write.

    Their places are relative to *warehouse*. Each is read in its newest version, or in the one that *versions* has for
    its place.
    """

    def __init__(self, warehouse: Path, versions: Mapping[str, int] = MappingProxyType({})) -> None:
        self._warehouse, self.versions = warehouse, versions
        self._read: dict[str, tuple[int, pl.DataFrame]] = {}

    def __call__(self, place: str) -> pl.DataFrame:
        """Returns the rows at *place*; raises InvalidArgument without a table."""
        path = self._warehouse / place
        if not DeltaTable.is_deltatable(str(path)):
            msg = f"{path}: no Delta table; create it before the stream starts"
            raise InvalidArgument(msg)
        version = self.versions.get(place, self.version(place))
        if place not in self._read or self._read[place][0] != version:
            rows = dataset_of(DeltaTable(str(path), version=version))
            self._read[place] = (version, pl.scan_pyarrow_dataset(rows).collect())
        return self._read[place][1]

    def version(self, place: str) -> int:
        """Returns the newest version of the table at *place*."""
        return int(DeltaTable(str(self._warehouse / place)).version())
