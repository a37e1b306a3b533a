"""Prints the seconds of each test file in two runs.

Its arguments are the outputs of two runs of `PYTEST_ADDOPTS=--durations=0 make test`. CONTRIBUTING.md has the command.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

FEWEST_S = 10
DURATION = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +([^:\s]+)::", re.MULTILINE)


def seconds(log: str) -> Counter[str]:
    """Returns the seconds of each file, with set-up of its fixtures."""
    by_file: Counter[str] = Counter()
    for duration, file in DURATION.findall(log):
        by_file[file] += float(duration)
    return by_file


def table(before: Counter[str], after: Counter[str]) -> list[str]:
    """Returns the lines of files of FEWEST_S, the longest first."""
    files = [file for file in before | after if max(before[file], after[file]) >= FEWEST_S]
    rows = [(file, before[file], after[file]) for file in sorted(files, key=lambda file: -before[file])]
    rows.append(("all files", before.total(), after.total()))
    lines = [f"| {file} | {was:.0f} | {now:.0f} |" for file, was, now in rows]
    return ["| file | before, s | after, s |", "|---|---|---|", *lines]


if __name__ == "__main__":
    print(*table(*(seconds(Path(log).read_text(encoding="utf-8")) for log in sys.argv[1:])), sep="\n")  # noqa: T201
