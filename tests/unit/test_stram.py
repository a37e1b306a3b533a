import pytest
from reference.critical_path import Step
from reference.stram import EstimateLimits, critical_path, operator_latency

from tidemark.semantics.critical_path import LatencyState

LIMITS = EstimateLimits(window_ms=600)


def latency(windows, ewt_ms, names=("u", "v")):
    return operator_latency("o", names, windows=windows, ewt_ms=ewt_ms, limits=LIMITS)


def test_the_upstream_that_came_last_decides():
    step = latency({"u": 9, "v": 9, "o": 9}, {"u": 1000, "v": 1500, "o": 1600})
    assert (step.state, step.latency_ms, step.slowest_upstream) == (LatencyState.MEASURED, 100, "v")


def test_an_operator_that_finished_first_is_clamped():
    step = latency({"u": 9, "v": 9, "o": 9}, {"u": 1000, "v": 1500, "o": 1400})
    assert (step.state, step.latency_ms, step.unclamped_ms) == (LatencyState.CLAMPED_NEGATIVE, 0, -100)


def test_an_operator_finished_at_the_same_instant_is_not_clamped():
    step = latency({"u": 9, "o": 9}, {"u": 1500, "o": 1500}, names=("u",))
    assert (step.state, step.latency_ms) == (LatencyState.MEASURED, 0)


@pytest.mark.parametrize(
    ("ahead", "state", "latency_ms"), [(50, LatencyState.MEASURED, 100), (51, LatencyState.STUCK, 30_600)]
)
def test_an_operator_behind_for_longer_than_a_heartbeat_is_stuck(ahead, state, latency_ms):
    step = latency({"u": 9 + ahead, "o": 9}, {"u": 1500, "o": 1600}, names=("u",))
    assert (step.state, step.latency_ms) == (state, latency_ms)


def test_without_stats_the_windows_behind_are_the_estimate():
    step = latency({"u": 12, "v": 11, "o": 9}, None)
    assert (step.state, step.latency_ms, step.slowest_upstream) == (LatencyState.ESTIMATED, 1200, "v")
    assert latency({"u": 9, "o": 9}, None, names=("u",)).latency_ms == 0
    assert latency({"u": 8, "v": None, "o": 9}, None).state is LatencyState.UPSTREAM_MISSING


def test_what_has_no_sample_says_why():
    assert latency({"o": 9}, {"o": 5}, names=()) == Step(
        operator="o", state=LatencyState.INPUT, latency_ms=0, unclamped_ms=0
    )
    assert latency({"u": 9, "v": 9, "o": None}, {}).state is LatencyState.NO_WINDOW_YET
    assert latency({"u": 9, "v": 9, "o": 9}, {"u": 1, "v": 2}).state is LatencyState.NO_WINDOW_YET
    assert latency({"u": 8, "v": 8, "o": 9}, {"o": 5}) == Step(operator="o", state=LatencyState.UPSTREAM_MISSING)


def test_of_equal_upstreams_and_leaves_the_first_named_is_taken():
    assert latency({"u": 9, "v": 9, "o": 9}, {"u": 5, "v": 5, "o": 6}, names=("v", "u")).slowest_upstream == "v"
    path = critical_path({"y": ("s",), "x": ("s",)}, {"x": "s", "y": "s"}, {"x": 4, "y": 4})
    assert str(path) == "s (0 ms) → y (4 ms) = 4 ms"


def test_a_path_sums_averages_down_to_the_first_operator():
    path = critical_path({"b": ("a",), "c": ("b", "d")}, {"b": "a", "c": "b"}, {"b": 3, "c": 4, "d": 100})
    assert str(path) == "a (0 ms) → b (3 ms) → c (4 ms) = 7 ms"
    assert [step.state for step in path.steps] == [LatencyState.INPUT, LatencyState.MEASURED, LatencyState.MEASURED]


def test_the_leaf_with_the_highest_sum_ends_the_path():
    path = critical_path({"x": ("s",), "y": ("s",), "z": ("s",)}, dict.fromkeys("xyz", "s"), {"x": 3, "y": 9, "z": 4})
    assert path.steps[-1].operator == "y"
