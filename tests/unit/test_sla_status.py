from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tidemark.facts.measures.fact_kinds import facts_in
from tidemark.facts.measures.sla_facts import measurements
from tidemark.model import topology
from tidemark.model.measures.burn_rate import BURN_RATE
from tidemark.model.measures.complete_by import COMPLETE_BY
from tidemark.model.measures.completeness import COMPLETENESS
from tidemark.model.measures.contract import CONTRACT
from tidemark.model.measures.latency import LATENCY_P50, LATENCY_P90, LATENCY_P99
from tidemark.model.measures.operator_latency import OPERATOR_LATENCY_P50
from tidemark.model.measures.records import RECORDS
from tidemark.model.measures.registry import MEASURES, no_subject
from tidemark.model.measures.schema_changes import SCHEMA_CHANGES
from tidemark.model.measures.shares import LATE_SHARE, QUARANTINED_SHARE
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.measures.watermark_lag import WATERMARK_LAG
from tidemark.model.settings.maintenance_windows import SingleTime, WeeklyHours
from tidemark.model.slas.sla_keys import WhileCatchingUp
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.semantics.buckets import bucket_of
from tidemark.semantics.sla import (
    BurnRate,
    ChangeMaximums,
    Deadline,
    Objective,
    RecordMinimums,
    ShareMaximums,
    Sla,
    Verdict,
)
from tidemark.sla.measures.status import statuses
from tidemark.sla.sla_text import measurement_text

