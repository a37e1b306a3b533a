"""Adds the breaks that are expected of SLAs that hold.

Measurements are those of each minute before the check, not of the SLA's `over`: a maximum over ten minutes hides noise,
which is no growth. No break is expected of an SLA while a driver of its streams does not run, or hangs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tidemark.collecting import index_by_name, present
from tidemark.control.folder import StreamState
from tidemark.model.settings.intervals import Interval, iso
from tidemark.model.settings.lengths import for_people
from tidemark.model.sla_spec import QUANTILES, Measure, SlaSpec
from tidemark.model.topology import Topology
from tidemark.reports.paths.path_facts import Row, Tables
from tidemark.semantics.buckets import quantile
from tidemark.semantics.catching_up import HANGS_AFTER_MS
from tidemark.semantics.forecast import FORESEEABLE_MS, LOOK_BACK_MS, RATES_MS, Forecast, Point, Rates, forecast
from tidemark.semantics.sla import Sla, Verdict
from tidemark.sla.measures.batches import BEFORE_LATER, known_batches
from tidemark.sla.measures.status import ExpectedBreak, Status, streams_of

MINUTE_MS = 60_000
_BEFORE = f"(($2 - epoch_ms({{at}}) - 1) // {MINUTE_MS})::bigint"
"""The number of whole minutes between an instant and the check, $2."""
LATENCIES = f"""
    SELECT operator AS subject, {_BEFORE.format(at="finished_at")} AS minute, bucket, sum(n)::bigint AS n
    FROM latency_buckets WHERE topology = $1 AND {{lately}} GROUP BY ALL
"""
LAGS = f"""
    WITH {{known}}
    SELECT coalesce(t.source, sub_topology) AS subject, {_BEFORE.format(at="f.finished_at")} AS minute,
           min(epoch_ms(f.finished_at) - epoch_ms(t.watermark)) AS ms
    FROM watermarks AS t JOIN finished AS f USING (sub_topology, batch_id) {BEFORE_LATER}
         AND t.topology = $1 AND t.partition IS NULL AND t.watermark IS NOT NULL AND f.read_n > 0 AND {{lately}}
    GROUP BY t.source, sub_topology, minute ORDER BY t.source NULLS FIRST
"""
AGES = f"""
    WITH {{known}}
    SELECT operator AS subject, {_BEFORE.format(at="f.finished_at")} AS minute,
           min(epoch_ms(f.finished_at) - t.newest_ms) AS ms
    FROM ({{outcomes}}) AS t JOIN finished AS f USING (sub_topology, batch_id) {BEFORE_LATER}
         AND t.newest_ms IS NOT NULL AND {{lately}}
    GROUP BY ALL
"""
BEATS = """
    SELECT sub_topology, state, reason, epoch_ms("at") AS at_ms, epoch_ms(since) AS since_ms,
           epoch_ms(batch_started_at) AS began_ms, arrival_per_s, working_per_s
    FROM heartbeats WHERE topology = $1 AND {lately} ORDER BY sub_topology, "at", epoch, batch_id
