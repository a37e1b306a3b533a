import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity
from tidemark.semantics.sla import (
    Budget,
    Judgement,
    Objective,
    Sla,
    Verdict,
    budget,
    crossed_ms,
    judge,
    judge_burn,
    judge_staleness,
)

SLA = Sla(warn_after_ms=100, error_after_ms=200)


@pytest.mark.parametrize(
    ("measured_ms", "verdict"),
    [
        (-5, Verdict.PASS),
        (99, Verdict.PASS),
        (100, Verdict.WARN),
        (199.9, Verdict.WARN),
        (200, Verdict.ERROR),
        (None, Verdict.UNKNOWN),
    ],
)
def test_a_limit_is_reached_by_being_equal_to_it(measured_ms, verdict):
    assert judge(measured_ms, SLA) is verdict


@pytest.mark.parametrize(("age_ms", "crossed"), [(99.6, None), (100, 1_000), (100.4, 1_000), (350, 750)])
def test_an_age_has_crossed_a_limit_if_it_is_judged_by_it(age_ms, crossed):
    assert (judge(age_ms, SLA) is Verdict.PASS) == (crossed is None)
    assert crossed_ms(age_ms, SLA, now_ms=1_000) == crossed


def test_an_sla_may_have_one_limit():
    assert judge(10**9, Sla(warn_after_ms=100)) is Verdict.WARN
    assert judge(150, Sla(error_after_ms=200)) is Verdict.PASS
    assert judge(200, Sla(error_after_ms=200)) is Verdict.ERROR
    assert judge(0, Sla(warn_after_ms=0, error_after_ms=0)) is Verdict.ERROR


@pytest.mark.parametrize(("warn_ms", "error_ms"), [(None, None), (-1, None), (None, -1), (-1, 5), (200, 100)])
def test_limits_that_cannot_be_meant_are_refused(warn_ms, error_ms):
    with pytest.raises(InvalidArgument, match=f"got {warn_ms} and {error_ms}"):
        Sla(warn_after_ms=warn_ms, error_after_ms=error_ms)


def staleness(newest_ms, source=None):
    return judge_staleness(newest_ms, now_ms=1000, sla=SLA, source=source, clock_error_ms=50)


def test_a_table_that_never_had_a_row_is_neither_fine_nor_stale():
    assert staleness(None) == Judgement(verdict=Verdict.NEVER_LOADED, staleness_ms=None, source_idle=False)
    assert staleness(None, Activity.IDLE).verdict is Verdict.NEVER_LOADED


@pytest.mark.parametrize(
    ("begun_ms", "verdict"), [(801, Verdict.UNKNOWN), (1500, Verdict.UNKNOWN), (800, Verdict.NEVER_LOADED)]
)
def test_a_stream_that_began_lately_has_time_for_its_first_row(begun_ms, verdict):
    assert judge_staleness(None, now_ms=1000, sla=SLA, begun_ms=begun_ms).verdict is verdict
    assert judge_staleness(700, now_ms=1000, sla=SLA, begun_ms=begun_ms).verdict is Verdict.ERROR


def test_ahead_of_the_clock_by_more_than_its_error_is_not_a_pass():
    assert staleness(1050).verdict is Verdict.PASS
    assert staleness(1051) == Judgement(verdict=Verdict.AHEAD_OF_CLOCK, staleness_ms=-51, source_idle=False)
    assert staleness(1051, Activity.IDLE).verdict is Verdict.AHEAD_OF_CLOCK


def test_a_table_with_a_silent_source_is_not_stale():
    # It reached the lowest limit, 100 ms, at 800 ms.
    stale = Judgement(verdict=Verdict.ERROR, staleness_ms=300, source_idle=False, crossed_ms=800)
    assert staleness(700) == stale
    assert staleness(700, Activity.IDLE) == Judgement(verdict=Verdict.PASS, staleness_ms=300, source_idle=True)


@pytest.mark.parametrize("source", [None, Activity.ACTIVE, Activity.BACKLOGGED])
def test_no_other_source_is_an_excuse(source):
    assert staleness(700, source).verdict is Verdict.ERROR


@given(st.none() | st.integers(-500, 500), st.integers(0, 300), st.integers(0, 300))
def test_growing_older_never_makes_a_verdict_better(measured_ms, more_ms, limit_ms):
    sla = Sla(warn_after_ms=limit_ms, error_after_ms=limit_ms + 50)
    order = [Verdict.PASS, Verdict.WARN, Verdict.ERROR]
    if measured_ms is None:
        assert judge(measured_ms, sla) is Verdict.UNKNOWN
    else:
        assert order.index(judge(measured_ms, sla)) <= order.index(judge(measured_ms + more_ms, sla))


def test_one_percent_over_spends_a_99_percent_budget_exactly():
    objective = Objective(threshold_ms=5000, target=0.99)
    assert budget(objective, n=1000, n_over=10) == Budget(share_over=0.01, burn_rate=1.0, remaining=0.0)
    assert budget(objective, n=1000, n_over=25) == Budget(share_over=0.025, burn_rate=2.5, remaining=-1.5)
    assert budget(objective, n=1000, n_over=0) == Budget(share_over=0.0, burn_rate=0.0, remaining=1.0)


def test_without_records_nothing_is_known_of_a_budget():
    empty = budget(Objective(threshold_ms=1, target=0.9), n=0, n_over=0)
    assert empty == Budget(share_over=None, burn_rate=None, remaining=None)


@pytest.mark.parametrize(("n", "n_over"), [(1, 2), (1, -1)])
def test_records_over_a_threshold_are_some_of_all(n, n_over):
    with pytest.raises(InvalidArgument, match=f"got {n_over} of {n}"):
        budget(Objective(threshold_ms=1, target=0.9), n=n, n_over=n_over)


@pytest.mark.parametrize("target", [0, 1, 99, -0.5, float("nan")])
def test_a_target_is_a_share_that_leaves_a_budget(target):
    with pytest.raises(InvalidArgument, match="99 % is"):
        Objective(threshold_ms=1, target=target)


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((14.4, 15.0), Verdict.ERROR),
        ((14.4, 14.3), Verdict.WARN),
        ((6.0, 20.0), Verdict.WARN),
        ((5.9, 20.0), Verdict.PASS),
        ((20.0, 0.5), Verdict.PASS),
        ((20.0, None), Verdict.UNKNOWN),
        ((), Verdict.UNKNOWN),
    ],
)
def test_a_budget_burns_when_it_does_so_in_every_window(rates, verdict):
    assert judge_burn(rates, warn_at=6, error_at=14.4) is verdict