TOML = tomllib.loads((Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml").read_text())
TOML["operators"]["flight_board"]["complete"] = {"every": "100 s"}
TOML["operators"]["flight_events"]["allowed_lateness"] = "1 min"
FLIGHTS = topology.parse(TOML, file="flights.toml")
NOW = 1_000_000
OVER = 60_000


def status(measure, subject, facts=(), accounts=(), *, limits=(100, 200), ignore_when_idle=False, **keys):
    """Returns the status of one SLA with *limits*.

    A pair is the two limits of a length of time, ms.
    """
    if isinstance(limits, tuple):
        limits = Sla(warn_after_ms=limits[0], error_after_ms=limits[1])
    spec = SlaSpec(
        name="x", subject=subject, measure=measure, limits=limits,
        owner="o", over_ms=OVER, ignore_when_idle=ignore_when_idle, **keys,
    )  # fmt: skip
    (found,) = statuses([spec], FLIGHTS, facts, accounts, at_ms=NOW)
    return found


def fact(what, subject, at_ms=None, *, over_ms=None, bucket=None, n=None, idle=None):
    row = {"what": what, "subject": subject, "over_ms": over_ms, "bucket": bucket, "n": n, "at_ms": at_ms, "idle": idle}
    return facts_in([row])[0]


@pytest.mark.parametrize(
    ("newest", "verdict", "observed"),
    [
        (NOW - 99, Verdict.PASS, 99),
        (NOW - 100, Verdict.WARN, 100),
        (NOW - 200, Verdict.ERROR, 200),
        (NOW + 5, Verdict.PASS, -5),
        (None, Verdict.NEVER_LOADED, None),
    ],
)
def test_staleness_is_the_age_of_the_newest_visible_record(newest, verdict, observed):
    found = status(STALENESS, "flight_board", [fact("newest", "flight_board", newest)])
    assert (found.verdict, found.observed_ms, found.culprit) == (verdict, observed, None)
    # The lowest limit is 100 ms.
    assert found.crossed_ms == (NOW - (observed - 100) if observed and observed >= 100 else None)


@pytest.mark.parametrize(
    ("measure", "limits", "longest_ms"),
    [
        (STALENESS, (100, 200), 200),
        (WATERMARK_LAG, (100, 200), 200),
        # A limit of 1 ms is no time for a first batch: it has the five minutes after which a batch hangs.
        (COMPLETENESS, (None, 1), 300_000),
        (COMPLETENESS, (None, 400_000), 400_000),
    ],
)
def test_a_missing_table_was_never_loaded_unless_it_is_new(measure, limits, longest_ms):
    subject = "weather" if measure is WATERMARK_LAG else "flight_board"
    found = [
        status(measure, subject, [fact("begun", "flights", NOW - age_ms)], limits=limits)
        for age_ms in (0, longest_ms - 1, longest_ms, longest_ms + 7)
    ]
    assert [each.verdict for each in found] == [Verdict.UNKNOWN] * 2 + [Verdict.NEVER_LOADED] * 2
    assert [each.crossed_ms for each in found] == [None, None, NOW, NOW - 7]
    assert status(measure, subject, limits=limits).verdict is Verdict.NEVER_LOADED


@pytest.mark.parametrize(
    ("idle", "ignored", "verdict"),
    [
        ({"flight_events": 1, "weather": 0}, True, Verdict.PASS),
        ({"flight_events": 1, "weather": 0}, False, Verdict.ERROR),
        ({"flight_events": 0, "weather": 1}, True, Verdict.ERROR),
        ({}, True, Verdict.ERROR),
    ],
)
def test_an_old_table_is_excused_by_idle_sources_on_request(idle, ignored, verdict):
    facts = [fact("newest", "flight_board", 0), *(fact("source", name, NOW, idle=bool(n)) for name, n in idle.items())]
    found = status(STALENESS, "flight_board", facts, ignore_when_idle=ignored)
    assert (found.verdict, found.idle) == (verdict, verdict is Verdict.PASS)


def test_an_excused_deadline_is_not_crossed():
    # The interval from 800 s on is not complete at 1,000 s; its deadline was 910 s.
    facts = [fact("complete", "flight_board", 800_000, n=805_000), fact("source", "flight_events", NOW, idle=True)]
    by_deadline = {"limits": Deadline(after_ms=10_000), "ignore_when_idle": True}
    found = status(COMPLETE_BY, "flight_board", facts, **by_deadline)
    assert (found.verdict, found.idle, found.crossed_ms) == (Verdict.PASS, True, None)


@pytest.mark.parametrize(
    ("idle", "sent", "read", "verdict"),
    [
        (1, NOW, NOW, Verdict.PASS),
        (1, NOW, NOW - 1, Verdict.ERROR),  # the hop is not read to its end
        (1, NOW, None, Verdict.ERROR),
        (0, NOW, NOW, Verdict.ERROR),
    ],
)
def test_a_read_hop_with_idle_sources_has_nothing_on_its_way(idle, sent, read, verdict):
    facts = [
        fact("newest", "changes", 0),
        fact("source", "flight_events", sent, idle=bool(idle)),
        fact("sub_topology", "status", sent),
        fact("source", "by_carrier_source", read, idle=False),
    ]
    assert status(STALENESS, "changes", facts, ignore_when_idle=True).verdict is verdict


@pytest.mark.parametrize(
    ("read", "begun_ago_ms", "state", "verdict"),
    [
        (None, 300_000, None, Verdict.UNKNOWN),  # its reader has never worked
        (None, 300_001, None, Verdict.ERROR),
        (NOW - 1, 10**9, "starting", Verdict.UNKNOWN),
        (NOW - 1, 10**9, None, Verdict.ERROR),
    ],
)
def test_nothing_is_known_while_the_reader_of_a_hop_starts(read, begun_ago_ms, state, verdict):
    facts = [
        fact("newest", "changes", 0),
        fact("begun", "flights", NOW - begun_ago_ms),
        fact("source", "flight_events", NOW, idle=True),
        fact("sub_topology", "status", NOW),
        fact("source", "by_carrier_source", read, idle=False),
        *([fact(state, "carriers")] if state else []),
    ]
    found = status(STALENESS, "changes", facts, ignore_when_idle=True)
    assert (found.verdict, found.is_starting) == (verdict, verdict is Verdict.UNKNOWN)
    assert (found.crossed_ms is None) == found.is_starting
    # Records that are on their way to a living stream are no matter of its reader.
    busy = [replace(each, idle=False) for each in facts]
    assert status(STALENESS, "changes", busy, ignore_when_idle=True).verdict is Verdict.ERROR
    assert status(STALENESS, "changes", facts).verdict is Verdict.ERROR


def latency_facts(n_by_ms, over_ms=OVER):
    return [
        fact("latency", "carrier_delays", over_ms=over_ms, bucket=bucket_of(ms), n=n)
        for ms, n in n_by_ms.items()
        if n > 0
    ]


def latencies(over_ms=OVER):
    """99 records of 50 ms and one of 150."""
    return latency_facts({50: 99, 150: 1}, over_ms)


def test_latency_comes_from_buckets_before_the_check():
    assert status(LATENCY_P50, "carrier_delays", latencies()).observed_ms == pytest.approx(50, rel=0.01)
    p99 = status(LATENCY_P99, "carrier_delays", [*latencies(), *latencies(1)], limits=(10, 60))
    assert (p99.verdict, p99.observed_ms) == (Verdict.WARN, pytest.approx(50, rel=0.01))


@pytest.mark.parametrize(
    ("n", "min_records", "verdict", "text"),
    [
        (99, 1, Verdict.ERROR, "is 497 ms; warning"),
        (99, 99, Verdict.ERROR, "is 497 ms; warning"),
        (99, 100, Verdict.UNKNOWN, "is 497 ms, and 99 records are too few to judge, 100 are needed; warning"),
        (1, 2, Verdict.UNKNOWN, "is 497 ms, and 1 record is too few to judge, 2 are needed; warning"),
        (0, 2, Verdict.UNKNOWN, "is not measured; warning"),
    ],
)
def test_one_slow_record_among_few_breaks_the_p99_unless_more_are_needed(n, min_records, verdict, text):
    """The slow one took 500 ms, whose bucket stands for 1.02^314 · (1 − 0.02 / 2.02) = 496.7 ms."""
    facts = latency_facts({50: n - 1, 500: min(n, 1)})
    limits = Sla(warn_after_ms=100, error_after_ms=200, min_records=min_records)
    found = status(LATENCY_P99, "carrier_delays", facts, limits=limits)
    # The suite of great-expectations compares the lengths of SLAs that are not excused with their limits.
    assert (found.verdict, found.records, found.is_excused) == (verdict, n, verdict is Verdict.UNKNOWN)
    assert text in measurement_text(found)


@pytest.mark.parametrize("measure", [LATENCY_P50, LATENCY_P90, LATENCY_P99])
def test_every_quantile_of_latency_is_unknown_of_fewer_records_than_needed(measure):
    for n, verdict in ((4, Verdict.UNKNOWN), (5, Verdict.ERROR)):
        limits = Sla(error_after_ms=200, min_records=5)
        assert status(measure, "carrier_delays", latency_facts({500: n}), limits=limits).verdict is verdict


@pytest.mark.parametrize(
    ("newest_ms", "window", "verdict", "observed_ms", "text"),
    [
        # The limits are 100 and 200 ms, the check is at 16 min 40 s.
        (NOW - 400, (NOW - 500, NOW - 50), Verdict.PASS, 50, "50 ms, counted from 1970-01-01T00:16:39.950Z"),
        (NOW - 400, (NOW - 500, NOW - 150), Verdict.WARN, 150, "150 ms, counted from 1970-01-01T00:16:39.850Z"),
        (NOW - 120, (NOW - 500, NOW - 150), Verdict.WARN, 120, "120 ms"),
        (NOW - 400, (NOW - 50, NOW + 50), Verdict.ERROR, 400, "400 ms"),  # in maintenance it opens no incident
        (None, (NOW - 500, NOW - 50), Verdict.UNKNOWN, None, "not measured, counted from 1970-01-01T00:16:39.950Z"),
    ],
)
def test_staleness_counts_from_the_end_of_a_maintenance_window(newest_ms, window, verdict, observed_ms, text):
    facts = [fact("begun", "flights", 0), *([fact("newest", "flight_board", newest_ms)] if newest_ms else [])]
    found = status(STALENESS, "flight_board", facts, maintenance_windows=(SingleTime(*window),))
    assert (found.verdict, found.observed_ms) == (verdict, observed_ms)
    limits = "warning from 100 ms on, error from 200 ms on"
    assert measurement_text(found) == f"staleness of flight_board is {text}; {limits}"


def test_staleness_counts_from_the_first_hour_of_a_calendar():
    """1970-01-01 is a Thursday, whose hours begin at 01:10 of a clock that is an hour ahead of UTC."""
    hours = WeeklyHours(frozenset({3}), 70, 120, ZoneInfo("Etc/GMT-1"))
    found = status(STALENESS, "flight_board", [fact("newest", "flight_board", 1)], calendar=hours)
    assert found.observed_ms == NOW - 600_000


@pytest.mark.parametrize(
    ("begun_ms", "window", "verdict"),
    [
        (0, (0, 1), Verdict.ERROR),
        (0, (0, NOW - OVER), Verdict.ERROR),
        (0, (0, NOW - OVER + 1), Verdict.UNKNOWN),
        (NOW - OVER + 1, (0, 1), Verdict.UNKNOWN),
    ],
)
def test_too_few_records_are_unknown_until_they_could_have_come(begun_ms, window, verdict):
    facts = [fact("begun", "flights", begun_ms), fact("records", "flight_status", over_ms=OVER, n=2)]
    limits, windows = RecordMinimums(error_below=3), (SingleTime(*window),)
    found = status(RECORDS, "flight_status", facts, limits=limits, maintenance_windows=windows)
    assert (found.verdict, found.records) == (verdict, 2)


@pytest.mark.parametrize("measure", [LATENCY_P99, OPERATOR_LATENCY_P50])
def test_latency_that_nobody_measured_is_unknown(measure):
    found = status(measure, "carrier_delays", latencies(over_ms=1))
    assert (found.verdict, found.observed_ms, found.culprit) == (Verdict.UNKNOWN, None, None)


@pytest.mark.parametrize(
    "measure", [each for each in MEASURES.values() if each is not CONTRACT and each.subjects is not no_subject]
)
def test_every_measure_is_read_and_judged(measure):
    limits = {
        RECORDS: RecordMinimums(error_below=1),
        BURN_RATE: BurnRate(objective=Objective(threshold_ms=30, target=0.99), warn_at=1, error_at=14.4),
        COMPLETE_BY: Deadline(after_ms=1),
        SCHEMA_CHANGES: ChangeMaximums(error_above=0),
        **dict.fromkeys((QUARANTINED_SHARE, LATE_SHARE), ShareMaximums(error_above=0)),
    }
    subject = measure.subjects(FLIGHTS)[0]
    found = status(measure, subject, limits=limits.get(measure, (100, 200)))
    assert (found.observed_ms, found.verdict is Verdict.PASS) == (None, False)
    assert any(measurements([found.spec], NOW))


@pytest.mark.parametrize(
    ("facts", "verdict", "observed_ms", "crossed_s"),
    [
        # The check is at 1,000 s, the deadline 10 s after the end of an interval, and 60 s are looked back.
        ([(900, 905)], Verdict.PASS, 5_000, None),
        ([(800, 805)], Verdict.ERROR, 100_000, 910),  # that to 900 s is not complete
        ([(900, 911)], Verdict.PASS, 11_000, None),  # it was late, but that was 89 s ago
        ([(900, 950)], Verdict.ERROR, 50_000, 910),
        ([(900, 910), (800, 941)], Verdict.ERROR, 141_000, 810),
        ([(800, 941)], Verdict.ERROR, 100_000, 810),  # that one was late, too
        ([(1_000, 999.9)], Verdict.PASS, -100, None),  # within the error of a clock
        ([(1_100, 990)], Verdict.AHEAD_OF_CLOCK, -110_000, None),
        ([], Verdict.NEVER_LOADED, None, None),
    ],
)
def test_an_interval_is_complete_by_its_deadline(facts, verdict, observed_ms, crossed_s):
    rows = [fact("complete", "flight_board", end * 1_000, n=round(at * 1_000)) for end, at in facts]
    found = status(COMPLETE_BY, "flight_board", rows, limits=Deadline(after_ms=10_000))
    assert (found.verdict, found.observed_ms) == (verdict, observed_ms)
    assert found.crossed_ms == (None if crossed_s is None else crossed_s * 1_000)


def test_the_first_interval_of_a_new_topology_is_unknown():
    # It begins within the interval to 900 s, and the next one ends at 1,000 s; its deadline is 1,010 s.
    begun = [fact("begun", "flights", 850_000)]
    found = status(COMPLETE_BY, "flight_board", begun, limits=Deadline(after_ms=10_000))
    assert found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 6), ("2026-03-28", 5), ("2026-10-24", 7)], ids=["usual", "short", "long"]
)
def test_a_deadline_is_a_time_of_the_local_clock(day, hours):
    """The end is midnight in Berlin."""
    zone = ZoneInfo("Europe/Berlin")
    end = datetime.fromisoformat(day).replace(tzinfo=zone).date() + timedelta(days=1)
    end_ms = round(datetime(end.year, end.month, end.day, tzinfo=zone).timestamp() * 1_000)
    assert Deadline(minute=360, timezone="Europe/Berlin").at_ms(end_ms) == end_ms + hours * 3_600_000


