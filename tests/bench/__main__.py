"""`make bench`: what Tidemark costs, as ratios, beside what was aimed at."""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module

from bench.before import OF_BENCH, add_before, compared
from bench.ratios import pin

PARTS = (
    "emit_on_change",
    "freshness",
    "price",
    "idle",
    "small_topologies",
    "commits",
    "files",
    "cost",
    "catch_up",
    "long_run",
    "start",
    "shards",
    "large_state",
    "cluster",
    "rollups",
    "paths",
    "what_if",
    "contracts",
    "checks",
    "breaches",
    "trace",
    "watch",
    "year",
    "metrics",
    "status",
    "outside",
    "jobs",
    "current_sinks",
    "listened",
    "growth",
    "sized",
)


def main() -> None:
    """Measure, and print as it comes."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--runs", type=int, help="turns of each side (5; with --before 1)")
    add_before(parser)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped on the way out
    if options.before:
        # A pair is a run of each side, so that a part has one turn of its own unless more are asked for.
        for part in options.parts:
            for each in compared(OF_BENCH, (part, str(options.runs or 1)), options.before, options.pairs):
                print(each, flush=True)
        return
    pin()
    for part in options.parts:
        for figure in import_module(f"bench.{part}").figures(options.runs or 5):
            print(figure, flush=True)


if __name__ == "__main__":
    main()
