import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import critical_path as reference
from reference.critical_path import Step, critical_path, graph, measure
from unit.dags import runs

from tidemark.errors import InvalidArgument
from tidemark.graph import in_order
from tidemark.semantics.critical_path import (
    LatencyState,
    Path,
    latest,
    leaves,
    path_to,
)

ARTICLE = {"A": (), "B": ("A",), "C": ("A",), "D": ("B",), "E": ("C",), "F": ("C",)}
ARTICLE_EWT_MS = {"A": 1000, "B": 1005, "C": 1100, "D": 1035, "E": 1120, "F": 1102}
JOIN = {"a": (), "b": (), "j": ("a", "b")}


def found(upstreams, ewt_ms, **limits):
    return critical_path(upstreams, measure(upstreams, ewt_ms, **limits))


def test_the_120_ms_along_a_c_e_of_the_apex_article():
    steps = measure(ARTICLE, ARTICLE_EWT_MS)
    assert {name: step.latency_ms for name, step in steps.items()} == {
        "A": 0,
        "B": 5,
        "C": 100,
        "D": 30,
        "E": 20,
        "F": 2,
    }
    assert {leaf: path_to(leaf, steps).latency_ms for leaf in leaves(ARTICLE)} == {"D": 35, "E": 120, "F": 102}
    path = critical_path(ARTICLE, steps)
    assert str(path) == "A (0 ms) → C (100 ms) → E (20 ms) = 120 ms"
    assert (path.latency_ms, path.state, path.is_complete) == (120, LatencyState.MEASURED, True)


def test_an_operator_waits_for_the_latest_of_its_upstreams():
    step = measure(JOIN, {"a": 1000, "b": 1500, "j": 1600})["j"]
    assert step == Step(
        operator="j", state=LatencyState.MEASURED, latency_ms=100, unclamped_ms=100, slowest_upstream="b"
    )


def test_of_equal_upstreams_and_leaves_the_first_by_name_wins():
    assert measure({"j": ("b", "a")}, {"a": 5, "b": 5, "j": 6})["j"].slowest_upstream == "a"
    assert found({"y": ("s",), "x": ("s",)}, {"s": 0, "x": 4, "y": 4}).steps[-1].operator == "x"


def test_finishing_before_an_upstream_is_clamped_and_kept():
    path = found({"o": ("s",)}, {"s": 1200, "o": 1100})
    assert path.steps[-1] == Step(
        operator="o", state=LatencyState.CLAMPED_NEGATIVE, latency_ms=0, unclamped_ms=-100, slowest_upstream="s"
    )
    assert str(path) == "s (0 ms) → o (0 ms, clamped_negative) = 0 ms"


def test_finishing_at_the_same_instant_is_not_clamped():
    assert measure({"o": ("s",)}, {"s": 5, "o": 5})["o"].state is LatencyState.MEASURED


def test_a_missing_measurement_is_a_state_and_not_a_zero():
    path = found({"o": ("s",), "p": ("o",)}, {"s": 100, "p": 130})
    assert str(path) == "p (upstream_missing) ≥ 0 ms"
    path = found({"o": ("s",), "p": ("o",)}, {"s": 100, "o": 107})
    assert str(path) == "s (0 ms) → o (7 ms) → p (no_window_yet) ≥ 7 ms"
    assert (path.state, path.is_complete) == (LatencyState.NO_WINDOW_YET, False)
    assert measure(JOIN, {"j": 5})["a"] == Step(operator="a", state=LatencyState.NO_WINDOW_YET)


def test_a_latency_without_all_upstreams_is_an_upper_bound():
    step = measure(JOIN, {"a": 1000, "j": 1600})["j"]
    assert (step.state, step.latency_ms, step.slowest_upstream) == (LatencyState.UPSTREAM_MISSING, 600, "a")


@pytest.mark.parametrize(
    ("ewt_ms", "behind_ms", "now_ms", "state", "latency_ms"),
    [
        ({"s": 7}, 500, 30_007, LatencyState.NO_WINDOW_YET, None),
        ({"s": 7}, 500, 30_008, LatencyState.STUCK, 30_001),
        ({"s": 7}, 0, 90_000, LatencyState.NO_WINDOW_YET, None),
        ({}, 30_000, 90_000, LatencyState.NO_WINDOW_YET, None),
        ({}, 30_500, 90_000, LatencyState.ESTIMATED, 30_500),
    ],
)
def test_an_operator_is_stuck_for_as_long_as_its_upstream_has_finished(ewt_ms, behind_ms, now_ms, state, latency_ms):
    """A heartbeat may take 30 s. How long that is for is estimated where no upstream has an EWT."""
    step = measure({"o": ("s",)}, ewt_ms, behind_ms={"o": behind_ms}, now_ms=now_ms)["o"]
    assert step == Step(operator="o", state=state, latency_ms=latency_ms, slowest_upstream="s")


