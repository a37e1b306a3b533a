"""The table of planted faults: topology, promise, times, fault, owner and amount, a row each.

A row says what `account.cause_of(promise)` has to name: every owner with a tenth of the whole excess, with its amount.
The amount is the largest excess for one event, and the median for a lasting fault, in ms; of a promise about numbers of
records it is a number of records, and where a cause has no amount, None. A row without owners is a control: nobody is
to blame.

Seconds are those of the play. Each stage is healthy until its `since_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from support.job_world import JobWorld, SlowJob
from support.planted import (
    Drained,
    Fields,
    HalfWritten,
    InTransaction,
    Killed,
    Late,
    More,
    NewPartition,
    Reconnected,
    Repeated,
    ShortOfMemory,
    Silent,
    Slow,
    Stepped,
    Stopped,
    Tampered,
    Told,
    Unusable,
    WrongClock,
)
from support.play import NOON
from support.topologies import aggregate, join, map_of, repartition, sink, source, table, topology_of
from support.world import Costs, Fault, Traffic, World
from tidemark.control.folder import StreamState


@dataclass(frozen=True, eq=False)
class Stage:
    """A topology with its traffic, which is healthy until `since_s`, and its promises."""

    toml: str
    promises: Mapping[str, Mapping[str, Any]]
    traffic: Sequence[Traffic] = (Traffic(),)
    costs: Costs = Costs()  # noqa: RUF009 - it is frozen
    since_s: float = 245
    starts_s: Mapping[str, float] = field(default_factory=dict)
    make: Callable[..., World | JobWorld] = World


@dataclass(frozen=True)
class Owned:
    """Who owns how much of the excess: ms, or a number of records."""

    owner: str
    detail: str
    amount_ms: int | None = None
    records: int | None = None


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        at_s: when the promise is judged.
        verdict: what the check says of the promise.
        is_followed: whether the world itself can tell whose the excess is (support/excess.py).
    """

    name: str
    stage: Stage
    promise: str
    at_s: float
    faults: tuple[Fault, ...]
    owners: tuple[Owned, ...]
    verdict: str = field(default="error", kw_only=True)
    is_followed: bool = field(default=True, kw_only=True)


# Stages


def in_time(subject: str, error_after: str, over: str = "2 min") -> dict[str, Any]:
    return {"subject": subject, "measure": "latency_p99", "error_after": error_after, "over": over}


def fresh(subject: str, error_after: str) -> dict[str, Any]:
    return {"subject": subject, "measure": "staleness", "error_after": error_after}


def quick(subject: str, error_after: str) -> dict[str, Any]:
    return {"subject": subject, "measure": "operator_latency_p50", "error_after": error_after, "over": "1 min"}


def enough(subject: str, n: int, over: str = "1 min") -> dict[str, Any]:
    return {"subject": subject, "measure": "records", "error_below": n, "over": over}


def share(subject: str, measure: str, error_above: float) -> dict[str, Any]:
    return {"subject": subject, "measure": measure, "error_above": error_above, "over": "2 min"}


def lag(subject: str, error_after: str) -> dict[str, Any]:
    return {"subject": subject, "measure": "watermark_lag", "error_after": error_after}


def shop(**head: Any) -> str:
    """Two drivers with a hop between them; the first one sends to a topic, and then writes two tables."""
    return topology_of(
        head,
        events=source("id string, amount double", sub_topology="reads", bound="1 s", allowed_lateness="1 s"),
        newest=table(columns=["amount"]),
        out=sink("newest", topic="out"),
        board=sink("newest", table="board"),
        shelf=sink("newest", table="shelf"),
        by_id=repartition("newest", id=["id"], key=["amount"], columns=["amount"]),
        sums=aggregate("by_id", sub_topology="sums", aggregates={"n": "count(*)"}),
        totals=sink("sums", table="totals"),
    )


