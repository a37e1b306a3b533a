"""The rules of `critical_path` and `what_if.slack_ms` as Spark expressions: all windows of a topology at once (ring 1).

A window is one row with what its operators did side by side, and the DAG is walked in the columns, level by level.
Only the rows of operator_windows are shuffled: by window, and once more for the moving averages. Lengths are ms,
instants epoch ms.

A window is closed once every operator has finished it. Until then some latencies are known, but not which path is
critical: such a window has the state `no_window_yet` and no path, share or slack, and a later run of its interval
replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.report.promises import Promises
from tidemark.semantics.critical_path import State, in_order, leaves
from tidemark.semantics.stram import LATENCY_SAMPLES
from tidemark.spec.topology import Topology

WINDOW = ("topology", "window_start", "window_end")
EXACT = (State.INPUT.value, State.MEASURED.value)


def looks_back_ms(topology: Topology) -> int:
    """How long before a window others end that its moving averages are taken over."""
    return (LATENCY_SAMPLES - 1) * topology.window_ms


def critical_windows(operator_windows: DataFrame, topology: Topology, promises: Promises) -> DataFrame:
    """One row per window: the columns of critical_paths, and arrays of those of its steps and its leaves.

    These are `steps`, one per operator, and `leaves`, null where the window is not closed.
    """
    dag = _Dag(topology, promises)
    averaged = dag.side_by_side(operator_windows).withColumns(dag.averages())
    measured = reduce(_Dag.with_level(dag.latest, dag.walked, dag.spent), dag.levels, averaged)
    slack = reduce(_Dag.with_level(dag.slack), reversed(dag.levels), measured.withColumns(dag.chosen()))
    return slack.select(*WINDOW, *dag.path(), dag.steps().alias("steps"), dag.walks().alias("leaves"))


class _Dag:
    """The columns of a window: those of an operator end in its place among the names of all."""

    def __init__(self, topology: Topology, promises: Promises) -> None:
        order = in_order(topology.upstreams)
        self.names = sorted(order)
        self.place = {name: place for place, name in enumerate(self.names)}
        self.upstreams = {name: tuple(topology.upstreams.get(name, ())) for name in order}
        self.leaves = leaves(topology.upstreams)
        self.runs_in = {o.name: (sub.name, o.kind.value) for sub in topology.sub_topologies for o in sub.operators}
        self.promises, self.window_ms = promises, topology.window_ms
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
        """One row per window with what each operator did in its first batch that closed it, should there be more.

        Per operator `ewt`, `began` (of its batch), `queued`, `error` and `clock`; null when it has not finished.
        """
        skew_ms = F.coalesce("skew_ms", F.lit(0))
        did = F.struct(
            F.unix_millis("ewt_adjusted_at").alias("ewt"),
            (F.unix_millis("batch_started_at") + skew_ms).alias("began"),
            F.col("queued_ms").alias("queued"),
            F.col("skew_error_ms").alias("error"),
            F.struct("host", "skew_ms").alias("clock"),
        )
        first = [F.min(F.when(F.col("operator") == name, did)).alias(f"did_{self.place[name]}") for name in self.names]
        windows = operator_windows.groupBy(*WINDOW).agg(*first)
        fields = ("ewt", "began", "queued", "error", "clock")
        return windows.select(
            *WINDOW,
            *(
                self.column("did", name, f".{f}").alias(f"{f}_{self.place[name]}")
                for name in self.names
                for f in fields
            ),
        )

    def averages(self) -> dict[str, Column]:
        """`average`: of an operator's latencies in the windows up to this one, as Apex has it; 0 where there are none.

        Apex's windows come one after another: those without records, which have no row here, are counted among them.
        """
        ends_ms = F.unix_millis("window_end")
        frame = Window.partitionBy("topology").orderBy(ends_ms).rangeBetween(-(LATENCY_SAMPLES - 1) * self.window_ms, 0)
        averages: dict[str, Column] = {}
        for name, read in self.upstreams.items():
            average = F.lit(0)
            if read:
                own = self.column("ewt", name) - _greatest(self.column("ewt", upstream) for upstream in read)
                # A mean of at most ten whole numbers that is not whole is further than rounding from the next one.
                mean = F.floor(F.avg(F.when(own < 0, 0).otherwise(own)).over(frame))
                average = F.coalesce(mean, F.lit(0))
            averages |= self.named(name, average=average.cast("bigint"))
        return averages

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
                    self.column("average_sum", upstream).alias("average_sum"),
                ),
            )
            for upstream in self.upstreams[name]
        ]
        return self.named(name, latest=_greatest(finished)) if finished else {}

    def walked(self, name: str) -> dict[str, Column]:
        """`latency`, `state`, `walk` (places from its source along the latest upstreams), `sum` and `average_sum`."""
        ewt, here = self.column("ewt", name), F.array(F.lit(self.place[name]))
        if not self.upstreams[name]:
            latency = F.when(ewt.isNotNull(), F.lit(0).cast("bigint"))
            state = F.when(ewt.isNotNull(), State.INPUT.value).otherwise(State.NO_WINDOW_YET.value)
            nothing = F.lit(0).cast("bigint")
            return self.named(name, latency=latency, state=state, walk=here, sum=nothing, average_sum=nothing)
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
        sums = {
            total: F.coalesce(self.column("latest", name, f".{total}"), F.lit(0)) + F.coalesce(value, F.lit(0))
            for total, value in (("sum", latency), ("average_sum", self.column("average", name)))
        }
        return self.named(name, latency=latency, state=state, walk=walk, **sums)

    def spent(self, name: str) -> dict[str, Column]:
        """`waited`, `queue` and `worked`: `critical_path.parts`; null where there is no latency, or no such instant."""
        latency, began, zero = self.column("latency", name), self.column("began", name), F.lit(0).cast("bigint")
        before_batch = began - self.column("latest", name, ".ewt") if self.upstreams[name] else zero
        waited = F.when(
            latency.isNotNull() & before_batch.isNotNull(), F.least(F.greatest(before_batch, zero), latency)
        )
        rest = latency - F.coalesce(waited, zero)
        queue = F.when(rest.isNotNull(), F.least(self.column("queued", name), rest))
        return self.named(name, waited=waited, queue=queue, worked=latency - waited - queue)

    def chosen(self) -> dict[str, Column]:
        """`critical`: the walk to a leaf that sums highest, of equals to the first leaf; null while not closed.

        `averaged`: the same by the sums of moving averages.
        """
        unfinished = reduce(or_, (self.column("ewt", name).isNull() for name in self.names))
        return {
            walk: F.when(~unfinished, _greatest(self._walk(leaf, total) for leaf in self.leaves))
            for walk, total in (("critical", "sum"), ("averaged", "average_sum"))
        }

    def _walk(self, leaf: str, total: str) -> Column:
        return F.struct(
            self.column(total, leaf).alias("sum"),
            F.lit(-self.place[leaf]).alias("minus_place"),
            F.lit(leaf).alias("leaf"),
            self.column("walk", leaf).alias("walk"),
        )

    def slack(self, name: str) -> dict[str, Column]:
        """`slack`: what a leaf lacks to the critical walk, or the least that a reader of *name* would have waited."""
        if name in self.leaves:
            return self.named(name, slack=F.col("critical.sum") - self.column("sum", name))
        waits = [
            self.column("latest", reader, ".ewt") - self.column("ewt", name) + self.column("slack", reader)
            for reader, read in self.upstreams.items()
            if name in read
        ]
        return self.named(name, slack=_least(waits))

    def along(self, what: str, walk: Column) -> Column:
        """The columns *what* of the operators of *walk*, in its order."""
        return _picked(walk, [self.column(what, name) for name in self.names])

    def before_source(self, walk: Column) -> Column:
        """The age of a window when the source of *walk* had finished it: its EWT less the window's end."""
        return F.get(self.along("ewt", walk), F.lit(0)) - F.unix_millis("window_end")

    def path(self) -> list[Column]:
        """The columns of critical_paths that follow those of the window."""
        walk, total, averaged = F.col("critical.walk"), F.col("critical.sum"), F.col("averaged.walk")
        states = self.along("state", walk)
        inexact = F.filter(states, lambda state: ~state.isin(*EXACT))
        state = F.coalesce(F.get(inexact, F.lit(0)), F.lit(State.MEASURED.value))
        sla_ms = _of(F.col("critical.leaf"), self.promises.end_to_end_ms)
        measured = F.transform(averaged, lambda place: F.lit(State.MEASURED.value))
        return [
            total.alias("latency_ms"),
            _sum(self.along("queue", walk)).alias("queued_ms"),
            self.before_source(walk).alias("before_source_ms"),
            F.col("critical.leaf"),
            self._text(walk, self.along("latency", walk), states, total).alias("path"),
            F.when(walk.isNull(), State.NO_WINDOW_YET.value).otherwise(state).alias("state"),
            _sum(self.along("waited", walk)).alias("waited_ms"),
            sla_ms.alias("sla_ms"),
            self.over_sla(walk, self.before_source(walk) + total > sla_ms).alias("over_sla"),
            self.skew_error(walk).alias("skew_error_ms"),
            F.col("averaged.sum").alias("moving_average_ms"),
            self._text(averaged, self.along("average", averaged), measured, F.col("averaged.sum")).alias(
                "moving_average_path"
            ),
        ]

    def _text(self, walk: Column, latencies: Column, states: Column, total: Column) -> Column:
        """*walk* as `str` of a ring 0 Path has it."""
        names = F.array(*map(F.lit, self.names))
        shown = F.transform(
            F.arrays_zip(walk.alias("p"), latencies.alias("l"), states.alias("s")),
            lambda z: _shown(names[z.p], z.l, z.s),
        )
        return F.concat(F.array_join(shown, " → "), F.lit(" = "), total.cast("string"), F.lit(" ms"))

    def over_sla(self, walk: Column, leaf_is_over: Column) -> Column:
        """Whether the leaf's promise was exceeded or one of an operator; null when no operator of *walk* has any."""
        promised_ms = [F.lit(self.promises.work_ms.get(name)).cast("bigint") for name in self.names]
        exceeded = [self.column("worked", name) > ms for name, ms in zip(self.names, promised_ms, strict=True)]
        is_over = F.array_append(_picked(walk, exceeded), leaf_is_over)
        return F.when(F.exists(is_over, lambda over: over), F.lit(True)).when(  # noqa: FBT003 - a column of it
            F.exists(is_over, lambda over: over.isNotNull()),
            F.lit(False),  # noqa: FBT003
        )

    def skew_error(self, walk: Column) -> Column:
        """The largest error of the clocks of *walk*: 0 where all is told by one clock, null where one is not known."""
        clocks, errors = F.array_distinct(self.along("clock", walk)), self.along("error", walk)
        one_clock = (F.size(clocks) == 1) & F.get(clocks, F.lit(0)).getField("host").isNotNull()
        known = F.forall(errors, lambda error: error.isNotNull())
        return F.when(one_clock, F.lit(0).cast("bigint")).when(known, F.array_max(errors))

    def steps(self) -> Column:
        """The columns of critical_path_steps that follow those of the window: one struct per operator."""

        def step(name: str) -> Column:
            place = F.array_position(F.col("critical.walk"), self.place[name]).cast("int")
            latency, total = self.column("latency", name), F.col("critical.sum")
            slowest = self.column("latest", name, ".name") if self.upstreams[name] else F.lit(None)
            sub_topology, kind = self.runs_in[name]
            return F.struct(
                F.lit(name).alias("operator"),
                F.when(place > 0, place - 1).alias("step"),
                slowest.cast("string").alias("slowest_upstream"),
                latency.alias("latency_ms"),
                self.column("queue", name).alias("queued_ms"),
                F.when((place > 0) & (total > 0), latency / total).alias("share"),
                self.column("slack", name).alias("slack_ms"),
                self.column("state", name).alias("state"),
                F.lit(sub_topology).alias("sub_topology"),
                F.lit(kind).alias("kind"),
                self.column("waited", name).alias("waited_ms"),
                self.column("worked", name).alias("worked_ms"),
                F.lit(self.promises.work_ms.get(name)).cast("bigint").alias("promised_ms"),
            )

        return F.array(*map(step, self.names))

    def walks(self) -> Column:
        """The columns of critical_path_leaves that follow those of the window: one struct per leaf."""
        names = [F.lit(name) for name in self.names]

        def ended(leaf: str) -> Column:
            walk, total = self.column("walk", leaf), self.column("sum", leaf)
            return F.struct(
                F.lit(leaf).alias("leaf"),
                F.get(_picked(walk, names), F.lit(0)).alias("source"),
                total.alias("latency_ms"),
                self.before_source(walk).alias("before_source_ms"),
                (F.col("critical.sum") - total).alias("behind_ms"),
            )

        return F.when(F.col("critical").isNotNull(), F.array(*map(ended, self.leaves)))


