"""The critical paths of all windows of a topology at once, as Spark expressions (ring 1).

A window is one row with what its operators did side by side. Rows are shuffled by window, for the moving averages, and
once more to share out the rest. Lengths are ms, instants epoch ms.

A window is closed once every operator has finished it. Until then some latencies are known, but not which path is
critical: such a window has the state `no_window_yet` and no path, share or slack, and a later run of its interval
replaces it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.report.dag_columns import WINDOW, Dag, of, picked
from tidemark.report.promises import Promises
from tidemark.semantics.critical_path import State
from tidemark.semantics.stram import LATENCY_SAMPLES
from tidemark.spec.topology import Topology

PARTS = 16
"""The averages need all windows in one place; from there on they are shared out: a part has to fit into the heap."""
EXACT = (State.INPUT.value, State.MEASURED.value)


def looks_back_ms(topology: Topology) -> int:
    """How long before a window others end that its moving averages are taken over."""
    return (LATENCY_SAMPLES - 1) * topology.window_ms


def critical_windows(operator_windows: DataFrame, topology: Topology, promises: Promises) -> DataFrame:
    """One row per window: the columns of critical_paths, and arrays of those of its steps and its leaves.

    These are `steps`, one per operator, and `leaves`, null where the window is not closed.
    """
    dag = Dag(topology)
    finished = dag.side_by_side(operator_windows).withColumns(dag.latest())
    averaged = finished.withColumns({**dag.averages(), **dag.measured()}).repartition(PARTS, *WINDOW)
    chosen = dag.walks_to_joins(averaged.withColumns(dag.spent())).withColumns(dag.chosen())
    steps, walks = _steps(dag, topology, promises), _walks(dag)
    return dag.slack_of_joins(chosen).select(
        *WINDOW, *_path(dag, promises), steps.alias("steps"), walks.alias("leaves")
    )


def _path(dag: Dag, promises: Promises) -> list[Column]:
    """The columns of critical_paths that follow those of the window."""
    walk, total, averaged = F.col("critical.walk"), F.col("critical.sum"), F.col("averaged.walk")
    states = dag.along("state", walk)
    inexact = F.filter(states, lambda state: ~state.isin(*EXACT))
    state = F.coalesce(F.get(inexact, F.lit(0)), F.lit(State.MEASURED.value))
    sla_ms = of(F.col("critical.leaf"), promises.end_to_end_ms)
    measured = F.transform(averaged, lambda place: F.lit(State.MEASURED.value))
    return [
        total.alias("latency_ms"),
        _sum(dag.along("queue", walk)).alias("queued_ms"),
        dag.before_source(walk).alias("before_source_ms"),
        F.col("critical.leaf"),
        _text(dag, walk, dag.along("latency", walk), states, total).alias("path"),
        F.when(walk.isNull(), State.NO_WINDOW_YET.value).otherwise(state).alias("state"),
        _sum(dag.along("waited", walk)).alias("waited_ms"),
        sla_ms.alias("sla_ms"),
        _over_sla(dag, promises, walk, dag.before_source(walk) + total > sla_ms).alias("over_sla"),
        _skew_error(dag, walk).alias("skew_error_ms"),
        F.col("averaged.sum").alias("moving_average_ms"),
        _text(dag, averaged, dag.along("average", averaged), measured, F.col("averaged.sum")).alias(
            "moving_average_path"
        ),
    ]


def _text(dag: Dag, walk: Column, latencies: Column, states: Column, total: Column) -> Column:
    """*walk* as `str` of a ring 0 Path has it."""
    names = F.array(*map(F.lit, dag.names))
    shown = F.transform(
        F.arrays_zip(walk.alias("p"), latencies.alias("l"), states.alias("s")),
        lambda z: _shown(names[z.p], z.l, z.s),
    )
    return F.concat(F.array_join(shown, " → "), F.lit(" = "), total.cast("string"), F.lit(" ms"))


def _over_sla(dag: Dag, promises: Promises, walk: Column, leaf_is_over: Column) -> Column:
    """Whether the leaf's promise was exceeded or one of an operator; null when no operator of *walk* has any."""
    promised_ms = [F.lit(promises.work_ms.get(name)).cast("bigint") for name in dag.names]
    exceeded = [dag.column("worked", name) > ms for name, ms in zip(dag.names, promised_ms, strict=True)]
    # The greatest of truth values: true where one is, null where all are.
    return F.array_max(F.array_append(picked(walk, exceeded), leaf_is_over))


def _skew_error(dag: Dag, walk: Column) -> Column:
    """The largest error of the clocks of *walk*: 0 where all is told by one clock, null where one is not known."""
    clocks, errors = F.array_distinct(dag.along("did", walk, ".clock")), dag.along("did", walk, ".error")
    one_clock = (F.size(clocks) == 1) & F.get(clocks, F.lit(0)).getField("host").isNotNull()
    known = F.forall(errors, lambda error: error.isNotNull())
    return F.when(one_clock, F.lit(0).cast("bigint")).when(known, F.array_max(errors))


def _steps(dag: Dag, topology: Topology, promises: Promises) -> Column:
    """The columns of critical_path_steps that follow those of the window: one struct per operator."""
    runs_in = {o.name: (sub.name, o.kind.value) for sub in topology.sub_topologies for o in sub.operators}

    def step(name: str) -> Column:
        place = F.array_position(F.col("critical.walk"), dag.place[name]).cast("int")
        latency, total = dag.column("latency", name), F.col("critical.sum")
        sub_topology, kind = runs_in[name]
        return F.struct(
            F.lit(name).alias("operator"),
            F.when(place > 0, place - 1).alias("step"),
            dag.slowest_upstream(name).alias("slowest_upstream"),
            latency.alias("latency_ms"),
            dag.column("queue", name).alias("queued_ms"),
            F.when((place > 0) & (total > 0), latency / total).alias("share"),
            dag.slack(name).alias("slack_ms"),
            dag.column("state", name).alias("state"),
            F.lit(sub_topology).alias("sub_topology"),
            F.lit(kind).alias("kind"),
            dag.column("waited", name).alias("waited_ms"),
            dag.column("worked", name).alias("worked_ms"),
            F.lit(promises.work_ms.get(name)).cast("bigint").alias("promised_ms"),
        )

    return F.array(*map(step, dag.names))


def _walks(dag: Dag) -> Column:
    """The columns of critical_path_leaves that follow those of the window: one struct per leaf."""
    names = [F.lit(name) for name in dag.names]

    def ended(leaf: str) -> Column:
        walk, total = dag.walk(leaf), dag.total(leaf, "latency")
        return F.struct(
            F.lit(leaf).alias("leaf"),
            F.get(picked(walk, names), F.lit(0)).alias("source"),
            total.alias("latency_ms"),
            dag.before_source(walk).alias("before_source_ms"),
            (F.col("critical.sum") - total).alias("behind_ms"),
        )

    return F.when(F.col("critical").isNotNull(), F.array(*map(ended, dag.leaves)))


def _sum(values: Column) -> Column:
    """The sum of an array; null when one of them is."""
    return F.aggregate(values, F.lit(0).cast("bigint"), lambda total, value: total + value)


def _shown(name: Column, latency: Column, state: Column) -> Column:
    """The text of one step, as `str` of a ring 0 Path has it."""
    why = F.when(state.isin(*EXACT), "").otherwise(F.concat(F.lit(", "), state))
    return F.concat(name, F.lit(" ("), latency.cast("string"), F.lit(" ms"), why, F.lit(")"))
