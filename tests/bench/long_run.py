"""Measures batch, process and files of a driver over 2,000 batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from bench.ratios import Figure

from support.play import Play
from support.topologies import NEWEST

BATCHES, WARM, SHOWN = 2_000, 200, 200
NOON_MS = 1_400_000_000_000
KEYS = "abc"
MERGED = """refresh = "0 s"
"""
TOPOLOGY = f"""
window = "5 s"
{NEWEST.replace(MERGED, "")}
[operators.sums]
kind = "aggregate"
input = "events"
key = ["id"]
window = {{ tumbling = "5 s" }}
aggregates = {{ total = "sum(v)" }}

[operators.totals]
kind = "sink"
input = "sums"
table = "totals"
"""


def figures(_: int) -> Iterator[Figure]:
    """The last batches against the first ones after warming up."""
    with TemporaryDirectory() as folder:
        play, took_s, bytes_, files = Play(TOPOLOGY, Path(folder)), [], [], []
        for number in range(BATCHES):
            started_s = time.process_time()
            play_batch(play, number)
            took_s.append(time.process_time() - started_s)
            bytes_.append(_resident_bytes())
            if number + 1 in (WARM + SHOWN, BATCHES):
                files.append(sum(1 for _ in play.control.home.rglob("*")))
    early, late = (fmean(part) for part in _shown(took_s))  # most batches put no files together, and all pay for it
    yield Figure(
        f"{BATCHES:,} batches: CPU time, last {SHOWN} against those after {WARM}",
        [late / early],
        1.2,
        at_most=True,
    )
    before, after = (median(part) for part in _shown(bytes_))
    growth = [(after - before) / (BATCHES - WARM - SHOWN) / 1_000]
    yield Figure(f"{BATCHES:,} batches: memory that a batch leaves in the process", growth, 10, at_most=True, unit="kB")
    yield Figure(
        f"{BATCHES:,} batches: files that are more in the control folder",
        [files[1] - files[0]],
        0,
        at_most=True,
        unit="files",
    )


def play_batch(play: Play, number: int) -> None:
    """Runs batch *number* one second later, with a new value per key."""
    at_ms = NOON_MS + 1_000 * number
    play.batch([play.row("events", at_ms, id=key, v=number) for key in KEYS], at_ms=at_ms)


def _shown(measured: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Returns the first batches that are shown, and the last."""
    return measured[WARM : WARM + SHOWN], measured[-SHOWN:]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096
