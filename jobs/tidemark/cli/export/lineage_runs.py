"""Makes OpenLineage events of the runs of streams: START, RUNNING, an end.

Purpose: receivers see when a stream ran, how it ended, what it wrote and how fresh that is.
How it works: a run is a driver's lease, and its id follows from stream and epoch. Events follow from recorded rows
(`heartbeats`, `batches`, `operator_batches`, `partition_batches`) and logs of tables alone. So an event has the same
content each time, and no stream waits for a receiver. A stream's control folder has the last event that was sent.
What it does not do: send RUNNING for hours that are older than KEPT_MS.
Clock: instants of events are the driver's, full hours are UTC. The clock of this process decides only when the RUNNING
of an hour is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import NamedTuple
from uuid import NAMESPACE_URL, uuid5

import attr
import polars as pl
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import DatasetFacet, OutputDatasetFacet, error_message_run, job_type_job
from openlineage.client.facet_v2 import input_statistics_input_dataset as input_statistics
from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics_facet

from tidemark.cli.export.lineage import NAMESPACE, PRODUCER, NotSent, StreamJob, send_each, stream_jobs
from tidemark.clock import Clock, wall_clock_ms
from tidemark.control.folder import Control, StreamState
from tidemark.control.liveness import liveness_of
from tidemark.facts.run_facts import RunFacts
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, iso
from tidemark.model.topology import SubTopology, Topology
from tidemark.safe_text import one_line
from tidemark.semantics.liveness import SILENT_AFTER_MS, Liveness

HOUR_MS, KEPT_MS = Grain.HOUR.length_ms, Grain.DAY.length_ms
SENT_AFTER_MS = 300_000
"""Delay of RUNNING after its hour; the facts are written by then."""
ORDER = {RunState.START: 0, RunState.RUNNING: 1}
"""The order of events at one instant; ends are last."""
ENDS = {
    StreamState.DRAINED: RunState.COMPLETE,
    StreamState.ROTATED: RunState.COMPLETE,
    StreamState.FINISHED: RunState.COMPLETE,
    StreamState.FAILED: RunState.FAIL,
}
"""The end of a run by the last state of its driver."""
FAULTS = frozenset({RunState.FAIL, RunState.ABORT})
FACET = "urn:tidemark:facets:1-0-0:FreshnessDatasetFacet"

Jobs = Callable[[], dict[str, StreamJob]]
"""Describes the streams of a topology, by name."""
Unsent = tuple[RunEvent, Callable[[], None]]
"""An event, and a function that records that it was sent."""


@attr.define
class FreshnessDatasetFacet(DatasetFacet):
    """How far an output was at the instant of its event.

    `stalenessMs` is the instant of the event − `newestEventTime`, ms; negative if the event time is ahead.
    """

    watermark: str | None = None
    newestEventTime: str | None = None  # noqa: N815  # names of a facet are in this case
    stalenessMs: int | None = None  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return f"{FACET}#/$defs/FreshnessDatasetFacet"


class RunChange(NamedTuple):
    """An event of the run of *epoch*, at *at_ms* (epoch ms).

    Its statistics are of batches that finished after *since_ms*.
    """

    epoch: int
    at_ms: int
    state: RunState
    since_ms: int
    reason: str | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """Its place among the events of the stream."""
        return self.epoch, self.at_ms, ORDER.get(self.state, len(ORDER))


def run_changes(beats: pl.DataFrame, finished: pl.Series, now_ms: int, *, is_gone: bool) -> list[RunChange]:
    """Returns the events of the runs of a stream, in order.

    Args:
        beats: BEAT_COLUMNS of `heartbeats`, instants as epoch ms.
        finished: when each batch finished, epoch ms.
        now_ms: the clock, epoch ms.
        is_gone: the driver of the last run is known to be dead.
    """
    changes: list[RunChange] = []
    runs = beats.sort("epoch", "beat_at", maintain_order=True).partition_by("epoch", maintain_order=True)
    before_ms = None
    for place, run in enumerate(runs):
        follower = runs[place + 1].row(0, named=True) if place + 1 < len(runs) else None
        last, start_ms = run.row(-1, named=True), run["beat_at"][0]
        # Batches that are finished by the driver's successor count for that one.
        until_ms = follower["beat_at"] if follower else now_ms + 1
        own = finished.filter((finished >= start_ms) & (finished < until_ms)).max()
        seen_ms = max(last["beat_at"], own if isinstance(own, int) else start_ms)
        state, reason = ENDS.get(last["state"]), last["reason"]
        if state is None and follower is not None:
            state, reason = RunState.ABORT, follower["predecessor_killed_by"] or "another driver took over"
        elif state is None and is_gone:
            state, reason = RunState.ABORT, "the driver ended without a last heartbeat"
        since_ms = start_ms if before_ms is None else before_ms
        changes.append(RunChange(last["epoch"], start_ms, RunState.START, since_ms))
        hours_end_ms = seen_ms if state else min(seen_ms + 1, now_ms - SENT_AFTER_MS)
        for hour_ms in range((start_ms // HOUR_MS + 1) * HOUR_MS, hours_end_ms, HOUR_MS):
            if hour_ms >= now_ms - KEPT_MS:
                changes.append(RunChange(last["epoch"], hour_ms, RunState.RUNNING, since_ms))
            since_ms = hour_ms
        if state is not None:
            changes.append(RunChange(last["epoch"], seen_ms, state, since_ms, reason if state in FAULTS else None))
        before_ms = seen_ms
    return changes


class StreamRuns:
    """The unsent events of the runs of *sub*, as of *now_ms*."""

    def __init__(self, layout: Layout, topology: Topology, sub: SubTopology, jobs: Jobs, now_ms: int) -> None:
        self._home, self._sub, self._jobs = layout.stream(topology.name, sub.name), sub, jobs
        self._control = Control(layout.control(topology.name, sub.name))
        self._facts = RunFacts(self._home, now_ms)
        self._now_ms = now_ms

    def sign(self) -> tuple[object, ...]:
        """Returns a value that changes as soon as there may be events."""
        beat = self._control.heartbeat()
        hour = (self._now_ms - SENT_AFTER_MS) // HOUR_MS
        return (beat.epoch, beat.state, self._is_gone, hour) if beat else (hour,)

    @property
    def _is_gone(self) -> bool:
        """True if the newest driver has been dead for a minute, so that nobody says any more who killed it."""
        beat = self._control.heartbeat()
        if beat is None or self._now_ms - beat.at_ms <= SILENT_AFTER_MS:
            return False
        return liveness_of(self._control.home, self._now_ms) is Liveness.DEAD

    def unsent(self) -> Iterator[Unsent]:
        """Yields the events that were not sent, in order."""
        beats = self._beats()
        if beats.is_empty():
            return
        batches = self._facts.batches
        changes = run_changes(beats, batches["finished_at"], self._now_ms, is_gone=self._is_gone)
        sent = self._control.lineage_sent()
        # The first call sends only the newest run.
        after = (changes[-1].epoch, -1, -1) if sent is None else (sent["epoch"], sent["at_ms"], sent["order"])
        for change in changes:
            if change.place > after:
                kept = dict(zip(("epoch", "at_ms", "order"), change.place, strict=True))
                yield self._event(change, batches), partial(self._control.keep_lineage_sent, kept)

    def _beats(self) -> pl.DataFrame:
        beats = self._facts.beats
        beat = self._control.heartbeat()
        # A driver that failed early may have no rows, only its last beat.
        if beat is None or beat.state not in ENDS:
            return beats
        row = {"epoch": beat.epoch, "beat_at": beat.at_ms, "state": beat.state.value, "reason": beat.reason,
               "predecessor_killed_by": beat.predecessor_killed_by}  # fmt: skip
        return pl.concat([beats, pl.DataFrame([row], schema=beats.schema)])

    def _event(self, change: RunChange, batches: pl.DataFrame) -> RunEvent:
        at, until = pl.col("finished_at"), batches.filter(pl.col("finished_at") <= change.at_ms)
        own = until.filter(at > change.since_ms)["batch_id"].to_list()
        is_start = change.state is RunState.START
        facets = {} if is_start else {"tidemark_freshness": self._freshness(change.at_ms, until)}
        run = Run(runId=str(uuid5(NAMESPACE_URL, f"{self._home}/{change.epoch}")))
        if change.reason is not None:
            failure = error_message_run.ErrorMessageRunFacet(message=change.reason, programmingLanguage="PYTHON")
            run.facets = {"errorMessage": failure}
        kind = job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="TIDEMARK", jobType="STREAM")
        job, outputs = self._jobs()[self._sub.name], []
        for name, output in job.outputs.items():
            statistics = {} if is_start else {"outputStatistics": self._statistics(name, own)}
            outputs.append(
                OutputDataset(
                    output.namespace,
                    output.name,
                    facets={**(output.facets or {}), **facets},
                    outputFacets={**statistics},
                )
            )
        return RunEvent(
            eventType=change.state,
            eventTime=iso(change.at_ms),
            producer=PRODUCER,
            run=run,
            job=Job(namespace=NAMESPACE, name=job.name, facets={"jobType": kind}),
            inputs=[*(job.all_inputs if is_start else self._with_statistics(job, own))],
            outputs=outputs,
        )

    def _freshness(self, at_ms: int, until: pl.DataFrame) -> FreshnessDatasetFacet:
        """Returns the freshness after the batches *until* the instant *at_ms*."""
        newest_ms = self._facts.newest_ms(until["batch_id"].max())  # type: ignore[arg-type]
        watermark_ms = until["watermark"].drop_nulls().tail(1)
        return FreshnessDatasetFacet(
            watermark=iso(watermark_ms.item()) if watermark_ms.len() else None,
            newestEventTime=None if newest_ms is None else iso(newest_ms),
            stalenessMs=None if newest_ms is None else at_ms - newest_ms,
        )

    def _with_statistics(self, job: StreamJob, batches: list[int]) -> Iterator[InputDataset]:
        """Yields the inputs of *job* with the rows that *batches* read.

        Tables that joins look up have none.
        """
        for source, datasets in job.inputs.items():
            # The records of several topics are counted together in `operator_batches`.
            of_topics = self._facts.offsets_read(source, batches) if len(datasets) > 1 else {}
            for dataset in datasets:
                rows = (
                    of_topics.get(dataset.name, 0) if len(datasets) > 1 else self._facts.records_read(source, batches)
                )
                facet = input_statistics.InputStatisticsInputDatasetFacet(rowCount=rows)
                yield InputDataset(dataset.namespace, dataset.name, inputFacets={"inputStatistics": facet})
        yield from job.joined

    def _statistics(self, operator: str, batches: list[int]) -> OutputDatasetFacet:
        """Returns what *operator* wrote in *batches*."""
        rows = self._facts.updates_given(operator, batches)
        table = next(each for each in self._sub.handing_out if each.name == operator)
        # Rows of a merged table are in files with older ones.
        is_appended = table.output_table is not None and table.appends_to == table.output_table
        added = self._facts.files_added(str(table.output_table), batches) if is_appended else None
        size, files = (added.size, added.files) if added else (None, None)
        return statistics_facet.OutputStatisticsOutputDatasetFacet(rowCount=rows, size=size, fileCount=files)


def unsent_events(layout: Layout, topologies: Iterable[Topology], now_ms: int) -> Iterator[Unsent]:
    """Yields the events of the runs of *topologies* that were not sent."""
    for topology in topologies:
        jobs = cache(partial(stream_jobs, topology, layout))
        for sub in topology.sub_topologies:
            yield from StreamRuns(layout, topology, sub, jobs, now_ms).unsent()


class RunReporter:
    """Sends the events of the runs of *topologies* that were not sent.

    *send* raises NotSent if the receiver does not take an event: it and later ones of its stream wait for the next
    call. *say* gets a sentence when trouble begins, and when it is over. *clock* returns epoch ms.
    """

    def __init__(
        self,
        layout: Layout,
        topologies: Callable[[], Iterable[Topology]],
        send: Callable[[RunEvent], None],
        say: Callable[[str], None],
        *,
        clock: Clock = wall_clock_ms,
    ) -> None:
        self._layout, self._topologies, self._send, self._say, self._clock = layout, topologies, send, say, clock
        self._signs: dict[str, tuple[object, ...]] = {}
        self._troubles: dict[str, str] = {}

    def report(self) -> bool:
        """Sends the new events of each stream.

        It returns False if any were not sent. A stream that cannot be read hides no other one, and neither does one
        whose event the receiver refuses.
        """
        refusal = send_each(self._streams())
        if refusal is not None:
            self._say_trouble("", refusal)
        else:
            self._say_end("", "OpenLineage takes events again")
        return not self._troubles

    def _streams(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for topology in self._topologies():
            jobs = cache(partial(stream_jobs, topology, self._layout))
            for sub in topology.sub_topologies:
                yield f"{topology.name}.{sub.name}", partial(self._report_stream, topology, sub, jobs)

    def _report_stream(self, topology: Topology, sub: SubTopology, jobs: Jobs) -> None:
        name = f"{topology.name}.{sub.name}"
        try:
            runs = StreamRuns(self._layout, topology, sub, jobs, self._clock())
            sign = runs.sign()
            if self._signs.get(name) != sign:
                for event, keep in runs.unsent():
                    self._send(event)
                    keep()
            self._signs[name] = sign
        except NotSent:
            raise
        except Exception as error:  # one stream in trouble must not hold the others
            self._say_trouble(name, f"{name}: no events of its runs: {one_line(str(error))}")
        else:
            self._say_end(name, f"{name}: events of its runs are sent again")

    def _say_trouble(self, place: str, trouble: str) -> None:
        if place not in self._troubles:
            self._say(trouble)
        self._troubles[place] = trouble

    def _say_end(self, place: str, sentence: str) -> None:
        if self._troubles.pop(place, None) is not None:
            self._say(sentence)
