"""Finds what keeps queries of a team's own jobs from giving results."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tidemark.account.owners.registry import OWNERS
from tidemark.facts.outcome_facts import LATELY
from tidemark.facts.stream_facts import StreamFacts
from tidemark.kernels.columns.quantiles import median_of
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import for_people
from tidemark.model.tables.catalog import BATCHES
from tidemark.recorded_jobs.queries import FILE, RecordedQuery, read_query
from tidemark.semantics.quantiles import MEDIAN, quantile_of
from tidemark.semantics.segments import SegmentOwner
from tidemark.why.causes.inputs import WRONG_TIME_UNIT
from tidemark.why.causes.registry import rule
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding
from tidemark.why.evidence.snapshot import Scene, began

SLOW_PHASE = Cause(
    "slow_phase",
    Trait.USUAL,
    "of a [query of a job](any-stream.md): its last five batches took longer than its trigger, or a "
    "minute; the phase of Spark that took longest",
)
SOURCE_HOLDS_BACK = Cause(
    "source_holds_back",
    Trait.FAULT | Trait.EVENT_TIME,
    "of a query of a job: its watermark stood still in its last five batches, and no record of this source came",
)
OLD_RECORDS = Cause(
    "old_records",
    Trait.USUAL,
    "of a query of a job: every record of its last five batches was over a minute old, and Spark does not "
    "report how many wait",
)
NEW_CHECKPOINT = Cause(
    "new_checkpoint",
    Trait.USUAL,
    "a query of a job began again within the last hour, with another checkpoint",
)

LONG_BATCH_MS = 60_000
"""A batch is long above this length, ms, if its query has no trigger."""
OLD_RECORD_MS = 60_000
"""A record is old above this age at the end of its batch, ms."""
QUIET_AFTER_MS = 60_000
"""A query is quiet this long after its last batch, beyond the length of its longest one, ms."""
NEW_FOR_MS = 3_600_000
"""A checkpoint counts as new for this long, ms."""
MEANINGS = {phase: meaning for owner in OWNERS.values() for phase, meaning in owner.phases.items()}
"""What Spark does in the phases of a batch."""
LIMITS = {"topic": "maxOffsetsPerTrigger", "delta": "maxFilesPerTrigger", "files": "maxFilesPerTrigger"}
"""The option that makes batches smaller, by the kind of source."""
FIRST_READS = {
    "topic": "topics from their startingOffsets",
    "delta": "tables from their startingVersion (default: all rows)",
    "files": "all files that are in its folders",
}
"""What a query with a new checkpoint reads first, by the kind of source."""


@rule
def queries(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields why the job's query of the operator *name* gives no results, and then why the queries upstream give
    none.
    """
    if not scene.topology.jobs:
        return
    yield from _wrong_unit(scene, name)
    yield from _source_holding(scene, name)
    yield from _slow_phase(scene, name)
    yield from _old_records(scene, name)
    yield from _new_checkpoint(scene, name)
    for source in scene.sub(name).outside_sources:
        for writer in source.written_to_by:
            yield from queries(scene, writer)


