"""Runs Spark's vectors with a windowed count.

It consists of the functions that decide Spark's watermark.
"""

from dataclasses import dataclass, field

from reference.spark_watermark import Policy, SparkWatermark, after_batch, is_passed, restarted
from reference.windows import tumbling
from vectors.checks import check, choose, only

POLICIES = {policy.value: policy for policy in Policy}


@dataclass
class Query:
    """A count per tumbling window in one of Spark's output modes.

    Batches without data are included unless they are off.
    """

    state: SparkWatermark
    size_ms: int
    mode: str
    no_data_batches: bool = True
    late_up_to_ms: int = 0
    late_rows: int = 0
    counts: dict = field(default_factory=dict)

    def batch(self, seconds):
        """Returns the rows for one batch of event times.

        They include the batch without data that may follow.
        """
        written = self._batch([1000 * second for second in seconds])
        while self.no_data_batches and self.mode != "complete" and self.state.watermark_ms > self.late_up_to_ms:
            written += self._batch([])
        return sorted([window.start_ms // 1000, count] for window, count in written)

    def _batch(self, timestamps_ms):
        watermark_ms, touched = self.state.watermark_ms, set()
        for timestamp_ms in timestamps_ms:
            window = tumbling(timestamp_ms, size_ms=self.size_ms)
            if self.mode != "complete" and is_passed(window.end_ms, self.late_up_to_ms):
                self.late_rows += 1
            else:
                self.counts[window] = self.counts.get(window, 0) + 1
                touched.add(window)
        closed = {w for w in self.counts if self.mode != "complete" and is_passed(w.end_ms, watermark_ms)}
        shown = {"append": closed, "update": touched, "complete": set(self.counts)}[self.mode]
        written = [(window, self.counts[window]) for window in shown]
        self.counts = {window: count for window, count in self.counts.items() if window not in closed}
        self.late_up_to_ms = watermark_ms
        self.state = after_batch(self.state, {"events": max(timestamps_ms)} if timestamps_ms else {})
        return written


def run_windows(mode, **settings):
    def run(vector):
        only(vector, "delay_s", "window_s", "batches")
        watermark = SparkWatermark(delays_ms={"events": 1000 * vector["delay_s"]})
        query = Query(watermark, 1000 * vector["window_s"], mode, **settings)
        outputs, rows = [], {}
        for at, seconds in enumerate(vector["batches"]):
            outputs.append(query.batch(seconds))
            rows[str(at)] = len(query.counts)
        expected = dict(vector["expected"])
        wanted = expected.pop("state_rows_after_index", {})
        assert {at: rows[at] for at in wanted} == wanted
        check(expected, {"outputs": outputs})
        check(vector.get("derived", {}), {"late_input_rows": query.late_rows})

    return run


def run_stats(vector):
    only(vector, "delay_s", "batches")
    state = SparkWatermark(delays_ms={"events": 1000 * vector["delay_s"]})
    for seconds, expected in zip(vector["batches"], vector["expected"], strict=True):
        stats = {"min": min(seconds), "max": max(seconds), "avg": sum(seconds) / len(seconds)}
        check(expected, {**stats, "watermark": state.watermark_ms / 1000})
        state = after_batch(state, {"events": 1000 * max(seconds)})


def run_nodes(vector):
    """Runs two or more `withWatermark` nodes.

    In a query of the kind `two_streams_min` each step brings `first` a 0.
    """
    only(vector, "policy", "delay_s", "steps")
    policy = choose("policy", vector.get("policy", "min"), POLICIES)
    delays_ms = {node: 1000 * seconds for node, seconds in vector["delay_s"].items()}
    state = SparkWatermark(delays_ms=delays_ms, policy=policy)
    dummy = {"first": [0]} if vector["kind"] == "two_streams_min" else {}
    for step in vector["steps"]:
        events = {node: step[node] + dummy.get(node, []) for node in delays_ms if node in step}
        if step.get("restart"):
            state = restarted(state)
        else:
            state = after_batch(state, {node: 1000 * max(times) for node, times in {**dummy, **events}.items()})
        rest = {name: value for name, value in step.items() if name not in {*delays_ms, "restart"}}
        check(rest, {"global_ms": state.watermark_ms, "global_s": state.watermark_ms / 1000})


RUNNERS = {
    "spark_watermark.json": {
        "stats": run_stats,
        "window_append": run_windows("append"),
        "window_append_no_data_batches_off": run_windows("append", no_data_batches=False),
        "window_update": run_windows("update"),
        "window_complete": run_windows("complete"),
        "two_streams_min": run_nodes,
        "policy": run_nodes,
    },
}
