"""Counts the files of facts and control that a stream with a batch each ten seconds has.

The stream is `flights/status`. Hours of it are played in minutes: after each batch all files are made as much older as
the batch would have waited, since the times of files decide what Delta's log keeps. `HOURS=24` plays a day.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.commits import OUTPUTS, TOPOLOGY
from bench.ratios import Figure

from support.flights_day import few_flights
from support.play import Play, ms, tell
from tidemark.model.project.layout import CHANGES_OF, Layout
from tidemark.model.topology import parse
from tidemark.stream.driver.heartbeats import Heartbeats

HOURS = float(os.environ.get("HOURS", "3"))
TRIGGER_S = 10
STREAMS = 10
OF_SPARK = 84
"""Spark's own files, which are not played: of 21 batches a plan, a commit and the checksums of both."""
SUB = "status"


def figures(_: int) -> Iterator[Figure]:
    """Counts the files after each batch of the last hour, the most of each kind and of all."""
    with TemporaryDirectory() as folder:
        counts = list(counted(Path(folder), hours=HOURS))[-3_600 // TRIGGER_S :]
    for kind in sorted({kind for count in counts for kind in count}):
        yield Figure(f"a stream, {kind}", [max(count[kind] for count in counts)], unit="files")
    most = max(count.total() for count in counts)
    name = f"{STREAMS} streams, without files of days before: facts and control"
    yield Figure(name, [STREAMS * (most + OF_SPARK)], 10_000, at_most=True, unit="files")


def counted(home: Path, *, hours: float) -> Iterator[Counter[str]]:
    """Plays *hours* of a stream, and yields its files after each batch, by what they are for."""
    play = Play(TOPOLOGY, home, facts_every_ms=parse(tomllib.loads(TOPOLOGY), file="flights.toml").facts_every_ms)
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
        files = [path for path in home.rglob("*") if path.is_file()]
        for file in files:
            status = file.stat()
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - TRIGGER_S * 10**9))
        kinds = (_kind(file.relative_to(home).parts) for file in files)
        yield Counter(kind for kind in kinds if kind)


def _kind(place: tuple[str, ...]) -> str | None:
    """Returns what the file at *place* in a warehouse is for; None: an output."""
    if place[0] != "streams":
        return "/".join(place[:1] + place[3:4])
    _, _, _, table, *rest = place
    if table.removeprefix(CHANGES_OF) in OUTPUTS:
        return None
    return f"{table}: {rest[0] if len(rest) > 1 else 'data'}"
