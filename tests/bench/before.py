"""Measures a checkout in turns with another one, such as the version before a change.

Each measurement is a process of the checkout that it measures: its Python, its packages and its own `tests/bench` or
`tests/contests`. What a figure is called must be the same on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.ratios import by_turns

HERE = Path(__file__).parents[2]
Measured = Mapping[str, float]
"""The figures of one run, by name and unit."""
OF_BENCH = """
import json, signal, sys
from importlib import import_module
from statistics import median
from bench.ratios import pin
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
pin()
found = import_module(f"bench.{sys.argv[1]}").figures(int(sys.argv[2]))
print(json.dumps({f"{each.name} [{each.unit}]": median(each.values) for each in found if len(each.values)}))
"""
"""Prints the figures of a part of the bench."""
OF_CONTESTS = """
import json, signal, sys
from contests.contest import Kind, run
from contests.peers.tidemark import Tidemark
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
measured = run(Tidemark(), Kind(sys.argv[1]), int(sys.argv[2]))
assert measured["is_complete"] and measured["is_exact"], measured
units = ("_s", "_mib", "_a_minute")
print(json.dumps({name: value for name, value in measured.items() if name.endswith(units)}))
"""
"""Prints what Tidemark needed for a contest, and fails if its rows are not those of the records."""


def add_before(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name the other checkout."""
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout, with its own .venv")
    parser.add_argument("--pairs", type=int, default=7, help="with --before: runs of each checkout (%(default)s)")


@dataclass(frozen=True)
class Compared:
    """A figure of both checkouts, pair by pair."""

    name: str
    before: Sequence[float]
    after: Sequence[float]

    @property
    def is_count(self) -> bool:
        """True if the figure was the same in all of several runs of a checkout, as what does not depend on time is."""
        return len(self.before) > 1 and len({*self.before}) == len({*self.after}) == 1

    def __str__(self) -> str:
        was, is_now = median(self.before), median(self.after)
        if self.is_count:
            return f"{self.name:<76} {was:,g} before, {is_now:,g} after: the same in every run"
        if 0 in self.before:
            return f"{self.name:<76} {was:,.2f} before, {is_now:,.2f} after"
        ratios = [after / before for before, after in zip(self.before, self.after, strict=True)]
        spread = f"{min(ratios):,.3f} to {max(ratios):,.3f}"
        return f"{self.name:<76} {median(ratios):,.3f} × ({spread}); {was:,.2f} before, {is_now:,.2f} after"


def compared(program: str, arguments: Sequence[str], before: Path, pairs: int) -> Iterator[Compared]:
    """Yields each figure that *program* prints in both checkouts, in alternating *pairs*: the first begins *before*."""

    def run(side: str, checkout: Path) -> Measured:
        measured = _run(program, arguments, checkout)
        sys.stderr.write(f"{side}: {json.dumps(measured)}\n")
        return measured

    found = by_turns({"before": lambda: run("before", before), "after": lambda: run("after", HERE)}, pairs)
    for name in found["after"][0]:
        if all(name in each for each in found["before"]):
            yield Compared(name, *([each[name] for each in found[side]] for side in ("before", "after")))


def _run(program: str, arguments: Sequence[str], checkout: Path) -> Measured:
    """Runs *program* with *checkout*'s Python and returns the last line that it prints."""
    paths = os.pathsep.join(str(checkout / folder) for folder in ("jobs", "tests"))
    with subprocess.Popen(
        [checkout / ".venv" / "bin" / "python", "-c", program, *arguments],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            printed, _ = process.communicate()
        except BaseException:
            # It stops what it has started, which a kill would leave behind.
            process.terminate()
            raise
    if process.returncode:
        sys.exit(f"the measurement of {checkout} ended with exit code {process.returncode}; its error is above")
    measured: Measured = json.loads(printed.splitlines()[-1])
    return measured