OF_SHOP = {
    "newest_is_quick": quick("newest", "300 ms"),
    "sums_are_quick": quick("sums", "300 ms"),
    "board_in_time": in_time("board", "4 s"),
    "shelf_in_time": in_time("shelf", "4 s"),
    "shelf_warns": {**in_time("shelf", "1 min"), "warn_after": "4 s"},
    "totals_in_time": in_time("totals", "4500 ms"),
    "totals_in_budget": {
        "subject": "totals", "measure": "burn_rate", "threshold": "4500 ms", "target": 0.99, "over": "2 min",
    },
    "board_is_fresh": fresh("board", "30 s"),
    "board_warns": {**fresh("board", "10 min"), "warn_after": "30 s"},
    "totals_are_fresh": fresh("totals", "30 s"),
    "time_goes_on": lag("events", "30 s"),
    "enough_records": enough("newest", 30),
    "few_are_late": share("events", "late_share", 0.01),
    "few_are_unusable": share("events", "quarantined_share", 0.02),
    "nothing_gets_lost": {"subject": "outcomes", "measure": "completeness", "error_after": "1 ms"},
    "contracts_are_kept": {"subject": "tables", "measure": "contract"},
}  # fmt: skip
SHOP = Stage(shop(), OF_SHOP)
THREE = Stage(shop(), {**OF_SHOP, "enough_records": enough("newest", 45)}, [Traffic(partitions=3)])
"""Three producers, each with a partition."""
CROWDED = Stage(shop(), OF_SHOP, [Traffic(each=25)], since_s=225)
"""1,200 records in four minutes."""
DENSE = Stage(
    shop(), {**OF_SHOP, "board_in_time": in_time("board", "5 s"), "totals_in_time": in_time("totals", "6 s")},
    [Traffic(every_s=2, each=1)], since_s=61,
)  # fmt: skip
"""Records every two seconds: a slow batch makes the next ones wait."""
SLOW_TRIGGER = Stage(
    shop(trigger="10 s"),
    {
        **OF_SHOP, "board_in_time": in_time("board", "5 s"), "shelf_in_time": in_time("shelf", "5 s"),
        "board_in_9_s": in_time("board", "9 s"), "totals_in_time": in_time("totals", "9500 ms"),
        "totals_in_budget": {**OF_SHOP["totals_in_budget"], "threshold": "9500 ms"},
    },
    [Traffic(after_s=7)], starts_s={"sums": 5},
)  # fmt: skip
LONG_TRIGGER = Stage(shop(trigger="30 s"), OF_SHOP, [Traffic(after_s=5)])
"""Its promises cannot be kept."""
NARROW = Stage(
    shop().replace('bound = "1 s"\n', 'bound = "1 s"\nmax_records = 8\n'), OF_SHOP, [Traffic(each=3)],
)  # fmt: skip
"""A batch reads at most eight records; six come in ten seconds."""
INTERVALS = Stage(
    shop().replace('table = "board"\n', 'table = "board"\ncomplete = {every = "10 s"}\n'),
    {"board_is_complete": {"subject": "board", "measure": "complete_by", "complete_by": "30 s"}},
)
"""An interval of ten seconds is complete 11.2 s after its end."""
BUSY = Stage(shop(), OF_SHOP, costs=Costs(per_record=20))
"""Each operator takes 20 ms for a record."""

SHELVES = Stage(
    topology_of(
        {"max_drift": "1 min"},
        events=source(
            "id string, amount double", sub_topology="reads", bound="900 ms", allowed_lateness="1 min",
            written_by="shop/out", max_ahead=None,
        ),
        newest=table(columns=["amount"]),
        board=sink("newest", table="board"),
        per_ten=aggregate(
            key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
        ),
        counts=sink("per_ten", table="counts"),
        large=map_of(select={"id": "id"}, where="amount > 10"),
        large_board=sink("large", table="large_board"),
        ticking=table(strategy="periodic", interval="30 s"),
        ticker=sink("ticking", table="ticker"),
    ),
    {
        "board_is_fresh": fresh("board", "30 s"), "changes_are_fresh": fresh("changes", "30 s"),
        "large_is_fresh": fresh("large_board", "30 s"), "counts_are_fresh": fresh("counts", "40 s"),
        "ticker_is_fresh": fresh("ticker", "50 s"), "ticker_in_time": in_time("ticker", "20 s"),
        "time_goes_on": lag("events", "30 s"), "enough_records": enough("newest", 18),
        "contracts_are_kept": {"subject": "tables", "measure": "contract"},
    },
)  # fmt: skip
"""Windows of ten seconds, a filter, an interval, records of partitions at most a minute apart."""
PATIENT = Stage(SHELVES.toml.replace('interval = "30 s"', 'interval = "5 min"'), SHELVES.promises, since_s=0)

APART = Stage(
    topology_of(
        {"max_drift": "15 s"},
        events=source("id string, amount double", sub_topology="reads", bound="1 s", allowed_lateness="1 s"),
        newest=table(columns=["amount"]),
        board=sink("newest", table="board", complete={"every": "10 s"}),
    ),
    {
        "board_in_time": in_time("board", "10 s"), "board_is_fresh": fresh("board", "30 s"),
        "board_is_complete": {"subject": "board", "measure": "complete_by", "complete_by": "30 s"},
    },
)  # fmt: skip
"""Records of partitions at most 15 s apart; an interval is complete 11 s after its end."""

