"""`tidemark plan`: compares a topology file with what its streams have kept."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

import polars as pl
from confluent_kafka import KafkaException

from tidemark.cli.shared.brokers import Brokers
from tidemark.cli.shared.local import running_broker
from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import topology_with_file
from tidemark.clock import wall_clock_ms
from tidemark.errors import TidemarkError
from tidemark.facts.fact_tables import RECENT_MS, FactTables, stored_in
from tidemark.facts.versions import rows_in_log
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_place import EARLIEST
from tidemark.model.project.connections import LOCAL
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import counted, for_people
from tidemark.model.stream import Stream
from tidemark.model.topology import Topology
from tidemark.reports.batch_job import add_bootstrap, given_secrets
from tidemark.reports.repairs import RepairDecision, record_repair
from tidemark.selection import names_in
from tidemark.semantics.progress import TopicPartition
from tidemark.semantics.repairs import RepairOutcome
from tidemark.storage.warehouse import is_table
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.startup.changes import OperatorChange, changes_of, streams_of
from tidemark.stream.startup.source_list import Fate, dropped_text

RECENT = 50
"""So many batches tell how fast a stream is."""
UNCHANGED, CHANGES, REFUSES = 0, 3, 4
"""Exit status: all goes on; something begins or ends; something is refused, or needs consent."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("topology", help="name of the topology, or its TOML file")
    add_bootstrap(parser, LOCAL)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--by", metavar="NAME", help="record the plan in `decisions`, if it has a change, under NAME")
    parser.add_argument("--note", metavar="TEXT", help="the reason, with --by")


def command(options: argparse.Namespace) -> int:
    """Prints a line for each operator that does not just go on; returns UNCHANGED, CHANGES or REFUSES."""
    topology, layout = topology_with_file(options), Layout(existing_warehouse(options))
    brokers = Brokers(options.bootstrap, running_broker(options.home), given_secrets(options))
    changes = with_amounts(changes_of_topology(topology, layout), topology, layout, brokers.of(topology))
    status, per_s = status_of(changes), read_per_s(topology, layout)
    lines = "\n".join(lines_of(topology.name, changes, per_s))
    if options.json:
        rows = [{**asdict(change), "fate": change.fate.value} for change in changes]
        told = {"topology": topology.name, "status": status, "read_per_s": per_s, "operators": rows}
        say_inert(json.dumps(told, indent=2))
    else:
        say_inert(lines)
    # A look changes nothing, also in CI: who decides about the change says so.
    if options.by and status != UNCHANGED:
        made = RepairDecision(
            topology=topology.name,
            sub_topology=None,
            command=options.command,
            effect=lines,
            outcome=RepairOutcome.SHOWN,
            by=options.by,
            note=options.note or "",
        )
        record_repair(layout, made, at_ms=wall_clock_ms())
    return status


def changes_of_topology(topology: Topology, layout: Layout) -> list[OperatorChange]:
    """Returns what becomes of each operator of *topology*, whose streams have written to *layout*."""
    found = [change for sub in topology.sub_topologies for change in changes_of(Stream(topology, sub, layout))]
    # A former stream goes on once the file has its name again.
    known = {*names_in(topology.sub_topologies), *(change.former_stream for change in found)}
    for home in streams_of(layout, topology):
        if home.name not in known:
            why = "the stream is not in the file any more; its tables stay"
            found.append(OperatorChange(sub_topology=home.name, operator="*", fate=Fate.ENDS, why=why))
    return found


def with_amounts(
    changes: Sequence[OperatorChange], topology: Topology, layout: Layout, broker: KafkaBroker
) -> list[OperatorChange]:
    """Returns *changes* with the records that sources which begin will read.

    Of topics they are known as far as *broker* answers, of tables that are read from the beginning by their logs.
    """
    found: list[OperatorChange] = []
    for change in changes:
        source = topology.operators.get(change.operator)
        if change.fate is Fate.BEGINS and isinstance(source, Source):
            with suppress(KafkaException, TidemarkError, KeyError):  # without an answer the amount is not known
                change = replace(change, to_read=_to_read(source, layout, broker))
        found.append(change)
    return found