def test_an_operator_is_to_blame_for_what_it_adds_itself():
    added = [fact("work", "carrier_state", over_ms=OVER, bucket=bucket_of(ms), n=1) for ms in (9, 400, 9_000)]
    found = status(OPERATOR_LATENCY_P50, "carrier_state", added)
    assert found.observed_ms == pytest.approx(400, rel=0.01)
    assert (found.verdict, found.culprit) == (Verdict.ERROR, "carrier_state")


def account(open_batches, since, operator="o"):
    return {"operator": operator, "open_batches": open_batches, "open_since_ms": since}


@pytest.mark.parametrize(
    ("accounts", "verdict", "observed"),
    [
        ([], Verdict.NEVER_LOADED, None),
        ([account(0, None)], Verdict.PASS, 0),
        ([account(0, None), account(2, NOW - 150), account(1, NOW - 120)], Verdict.WARN, 150),
        ([account(1, None)], Verdict.PASS, 0),  # a batch that is still being committed
    ],
)
def test_completeness_is_how_long_the_accounting_is_open(accounts, verdict, observed):
    found = status(COMPLETENESS, "outcomes", accounts=accounts)
    assert (found.verdict, found.observed_ms) == (verdict, observed)
    assert found.crossed_ms == (NOW - 50 if verdict is Verdict.WARN else None)  # the limit is 100 ms
    texts = {None: "completeness of outcomes is not measured", 0: "outcomes add up"}
    said = texts.get(observed, "outcomes have not added up for 150 ms")
    limit = "from 100 ms on" if observed is None else "if they have not for 100 ms"
    assert measurement_text(found).startswith(f"{said}; warning {limit}, error ")


