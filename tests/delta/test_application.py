"""Jobs of a team's own under a lease, here without Spark."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from support.command_line import tidemark
from support.typed_commands import commands
from tidemark.api.application import ApplicationOptions, ApplicationQueries, QueryHeartbeats, run_application
from tidemark.control.folder import Control, Heartbeat, LeaseLost, StreamState
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import JobLaunch
from tidemark.recorded_jobs.queries import RecordedQuery, recorded_topology, write_query
from tidemark.reports.pages.templates import code
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.pulse import Pulse
from tidemark.why.evidence.commands import run_job
from tidemark.why.walk import why


class Query:
    """A running query, without Spark."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.runId, self.id, self.name = "run", "id", "orders"
        self.isActive, self.status, self.error = True, {"isTriggerActive": False}, None
        self.stopped: list[bool] = []
        self.starts = 0
        self.start_error: Exception | None = None

    def start(self) -> Query:
        """Returns itself, as the writer's `start()` does."""
        self.starts += 1
        if self.start_error is not None:
            raise self.start_error
        return self

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        """Notes whether the job has its lease."""
        self.stopped.append(self._control.is_held())
        self.isActive = False


class Job:
    """The job `mine.py` of the topology `shop` in *home*."""

    def __init__(self, home: Path) -> None:
        self.home, self.control = home, Control(Layout(home / "warehouse").control("shop", "mine"))

    def run(self, code: str, *arguments: str) -> int:
        (self.home / "mine.py").write_text(code)
        return run_application(self.options(*arguments))

    def options(self, *arguments: str, launched_by: str = "a test") -> ApplicationOptions:
        names = {"topology": "shop", "sub_topology": "mine", "launch_id": "l", "launched_by": launched_by}
        take_over = {"take_over": False, "silent_after": 60.0}
        place = {"application": self.home / "mine.py", "argument": [*arguments], "warehouse": self.home / "warehouse"}
        return ApplicationOptions(**place, **names, **take_over)

    def beat(self) -> Heartbeat:
        beat = self.control.heartbeat()
        assert beat is not None
        return beat


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Job(tmp_path)


def test_a_job_runs_as_python_would_run_it(job: Job) -> None:
    (job.home / "beside.py").write_text("word = 'found'")
    seen = job.home / "seen"
    text = "f'{__name__} {beside.word} {sys.argv[1:]}'"
    code = f"import sys, beside, pathlib; pathlib.Path({str(seen)!r}).write_text({text})"
    assert job.run(code, "--day", "7") == 0
    assert seen.read_text() == "__main__ found ['--day', '7']"
    assert (job.beat().state, job.beat().reason, job.control.is_held()) == ("finished", None, False)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('no topic orders')", "ValueError: no topic orders"),
        ("exit(4)", "mine.py ended with 4"),
        ("exit('no topic orders')", "mine.py ended with 'no topic orders'"),
        (
            "from argparse import ArgumentParser; parser = ArgumentParser('mine.py')\n"
            "parser.add_argument('--to', required=True); parser.parse_args()",
            "mine.py ended with 2; its last line on stderr: mine.py: error: the following arguments are required: --to",
        ),
    ],
)
def test_a_job_that_fails_says_why(job: Job, code: str, reason: str) -> None:
    assert job.run(code) == 1
    assert (job.beat().state, job.beat().reason) == ("failed", reason)


def test_commands_know_a_job_that_fails_before_its_first_query(job: Job) -> None:
    assert job.run("import sys; print('two words are no day', file=sys.stderr); exit(2)", "--day", "7 8") == 1

    def said(*words: str) -> str:
        answer = tidemark(job.home, "--warehouse", str(job.home / "warehouse"), *words)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    reason = "the driver of mine failed: mine.py ended with 2; its last line on stderr: two words are no day"
    assert said("why", "shop").startswith(f"driver_dead: mine since {iso(job.beat().at_ms)}: {reason}; ")
    assert reason in said("status", "shop")
    assert said("topology", "shop")
    answer = tidemark(job.home, "--warehouse", str(job.home / "warehouse"), "logs", "shop")
    assert "has no log" in answer.stderr
    assert "it was launched by a test" in answer.stderr
    log = job.control.home / "run" / "run.log"
    log.parent.mkdir()
    log.write_text("a line of the job\n")
    assert said("logs", "shop") == said("logs", "shop/mine") == "a line of the job\n"


@pytest.mark.parametrize(
    ("launched_by", "remedy"),
    [
        (
            "tidemark run by ann",
            "`tidemark run shop --application {file} --argument=--day '--argument=7 8' --consumer-groups=acme "
            "--observe=at`",
        ),
        (
            "",
            "`tidemark run shop --application {file} --argument=--day '--argument=7 8' --consumer-groups=acme "
            "--observe=at` (in Airflow clear its task)",
        ),
        (
            "shop manual__1 try 2",
            "clear its task in Airflow, or trigger its DAG; it was launched by shop manual__1 try 2",
        ),
    ],
)
def test_a_remedy_launches_a_job_as_it_was_launched(job: Job, launched_by: str, remedy: str) -> None:
    (job.home / "mine.py").write_text("exit(2)")
    options = job.options("--day", "7 8", launched_by=launched_by)
    options.consumer_groups, options.observe = "acme", ["at"]
    run_application(options)
    topology = recorded_topology(Layout(job.home / "warehouse"), "shop")
    assert topology is not None
    (finding, *_) = why(topology, Layout(job.home / "warehouse"), at_ms=job.beat().at_ms + 1)
    again = remedy.format(file=job.home / "mine.py")
    assert finding.remedy == f"correct that and run the job of mine again: {again}"