def _to_read(source: Source, layout: Layout, broker: KafkaBroker) -> int | None:
    """Returns how many records, for a topic offsets, there are from where *source* begins; None: not known."""
    is_late = source.starting_offsets not in {None, EARLIEST}
    if source.delta and not is_late and is_table(table := layout.warehouse / source.delta):
        return rows_in_log(table)
    if not source.topic:
        return None
    if is_late and not isinstance(source.starting_offsets, int):
        return 0
    starts, n = broker.starts(source) if is_late else {}, 0
    for own in source.each_topic(broker.existing(source)):
        numbers = range(broker.topic(own).partitions)
        for number, (first, end) in broker.offsets(own, numbers).items():
            n += end - max(first, starts.get(TopicPartition(own.topic or "", number), first))
    return n


def read_per_s(topology: Topology, layout: Layout) -> float | None:
    """Returns the most records a second that a stream of *topology* has worked on, of its newest RECENT batches.

    The others were as fast as records came. None: no batch had a record.
    """
    found: list[pl.DataFrame] = []
    for sub in topology.sub_topologies:
        tables = FactTables(stored_in(layout.stream(topology.name, sub.name)), wall_clock_ms(), recent_ms=RECENT_MS)
        has_worked = (pl.col("records_in") > 0) & (pl.col("duration_ms") > 0)
        found.append(tables.batches.filter(has_worked).tail(RECENT).select("records_in", "duration_ms"))
    fastest = pl.concat(found).select((pl.col("records_in") * 1_000 / pl.col("duration_ms")).max()).item()
    return None if fastest is None else float(fastest)


def status_of(changes: Sequence[OperatorChange]) -> int:
    """Returns REFUSES if anything is refused or needs consent, else CHANGES if anything begins or ends."""
    fates = {change.fate for change in changes}
    if fates & {Fate.REFUSED, Fate.NEEDS_CONSENT}:
        return REFUSES
    return CHANGES if fates & {Fate.BEGINS, Fate.ENDS} else UNCHANGED


def lines_of(topology: str, changes: Sequence[OperatorChange], per_s: float | None = None) -> list[str]:
    """Returns *changes* as text: a line that counts them, and one for each that a person should know.

    *per_s* is how many records a second the topology works on; None: not known.
    """
    lines = [summary(topology, changes)]
    for change in changes:
        if change.fate is not Fate.GOES_ON or change.why:
            more = [_reads(change.to_read, per_s)] if change.to_read else []
            for aggregate, closed_ms in change.closed_up_to_ms.items() if change.to_read != 0 else ():
                more.append(f"records of windows of {aggregate} that ended by {iso(closed_ms)} are late")
            if change.unread is not None:
                left = counted(change.unread, "record") if change.unread else "nothing"
                more.append(f"its newest batch left {left} unread, and what is unread now is left out")
            if change.held:
                more.append(dropped_text(change.held))
            text = "; ".join([*filter(None, [change.why]), *more]) or "its newest batch does not say what is unread"
            lines.append(f"  {change.fate}: {change.sub_topology}/{change.operator}: {text}")
            lines += [f"    {change.way}"] if change.way else []
    return lines


def _reads(n: int, per_s: float | None) -> str:
    takes = ""
    if per_s is not None:
        takes = f", in about {for_people(max(1, round(n / per_s)) * 1_000)} at {per_s:,.0f} a second"
    return f"it reads {counted(n, 'record that is', 'records that are')} there{takes}"


def summary(topology: str, changes: Sequence[OperatorChange]) -> str:
    """Returns how many operators have each fate."""
    n = {fate: sum(change.fate is fate for change in changes) for fate in Fate}
    parts = [f"{n[fate]} {_verb(fate, n[fate])}" for fate in Fate if n[fate]]
    return f"{topology}: {', '.join(parts)}"


def _verb(fate: Fate, n: int) -> str:
    plural = {
        Fate.GOES_ON: "go on",
        Fate.BEGINS: "begin",
        Fate.ENDS: "end",
        Fate.NEEDS_CONSENT: "need consent",
        Fate.REFUSED: "are refused",
    }
    return plural[fate] if n > 1 else ("is refused" if fate is Fate.REFUSED else fate.value)
