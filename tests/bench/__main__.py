"""`make bench`: what Tidemark costs, as ratios, beside what was aimed at."""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module

from bench.ratios import pin

PARTS = (
    "emit_on_change",
    "freshness",
    "price",
    "idle",
    "commits",
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
    "trace",
    "metrics",
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
    parser.add_argument("--runs", type=int, default=5, help="turns of each side (%(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped on the way out
    pin()
    for part in options.parts:
        for figure in import_module(f"bench.{part}").figures(options.runs):
            print(figure, flush=True)


if __name__ == "__main__":
    main()