EMPTY = Stage(
    topology_of(
        events=source("id string, amount double", sub_topology="reads", bound="1 s"),
        newest=table(columns=["amount"]),
        rates=source(topic="rates", fields="id string, rate double, at bigint", timestamp="at"),
        rate=table("rates"),
        rated=join("events", "rate", on={"id": "id"}, how="inner"),
        rated_board=sink("rated", table="rated_board"),
        visits=aggregate(
            key=["id"], window={"session": "15 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
        ),
        visits_board=sink("visits", table="visits_board"),
        patient=aggregate(
            key=["id"], window={"tumbling": "10 s"}, allowed_lateness="5 min", aggregates={"n": "count(*)"},
            strategy="on_window_close",
        ),
        patient_board=sink("patient", table="patient_board"),
    ),
    {
        "changes_are_fresh": fresh("changes", "1 min"), "rated_is_fresh": fresh("rated_board", "1 min"),
        "visits_are_fresh": fresh("visits_board", "1 min"), "patient_is_fresh": fresh("patient_board", "1 min"),
    },
    since_s=0,
)  # fmt: skip
"""Tables that have no row yet: settings hold them, or a table to join is empty."""

CHAIN = Stage(
    topology_of(
        events=source("id string, amount double", sub_topology="first", bound="1 s"),
        by_id=repartition("events", key=["id"], columns=["amount"]),
        second=map_of("by_id", sub_topology="second", select={"id": "id", "amount": "amount"}),
        seconds=sink("second", table="seconds"),
        to_third=repartition("second", key=["id"], columns=["amount"]),
        third=map_of("to_third", sub_topology="third", select={"id": "id", "amount": "amount"}),
        thirds=sink("third", table="thirds"),
        to_fourth=repartition("third", key=["id"], columns=["amount"]),
        per_ten=aggregate(
            "to_fourth", sub_topology="fourth", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"},
            strategy="on_window_close",
        ),
        counts=sink("per_ten", table="counts"),
        per_twenty=aggregate(
            "to_fourth", key=["id"], window={"tumbling": "20 s"}, aggregates={"n": "count(*)"},
            strategy="on_window_close",
        ),
        scores=sink("per_twenty", table="scores"),
    ),
    {
        "counts_are_fresh": fresh("counts", "50 s"), "scores_are_fresh": fresh("scores", "1 min"),
        "time_goes_on_in_third": lag("third", "40 s"), "time_goes_on_in_fourth": lag("fourth", "40 s"),
        "seconds_in_time": in_time("seconds", "6 s"), "thirds_in_time": in_time("thirds", "8 s"),
    },
)  # fmt: skip
"""Four drivers behind each other."""

TWO_TOPICS = Stage(
    topology_of(
        orders=source("id string, amount double", topic="orders", sub_topology="reads", bound="1 s"),
        payments=source("id string, amount double", topic="payments", bound="1 s"),
        both=table("orders", columns=["amount"]),
        paid=table("payments", columns=["amount"]),
        board=sink("both", table="board"),
        paid_board=sink("paid", table="paid_board"),
    ),
    {
        "orders_are_usable": share("orders", "quarantined_share", 0.01),
        "payments_are_usable": share("payments", "quarantined_share", 0.0001),
        "board_in_time": in_time("board", "4 s"),
        "paid_in_time": in_time("paid_board", "4 s"),
    },
    [Traffic("orders"), Traffic("payments", each=50)], since_s=125,
)  # fmt: skip
HOURS = Stage(
    shop(trigger="10 s"),
    {"totals_are_fresh": fresh("totals", "10 min"), "totals_in_time": in_time("totals", "5 min", "2 h")},
    [Traffic(every_s=300, after_s=7)], starts_s={"sums": 5}, since_s=6_600,
)  # fmt: skip
"""Records every five minutes, and reports every hour."""
RECORDED = Stage("", {"orders_are_read": enough("job:orders", 5, "10 min")}, since_s=3_600, make=JobWorld)
"""A job of a team's own, as its listener describes it: a batch a minute, of a record each."""


# What is planted beside the vocabulary of support/planted.py


def lose_an_update(path: Path) -> None:
    DeltaTable(path).update({"emitted": "emitted - 1"}, predicate="operator = 'newest' AND batch_id = 26")


def repeat_a_change(path: Path) -> None:
    changes = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, changes.filter(pc.field("batch_id") == 26).slice(0, 1), mode="append")


def delete_a_proof(path: Path) -> None:
    DeltaTable(path).delete("batch_id >= 26")