def _wrong_unit(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields a finding if the newest batch with records reports event times that a wrong unit explains."""
    last, sub = scene.of(name).newest_batches_of_query, scene.sub(name)
    newest = last["wrong_times"].to_list()[-1] if last.height else None
    if not newest:
        return
    texts = {time["which"]: time["text"] for time in newest}
    which = next(iter(texts))
    what = "its watermark is" if which == "watermark" else f"the {which} of the event times of its last batch is"
    year = int(texts[which].lstrip("-").partition("-")[0])
    is_beyond = which == "watermark" and year > 2261
    effect = ", so all records with a right time are behind it" if is_beyond else ""
    remedy = (
        "correct the unit of the event time: Spark takes a number that is cast to a timestamp for seconds; convert "
        "milliseconds with timestamp_millis(), microseconds with timestamp_micros()"
    )
    if is_beyond:
        remedy += "; then give the query a new checkpoint, because a watermark never goes back"
    sources = sub.outside_sources
    numbers = scene.of(name).batches_with_records["batch_id"]
    batches = scene.of(name).tables.of_batches(BATCHES, numbers, columns=("batch_id", "finished_at", "wrong_times"))
    yield scene.finding(
        WRONG_TIME_UNIT,
        sub.name,
        f"{what} {texts[which]}, outside of the years 1971 to 2261{effect}",
        remedy,
        input=sources[0].name if len(sources) == 1 else None,
        since_ms=began(batches.sort("batch_id"), pl.col("wrong_times").is_not_null()),
    )


def _source_holding(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields the silent sources, if other sources have records and the watermark stands still."""
    facts, sub = scene.of(name), scene.sub(name)
    last = facts.newest_batches_of_query
    marks = last["watermark"].drop_nulls()
    if last.height < LATELY or marks.len() < LATELY or marks.n_unique() > 1 or len(sub.outside_sources) < 2:
        return
    reads = facts.reads.of_batches(last["batch_id"])
    silent = [source.name for source in sub.outside_sources if not _records(reads, source.name)]
    for source in silent if len(silent) < len(sub.outside_sources) else ():
        yield scene.finding(
            SOURCE_HOLDS_BACK,
            sub.name,
            f"no record of it came in the last {LATELY} batches, and the watermark stands at {iso(marks[0])}: Spark's "
            "watermark of a query is that of its slowest source",
            "check that its producer runs; if it may be silent, set spark.sql.streaming.multipleWatermarkPolicy to "
            "max, which drops records of the slower source",
            input=source,
            since_ms=facts.reads.newest(source)["finished_at"].max() or facts.tables.first_finished_ms,  # type: ignore[arg-type]
        )


def _records(reads: pl.DataFrame, source: str) -> int:
    return int(reads.filter(pl.col("source") == source)["n"].sum())


def _slow_phase(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields the phase of Spark that takes longest, if the median of the last batches is longer than the limit."""
    facts, sub = scene.of(name), scene.sub(name)
    query = read_query(facts.control / FILE)
    limit_ms = query.trigger_ms if query and query.trigger_ms else LONG_BATCH_MS
    last = facts.newest_batches_of_query
    if last.height < LATELY or (batch_ms := quantile_of(last["duration_ms"], MEDIAN)) <= limit_ms:
        return
    phases = last.select("phases").explode("phases").unnest("phases").filter(pl.col("owner") != SegmentOwner.TRIGGER)
    by_phase = phases.group_by("detail").agg(median_of(pl.col("ms"))).sort(-pl.col("ms"), "detail")
    if not by_phase.height:
        return
    phase, phase_ms = by_phase.row(0)
    meaning = f" ({MEANINGS[phase]})" if phase in MEANINGS else ""
    observation = (
        f"its batches take {for_people(batch_ms)}, longer than {for_people(limit_ms)}, and {for_people(phase_ms)} of "
        f"it in the phase {phase}{meaning}"
    )
    kinds = _kinds(query) if query else set()
    limits = ", ".join(sorted({LIMITS[kind] for kind in kinds & LIMITS.keys()}))
    fewer = "fewer records per batch" + (f" ({limits})" if limits else "")
    remedy = f"give the job more cores, {fewer}, or a longer trigger"
    since_ms = began(facts.batches_with_records, pl.col("duration_ms") > limit_ms)
    yield scene.finding(SLOW_PHASE, sub.name, observation, remedy, since_ms=since_ms)


def _kinds(query: RecordedQuery) -> set[str]:
    """Returns the kinds of the sources of *query*, which are written as KIND:ADDRESS."""
    return {address.partition(":")[0] for address in query.sources.values()}


def _old_records(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields the sources that gave only old records, and of which Spark does not report how many records wait."""
    facts, sub = scene.of(name), scene.sub(name)
    last = facts.newest_batches_of_query
    longest_ms = last["duration_ms"].max()
    if not isinstance(longest_ms, int) or scene.at_ms - last["finished_at"][-1] > QUIET_AFTER_MS + longest_ms:
        return  # it is quiet now
    youngest_ms = facts.latencies(sub.name, last["batch_id"])["min_ms"].min()
    reads = facts.reads.of_batches(last["batch_id"]).filter(pl.col("unread").is_null(), pl.col("n") > 0)
    if not isinstance(youngest_ms, int) or youngest_ms <= OLD_RECORD_MS:
        return
    batches = f"last {last.height} batches" if last.height > 1 else "last batch"
    latencies = facts.latencies(sub.name, facts.batches_with_records["batch_id"]).sort("batch_id")
    since_ms = began(latencies, pl.col("min_ms") > OLD_RECORD_MS)
    # The age of one batch, or of few, is no advice.
    advice = f"wait: after {LATELY} such batches it is known that the job does not keep up"
    if last.height >= LATELY:
        advice = "if they wait, give the job more cores or larger batches"
    for source in reads["source"].unique().sort():
        yield scene.finding(
            OLD_RECORDS,
            sub.name,
            f"every record of its {batches} was {for_people(youngest_ms)} old or more at the end of "
            "its batch; they came late, or wait unread: Spark does not report for this source how many wait",
            f"compare the times of its files with those of the batches; {advice}",
            input=source,
            since_ms=since_ms,
        )


def _new_checkpoint(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields a finding if the query began again lately, with another checkpoint."""
    query = read_query(scene.of(name).control / FILE)
    if query is None or query.began_again_ms is None or not _is_lately(query.began_again_ms, scene.of(name)):
        return
    kinds = _kinds(query)
    first_reads = ", and ".join(text for kind, text in FIRST_READS.items() if kind in kinds)
    effect = f", so it reads {first_reads}" if first_reads else ""
    # Spark has no option that leaves out the files of a folder.
    loss = "" if kinds == {"files"} else ", or left out"
    observation = f"it began with a new checkpoint{effect}: records may be read again{loss}"
    remedy = "no action is needed if that was meant; otherwise give it a checkpointLocation that lasts, and restore it"
    yield scene.finding(NEW_CHECKPOINT, scene.sub(name).name, observation, remedy, since_ms=query.began_again_ms)


def _is_lately(at_ms: int, facts: StreamFacts) -> bool:
    return 0 <= facts.at_ms - at_ms <= NEW_FOR_MS
