"""Receivers of OpenLineage get runs with the numbers of the tables."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from jsonschema import Draft202012Validator
from openlineage.client.event_v2 import RunState
from openlineage.client.serde import Serde
from referencing import Registry
from referencing.jsonschema import DRAFT202012

import support
from support.command_line import tidemark
from support.play import Play, ms, record
from support.topologies import sink, source, table, topology_of
from tidemark.cli.export import serve_metrics
from tidemark.cli.export.lineage import Sender
from tidemark.cli.export.lineage_runs import RunReporter, run_changes
from tidemark.control.folder import Heartbeat, StreamState
from tidemark.facts.run_facts import BEAT_COLUMNS
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.semantics.progress import TopicPartition
from tidemark.stream.driver.heartbeats import Heartbeats

HOUR_S = 3_600.0
Event = dict[str, Any]


class Scene:
    """A stream with drivers and batches made by hand."""

    def __init__(self, home: Path, topology: str = "t", toml: str | None = None) -> None:
        toml = toml or topology_of(
            {"name": topology},
            events=source("id string, amount double", idle_after="1 h"),
            latest=table(columns=["amount"]),
            kept=sink("latest", table="kept"),
            sent=sink("latest", topic="amounts"),
        )
        self.play = Play(toml, home)
        self.control = self.play.control
        self.histories: dict[int, Heartbeats] = {}

    def beat(self, at_s: float, state: StreamState = StreamState.RUNNING, *, epoch: int = 1, **more: Any) -> None:
        beat = Heartbeat(state=state, epoch=epoch, launch_id="", at_ms=ms(at_s), pid=1, **more)
        if epoch not in self.histories:
            # The lock of a driver that was killed is free, and its successor takes it.
            self.control.release()
            assert self.control.acquire() == epoch
            topology = self.play.topology.name
            home = Layout(self.play.home).stream(topology, self.play.sub)
            self.histories[epoch] = Heartbeats(home, topology=topology, sub_topology=self.play.sub)
            if epoch > 1:
                self.play.start(epoch=epoch)
        self.control.beat(beat)
        self.histories[epoch].write_if_due(beat, thread_id="t", batch_started_at_ms=None)

    def batch(self, at_s: float, *ids: str) -> None:
        """A batch of records that are two seconds old."""
        self.play.batch([record(at_s - 2, key, at_s)(self.play) for key in ids], at_ms=ms(at_s))

    def reporter(
        self, send: Callable[[Any], None], said: list[str], at_s: Callable[[], float], *beside: Scene
    ) -> RunReporter:
        topologies = [scene.play.topology for scene in (self, *beside)]
        return RunReporter(Layout(self.play.home), lambda: topologies, send, said.append, clock=lambda: ms(at_s()))

    def play_out(self, look: Callable[[float], None]) -> None:
        """Two drivers: the first is killed after its second batch."""
        self.beat(-60, StreamState.STARTING)
        look(-59)
        self.batch(-30, "a", "b")
        self.beat(0)
        self.batch(10, "a", "b", "c")
        look(200)
        look(400)
        self.beat(1_800)
        self.beat(3_000, StreamState.STARTING, epoch=2, predecessor_killed_by="task run: it hung")
        look(3_001)
        self.batch(3_100, "a")
        self.beat(HOUR_S, epoch=2)
        self.beat(4_000, StreamState.DRAINED, epoch=2, drained_by="ann")
        look(4_001)


class Receiver:
    """An HTTP server on loopback while it is a context.

    It takes events while its `status` is 200, but none of a job in `refused`.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.status, self.refused = 200, set[str]()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                event = json.loads(body)
                status = 400 if event["job"]["name"] in receiver.refused else receiver.status
                if status == 200:
                    receiver.events.append(event)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def sender(**transport: Any) -> Sender:
    """A sender that gets *transport* from the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
            patch.delenv(name)
        patch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
        return Sender()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, list[Event]]:
    """Both drivers have ended; with the events that an HTTP receiver got."""
    scene, said, now_s = Scene(tmp_path_factory.mktemp("w")), list[str](), [0.0]
    with Receiver() as receiver:
        reporter = scene.reporter(sender(type="http", url=receiver.url), said, lambda: now_s[0])

        def look(at_s: float) -> None:
            now_s[0] = at_s
            reporter.report()

        scene.play_out(look)
    assert said == []
    return scene, receiver.events


def outputs(event: Event) -> dict[str, Event]:
    return {each["name"].rpartition("/")[2]: each for each in event["outputs"]}


def statistics(event: Event, output: str) -> Event:
    facet = outputs(event)[output]["outputFacets"].get("outputStatistics", {})
    return {key: value for key, value in facet.items() if not key.startswith("_")}


def test_each_run_begins_reports_hours_and_ends(ended: tuple[Scene, list[Event]]) -> None:
    _, events = ended
    assert [
        (each["eventType"], each["eventTime"][11:19], statistics(each, "kept").get("rowCount")) for each in events
    ] == [
        ("START", "11:59:00", None),
        ("RUNNING", "12:00:00", 2),
        ("ABORT", "12:30:00", 3),
        ("START", "12:50:00", None),
        ("RUNNING", "13:00:00", 1),
        ("COMPLETE", "13:06:40", 0),
    ]
    first, second = events[0]["run"]["runId"], events[3]["run"]["runId"]
    assert [each["run"]["runId"] for each in events] == [first] * 3 + [second] * 3
    assert first != second
    assert events[2]["run"]["facets"]["errorMessage"]["message"] == "task run: it hung"
    # The batch of 12:00:10 read records of 12:00:08; the watermark is the bound of 1 s and 1 ms behind them.
    freshness = outputs(events[2])["kept"]["facets"]["tidemark_freshness"]
    assert {key: value for key, value in freshness.items() if not key.startswith("_")} == {
        "watermark": "2014-05-13T12:00:06.999Z",
        "newestEventTime": "2014-05-13T12:00:08.000Z",
        "stalenessMs": 1_792_000,
    }


def test_events_and_facets_fulfil_their_schemas(ended: tuple[Scene, list[Event]]) -> None:
    spec = json.loads((Path(support.__file__).parent / "openlineage_schemas.json").read_text())["schemas"]
    own = json.loads((CHECKOUT / "docs" / "FreshnessDatasetFacet.json").read_text())
    registry = Registry().with_resources((each["$id"], DRAFT202012.create_resource(each)) for each in [*spec, own])
    rules = Draft202012Validator({"$ref": f"{spec[0]['$id']}#/$defs/RunEvent"}, registry=registry)
    seen = set()
    for event in ended[1]:
        rules.validate(event)
        del event["run"]["facets"]["tags"]  # the client's own
        named_facets = [event["run"]["facets"], event["job"]["facets"]]
        named_facets += [each.get("inputFacets", {}) for each in event["inputs"]]
        named_facets += [each[of] for each in event["outputs"] for of in ("facets", "outputFacets")]
        for named in named_facets:
            for name, facet in named.items():
                rules.evolve(schema={"$ref": facet["_schemaURL"]}).validate(facet)
                seen.add(name)
    assert seen == {
        "jobType", "errorMessage", "schema", "columnLineage", "inputStatistics", "outputStatistics",
        "tidemark_freshness",
    }  # fmt: skip


def test_statistics_add_up_to_the_rows_and_files_of_a_table(ended: tuple[Scene, list[Event]]) -> None:
    scene, events = ended
    added = pl.DataFrame(DeltaTable(str(scene.play.table("kept"))).get_add_actions(flatten=True))
    assert (added["num_records"].sum(), added.height) == (6, 3)
    of_table = [statistics(each, "kept") for each in events]
    assert {key: sum(each.get(key, 0) for each in of_table) for key in ("rowCount", "fileCount", "size")} == {
        "rowCount": 6, "fileCount": 3, "size": added["size_bytes"].sum(),
    }  # fmt: skip
    of_topic = [statistics(each, "amounts") for each in events]
    assert sum(each.get("rowCount", 0) for each in of_topic) == 6
    assert not any(each.keys() & {"fileCount", "size"} for each in of_topic)


def rows_read(event: Event) -> dict[str, int]:
    """Returns the rows of each input that has statistics."""
    read = {each["name"]: each.get("inputFacets", {}).get("inputStatistics") for each in event["inputs"]}
    return {name: facet["rowCount"] for name, facet in read.items() if facet}


def test_rows_read_are_the_offsets_of_a_topic(ended: tuple[Scene, list[Event]]) -> None:
    scene, events = ended
    read = [rows_read(each).get("events") for each in events]
    assert read == [None, 2, 3, None, 1, 0]
    parts = [part for reads in scene.play.reads().values() for part in reads]
    assert sum(part["until_offset"] - part["from_offset"] for part in parts) == 6


def test_rows_read_are_told_by_topic(tmp_path: Path) -> None:
    several = source("id string", topic=None, topics=["a", "b", "c"], idle_after="1 h")
    scene = Scene(tmp_path, toml=topology_of(events=several, kept=sink("events", table="kept")))
    scene.play.broker.places = (
        TopicPartition("a", 0),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
        TopicPartition("c", 0),
    )
    scene.beat(-60, StreamState.STARTING)
    for number, partitions in enumerate(((0, 1), (2, 2, 1))):
        rows = [scene.play.row("events", ms(number), partition=partition, id="x") for partition in partitions]
        scene.play.batch(rows, at_ms=ms(number))
    scene.beat(60, StreamState.DRAINED)
    sent: list[Any] = []
    scene.reporter(sent.append, [], lambda: 61.0).report()
    assert [rows_read(json.loads(Serde.to_json(event))) for event in sent] == [
        {}, {"a": 1, "b": 1, "c": 0}, {"a": 0, "b": 3, "c": 0},
    ]  # fmt: skip


def test_events_that_are_sent_again_are_the_same(ended: tuple[Scene, list[Event]], tmp_path: Path) -> None:
    scene, events = ended
    file = tmp_path / "events.jsonl"
    to_file = sender(type="file", log_file_path=str(file), append=True)
    scene.play.control.keep_lineage_sent({"epoch": 0, "at_ms": 0, "order": 0})
    for _ in range(2):  # the second one finds nothing to send
        scene.reporter(to_file, [], lambda: 5_000.0).report()
    again = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for event in [*events, *again]:
        event["run"]["facets"].pop("tags", None)
    assert again == events


def test_a_receiver_that_is_down_is_said_once_and_gets_all_later(tmp_path: Path) -> None:
    scene, said = Scene(tmp_path), list[str]()
    scene.beat(-60, StreamState.STARTING)
    with Receiver() as receiver:
        to_receiver = sender(type="http", url=receiver.url, timeout=60, retry={"total": 0})
        reporter = scene.reporter(to_receiver, said, lambda: -59.0)
        receiver.status = 500
        for _ in range(3):
            reporter.report()
        (trouble,) = said
        assert "the transport http of OpenLineage did not take an event" in trouble
        receiver.status = 200
        reporter.report()
        reporter.report()
    assert said == [trouble, "OpenLineage takes events again"]
    assert [each["eventType"] for each in receiver.events] == ["START"]


def test_an_event_that_is_refused_holds_no_other_stream(tmp_path: Path) -> None:
    scenes, said = [Scene(tmp_path, name) for name in "tuv"], list[str]()
    names = [f"{scene.play.topology.name}.{scene.play.sub}" for scene in scenes]
    for scene in scenes:
        scene.beat(-60, StreamState.STARTING)
    with Receiver() as receiver:
        to_receiver = sender(type="http", url=receiver.url, timeout=60, retry={"total": 0})
        reporter = scenes[0].reporter(to_receiver, said, lambda: -59.0, *scenes[1:])
        receiver.refused = {names[0], names[1]}
        for _ in range(2):
            reporter.report()
        assert [each["job"]["name"] for each in receiver.events] == [names[2]]
        (trouble,) = said
        assert trouble.endswith(f"; events of {names[0]}, {names[1]} are not sent")
        receiver.refused = {names[0]}
        reporter.report()
        assert said == [trouble]
        receiver.refused = set()
        reporter.report()
    assert said == [trouble, "OpenLineage takes events again"]
    assert [each["job"]["name"] for each in receiver.events] == [names[2], names[1], names[0]]


@pytest.mark.parametrize("options", [(), ("--runs",)], ids=["streams", "runs"])
def test_the_command_goes_on_after_a_refused_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    scenes = [Scene(tmp_path / "w", name) for name in "tu"]
    for folder in ("topologies", "expectations"):
        (tmp_path / folder).mkdir()
    for scene in scenes:
        (tmp_path / "topologies" / f"{scene.play.topology.name}.toml").write_text(scene.play.toml)
        scene.beat(-60, StreamState.STARTING)
    refused, taken = [f"{scene.play.topology.name}.{scene.play.sub}" for scene in scenes]
    with Receiver() as receiver:
        receiver.refused = {refused}
        transport = {"type": "http", "url": receiver.url, "timeout": 60, "retry": {"total": 0}}
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
        done = tidemark(tmp_path, "--warehouse", str(tmp_path / "w"), "publish", "lineage", *options, "--send")
    assert {each["job"]["name"] for each in receiver.events} == {taken}
    assert (done.returncode, f"events of {refused} are not sent" in done.stderr) == (1, True), done.stderr
    assert done.stdout == f"sent {len(receiver.events)} events by the transport http\n"


def beats(*rows: tuple[int, float, str]) -> pl.DataFrame:
    schema = {"epoch": pl.Int64, "beat_at": pl.Int64, "state": pl.String, "reason": pl.String}
    same = {"reason": "full disk"}
    of_rows = [{"epoch": epoch, "beat_at": ms(at_s), "state": state, **same} for epoch, at_s, state in rows]
    return pl.DataFrame(of_rows, schema=schema).with_columns(predecessor_killed_by=pl.lit(None, pl.String))[
        BEAT_COLUMNS
    ]


NONE_FINISHED = pl.Series(dtype=pl.Int64)


@pytest.mark.parametrize(
    ("last", "end", "is_gone"),
    [
        ("failed", (RunState.FAIL, "full disk"), False),
        ("running", (RunState.ABORT, "the driver ended without a last heartbeat"), True),
        ("rotated", (RunState.COMPLETE, None), False),
        ("running", None, False),
    ],
)
def test_the_last_heartbeat_decides_how_a_run_ends(
    last: str, end: tuple[RunState, str | None] | None, *, is_gone: bool
) -> None:
    changes = run_changes(beats((1, 0, "starting"), (1, 60, last)), NONE_FINISHED, ms(600), is_gone=is_gone)
    assert [(each.state, each.reason) for each in changes] == [(RunState.START, None), *([end] if end else [])]


def test_hours_without_a_sign_of_life_are_not_reported() -> None:
    of_driver = beats((1, -60, "starting"), (1, HOUR_S - 1, "running"))
    changes = run_changes(of_driver, NONE_FINISHED, ms(3 * HOUR_S), is_gone=False)
    assert [(each.state, each.at_ms) for each in changes] == [(RunState.START, ms(-60)), (RunState.RUNNING, ms(0))]


def test_a_new_reporter_goes_back_a_day_at_most() -> None:
    of_driver = beats((1, -60, "starting"), (1, 48 * HOUR_S, "running"))
    changes = run_changes(of_driver, NONE_FINISHED, ms(48 * HOUR_S + 600), is_gone=False)
    hours = [(each.at_ms - ms(0)) // 3_600_000 for each in changes if each.state is RunState.RUNNING]
    assert hours == [*range(25, 49)]


def test_an_error_is_printed_and_ends_no_work_beside_metrics(capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []
    again = threading.Event()

    def work() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise PermissionError(13, "topologies cannot be listed")
        again.set()
        threading.Event().wait()  # the thread goes on

    serve_metrics._beside(work, 0.01)

    assert again.wait(30)
    assert (
        "PermissionError: [Errno 13] topologies cannot be listed; it is tried again in 0.01 s" in capfd.readouterr().err
    )
