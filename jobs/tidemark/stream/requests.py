"""What people ask of a driver in its control folder: looked at between batches, in an object store seldom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidemark.object_path import ObjectPath
from tidemark.semantics.progress import StreamProgress
from tidemark.stream.batch import Batch

SELDOM_MS = 10_000
"""In an object store each look costs requests: it is for so long after one, ms of decision time, that none is made."""

Applied = Callable[[StreamProgress, int], StreamProgress]
"""A progress with what is asked for carried out, by the batch of that number."""


class Requests:
    """Carries out what is asked for in the control folder *home* by way of *applied*, one after the other."""

    def __init__(self, home: Path, *applied: Applied) -> None:
        self._every_ms = SELDOM_MS if isinstance(home, ObjectPath) else 0
        self._applied = applied
        self._looked_at_ms: int | None = None

    def __call__(self, was: StreamProgress, batch: Batch) -> StreamProgress:
        """*was* with what is to be carried out by *batch*."""
        at_ms = batch.decided_at_ms
        if self._looked_at_ms is not None and at_ms - self._looked_at_ms < self._every_ms:
            return was
        self._looked_at_ms = at_ms
        for applied in self._applied:
            was = applied(was, batch.batch_id)
        return was
