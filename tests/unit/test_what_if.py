import networkx as nx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from reference.critical_path import critical_path, graph, measure
from reference.what_if import slack_ms, what_if
from unit.dags import runs
from unit.test_critical_path import ARTICLE, ARTICLE_EWT_MS

from tidemark.errors import InvalidArgument
from tidemark.semantics.critical_path import leaves
from tidemark.semantics.what_if import sooner_ewts_ms


def slack(upstreams, ewt_ms):
    return slack_ms(upstreams, ewt_ms, measure(upstreams, ewt_ms))


def latency_ms(upstreams, ewt_ms):
    return critical_path(upstreams, measure(upstreams, ewt_ms)).latency_ms


def delayed(upstreams, ewt_ms, operator, delay_ms):
    """Computes the EWTs with *operator* delayed by *delay_ms*.

    Every other operator takes as long as before.
    """
    then_ms = {}
    for name, names in upstreams.items():
        was = max((ewt_ms[upstream] for upstream in names), default=0)
        then = max((then_ms[upstream] for upstream in names), default=0)
        then_ms[name] = ewt_ms[name] - was + then + (delay_ms if name == operator else 0)
    return then_ms


def test_slack_is_what_an_operators_longest_path_lacks():
    assert slack(ARTICLE, ARTICLE_EWT_MS) == {"A": 0, "B": 85, "C": 0, "D": 85, "E": 0, "F": 18}


def test_an_operator_whose_ewt_is_missing_has_no_slack():
    assert slack({"o": ("s",), "p": ("o",)}, {"s": 1, "p": 9}) == {"p": 0, "o": None, "s": None}


@given(runs(sources=1))
def test_with_one_source_slack_is_against_the_longest_path(run):
    upstreams, ewt_ms = run
    steps = measure(upstreams, ewt_ms)
    drawn = graph(upstreams)
    for operator, lacking in slack(upstreams, ewt_ms).items():
        lengths = [
            sum(steps[name].latency_ms for name in path)
            for leaf in leaves(upstreams)
            for path in ([["a"]] if leaf == "a" else nx.all_simple_paths(drawn, "a", leaf))
            if operator in path
        ]
        assert lacking == latency_ms(upstreams, ewt_ms) - max(lengths)


@given(runs())
def test_slack_is_0_on_the_critical_path_and_never_negative(run):
    upstreams, ewt_ms = run
    found = slack(upstreams, ewt_ms)
    assert set(found) == set(upstreams)
    assert min(found.values()) >= 0
    path = critical_path(upstreams, measure(upstreams, ewt_ms))
    assert all(found[step.operator] == 0 for step in path.steps)


@given(runs(sources=1), st.data())
def test_an_operator_may_be_later_by_its_slack_and_not_by_more(run, data):
    upstreams, ewt_ms = run
    operator = data.draw(st.sampled_from(list(upstreams)))
    assume(upstreams[operator])
    within = slack(upstreams, ewt_ms)[operator]
    before = latency_ms(upstreams, ewt_ms)
    assert latency_ms(upstreams, delayed(upstreams, ewt_ms, operator, within)) == before
    assert latency_ms(upstreams, delayed(upstreams, ewt_ms, operator, within + 1)) == before + 1


def test_what_if_c_takes_thirty_percent_less():
    then_ms = what_if(ARTICLE, ARTICLE_EWT_MS, {"C": 0.7})
    assert then_ms == {"A": 1000, "B": 1005, "C": 1070, "D": 1035, "E": 1090, "F": 1072}
    assert str(critical_path(ARTICLE, measure(ARTICLE, then_ms))) == "A (0 ms) → C (70 ms) → E (20 ms) = 90 ms"


def test_a_free_b_changes_nothing_off_the_critical_path():
    assert latency_ms(ARTICLE, what_if(ARTICLE, ARTICLE_EWT_MS, {"B": 0})) == 120


