"""Combines input watermarks that arrive one at a time.

It is Flink's StatusWatermarkValve. The product calls `watermark.combine_inputs` with all inputs of a batch; this state
machine, built on it, takes one watermark after the other. Every function returns the next state and the news in order:
a number is a watermark, `Activity.IDLE` and `Activity.ACTIVE` are the new state of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import Progress, combine_inputs, later

News = tuple[int | Activity, ...]


@dataclass(frozen=True, kw_only=True)
class Valve:
    """The inputs by name, with the watermark and idleness sent last."""

    inputs: Mapping[str, Progress]
    watermark_ms: int | None = None
    idle: bool = False


def opened(inputs: Iterable[str]) -> Valve:
    """Returns a valve over *inputs*, all active and without a watermark yet."""
    return Valve(inputs={name: Progress() for name in inputs})


def advanced(valve: Valve, name: str, watermark_ms: int) -> tuple[Valve, News]:
    """Applies a watermark of the input *name*.

    It has no effect while that input is idle, or if it is not higher than the last one.

    Raises:
        InvalidArgument: there is no such input.
    """
    before = _progress(valve, name)
    if before.activity is Activity.IDLE:
        return valve, ()
    return _settled(valve, name, replace(before, watermark_ms=later(before.watermark_ms, watermark_ms)))


def marked(valve: Valve, name: str, activity: Activity) -> tuple[Valve, News]:
    """Changes the activity of the input *name*; its watermark stays.

    Raises:
        InvalidArgument: there is no such input.
    """
    return _settled(valve, name, replace(_progress(valve, name), activity=activity))


def _progress(valve: Valve, name: str) -> Progress:
    if name not in valve.inputs:
        msg = f"a valve has the inputs it was opened with: {', '.join(sorted(valve.inputs))}; got {name!r}"
        raise InvalidArgument(msg)
    return valve.inputs[name]


def _settled(valve: Valve, name: str, progress: Progress) -> tuple[Valve, News]:
    inputs = {**valve.inputs, name: progress}
    result = combine_inputs(inputs, previous_ms=valve.watermark_ms)
    news: list[int | Activity] = []
    if valve.idle and not result.idle:
        news.append(Activity.ACTIVE)
    if result.watermark_ms is not None and result.watermark_ms != valve.watermark_ms:
        news.append(result.watermark_ms)
    if result.idle and not valve.idle:
        news.append(Activity.IDLE)
    return Valve(inputs=inputs, watermark_ms=result.watermark_ms, idle=result.idle), tuple(news)