def test_a_topology_has_no_cycle_and_at_least_one_operator():
    with pytest.raises(InvalidArgument, match="must not form a cycle"):
        in_order({"a": ("b",), "b": ("a",)})
    with pytest.raises(InvalidArgument, match="got none"):
        critical_path({}, {})


def longest(upstreams, steps):
    """Computes the highest latency sum from source to leaf with networkx."""
    drawn = nx.DiGraph()
    for reader, names in upstreams.items():
        for name in names or [""]:
            drawn.add_edge(name, reader, weight=steps[reader].latency_ms)
    return nx.dag_longest_path_length(drawn)


@given(runs())
def test_latencies_of_a_walk_sum_to_leaf_less_source(run):
    upstreams, ewt_ms = run
    for leaf in leaves(upstreams):
        steps = path_to(leaf, measure(upstreams, ewt_ms)).steps
        assert sum(step.unclamped_ms for step in steps) == ewt_ms[leaf] - ewt_ms[steps[0].operator]


@given(runs(), st.data())
def test_the_same_holds_with_clocks_that_disagree(run, data):
    upstreams, ewt_ms = run
    skewed = {name: instant + data.draw(st.integers(-20, 20)) for name, instant in ewt_ms.items()}
    path = found(upstreams, skewed)
    assert (
        sum(step.unclamped_ms for step in path.steps)
        == skewed[path.steps[-1].operator] - skewed[path.steps[0].operator]
    )
    assert path.latency_ms >= 0


@given(runs(sources=1))
def test_with_one_source_the_critical_path_is_the_longest_path(run):
    upstreams, ewt_ms = run
    steps = measure(upstreams, ewt_ms)
    assert critical_path(upstreams, steps).latency_ms == longest(upstreams, steps)


@given(runs())
def test_the_critical_path_is_at_least_the_walk_to_every_leaf(run):
    """With several sources, another path may have a higher sum.

    That is a path whose source had finished the window long before.
    """
    upstreams, ewt_ms = run
    steps = measure(upstreams, ewt_ms)
    path = critical_path(upstreams, steps)
    assert all(path.latency_ms >= path_to(leaf, steps).latency_ms for leaf in leaves(upstreams))
    names = [step.operator for step in path.steps]
    assert nx.is_path(graph(upstreams), names)
    assert not upstreams[names[0]]
    assert names[-1] in leaves(upstreams)


@given(runs(), st.data())
def test_order_leaves_and_walks_are_those_of_the_reference(run, data):
    upstreams, ewt_ms = run
    order = in_order(upstreams)
    assert sorted(order) == sorted(upstreams)
    assert all(order.index(name) < order.index(reader) for name, reader in graph(upstreams).edges)
    assert [*leaves(upstreams)] == reference.leaves(upstreams)
    finished_ms = {name: data.draw(st.sampled_from([None, ms])) for name, ms in ewt_ms.items()}
    steps = measure(upstreams, finished_ms)
    for name, read in upstreams.items():
        assert latest(read, finished_ms) == reference.latest(read, finished_ms)
        assert path_to(name, steps) == reference.path_to(name, steps)


@given(runs(), st.randoms())
def test_the_order_in_which_operators_are_listed_does_not_matter(run, random):
    upstreams, ewt_ms = run
    shuffled = [(name, random.sample(names, len(names))) for name, names in upstreams.items()]
    random.shuffle(shuffled)
    assert found(dict(shuffled), ewt_ms) == found(upstreams, ewt_ms)


def test_a_path_without_steps_has_no_latency():
    assert Path(()).latency_ms == 0


def test_who_has_not_finished_waits_for_who_is_furthest_behind():
    upstreams = {"b": ("a",), "d": ("c",), "e": ("b", "d")}
    steps = measure(upstreams, {"a": 2, "c": 0}, behind_ms={"b": 4_000, "d": 5_000}, now_ms=31_000)
    assert str(path_to("e", steps)) == "c (0 ms) → d (31,000 ms, stuck) → e (no_window_yet) ≥ 31,000 ms"
