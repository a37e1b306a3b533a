"""Runs Kafka's vectors; its timestamp −1, "unknown", is None."""

import math
from collections import deque

import polars as pl
from reference.change import Versioned, decide, is_unchanged
from reference.identity import canonical
from reference.latency import OnInvalid, e2e_latency_ms, mean_ms, times_of, usable_timestamp_ms
from reference.sampled import Sampled, measured, recorded
from reference.stream_time import StreamTime, next_partition, processed
from vectors.checks import check, choose, only
from vectors.differences import NOT_OFFERED

from tidemark.errors import InvalidTimestamp
from tidemark.kernels.updates.change import judge
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.operator import Level, latency_level
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.table import KeyedTable
from tidemark.semantics.buckets import bucket_of, quantile
from tidemark.semantics.change import Rule
from tidemark.semantics.latency import latency_at

RULES = {"strict": Rule.STRICTLY_NEWER, **{rule.value: rule for rule in Rule}}
POLICIES = {
    "FailOnInvalidTimestamp": OnInvalid.FAIL,
    "LogAndSkipOnInvalidTimestamp": OnInvalid.DROP,
    "UsePartitionTimeOnInvalidTimestamp": OnInvalid.USE_PARTITION_TIME,
}
UPDATES = {"key": pl.Binary(), "value": pl.Binary(), "timestamp_ms": pl.Int64()}


def run_running_stats(vector):
    only(vector, "events")
    nodes = {}
    for event in vector["events"]:
        latency_ms = e2e_latency_ms(event["record_ts"], finished_at_ms=event["now"])
        for node in event["reaches"]:
            nodes[node] = recorded(nodes.get(node, Sampled()), latency_ms, now_ms=event["now"])
        for node, expected in event["expected"].items():
            check(expected, reading(nodes[node], event["now"]))


def reading(sampled, now_ms):
    """Returns the value of a metric; NaN is null in a vector."""
    _, shown = measured(sampled, now_ms=now_ms)
    stats = {"avg": shown.avg_ms, "min": shown.min_ms, "max": shown.max_ms}
    values = {name: None if math.isnan(value) else value for name, value in stats.items()}
    return {**values, "count": shown.n, "live_samples": shown.live_samples}


def run_invalid_timestamp(vector):
    only(vector, "record_ts", "policy", "partition_time", "now")
    policy = choose("policy", vector["policy"].split()[0], POLICIES)
    partition_time_ms = vector.get("partition_time", -1)
    known_ms = None if partition_time_ms < 0 else partition_time_ms
    try:
        timestamp_ms = usable_timestamp_ms(vector["record_ts"], policy, partition_time_ms=known_ms)
    except InvalidTimestamp:
        check(vector["expected"], {"outcome": "raise"})
        return
    if timestamp_ms is None:
        check(vector["expected"], {"outcome": "drop", "queue_size": 0, "latency_samples": 0, "dropped_records": 1})
        return
    used = {"outcome": "use", "record_ts": timestamp_ms}
    if "now" in vector:
        used["latency"] = e2e_latency_ms(timestamp_ms, finished_at_ms=vector["now"])
    check(vector["expected"], used)


def run_single(vector):
    only(vector, "record_ts", "now")
    latency_ms = e2e_latency_ms(vector["record_ts"], finished_at_ms=vector["now"])
    check(vector["expected"], {"latency": latency_ms})


def run_registered_metrics(vector):
    """Checks for one of each statistic per operator at level `info`."""
    only(vector, "topology")
    counts = dict(vector["topology"])
    sources = [HopSource(name=f"source {n}", repartition="", upstream="") for n in range(counts.pop("source_nodes"))]
    terminals = [Sink(name=f"terminal {n}") for n in range(counts.pop("terminal_nodes"))]
    check(counts, {})
    between = [Map(name="between", select={}), KeyedTable(name="store", key=("id",))]
    levels = [latency_level(o, frozenset(t.name for t in terminals)) for o in (*sources, *between, *terminals)]
    written = levels.count(Level.INFO)
    check(vector["expected"], {f"record-e2e-latency-{stat}": written for stat in ("avg", "min", "max")})


def run_batch_end_clock(vector):
    only(vector, "record_ts", "batch_start_clock", "batch_end_clock")
    latency = latency_at(times_of(vector["record_ts"]), finished_at_ms=vector["batch_end_clock"])
    terminal = {"avg": mean_ms(latency), "min": latency.min_ms, "max": latency.max_ms}
    offered = {name: value for name, value in vector["expected"].items() if name not in NOT_OFFERED}
    check(offered, {"terminal": terminal})


