"""The contests compare rows, measure processes and write their page."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from contests import page, process_tree
from contests.comparison import Comparison, compare
from contests.peers.kafka_streams import KafkaStreams
from contests.peers.loop import Loop
from contests.peers.spark import SparkMerge
from contests.peers.tidemark import Tidemark
from contests.programs.parse import PARSERS
from contests.workload import TYPES, Expected, records_of

from tidemark.control.process import wait_until

pytestmark = pytest.mark.slow

BURN_S = 0.2
PROCESSES = f"""
import os, signal, time

def burn():
    while time.process_time() < {BURN_S}:
        pass

def write_cpu_s():
    os.write(1, b"%.6f\\n" % time.process_time())

def burn_and_end():
    burn()
    write_cpu_s()
    os._exit(0)

burn()                                       # 1: the first process, which is killed
if os.fork() == 0:
    burn_and_end()                           # 2: ended, and its parent waited for it
os.wait()
if os.fork() == 0:
    if os.fork() == 0:
        burn_and_end()                       # 3: its parent ends, too
    burn_and_end()                           # 4
os.wait()
if os.fork() == 0:
    if os.fork() == 0:
        burn_and_end()                       # 5: ended, and nobody waits for it
    burn()                                   # 6: killed
    write_cpu_s()
    time.sleep(600)
if os.fork() == 0:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if os.fork() == 0:
        burn()                               # 7: ended, and the kernel forgets its use
        write_cpu_s()
        time.sleep(1)
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:                # none is left
        burn()                               # 8: killed
        write_cpu_s()
        time.sleep(600)
with open("file", "wb") as file:
    file.write(bytes(3_000_000))
    file.flush()
    os.fsync(file.fileno())
os.remove("file")
write_cpu_s()
time.sleep(600)
"""


PARENT_THAT_IGNORES_ITS_CHILD = f"""
import os, signal, time

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < {BURN_S}:
        pass
    os.write(1, b"%d %.6f\\n" % (os.getpid(), time.process_time()))
    time.sleep(600)
