"""Operators of many windows at once are measured like those of one."""

from __future__ import annotations

from dataclasses import fields
from random import Random

import numpy as np
import pytest
from reference.critical_path import critical_path, leaves, parts, path_to
from reference.critical_path import measure as measure_one
from reference.stram import critical_path as moving_average_path
from reference.what_if import slack_ms as slack_of_one

from tidemark.graph import in_order
from tidemark.kernels.reports.arrays import NONE, alike
from tidemark.reports.paths.solver import CODE, STATES, measure, same_clock, slack_ms, spent
from tidemark.semantics.critical_path import LatencyState, PathStep

NOW_MS = 30_050
"""Operators that finished at 40 or 60 have readers that are not stuck yet."""
WINDOWS = 8


def whole(value):
    """Returns a value as that of one window, None for NaN."""
    return None if np.isnan(value) else int(value)


def random_windows(rng):
    """Returns upstreams, EWTs that often tie, and ms behind."""
    names = [f"o{n}" for n in rng.sample(range(10), rng.randint(2, 7))]
    upstreams = {name: tuple(rng.sample(names[:n], rng.randint(0, min(n, 3)))) for n, name in enumerate(names)}
    ewt_ms, behind = {}, {}
    for name in names:
        if rng.random() < 0.85:
            ewt_ms[name] = np.array([rng.choice((0, 5, 7, 40, 60)) for _ in range(WINDOWS)], float)
        else:
            behind[name] = np.array([rng.choice((-5_000, 0, 30_000, 35_000)) for _ in range(WINDOWS)], float)
    return upstreams, ewt_ms, behind


def parts_of_one(step, ewts_ms, began_ms, queued_ms):
    """Returns the parts of a latency; None for unknown ones."""
    if step.latency_ms is None:
        return [None, None, None]
    before_ms = 0
    if step.slowest_upstream:
        before_ms = None if began_ms is None else began_ms - ewts_ms[step.slowest_upstream]
    known = parts(step.latency_ms, before_batch_ms=before_ms or 0, queued_ms=queued_ms or 0)
    waited_ms = None if before_ms is None else known.waited_ms
    queue_ms = None if queued_ms is None else known.queued_ms
    return [waited_ms, queue_ms, None if None in (waited_ms, queue_ms) else known.worked_ms]


def as_path_step(step):
    """Returns what a path has of a measured *step*."""
    return PathStep(**{each.name: getattr(step, each.name) for each in fields(PathStep)})


@pytest.mark.parametrize("seed", range(40))
def test_many_windows_are_measured_like_one(seed):
    rng = Random(seed)
    upstreams, ewt_ms, behind = random_windows(rng)
    measured = measure(upstreams, ewt_ms, behind, windows=WINDOWS, now_ms=NOW_MS)
    began_ms, queued_ms = (
        {name: np.array([rng.choice((np.nan, 0, 3, 30)) for _ in range(WINDOWS)]) for name in ewt_ms} for _ in range(2)
    )
    lengths = spent(measured, ewt_ms, began_ms, queued_ms)
    critical = measured.longest(leaves(upstreams), measured.total_ms)
    critical_ms = measured.total_ms[critical, np.arange(WINDOWS)]
    slack, on_path = slack_ms(upstreams, ewt_ms, measured, critical_ms), measured.walk_to(critical)
    paths = measured.paths(upstreams)
    for window in range(WINDOWS):
        ewts_ms = {name: int(of[window]) for name, of in ewt_ms.items()}
        steps = measure_one(
            upstreams, ewts_ms, behind_ms={name: int(of[window]) for name, of in behind.items()}, now_ms=NOW_MS
        )
        path, slack_ms_of_one = critical_path(upstreams, steps), slack_of_one(upstreams, ewts_ms, steps)
        assert paths[window].steps == tuple(map(as_path_step, path.steps))
        for place, name in enumerate(measured.names):
            step, walk = steps[name], path_to(name, steps)
            slowest = measured.slowest[place, window]
            assert (None if slowest == NONE else measured.names[slowest]) == step.slowest_upstream
            assert STATES[measured.state[place, window]] is step.state
            assert whole(measured.latency_ms[place, window]) == step.latency_ms
            assert measured.total_ms[place, window] == walk.latency_ms
            assert measured.is_complete[place, window] == walk.is_complete
            assert STATES[measured.path_state[place, window]] is walk.state
            assert measured.names[measured.source[place, window]] == walk.operators[0]
            assert measured.depth[place, window] == len(walk.steps) - 1
            assert whole(slack[place, window]) == slack_ms_of_one.get(name)
            assert on_path[place, window] == (name in path.operators)
            found = [whole(ms[place, window]) for ms in (lengths.waited_ms, lengths.queued_ms, lengths.worked_ms)]
            if name in ewt_ms:
                began, queued = whole(began_ms[name][window]), whole(queued_ms[name][window])
                assert found == parts_of_one(step, ewts_ms, began, queued)
            else:
                assert found == [step.latency_ms, *[None if step.latency_ms is None else 0] * 2]


@pytest.mark.parametrize("seed", range(10))
def test_a_path_of_averages_is_that_of_apex(seed):
    rng = Random(seed)
    upstreams, ewt_ms, behind = random_windows(rng)
    measured = measure(upstreams, ewt_ms, behind, windows=WINDOWS, now_ms=NOW_MS)
    average_ms = np.array([[rng.choice((0, 5, 9)) for _ in range(WINDOWS)] for _ in measured.names], float)
    totals_ms = measured.along(average_ms, np.add)
    ends = measured.longest([name for name in upstreams if name in leaves(upstreams)], totals_ms)
    for window in range(WINDOWS):
        slowest = {
            name: measured.names[measured.slowest[place, window]]
            for place, name in enumerate(measured.names)
            if measured.slowest[place, window] != NONE
        }
        averages = dict(zip(measured.names, average_ms[:, window].tolist(), strict=True))
        path = moving_average_path(upstreams, slowest, averages)
        assert (measured.names[ends[window]], totals_ms[ends[window], window]) == (path.operators[-1], path.latency_ms)


def test_operators_of_one_clock_have_one():
    upstreams = {"a": (), "b": ("a",), "c": ("b",)}
    ewt_ms = {name: np.arange(4.0) for name in upstreams if name != "b"}
    measured = measure(upstreams, ewt_ms, {"b": np.full(4, 9.0)}, windows=4, now_ms=31_000)
    assert in_order(upstreams) == ("a", "b", "c")
    clocks = {"a": np.array([1, 1, 2, np.nan]), "c": np.array([1, 2, 2, np.nan])}
    # The walk to `c` begins with it: `b` has not finished the windows.
    assert measured.state[1].tolist() == [CODE[LatencyState.STUCK]] * 4
    assert same_clock(measured, clocks)[1].tolist() == [True, True, True, False]
    joined = measure({"a": (), "c": ("a",)}, ewt_ms, {}, windows=4)
    assert same_clock(joined, clocks)[1].tolist() == [True, False, True, False]


def test_windows_with_equal_values_are_alike():
    rows = [np.array([True, False, True, True]), np.array([3, 3, 3, 4])]
    assert sorted(chosen.tolist() for chosen in alike(rows, 4)) == [
        [False, False, False, True], [False, True, False, False], [True, False, True, False],
    ]  # fmt: skip
    assert [chosen.tolist() for chosen in alike(rows[:0], 2)] == [[True, True]]
