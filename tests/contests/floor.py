"""Measures parsers alone, the least CPU of a peer in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from contests.contest import METER, Kind, Run, machine
from contests.peers.peer import package_versions
from contests.programs.parse import PARSERS
from contests.workload import records_of

PROGRAM = Path(__file__).with_name("programs") / "parse.py"


def measured(sizes: Sequence[int], turns: int) -> Iterator[Run]:
    """Yields a run of each parser and size, by turns."""
    with TemporaryDirectory() as folder:
        for number in sizes:
            records_of(number).select("value").write_csv(
                Path(folder) / f"{number}.json", include_header=False, quote_style="never"
            )
        for _ in range(turns):
            for number in sizes:
                for parser in PARSERS:
                    yield run(parser, Path(folder) / f"{number}.json", number)


def run(parser: str, file: Path, number: int) -> Run:
    """Parses the *number* records of *file* in a new process."""
    report, load = file.with_suffix(".use"), os.getloadavg()[0]
    command = [sys.executable, str(PROGRAM), parser, str(file), str(number)]
    subprocess.run([sys.executable, str(METER), str(report), *command], check=True)
    use = json.loads(report.read_text())
    return {
        "peer": parser,
        "kind": Kind.FLOOR,
        "records": number,
        "cpu_s": round(use["cpu_s"], 2),
        "peak_rss_mib": round(use["peak_rss_bytes"] / 2**20),
        "began_load": round(load, 1),
        "load": round(os.getloadavg()[0], 1),
        "versions": package_versions(parser),
        "machine": machine(),
    }
