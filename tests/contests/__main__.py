"""`make contests`: what Tidemark and its alternatives cost for the same records."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CalledProcessError

from bench.before import OF_CONTESTS, add_before, compared
from contests import floor, page
from contests.contest import Kind, run
from contests.peers.flink import FlinkAtLeastOnce, FlinkExactlyOnce
from contests.peers.kafka_streams import KafkaStreams
from contests.peers.loop import Loop
from contests.peers.peer import WORK, Peer, Promise
from contests.peers.spark import SparkAppend, SparkMerge, SparkState, SparkStatePandas
from contests.peers.tidemark import Tidemark

from tidemark.errors import TidemarkError
from tidemark.local import broker

PEERS: Sequence[Peer] = (
    Loop(),
    KafkaStreams(),
    FlinkExactlyOnce(),
    FlinkAtLeastOnce(),
    Tidemark(),
    SparkAppend(),
    SparkMerge(),
    SparkState(),
    SparkStatePandas(),
)
ONCE = dict.fromkeys(("spark_merge", "spark_state", "spark_state_pandas"), 1_000_000)
"""Most records of slow peers, which would take an hour."""
RECORDS = (1_000_000, 3_000_000)


def main() -> int:
    """Runs the contests by turns; returns 1 for a broken promise."""
    options = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped on the way out
    if options.before:
        return _compare(options)
    peers = [peer for peer in PEERS if peer.name in options.peers]
    raw = options.into / "benchmarks.jsonl"
    options.into.mkdir(parents=True, exist_ok=True)
    if not options.add:
        raw.unlink(missing_ok=True)
        broker.stop(WORK / "broker")
        shutil.rmtree(WORK / "broker", ignore_errors=True)  # with what a killed contest has left there
    failures: list[str] = []
    for peer, kind, records in _runs(peers, options.kinds, options.records, options.runs):
        print(f"{peer.name}, {kind}, {records:,} records", flush=True)
        try:
            measured = run(peer, kind, records)
        except (AssertionError, TidemarkError) as failure:
            failures.append(f"{peer.name}, {kind}, {records:,} records: {failure}")
            print(failures[-1], flush=True)
            continue
        with raw.open("a") as file:
            file.write(json.dumps(measured) + "\n")
        print({name: value for name, value in measured.items() if not isinstance(value, dict)}, flush=True)
    if Kind.FLOOR in options.kinds and len(peers) == len(PEERS):
        try:
            for measured in floor.measured(options.records, options.runs):
                with raw.open("a") as file:
                    file.write(json.dumps(measured) + "\n")
        except CalledProcessError as failure:
            failures.append(f"parsers: {failure}")
    runs = [json.loads(line) for line in raw.read_text().splitlines()] if raw.exists() else []
    print(page.write(options.into, runs, PEERS))
    failures += page.broken_promises(runs)
    print("\n".join(failures))
    return 1 if failures else 0


def _compare(options: argparse.Namespace) -> int:
    """Measures Tidemark in turns with the checkout *before*."""
    for kind in [kind for kind in options.kinds if kind in (Kind.BACKLOG, Kind.IDLE)]:
        for records in options.records:
            print(f"tidemark, {kind}, {records:,} records")
            for each in compared(OF_CONTESTS, (kind, str(records)), options.before, options.pairs):
                print(each, flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make contests", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--runs", type=int, default=5, help="backlogs of each peer and size (%(default)s)")
    parser.add_argument("--records", type=int, nargs="+", default=RECORDS, help="sizes of backlogs (%(default)s)")
    parser.add_argument("--peers", nargs="+", choices=names, default=names, help="which peers (all)")
    parser.add_argument("--kinds", nargs="*", type=Kind, choices=list(Kind), default=list(Kind), help="what of (all)")
    parser.add_argument("--into", type=Path, required=True, help="folder of the page and of benchmarks.jsonl")
    parser.add_argument("--add", action="store_true", help="keep the runs that benchmarks.jsonl has")
    add_before(parser)
    options = parser.parse_args()
    if options.before and options.peers != [Tidemark.name]:
        parser.error(f"--before compares two checkouts of Tidemark; add --peers {Tidemark.name}")
    return options


def _runs(
    peers: Sequence[Peer], kinds: Sequence[Kind], sizes: Sequence[int], turns: int
) -> Iterator[tuple[Peer, Kind, int]]:
    """Yields runs by turns, so that disturbances affect all peers."""
    for turn in range(turns if Kind.BACKLOG in kinds else 0):
        for records in sizes:
            for peer in peers[:: 1 if turn % 2 == 0 else -1]:
                if records <= ONCE.get(peer.name, records):
                    yield peer, Kind.BACKLOG, records
    for peer in peers:
        if Kind.KILLED in kinds and peer.promise is not Promise.NONE:
            yield peer, Kind.KILLED, sizes[0]
        if Kind.IDLE in kinds:
            yield peer, Kind.IDLE, sizes[0]


if __name__ == "__main__":
    sys.exit(main())