def test_backticks_in_arguments_stay_in_the_command() -> None:
    arguments = ("a`b", "`", "``c")
    said = run_job("shop", JobLaunch(application="mine.py", arguments=arguments, launched_by="tidemark run by ann"))
    given = [f"--argument={argument}" for argument in arguments]
    assert commands(f"act: {said}; `tidemark why shop`") == [
        ["tidemark", "run", "shop", "--application", "mine.py", *given], ["tidemark", "why", "shop"]
    ]  # fmt: skip
    assert str(code(f"act: {said}; `tidemark why shop`")).replace("&#39;", "'") == (
        "act: <code>tidemark run shop --application mine.py '--argument=a`b' '--argument=`' '--argument=``c'</code>; "
        "<code>tidemark why shop</code>"
    )


def test_a_recorded_query_takes_the_place_of_its_job(job: Job) -> None:
    layout = Layout(job.home / "warehouse")
    assert job.run("", "--day", "7") == 0
    write_query(layout, "shop", RecordedQuery(name="clean", query_id="1", job="mine", application="/opt/mine.py"))
    topology = recorded_topology(layout, "shop")
    assert topology is not None
    launch = JobLaunch(application=str(job.home / "mine.py"), arguments=("--day", "7"), launched_by="a test")
    assert ([sub.name for sub in topology.sub_topologies], topology.jobs) == (["clean"], {"clean": launch})


@pytest.mark.parametrize(("launch", "names"), [("l", ["clean"]), ("before", ["clean", "mine"])])
def test_a_job_that_fails_before_its_queries_is_beside_them(job: Job, launch: str, names: list[str]) -> None:
    layout = Layout(job.home / "warehouse")
    write_query(layout, "shop", RecordedQuery(name="clean", query_id="1", job="mine", application="/opt/mine.py"))
    beat = Heartbeat(state=StreamState.DRAINED, epoch=1, launch_id=launch, at_ms=1, pid=1)
    Control(layout.control("shop", "clean")).beat(beat)
    assert job.run("exit(2)") == 1
    topology = recorded_topology(layout, "shop")
    assert topology is not None
    assert sorted(sub.name for sub in topology.sub_topologies) == names


def test_a_second_copy_of_a_job_does_not_run(job: Job) -> None:
    first = Control(job.control.home)
    first.acquire()
    assert job.run("raise SystemExit(9)") == 3
    first.release()
    assert job.run("") == 0
    assert job.beat().epoch == 2


@pytest.fixture
def query(job: Job, monkeypatch: pytest.MonkeyPatch) -> Query:
    """The query that `start()` of a job returns."""
    query = Query(job.control)
    monkeypatch.setattr(DataStreamWriter, "start", lambda *_, **__: query.start())
    monkeypatch.setattr(ApplicationQueries, "_listen", lambda *_: SimpleNamespace(name_of=lambda query: query.name))
    return query


IMPORTS = """
from types import SimpleNamespace
from pyspark.sql.streaming.readwriter import DataStreamWriter
"""
START = f"{IMPORTS}\nquery = DataStreamWriter.start(SimpleNamespace(_spark=None))"


def test_no_query_outlives_the_lease(job: Job, query: Query) -> None:
    assert job.run(START) == 0
    assert (query.stopped, job.beat().state) == ([True], "finished")


def test_a_job_lives_as_long_as_its_threads(job: Job, query: Query) -> None:
    ending = "def end():\n    time.sleep(0.5)\n    query.isActive = False\n"
    assert job.run(f"{START}\nimport threading, time\n{ending}\nthreading.Thread(target=end).start()") == 0
    assert (query.isActive, query.stopped, job.beat().state) == (False, [], "finished")


def test_a_job_that_ends_after_the_failure_of_a_query_has_failed(job: Job, query: Query) -> None:
    assert job.run(f"{START}\nquery.isActive, query.error = False, ValueError('no topic')") == 1
    assert (job.beat().state, job.beat().reason) == ("failed", "query orders failed: no topic")
    of_query = Control(job.control.home.parent / "orders").heartbeat()
    assert of_query is not None
    assert (of_query.state, of_query.reason) == ("failed", "no topic")


def test_two_jobs_run_no_query_of_one_name(job: Job, query: Query) -> None:
    other = Control(job.control.home.parent / "orders")
    other.acquire()
    assert job.run(START) == 1
    assert (query.isActive, job.beat().reason) == (
        False, "AlreadyRunning: shop/orders: another job runs a query of this name; give one of them another queryName"
    )  # fmt: skip
    other.release()