@given(runs())
def test_what_if_nothing_changes(run):
    upstreams, ewt_ms = run
    assert what_if(upstreams, ewt_ms, {}) == ewt_ms
    assert what_if(upstreams, ewt_ms, dict.fromkeys(upstreams, 1)) == ewt_ms


@given(runs(), st.data())
def test_taking_less_time_makes_no_window_later(run, data):
    upstreams, ewt_ms = run
    factors = {name: data.draw(st.floats(0, 1)) for name in upstreams}
    then_ms = what_if(upstreams, ewt_ms, factors)
    assert all(then_ms[name] <= ewt_ms[name] for name in upstreams)


def test_what_was_not_measured_stays_so():
    assert what_if({"o": ("s",), "p": ("o",)}, {"s": 1, "p": 9}, {"p": 0.5}) == {"s": 1, "o": None, "p": 9}


def test_a_clamped_latency_is_kept():
    assert what_if({"o": ("s",)}, {"s": 10, "o": 7}, {"o": 0.5})["o"] == 7


@pytest.mark.parametrize("factors", [{"X": 1.0}, {"C": -0.5}])
def test_a_factor_is_0_or_more_for_an_existing_operator(factors):
    with pytest.raises(InvalidArgument, match="A, B, C, D, E, F; got"):
        what_if(ARTICLE, ARTICLE_EWT_MS, factors)


def as_long_after(upstream_ms, upstream_sooner_ms):
    """A batch begins as long after the last upstream as it did."""
    return upstream_sooner_ms


@given(runs(), st.data())
def test_with_a_driver_each_saving_equals_taking_less_time(run, data):
    upstreams, ewt_ms = run
    halved = data.draw(st.sets(st.sampled_from(list(upstreams))))
    saved_ms = {}
    for name in halved:
        if upstreams[name]:
            own_ms = ewt_ms[name] - max(ewt_ms[upstream] for upstream in upstreams[name])
            saved_ms[name] = own_ms - round(own_ms * 0.5)
    drivers = {name: name for name in upstreams}
    begins = dict.fromkeys(upstreams, as_long_after)
    assert sooner_ewts_ms(upstreams, ewt_ms, drivers, saved_ms, begins) == what_if(
        upstreams, ewt_ms, dict.fromkeys(halved, 0.5)
    )


def test_a_drivers_saving_counts_for_all_it_finished_later():
    upstreams = {"s": (), "a": ("s",), "b": ("s",), "t": ()}
    drivers = {"s": "one", "a": "one", "b": "one", "t": "two"}
    ewt_ms = {"s": 10, "a": 60, "b": 100, "t": 70}
    assert sooner_ewts_ms(upstreams, ewt_ms, drivers, {"a": 30}, {}) == {"s": 10, "a": 30, "b": 70, "t": 70}
    assert sooner_ewts_ms(upstreams, ewt_ms, drivers, {"b": -5}, {}) == {"s": 10, "a": 60, "b": 105, "t": 70}


def test_a_driver_of_two_hops_begins_after_the_later_one():
    upstreams, drivers = {"x": (), "y": (), "o": ("x", "y")}, {"x": "1", "y": "2", "o": "3"}
    ewt_ms = {"x": 100, "y": 90, "o": 150}
    assert sooner_ewts_ms(upstreams, ewt_ms, drivers, {"x": 40}, {"3": as_long_after}) == {"x": 60, "y": 90, "o": 140}


def test_a_driver_is_asked_how_much_sooner_it_begins():
    asked = []

    def begins(upstream_ms, upstream_sooner_ms):
        asked.append((upstream_ms, upstream_sooner_ms))
        return 25

    upstreams = {"x": (), "o": ("x",), "p": ("o",)}
    found = sooner_ewts_ms(
        upstreams, {"x": 100, "o": 150, "p": 160}, {"x": "1", "o": "2", "p": "2"}, {"x": 40}, {"2": begins}
    )
    assert (found, asked) == ({"x": 60, "o": 125, "p": 135}, [(100, 40)])
