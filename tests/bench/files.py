"""Counts the files that a stream with a batch each ten seconds has, by what they are for.

The stream is `flights/status`. Hours of it are played in minutes: after each batch all files are made as much older as
the batch would have waited, since Delta's log goes by the times of its files. `HOURS=24` plays a day. Spark's own files
are not played: it keeps 20 plans and 20 commits, each with a checksum.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.commits import TOPOLOGY
from bench.ratios import Figure

from support.flights_day import few_flights
from support.play import Play, ms, tell
from tidemark.control.folder import StreamState
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import CHANGES
from tidemark.model.topology import parse
from tidemark.stream.driver.heartbeats import Heartbeats

HOURS = float(os.environ.get("HOURS", "3"))
FACTS_EVERY_MS = parse(tomllib.loads(TOPOLOGY), file="flights.toml").facts_every_ms
TRIGGER_S = 10
STREAMS = 10
OF_SPARK = 4 * 20
OUTPUTS = frozenset({CHANGES.name, "flight_board", "hop_by_carrier", "flight_board_changes"})
SUB = "status"


def figures(runs: int) -> Iterator[Figure]:
    """Counts the files of the last hour."""
    with TemporaryDirectory() as folder:
        counts = list(counted(Path(folder), hours=HOURS))
    of_last_hour = counts[-3_600 // TRIGGER_S :]
    for kind in sorted({kind for count in of_last_hour for kind in count}):
        yield Figure(f"a stream: {kind}", [max(count[kind] for count in of_last_hour)], unit="files")
    most = max(count.total() for count in of_last_hour) + OF_SPARK
    yield Figure(f"{STREAMS} streams, with Spark's", [STREAMS * most], 10_000, at_most=True, unit="files")


def counted(home: Path, *, hours: float) -> Iterator[Counter[str]]:
    """Plays *hours* of a stream, and yields the files of facts and control after each batch, by kind."""
    play = Play(TOPOLOGY, home, facts_every_ms=FACTS_EVERY_MS)
    play.broker._partitions = {"flight_events": 3, "weather": 1}
    play.start(SUB)
    history = Heartbeats(Layout(home).stream("flights", SUB), topology="flights", sub_topology=SUB)
    now_s = 0
    for compactor in (play.engine(SUB)._flushing._compactor, history._compactor):
        compactor._clock_s = lambda: now_s
    for number in range(round(hours * 3_600 / TRIGGER_S)):
        play.batch(few_flights(play, ms(now_s), number), at_ms=ms(now_s), sub=SUB)
        for _ in range(TRIGGER_S):
            now_s += 1
            play.engine(SUB).flush_if_due(ms(now_s))
            tell(history, now_s)
        yield age(home, TRIGGER_S)


def age(home: Path, seconds: int) -> Counter[str]:
    """Makes all files *seconds* older, and counts those of facts and control."""
    found = Counter[str]()
    for folder, _, names in os.walk(home):
        for name in names:
            path = os.path.join(folder, name)
            status = os.stat(path)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - seconds * 10**9))
            parts = Path(path).relative_to(home).parts
            if parts[0] == "control":
                found[f"control/{parts[3]}"] += 1
            elif parts[0] != "streams":
                found["/".join(parts[:2])] += 1
            elif parts[3] not in OUTPUTS:
                kind = "data" if parts[4] != "_delta_log" else "checkpoint" if "checkpoint" in name else "log"
                found[f"{parts[3]}: {kind}"] += 1
    return found
