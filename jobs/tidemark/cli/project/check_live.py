"""`tidemark check --live`: compares a topology with brokers and samples."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from tidemark.cli.shared.output import say
from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidSpec
from tidemark.graph import reached
from tidemark.model.kinds.kafka_end import KafkaEnd
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.measures.watermark_lag import WATERMARK_LAG
from tidemark.model.project.connections import topic_command
from tidemark.model.settings.lengths import for_people, length_in_toml, percent
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.reports.promises import waits_for_windows
from tidemark.sample.disorder import covering_ms, late_share
from tidemark.sample.parsed import lags_ms, newest_ms, parse_sample
from tidemark.sample.topic_sample import SampledCluster, TopicSample, ask_for
from tidemark.selection import names_in
from tidemark.semantics.sla import Sla
from tidemark.stream.read.parsing import SchemasOf, no_schemas
from tidemark.why.causes.inputs import reasons_of

EXAMPLE_LENGTH = 200
MOST_TOPICS = 5
"""So many topics of a source are sampled, the first by name."""
TOLERATED = 0.01
"""The share of late records that is no warning."""
NEEDED = {Source: ("READ", "DESCRIBE"), Sink: ("WRITE", "DESCRIBE")}


@dataclass
class SampleResults:
    """Results of samples.

    `lines` are the lines to print. `ages_ms` is how old the newest record was when its topic was read, by source.
    """

    lines: list[str] = field(default_factory=list)
    ages_ms: dict[str, int] = field(default_factory=dict)


def live(
    topology: Topology,
    specs: Sequence[SlaSpec],
    sampled_clusters: Mapping[str, SampledCluster],
    *,
    local: str | None,
    clock: Clock = wall_clock_ms,
    schemas: SchemasOf = no_schemas,
) -> list[str]:
    """Returns the facts about *topology* that clusters and samples show.

    Args:
        topology: the topology, which can run.
        specs: its SLAs.
        sampled_clusters: the clusters by name.
        local: the broker of this machine.
        clock: gives the age of records.
        schemas: gets those of registries.

    Raises:
        InvalidArgument: a broker or a registry does not answer, or a topic cannot be read.
        InvalidSpec: a topic or a right on it is missing; a line each.
    """
    results = SampleResults()
    refuse_topics(topology, sampled_clusters, local)
    for source in topology.outside_sources:
        if source.topic:
            cluster = sampled_clusters[source.kafka]
            topics = source.each_topic(cluster.partitions)
            if not topics:
                at = f"{topology.name}: {source.name}"
                results.lines.append(f"{at}: warning: no topic at {cluster.address} matches {source.topic}")
            for each in topics[:MOST_TOPICS]:
                _look_at(topology, each, cluster, results, clock, schemas)
    return [*results.lines, *(f"{topology.name}: {line}" for line in _against_slas(topology, specs, results))]


def refuse_topics(topology: Topology, sampled_clusters: Mapping[str, SampledCluster], local: str | None) -> None:
    """Refuses topics of *topology* that *sampled_clusters* lack, or that may not be used there.

    Raises:
        InvalidArgument: a broker does not answer.
        InvalidSpec: a topic or a right on it is missing; a line each.
    """
    errors: list[InvalidSpec] = []
    for end in topology.kafka_ends:
        if (cluster := sampled_clusters.get(end.kafka)) is not None:
            for each in end.each_topic(cluster.partitions):
                errors += _topic_refusals(topology, each, cluster, local)
    if errors:
        raise InvalidSpec("\n".join(map(str, errors)))


def _topic_refusals(
    topology: Topology, operator: KafkaEnd, cluster: SampledCluster, local: str | None
) -> Iterator[InvalidSpec]:
    """Yields why *operator* cannot use its topic."""
    topic, key = operator.topic or "", f"operators.{operator.name}.topic"
    if topic not in cluster.partitions:
        remedy = f"create it with `{topic_command(topic)}`"
        if cluster.address != local:
            request = "ask the administrator of that cluster for it, or for the right DESCRIBE on it"
            near = difflib.get_close_matches(topic, cluster.partitions, n=1, cutoff=0.8)
            remedy = f"did you mean {near[0]}? else {request}" if near else request
        problem = f"is {topic!r}, which is not at {cluster.address}, or may not be seen there"
        yield InvalidSpec.at(topology.file, key, problem, remedy)
        return
    allowed = cluster.rights(topic)
    for right in NEEDED[type(operator)] if allowed is not None and "ALL" not in allowed else ():
        if right not in (allowed or ()):
            problem = f"is {topic!r}, of which {cluster.address} does not grant {right}"
            yield InvalidSpec.at(topology.file, key, problem, ask_for(right, topic))


def _look_at(
    topology: Topology,
    source: Source,
    cluster: SampledCluster,
    results: SampleResults,
    clock: Clock,
    schemas: SchemasOf,
) -> None:
    """Adds the facts from a sample of *source*'s topic to *results*."""
    at = f"{topology.name}: {source.name}"
    say(f"reading a sample of {source.topic} at {cluster.address} …", sys.stderr)
    sample = cluster.sample(source.topic or "")
    if not sample.records:
        results.lines.append(f"{at}: warning: {source.topic} {sample.why_empty}: its records are not checked")
        return
    now_ms = clock()
    rows = parse_sample(source, sample, now_ms, schemas)
    results.lines.append(f"{at}: sampled {rows.height} of {sample.there} records, {_quarantine_warnings(source, rows)}")
    results.lines += [
        f"{at}: {line}" for line in (*_examples(source, rows), *_bound(source, rows, now_ms), *_silent(sample))
    ]
    if (newest := newest_ms(rows)) is not None:
        age_ms = now_ms - newest
        results.ages_ms[source.name] = min(age_ms, results.ages_ms.get(source.name, age_ms))
        results.lines.append(f"{at}: its newest record is {length_of(age_ms)}")


