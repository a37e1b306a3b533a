"""Describes streams as jobs of OpenLineage, with the origins of columns.

An event of a job has its datasets and no run: it says what a topology does, at any time. Columns come from the
declarations of operators, and from the SQL of a topology as DuckDB parses it, the dialect that streams run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias, assert_never, cast

from openlineage.client.event_v2 import InputDataset, Job, JobEvent, OutputDataset, RunEvent
from openlineage.client.facet_v2 import column_lineage_dataset as columns_facet
from openlineage.client.facet_v2 import schema_dataset as schema_facet

from tidemark.errors import InvalidArgument
from tidemark.kernels.sql.columns_read import columns_read
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.boundary import Reading
from tidemark.model.kinds.join import Join
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource, Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.kinds.union import Union
from tidemark.model.project.layout import Layout
from tidemark.model.settings.window_columns import END, START
from tidemark.model.topology import SubTopology, Topology
from tidemark.safe_text import one_line

NAMESPACE = "tidemark"
"""The namespace of jobs."""
PRODUCER = "urn:tidemark"
Kind: TypeAlias = Source | HopSource | Map | KeyedTable | Join | Union | Repartition | Aggregate | Sink
Field = tuple[str, str]
"""A reading operator, and a field of its records."""
Origins = Mapping[str, frozenset[Field]]
"""The fields of which each column is made."""
TIME = "timestamp"
"""The record's time; a field of this name stands for Kafka's own."""


def origins(topology: Topology, sub: SubTopology, read: Callable[[str], Iterable[str]]) -> dict[str, Origins]:
    """Returns the origins of the columns of each operator of a stream.

    A count of records is made of the fields of its key, and the bounds of a window of the record's time. Columns of a
    Delta table that a join looks up are not known, and missing.

    Args:
        topology: the topology of the stream.
        sub: the stream.
        read: returns the columns that an expression of SQL reads.
    """
    by_operator: dict[str, Origins] = {}
    for operator in sub.operators:
        inputs = [by_operator[name] for name in operator.inputs]
        by_operator[operator.name] = _of_operator(topology, operator, inputs, read)
    return by_operator


def _of_operator(
    topology: Topology, operator: Operator, inputs: list[Origins], read: Callable[[str], Iterable[str]]
) -> Origins:
    kind = cast(Kind, operator)
    match kind:
        case Source() as source:
            return _of_source(source)
        case HopSource() as hop:
            of = topology.repartition(hop.repartition)
            columns = (TIME, *of.key, *of.columns, *of.id)
            return {column: frozenset({(hop.name, column)}) for column in columns}
        case Map() as mapped:
            selected = {column: _read(read(sql), inputs[0]) for column, sql in mapped.select.items()}
            return {TIME: inputs[0][TIME], **selected} if selected else inputs[0]
        case KeyedTable() as table:
            return _only(inputs[0], (*table.key, *table.columns)) if table.columns else inputs[0]
        case Repartition() as repartition:
            return _only(inputs[0], (*repartition.key, *repartition.columns, *repartition.id))
        case Aggregate() as aggregate:
            return _of_aggregate(aggregate, inputs[0], read)
        case Join():
            return {**inputs[-1], **inputs[0]}
        case Union() | Sink():
            columns_of_any = dict.fromkeys(column for each in inputs for column in each)
            return {
                column: frozenset[Field]().union(*(each.get(column, frozenset()) for each in inputs))
                for column in columns_of_any
            }
        case _:
            assert_never(kind)


def _of_source(source: Source) -> Origins:
    fields = {column: frozenset({(source.name, field)}) for column, field in source.field_of.items()}
    if source.other_fields:
        fields[source.other_fields] = frozenset({(source.name, source.other_fields)})
    return {TIME: fields.get(source.timestamp or "", frozenset({(source.name, TIME)})), **fields}


def _of_aggregate(operator: Aggregate, of: Origins, read: Callable[[str], Iterable[str]]) -> Origins:
    key = _read(operator.key, of)
    within = {START: of[TIME], END: of[TIME]} if operator.windows else {}
    values = {name: of.get(column, key) for name, (_, column) in operator.aggregates.items()}
    by_name = {**_only(of, operator.key), **within, **values}
    selected = {column: _read(read(sql), by_name) for column, sql in operator.select.items()}
    shown = {START: of[TIME]} if operator.windows else {}
    return {**_only(of, operator.key), **shown, **selected}


def _only(of: Origins, columns: Iterable[str]) -> Origins:
    # Columns of a Delta table that a join looks up are not in it.
    return {column: of[column] for column in (TIME, *columns) if column in of}


def _read(columns: Iterable[str], of: Origins) -> frozenset[Field]:
    """Returns the origins of *columns*; SQL ignores their case."""
    by_lower = {column.lower(): fields for column, fields in of.items()}
    return frozenset[Field]().union(*(by_lower.get(column.lower(), frozenset()) for column in columns))


class StreamJob(NamedTuple):
    """The name, the inputs and the outputs of a stream.

    Inputs and outputs are by operator, and *joined* has the Delta tables that joins look up.
    """

    name: str
    inputs: Mapping[str, Sequence[InputDataset]]
    joined: Sequence[InputDataset]
    outputs: Mapping[str, OutputDataset]

    @property
    def all_inputs(self) -> Iterator[InputDataset]:
        """The inputs, and the tables of joins."""
        return chain(*self.inputs.values(), self.joined)


def stream_jobs(topology: Topology, layout: Layout) -> dict[str, StreamJob]:
    """Returns the streams of *topology* as jobs.

    Raises InvalidArgument for text that is not SQL.
    """
    read = columns_read()
    streams = {}
    for sub in topology.sub_topologies:
        of = origins(topology, sub, read)
        inputs = {source.name: _inputs(topology, layout, source) for source in sub.sources}
        joined = [_dataset(*_of_path(Path(o.joined_delta))) for o in sub.operators if o.joined_delta]
        outputs = {}
        for operator in sub.handing_out:
            namespace, name = _output(topology, layout, sub.name, operator)
            facets = {"schema": _schema(of[operator.name]), "columnLineage": _lineage(of[operator.name], inputs)}
            outputs[operator.name] = OutputDataset(namespace=namespace, name=name, facets={**facets})
        streams[sub.name] = StreamJob(
            f"{topology.name}.{sub.name}",
            {name: [_dataset(*place) for place in places] for name, places in inputs.items()},
            joined,
            outputs,
        )
    return streams


def events(topology: Topology, layout: Layout, at: str) -> Iterator[JobEvent]:
    """Yields an event for each stream; *at* is an ISO instant."""
    for stream in stream_jobs(topology, layout).values():
        yield JobEvent(
            eventTime=at,
            producer=PRODUCER,
            job=Job(namespace=NAMESPACE, name=stream.name),
            inputs=[*stream.all_inputs],
            outputs=[*stream.outputs.values()],
        )


class NotSent(InvalidArgument):
    """Raised when the client of OpenLineage cannot send an event."""


class Sender:
    """Sends events by the client of OpenLineage, as it is configured.

    `sent` counts them. Raises InvalidArgument if the client is not configured.
    """

    def __init__(self) -> None:
        from openlineage.client import OpenLineageClient

        self.sent = 0
        self._client = OpenLineageClient()
        self.transport = str(self._client.transport.kind)
        if self.transport == "console":
            msg = "the client of OpenLineage is not configured; set OPENLINEAGE_URL, or write openlineage.yml"
            raise InvalidArgument(msg)

    def __call__(self, event: JobEvent | RunEvent) -> None:
        """Sends *event*; raises NotSent if the client cannot."""
        try:
            self._client.emit(event)
        except Exception as error:  # each transport has errors of its own
            msg = f"the transport {self.transport} of OpenLineage did not take an event: {one_line(str(error))}"
            raise NotSent(msg) from error
        self.sent += 1


def send_each(streams: Iterable[tuple[str, Callable[[], None]]]) -> str | None:
    """Calls the function of each stream, which sends its events.

    A refused event holds only later events of its own stream.

    Args:
        streams: names, and functions that raise NotSent.

    Returns:
        A sentence about the refusals; None: there were none.
    """
    refusals: dict[str, NotSent] = {}
    for name, send in streams:
        try:
            send()
        except NotSent as error:
            refusals[name] = error
    return f"{next(iter(refusals.values()))}; events of {', '.join(refusals)} are not sent" if refusals else None


def _dataset(namespace: str, name: str) -> InputDataset:
    return InputDataset(namespace=namespace, name=name)


def _schema(of: Origins) -> schema_facet.SchemaDatasetFacet:
    return schema_facet.SchemaDatasetFacet(fields=[schema_facet.SchemaDatasetFacetFields(name=name) for name in of])


def _lineage(of: Origins, inputs: Mapping[str, list[tuple[str, str]]]) -> columns_facet.ColumnLineageDatasetFacet:
    fields = {}
    for column, origin in of.items():
        places = ((dataset, field) for operator, field in sorted(origin) for dataset in inputs[operator])
        each = [columns_facet.InputField(*dataset, field) for dataset, field in places]
        fields[column] = columns_facet.Fields(inputFields=each)
    return columns_facet.ColumnLineageDatasetFacet(fields=fields)


def _inputs(topology: Topology, layout: Layout, source: Reading) -> list[tuple[str, str]]:
    """Returns namespace and name of each dataset that *source* reads.

    The topics of a pattern are one: which ones it matches is known to the broker alone.
    """
    match source:
        case HopSource():
            hop = topology.repartition(source.repartition)
            return [_of_path(layout.stream(topology.name, source.upstream) / hop.output_table)]
        case Source():
            if source.topic:
                return [_of_topic(topology, source.kafka, topic) for topic in source.topics or (source.topic,)]
            return [_of_path(Path(source.read_from))]
        case _:
            assert_never(source)


def _output(topology: Topology, layout: Layout, stream: str, operator: Operator) -> tuple[str, str]:
    if operator.topic_written:
        return _of_topic(topology, getattr(operator, "kafka", ""), operator.topic_written)
    return _of_path(layout.stream(topology.name, stream) / str(operator.output_table))


def _of_topic(topology: Topology, cluster: str, topic: str) -> tuple[str, str]:
    """Returns the name of a topic, in the form of OpenLineage.

    A cluster whose address is not in a file has its name.
    """
    named = topology.clusters.get(cluster)
    return f"kafka://{named.bootstrap.partition(',')[0] if named else cluster}", topic


def _of_path(path: Path) -> tuple[str, str]:
    """Returns the name of a folder, in the form of OpenLineage."""
    scheme, separator, rest = str(path).partition("://")
    if not separator:
        return "file", str(path)
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key
