"""Runs Flink's vectors."""

from dataclasses import dataclass, field

import pytest
from reference import multiplexer as mux
from reference import valve
from reference.idleness import IdlenessTimer, check_idle, with_record
from reference.multiplexer import Delivery, Multiplexer
from reference.windows import hopping
from vectors.checks import NO_LIMIT, NONE_YET, check, choose, only

from tidemark.errors import InvalidArgument
from tidemark.semantics.alignment import lowest_reported, max_allowed_ms
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import Progress, bounded_out_of_orderness, is_late, is_window_late

ACTIVITIES = {"idle": Activity.IDLE, "active": Activity.ACTIVE}
TRIGGERS = {
    "fire-and-purge on watermark, fire again per late element": True,
    "fire on watermark, no purge until cleanup": False,
}


def run_bounded_out_of_orderness(vector):
    only(vector, "bound_ms", "events", "probes")
    for _ in range(vector.get("probes", 1)):
        watermark_ms = bounded_out_of_orderness(max(vector["events"], default=None), bound_ms=vector["bound_ms"])
    check(vector["expected"], {"watermark": NONE_YET if watermark_ms is None else watermark_ms})


def run_idleness_construct(vector):
    only(vector, "timeout_ms")
    try:
        IdlenessTimer(timeout_ms=vector["timeout_ms"])
    except InvalidArgument:
        check(vector["expected"], {"error": True})
    else:
        check(vector["expected"], {"error": False})


def run_idleness_ops(vector):
    only(vector, "timeout_ms", "ops")
    timer, now_ms = IdlenessTimer(timeout_ms=vector["timeout_ms"]), 0
    for op, *argument in vector["ops"]:
        match op:
            case "check":
                timer, idle = check_idle(timer, now_ms=now_ms)
                assert [idle] == argument
            case "advance":
                now_ms += argument[0]
            case "activity":
                timer = with_record(timer)
            case _:
                pytest.fail(f"unknown op {op!r}; known: activity, advance, check")


