"""What-if of a driver's time, by hand: a stream that stood still, and one that reads what it writes.

The first stream looked at 10.0 s, stood still from 10.4 s to 22.4 s, and looked then, until 22.45 s. It worked until
22.95 s. The second one, which looks each second, too, had looked at 22.4 s, and did at 23.4 s; it worked until 23.7 s.
Instants are ms.
"""

import tomllib

import polars as pl
import pytest
from unit.test_account_by_hand import rows

from support.topologies import aggregate, map_of, repartition, sink, source, topology_of
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.model.topology import parse
from tidemark.reports.what_if.runs import Runs, Stay

FIRST, SECOND = "play/first", "play/second"
SEGMENTS = [
    (FIRST, 0, "operator", "newest", 10_000, 10_300),
    (FIRST, 1, "trigger", "", 10_300, 22_400),
    (FIRST, 1, "broker", "events", 22_400, 22_450),
    (FIRST, 1, "operator", "newest", 22_450, 22_950),
    (SECOND, 0, "trigger", "", 22_400, 23_400),
    (SECOND, 0, "operator", "sums", 23_400, 23_700),
]
LOOKS = [(FIRST, 0, 9_000, 10_000), (FIRST, 1, 10_000, 22_450), (SECOND, 0, 22_400, 23_400)]


def topology(driver):
    text = topology_of(
        {"driver": driver, "trigger": "1 s"},
        events=source("id string, amount double", sub_topology="first", bound="1 s"),
        newest=map_of("events", select={"id": "id", "amount": "amount"}),
        by_id=repartition("newest", key=["id"], columns=["amount"]),
        sums=aggregate("by_id", sub_topology="second", key=["id"], aggregates={"n": "count(*)"}),
        totals=sink("sums", table="totals"),
    )
    return parse(tomllib.loads(text), file="play.toml")


@pytest.fixture
def ledger():
    columns = ("stream", "batch_id", "owner", "detail", "began_ms", "ended_ms")
    segments = [{"driver": 1} | dict(zip(columns, segment, strict=True)) for segment in SEGMENTS]
    names = ("stream", "batch_id", "excluded_ms", "looked_ms")
    batches = [
        {"driver": 1, "host": "h", "wall_ms": look[3], "boot_ms": look[3]} | dict(zip(names, look, strict=True))
        for look in LOOKS
    ]
    # A pause began in the middle of the beat before it.
    gaps = [{"began_ms": 10_400 - 125, "ended_ms": 22_400, "cpu_ms": 0}]
    beat = {"stream": FIRST, "driver": 1, "host": "h", "began_ms": 0, "ended_ms": 30_000, "wall_ms": 30_000}
    return Ledger.of(
        AccountFacts(
            segments=rows("segments", *segments),
            batches=rows("batches", *batches),
            heartbeats=rows("heartbeats", beat | {"gaps": gaps}),
        )
    )


@pytest.mark.parametrize(
    ("arrived_ms", "excess", "sooner_ms"),
    [
        # It would have looked at 11.0 s: of 11.8 s that the window waited, 0.4 s would have been its trigger's.
        (10_600, 1.0, 22_450 - 11_000),
        (15_200, 1.0, 22_450 - 16_000),
        # It would have stood still until 16.4 s.
        (10_600, 0.5, 6_000),
    ],
)
def test_a_stream_that_does_not_stand_still_looks_at_its_trigger(ledger, arrived_ms, excess, sooner_ms):
    runs = Runs(topology("own"), ledger, pl.col("owner") == "pause")
    stay = Stay(stream=FIRST, ms=22_950 - arrived_ms, changed_ms=22_400 - arrived_ms)
    assert runs.sooner_ms([stay], 22_950, excess) == sooner_ms


@pytest.mark.parametrize(
    ("driver", "sooner_ms"),
    [
        # The rows would have been there at 11.5 s. The second stream would have looked at 12.4 s.
        ("own", 23_400 - 12_400),
        # Its writer wakes it.
        ("shared", 11_450),
    ],
)
def test_a_reader_of_its_hop_looks_sooner_too(ledger, driver, sooner_ms):
    runs = Runs(topology(driver), ledger, pl.col("owner") == "pause")
    stays = [Stay(stream=SECOND, ms=750, changed_ms=0), Stay(stream=FIRST, ms=12_350, changed_ms=11_800)]
    assert runs.sooner_ms(stays, 23_700, 1.0) == sooner_ms


def test_a_pause_within_its_own_batch_is_saved_whole(ledger):
    """Of the 0.5 s of work the owner has 0.3 s, which no trigger has eaten."""
    runs = Runs(topology("own"), ledger, pl.col("owner") == "operator")
    assert runs.sooner_ms([Stay(stream=FIRST, ms=550, changed_ms=500)], 22_950, 0.6) == 300
