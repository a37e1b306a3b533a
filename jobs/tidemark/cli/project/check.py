"""`tidemark check`: checks topology files before anything is started.

It checks that they can run, down to their columns and SQL, and that SLAs and channels can be used.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from tidemark.cli.project.check_live import live
from tidemark.cli.project.check_watch import lines_of_watch, place_mistakes
from tidemark.cli.project.file_summary import file_summary
from tidemark.cli.project.plan import changes_of_topology, status_of, summary
from tidemark.cli.shared.brokers import Addresses, Brokers
from tidemark.cli.shared.local import running_broker
from tidemark.cli.shared.options import place
from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument, InvalidSpec, UnreadableFile
from tidemark.graph import reached
from tidemark.model.arrival_order import by_arrival
from tidemark.model.kinds.kafka_end import KafkaEnd
from tidemark.model.kinds.operator import Operator
from tidemark.model.measures.registry import ExplainedBy
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.operator_graph import event_times, updates_tables
from tidemark.model.project.connections import LOCAL, in_clear
from tidemark.model.project.extras import untried
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.project.registries import passwords_in_clear
from tidemark.model.row_per_record import row_per_record
from tidemark.model.schedules import too_many
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.slas import channel_spec, sla_spec
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import CHANGES, LATENCY_MINUTES
from tidemark.model.topology import Topology, different_spark, load_each, load_part, name_in
from tidemark.recorded_jobs.queries import FILE, read_query, recorded_topologies
from tidemark.reports.batch_job import add_bootstrap, given_secrets, topology_file
from tidemark.reports.promises import cannot_be_kept
from tidemark.safe_text import one_line
from tidemark.sample.topic_sample import SampledCluster
from tidemark.selection import in_order_of, index_by_name, names_in, omit, present, within
from tidemark.semantics.sla import BurnRate
from tidemark.semantics.strategy import Strategy
from tidemark.stream.kafka.client import marks_in_compacted
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.shards.sharding import not_sharded
from tidemark.stream.startup.changes import streams_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "files", nargs="*", type=Path, help="names or TOML files of topologies (default: all of the project)"
    )
    add_bootstrap(parser, LOCAL)
    text = (
        "also check topics, partitions and rights at the brokers, and bounds and SLAs against a sample of the records"
    )
    parser.add_argument("--live", action="store_true", help=text)


def command(options: argparse.Namespace) -> int:
    """Prints the topologies that can run; a mistake is an error."""
    local = running_broker(options.home)
    secrets = given_secrets(options)
    # A file that is missing is refused as such.
    files = [
        file if file.suffix == ".toml" else topology_file(str(file), Layout(place(options))) for file in options.files
    ]
    lines = check(files, place(options), addresses=options.bootstrap, local=local, look=options.live, secrets=secrets)
    say_inert("\n".join(lines))
    return 0


def check(
    files: Sequence[Path],
    warehouse: Path,
    project: Project | None = None,
    *,
    addresses: Addresses = (),
    local: str | None = None,
    look: bool = False,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Returns a line for each streaming query that *files* describe.

    There is a line for each warning, too: the topology can run, and may give other results than are meant. A summary of
    each file follows, and without *files* a line for each topology of jobs, and for each SLA of a watched table.

    Args:
        files: topology files; none: all topologies of the project.
        warehouse: contains the Delta tables that joins name.
        project: contains SLAs and channels; None: the current project.
        addresses: brokers that are asked which topics are compacted, and for their partitions.
        local: the broker that is asked without *addresses*; None if none runs.
        look: asks the brokers of all topics for these facts, and for a sample of the records, and object stores for
            watched tables.
        secrets: values of secrets by their places, such as `eu.password`.

    Raises:
        InvalidArgument: a broker that was given, or that is asked for records, does not answer.
        InvalidSpec: something cannot run or be used; a line each, with file, key, present value and remedy.
    """
    lines: list[str] = []
    errors: list[InvalidSpec] = []
    brokers = Brokers(addresses, local, secrets)
    project = project or Project.here()
    of_project = load_each(project.topologies)
    topologies = {each.name: each for each in of_project.values() if isinstance(each, Topology)}
    good: list[Topology] = []
    parts: list[Topology] = []
    for file in files or of_project:
        topology, mistakes = _load_usable(file)
        if topology is None:
            errors += mistakes
            continue
        if not mistakes and isinstance(of_two := of_project.get(file), InvalidSpec):
            mistakes = [of_two]  # another file has its name
        if not mistakes:
            topologies[topology.name] = topology
        steps, misfits = _misfits(topology, warehouse, mistakes)
        mistakes += misfits
        broker = brokers.of(topology)
        for sub in topology.sub_topologies:
            mistakes += marks_in_compacted(topology, sub, broker)
        if mistakes:
            errors += mistakes
            parts += [topology] if topology.name not in topologies else []
            continue
        good.append(topology)
        lines += _lines_of_topology(topology, one_line(file.name), steps.compared() if steps else {})
    errors += different_spark(topologies.values())
    # SLAs may be about a topology whose own file has mistakes, which are listed already.
    names = {*topologies, *map(name_in, (*files, *of_project))}
    jobs = _with_queries(sla_spec.topologies_of_jobs(project.slas, (*files, *of_project)), Layout(warehouse))
    errors += sla_spec.mistakes(project.slas, [*topologies.values(), *jobs], names, parts)
    errors += sla_spec.unknown_countries(project.slas)
    errors += chain.from_iterable(_not_measured(project, each, Layout(warehouse)) for each in jobs)
    watch = sla_spec.known_watch(project.slas)
    errors += [] if watch is None else place_mistakes(project, watch)
    errors += channel_spec.mistakes(project.channels)
    if errors:
        # Each topology has the mistakes in connections.toml.
        raise InvalidSpec("\n".join(dict.fromkeys(map(str, errors))))
    if not files and not of_project and not jobs and watch is None:
        lines.append(f"{project.topologies} has no topology; write one into NAME.toml there")
    lines += _warnings_of_all(project, topologies.values(), [*jobs, *present((watch,))])
    lines += chain.from_iterable(_counted_later(project, each, Layout(warehouse)) for each in jobs)
    for topology in good:
        lines += _summary(topology, sla_spec.load(project.slas, topology), brokers, look=look)
    lines += [] if files else [_summary_of_jobs(project, each) for each in jobs]
    lines += [] if files or watch is None else lines_of_watch(project, watch, look=look)
    return [*lines, *chain.from_iterable(_plan_of(topology, Layout(warehouse)) for topology in good)]