def test_the_operator_with_the_longest_open_account_is_blamed():
    accounts = [account(0, None, "a"), account(1, NOW - 120, "b"), account(2, NOW - 150, "c")]
    assert status(COMPLETENESS, "outcomes", accounts=accounts).culprit == "c"


@pytest.mark.parametrize(
    ("subject", "what", "lag", "idle", "verdict"),
    [
        ("flight_events", "source", 99, False, Verdict.PASS),
        ("flight_events", "source", 200, False, Verdict.ERROR),
        ("flight_events", "source", 200, True, Verdict.PASS),
        ("status", "sub_topology", 150, False, Verdict.WARN),
        ("status", "sub_topology", 150, True, Verdict.PASS),  # the source that leads it is idle
    ],
)
def test_a_watermark_lags_behind_the_check_unless_it_is_idle(subject, what, lag, idle, verdict):
    facts = [fact("source", "flight_events", NOW - lag, idle=idle)]
    facts += [fact(what, subject, NOW - lag)] if what == "sub_topology" else []
    found = status(WATERMARK_LAG, subject, facts, ignore_when_idle=True)
    assert (found.verdict, found.observed_ms) == (verdict, lag)


def test_a_watermark_that_nobody_saw_was_never_loaded():
    assert status(WATERMARK_LAG, "weather").verdict is Verdict.NEVER_LOADED