NAMED = [
    "DataStreamWriter.start(writer, queryName='orders')",
    "DataStreamWriter.toTable(writer, 'clean', None, None, None, 'orders')",
]


@pytest.mark.parametrize("start", NAMED)
def test_a_name_that_another_job_holds_starts_no_query(
    job: Job, query: Query, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr(DataStreamWriter, "toTable", lambda *_, **__: query.start())
    named = f"{IMPORTS}\nwriter = SimpleNamespace(_spark=None)\n{start}"
    other = Control(job.control.home.parent / "orders")
    other.acquire()
    assert (job.run(named), query.starts) == (1, 0)
    other.release()
    assert (job.run(named), query.starts) == (0, 1)


def test_a_query_that_cannot_start_gives_its_name_back(job: Job, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.start_error = ValueError("no topic")
    start = "DataStreamWriter.start(SimpleNamespace(_spark=None), queryName='orders')"
    retried = f"{IMPORTS}\ntry:\n    {start}\nexcept ValueError:\n    may_start()\n{start}"
    other = Control(job.control.home.parent / "orders")

    def may_start() -> None:
        beat = other.heartbeat()
        assert beat is not None
        assert (beat.state, beat.reason, other.is_held()) == ("failed", "no topic", False)
        query.start_error = None

    monkeypatch.setattr("builtins.may_start", may_start, raising=False)
    assert (job.run(retried), query.starts) == (0, 2)
    assert not other.is_held()


def test_a_job_that_took_the_name_of_a_query_over_is_noticed(job: Job, query: Query) -> None:
    sign = QueryHeartbeats("orders", Layout(job.home / "warehouse"), job.options())
    sign.follow(query, "its run")
    sign.look({"its run"})
    (job.control.home.parent / "orders" / "epoch").write_text("2")
    with pytest.raises(LeaseLost, match="another driver has taken over this stream with epoch 2"):
        sign.look({"its run"})
    query.isActive = False
    sign.look(())  # it has given the lease back


def test_nothing_is_kept_of_runs_that_have_ended(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, epoch = Layout(job.home / "warehouse"), job.control.acquire()
    history = Heartbeats(layout.stream("shop", "mine"), topology="shop", sub_topology="mine")
    queries = ApplicationQueries(job.control, Pulse(job.control, history, epoch, "l"), layout, job.options())
    listener = SimpleNamespace(name_of=lambda query: query.name, newest={}, close=lambda: None)
    queries._listeners["session"] = listener
    monkeypatch.setattr(queries, "_listen", lambda _: listener)
    sizes, batches = [], []
    for n in range(4):
        query = Query(job.control)
        query.runId = f"run {n}"
        queries._registering(lambda _, query=query: query)(SimpleNamespace(_spark=None))
        queries._look(10.0 * n)
        progress = {"runId": query.runId, "batchId": 10 * n, "sources": [], "durationMs": {"triggerExecution": 5}}
        listener.newest["orders"] = progress
        queries._look(10.0 * n + 1)
        query.isActive, query.error = False, ValueError("no topic")
        queries._look(10.0 * n + 2)
        sizes.append(sum(len(each) for each in vars(queries).values() if isinstance(each, dict | set)))
        batches.append(queries.reached[0])
    assert (sizes, batches) == ([sizes[0]] * 4, [0, 10, 20, 30])
    assert queries._look(1_000.0) == "query orders failed: no topic"
    queries.end("no topic")


def test_a_query_that_ignores_its_stop_holds_no_drain_up(
    job: Job, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.api.application.ENDS_WITHIN_S", 0.2)
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    released = threading.Event()
    monkeypatch.setattr(query, "stop", released.wait)
    assert job.run(START) == 0
    # The process ends with its queries, because they must not write without the lease.
    assert (ended, job.beat().state) == ([0], "finished")
    released.set()


def test_a_drain_ends_a_job_that_has_stopped_its_jvm(job: Job, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.api.application.ENDS_WITHIN_S", 0.2)
    ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda _: ended.set())

    def gone() -> None:
        msg = "the JVM does not answer"
        raise ConnectionRefusedError(msg)

    monkeypatch.setattr(Query, "isActive", property(lambda _: gone(), lambda *_: None), raising=False)
    drain = f"Control(Path({str(job.control.home)!r})).request_drain(by='ann', now_ms=1)"
    lives_on = f"{START}\nfrom pathlib import Path\nfrom tidemark.control.folder import Control\n{drain}\n"
    monkeypatch.setattr("builtins.process_ends", ended.wait, raising=False)
    assert job.run(f"{lives_on}process_ends(60)") == 0
    assert ended.is_set()
    assert (job.beat().state, job.beat().drained_by) == ("drained", "ann")


@pytest.mark.parametrize("option", [("--time", "processing"), ("--bootstrap", "127.0.0.1:1"), ("--secrets", "own")])
def test_a_setting_that_a_job_has_itself_is_refused(job: Job, option: tuple[str, str]) -> None:
    done = tidemark(job.home, "--warehouse", str(job.home), "run", "jobs", "--application", "job.py", *option)
    assert (done.returncode, "leave out --time, --bootstrap, --secrets" in done.stderr) == (1, True)