def run_idleness_bounds(vector):
    """Whatever the timeout, and wherever between two checks the last record came."""
    only(vector, "interval_ms")
    interval_ms, expected = vector["interval_ms"], dict(vector["expected"])
    earliest = expected.pop("no_earlier_than_timeout_plus_intervals")
    latest = expected.pop("no_later_than_timeout_plus_intervals")
    check(expected, {})
    for timeout_ms in (1, interval_ms - 1, interval_ms, interval_ms + 1, 5 * interval_ms, 5 * interval_ms + 7):
        for last_record_ms in range(0, interval_ms, max(1, interval_ms // 20)):
            waited_ms = idle_at(timeout_ms, interval_ms) - last_record_ms
            assert timeout_ms + earliest * interval_ms <= waited_ms <= timeout_ms + latest * interval_ms


def idle_at(timeout_ms, interval_ms):
    """When a check finds idleness, after a record before the first check."""
    timer, now_ms, idle = with_record(IdlenessTimer(timeout_ms=timeout_ms)), 0, False
    while not idle:
        now_ms += interval_ms
        timer, idle = check_idle(timer, now_ms=now_ms)
    return now_ms


@dataclass
class WindowOperator:
    """Sums per key and window, made of the functions that decide lateness."""

    size_ms: int
    hop_ms: int
    lateness_ms: int
    purges: bool
    watermark_ms: int | None = None
    sums: dict = field(default_factory=dict)
    fired: list = field(default_factory=list)
    late: list = field(default_factory=list)

    def element(self, key, value, timestamp_ms):
        windows = hopping(timestamp_ms, size_ms=self.size_ms, hop_ms=self.hop_ms)
        kept = [window for window in windows if not self._is_over(window)]
        if not kept and is_late(timestamp_ms, self.watermark_ms, allowed_lateness_ms=self.lateness_ms):
            self.late.append(timestamp_ms)
        for window in kept:
            self.sums[window, key] = self.sums.get((window, key), 0) + value
            if is_window_late(window.end_ms, self.watermark_ms):
                self._fire(window, key)

    def advance(self, watermark_ms):
        before_ms, self.watermark_ms = self.watermark_ms, watermark_ms
        for window, key in sorted(self.sums):
            if is_window_late(window.end_ms, watermark_ms) and not is_window_late(window.end_ms, before_ms):
                self._fire(window, key)
        self.sums = {(window, key): total for (window, key), total in self.sums.items() if not self._is_over(window)}

    def _is_over(self, window):
        return is_window_late(window.end_ms, self.watermark_ms, allowed_lateness_ms=self.lateness_ms)

    def _fire(self, window, key):
        self.fired.append([key, self.sums[window, key], window.end_ms - 1])
        if self.purges:
            del self.sums[window, key]


def run_late_records(vector):
    only(vector, "window_ms", "slide_ms", "allowed_lateness_ms", "trigger", "ops")
    operator = WindowOperator(
        size_ms=vector["window_ms"],
        hop_ms=vector.get("slide_ms", vector["window_ms"]),
        lateness_ms=vector["allowed_lateness_ms"],
        purges=choose("trigger", vector["trigger"], TRIGGERS),
    )
    for op in vector["ops"]:
        match op["op"]:
            case "element":
                operator.element(op["key"], op["value"], op["ts"])
            case "watermark":
                operator.advance(op["ts"])
            case other:
                pytest.fail(f"unknown op {other!r}; known: element, watermark")
    check(vector["expected"], {"fired": operator.fired, "late": operator.late})


def run_alignment(vector):
    only(vector, "max_drift_ms", "groups", "reports")
    reported, source_of = {}, {}
    for report in vector["reports"]:
        source_of[str(report["subtask"])] = report["source"]
        reported[report["source"], report["subtask"]] = progress(report["watermark"])
        for subtask, expected_ms in report["expected_max_allowed"].items():
            group = vector["groups"][source_of[subtask]]
            members = [part for (source, _), part in reported.items() if vector["groups"][source] == group]
            allowed_ms = max_allowed_ms(members, max_drift_ms=vector["max_drift_ms"])
            assert (NO_LIMIT if allowed_ms is None else allowed_ms) == expected_ms


def run_aggregator(vector):
    only(vector, "updates", "expected_min")
    reported, lowest = {}, []
    for member, watermark_ms in vector["updates"]:
        reported[member] = progress(watermark_ms)
        lowest_ms = lowest_reported(reported.values())
        lowest.append(NO_LIMIT if lowest_ms is None else lowest_ms)
    assert lowest == vector["expected_min"]


def progress(watermark_ms):
    """Returns a source's progress; the highest number means idle."""
    if watermark_ms == NO_LIMIT:
        return Progress(activity=Activity.IDLE)
    return Progress(watermark_ms=None if watermark_ms == NONE_YET else watermark_ms)


def run_multiplexer(vector):
    only(vector, "outputs", "ops")
    state, deliveries = Multiplexer(), dict(vector["outputs"])
    for output in deliveries:
        state = mux.registered(state, output)
    for op in vector["ops"]:
        output = op.get("out")
        match op["op"]:
            case "emit":
                state = mux.advanced(state, output, op["ts"], delivery(op, deliveries))
            case "idle" | "active":
                state = mux.marked(state, output, ACTIVITIES[op["op"]], delivery(op, deliveries))
            case "register":
                deliveries[output] = op.get("mode", "immediate")
                state = mux.registered(state, output)
            case "unregister":
                state = mux.unregistered(state, output)
            case "periodic":
                state = mux.combined(state)
            case "expect":
                expected = {name: value for name, value in op.items() if name != "op"}
                check(expected, {"last_watermark": state.watermark_ms, "idle": state.idle})
            case other:
                pytest.fail(f"unknown op {other!r}; known: active, emit, expect, idle, periodic, register, unregister")


def delivery(op, deliveries):
    """Returns how the changes of an output are delivered.

    An output that is used in both ways says so with each op.
    """
    return choose("delivery", op.get("mode", deliveries[op["out"]]), {d.value: d for d in Delivery})


def run_valve(vector):
    only(vector, "channels", "ops")
    state = valve.opened(map(str, range(vector["channels"])))
    for at, op in enumerate(vector["ops"]):
        channel = str(op["channel"])
        if op["op"] == "watermark":
            state, news = valve.advanced(state, channel, op["ts"])
        else:
            state, news = valve.marked(state, channel, choose("op", op["op"], ACTIVITIES))
        emitted = [each.name if isinstance(each, Activity) else each for each in news]
        assert emitted == op["emits"], f"op {at}: {op}"


RUNNERS = {
    "flink_bounded_out_of_orderness.json": {None: run_bounded_out_of_orderness},
    "flink_idleness_timer.json": {
        "construct": run_idleness_construct,
        "ops": run_idleness_ops,
        "detection_bounds": run_idleness_bounds,
    },
    "flink_late_records.json": {None: run_late_records},
    "flink_watermark_alignment.json": {None: run_alignment, "aggregator": run_aggregator},
    "flink_watermark_multiplexer.json": {None: run_multiplexer},
    "flink_watermark_valve.json": {None: run_valve},
}