def _picked(places: Column, values: list[Column]) -> Column:
    """Of *values* those at *places*, in the order of these."""
    all_of = F.array(*values)
    return F.transform(places, lambda place: all_of[place])


def _sum(values: Column) -> Column:
    """The sum of an array; null when one of them is."""
    return F.aggregate(values, F.lit(0).cast("bigint"), lambda total, value: total + value)


def _of(name: Column, values: Mapping[str, int]) -> Column:
    """The one of *values* that belongs to *name*; null when none does."""
    found = F.lit(None).cast("bigint")
    for whose, value in values.items():
        found = F.when(name == whose, F.lit(value)).otherwise(found)
    return found


def _greatest(values: Iterable[Column]) -> Column:
    """The greatest of *values*, of structs by their fields in order; SQL's function wants more than one."""
    several = list(values)
    return F.greatest(*several) if len(several) > 1 else several[0]


def _least(values: Iterable[Column]) -> Column:
    """The least of *values*."""
    several = list(values)
    return F.least(*several) if len(several) > 1 else several[0]


def _shown(name: Column, latency: Column, state: Column) -> Column:
    """The text of one step, as `str` of a ring 0 Path has it."""
    why = F.when(state.isin(*EXACT), "").otherwise(F.concat(F.lit(", "), state))
    return F.concat(name, F.lit(" ("), latency.cast("string"), F.lit(" ms"), why, F.lit(")"))