slow, write = partial(Slow, "operator"), partial(Slow, "target")
SAME = Fields(None, 245, owner="operator", detail="newest", values=(("amount", 7.0),))
SMALL = Fields(None, 245, owner="operator", detail="large", values=(("amount", 7.0),), are_news=False)
# All are older than records that are on time beside them, even while the other partition stands still.
PHONE = Reconnected(0, 240, n=36, age_ms=208_000, youngest_ms=30_000, key="phone")
IN_SECONDS = b'{"id": "a", "event_time": %d}' % (NOON // 1_000)

POISON_BESIDE_RETYPED = (
    Unusable(0, 125, source="orders"),
    Unusable(0, 125, until_s=135, source="payments", reason="wrong_type", value=b'{"amount": "7"}', every=50),
)


def operator(name: str, ms: int) -> Owned:
    return Owned("operator", name, ms)


def target(name: str, ms: int) -> Owned:
    return Owned("target", name, ms)


def targets(**ms_by_name: int) -> tuple[Owned, ...]:
    return tuple(target(name, ms) for name, ms in ms_by_name.items())


def producer(partition: str, ms: int | None) -> Owned:
    return Owned("producer", partition, ms)


def pause(sub: str, ms: int) -> Owned:
    return Owned("pause", f"play/{sub}", ms)


def absence(sub: str, ms: int | None) -> Owned:
    return Owned("absence", f"play/{sub}", ms)


def clock(sub: str, ms: int) -> Owned:
    return Owned("clock", f"host-{sub}", ms)


def several(
    name: str,
    stage: Stage,
    at_s: float,
    faults: tuple[Fault, ...],
    owners: Mapping[str, Owned],
    *,
    is_followed: bool = True,
) -> Iterator[Case]:
    """Yields a row for each of several promises that one play breaks, with the owner of each."""
    for promise, owned in owners.items():
        yield Case(f"{name}, {promise}", stage, promise, at_s, faults, (owned,), is_followed=is_followed)


# fmt: off
FAULTS = [
    # Single faults: times
    Case(
        "slow operator", SHOP, "newest_is_quick", 310,
        (slow("newest", 600, 245),), (operator("newest", 600),),
    ),
    Case(
        "operator that fills the trigger interval", SHOP, "newest_is_quick", 310,
        (slow("newest", 1_500, 245),), (operator("newest", 1_500),),
    ),
    Case(
        "slow operator downstream of a hop", SHOP, "totals_in_time", 310,
        (slow("sums", 3_000, 245),), (operator("sums", 3_000),),
    ),
    Case(
        "slow operator downstream of a hop, its own work", SHOP, "sums_are_quick", 310,
        (slow("sums", 3_000, 245),), (operator("sums", 3_000),),
    ),
    Case(
        "error budget burning", SHOP, "totals_in_budget", 310,
        (Late(1, 245, by_ms=9_000),), (producer("events/1", 9_000),),
    ),
    Case(
        "late device", SHOP, "totals_in_time", 310,
        (Late(1, 245, by_ms=9_000),), (producer("events/1", 9_000),),
    ),
    Case(
        "driver that restarted", SHOP, "totals_in_time", 310,
        (Killed("reads", 250.1, 15_000),), (absence("reads", 15_000),),
    ),
    Case(
        "driver that stood still", SHOP, "totals_in_time", 310,
        (Stopped("reads", 250.1, 25_000),), (pause("reads", 25_000),),
    ),
    Case(
        "reader of a hop that restarted", SHOP, "totals_in_time", 310,
        (Killed("sums", 251.1, 15_000),), (absence("sums", 15_000),),
    ),
    Case(
        "trigger too long", LONG_TRIGGER, "board_in_time", 310,
        (), (Owned("trigger", "", 30_000),), is_followed=False,
    ),
    Case(
        "clock skew of a host", SHOP, "totals_in_time", 310,
        (Stepped("sums", 248, 5_000),), (clock("sums", 5_000),),
    ),
    Case(
        "unknown clock skew", SHOP, "totals_in_time", 310,
        (Stepped("sums", 248, 5_000, is_measured=False),), (clock("sums", 5_000),),
    ),
    Case(
        "idle partition", SHELVES, "counts_are_fresh", 310,
        (Silent(1, 245),), (Owned("next_record", "events/1", 60_000),), is_followed=False,
    ),
    Case(
        "idle partition, watermark", SHELVES, "time_goes_on", 310,
        (Silent(1, 245),), (Owned("next_record", "events/1", 60_000),),
    ),
    Case(
        "slow partition", SHELVES, "counts_are_fresh", 310,
        (WrongClock(1, 245, ahead_ms=-38_000),), (producer("events/1", 38_000),), is_followed=False,
    ),
    Case(
        "partition too far ahead", SHELVES, "board_is_fresh", 420,
        (Silent(1, 245),), (Owned("max_drift", "events/1", 109_000),), is_followed=False,
    ),
    # Partition 1 is at 250 s, as its producer is late. So the records of 280 s have waited for it since 281.1 s.
    Case(
        "partition ahead of one whose producer is late", APART, "board_is_fresh", 480.5,
        (Late(1, 245, by_ms=220_000),), (producer("events/1", 199_400),), is_followed=False,
    ),
    Case(
        "partition ahead of one whose producer is late, sent on", APART, "board_in_time", 350,
        (Late(1, 245, by_ms=60_000),), (producer("events/1", None),), is_followed=False,
    ),
    # The record of 260 s waits from 261.1 s on for that of 300 s, and so do the ones after it.
    Case(
        "partition ahead of one that was silent", APART, "board_in_time", 310,
        (Silent(1, 245, until_s=295),), (Owned("max_drift", "events/1", 38_900),), is_followed=False,
    ),
    # The intervals until 240 s and 250 s need a record of partition 1, and those until 260 s and 270 s one of partition
    # 0 that waits. Usually partition 1 has passed last, by its name, so 9 s until that record are more than usual.
    Case(
        "interval of a partition ahead of one that was silent", APART, "board_is_complete", 310,
        (Silent(1, 245, until_s=295),),
        (
            Owned("next_record", "events/1", 50_000), Owned("max_drift", "events/1", 28_900),
            Owned("next_record", "events/0", 9_000),
        ),
        is_followed=False,
    ),
    Case(
        "backlog", NARROW, "board_in_time", 310,
        (More(None, 245, times=20),), (Owned("topic_volume", "events"),), is_followed=False,
    ),
    Case(
        "backlog of partitions that are read", BUSY, "board_in_time", 310,
        (More(None, 245, times=10),), (Owned("topic_volume", "events", 5 * 54 * 20),), is_followed=False,
    ),
    Case(
        "watermark behind the backlog of one partition", NARROW, "time_goes_on", 284,
        (More(1, 245, times=300),), (Owned("topic_volume", "events"),), is_followed=False,
    ),
    Case(
        "dead source", SHOP, "board_is_fresh", 309,
        (Silent(None, 245),), (Owned("topic", "events", records=36),),
    ),
    Case(
        "stuck window", SHELVES, "counts_are_fresh", 310,
        (Silent(None, 245),), (Owned("topic", "events"),),
    ),
    Case(
        "producer ahead of the clock", SHOP, "board_is_fresh", 310,
        (WrongClock(1, 245, ahead_ms=3_000_000),), (producer("events/1", -3_000_000),), verdict="ahead_of_clock",
        is_followed=False,
    ),
    Case(
        "session that stays open", EMPTY, "visits_are_fresh", 84,
        (), (Owned("window", "visits"),), verdict="never_loaded",
    ),
    Case(
        "allowed lateness too long", EMPTY, "patient_is_fresh", 84,
        (), (Owned("allowed_lateness", "patient", 74_000),), is_followed=False, verdict="never_loaded",
    ),
    Case(
        "interval too long", PATIENT, "ticker_is_fresh", 114,
        (), (Owned("interval", "ticking", 102_880),), is_followed=False, verdict="never_loaded",
    ),
    Case(
        "stream never started", SHOP, "totals_are_fresh", 310,
        (Killed("sums", 245.5),), (absence("sums", 58_700),),
    ),
    Case(
        "dead stream", SHOP, "board_is_fresh", 310,
        (Told("reads", 250.1),), (absence("reads", 59_800),),
    ),
    Case(
        "dead stream, of which is warned", SHOP, "board_warns", 310,
        (Told("reads", 250.1),), (absence("reads", 59_800),), verdict="warn", is_followed=False,
    ),
    # The interval to 240 s needs a record of 241 s. The last look was at 250.1 s.
    Case(
        "interval that no driver completes", INTERVALS, "board_is_complete", 310,
        (Told("reads", 250.1),), (absence("reads", 59_900),),
    ),
    Case(
        "interval that waits for a partition", INTERVALS, "board_is_complete", 310,
        (Silent(1, 245),), (Owned("next_record", "events/1", 59_600),),
    ),
    Case(
        "silent stream", SHOP, "board_is_fresh", 310,
        (Killed("reads", 250.1),), (absence("reads", 59_800),),
    ),
    Case(
        "stream killed seconds ago", SHOP, "board_is_fresh", 310,
        (Told("reads", 250.1, StreamState.RUNNING, None, last_s=306),), (absence("reads", 59_800),),
    ),
    Case(
        "driver short of memory", SHOP, "board_is_fresh", 310,
        (slow("newest", 10**6, 250, times=1), ShortOfMemory("reads", 251.02)), (operator("newest", 58_870),),
    ),
    Case(
        "damaged file", SHOP, "board_is_fresh", 310,
        (Killed("reads", 250.1), HalfWritten("reads")), (absence("reads", 59_800),),
    ),
    Case(
        "stream that stays in starting", SHOP, "board_is_fresh", 310,
        (Told("reads", 250.1, StreamState.STARTING, None, last_s=309),), (absence("reads", 59_800),),
    ),
    Case(
        "dead stream upstream of a hop", SHOP, "totals_are_fresh", 310,
        (Told("reads", 250.1),), (absence("reads", 59_800),),
    ),
    Case(
        "batch that hangs", SHOP, "board_is_fresh", 310,
        (slow("newest", 10**6, 250, times=1),), (operator("newest", 58_870),),
    ),
    # The batch that hangs is the sign of life after a minute without records.
    Case(
        "batch without records that hangs", SHOP, "board_is_fresh", 330,
        (Silent(None, 245), Slow("broker", "events", 10**6, 300, times=1, sub="reads")),
        (Owned("topic", "events"), Owned("broker", "events")), is_followed=False,
    ),
    Case(
        "full disk", SHOP, "board_is_fresh", 310,
        (write("journal", 10**6, 250, times=1),), (target("journal", 58_830),),
    ),
    # Single faults: numbers of records, contracts
    Case(
        "too few records", SHOP, "enough_records", 309,
        (Silent(None, 245),), (Owned("topic", "events", records=36),),
    ),
    Case(
        "source without a record", EMPTY, "changes_are_fresh", 84,
        (Silent(None, 0),), (Owned("topic", "events"),), verdict="never_loaded",
    ),
    Case(
        "join with an empty table", EMPTY, "rated_is_fresh", 84,
        (), (Owned("topic", "rates"),), verdict="never_loaded",
    ),
    Case(
        "poison burst", SHOP, "board_is_fresh", 309,
        tuple(Unusable(n, 245) for n in (0, 1)), tuple(Owned("producer", f"events/{n}", records=18) for n in (0, 1)),
    ),
    Case(
        "poison burst, watermark", SHOP, "time_goes_on", 309,
        tuple(Unusable(n, 245) for n in (0, 1)), tuple(Owned("producer", f"events/{n}", records=18) for n in (0, 1)),
    ),
    Case(
        "wrong unit of time", SHOP, "enough_records", 309,
        (Unusable(1, 245, reason="timestamp_out_of_range", value=IN_SECONDS),),
        (Owned("producer", "events/1", records=18),),
    ),
    Case(
        "burst of late records", SHOP, "few_are_late", 310,
        (WrongClock(1, 245, until_s=255, ahead_ms=-58_000),), (Owned("producer", "events/1", records=3),),
    ),
    Case(
        "nothing changes", SHOP, "board_is_fresh", 329,
        (SAME,), (Owned("operator", "newest", records=42),),
    ),
    Case(
        "condition that drops all", SHELVES, "large_is_fresh", 329,
        (SMALL,), (Owned("operator", "large", records=48),),
    ),
    Case(
        "duplicate records", SHELVES, "board_is_fresh", 329,
        tuple(Repeated(n, 245) for n in (0, 1)), tuple(Owned("producer", f"events/{n}", records=21) for n in (0, 1)),
    ),
    Case(
        "update that is lost", SHOP, "nothing_gets_lost", 280,
        (Tampered("reads", "operator_batches", lose_an_update, "operator", "newest"),), (Owned("operator", "newest"),),
    ),
    Case(
        "broken contract", SHOP, "contracts_are_kept", 280,
        (Tampered("reads", "changes", repeat_a_change, "operator", "newest"),), (Owned("operator", "newest"),),
    ),
    Case(
        "skip without its proof", SHOP, "contracts_are_kept", 330,
        (SAME, Tampered("reads", "suppressed", delete_a_proof, "operator", "newest")), (Owned("operator", "newest"),),
    ),
    # Issue 53
    Case(
        "1: topic that flushes slowly beside two quick tables", SHOP, "board_in_time", 310,
        (write("out", 4_500, 245),), (target("out", 4_500),),
    ),
    Case(
        "1: the other table", SHOP, "shelf_in_time", 310,
        (write("out", 4_500, 245),), (target("out", 4_500),),
    ),
    Case(
        "1: the other table, of which is warned", SHOP, "shelf_warns", 310,
        (write("out", 4_500, 245),), (target("out", 4_500),), verdict="warn", is_followed=False,
    ),
    Case(
        "2: every write slower, no batch queues", SLOW_TRIGGER, "board_in_time", 310,
        (write("", 900, 245, sub="reads"),), targets(journal=900, changes=900, out=900, board=900),
    ),
    Case(
        "2: every write slower, batches queue", DENSE, "board_in_time", 101, (write("", 900, 61, sub="reads"),),
        # A record that arrives while a batch writes waits for the rest of its writes, too.
        targets(journal=900, changes=900, out=1_270, board=1_820, shelf=920, hop_by_id=920),
    ),
    Case(
        "3: every write of a hop's reader slower", SLOW_TRIGGER, "totals_in_time", 310,
        (write("", 900, 245, sub="sums"),), targets(journal=900, changes=900, totals=900),
    ),
    Case(
        "3: the same, batches queue", DENSE, "totals_in_time", 90,
        (write("", 900, 61, sub="sums"),), targets(journal=1_310, changes=1_820, totals=1_820),
    ),
    Case(
        "4: a phone that reconnects", CROWDED, "few_are_late", 250,
        (PHONE,), (Owned("key", "phone", records=36),),
    ),
    Case(
        "5: stopped for 12 s", SHOP, "board_in_time", 310,
        (Stopped("reads", 250.1, 12_000),), (pause("reads", 12_000),),
    ),
    Case(
        "5: stopped for 25 s", SHOP, "board_in_time", 310,
        (Stopped("reads", 250.1, 25_000),), (pause("reads", 25_000),),
    ),
    Case(
        "6: hangs in its source, trigger 1 s", SHOP, "board_in_time", 310,
        (Slow("broker", "events", 12_000, 250, times=1),), (Owned("broker", "events", 12_000),),
    ),
    Case(
        "6: hangs in its source, trigger 10 s", SLOW_TRIGGER, "board_in_9_s", 310,
        (Slow("broker", "events", 12_000, 250, times=1),), (Owned("broker", "events", 12_000),),
    ),
    Case(
        "7: clock steps by +8 s, measured", SHOP, "totals_in_time", 310,
        (Stepped("sums", 248, 8_000),), (clock("sums", 8_000),),
    ),
    Case(
        "7: clock steps by +8 s, not measured", SHOP, "totals_in_time", 310,
        (Stepped("sums", 248, 8_000, is_measured=False),), (clock("sums", 8_000),),
    ),
    Case(
        "7: clock steps by -8 s, measured", SHOP, "totals_in_time", 310,
        (Stepped("sums", 248, -8_000),), (), verdict="pass",
    ),
    Case(
        "7: clock steps by -8 s, not measured", SHOP, "totals_in_time", 310,
        (Stepped("sums", 248, -8_000, is_measured=False),), (), verdict="pass",
    ),
    Case(
        "8: two of three producers send seconds", THREE, "enough_records", 309,
        tuple(Unusable(n, 245, reason="timestamp_out_of_range", value=IN_SECONDS) for n in (1, 2)),
        tuple(Owned("producer", f"events/{n}", records=18) for n in (1, 2)),
    ),
    Case(
        "9: a producer's delay and an operator's work", SHOP, "board_in_time", 310,
        (Late(None, 245, by_ms=9_000), slow("newest", 2_000, 245)),
        (producer("events/0", 9_000), producer("events/1", 9_000), operator("newest", 2_000)),
    ),
    *several(
        "10: a partition silent three drivers upstream", CHAIN, 340, (Silent(1, 245),),
        {
            promise: Owned("next_record", "events/1", 90_000)
            for promise in ("counts_are_fresh", "scores_are_fresh", "time_goes_on_in_third", "time_goes_on_in_fourth")
        },
        is_followed=False,
    ),
    Case(
        "11: hangs for 68 s in an operator", SHOP, "board_in_time", 330,
        (slow("newest", 68_000, 250, times=1),), (operator("newest", 68_000),),
    ),
    Case(
        "12: reader of a hop stuck for 63 minutes", HOURS, "totals_are_fresh", 10_380,
        (slow("sums", 63 * 60_000, 6_600, times=1),), (operator("sums", 63 * 60_000),),
    ),
    Case(
        "12: the same, when it goes on", HOURS, "totals_in_time", 10_820,
        (slow("sums", 63 * 60_000, 6_600, times=1),), (operator("sums", 63 * 60_000),),
    ),
    *several(
        "13: half poison in one topic, one retyped field in the other", TWO_TOPICS, 249, POISON_BESIDE_RETYPED,
        {
            "orders_are_usable": Owned("producer", "orders/0", records=36),
            "payments_are_usable": Owned("producer", "payments/0", records=1),
        },
    ),
    Case(
        "14: a recorded job's producer stops after an hour of slow batches", RECORDED, "orders_are_read", 8_990,
        (SlowJob(3_600, 7_200, 40_000), Silent(None, 7_200, source="job:orders")),
        (Owned("topic", "job:orders", records=30),),
    ),
    # Two at once
    Case(
        "pair: two operators", SHOP, "board_in_time", 310,
        (slow("newest", 2_000, 245), slow("out", 3_000, 245)), (operator("newest", 2_000), operator("out", 3_000)),
    ),
    Case(
        "pair: an operator and a topic", SHOP, "board_in_time", 310,
        (slow("newest", 2_000, 245), write("out", 3_000, 245)), (operator("newest", 2_000), target("out", 3_000)),
    ),
    Case(
        "pair: an operator behind a hop and a producer", SHOP, "totals_in_time", 310,
        (slow("sums", 3_000, 245), Late(None, 245, by_ms=9_000)),
        (operator("sums", 3_000), producer("events/0", 9_000), producer("events/1", 9_000)),
    ),
    Case(
        "pair: operators on both sides of a hop", SHOP, "totals_in_time", 310,
        (slow("newest", 2_000, 245), slow("sums", 3_000, 245)), (operator("newest", 2_000), operator("sums", 3_000)),
    ),
    Case(
        "pair: a pause and an operator", SHOP, "board_in_time", 310,
        (Stopped("reads", 250.1, 12_000), slow("newest", 4_000, 245)),
        (pause("reads", 12_000), operator("newest", 4_000)),
    ),
    Case(
        "pair: a killed driver and a slow table", SHOP, "board_in_time", 310,
        (Killed("reads", 250.1, 15_000), write("board", 4_000, 245)),
        (absence("reads", 15_000), target("board", 4_000)),
    ),
    Case(
        "pair: two producers", SHOP, "board_in_time", 310,
        (Late(0, 245, by_ms=6_000), Late(1, 245, by_ms=9_000)),
        (producer("events/0", 6_000), producer("events/1", 9_000)),
    ),
    Case(
        "pair: a stepped clock and an operator", SHOP, "totals_in_time", 310,
        (Stepped("sums", 248, 8_000), slow("sums", 3_000, 245)), (clock("sums", 8_000), operator("sums", 3_000)),

    ),
    Case(
        "pair: tables on both sides of a hop", SHOP, "totals_in_time", 310,
        (write("board", 3_000, 245), write("totals", 2_000, 245)), (target("board", 3_000), target("totals", 2_000)),
    ),
    Case(
        "pair: the broker and an operator", SHOP, "board_in_time", 310,
        (Slow("broker", "events", 3_000, 245), slow("newest", 2_000, 245)),
        (Owned("broker", "events", 3_000), operator("newest", 2_000)),
    ),
    Case(
        "pair: Spark and a table", SHOP, "board_in_time", 310,
        (Slow("spark", "", 3_000, 245, sub="reads"), write("board", 2_000, 245)),
        (Owned("spark", "", 3_000), target("board", 2_000)),
    ),
    Case(
        "pair: a transaction and an operator", SHOP, "board_in_time", 310,
        (InTransaction(1, 249, until_s=270), slow("newest", 4_000, 245)),
        (Owned("open_transaction", "events/1", 19_800), operator("newest", 4_000)),
    ),
    Case(
        "pair: a transaction and a producer", SHOP, "board_in_time", 310,
        (InTransaction(1, 249, until_s=270), Late(0, 245, by_ms=9_000)),
        (Owned("open_transaction", "events/1", 19_800), producer("events/0", 9_000)),
    ),
    Case(
        "pair: slots and an operator", SHOP, "totals_in_time", 310,
        (Slow("slots", "play/reads", 3_000, 245, sub="sums"), slow("sums", 2_000, 245)),
        (Owned("slots", "play/reads", 3_000), operator("sums", 2_000)),
    ),
    Case(
        "pair: a killed reader of a hop and a stopped writer", SHOP, "totals_in_time", 310,
        (Killed("sums", 251.1, 15_000), Stopped("reads", 280.1, 12_000)),
        (absence("sums", 15_000), pause("reads", 12_000)),
    ),
    Case(
        "pair: a paused reader and a producer", SHOP, "totals_in_time", 310,
        (Stopped("sums", 255.1, 12_000), Late(None, 245, by_ms=4_000)),
        (pause("sums", 12_000), producer("events/0", 4_000), producer("events/1", 4_000)),
    ),
    Case(
        "pair: a producer's clock and an operator", SHOP, "board_in_time", 310,
        (WrongClock(1, 245, ahead_ms=-9_000), slow("newest", 4_000, 245)),
        (producer("events/1", 9_000), operator("newest", 4_000)),
    ),
    *several(
        "pair: a phone and poison", CROWDED, 249,
        (PHONE, Unusable(1, 225)),
        {
            "few_are_late": Owned("key", "phone", records=36),
            "few_are_unusable": Owned("producer", "events/1", records=50),
        },
    ),
    *several(
        "pair: a quiet partition and an operator", SHOP, 330, (Silent(1, 245), slow("newest", 4_000, 245)),
        {"board_in_time": operator("newest", 4_000), "time_goes_on": Owned("next_record", "events/1", 80_000)},
    ),
]


def control(name: str, stage: Stage, at_s: float, *faults: Fault, but: Sequence[str] = ()) -> list[Case]:
    """Returns a row for each promise of *stage* that every topology keeps, but those of *but*: none is broken."""
    kept = [name for name in stage.promises if name not in {*but, "newest_is_quick", "sums_are_quick"}]
    return [
        Case(f"control: {name}, {promise}", stage, promise, at_s, faults, (), verdict="pass", is_followed=False)
        for promise in kept
    ]


CONTROLS = [
    *control("healthy", SHOP, 310),
    *control("healthy, trigger of 10 s", SLOW_TRIGGER, 310),
    *control("healthy, records every 2 s", DENSE, 90),
    *control("healthy, windows and settings", SHELVES, 310),
    *control("healthy, four drivers", CHAIN, 310),
    *control("healthy, two topics", TWO_TOPICS, 250),
    *control("healthy, a recorded job", RECORDED, 9_000),
    *control(
        "seasonal: half as many records", SHOP, 310,
        Silent(0, 245, until_s=275), but=["enough_records", "time_goes_on"],
    ),
    *control("seasonal: a quiet night", SHOP, 330, Silent(None, 245, until_s=270), but=["enough_records"]),
    *control("more volume", SHOP, 310, More(None, 245, times=5)),
    *control("much more volume", SHOP, 310, More(None, 245, times=20)),
    *control("a new partition", SHOP, 310, NewPartition(250)),
    *control("restart after a drain", SHOP, 310, Drained("reads", 253, 5_000)),
    *control(
        "both streams restart after a drain", SHOP, 310,
        Drained("reads", 253, 5_000), Drained("sums", 253, 5_000),
    ),
    *control(
        "the broker is silent while looks go on, 12 s", SHOP, 310,
        Silent(None, 245, until_s=257), but=["enough_records"],
    ),
    *control(
        "the broker is silent while looks go on, 25 s", SHOP, 310,
        Silent(None, 245, until_s=270), but=["enough_records"],
    ),
    *control("an operator works longer, within the limit", SHOP, 310, slow("newest", 150, 245)),
    *control("a table takes longer, within the limit", SHOP, 310, write("board", 500, 245)),
    *control("one slow batch within the limit", SHOP, 310, slow("newest", 2_000, 245, times=1)),
    *control("a pause below a second", SHOP, 310, Stopped("reads", 250.1, 900)),
    *control("a producer a second late", SHOP, 310, Late(1, 245, by_ms=1_000)),
    *control("a host's clock was always ahead", SHOP, 310, Stepped("reads", -10, 500)),
    *control("a stepped clock within the limit", SHOP, 310, Stepped("sums", 248, 1_000)),
    *control("a short transaction", SHOP, 310, InTransaction(1, 249, until_s=251)),
    *control(
        "one record of a hundred cannot be used", CROWDED, 250,
        Unusable(0, 225, until_s=235, every=25), but=["contracts_are_kept"],
    ),
    *control("a new key", SHOP, 310, Reconnected(0, 250, n=5, age_ms=500, key="c9")),
    *control(
        "some updates change nothing", SHOP, 310,
        Fields(0, 245, owner="operator", detail="newest", values=(("amount", 7.0),)),
    ),
    *control("the reader of a hop restarts in a silence", SHOP, 310, Killed("sums", 253.1, 4_000)),
    *control("Spark plans longer, within the limit", SHOP, 310, Slow("spark", "", 300, 245)),
    *control("the broker takes longer, within the limit", SHOP, 310, Slow("broker", "events", 500, 245)),
    *control("slots are held shortly", SHOP, 310, Slow("slots", "play/reads", 300, 245, sub="sums")),
]
# fmt: on
