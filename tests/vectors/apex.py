"""Runs Apex's vectors.

In them −1 is a state without a latency, or an input.
"""

import numpy as np
from reference.skew import moving_average
from reference.stram import EstimateLimits, operator_latency
from vectors.checks import check, only

from tidemark.graph import in_order
from tidemark.reports.paths.solver import measure
from tidemark.semantics.critical_path import LatencyState


def run_operator_latency(vector):
    only(
        vector,
        *("dag", "window_width_ms", "heartbeat_timeout_ms", "rpc_ms", "current_window"),
        *("end_window_stats_exist", "emit_ts", "operator"),
    )
    operator = vector["operator"]
    step = operator_latency(
        operator,
        vector["dag"].get(operator, []),
        windows={name: window if window > 0 else None for name, window in vector["current_window"].items()},
        ewt_ms=adjusted(vector) if vector["end_window_stats_exist"] else None,
        limits=EstimateLimits(window_ms=vector["window_width_ms"], heartbeat_timeout_ms=vector["heartbeat_timeout_ms"]),
    )
    no_sample = step.latency_ms is None or step.state is LatencyState.INPUT
    check(
        vector["expected"],
        {"latency": -1 if no_sample else step.latency_ms, "slowest_upstream": step.slowest_upstream},
    )


def run_critical_path(vector):
    only(vector, "dag", "emit_ts", "rpc_ms")
    latency_ms, path = measured(vector["dag"], adjusted(vector))
    check(
        vector["expected"],
        {"operator_latency": latency_ms, "path": path.operators, "path_latency": path.latency_ms},
    )


def run_inequality(vector):
    """Every operator takes 1 ms and what is injected."""
    only(vector, "dag", "injected_delay_ms")
    ewt_ms = {}
    for name in in_order(vector["dag"]):
        last_ms = max((ewt_ms[upstream] for upstream in vector["dag"].get(name, ())), default=1000)
        ewt_ms[name] = last_ms + 1 + vector["injected_delay_ms"].get(name, 0)
    latency_ms, path = measured(vector["dag"], ewt_ms)
    expected = dict(vector["expected"])
    above = expected.pop("operator_latency_gt", {})
    at_least = expected.pop("operator_latency_ge", {})
    assert all(latency_ms[name] > bound for name, bound in above.items())
    assert all(latency_ms[name] >= bound for name, bound in at_least.items())
    assert path.latency_ms > expected.pop("path_latency_gt", -1)
    same = expected.pop("operator_latency", {})
    assert {name: latency_ms[name] for name in same} == same
    check(expected, {"path": path.operators})


def run_moving_average(vector):
    only(vector, "periods", "values")
    check(vector["expected"], {"avg": moving_average(vector["values"], samples=vector["periods"])})


def measured(dag, ewt_ms):
    """The latency of each operator in a window, and its critical path."""
    ewts_ms = {name: np.array([at_ms], float) for name, at_ms in ewt_ms.items() if at_ms is not None}
    operators = measure(dag, ewts_ms, {}, windows=1)
    latencies = dict(zip(operators.names, operators.latency_ms[:, 0].tolist(), strict=True))
    (path,) = operators.paths(dag)
    return {name: None if np.isnan(of) else of for name, of in latencies.items()}, path


def adjusted(vector):
    """The EWTs on the clock of Apex's master."""
    return {
        name: emitted_ms + vector["rpc_ms"].get(name, 0) if emitted_ms >= 0 else None
        for name, emitted_ms in vector["emit_ts"].items()
    }


RUNNERS = {
    "apex_latency_critical_path.json": {
        "operator_latency": run_operator_latency,
        "critical_path": run_critical_path,
        "critical_path_inequality": run_inequality,
        "moving_average": run_moving_average,
    },
}
