"""The rules of `critical_path` and `what_if.slack_ms` as Spark expressions: all windows of a topology at once (ring 1).

A window is one row with the EWTs of its operators side by side, and the DAG is walked in the columns, level by level.
Only the rows of operator_windows are shuffled, once, by window. Lengths are ms, instants epoch ms.

A window is closed once every operator has finished it. Until then some latencies are known, but not which path is
critical: such a window has the state `no_window_yet` and no path, share or slack, and a later run of its interval
replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.semantics.critical_path import State, Upstreams, in_order, leaves

WINDOW = ("topology", "window_start", "window_end")
EXACT = (State.INPUT.value, State.MEASURED.value)


def critical_windows(operator_windows: DataFrame, upstreams: Upstreams) -> DataFrame:
    """One row per window: the columns of critical_paths, and `steps`, an array of those of critical_path_steps."""
    dag = _Dag(upstreams)
    measured = reduce(_Dag.with_level(dag.latest, dag.walked), dag.levels, dag.side_by_side(operator_windows))
    slack = reduce(_Dag.with_level(dag.slack), reversed(dag.levels), measured.withColumns(dag.chosen()))
    return slack.select(*WINDOW, *dag.path(), dag.steps().alias("steps"))


class _Dag:
    """The columns of a window: those of an operator end in its place among the names of all."""

    def __init__(self, upstreams: Upstreams) -> None:
        order = in_order(upstreams)
        self.names = sorted(order)
        self.place = {name: place for place, name in enumerate(self.names)}
        self.upstreams = {name: tuple(upstreams.get(name, ())) for name in order}
        self.leaves = leaves(upstreams)
        depth: dict[str, int] = {}
        for name in order:
            depth[name] = 1 + max((depth[upstream] for upstream in self.upstreams[name]), default=-1)
        self.levels = [[name for name in order if depth[name] == level] for level in range(1 + max(depth.values()))]

    @staticmethod
    def with_level(*columns: Callable[[str], dict[str, Column]]) -> Callable[[DataFrame, list[str]], DataFrame]:
        """A step of `reduce`: adds the *columns* of each operator of a level, those of one function after another's."""

        def step(windows: DataFrame, level: list[str]) -> DataFrame:
            for of in columns:
                windows = windows.withColumns({column: value for name in level for column, value in of(name).items()})
            return windows

        return step

    def column(self, what: str, name: str, field: str = "") -> Column:
        """The column *what* of the operator *name*, or a field of it."""
        return F.col(f"{what}_{self.place[name]}{field}")

    def named(self, name: str, **columns: Column) -> dict[str, Column]:
        """*columns* by the names they have for the operator *name*."""
        return {f"{what}_{self.place[name]}": value for what, value in columns.items()}

    def side_by_side(self, operator_windows: DataFrame) -> DataFrame:
        """One row per window with `ewt` and `queued` of each operator: of its first batch, should there be more."""
        measures = {"ewt": F.unix_millis("ewt_adjusted_at"), "queued": F.col("queued_ms")}
        columns = {
            column: F.min(F.when(F.col("operator") == name, value))
            for name in self.names
            for column, value in self.named(name, **measures).items()
        }
        return operator_windows.groupBy(*WINDOW).agg(*(value.alias(column) for column, value in columns.items()))

    def latest(self, name: str) -> dict[str, Column]:
        """`latest`: the upstream that finished last, the first by name of equals; null when none has finished."""
        finished = [
            F.when(
                self.column("ewt", upstream).isNotNull(),
                F.struct(
                    self.column("ewt", upstream).alias("ewt"),
                    F.lit(-self.place[upstream]).alias("minus_place"),
                    F.lit(upstream).alias("name"),
                    self.column("walk", upstream).alias("walk"),
                    self.column("sum", upstream).alias("sum"),
                ),
            )
            for upstream in self.upstreams[name]
        ]
        return self.named(name, latest=_greatest(finished)) if finished else {}

    def walked(self, name: str) -> dict[str, Column]:
        """`latency`, `state`, `walk` (places from its source along the latest upstreams) and `sum` (of latencies)."""
        ewt, here = self.column("ewt", name), F.array(F.lit(self.place[name]))
        if not self.upstreams[name]:
            latency = F.when(ewt.isNotNull(), F.lit(0).cast("bigint"))
            state = F.when(ewt.isNotNull(), State.INPUT.value).otherwise(State.NO_WINDOW_YET.value)
            return self.named(name, latency=latency, state=state, walk=here, sum=F.lit(0).cast("bigint"))
        own = ewt - self.column("latest", name, ".ewt")
        latency = F.when(own < 0, 0).otherwise(own)
        missing = reduce(or_, (self.column("ewt", upstream).isNull() for upstream in self.upstreams[name]))
        state = (
            F.when(ewt.isNull(), State.NO_WINDOW_YET.value)
            .when(own < 0, State.CLAMPED_NEGATIVE.value)
            .when(missing, State.UPSTREAM_MISSING.value)
            .otherwise(State.MEASURED.value)
        )
        walk = F.concat(F.coalesce(self.column("latest", name, ".walk"), F.array().cast("array<int>")), here)
        total = F.coalesce(self.column("latest", name, ".sum"), F.lit(0)) + F.coalesce(latency, F.lit(0))
        return self.named(name, latency=latency, state=state, walk=walk, sum=total)

    def chosen(self) -> dict[str, Column]:
        """`critical`: the walk to a leaf that sums highest, of equals to the first leaf; null while not closed."""
        walks = [
            F.struct(
                self.column("sum", leaf).alias("sum"),
                F.lit(-self.place[leaf]).alias("minus_place"),
                F.lit(leaf).alias("leaf"),
                self.column("walk", leaf).alias("walk"),
            )
            for leaf in self.leaves
        ]
        unfinished = reduce(or_, (self.column("ewt", name).isNull() for name in self.names))
        return {"critical": F.when(~unfinished, _greatest(walks))}

    def slack(self, name: str) -> dict[str, Column]:
        """`slack`: what a leaf lacks to the critical walk, or the least that a reader of *name* would have waited."""
        if name in self.leaves:
            return self.named(name, slack=F.col("critical.sum") - self.column("sum", name))
        waits = [
            self.column("latest", reader, ".ewt") - self.column("ewt", name) + self.column("slack", reader)
            for reader, read in self.upstreams.items()
            if name in read
        ]
        return self.named(name, slack=F.least(*waits) if len(waits) > 1 else waits[0])

    def path(self) -> list[Column]:
        """The columns of critical_paths that follow those of the window."""
        walk = F.col("critical.walk")

        def along(what: str) -> Column:
            all_of = F.array(*(self.column(what, name) for name in self.names))
            return F.transform(walk, lambda place: all_of[place])

        names, latencies, states = F.array(*map(F.lit, self.names)), along("latency"), along("state")
        inexact = F.filter(states, lambda state: ~state.isin(*EXACT))
        state = F.coalesce(F.get(inexact, F.lit(0)), F.lit(State.MEASURED.value))
        shown = F.transform(
            F.arrays_zip(walk.alias("p"), latencies.alias("l"), states.alias("s")),
            lambda z: _shown(names[z.p], z.l, z.s),
        )
        return [
            F.col("critical.sum").alias("latency_ms"),
            F.aggregate(along("queued"), F.lit(0).cast("bigint"), lambda sum_ms, ms: sum_ms + ms).alias("queued_ms"),
            (F.get(along("ewt"), F.lit(0)) - F.unix_millis("window_end")).alias("before_source_ms"),
            F.col("critical.leaf"),
            F.concat(
                F.array_join(shown, " → "), F.lit(" = "), F.col("critical.sum").cast("string"), F.lit(" ms")
            ).alias("path"),
            F.when(walk.isNull(), State.NO_WINDOW_YET.value).otherwise(state).alias("state"),
        ]

    def steps(self) -> Column:
        """The columns of critical_path_steps that follow those of the window: one struct per operator."""

        def step(name: str) -> Column:
            place = F.array_position(F.col("critical.walk"), self.place[name]).cast("int")
            latency, total = self.column("latency", name), F.col("critical.sum")
            slowest = self.column("latest", name, ".name") if self.upstreams[name] else F.lit(None)
            return F.struct(
                F.lit(name).alias("operator"),
                F.when(place > 0, place - 1).alias("step"),
                slowest.cast("string").alias("slowest_upstream"),
                latency.alias("latency_ms"),
                self.column("queued", name).alias("queued_ms"),
                F.when((place > 0) & (total > 0), latency / total).alias("share"),
                self.column("slack", name).alias("slack_ms"),
                self.column("state", name).alias("state"),
            )

        return F.array(*map(step, self.names))


def _greatest(structs: Iterable[Column]) -> Column:
    """The greatest by its fields, in their order; SQL's function wants more than one."""
    several = list(structs)
    return F.greatest(*several) if len(several) > 1 else several[0]


def _shown(name: Column, latency: Column, state: Column) -> Column:
    """The text of one step, as `str` of a ring 0 Path has it."""
    why = F.when(state.isin(*EXACT), "").otherwise(F.concat(F.lit(", "), state))
    return F.concat(name, F.lit(" ("), latency.cast("string"), F.lit(" ms"), why, F.lit(")"))
