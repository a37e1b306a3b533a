"""The walk along a topology's DAG in the columns of a Spark frame, of which a row is a window (ring 1).

The rules are those of `semantics.critical_path`, `stram` and `what_if`. Lengths are ms, instants epoch ms. Only
an operator that reads several needs columns of its own for the walk up to it: elsewhere it is known from the topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.semantics.critical_path import State, in_order, leaves
from tidemark.semantics.stram import LATENCY_SAMPLES
from tidemark.spec.topology import Topology

WINDOW = ("topology", "window_start", "window_end")
TOTALS = ("latency", "average")
"""What is summed along a walk."""


class Dag:
    """The columns of a window: those of an operator end in its place among `names`, the names of all.

    `joins` are the operators that read several, each after those that it comes after.
    """

    def __init__(self, topology: Topology) -> None:
        order = in_order(topology.upstreams)
        self.names = sorted(order)
        self.place = {name: place for place, name in enumerate(self.names)}
        self.upstreams = {name: tuple(topology.upstreams.get(name, ())) for name in order}
        self.leaves = leaves(topology.upstreams)
        self.joins = [name for name in order if len(self.upstreams[name]) > 1]
        self._window_ms = topology.window_ms

    def column(self, what: str, name: str, field: str = "") -> Column:
        """The column *what* of the operator *name*, or a field of it."""
        return F.col(f"{what}_{self.place[name]}{field}")

    def named(self, name: str, **columns: Column) -> dict[str, Column]:
        """*columns* by the names they have for the operator *name*."""
        return {f"{what}_{self.place[name]}": value for what, value in columns.items()}

    def side_by_side(self, operator_windows: DataFrame) -> DataFrame:
        """One row per window with `did` of each operator: its first batch that closed it, should there be more.

        That is a struct of `ewt`, `began` (of the batch), `queued`, `error` and `clock`; null when it has not finished.
        """
        did = F.struct(
            F.unix_millis("ewt_adjusted_at").alias("ewt"),
            (F.unix_millis("batch_started_at") + F.coalesce("skew_ms", F.lit(0))).alias("began"),
            F.col("queued_ms").alias("queued"),
            F.col("skew_error_ms").alias("error"),
            F.struct("host", "skew_ms").alias("clock"),
        )
        first = (self.named(name, did=F.min(F.when(F.col("operator") == name, did))) for name in self.names)
        columns = [value.alias(column) for of in first for column, value in of.items()]
        return operator_windows.groupBy(*WINDOW).agg(*columns)

    def latest(self) -> dict[str, Column]:
        """`latest` of each join: the upstream that finished last, the first by name of equals; null when none has."""
        return reduce(or_, map(self._latest, self.joins), {})

    def _latest(self, join: str) -> dict[str, Column]:
        finished = [
            F.when(
                self.ewt(name).isNotNull(),
                F.struct(
                    self.ewt(name).alias("ewt"),
                    F.lit(-self.place[name]).alias("minus_place"),
                    F.lit(name).alias("name"),
                ),
            )
            for name in self.upstreams[join]
        ]
        return self.named(join, latest=F.greatest(*finished))

    def ewt(self, name: str) -> Column:
        """When *name* had finished the window; null when it has not."""
        return self.column("did", name, ".ewt")

    def latest_ewt(self, name: str) -> Column:
        """When the last upstream of *name* had finished; null when none has, or there is none."""
        match self.upstreams[name]:
            case ():
                return F.lit(None).cast("bigint")
            case (only,):
                return self.ewt(only)
        return self.column("latest", name, ".ewt")

    def slowest_upstream(self, name: str) -> Column:
        """The name of that upstream."""
        match self.upstreams[name]:
            case ():
                return F.lit(None).cast("string")
            case (only,):
                return F.when(self.ewt(only).isNotNull(), only)
        return self.column("latest", name, ".name")

    def averages(self) -> dict[str, Column]:
        """`average`: of an operator's latencies in the windows up to this one, as Apex has it; 0 where there are none.

        Apex's windows come one after another: those without records, which have no row here, are counted among them.
        """
        by_end = Window.partitionBy("topology").orderBy(F.unix_millis("window_end"))
        frame = by_end.rangeBetween(-(LATENCY_SAMPLES - 1) * self._window_ms, 0)
        averages: dict[str, Column] = {}
        for name, read in self.upstreams.items():
            own = self.ewt(name) - self.latest_ewt(name)
            # A mean of at most ten whole numbers that is not whole is further than rounding from the next one.
            mean = F.floor(F.avg(F.when(own < 0, 0).otherwise(own)).over(frame)) if read else F.lit(0)
            averages |= self.named(name, average=F.coalesce(mean, F.lit(0)).cast("bigint"))
        return averages

    def measured(self) -> dict[str, Column]:
        """`latency` and `state` of each operator."""
        return reduce(or_, map(self._measured, self.names), {})

    def _measured(self, name: str) -> dict[str, Column]:
        ewt = self.ewt(name)
        unfinished = F.when(ewt.isNull(), State.NO_WINDOW_YET.value)
        if not self.upstreams[name]:
            latency = F.when(ewt.isNotNull(), F.lit(0).cast("bigint"))
            return self.named(name, latency=latency, state=unfinished.otherwise(State.INPUT.value))
        own = ewt - self.latest_ewt(name)
        missing = reduce(or_, (self.ewt(upstream).isNull() for upstream in self.upstreams[name]))
        state = unfinished.when(own < 0, State.CLAMPED_NEGATIVE.value).when(missing, State.UPSTREAM_MISSING.value)
        latency = F.when(own < 0, F.lit(0).cast("bigint")).otherwise(own)
        return self.named(name, latency=latency, state=state.otherwise(State.MEASURED.value))

    def spent(self) -> dict[str, Column]:
        """`waited`, `queue` and `worked`: `critical_path.parts`; null without a latency, or where no row says."""
        return reduce(or_, map(self._spent, self.names), {})

    def _spent(self, name: str) -> dict[str, Column]:
        latency, zero = self.column("latency", name), F.lit(0).cast("bigint")
        before_batch = self.column("did", name, ".began") - self.latest_ewt(name) if self.upstreams[name] else zero
        waited = F.when(
            latency.isNotNull() & before_batch.isNotNull(), F.least(F.greatest(before_batch, zero), latency)
        )
        rest = latency - F.coalesce(waited, zero)
        queued = self.column("did", name, ".queued")
        queue = F.when(rest.isNotNull() & queued.isNotNull(), F.least(queued, rest))
        return self.named(name, waited=waited, queue=queue, worked=latency - waited - queue)

    def walks_to_joins(self, windows: DataFrame) -> DataFrame:
        """*windows* with `before` of each join: the walk to its latest upstream (places), and its TOTALS."""
        for join in self.joins:
            before = F.lit(None)
            for name in self.upstreams[join]:
                to = F.struct(self.walk(name).alias("walk"), *(self.total(name, what).alias(what) for what in TOTALS))
                before = F.when(self.slowest_upstream(join) == name, to).otherwise(before)
            windows = windows.withColumns(self.named(join, before=before))
        return windows

    def walk(self, name: str) -> Column:
        """The places from a source to *name* along the latest upstreams; of a closed window."""
        straight, join = self._straight(name)
        places = F.array(*(F.lit(self.place[each]) for each in straight))
        return F.concat(self.column("before", join, ".walk"), places) if join else places

    def total(self, name: str, what: str) -> Column:
        """The sum of *what*, one of TOTALS, along the walk to *name*."""
        straight, join = self._straight(name)
        values = [self.column(what, each) for each in straight]
        return reduce(add, [*values, self.column("before", join, f".{what}")] if join else values)

    def _straight(self, name: str) -> tuple[list[str], str | None]:
        """The end of every walk to *name*: from the last join, which is named beside it, or else from a source."""
        straight = [name]
        while len(read := self.upstreams[straight[0]]) == 1:
            straight.insert(0, read[0])
        return straight, straight[0] if read else None

    def chosen(self) -> dict[str, Column]:
        """`critical`: the walk to a leaf whose latencies sum highest, of equals to the first; null while not closed.

        `averaged`: the same by the moving averages.
        """
        unfinished = reduce(or_, (self.ewt(name).isNull() for name in self.names))
        return {
            chosen: F.when(~unfinished, _greatest(self._ending(leaf, what) for leaf in self.leaves))
            for chosen, what in zip(("critical", "averaged"), TOTALS, strict=True)
        }

    def _ending(self, leaf: str, what: str) -> Column:
        return F.struct(
            self.total(leaf, what).alias("sum"),
            F.lit(-self.place[leaf]).alias("minus_place"),
            F.lit(leaf).alias("leaf"),
            self.walk(leaf).alias("walk"),
        )

    def slack_of_joins(self, windows: DataFrame) -> DataFrame:
        """*windows* with `slack` of each join."""
        for join in reversed(self.joins):
            windows = windows.withColumns(self.named(join, slack=self._slack(join)))
        return windows

    def slack(self, name: str) -> Column:
        """What a leaf lacks to the critical walk, or the least that a reader of *name* would have waited."""
        return self.column("slack", name) if name in self.joins else self._slack(name)

    def _slack(self, name: str) -> Column:
        if name in self.leaves:
            return F.col("critical.sum") - self.total(name, "latency")
        readers = (reader for reader, read in self.upstreams.items() if name in read)
        waits = [self.latest_ewt(reader) - self.ewt(name) + self.slack(reader) for reader in readers]
        return F.least(*waits) if len(waits) > 1 else waits[0]

    def along(self, what: str, walk: Column, field: str = "") -> Column:
        """The columns *what* of the operators of *walk*, or a field of each, in its order."""
        return picked(walk, [self.column(what, name, field) for name in self.names])

    def before_source(self, walk: Column) -> Column:
        """The age of a window when the source of *walk* had finished it: its EWT less the window's end."""
        return F.get(self.along("did", walk, ".ewt"), F.lit(0)) - F.unix_millis("window_end")


def picked(places: Column, values: list[Column]) -> Column:
    """Of *values* those at *places*, in the order of these."""
    all_of = F.array(*values)
    return F.transform(places, lambda place: all_of[place])


def of(name: Column, values: Mapping[str, int]) -> Column:
    """The one of *values* that belongs to *name*; null when none does."""
    found = F.lit(None).cast("bigint")
    for whose, value in values.items():
        found = F.when(name == whose, F.lit(value)).otherwise(found)
    return found


def _greatest(structs: Iterable[Column]) -> Column:
    """The greatest by its fields, in their order; SQL's function wants more than one."""
    several = list(structs)
    return F.greatest(*several) if len(several) > 1 else several[0]