@pytest.mark.parametrize(
    ("n", "idle", "verdict"),
    [
        (10, False, Verdict.PASS),
        (9, False, Verdict.WARN),
        (2, False, Verdict.ERROR),
        (0, False, Verdict.ERROR),
        (0, True, Verdict.PASS),
    ],
)
def test_too_few_records_break_an_sla_unless_sources_are_idle(n, idle, verdict):
    facts = [fact("records", "flight_status", over_ms=OVER, n=n)] if n else []
    facts += [fact("source", "flight_events", NOW, idle=idle)]
    limits = RecordMinimums(warn_below=10, error_below=3)
    found = status(RECORDS, "flight_status", facts, limits=limits, ignore_when_idle=True)
    assert (found.verdict, found.records, found.idle) == (verdict, n, idle)
    excuse = ", while its sources have nothing to send" if idle else ""
    assert measurement_text(found) == f"{n} records of flight_status in 1 min{excuse}; warning below 10, error below 3"


@pytest.mark.parametrize(
    ("n", "verdict"), [(0, Verdict.PASS), (1, Verdict.WARN), (2, Verdict.WARN), (3, Verdict.ERROR)]
)
def test_too_many_changes_of_fields_break_an_sla(n, verdict):
    facts = [
        fact("source", "flight_events", NOW),
        *([fact("schema_changes", "flight_events", over_ms=OVER, n=n)] * bool(n)),
    ]
    limits = ChangeMaximums(warn_above=0, error_above=2)
    found = status(SCHEMA_CHANGES, "flight_events", facts, limits=limits)
    assert (found.verdict, found.culprit) == (verdict, "flight_events" if n else None)
    text = f"changes of fields of flight_events in 1 min: {n}; warning above 0, error above 2"
    assert measurement_text(found) == text


