"""SLAs of watched tables: how they are written, and what is measured by logs that are written by hand."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from support.schemas import validator
from tidemark.errors import InvalidSpec
from tidemark.model import topology
from tidemark.model.measures.commit_age import COMMIT_AGE
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.slas.sla_spec import (
    Slas,
    known_watch,
    load,
    mistakes,
    recorded_topologies,
    usable_slas,
    watched_topology,
)
from tidemark.model.watched import WatchedSet
from tidemark.selection import names_in
from tidemark.semantics.sla import RecordMinimums, Sla
from tidemark.watch.commits import Change, ChosenColumn, Clock, PastCommit, Span, TimeColumn, Writer
from tidemark.watch.measures import (
    Counted,
    Measurement,
    SeenTable,
    cadence,
    commit_age,
    commit_latency,
    staleness,
    volume,
)

SETS = """
[watch.silver]
tables = ["s3://lake/silver", "/data/orders"]
column = "ordered_at"
timezone = "Europe/Berlin"
owner = "orders team"

[watch.gold]
tables = ["/data/gold"]
column = ["at", "day"]
"""
SLAS = """
[watch.orders_are_fresh]
subject = "silver.orders"
error_after = "1 h"

[watch.revenue_comes]
subject = "gold.eu/revenue"
measure = "volume"
warn_below = 100
owner = "finance"
"""
MINUTE_MS = 60_000


def read(text: str) -> Slas:
    content = tomllib.loads(text)
    return usable_slas(content, watched_topology(content, file="slas.toml"), file="slas.toml")


def refused(text: str) -> list[str]:
    return [str(mistake) for mistake in read(text).errors.values()]


def test_sets_and_slas_are_tables_of_one_name() -> None:
    watch = watched_topology(tomllib.loads(SETS + SLAS), file="slas.toml")
    silver = WatchedSet(
        name="silver",
        places=("s3://lake/silver", "/data/orders"),
        columns=("ordered_at",),
        timezone="Europe/Berlin",
        owner="orders team",
    )
    gold = WatchedSet(name="gold", places=("/data/gold",), columns=("at", "day"))
    assert (watch.name, watch.is_watch, watch.watched, watch.sub_topologies) == ("watch", True, (silver, gold), ())
    fresh, comes = read(SETS + SLAS).specs
    assert (fresh.name, fresh.subject, fresh.measure, fresh.owner) == (
        "orders_are_fresh",
        "silver.orders",
        STALENESS,
        "orders team",
    )
    assert fresh.limits == Sla(error_after_ms=3_600_000)
    assert (comes.subject, comes.owner, comes.over_ms) == ("gold.eu/revenue", "finance", 86_400_000)
    assert comes.limits == RecordMinimums(warn_below=100)


def test_a_set_alone_promises_nothing(tmp_path: Path) -> None:
    file = tmp_path / "slas.toml"
    file.write_text(SETS)
    assert (known_watch(file), read(SETS)) == (None, Slas(specs=(), errors={}))
    assert mistakes(file, [], []) == []
    file.write_text(SETS + SLAS)
    watch = known_watch(file)
    assert watch is not None
    assert names_in(load(file, watch)) == ["orders_are_fresh", "revenue_comes"]
    assert mistakes(file, [], []) == []
    assert known_watch(tmp_path / "none.toml") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[watch.silver]\ntables = ["lake/silver"]\n',
            "slas.toml: watch.silver.tables: has 'lake/silver', and checks run in other folders; write a path that "
            'begins with /, or a URL: tables = ["s3://lake/silver", "/data/gold"]',
        ),
        (
            '[watch.silver]\ntable = ["/silver"]\n',
            "slas.toml: watch.silver.table: is not a valid key here; did you mean tables?",
        ),
        (
            '[watch.silver]\ntables = ["/silver"]\ntimezone = "Berlin"\n',
            "slas.toml: watch.silver.timezone: is 'Berlin', which is no time zone; write timezone = \"Europe/Berlin\"",
        ),
        (
            SETS + '[watch.late]\nsubject = "bronze.orders"\nerror_after = "1 h"\nowner = "o"\n',
            "slas.toml: watch.late.subject: is 'bronze.orders', which is no table of a set; write SET.TABLE, such as "
            '"silver.orders"; sets: silver, gold',
        ),
        (
            SETS + '[watch.late]\nsubject = "silver"\nerror_after = "1 h"\n',
            "slas.toml: watch.late.subject: is 'silver', which is no table of a set; write SET.TABLE, such as "
            '"silver.orders"; sets: silver, gold',
        ),
        (
            SETS + '[watch.late]\nsubject = "gold.orders"\nerror_after = "1 h"\n',
            'slas.toml: watch.late.owner: is missing; write owner = "orders team"',
        ),
        (
            SETS + '[watch.late]\nsubject = "silver.orders"\nmeasure = "watermark_lag"\nerror_after = "1 h"\n',
            "slas.toml: watch.late.measure: is 'watermark_lag', which watched tables do not have; measure burn_rate, "
            "cadence, commit_age, commit_latency, latency_p50, latency_p90, latency_p99, staleness, volume",
        ),
        (
            SETS + '[watch.late]\nsubject = "silver.orders"\nerror_after = "1 h"\nignore_when_idle = true\n',
            "slas.toml: watch.late.ignore_when_idle: is set, but of a watched table only commits are known, and "
            "no streams; leave it out",
        ),
        (
            SETS + '[watch.late]\nsubject = "silver.orders"\nobjective = { latency = "1 s", target = 0.99 }\n',
            "slas.toml: watch.late.objective: is set, which needs the event time of each row, and the log has only the "
            "bounds of files; write exact = true in [watch.silver]",
        ),
        (
            SETS + '[watch.late]\nsubject = "silver.orders"\nmeasure = "latency_p99"\nerror_after = "1 h"\n',
            "slas.toml: watch.late.measure: is 'latency_p99', which needs the event time of each row, and the log has "
            "only the bounds of files; write exact = true in [watch.silver]",
        ),
        (
            '[watch.late]\nsubject = "silver.orders"\nerror_after = "1 h"\nowner = "o"\n',
            "slas.toml: watch.late.subject: is 'silver.orders', but no set of tables is watched; write [watch.silver] "
            'with tables = ["s3://lake/silver"], and subject = "silver.orders"',
        ),
    ],
)
def test_a_mistake_is_told_with_its_key_and_remedy(text: str, said: str) -> None:
    assert refused(text) == [said]


def test_slas_of_a_set_with_a_mistake_are_not_judged(tmp_path: Path) -> None:
    text = '[watch.silver]\ntables = ["silver"]\n' + SLAS.replace("gold.eu/revenue", "silver.revenue")
    found = read(text)
    assert (found.specs, {*found.errors}) == ((), {"silver", "orders_are_fresh", "revenue_comes"})
    with pytest.raises(InvalidSpec) as told:
        found.refuse()
    assert str(told.value).count("\n") == 0
    (tmp_path / "slas.toml").write_text(text)
    (mistake,) = mistakes(tmp_path / "slas.toml", [], [])
    assert str(mistake) == str(told.value)


def test_no_topology_has_the_name_of_watched_tables(tmp_path: Path) -> None:
    source = {"kind": "source", "topic": "t", "fields": "id string", "bound": "1 s"}
    with pytest.raises(InvalidSpec, match=r"t\.toml: name: is 'watch', which stands for watched tables; use another"):
        topology.parse({"name": "watch", "operators": {"a": source}}, file="t.toml")
    assert [*validator("topology").iter_errors({"name": "watch", "operators": {"a": source}})] != []
    (tmp_path / "slas.toml").write_text("[watch]\nrecorded = true\n")
    assert recorded_topologies(tmp_path / "slas.toml") == []


def test_a_measure_of_watched_tables_is_no_measure_of_streams() -> None:
    source = {"kind": "source", "topic": "t", "fields": "id string", "bound": "1 s"}
    streams = topology.parse({"name": "t", "operators": {"a": source}}, file="t.toml")
    sla = {"subject": "a", "measure": COMMIT_AGE.name, "error_after": "1 h", "owner": "o"}
    (mistake,) = usable_slas({"t": {"late": sla}}, streams, file="slas.toml").errors.values()
    assert "t.late.measure: is 'commit_age', but only watched tables have it; write the SLA into" in str(mistake)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (SETS + SLAS, []),
        ('[watch.silver]\ntables = ["/silver"]\ncolour = "red"\n', ["$.watch.silver"]),
        ('[watch.late]\nsubject = "silver.orders"\nerror_after = "1 h"\n', []),  # the set may name the owner
        ('[watch.late]\nsubject = "silver.orders"\nerror_aftr = "1 h"\n', ["$.watch.late"]),
        ('[watch]\nmaintenance = ["daily 01:00-02:00"]\n' + SETS, []),
    ],
)
def test_editors_know_both_kinds_of_tables(text: str, refused: list[str]) -> None:
    assert [error.json_path for error in validator("slas").iter_errors(tomllib.loads(text))] == refused


AT = ChosenColumn(TimeColumn("at", "at", "timestamp"), ("at",))
NOBODY = Writer()


def data(minute: int, rows: int | None = 10, latency: Span | None = None) -> PastCommit:
    return PastCommit(
        version=minute,
        at_ms=minute * MINUTE_MS,
        clock=Clock.WRITER,
        change=Change.APPENDED,
        operation="WRITE",
        rows=rows,
        bytes=1_000,
        latency=latency,
        writer=NOBODY,
        newest_before=None,
    )


def table(
    *commits: PastCommit,
    since_min: int | None = None,
    newest: Span | None = None,
    chosen: ChosenColumn = AT,
    began_min: int | None = 0,
) -> SeenTable:
    """A table whose commits are known since a minute; None: all."""
    return SeenTable(
        chosen=chosen,
        newest=newest,
        commits=commits,
        since_ms=None if since_min is None else since_min * MINUTE_MS,
        began_ms=None if began_min is None else began_min * MINUTE_MS,
    )


def until(minute: int, *, over_min: int = 60, since_min: int | None = None) -> Counted:
    since_ms = None if since_min is None else since_min * MINUTE_MS
    return Counted(at_ms=minute * MINUTE_MS, over_ms=over_min * MINUTE_MS, since_ms=since_ms)


def minutes(measured: Measurement) -> tuple[float | None, float | None] | None:
    if measured.value is None:
        return None
    low_ms, high_ms = measured.value
    return None if low_ms is None else low_ms / MINUTE_MS, None if high_ms is None else high_ms / MINUTE_MS


@pytest.mark.parametrize(
    ("seen", "counted", "expected"),
    [
        (table(data(1), data(5)), until(20), (15, 15)),
        (table(data(1), data(5)), until(20, since_min=12), (8, 8)),  # it was not judged before
        (table(), until(20), None),  # it never had data
        (table(since_min=8), until(20), (12, None)),  # none since the oldest commit that is known
        (table(began_min=None), until(20), (None, None)),
    ],
)
def test_the_age_of_the_last_commit(seen: SeenTable, counted: Counted, expected: object) -> None:
    assert minutes(commit_age(seen, counted)) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (table(data(19), newest=Span(2 * MINUTE_MS, 3 * MINUTE_MS)), (17, 18)),
        (table(data(5), newest=None), None),
        # No event is newer than its commit.
        (table(data(5), newest=Span(None, None)), (15, None)),
        (table(data(5), newest=Span(2 * MINUTE_MS, None)), (15, 18)),
        (table(data(5), chosen=ChosenColumn(None)), (15, 15)),
        (table(data(5), chosen=ChosenColumn(None, ("a", "b"))), (None, None)),
    ],
)
def test_the_age_of_the_newest_event(seen: SeenTable, expected: object) -> None:
    assert minutes(staleness(seen, until(20))) == expected


@pytest.mark.parametrize(
    ("seen", "counted", "expected"),
    [
        (table(data(0), data(30), data(40)), until(45), (30, 30)),
        (table(data(0), data(30), data(40)), until(95), (55, 55)),  # up to now
        (table(data(0), data(30), data(40)), until(45, over_min=10), (10, 10)),
        (table(data(0), data(30), data(40)), until(45, over_min=3), (5, 5)),
        (table(data(0), data(30), data(40)), until(45, since_min=20), (10, 10)),
        (table(data(30), data(40), since_min=25), until(45), (10, None)),
        (table(data(30), data(40), since_min=25), until(45, over_min=10), (10, 10)),
        (table(), until(45), None),
    ],
)
def test_the_longest_time_without_a_commit(seen: SeenTable, counted: Counted, expected: object) -> None:
    assert minutes(cadence(seen, counted)) == expected


@pytest.mark.parametrize(
    ("latencies", "expected"),
    [
        ([Span(1, 5), Span(3, 4)], Span(3, 5)),
        ([Span(1, 5), None], Span(1, 5)),
        ([Span(1, 5), Span(None, None)], Span(1, None)),
        ([None], Span(None, None)),
    ],
)
def test_the_greatest_latency_of_the_appends(latencies: list[Span | None], expected: Span) -> None:
    commits = [data(minute, latency=latency) for minute, latency in enumerate(latencies, start=30)]
    old = data(1, latency=Span(9_999, 9_999))
    assert commit_latency(table(old, *commits), until(62)).value == expected


@pytest.mark.parametrize(
    ("rows", "since_min", "expected"),
    [
        ([5, 7], None, Span(12, 12)),
        ([5, None], None, Span(5, None)),
        ([], None, Span(0, 0)),
        ([5], 40, Span(5, None)),  # what was written from minute 2 to 40 is not known
    ],
)
def test_the_rows_of_the_interval(rows: list[int | None], since_min: int | None, expected: Span) -> None:
    commits = [data(minute, n) for minute, n in enumerate(rows, start=50)]
    before = () if since_min else (data(1, 1_000),)
    assert volume(table(*before, *commits, since_min=since_min), until(62)).value == expected