def _plan_of(topology: Topology, layout: Layout) -> Iterator[str]:
    """Yields what the file would do to its streams, in a line with the ways on, if one of them has run."""
    with suppress(UnreadableFile):  # `tidemark doctor` tells of damage
        if streams_of(layout, topology):
            changes = changes_of_topology(topology, layout)
            ways = "; ".join(dict.fromkeys(change.way for change in changes if change.way))
            more = f" (tidemark plan {topology.name})" if status_of(changes) else ""
            yield f"plan of {summary(topology.name, changes)}{': ' if ways else ''}{ways}{more}"


def runnable(file: Path, warehouse: Path) -> Topology:
    """Returns the topology of *file*, whose columns and SQL fit together.

    Raises:
        InvalidSpec: it has mistakes; a line each.
    """
    topology, mistakes = _load_usable(file)
    if topology is not None:
        mistakes += _misfits(topology, warehouse, mistakes)[1]
    if topology is None or mistakes:
        raise InvalidSpec("\n".join(map(str, mistakes)))
    return topology


def _with_queries(of_jobs: Mapping[str, Topology], layout: Layout) -> list[Topology]:
    """Returns the topologies *of_jobs* with the queries that *layout*'s warehouse has."""
    recorded = index_by_name(recorded_topologies(layout)) if of_jobs else {}
    return [recorded.get(name, each) for name, each in of_jobs.items()]


def _summary_of_jobs(project: Project, topology: Topology) -> str:
    """Returns the line of a *topology* of jobs."""
    slas = ", ".join(names_in(sla_spec.load_usable(project.slas, topology).specs)) or "none"
    streams = ", ".join(names_in(topology.sub_topologies)) or "none"
    return f"{topology.name}, recorded from jobs: SLAs {slas}; streams so far: {streams}"


def _not_measured(project: Project, topology: Topology, layout: Layout) -> Iterator[InvalidSpec]:
    """Yields mistakes about measures that no query of *topology* has."""
    for spec in sla_spec.load_usable(project.slas, topology).specs:
        if mistake := _unknown_of_job(spec, topology, layout):
            key = "objective" if spec.compliance else "measure"
            yield InvalidSpec.at(project.slas.name, f"{topology.name}.{spec.table}.{key}", *mistake)