def _quarantine_warnings(source: Source, rows: pl.DataFrame) -> str:
    bad = rows.filter(pl.col("reason").is_not_null())
    if not bad.height:
        return "all of which can be used"
    share = percent(bad.height / rows.height, 1)
    return f"of which {bad.height} ({share}) would be quarantined: {reasons_of(source, bad)}"


def _examples(source: Source, rows: pl.DataFrame) -> Iterator[str]:
    """Yields a warning for each reason, with its first record."""
    for row in (
        rows.filter(pl.col("reason").is_not_null()).unique("reason", keep="first", maintain_order=True).to_dicts()
    ):
        value = "null" if row["value"] is None else _shorten(row["value"].decode(errors="replace"))
        place = f"partition {row['partition']}, offset {row['offset']}"
        yield f"warning: {row['reason']}; {_remedy(source, row['value'])}; for example at {place}: {value}"


def _remedy(source: Source, value: bytes | None) -> str:
    """Returns what to do about a record with *value* that *source* would quarantine."""
    if value is not None:
        return "correct `fields`, or what sends it"
    if source.key:
        return "correct what sends it"
    return "correct what sends it, or set `key`, with which a record without a value deletes its key"


def _shorten(text: str) -> str:
    return text if len(text) <= EXAMPLE_LENGTH else f"{text[:EXAMPLE_LENGTH]} …"


def _bound(source: Source, rows: pl.DataFrame, now_ms: int) -> Iterator[str]:
    """Compares the bound of *source* with the disorder of *rows*."""
    lags = lags_ms(rows, now_ms)
    if not lags:
        return
    late = late_share(lags, source.bound_ms)
    coverage = f"bound {for_people(source.bound_ms)} covers {percent(1 - late, 1)} of them"
    if late > TOLERATED:
        needed = length_in_toml(covering_ms(lags))
        yield f'warning: {coverage}, and {percent(late, 1)} would be late; 99 % need a bound of "{needed}"'
    else:
        yield f"{coverage}; the furthest is {for_people(max(lags))} behind a newer one of its partition"


def _silent(sample: TopicSample) -> Iterator[str]:
    quiet = [str(n) for n, (first, end) in sample.ends.items() if end == first]
    if quiet:
        yield f"without records: partition{'s' if len(quiet) > 1 else ''} {', '.join(quiet)}"


def _against_slas(topology: Topology, specs: Sequence[SlaSpec], results: SampleResults) -> Iterator[str]:
    """Yields a warning for each SLA that the newest records already break."""
    for spec in specs:
        if not isinstance(spec.limits, Sla) or spec.measure not in {STALENESS, WATERMARK_LAG}:
            continue
        sources = [o for o in _sources(topology, spec.subject) if o.name in results.ages_ms]
        if not sources:
            continue
        oldest = max(sources, key=lambda o: results.ages_ms[o.name])
        newest = min(sources, key=lambda o: results.ages_ms[o.name])
        judged = newest if spec.measure is STALENESS else oldest
        newest_age_ms = age_ms = results.ages_ms[judged.name]
        waits = spec.measure is WATERMARK_LAG or _waits(topology, spec.subject)
        age_ms += judged.bound_ms if waits else 0
        limit_ms = spec.limits.promised_ms
        if age_ms >= limit_ms:
            behind_bound = f" behind its bound of {for_people(judged.bound_ms)}" if waits else ""
            newest_age = f"the newest record of {judged.name} is {length_of(newest_age_ms)}"
            idle = "; ignored while its sources are idle (ignore_when_idle), and broken otherwise"
            still = idle if spec.ignore_when_idle else "; broken until newer ones come"
            promised = f"{spec.measure} of {spec.subject} below {for_people(limit_ms)}"
            yield f"warning: SLA {spec.name} promises {promised}, and {newest_age}{behind_bound}{still}"


def _sources(topology: Topology, subject: str) -> list[Source]:
    """Returns the sources from which the rows of *subject* come."""
    names = reached(_operators_of(topology, subject), topology.upstreams)
    return [o for o in topology.outside_sources if o.topic and o.name in names]


def _operators_of(topology: Topology, subject: str) -> list[str]:
    """Returns the operators that *subject* covers.

    It is the name of an operator, a sub-topology or a table; any other name covers all.
    """
    if subject in topology.operators:
        return [subject]
    for sub in topology.sub_topologies:
        if sub.name == subject:
            return names_in(sub.operators)
    sinks = [o.name for o in topology.operators.values() if o.result_table == subject]
    return sinks or list(topology.operators)


def _waits(topology: Topology, subject: str) -> bool:
    return any(waits_for_windows(name, topology) for name in _operators_of(topology, subject))


def length_of(age_ms: int) -> str:
    """Formats an age; a negative one is ahead of the clock."""
    return f"{for_people(age_ms)} old" if age_ms >= 0 else f"{for_people(-age_ms)} ahead of this clock"
