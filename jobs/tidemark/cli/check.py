"""`tidemark check`: whether topology files can run, down to their columns and SQL, before anything is started.

And whether SLAs and channels can be used.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tidemark.cli.check_live import live
from tidemark.cli.good_file import good_file
from tidemark.cli.local import running_broker
from tidemark.cli.options import place
from tidemark.cli.output import say_inert
from tidemark.clock import wall_clock_ms
from tidemark.delta import Reference
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.inert import one_line
from tidemark.report.batch_job import add_bootstrap
from tidemark.report.promises import cannot_be_kept
from tidemark.sampling.topic_sample import SampledCluster
from tidemark.spec import channel_spec, sla_spec
from tidemark.spec.arrival_order import by_arrival
from tidemark.spec.connections import DEFAULT, LOCAL, Cluster, addressed, with_address
from tidemark.spec.operators import Sink
from tidemark.spec.project import Project
from tidemark.spec.row_per_record import row_per_record
from tidemark.spec.sla_spec import SlaSpec
from tidemark.spec.topology import Topology, load_each, load_part, updates_tables
from tidemark.stream.distributed.sharding import not_sharded
from tidemark.stream.kafka import KafkaBroker, marks_in_compacted
from tidemark.stream.steps import Steps

Addresses = Sequence[tuple[str, str]]
"""Names of Kafka clusters, and their addresses, as the command line gives them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("files", nargs="*", type=Path, help="TOML files (all topologies of the project)")
    add_bootstrap(parser, LOCAL)
    text = "ask the brokers for topics, partitions and rights, and judge bounds and SLAs by a sample of the records"
    parser.add_argument("--live", action="store_true", help=text)


def command(options: argparse.Namespace) -> int:
    """Say what can run; what cannot is an error."""
    local = running_broker(options.home)
    lines = check(options.files, place(options), given=options.bootstrap, local=local, look=options.live)
    say_inert("\n".join(lines))
    return 0


def check(
    files: Sequence[Path],
    warehouse: Path,
    project: Project | None = None,
    *,
    given: Addresses = (),
    local: str | None = None,
    look: bool = False,
) -> list[str]:
    """A line for each streaming query that *files* describe; without files, for those of all topologies of the project.

    And one for each warning: what can run, and may give other results than are meant; then a summary of each file.

    Delta tables that joins name are looked for in *warehouse*, SLAs and channels in the *project*. The brokers that
    are *given*, and else the *local* one if there is one, tell which topics are compacted, and their partitions. To
    *look* is to ask the brokers of all topics for those, and for a sample of the records.

    Raises:
        InvalidArgument: a broker that was given, or that is asked for records, does not answer.
        InvalidSpec: something cannot run or be used; a line each, with file, key, what was seen and the remedy.
    """
    lines: list[str] = []
    errors: list[InvalidSpec] = []
    clusters = {name: Cluster(address) for name, address in [*([(DEFAULT, local)] if local else []), *given]}
    broker = KafkaBroker(clusters, "check", "check", wall_clock_ms)
    if given:
        broker.refuse_silence()
    project = project or Project.here()
    of_project = load_each(project.topologies)
    topologies = {found.name: found for found in of_project.values() if isinstance(found, Topology)}
    good: list[Topology] = []
    for file in files or of_project:
        topology, found = _loaded(file)
        if topology is None:
            errors += found
            continue
        if not found and isinstance(of_two := of_project.get(file), InvalidSpec):
            found = [of_two]  # another file has its name
        if not found:
            topologies[topology.name] = topology
        found += _misfits(topology, warehouse, found)
        found += [mistake for sub in topology.sub_topologies for mistake in marks_in_compacted(topology, sub, broker)]
        if found:
            errors += found
            continue
        good.append(topology)
        lines += _of_file(topology, one_line(file.name))
    names = {*topologies, *(file.stem for file in of_project)}
    errors += sla_spec.mistakes(project.slas, topologies.values(), names)
    errors += channel_spec.mistakes(project.channels)
    if errors:
        raise InvalidSpec("\n".join(map(str, errors)))
    for topology in topologies.values():
        specs = sla_spec.load(project.slas, topology)
        lines += [f"slas.toml: warning: {sentence}" for sentence in cannot_be_kept(specs, topology)]
    for topology in good:
        lines += _summary(topology, sla_spec.load(project.slas, topology), given, local, look=look)
    return lines


def _of_file(topology: Topology, file: str) -> list[str]:
    """A line for each streaming query of *topology*, and for each warning and note."""
    queries = [
        f"{file}: {topology.name}/{sub.name}: {', '.join(o.name for o in sub.operators)}"
        for sub in topology.sub_topologies
    ]
    warnings = [
        f"{file}: operators.{name}: warning: {problem}"
        for name, problem in (*by_arrival(topology), *row_per_record(topology))
    ]
    notes = [
        f"{file}: operators.{name}: note: reads a stream of updates, of which on_change has fewer "
        "than on_update by definition; as a table, both say the same"
        for name in _readers_of_updates(topology)
    ]
    return [*queries, *warnings, *notes]


def _summary(
    topology: Topology, specs: Sequence[SlaSpec], given: Addresses, local: str | None, *, look: bool
) -> list[str]:
    """What *topology*, which can run, has; and what the brokers say of it if one is to *look*."""
    if look:
        clusters = addressed(topology.clusters_used, topology.clusters, given, os.environ, otherwise=local)
        answering = {each.bootstrap for each in clusters.values()}
    else:
        used = sorted(topology.clusters_used)
        clusters = with_address(used, topology.clusters, dict(given), os.environ, otherwise=local)
        answering = {*([local] if local else []), *(address for _, address in given)}
    asked = {name: SampledCluster(each) for name, each in clusters.items() if each.bootstrap in answering}
    found = live(topology, specs, asked, local=local) if look else []
    return [*good_file(topology, specs, clusters, asked), *found]


def _misfits(topology: Topology, warehouse: Path, known: Sequence[InvalidSpec]) -> list[InvalidSpec]:
    """What does not fit the columns in *topology*, the part of its file that can be used beside *known* mistakes."""
    try:
        steps = Steps(topology, Reference(warehouse), known)
    except InvalidSpec as error:
        return [error]
    return [] if known else not_sharded(topology, steps)


def _readers_of_updates(topology: Topology) -> list[str]:
    """The operators for which each update of a table is a record of its own."""
    updates = updates_tables(topology.operators)
    sinks = [o for o in topology.operators.values() if isinstance(o, Sink) and not o.key]
    return [sink.name for sink in sinks if updates.intersection(sink.inputs)]


def _loaded(file: Path) -> tuple[Topology | None, list[InvalidSpec]]:
    """The topology of *file* as far as it can be used, and the mistakes in the rest."""
    try:
        return load_part(file)
    except InvalidSpec as error:
        return None, [error]
    except FileNotFoundError as error:
        msg = f"{file}: there is no such file; name a topology's TOML file"
        raise InvalidArgument(msg) from error