def _unknown_of_job(spec: SlaSpec, topology: Topology, layout: Layout) -> tuple[str, str] | None:
    """Returns the problem and the remedy of an SLA about what is not known of *topology*, whose queries jobs run.

    Spark reports neither results nor quantiles. Functions of `tidemark.api` in a job may write their tables, and of an
    observed query it is known how many records were over a limit.
    """
    if spec.measure is STALENESS:
        table, ways, subs = CHANGES, ["use api.changed in the job first"], topology.sub_topologies
    elif spec.measure.explained is ExplainedBy.RECORDS:
        subs = tuple(sub for sub in topology.sub_topologies if spec.subject in names_in(sub.operators))
        table, ways = LATENCY_MINUTES, ["use api.measured in the job first"]
    else:
        return None
    if any(layout.stream_table(topology.name, sub.name, table.name).is_dir() for sub in subs):
        return None
    if isinstance(spec.limits, BurnRate):
        if _observed_limits_ms(spec, topology, layout) is not None:
            return _window_not_kept(spec, topology)
        ways = ["start the job with --observe COLUMN", *ways]
    elif table is LATENCY_MINUTES:
        ways = ["write an objective, and start the job with --observe COLUMN", *ways]
    ways += ["measure watermark_lag, records or operator_latency_p50"]
    return f"is judged by {spec.measure}, which Spark does not report", ", or ".join(ways)


def _observed_limits_ms(spec: SlaSpec, topology: Topology, layout: Layout) -> tuple[int, ...] | None:
    """Returns the limits over which records of the subject are counted, ms; None if it is no observed query."""
    if spec.subject not in names_in(topology.sub_topologies):
        return None
    query = read_query(layout.control(topology.name, spec.subject) / FILE)
    return query.observed_limits_ms if query else None


def _window_not_kept(spec: SlaSpec, topology: Topology) -> tuple[str, str] | None:
    """Returns the problem and the remedy of an objective over a time of which not all counts are kept."""
    kept_ms = topology.retention.facts_ms
    if spec.compliance is None or kept_ms is None or spec.compliance.window_ms <= kept_ms:
        return None
    kept = for_people(kept_ms)
    problem = f"has a window of {for_people(spec.compliance.window_ms)}, and the counts of a job are kept for {kept}"
    return problem, f'write window = "{length_in_toml(kept_ms)}" or shorter'


def _counted_later(project: Project, topology: Topology, layout: Layout) -> Iterator[str]:
    """Yields a sentence for each limit of latency that a job does not count yet."""
    # An objective has an SLA for each of its windows.
    for spec in {spec.table: spec for spec in sla_spec.load_usable(project.slas, topology).specs}.values():
        if not isinstance(spec.limits, BurnRate):
            continue
        limits_ms, threshold_ms = _observed_limits_ms(spec, topology, layout), spec.limits.objective.threshold_ms
        if limits_ms is not None and threshold_ms not in limits_ms:
            named = f"{topology.name}.{spec.table} promises {for_people(threshold_ms)} of {spec.subject}"
            yield f"slas.toml: warning: {named}, which counts this limit from the next start of its job; restart it"


def _warnings_of_all(project: Project, topologies: Collection[Topology], jobs: Collection[Topology]) -> Iterator[str]:
    """Yields warnings about the topologies together; *jobs* are those without a file.

    They are about SLAs that cannot be kept, filters of channels that match no alert, schedules that do not fit this
    machine, and packages with which no test ran.
    """
    yield from (f"installation: warning: {sentence}" for sentence in untried())
    promised = [(topology, sla_spec.load(project.slas, topology)) for topology in (*topologies, *jobs)]
    for topology, specs in promised:
        yield from (f"slas.toml: warning: {sentence}" for sentence in cannot_be_kept(specs, topology))
    for line in channel_spec.warnings(channel_spec.load(project.channels), promised):
        yield f"{project.channels.name}: {line}"
    if sentence := too_many(topologies, os.cpu_count() or 1):
        yield f"check_every: warning: {sentence}"


