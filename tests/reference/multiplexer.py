"""Combines partition watermarks that arrive one at a time.

It is Flink's WatermarkOutputMultiplexer. The product calls `watermark.combine` with all partitions of a batch; this
state machine reaches the same watermark step by step. Every function returns the next state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import Progress, combine, later


class Delivery(StrEnum):
    """The time at which a change of an output is combined.

    It is at once, or the next periodic emission.
    """

    IMMEDIATE = "immediate"
    DEFERRED = "deferred"


@dataclass(frozen=True, kw_only=True)
class Multiplexer:
    """The outputs by name, with the watermark and idleness sent last."""

    outputs: Mapping[str, Progress] = field(default_factory=dict)
    watermark_ms: int | None = None
    idle: bool = False


def registered(multiplexer: Multiplexer, output: str) -> Multiplexer:
    """Adds an output, active and without a watermark yet.

    Raises:
        InvalidArgument: there is an *output* of that name already.
    """
    if output in multiplexer.outputs:
        msg = f"an output is registered once, {output!r} is registered already; unregister it first"
        raise InvalidArgument(msg)
    return replace(multiplexer, outputs={**multiplexer.outputs, output: Progress()})


def unregistered(multiplexer: Multiplexer, output: str) -> Multiplexer:
    """Removes *output*, if there is one.

    The watermark that it held back moves at the next combination.
    """
    return replace(multiplexer, outputs={name: part for name, part in multiplexer.outputs.items() if name != output})


def advanced(multiplexer: Multiplexer, output: str, watermark_ms: int, delivery: Delivery) -> Multiplexer:
    """Applies a watermark of *output*, which becomes active.

    A watermark that is not higher than the last one has no effect.

    Raises:
        InvalidArgument: there is no such output.
    """
    before = _progress(multiplexer, output)
    after = Progress(watermark_ms=later(before.watermark_ms, watermark_ms))
    return _with(multiplexer, output, after, delivery if after != before else Delivery.DEFERRED)


def marked(multiplexer: Multiplexer, output: str, activity: Activity, delivery: Delivery) -> Multiplexer:
    """Changes the activity of *output*; its watermark stays.

    Raises:
        InvalidArgument: there is no such output.
    """
    return _with(multiplexer, output, replace(_progress(multiplexer, output), activity=activity), delivery)


def combined(multiplexer: Multiplexer) -> Multiplexer:
    """Combines all outputs, as a periodic emission does."""
    result = combine(multiplexer.outputs, previous_ms=multiplexer.watermark_ms)
    return replace(multiplexer, watermark_ms=result.watermark_ms, idle=result.idle)


def _progress(multiplexer: Multiplexer, output: str) -> Progress:
    if output not in multiplexer.outputs:
        names = ", ".join(sorted(multiplexer.outputs)) or "none"
        msg = f"an output is registered before it is used, got {output!r}; registered: {names}"
        raise InvalidArgument(msg)
    return multiplexer.outputs[output]


def _with(multiplexer: Multiplexer, output: str, progress: Progress, delivery: Delivery) -> Multiplexer:
    changed = replace(multiplexer, outputs={**multiplexer.outputs, output: progress})
    return combined(changed) if delivery is Delivery.IMMEDIATE else changed