def test_fields_of_a_source_without_a_batch_are_unknown():
    limits = ChangeMaximums(error_above=0)
    assert status(SCHEMA_CHANGES, "flight_events", [], limits=limits).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("measure", "bad", "n", "verdict", "text"),
    [
        ("quarantined", 0, 200, Verdict.PASS, "0 of 200 records of flight_events in 1 min were quarantined (0 %)"),
        ("quarantined", 2, 200, Verdict.PASS, "2 of 200 records of flight_events in 1 min were quarantined (1.00 %)"),
        ("quarantined", 3, 200, Verdict.WARN, "3 of 200 records of flight_events in 1 min were quarantined (1.50 %)"),
        ("late", 1_000, 2_000, Verdict.ERROR, "1,000 of 2,000 records of flight_events in 1 min were late (50.00 %)"),
        (
            "late", 9, 9, Verdict.UNKNOWN,
            "9 of 9 records of flight_events in 1 min were late (100 %), too few to judge, 10 are needed",
        ),
        (
            "late", 0, 0, Verdict.UNKNOWN,
            "0 of 0 records of flight_events in 1 min were late, too few to judge, 10 are needed",
        ),
    ],
)  # fmt: skip
def test_a_share_of_bad_records_breaks_an_sla(measure, bad, n, verdict, text):
    facts = [
        fact(what, "flight_events", over_ms=OVER, n=count) for what, count in (("records", n), (measure, bad)) if count
    ]
    limits = ShareMaximums(warn_above=0.01, error_above=0.3, min_records=10)
    found = status(MEASURES[f"{measure}_share"], "flight_events", facts, limits=limits)
    is_broken = verdict in {Verdict.WARN, Verdict.ERROR}
    assert (found.verdict, found.culprit) == (verdict, "flight_events" if is_broken else None)
    assert measurement_text(found) == f"{text}; warning above 1 %, error above 30 %"


def burning(*, over, of, lately):
    """Returns a status where *over* of *of* records took 500 ms.

    The others took 50 ms; *lately* of 10 were slow in the last twelfth of the time.
    """
    counts = {OVER: (over, of), OVER // 12: (lately, 10)}
    facts = [
        fact("latency", "carrier_delays", over_ms=ms, bucket=bucket_of(500 if slow else 50), n=n if slow else total - n)
        for ms, (n, total) in counts.items()
        for slow in (True, False)
    ]
    limits = BurnRate(objective=Objective(threshold_ms=100, target=0.9), warn_at=1, error_at=5)
    return status(BURN_RATE, "carrier_delays", [each for each in facts if each.n], limits=limits)


@pytest.mark.parametrize(
    ("over", "lately", "verdict", "rate"),
    [
        (9, 9, Verdict.PASS, 0.9),
        (10, 1, Verdict.WARN, 1),
        (50, 5, Verdict.ERROR, 5),
        (50, 4, Verdict.WARN, 5),  # it gets better
        (50, 0, Verdict.PASS, 5),  # it has ended
    ],
)
def test_a_budget_that_still_burns_too_fast_breaks_an_sla(over, lately, verdict, rate):
    found = burning(over=over, of=100, lately=lately)
    assert found.verdict is verdict
    assert (found.budget.burn_rate, found.budget.remaining) == (pytest.approx(rate), pytest.approx(1 - rate))


def test_a_budget_without_recent_measurements_is_unknown():
    slow = fact("latency", "carrier_delays", over_ms=OVER, bucket=bucket_of(500), n=100)
    limits = BurnRate(objective=Objective(threshold_ms=100, target=0.9), warn_at=1, error_at=5)
    assert status(BURN_RATE, "carrier_delays", [slow], limits=limits).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("n", "verdict"), [(99, Verdict.UNKNOWN), (100, Verdict.ERROR)])