os.write(1, b"%d %.6f\\n" % (os.getpid(), time.process_time()))
time.sleep(600)
"""


def test_a_child_that_outlives_an_ignoring_parent_counts_once(tmp_path: Path) -> None:
    report, output = tmp_path / "use.json", tmp_path / "output"
    command = [sys.executable, str(Path(process_tree.__file__)), str(report), sys.executable, "-c"]
    with output.open("wb") as file:
        meter = subprocess.Popen([*command, PARENT_THAT_IGNORES_ITS_CHILD], stdout=file)
    try:
        wait_until(lambda: output.read_bytes().count(b"\n") == 2, "the child's work", 60)
        parent, child = (line.split() for line in output.read_text().splitlines())
        measured_s = float(parent[1]) + float(child[1])
        rounded_s = 2 * 2 / process_tree.TICKS_A_S  # two times of each, rounded down to ticks
        wait_until(lambda: json.loads(report.read_text())["cpu_s"] >= measured_s - rounded_s, "a look at both", 60)
        looked_s = json.loads(report.read_text())["at_s"]
        wait_until(lambda: json.loads(report.read_text())["at_s"] > looked_s, "the pause after a look", 60)
        with open(os.pidfd_open(int(parent[0])), "rb") as end_of_parent:
            os.kill(int(parent[0]), signal.SIGKILL)
            assert select.select([end_of_parent], [], [], 60)[0]
        os.kill(int(child[0]), signal.SIGKILL)
        meter.wait(60)
    finally:
        meter.terminate()  # it kills the tree
        meter.wait(60)
    use = json.loads(report.read_text())
    assert use["ended"]
    assert measured_s - rounded_s <= use["cpu_s"] < measured_s + BURN_S / 2


def test_the_use_of_each_process_of_a_tree_counts_once(tmp_path: Path) -> None:
    report, output = tmp_path / "use.json", tmp_path / "output"
    command = [sys.executable, str(Path(process_tree.__file__)), str(report), sys.executable, "-c", PROCESSES]
    with output.open("wb") as file:
        meter = subprocess.Popen(command, stdout=file, cwd=tmp_path)
    try:
        wait_until(lambda: output.read_bytes().count(b"\n") == 8, "eight processes and a file", 120)
    finally:
        meter.send_signal(signal.SIGTERM)
        assert meter.wait() == 128 + signal.SIGKILL
    use = json.loads(report.read_text())
    assert use["ended"]
    # Forks and page faults take more on a busy machine, and are in what the processes measured.
    measured_s = sum(map(float, output.read_text().split()))
    rounded_s = 4 * 2 / process_tree.TICKS_A_S  # two times of each that was not waited for, rounded down to ticks
    assert 8 * BURN_S - rounded_s <= use["cpu_s"] < measured_s + BURN_S
    # A file system in memory writes nothing.
    assert use["bytes_written"] == 0 or 3_000_000 <= use["bytes_written"] < 3_500_000
    assert process_tree.descendants(meter.pid) == []


def test_a_tree_has_the_exit_status_of_its_first_process(tmp_path: Path) -> None:
    report = tmp_path / "use.json"
    command = [
        sys.executable,
        str(Path(process_tree.__file__)),
        str(report),
        sys.executable,
        "-c",
        "raise SystemExit(3)",
    ]
    assert subprocess.run(command, check=False).returncode == 3
    assert json.loads(report.read_text())["status"] == 3


def _rows(*rows: str) -> pl.DataFrame:
    """Returns rows of `id` and `at`, from texts such as `a1`."""
    return pl.DataFrame({"id": [row[0] for row in rows], "at": [int(row[1]) for row in rows]})


def test_equal_rows_are_exact_in_any_order_of_keys() -> None:
    comparison = compare(_rows("a1", "b2", "a3"), _rows("b2", "a1", "a3"))
    assert comparison == Comparison(expected=3, emitted=3, missing=0, unexpected=0, duplicates=0, disordered=0)
    assert comparison.is_exact


def test_each_difference_is_counted_once() -> None:
    # b2 is missing, c9 was not expected, d5 and d6 come again, and both rows of a are in another order.
    expected = _rows("a1", "b2", "a3", "b4", "d5", "d6")
    emitted = _rows("a3", "b4", "a1", "d5", "d6", "c9", "d5", "d6")
    comparison = compare(expected, emitted)
    assert comparison == Comparison(expected=6, emitted=8, missing=1, unexpected=1, duplicates=2, disordered=1)
    assert not comparison.is_complete


def test_duplicates_are_complete_but_not_exact() -> None:
    comparison = compare(_rows("a1", "a2"), _rows("a1", "a2", "a1", "a2"))
    assert (comparison.is_complete, comparison.is_exact) == (True, False)


@pytest.mark.parametrize(
    ("expected", "instants"),
    [(Expected.CHANGES, [1, 2, 4, 5]), (Expected.ALL, [1, 2, 3, 4, 5]), (Expected.LAST, [3, 5])],
)
def test_expected_rows_follow_from_values_of_the_same_key(expected: Expected, instants: list[int]) -> None:
    updates = [("a", "on", 1), ("b", "on", 2), ("b", "on", 3), ("a", "off", 4), ("a", "on", 5)]
    texts = [json.dumps({"id": k, "status": s, "amount": 7, "note": "n", "at": at}) for k, s, at in updates]
    rows = expected.rows(pl.Series(texts))
    assert rows["at"].to_list() == instants
    assert rows.schema == pl.Schema(TYPES)


def test_records_are_as_the_page_describes_them() -> None:
    records = records_of(20_000, keys=1_000)
    assert records["value"].str.len_bytes().mean() == pytest.approx(150, abs=10)
    assert records.group_by("key").agg(pl.col("partition").n_unique())["partition"].to_list() == [1] * 1_000
    # 1,000 first records, and about 15 % of the other 19,000.
    assert Expected.CHANGES.rows(records["value"]).height == pytest.approx(1_000 + 2_850, abs=200)


def _run(peer: str, records: int, cpu_s: float, **more: object) -> page.Run:
    common = {"peer": peer, "kind": "backlog", "promise": "exactly once", "records": records, "cpu_s": cpu_s}
    measured = {
        "peak_rss_mib": 512,
        "written_mib": 10.0,
        "broker_written_mib": 2.0,
        "broker_cpu_s": 1.0,
        "cpu_s_by_thread": {"main": 9.5},
    }
    compared = dict.fromkeys(("expected", "emitted"), 170) | dict.fromkeys(
        ("missing", "unexpected", "duplicates", "disordered"), 0
    )
    verdict = {"is_exact": True, "is_complete": True, "began_load": 1.0, "load": 2.5}
    described = {"versions": {peer: "1.0"}, "settings": {"heap": "1 GB"}, "machine": {"cores": 2}}
    return common | measured | compared | verdict | described | more


RUNS = [
    _run("tidemark", 1_000_000, 40.0),
    _run("tidemark", 3_000_000, 66.0),
    _run("kafka_streams", 1_000_000, 15.0),
    _run("kafka_streams", 1_000_000, 21.0),
    _run("kafka_streams", 3_000_000, 34.0),
    _run("loop", 1_000_000, 3.3, promise="none"),
    _run("loop", 3_000_000, 9.3, promise="none"),
    _run("loop", 400_000, 0.0, kind="idle", idle_cpu_s_a_minute=0.5),
]


def test_the_page_has_medians_marginal_costs_and_losses(tmp_path: Path) -> None:
    costs = page.write(tmp_path, RUNS, [Loop(), KafkaStreams(), Tidemark()])
    loop, streams, ours = costs.splitlines()[2:5]
    assert loop.endswith("| 3.3 | 9.3 | 3.0 | 0.5 | 12 | 1.0 | 0.5 | 2 (2 to 2) |")
    assert "| 18.0 (15.0 to 21.0) | 34.0 | 8.0 |" in streams  # (34 − 18) / 2
    assert "| 40.0 | 66.0 | 13.0 |" in ours  # (66 − 40) / 2
    text = (tmp_path / "benchmarks.md").read_text()
    assert "13.0, 1.6 times that of Kafka Streams, RocksDB, exactly once v2; aimed at ≤ 1 times: **missed**" in text
    assert "aimed at ≤ 3.5 times: **missed**" in text  # 13.0 / 3.0
    assert "40.0, 2.2 times that of Kafka Streams" in text
    assert (
        "| marginal CPU per million records, s | 13.0 | polars + confluent-kafka + delta-rs loop by hand 3.0; Kafka"
        in text
    )
    assert "| peak memory, GB | 0.5 | none |" in text
    assert "| 34.0 | main 9.5 |" in text
    assert f"| backlog | – | 1,000,000 | 2 | 340 | 340 |{' 0 |' * 4}" in text  # both of Kafka Streams
    assert "load average around the runs: 1 to 2.5" in text


def test_the_plot_has_a_bar_and_a_figure_for_each_value(tmp_path: Path) -> None:
    alone = _run("spark_merge", 1_000_000, 33.0)
    page.write(tmp_path, [*RUNS, alone], [SparkMerge(), Loop(), KafkaStreams(), Tidemark()])
    plot = (tmp_path / "benchmarks.svg").read_text()
    names = ["polars + confluent-kafka + delta-rs loop by hand", "Kafka Streams, RocksDB, exactly once v2"]
    names += ["Tidemark, level info", "stock Spark: foreachBatch with MERGE"]
    assert re.findall('<text x="0" y="[^"]*">(.*)</text>', plot) == names  # the cheapest first
    # 220 px are 66 CPU s, and in the last panel 13.
    bars = re.findall(r'width="(\d+)" height="12".*\n.*>(.*)</text>', plot)
    assert bars[:4] == [("11", "3.3"), ("60", "18.0"), ("133", "40.0"), ("110", "33.0")]
    assert bars[4:8] == [("31", "9.3"), ("113", "34.0"), ("220", "66.0"), ("0", "–")]
    assert bars[8:] == [("51", "3.0"), ("135", "8.0"), ("220", "13.0"), ("0", "–")]


def test_the_page_warns_of_rows_with_very_different_loads(tmp_path: Path) -> None:
    busy = _run("loop", 1_000_000, 7.0, began_load=20.0, load=22.0)
    page.write(tmp_path, [*RUNS, busy], [Loop(), KafkaStreams(), Tidemark()])
    text = (tmp_path / "benchmarks.md").read_text()
    assert "**The load was 2 to 21: ratios" in text
    assert text.count("**not judged**, at loads of 2 to 21") == 1  # that against the loop
    own = _run("loop", 1_000_000, 3.4, began_load=3.8, load=3.6)  # that of the peer before and of this one
    page.write(tmp_path, [*RUNS, own], [Loop(), KafkaStreams(), Tidemark()])
    text = (tmp_path / "benchmarks.md").read_text()
    assert "**The load" not in text
    assert "not judged" not in text


def test_parsers_alone_are_a_table_and_in_no_comparison(tmp_path: Path) -> None:
    parser = {"peer": "polars", "kind": "floor", "peak_rss_mib": 512, "began_load": 1.0, "load": 1.0}
    described = {"versions": {"polars": "2.1.0"}, "machine": {"cores": 2}}
    floor = [parser | described | {"records": n * 1_000_000, "cpu_s": s} for n, s in ((1, 0.8), (1, 1.0), (3, 2.5))]
    costs = page.write(tmp_path, [*RUNS, *floor], [Loop(), KafkaStreams(), Tidemark()])
    assert costs == page.write(tmp_path, RUNS, [Loop(), KafkaStreams(), Tidemark()])
    assert "Not measured." in (tmp_path / "benchmarks.md").read_text()
    page.write(tmp_path, [*RUNS, *floor], [Loop(), KafkaStreams(), Tidemark()])
    row = "| polars 2.1.0 | 0.90 (0.80 to 1.00) | 2.50 | 0.80 | 0.5 (0.5 to 0.5) |"  # (2.5 − 0.9) / 2
    assert row in (tmp_path / "benchmarks.md").read_text()
    assert page.broken_promises(floor) == []


@pytest.mark.parametrize("parser", PARSERS)
def test_each_parser_parses_each_record(parser: str, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text("\n".join(records_of(20)["value"]))
    assert PARSERS[parser](file) == 20


def test_duplicates_break_only_a_promise_of_exactly_once() -> None:
    again = {"kind": "killed", "duplicates": 3, "is_exact": False}
    assert page.broken_promises([_run("flink", 9, 1.0, promise="at least once", **again)]) == []
    (broken,) = page.broken_promises([_run("kafka_streams", 9, 1.0, **again), *RUNS])
    assert "kafka_streams" in broken


def test_peers_in_python_name_the_versions_of_installed_packages() -> None:
    for peer in (Loop(), SparkMerge(), Tidemark()):
        assert all(peer.versions().values()), peer.name
    assert "tidemark-streams" in Tidemark().versions()
