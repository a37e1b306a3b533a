"""Transactions of producers that stay open, and hold back what reads their topics."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.semantics.progress import Place


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction that a look has found open.

    Attributes:
        source: the source that waits for its end.
        partition: the input partition.
        place: this partition at the broker.
        stable_offset: the last stable offset, which is that of its first record.
        since_ms: the first look that found it, epoch ms.
    """

    source: str
    partition: int
    place: Place
    stable_offset: int
    since_ms: int
