import polars as pl
import pytest

from tidemark.model.measures.burn_rate import BURN_RATE
from tidemark.model.measures.completeness import COMPLETENESS
from tidemark.model.measures.latency import LATENCY_P50, LATENCY_P99
from tidemark.model.measures.operator_latency import OPERATOR_LATENCY_P50
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.settings.intervals import utc
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.reports.paths.window_verdicts import judge_records
from tidemark.reports.promises import Promise, Promises, promises
from tidemark.semantics.buckets import bucket_of
from tidemark.semantics.sla import BurnRate, Objective, Sla, Verdict, judge


def spec(subject, measure, **limits):
    return SlaSpec(
        name="n",
        subject=subject,
        measure=measure,
        limits=limits.pop("budget", None) or Sla(**limits),
        owner="o",
        over_ms=600_000,
        ignore_when_idle=False,
    )


def test_the_promise_is_the_error_or_the_warning_and_the_least():
    found = promises(
        [
            spec("out", LATENCY_P99, warn_after_ms=30_000, error_after_ms=120_000),
            spec("out", LATENCY_P50, warn_after_ms=60_000),
            spec("state", OPERATOR_LATENCY_P50, warn_after_ms=150, error_after_ms=300),
        ]
    )
    records = {
        "out": (Promise(sla="n", limit_ms=120_000, quantile=0.99), Promise(sla="n", limit_ms=60_000, quantile=0.5))
    }
    work = {"state": (Promise(sla="n", limit_ms=300),)}
    assert found == Promises(records=records, work=work)
    assert (found.end_to_end_ms, found.work_ms) == ({"out": 60_000}, {"state": 300})


def test_staleness_and_completeness_promise_nothing_of_a_window():
    found = promises(
        [
            spec("changes", STALENESS, error_after_ms=60_000),
            spec("outcomes", COMPLETENESS, error_after_ms=1),
        ]
    )
    assert found == Promises()


def test_an_error_budget_promises_its_threshold():
    budget = BurnRate(objective=Objective(threshold_ms=30_000, target=0.99), warn_at=1, error_at=14.4)
    assert promises([spec("out", BURN_RATE, budget=budget)]) == Promises(
        records={"out": (Promise(sla="n", limit_ms=30_000, quantile=0.99, may_equal=True),)}
    )


def test_no_quantile_of_a_window_is_above_its_slowest_record():
    """The bucket of 18,151 ms stands for 18,254 ms; the window's records are in two rows."""
    row = {"operator": "out", "window_start": utc(0), "min_ms": 18_150, "max_ms": 18_151}
    rows = [{**row, "buckets": [{"bucket": bucket_of(18_151), "n": 3}]}, {**row, "max_ms": 18_150, "buckets": []}]
    promised = promises([spec("out", LATENCY_P99, error_after_ms=18_200)])
    ((verdict,),) = judge_records(pl.DataFrame(rows), promised).values()
    assert (verdict.value_ms, verdict.broken) == (18_151, False)


@pytest.mark.parametrize(("worked_ms", "broken"), [(299, False), (300, True), (301, True)])
def test_work_that_reaches_the_limit_breaks_a_window_as_it_breaks_a_check(worked_ms, broken):
    """`error_after` is the length from which a measurement is an error, see docs/alerts.md."""
    (promise,) = promises([spec("state", OPERATOR_LATENCY_P50, error_after_ms=300)]).work["state"]
    assert promise.judge("state", worked_ms).broken is broken
    assert (judge(worked_ms, Sla(error_after_ms=300)) is Verdict.ERROR) is broken
