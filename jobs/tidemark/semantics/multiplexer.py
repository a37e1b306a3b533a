"""Partition watermarks that arrive one at a time, as Flink's WatermarkOutputMultiplexer takes them.

A batch that has all partitions at hand calls `watermark.combine`; this state machine reaches the same watermark
step by step, for comparing with Flink. Every function returns the next state; `dataclasses.asdict` of it is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import Progress, combine, later


class Delivery(StrEnum):
    """Whether news of an output is combined at once or at the next periodic emission."""

    IMMEDIATE = "immediate"
    DEFERRED = "deferred"


@dataclass(frozen=True, kw_only=True)
class Multiplexer:
    """The outputs by name, and what has been sent on: the last watermark, and whether the whole is idle."""

    outputs: Mapping[str, Progress] = field(default_factory=dict)
    watermark_ms: int | None = None
    idle: bool = False


def registered(multiplexer: Multiplexer, output: str) -> Multiplexer:
    """With one more output, active and without a watermark yet.

    Raises:
        InvalidArgument: there is an *output* of that name already.
    """
    if output in multiplexer.outputs:
        msg = f"an output is registered once, {output!r} is registered already; unregister it first"
        raise InvalidArgument(msg)
    return replace(multiplexer, outputs={**multiplexer.outputs, output: Progress()})


def unregistered(multiplexer: Multiplexer, output: str) -> Multiplexer:
    """Without *output*; unchanged if there is none. What it held back moves at the next combination."""
    return replace(multiplexer, outputs={name: part for name, part in multiplexer.outputs.items() if name != output})


def advanced(multiplexer: Multiplexer, output: str, watermark_ms: int, delivery: Delivery) -> Multiplexer:
    """After *output* sent *watermark_ms*: it is active, and only a higher watermark than its last one counts.

    Raises:
        InvalidArgument: there is no such output.
    """
    before = _progress(multiplexer, output)
    after = Progress(watermark_ms=later(before.watermark_ms, watermark_ms))
    return _with(multiplexer, output, after, delivery if after != before else Delivery.DEFERRED)


def marked(multiplexer: Multiplexer, output: str, activity: Activity, delivery: Delivery) -> Multiplexer:
    """After *output* became *activity*; its watermark stays.

    Raises:
        InvalidArgument: there is no such output.
    """
    return _with(multiplexer, output, replace(_progress(multiplexer, output), activity=activity), delivery)


def combined(multiplexer: Multiplexer) -> Multiplexer:
    """After a periodic emission: everything deferred is taken into account."""
    result = combine(multiplexer.outputs, previous_ms=multiplexer.watermark_ms)
    return replace(multiplexer, watermark_ms=result.watermark_ms, idle=result.idle)


def _progress(multiplexer: Multiplexer, output: str) -> Progress:
    if output not in multiplexer.outputs:
        known = ", ".join(sorted(multiplexer.outputs)) or "none"
        msg = f"an output is registered before it is used, got {output!r}; registered: {known}"
        raise InvalidArgument(msg)
    return multiplexer.outputs[output]


def _with(multiplexer: Multiplexer, output: str, progress: Progress, delivery: Delivery) -> Multiplexer:
    changed = replace(multiplexer, outputs={**multiplexer.outputs, output: progress})
    return combined(changed) if delivery is Delivery.IMMEDIATE else changed