def _lines_of_topology(topology: Topology, file: str, compared: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a line for each streaming query, warning and note of *topology*.

    *compared* are the columns by which its operators compare updates.
    """
    lines = []
    for sub in topology.sub_topologies:
        lines.append(f"{file}: {topology.name}/{sub.name}: {', '.join(names_in(sub.operators))}")
    for name, problem in (*by_arrival(topology), *row_per_record(topology)):
        lines.append(f"{file}: operators.{name}: warning: {problem}")
    used = in_order_of(sorted(topology.clusters_used & {*topology.clusters}), topology.clusters)
    lines += [f"{file}: {line}" for line in (*in_clear(used), *passwords_in_clear(topology.registries_used))]
    times = event_times(topology.operators)
    for name, columns in compared.items():
        emission = topology.operators[name].emission
        if emission is None or emission.strategy is Strategy.ON_UPDATE:
            continue
        # The identity of a map is SQL, which compares the columns that it names.
        named = chain.from_iterable(re.findall(r"\w+", column.lower()) for column in columns)
        ignored = sorted(times[name] - {*named, *_key_of(topology.operators[name])})
        besides = f", and not the event time ({', '.join(ignored)})" if ignored else ""
        what = ", ".join(columns) or "no column, so that it sends each key on once"
        lines.append(f"{file}: operators.{name}: compares {what}{besides}")
    for sink, senders in _readers_of_updates(topology):
        lines.append(f"{file}: operators.{sink.name}: note: {_of_updates(sink, senders)}")
    return lines


def _of_updates(sink: Operator, senders: Sequence[Operator]) -> str:
    """Says what *sink* writes of the updates that *senders* send at once, and whether it could be less."""
    thing = "record" if isinstance(sink, KafkaEnd) and sink.topic else "row"
    often = [each.name for each in senders if each.emission and each.emission.strategy is Strategy.ON_UPDATE]
    if not often:
        return f"writes a {thing} for each change, so that the newest {thing} of a key has its value"
    return (
        f"writes a {thing} for each update; with on_change at {', '.join(often)} it writes fewer {thing}s, and the "
        f"newest {thing} of a key has its value with both"
    )


def _summary(topology: Topology, specs: Sequence[SlaSpec], brokers: Brokers, *, look: bool) -> list[str]:
    """Returns the summary of *topology*, which can run.

    To *look* adds facts from the brokers.
    """
    clusters = brokers.all_clusters(topology) if look else brokers.clusters(topology)
    answering = clusters if look else brokers.answering(clusters)
    sampled_clusters = {name: SampledCluster(each) for name, each in answering.items()}
    schemas = brokers.schemas(topology)
    facts = live(topology, specs, sampled_clusters, local=brokers.local, schemas=schemas) if look else []
    return [*file_summary(topology, specs, clusters, sampled_clusters), *facts]


def _key_of(operator: Operator) -> Sequence[str]:
    return step_of(operator).key(operator) or ()


def _misfits(
    topology: Topology, warehouse: Path, mistakes: Sequence[InvalidSpec]
) -> tuple[Steps | None, list[InvalidSpec]]:
    """Returns the steps of *topology*, and mistakes in it that only its columns show.

    *topology* is the part of its file that can be used. *mistakes* are those in the rest.
    """
    try:
        steps = Steps(topology, Reference(warehouse), mistakes)
    except InvalidSpec as error:
        return None, [error]
    return steps, [] if mistakes else not_sharded(topology, steps)


def _readers_of_updates(topology: Topology) -> Iterator[tuple[Operator, list[Operator]]]:
    """Yields sinks that write each update of a table as a record, with the operators that send them at once."""
    operators = topology.operators
    updates = updates_tables(operators)
    emissions = {name: operator.emission for name, operator in operators.items() if operator.emission}
    # An operator without emission sends on at once what it reads.
    passed_on = omit(topology.flows, emissions)
    for sink in operators.values():
        read = within(sink.inputs, updates) if sink.appends_each_record else []
        senders = within(reached(read, passed_on), emissions)
        if at_once := [operators[name] for name in senders if not emissions[name].holds]:
            yield sink, at_once


def _load_usable(file: Path) -> tuple[Topology | None, list[InvalidSpec]]:
    """Returns the usable part of a topology file, and its mistakes."""
    try:
        return load_part(file)
    except InvalidSpec as error:
        return None, [error]
    except FileNotFoundError as error:
        msg = f"{file}: there is no such file; name a topology's TOML file"
        raise InvalidArgument(msg) from error