def pins_nothing(vector):
    """Checks that our median, unlike the pinned one, is within 1 %."""
    only(vector, "range", "values")
    values = sorted(round(value) for value in vector["values"])
    ours = quantile([(bucket_of(value), 1) for value in values], 0.5)
    exact = values[(len(values) - 1) // 2]
    assert abs(ours - exact) <= 0.01 * abs(exact)
    low, high = vector["range"]
    if not low <= exact <= high:
        assert ours != vector["expected"]["p50"]


def version(pair):
    """A stored or incoming version; None where the vector has null."""
    if pair is None:
        return None
    value, timestamp_ms = pair
    return Versioned(None if value is None else canonical(value), timestamp_ms)


def sent_on(rule, store, updates):
    """Decides *updates* (key, value, timestamp) one by one.

    Returns those that are sent on, and the store after them.
    """
    versions = {key: version(pair) for key, pair in store.items()}
    pairs, emits = dict(store), []
    for key, *pair in updates:
        decided = decide(versions.get(key), [version(pair)], rule)
        versions[key] = decided.stored
        pairs[key] = pair if decided.emits[0] else pairs.get(key)
        emits += decided.emits
    assert emits == sent_on_at_once(rule, store, updates), "the set-based form differs from the sequential rule"
    return emits, {key: pair for key, pair in pairs.items() if pair is not None and pair[0] is not None}


def sent_on_at_once(rule, store, updates):
    """The same, by the kernel: in one batch, and cut in two."""
    rows = [(canonical(key), *vars(version(pair)).values()) for key, *pair in updates]
    stored = [(canonical(key), *vars(version(pair)).values()) for key, pair in store.items() if pair is not None]
    state, batch = (pl.DataFrame(part, schema=UPDATES, orient="row") for part in (stored, rows))
    first, second = batch[: len(rows) // 2], batch[len(rows) // 2 :]
    verdicts = judge(first, state, rule=rule)
    then = pl.concat([state, first.filter(verdicts["emit"])]).unique("key", keep="last")
    whole = judge(batch, state, rule=rule)["emit"].to_list()
    assert whole == [*verdicts["emit"], *judge(second, then, rule=rule)["emit"]]
    return whole


def outputs(rule, store, updates):
    emits, _ = sent_on(rule, store, updates)
    return [update for update, emit in zip(updates, emits, strict=True) if emit]


def run_pair(vector):
    only(vector, "rule", "old", "new")
    rule = choose("rule", vector["rule"], RULES)
    incoming = version(vector["new"] or [None, 0])
    check(vector["expected"], {"skip": is_unchanged(version(vector["old"]), incoming, rule)})


def run_stream(vector):
    only(vector, "rule", "inputs")
    emits, store = sent_on(choose("rule", vector["rule"], RULES), {}, vector["inputs"])
    sent = [update for update, emit in zip(vector["inputs"], emits, strict=True) if emit]
    skipped = emits.count(False)
    check(vector["expected"], {"outputs": sent, "idempotent_update_skip_total": skipped, "final_store": store})


def run_crash_replay(vector):
    only(vector, "rule", "store_before_replay", "replay", "expected_if_state_and_output_commit_atomically")
    rule = choose("rule", vector["rule"], RULES)
    check(vector["expected"], {"outputs": outputs(rule, vector["store_before_replay"], vector["replay"])})
    if "expected_if_state_and_output_commit_atomically" in vector:
        atomic = dict(vector["expected_if_state_and_output_commit_atomically"])
        check(atomic, {"outputs": outputs(rule, atomic.pop("store_before_replay"), vector["replay"])})


def sends_on_what_kafka_2_6_lost(vector):
    """Compares the strict rule with the old one.

    It sends all that the old one sent, and every repetition at an equal timestamp.
    """
    only(vector, "rule", "store_before_replay", "replay")
    ours = outputs(Rule.STRICTLY_NEWER, vector["store_before_replay"], vector["replay"])
    theirs = vector["expected"]["outputs"]
    assert all(update in ours for update in theirs)
    lost = [
        [key, value, at] for key, value, at in vector["replay"] if vector["store_before_replay"].get(key) == [value, at]
    ]
    assert all(update in ours for update in lost)


def run_one_key(vector):
    only(vector, "rule", "state", "rows_in_offset_order")
    rule = choose("rule", vector.get("rule", "strict"), RULES)
    updates = [["key", *row] for row in vector["rows_in_offset_order"]]
    store = {} if vector["state"] is None else {"key": vector["state"]}
    emits, after = sent_on(rule, store, updates)
    check(vector["expected"], {"emit": emits, "final_state": after.get("key")})


def run_metric_window(vector):
    only(vector, "time_window", "samples", "records", "measure_at")
    sampled = Sampled(window_ms=vector["time_window"], samples=vector["samples"])
    for now_ms, value in vector["records"]:
        sampled = recorded(sampled, value, now_ms=now_ms)
    check(vector["expected"], reading(sampled, vector["measure_at"]))


def run_record_lateness(vector):
    only(vector, "appended")
    state, queues, shown = StreamTime(), {}, {"order": [], "stream_time": [], "lateness": []}
    for appended in vector["appended"]:
        for partition, timestamps in appended.items():
            if partition != "then_process":
                queues.setdefault(partition, deque()).extend(timestamps)
                shown.setdefault(f"{partition}_partition_time", [])
        for _ in range(appended["then_process"]):
            partition = next_partition({name: queue[0] for name, queue in queues.items() if queue})
            timestamp_ms = queues[partition].popleft()
            state, lateness_ms = processed(state, partition, timestamp_ms)
            shown["order"].append([partition, timestamp_ms])
            shown["stream_time"].append(state.stream_time_ms)
            shown["lateness"].append(lateness_ms)
            for name in queues:
                shown[f"{name}_partition_time"].append(state.partition_times_ms.get(name, -1))
    check(vector["expected"], shown)


RUNNERS = {
    "kafka_e2e_latency.json": {
        "running_stats": run_running_stats,
        "invalid_timestamp": run_invalid_timestamp,
        "single": run_single,
        "registered_metrics": run_registered_metrics,
        "batch_end_clock": run_batch_end_clock,
        "percentile_pinning": pins_nothing,
    },
    "kafka_emit_on_change.json": {
        "pair": run_pair,
        "stream": run_stream,
        "crash_replay": run_crash_replay,
        "as_shipped_2_6": sends_on_what_kafka_2_6_lost,
    },
    "kafka_emit_on_change_random.json": {None: run_one_key},
    "kafka_metric_windows.json": {None: run_metric_window},
    "kafka_record_lateness.json": {None: run_record_lateness},
}
