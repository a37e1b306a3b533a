"""Jobs run unchanged in Spark, and their faults are named."""

from __future__ import annotations

import json
import os
import resource
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import critical_path
from support.small_disk import small_disk
from support.unchanged_jobs import EXAMPLES, JOBS, MINUTE, Shop, wait_for
from tidemark.recorded_jobs.queries import recorded_topology

pytestmark = pytest.mark.long  # each runs jobs in Spark, 10 to 60 s; test_api.py has the short case


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_chain_of_three_jobs_is_one_topology(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5), (2, 30_000, -1))
    shop.feed("feed", (3, 3 * MINUTE, 7))
    shop.feed("feed", (4, 5 * MINUTE, 9))
    statuses = [shop.run("land", "feed"), shop.run("clean", "land_table"), shop.run("total", "clean_table")]
    assert statuses == [0, 0, 0]

    assert {name: [*read] for name, read in shop.topology.upstreams.items()} == {
        "land:feed": [], "land": ["land:feed"], "clean:land_table": ["land"], "clean": ["clean:land_table"],
        "total:clean_table": ["clean"], "total": ["total:clean_table"],
    }  # fmt: skip
    assert shop.rows("clean_table", "id") == [(1,), (3,), (4,)]
    # The watermark is 10 s behind the record of 12:05; the last window is open.
    assert [amount for _, amount in shop.rows("total_table", "end", "amount")] == [5, 7]
    # When the record of 12:05 was read, the watermark was 12:02:50.
    ends = {end.minute for operator, end in shop.recorded("clean", "operator_windows", "operator", "window_end")}
    assert ends == {1, 2}
    assert [n for each, n in shop.recorded("land", "operator_batches", "operator", "passed") if each == "land"] == [
        1,
        1,
        2,
    ]
    assert shop.causes()[0] == "driver_dead"  # it ended by itself, and Airflow would start it again


def test_a_job_with_foreach_batch_runs_unchanged(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5))
    shop.feed("feed", (2, 0, 6))
    assert shop.run("enrich", "feed") == 0
    assert shop.rows("enrich_table", "id", "batch") == [(1, 0), (2, 1)]
    # The query has no name, and gets one from its job.
    assert shop.recorded("enrich_1", "batches", "batch_id", "records_in") == [(0, 1), (1, 1)]


def test_a_join_of_two_streams_runs_unchanged(shop: Shop) -> None:
    shop.feed("orders", (1, 0, 5), (2, 0, 5))
    shop.feed("payments", (1, 30_000, 5), (2, 90_000, 5))
    assert shop.run("pair", "orders", "payments") == 0
    assert shop.rows("pair_table", "id") == [(1,)]
    outcomes = shop.recorded("pairs", "operator_batches", "operator", "records_in")
    assert {("pairs", 4), ("pairs:orders", 2), ("pairs:payments", 2)} <= {*outcomes}


def test_a_removal_of_duplicates_runs_unchanged(shop: Shop) -> None:
    shop.feed("feed", (1, 10 * MINUTE, 5), (1, 10 * MINUTE, 5))
    shop.feed("feed", (2, 10 * MINUTE, 5))
    shop.feed("feed", (3, 0, 5))  # behind the watermark
    assert shop.run("first_seen", "feed") == 0
    assert shop.rows("first_seen_table", "id") == [(1,), (2,)]
    late = [
        n for operator, n in shop.recorded("firsts", "operator_batches", "operator", "late") if operator == "firsts"
    ]
    assert sum(late) == 1


def test_a_stateful_processor_runs_unchanged(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5), (1, 0, 5))
    shop.feed("feed", (1, 0, 5))
    assert shop.run("count_orders", "feed") == 0
    assert shop.rows("count_orders_table", "id", "n") == [(1, 2), (1, 3)]
    assert shop.recorded("counts", "batches", "batch_id", "records_in") == [(0, 2), (1, 1)]


