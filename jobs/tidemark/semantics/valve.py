"""Input watermarks that arrive one at a time, as Flink's StatusWatermarkValve takes them.

An operator that has all inputs at hand calls `watermark.combine_inputs`; this state machine, built on it, says step
by step what is sent on. Every function returns the next state and the news in order: a number is a watermark,
`Activity.IDLE` and `Activity.ACTIVE` say that the whole has become so. `dataclasses.asdict` of a state is JSON.
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
    """The inputs by name, and what has been sent on: the last watermark, and whether the whole is idle."""

    inputs: Mapping[str, Progress]
    watermark_ms: int | None = None
    idle: bool = False


def opened(inputs: Iterable[str]) -> Valve:
    """A valve over *inputs*, all active and without a watermark yet."""
    return Valve(inputs={name: Progress() for name in inputs})


def advanced(valve: Valve, name: str, watermark_ms: int) -> tuple[Valve, News]:
    """After input *name* sent *watermark_ms*; ignored while that input is idle, and unless higher than its last.

    Raises:
        InvalidArgument: there is no such input.
    """
    before = _progress(valve, name)
    if before.activity is Activity.IDLE:
        return valve, ()
    return _settled(valve, name, replace(before, watermark_ms=later(before.watermark_ms, watermark_ms)))


def marked(valve: Valve, name: str, activity: Activity) -> tuple[Valve, News]:
    """After input *name* became *activity*; its watermark stays.

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
