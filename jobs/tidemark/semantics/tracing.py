"""Names the batches of streams in distributed traces.

A batch is a span. It has no single parent, because it reads records of many spans; these become its links. The ids of
the span are computed from the batch, so every process that sends its records, and every repeated try, sends the same
ids. Source: W3C Trace Context, level 1 (`traceparent`, version 00).
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

FORM = "^00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$"
"""The form of a `traceparent`: trace, span, flags."""


class SpanId(NamedTuple):
    """A span and its trace, as numbers of 64 and 128 bits."""

    trace: int
    span: int

    @property
    def traceparent(self) -> str:
        """The `traceparent` header of records that the span sends, with the flag "sampled".

        >>> SpanId(10, 11).traceparent
        '00-0000000000000000000000000000000a-000000000000000b-01'
        """
        return f"00-{self.trace:032x}-{self.span:016x}-01"


def span_of_batch(writer: str, epoch: int, batch_id: int, decided_at_ms: int) -> SpanId:
    """Returns the span of a batch.

    Args:
        writer: `topology/sub-topology`.
        epoch: number of the lease under which the batch was decided.
        batch_id: number of the batch.
        decided_at_ms: its decision time, epoch ms, which tells it from batches of other warehouses whose streams have
            the same name.
    """
    digest = hashlib.sha256(f"{writer}/{epoch}/{batch_id}/{decided_at_ms}".encode()).digest()
    return SpanId(int.from_bytes(digest[:16]), int.from_bytes(digest[16:24]))


def span_in(traceparent: str) -> SpanId | None:
    """Returns the span that a `traceparent` header names, or None for an invalid header.

    >>> span_in("00-0000000000000000000000000000000a-000000000000000b-01")
    SpanId(trace=10, span=11)
    """
    match = re.fullmatch(FORM, traceparent)
    span = SpanId(int(match[1], 16), int(match[2], 16)) if match else SpanId(0, 0)
    return span if all(span) else None
