"""What Spark has observed of the records of a batch, as `tidemark.api.observe` asks for it.

Spark cannot group what it observes, so there is no histogram: only number, extremes and sum of the latencies, and for
each limit of an SLA the number of records over it.

A latency ends with its batch, and when that will end is not known while the records are counted. So a limit is counted
STEPS + 1 times: for a batch that takes no time, a tenth of the limit, two tenths, and so on up to the limit itself. The
count of the first of these lengths that is not shorter than the batch has all records over the limit, and none whose
latency is shorter than the limit by a tenth of it or more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OBSERVATION = "tidemark"
"""The name of the observation in a query's plan and in Spark's progress."""
STEPS = 10
"""Into so many steps a limit is divided, by which batches of different lengths are told apart."""
_COUNT = re.compile(r"over_(\d+)_(\d+)")


def lengths_ms(limit_ms: int) -> list[int]:
    """Returns the lengths of a batch for which *limit_ms* is counted."""
    step_ms = -(-limit_ms // STEPS)
    return [n * step_ms for n in range(STEPS + 1)]


def over_name(limit_ms: int, took_ms: int) -> str:
    """Returns the name of the count for a limit and a length of the batch."""
    return f"over_{limit_ms}_{took_ms}"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What was observed of the records of a batch; instants are epoch ms.

    Attributes:
        n: the records with a credible event time.
        oldest_ms: their earliest event time; None without records.
        newest_ms: their latest event time.
        sum_ms: the sum of `began_ms` − event time; None without records, or beyond 64 bits.
        began_ms: Spark's instant of the batch, from which it was counted; None without rows.
        too_early_n: the records whose event time is too early to be credible, which are in the counts of `over`.
        over: by limit and by length of the batch, both ms: the records over the limit if the batch takes so long.
    """

    n: int
    oldest_ms: int | None
    newest_ms: int | None
    sum_ms: int | None
    began_ms: int | None
    too_early_n: int
    over: Mapping[int, Mapping[int, int]]

    def latency(self, finished_ms: int) -> dict[str, Any] | None:
        """Returns the statistics of `operator_batches` for a batch that ended at *finished_ms*; None without any.

        `negative_n` is null if some records may come from the future, since they are not counted.
        """
        if self.oldest_ms is None or self.newest_ms is None or self.sum_ms is None or self.began_ms is None:
            return None
        least_ms = finished_ms - self.newest_ms
        return {
            "n": self.n,
            "min_ms": least_ms,
            "max_ms": finished_ms - self.oldest_ms,
            "sum_ms": self.sum_ms + self.n * (finished_ms - self.began_ms),
            "negative_n": 0 if least_ms >= 0 else None,
        }

    def over_limits(self, finished_ms: int) -> list[dict[str, int]]:
        """Returns the rows of `operator_batches.over_limits` for a batch that ended at *finished_ms*."""
        return [{"limit_ms": limit_ms, "n": self._over(limit_ms, finished_ms)} for limit_ms in sorted(self.over)]

    def _over(self, limit_ms: int, finished_ms: int) -> int:
        if self.newest_ms is not None and finished_ms - self.newest_ms > limit_ms:
            return self.n  # also of a batch that takes longer than the limit
        took_ms = 0 if self.began_ms is None else finished_ms - self.began_ms
        counts = self.over[limit_ms]
        n = counts[min((length_ms for length_ms in counts if length_ms >= took_ms), default=max(counts))]
        return n - self.too_early_n


def observed_in(progress: Mapping[str, Any]) -> Observed | None:
    """Returns what was observed in a batch, given Spark's progress of it; None: nothing."""
    metrics = (progress.get("observedMetrics") or {}).get(OBSERVATION)
    if metrics is None:
        return None
    over = dict[int, dict[int, int]]()
    for name, count in metrics.items():
        if counted := _COUNT.fullmatch(name):
            limit_ms, took_ms = map(int, counted.groups())
            over.setdefault(limit_ms, {})[took_ms] = count
    times = {name: metrics.get(name) for name in ("oldest_ms", "newest_ms", "sum_ms", "began_ms")}
    return Observed(n=metrics["n"], **times, too_early_n=metrics["too_early_n"], over=over)