"""


def with_forecasts(
    statuses: Iterable[Status], specs: Iterable[SlaSpec], topology: Topology, tables: Tables, *, at_ms: int
) -> Iterator[Status]:
    """Adds the expected break to the status of each SLA that holds.

    Args:
        statuses: the statuses at *at_ms*.
        specs: their SLAs, with the limits of all hours.
        topology: that promises the SLAs.
        tables: of the warehouse.
        at_ms: the instant of the check, epoch ms.
    """
    judged, whole = list(statuses), index_by_name(specs)
    foreseeable = [status.spec for status in judged if _is_foreseeable(status)]
    history = _Minutes(topology, tables, at_ms, {spec.measure for spec in foreseeable}) if foreseeable else None
    for status in judged:
        is_foreseeable = history and status.spec in foreseeable
        expected = history.expected(whole[status.spec.name]) if history and is_foreseeable else None
        yield replace(status, expected=expected) if expected else status


def _is_foreseeable(status: Status) -> bool:
    return status.verdict is Verdict.PASS and not status.is_excused and status.spec.is_foreseeable


class _Minutes:
    """Looks up measurements and rates of the minutes before *at_ms*."""

    def __init__(self, topology: Topology, tables: Tables, at_ms: int, measures: set[Measure]) -> None:
        self._topology, self._tables, self._at_ms = topology, tables, at_ms
        # An interval excludes its end, and a heartbeat of the check's instant counts.
        beats = Interval(at_ms - RATES_MS, at_ms + 1).holds('"at"')
        self._beats: dict[str, list[Row]] = defaultdict(list)
        for beat in tables.ask(BEATS.format(lately=beats), [topology.name]).objects:
            self._beats[beat["sub_topology"]].append(beat)
        span = Interval(at_ms - LOOK_BACK_MS, at_ms)
        self._histograms: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        if not measures.isdisjoint(QUANTILES):
            for row in self._ask(LATENCIES.format(lately=span.holds("finished_at"))):
                self._histograms[row["subject"], row["minute"]].append((row["bucket"], row["n"]))
        lately = span.holds("f.finished_at")
        self._lags: Sequence[Row] = []
        self._ages: Sequence[Row] = []
        if measures.isdisjoint({Measure.WATERMARK_LAG, Measure.STALENESS}):
            return
        batches = known_batches(tables, topology.name, at_ms=at_ms, since_ms=span.start_ms)
        if Measure.WATERMARK_LAG in measures:
            self._lags = self._ask(LAGS.format(known=batches.sql, lately=lately))
        if Measure.STALENESS in measures:
            self._ages = self._ask(AGES.format(known=batches.sql, outcomes=batches.outcomes(topology), lately=lately))

    def _ask(self, sql: str) -> Sequence[Row]:
        return self._tables.ask(sql, [self._topology.name, self._at_ms]).objects

    def expected(self, spec: SlaSpec) -> ExpectedBreak | None:
        """Returns the break that is expected of *spec*, if any."""
        beats = [self._beats.get(sub.name, []) for sub in streams_of(spec, self._topology)]
        if not isinstance(spec.limits, Sla) or not all(of_stream and _works(of_stream[-1]) for of_stream in beats):
            return None
        since_ms = max((of_stream[-1]["since_ms"] or 0 for of_stream in beats), default=0)
        points = [point for point in self._points(spec) if point[0] - MINUTE_MS >= since_ms]
        rates = {of_stream[-1]["sub_topology"]: [_rates(beat) for beat in of_stream] for of_stream in beats}
        # One stream that catches up shortens the wait of all.
        newest = present([of_stream[-1] for of_stream in rates.values()])
        if any(each.growth <= 0 for each in newest):
            return None
        limits = list(_limits_ahead(spec, self._at_ms))
        by_stream = {name: _first_break(points, each, limits) for name, each in rates.items()}
        forecasts = [(each, name) for name, each in by_stream.items() if each is not None]
        if not forecasts:
            return None
        first, stream = min(forecasts, key=lambda pair: pair[0].breaks_at_ms)
        return ExpectedBreak(first.breaks_at_ms, _because(first, stream, spec, points, self._at_ms))

    def _points(self, spec: SlaSpec) -> list[Point]:
        """Returns the measurements of *spec*'s subject, a point a minute."""
        by_minute: Mapping[int, float | None]
        match spec.measure:
            case Measure.WATERMARK_LAG:
                by_minute = {row["minute"]: row["ms"] for row in self._lags if row["subject"] == spec.subject}
            case Measure.STALENESS:
                operators = self._topology.operators.values()
                sinks = {o.name for o in operators if o.result_table == spec.subject}
                by_minute = {row["minute"]: row["ms"] for row in self._ages if row["subject"] in sinks}
            case _:
                q, histograms = QUANTILES[spec.measure], self._histograms.items()
                by_minute = {
                    minute: quantile(counts, q) for (name, minute), counts in histograms if name == spec.subject
                }
        # A minute's point is at its end.
        points = [(self._at_ms - minute * MINUTE_MS, ms) for minute, ms in by_minute.items() if ms is not None]
        return sorted(points)


def _limits_ahead(spec: SlaSpec, at_ms: int) -> Iterator[tuple[Interval, float]]:
    """Yields the limits of *spec* after *at_ms*, each with its time."""
    end_ms = at_ms + FORESEEABLE_MS + MINUTE_MS
    # Hours of the week begin with a whole minute.
    starts = range(at_ms // MINUTE_MS * MINUTE_MS, end_ms, MINUTE_MS) if spec.hours else [at_ms]
    spans = [(next(of_limits), limits) for limits, of_limits in groupby(starts, key=lambda ms: spec.at(ms).limits)]
    ends_ms = [*(start_ms for start_ms, _ in spans[1:]), end_ms]
    for (start_ms, limits), span_end_ms in zip(spans, ends_ms, strict=True):
        if isinstance(limits, Sla):
            yield Interval(start_ms, span_end_ms), limits.least_ms


def _first_break(
    points: Sequence[Point], rates: Sequence[Rates | None], limits: Iterable[tuple[Interval, float]]
) -> Forecast | None:
    """Returns the first break of one of *limits* in its time."""
    for time, limit_ms in limits:
        at = forecast(points, limit_ms=limit_ms, rates=rates)
        if at is not None and at.breaks_at_ms < time.end_ms:
            # A length that is above a limit already breaks it when its time begins.
            return replace(at, breaks_at_ms=max(at.breaks_at_ms, time.start_ms))
    return None


def _works(beat: Row) -> bool:
    """Returns True if the driver runs and does not hang."""
    began_ms = beat["at_ms"] if beat["began_ms"] is None else beat["began_ms"]
    return (
        beat["state"] == StreamState.RUNNING and beat["reason"] is None and beat["at_ms"] - began_ms <= HANGS_AFTER_MS
    )


def _rates(beat: Row) -> Rates | None:
    if beat["arrival_per_s"] is None or beat["working_per_s"] is None:
        return None
    return Rates(arrival_per_s=beat["arrival_per_s"], working_per_s=beat["working_per_s"])


def _because(first: Forecast, stream: str, spec: SlaSpec, points: Sequence[Point], at_ms: int) -> str:
    """Returns the reason for a break, which *points* show, as a sentence."""
    growth = f"{for_people(first.growth * MINUTE_MS)} a minute"
    minutes = max(1, round((first.breaks_at_ms - at_ms) / MINUTE_MS))
    when = f"{spec.measure} of {spec.subject} breaks in about {minutes} min, at {iso(first.breaks_at_ms)}, because"
    if first.rates is None:
        return f"{when} it has grown by {growth} for {for_people(points[-1][0] - points[0][0])}"
    came, read = first.rates.arrival_per_s, first.rates.working_per_s
    return f"{when} {came:,.0f} records/s come into {stream}, which reads {read:,.0f}: it grows by {growth}"