def test_faults_of_a_job_are_named_and_recovered(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5))
    assert shop.run("fragile", "feed") == 0
    # Code of the job raises an exception.
    shop.feed("feed", (2, 0, 13))
    assert shop.run("fragile", "feed") == 1
    assert "13 is no amount" in shop.reason()
    shop.write(shop.home / "feed" / "1.json", '{"id": 2, "amount": 12}')
    # A record of the feed is not JSON.
    shop.feed("feed", (3, 0, 5))
    shop.write(shop.home / "feed" / "2.json", "{no json")
    assert shop.run("fragile", "feed") == 1
    assert "MALFORMED_RECORD" in shop.reason()
    shop.write(shop.home / "feed" / "2.json", '{"id": 3, "amount": 5}')
    assert shop.run("fragile", "feed") == 0
    assert shop.rows("fragile_table", "id") == [(1,), (2,), (3,)]
    # A file that the stream needs has vanished, as a deleted topic does.
    shop.feed("feed", (4, 0, 5))
    (shop.home / "fragile_table").rename(shop.home / "away")
    (shop.home / "fragile_table").write_text("no table")
    assert shop.run("fragile", "feed") == 1
    assert "fragile_table" in shop.reason()
    (shop.home / "fragile_table").unlink()
    (shop.home / "away").rename(shop.home / "fragile_table")
    assert shop.run("fragile", "feed") == 0
    assert shop.rows("fragile_table", "id") == [(1,), (2,), (3,), (4,)]
    # The checkpoint is lost: the query begins again, with batches of new numbers.
    (shop.home / "fragile_checkpoint").rename(shop.home / "lost")
    assert shop.run("fragile", "feed") == 0
    assert "new_checkpoint" in shop.causes()
    ids = [n for (n,) in shop.recorded("fragile", "batches", "batch_id")]
    assert ids == [*range(len(ids))]


def limited(spark: SparkSession, most_bytes: int) -> None:
    """Limits the files that Spark writes, as a quota does."""
    jvm = spark._jvm
    assert jvm is not None
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))


@pytest.mark.parametrize("problem", ["No space left on device", "File too large"])
def test_a_job_on_a_full_disk_is_named_and_goes_on(spark: SparkSession, shop: Shop, problem: str) -> None:
    disk = small_disk(shop.home / "disk", megabytes=16) if problem.startswith("No space") else nullcontext()
    places = [str(shop.home / place) for place in ("feed", "disk/table", "disk/checkpoint")]
    with disk as small:
        shop.feed("feed", (1, 0, 5))
        assert shop.start(JOBS / "land.py", *places) == 0
        shop.feed("feed", (2, 0, 5), (3, 0, 5))
        small.fill() if small else limited(spark, 0)
        try:
            assert shop.start(JOBS / "land.py", *places) == 1
        finally:
            small.free() if small else limited(spark, resource.RLIM_INFINITY)
        assert problem in shop.reason()
        assert shop.start(JOBS / "land.py", *places) == 0
        assert shop.rows("disk/table", "id") == [(1,), (2,), (3,)]


@pytest.fixture
def lines() -> Iterator[int]:
    """Returns the port of a server that sends each client a line."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"late early late\n")
            self.rfile.read()  # until the client ends

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


NETWORK = "structured_network_wordcount"


@pytest.mark.parametrize(("example", "arguments"), [(NETWORK, []), (f"{NETWORK}_windowed", ["10", "5"])])
def test_examples_of_spark_run_unchanged(shop: Shop, lines: int, example: str, arguments: list[str]) -> None:
    assert shop.run_example(example, "127.0.0.1", str(lines), *arguments) == 1


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        ("structured_sessionization", "session window"),  # in the output mode `update`
        (f"{NETWORK}_session_window", "TypeError: 'float' object"),  # with pandas 2
    ],
)
def test_an_example_that_spark_refuses_fails_with_its_reason(shop: Shop, lines: int, example: str, reason: str) -> None:
    assert shop.start(EXAMPLES / f"{example}.py", "127.0.0.1", str(lines)) == 1
    beat = shop.control(example).heartbeat()
    assert beat is not None
    assert reason in (beat.reason or "")


def test_a_job_that_is_killed_goes_on_where_it_was(shop: Shop) -> None:
    shop.feed("feed", (1, 0, 5))
    control = shop.control("endless")

    def written() -> list[int]:
        files = (shop.home / "out").glob("*.json") if (shop.home / "out").exists() else ()
        return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())

    def driver() -> subprocess.Popen[bytes]:
        program = Path(critical_path.__file__).with_name("application.py")
        names = ["--topology", "shop", "--sub-topology", "endless", "--warehouse", str(shop.layout.warehouse)]
        arguments = [f"--argument={shop.home / place}" for place in ("feed", "out", "checkpoint")]
        command = [sys.executable, str(program), "--application", str(JOBS / "endless.py"), *names, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(program.parent), "SPARK_LOCAL_DIRS": str(shop.home)}
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)

    first = driver()
    try:
        wait_for(lambda: written() == [1] and (shop.home / "checkpoint" / "commits" / "0").exists())
        wait_for(lambda: recorded_topology(shop.layout, "shop"))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    wait_for(lambda: shop.causes()[0] == "driver_dead")
    shop.feed("feed", (2, 0, 5))
    second = driver()
    try:
        wait_for(lambda: written() == [1, 2])
        shop.drain("endless")
        assert second.wait(60) == 0
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
            second.wait()
    beat = control.heartbeat()
    assert beat is not None
    assert (beat.state, beat.epoch) == ("drained", 2)
    assert (1, 1) in shop.recorded("copies", "batches", "batch_id", "records_in")
