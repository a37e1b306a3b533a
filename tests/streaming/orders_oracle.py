"""Recomputes the topology `orders` from its records in plain Python.

As `oracle.py`: standard library only, one record after the other, and of the engine's tables `batches` alone. A class
for each sub-topology; the two behind `Pricing` read what that hands on, as its batches did.
Instants are epoch ms, UTC; texts are JSON as the tables have it. Dictionaries by a number are by batch id.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streaming.oracle_parts import (
    Batch,
    EmitOnChange,
    Fields,
    Handed,
    Late,
    Message,
    Place,
    Reached,
    Read,
    SourceTime,
    Update,
    is_closed,
    rounded,
    text,
    typed,
)

BOUND_MS, IDLE_AFTER_MS = 1_000, 3_000
SIZE_MS, EVERY_MS, ALLOWED_LATENESS_MS = 4_000, 2_000, 2_000
LATE_AFTER_MS = SIZE_MS + ALLOWED_LATENESS_MS  # what no window would take any more is late at the source
INTERVAL_MS = 3_000
ORDERS, PRICES, STOCK = "orders", "price_list", "stock_counts"
TYPES: Mapping[str, Mapping[str, type]] = {
    ORDERS: {**dict.fromkeys(("order_id", "product", "customer"), str), "quantity": int, "event_time": int},
    PRICES: {"product": str, "price": float, "event_time": int},
}

Counts = dict[str, Counter[str]]
"""Updates by outcome, per operator."""


@dataclass
class Versions:
    """A joined table: its sent updates, and product values by time.

    An equal value that was suppressed belongs to the history all the same.
    """

    now: EmitOnChange = field(default_factory=EmitOnChange)
    known: dict[str, list[tuple[int, Fields]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, product: str, value: Fields, timestamp_ms: int, place: Place) -> bool:
        """Returns true if the update is sent."""
        self.known[product].append((timestamp_ms, value))
        return self.now.offer(product, text(value), timestamp_ms, place)

    def valid(self, product: str, timestamp_ms: int) -> Fields | None:
        """Returns the value valid then: the newest that is not newer.

        Of those from one instant the last.
        """
        found = [version for version in self.known[product] if version[0] <= timestamp_ms]
        return max(reversed(found), key=lambda version: version[0])[1] if found else None


class Pricing:
    """Computes `pricing` after *batches* of *messages* and *stock*, in order.

    *messages* are placed by source.
    """

    def __init__(
        self,
        messages: Iterable[Message],
        stock: Sequence[Fields],
        customers: Mapping[str, str],
        batches: Iterable[Batch],
    ) -> None:
        self._log = {message.place: message for message in messages}
        self._stock, self._customers = stock, customers
        self._time = {source: SourceTime(BOUND_MS, IDLE_AFTER_MS) for source in (ORDERS, PRICES)}
        self.times: dict[int, dict[tuple[str, int | None], Reached]] = {}  # partition None: the source
        self.outcomes: dict[int, Counts] = {}
        self.quarantined: list[tuple[Place, str]] = []
        self.late: list[Late] = []
        self.prices, self.stock = Versions(), Versions()
        self.dear = EmitOnChange("value_only")
        self.dear_sink: list[Fields] = []
        self.updates = EmitOnChange()  # of by_product, by order
        self.by_region: dict[int, list[Handed]] = {}
        self.by_product: dict[int, list[Handed]] = {}
        for batch in batches:
            self._run(batch)

    def watermark_ms(self, until_batch: int) -> int | None:
        """Returns the sub-topology's watermark after its last batch before *until_batch*."""
        last = max((number for number in self.times if number < until_batch), default=None)
        return None if last is None else self.times[last][ORDERS, None].watermark_ms

    def _run(self, batch: Batch) -> None:
        self._count: Counts = defaultdict(Counter)
        self._regions: list[Handed] = []
        self._products: list[Handed] = []
        for read in sorted(batch.reads, key=lambda read: (read.topic == ORDERS, read)):
            if read.topic == STOCK:
                self._read_stock(read)
            else:
                self._read_topic(read, batch.decided_at_ms)
        moved = [(source, time.move()) for source, time in self._time.items()]
        self.times[batch.batch_id] = {(source, n): reached for source, parts in moved for n, reached in parts.items()}
        self.by_region[batch.batch_id], self.by_product[batch.batch_id] = self._regions, self._products
        self.outcomes[batch.batch_id] = self._count

    def _read_stock(self, read: Read) -> None:
        for place in read.places():
            row = self._stock[place.offset]
            self._count[STOCK].update(("records_in", "passed"))
            emits = self.stock.take(row["product"], {"in_stock": row["in_stock"]}, row["event_time"], place)
            self._count["stock_now"].update(("records_in", "emitted" if emits else "suppressed"))

    def _read_topic(self, read: Read, decided_at_ms: int) -> None:
        count, timestamps_ms = self._count[read.topic], []
        for place in read.places():
            count["records_in"] += 1
            found = fields_of(self._log[place])
            if isinstance(found, str):
                self.quarantined.append((place, found))
                count["quarantined"] += 1
                continue
            timestamps_ms.append(found["event_time"])
            watermark_ms = self._time[ORDERS].watermark_ms
            if is_alive(found):
                count["filtered"] += 1
            elif read.topic == PRICES:
                count["passed"] += 1
                self._price(place, found)
            elif watermark_ms is not None and found["event_time"] + LATE_AFTER_MS <= watermark_ms:
                self.late.append(Late(place, found["event_time"], watermark_ms))
                count["late"] += 1
            else:
                count["passed"] += 1
                self._order(place, found)
        self._time[read.topic].listen(read, timestamps_ms, decided_at_ms)

    def _price(self, place: Place, fields: Fields) -> None:
        emits = self.prices.take(fields["product"], {"price": fields["price"]}, fields["event_time"], place)
        self._count["price_now"].update(("records_in", "emitted" if emits else "suppressed"))

    def _order(self, place: Place, order: Fields) -> None:
        """The joins, and `amounts`."""
        self._count["priced"]["records_in"] += 1
        price = self.prices.valid(order["product"], order["event_time"])
        if price is None:
            self._count["priced"]["filtered"] += 1
            return
        self._count["priced"]["passed"] += 1
        for operator in ("stocked", "located", "amounts"):
            self._count[operator].update(("records_in", "passed"))
        amount = {
            "order_id": order["order_id"],
            "product": order["product"],
            "region": self._customers.get(order["customer"], "unknown"),
            "quantity": order["quantity"],
            "amount": order["quantity"] * price["price"],
        }
        self._dear(place, amount, order["event_time"])
        self._by_region(place, amount, order["event_time"])
        self._by_product(place, amount, order["event_time"])

    def _dear(self, place: Place, amount: Fields, timestamp_ms: int) -> None:
        """`dear_orders`: on change of the hundreds, and its sink."""
        count = self._count["dear_orders"]
        count["records_in"] += 1
        if amount["amount"] < 100:
            count["filtered"] += 1
            return
        value = {"product": amount["product"], "amount": amount["amount"]}
        hundreds = str(amount["amount"] // 100)
        emits = self.dear.offer(amount["product"], text(value), timestamp_ms, place, identity=hundreds)
        count["emitted" if emits else "suppressed"] += 1
        if emits:
            self.dear_sink.append(value)
            self._count["dear"].update(("records_in", "passed"))

    def _by_region(self, place: Place, amount: Fields, timestamp_ms: int) -> None:
        """A stream: every record is handed on."""
        value = {name: amount[name] for name in ("region", "product", "quantity", "amount")}
        self._regions.append(Handed(amount["region"], None, value, timestamp_ms, place.partition, place.offset))
        self._count["by_region"].update(("records_in", "passed", "fan_out"))

    def _by_product(self, place: Place, amount: Fields, timestamp_ms: int) -> None:
        """Processes the table `by_product`, which hands on changes.

        With what a change replaces; to another product in two rows.
        """
        order_id, product, count = amount["order_id"], amount["product"], self._count["by_product"]
        count["records_in"] += 1
        before, _ = self.updates.stored.get(order_id, (None, None))
        value = {name: amount[name] for name in ("product", "quantity", "amount")}
        if not self.updates.offer(order_id, text(value), timestamp_ms, place):
            count["suppressed"] += 1
            return
        old = None if before is None else json.loads(before)
        if old is not None and old["product"] != product:
            self._products.append(Handed(old["product"], old, None, timestamp_ms, place.partition, place.offset))
            old = None
            count["fan_out"] += 1
        self._products.append(Handed(product, old, value, timestamp_ms, place.partition, place.offset))
        count.update(("emitted", "fan_out"))


class Behind:
    """A sub-topology that reads what `pricing` handed on: `self.times` are its watermarks."""

    source: str

    def __init__(self, pricing: Pricing, handed: Mapping[int, Sequence[Handed]], batches: Iterable[Batch]) -> None:
        self.times: dict[int, int | None] = {}
        self.outcomes: dict[int, Counts] = {}
        self._watermark_ms: int | None = None
        for batch in batches:
            self._count: Counts = defaultdict(Counter)
            (read,) = batch.reads
            rows = [row for number in range(read.from_offset, read.until_offset) for row in handed.get(number, ())]
            self._count[self.source].update({"records_in": len(rows), "passed": len(rows)})
            reached_ms = pricing.watermark_ms(read.until_offset)
            self._run(batch, rows, reached_ms)
            self._watermark_ms = self.times[batch.batch_id] = reached_ms
            self.outcomes[batch.batch_id] = self._count

    def _run(self, batch: Batch, rows: Sequence[Handed], reached_ms: int | None) -> None:
        """Processes a batch of *rows*, which brings time to *reached_ms*."""
        raise NotImplementedError


class Window(NamedTuple):
    """A region and a window of time."""

    region: str
    start_ms: int

    def key(self) -> str:
        return text({"region": self.region, "window_start": self.start_ms})


class Regions(Behind):
    """The sub-topology `regions`."""

    source = "by_region_source"

    def __init__(self, pricing: Pricing, batches: Iterable[Batch]) -> None:
        self.late: dict[str, list[Late]] = {"revenue": [], "best_sellers": []}
        self.open: dict[Window, list[Handed]] = {}
        self.revenue: dict[int, list[Update]] = {}  # final results
        self.sold: dict[Window, list[Handed]] = defaultdict(list)
        self.best_sellers: list[Update] = []
        super().__init__(pricing, pricing.by_region, batches)

    def _run(self, batch: Batch, rows: Sequence[Handed], reached_ms: int | None) -> None:
        self._count["revenue"]["held_before"] = len(self.open)
        for row in rows:
            self._revenue(row)
            self._best_sellers(row)
        self.revenue[batch.batch_id] = self._close(reached_ms)
        self._count["revenue"]["held_after"] = len(self.open)

    def _revenue(self, row: Handed) -> None:
        newest_ms = row.timestamp_ms // EVERY_MS * EVERY_MS
        starts_ms = range(newest_ms - SIZE_MS + EVERY_MS, newest_ms + 1, EVERY_MS)
        for window in self._still_open("revenue", row, starts_ms, ALLOWED_LATENESS_MS):
            self._count["revenue"]["superseded"] += window in self.open
            self.open[window] = [*self.open.get(window, ()), row]

    def _close(self, reached_ms: int | None) -> list[Update]:
        """Returns final results of windows that *reached_ms* closes, by key.

        The sink `revenue_board` has them too.
        """
        closed = [w for w in self.open if is_closed(w.start_ms + SIZE_MS, ALLOWED_LATENESS_MS, reached_ms)]
        results = []
        for window in closed:
            rows = self.open.pop(window)
            values = [row.new for row in rows if row.new is not None]
            value = {
                "n": len(values),
                "revenue": rounded(sum(value["amount"] for value in values), 2),
                "products": len({value["product"] for value in values}),
            }
            last_ms = window.start_ms + SIZE_MS - 1
            results.append(Update(window.key(), text(value), last_ms, None, rows[-1].partition, rows[-1].offset))
        self._count["revenue"]["emitted"] = len(results)
        self._count["revenue_board"].update({"records_in": len(results), "passed": len(results)})
        return sorted(results)

    def _best_sellers(self, row: Handed) -> None:
        starts_ms = [row.timestamp_ms // SIZE_MS * SIZE_MS]
        for window in self._still_open("best_sellers", row, starts_ms, 0):
            before = [known.timestamp_ms for known in self.sold[window]]
            self.sold[window].append(row)
            values = [known.new for known in self.sold[window] if known.new is not None]
            value = {
                "sold": sum(value["quantity"] for value in values),
                "largest": max(value["amount"] for value in values),
            }
            newest_ms = max([*before, row.timestamp_ms])
            result = Update(window.key(), text(value), newest_ms, max(before, default=None), row.partition, row.offset)
            self.best_sellers.append(result)
            self._count["best_sellers"]["emitted"] += 1
            self._count["best_sellers_board"].update(("records_in", "passed"))

    def _still_open(
        self, operator: str, row: Handed, starts_ms: Iterable[int], allowed_lateness_ms: int
    ) -> Iterator[Window]:
        """Returns the open windows of *row*; it is late without any."""
        was_ms = self._watermark_ms
        found = [start for start in starts_ms if not is_closed(start + SIZE_MS, allowed_lateness_ms, was_ms)]
        self._count[operator]["records_in"] += len(found) or 1
        if not found and was_ms is not None:
            self.late[operator].append(Late(Place(operator, row.partition, row.offset), row.timestamp_ms, was_ms))
            self._count[operator]["late"] += 1
        return (Window(row.key, start) for start in found)


@dataclass
class Total:
    """Sums of a product's orders, and the record that changed it last."""

    orders: int = 0
    sold: int = 0
    amount: float = 0.0
    newest_ms: int = 0
    partition: int = 0
    offset: int = 0

    def add(self, value: Fields | None, sign: int) -> None:
        if value is not None:
            self.orders += sign
            self.sold += sign * value["quantity"]
            self.amount += sign * value["amount"]

    def result(self) -> Fields:
        mean = rounded(self.amount / self.orders, 6) if self.orders else None
        return {"orders": self.orders, "sold": self.sold, "mean_amount": mean}

    def demand(self) -> str:
        return "high" if self.sold >= 20 else "some" if self.sold >= 5 else "low"


class Products(Behind):
    """The sub-topology `products`."""

    source = "by_product_source"

    def __init__(self, pricing: Pricing, batches: Iterable[Batch]) -> None:
        self.totals: dict[str, Total] = defaultdict(Total)
        self._held: set[str] = set()
        self._decided_at_ms: int | None = None
        self._sent_ms: dict[str, int] = {}  # record time of what was sent on last
        self.product_totals: dict[int, list[Update]] = {}
        self.board: dict[str, Fields] = {}  # the sink: its row by product
        self.demand = EmitOnChange("value_only")
        super().__init__(pricing, pricing.by_product, batches)

    def _run(self, batch: Batch, rows: Sequence[Handed], reached_ms: int | None) -> None:
        count = self._count["product_totals"]
        count.update({"held_before": len(self._held), "records_in": len(rows)})
        for row in rows:
            self._add(row)
            count["superseded"] += row.key in self._held
            self._held.add(row.key)
        was_ms, self._decided_at_ms = self._decided_at_ms, batch.decided_at_ms
        is_due = was_ms is not None and batch.decided_at_ms // INTERVAL_MS > was_ms // INTERVAL_MS
        self.product_totals[batch.batch_id] = self._send() if is_due else []
        count["held_after"] = len(self._held)

    def _add(self, row: Handed) -> None:
        total = self.totals[row.key]
        total.add(row.old, -1)
        total.add(row.new, +1)
        total.newest_ms = max(total.newest_ms, row.timestamp_ms)
        total.partition, total.offset = row.partition, row.offset
        value = text({"demand": total.demand()})
        emits = self.demand.offer(row.key, value, total.newest_ms, Place("", row.partition, row.offset))
        self._count["demand"].update(("records_in", "emitted" if emits else "suppressed"))
        if emits:
            self._count["demand_changes"].update(("records_in", "passed"))

    def _send(self) -> list[Update]:
        """Sends every current total; changed ones are the updates, by key."""
        results = []
        for product, total in self.totals.items():
            self.board[product] = {"product": product, **total.result(), "timestamp": total.newest_ms}
            if product in self._held:
                old_ms = self._sent_ms.get(product)
                self._sent_ms[product] = total.newest_ms
                result = text(total.result())
                results.append(Update(product, result, total.newest_ms, old_ms, total.partition, total.offset))
        self._held.clear()
        repeated = len(self.totals) - len(results)
        self._count["product_totals"].update({"emitted": len(results), "repeated": repeated})
        self._count["product_board"].update({"records_in": len(self.totals), "passed": len(self.totals)})
        return sorted(results)


def fields_of(message: Message) -> Fields | str:
    """Returns a record's fields, or the reason for rejection.

    No operator needs its key.
    """
    if message.value is None:
        return "null_value"
    return typed(message.value, TYPES[message.place.topic])


def is_alive(fields: Fields) -> bool:
    """Returns true if a record has only a time.

    It keeps its partition alive, and goes no further.
    """
    return [name for name in fields if fields[name] is not None] == ["event_time"]