def test_a_late_record_in_a_quiet_time_is_no_burn_rate(n, verdict):
    slow = [fact("latency", "carrier_delays", over_ms=ms, bucket=bucket_of(500), n=n) for ms in (OVER, OVER // 12)]
    limits = BurnRate(objective=Objective(threshold_ms=100, target=0.9), warn_at=1, error_at=5, min_records=100)
    found = status(BURN_RATE, "carrier_delays", slow, limits=limits)
    assert (found.verdict, found.records) == (verdict, n)
    too_few = "99 records of carrier_delays in 1 min are too few to judge, 100 are needed; "
    assert measurement_text(found).startswith(too_few) is (verdict is Verdict.UNKNOWN)


def test_of_no_record_no_burn_rate_is_known():
    limits = BurnRate(objective=Objective(threshold_ms=100, target=0.9), warn_at=1, error_at=5)
    found = status(BURN_RATE, "carrier_delays", limits=limits)
    assert (found.verdict, found.is_measured) == (Verdict.UNKNOWN, False)


def test_what_was_found_is_said_in_words():
    late = status(LATENCY_P50, "carrier_delays", latencies(), limits=(10, 40))
    assert (
        measurement_text(late) == "latency p50 of carrier_delays is 50 ms; warning from 10 ms on, error from 40 ms on"
    )
    assert measurement_text(status(LATENCY_P99, "carrier_delays")).startswith(
        "latency p99 of carrier_delays is not measured"
    )
    burnt = burning(over=50, of=100, lately=5)
    assert measurement_text(burnt) == (
        "50.00 % of the records of carrier_delays took longer than 100 ms in 1 min, 5 times 10 %; warning from 1 on, "
        "error from 5 on"
    )


@pytest.mark.parametrize(("ahead_ms", "error_ms", "verdict"), [
    (1_000, None, Verdict.PASS),
    (1_001, None, Verdict.AHEAD_OF_CLOCK),
    (1_001, 5_000, Verdict.PASS),
    (30 * 86_400_000, 5_000, Verdict.AHEAD_OF_CLOCK),
])  # fmt: skip
def test_what_is_ahead_of_every_clock_that_is_known_is_no_pass(ahead_ms, error_ms, verdict):
    facts = [fact("newest", "flight_board", NOW + ahead_ms), fact("sub_topology", "status", NOW + ahead_ms)]
    if error_ms is not None:
        facts.append(fact("clock", "host", n=error_ms))
    assert status(STALENESS, "flight_board", facts=facts).verdict is verdict
    assert status(WATERMARK_LAG, "status", facts=facts).verdict is verdict
    accounts = [{"operator": "flight_events", "open_since_ms": None}]
    assert status(COMPLETENESS, "outcomes", facts=facts, accounts=accounts).verdict is verdict


@pytest.mark.parametrize(
    ("chosen", "behind", "verdict", "text"),
    [
        ("excuse", "status", Verdict.PASS, "staleness of flight_board is 300 ms, while its streams catch up; "),
        ("excuse", None, Verdict.ERROR, "staleness of flight_board is 300 ms; "),
        ("count", "status", Verdict.ERROR, "staleness of flight_board is 300 ms; "),
    ],
)
def test_a_stream_that_catches_up_may_excuse_a_late_table(chosen, behind, verdict, text):
    facts = [fact("newest", "flight_board", NOW - 300)]
    if behind:
        facts.append(fact("catching_up", behind))
    found = status(STALENESS, "flight_board", facts, while_catching_up=WhileCatchingUp(chosen))
    assert found.verdict is verdict
    assert found.crossed_ms == (None if verdict is Verdict.PASS else NOW - 200)  # the lowest limit is 100 ms
    assert measurement_text(found).startswith(text)


def test_a_stream_upstream_excuses_what_is_behind_its_hop():
    limits = BurnRate(objective=Objective(threshold_ms=1_000, target=0.99), warn_at=1, error_at=2)
    burning = [fact("latency", "carrier_delays", over_ms=over, bucket=bucket_of(5_000), n=9) for over in (OVER, 5_000)]
    excuse = {"limits": limits, "while_catching_up": WhileCatchingUp.EXCUSE}
    for behind, verdict in (("status", Verdict.PASS), ("elsewhere", Verdict.ERROR)):
        facts = [*burning, fact("catching_up", behind)]
        assert status(BURN_RATE, "carrier_delays", facts, **excuse).verdict is verdict


def test_a_producer_ahead_is_not_excused_by_catching_up():
    facts = [fact("newest", "flight_board", NOW + 60_000), fact("catching_up", "status")]
    found = status(STALENESS, "flight_board", facts, while_catching_up=WhileCatchingUp.EXCUSE)
    assert found.verdict is Verdict.AHEAD_OF_CLOCK
