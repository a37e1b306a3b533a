"""Declares the topology `orders` for the oracle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from support.oracle import (
    Aggregate,
    FinalAggregate,
    Hop,
    Join,
    Map,
    Oracle,
    PeriodicAggregate,
    Repartition,
    Sink,
    Source,
    Table,
    WindowedAggregate,
)
from support.oracle_parts import Batch, Fields, Message, Place, rounded, typed

BOUND_MS, IDLE_AFTER_MS = 1_000, 3_000
SIZE_MS, EVERY_MS, ALLOWED_LATENESS_MS = 4_000, 2_000, 2_000
LATE_AFTER_MS = SIZE_MS + ALLOWED_LATENESS_MS  # a record that no window would accept is late at the source
INTERVAL_MS = 3_000
ORDERS, PRICES, STOCK = "orders", "price_list", "stock_counts"
TYPES: Mapping[str, Mapping[str, type]] = {
    ORDERS: {**dict.fromkeys(("order_id", "product", "customer"), str), "quantity": int, "event_time": int},
    PRICES: {"product": str, "price": float, "event_time": int},
    STOCK: {"product": str, "in_stock": int, "event_time": int},
}


def fields_of(message: Message, newest_ms: int | None = None) -> Fields | str:
    """Returns a record's fields, or the reason for rejection."""
    return "null_value" if message.value is None else typed(message.value, TYPES[message.place.topic])


def pricing_of(
    messages: Iterable[Message], stock: Sequence[Fields], customers: Mapping[str, str], batches: Iterable[Batch]
) -> Oracle:
    """Computes `pricing` after *batches* of *messages* and *stock*, in order.

    *messages* are placed by source.
    """
    counts = [Message(Place(STOCK, 0, n), None, json.dumps(row).encode()) for n, row in enumerate(stock)]
    log = {message.place: message for message in (*messages, *counts)}
    time = {"bound_ms": BOUND_MS, "idle_after_ms": IDLE_AFTER_MS, "messages": log, "parse": fields_of}
    prices = Table(name="price_now", input=PRICES, key="product", columns=("price",))
    in_stock = Table(name="stock_now", input=STOCK, key="product", columns=("in_stock",))

    def amount(order: Fields) -> Fields:
        return {
            "order_id": order["order_id"],
            "product": order["product"],
            "region": customers.get(order["customer"], "unknown"),
            "quantity": order["quantity"],
            "amount": order["quantity"] * order["price"],
        }

    operators = [
        Source(name=PRICES, **time),
        prices,
        Source(name=STOCK, **time),
        in_stock,
        Source(name=ORDERS, late_after_ms=LATE_AFTER_MS, **time),
        Join(name="priced", input=ORDERS, table=prices, inner=True),
        Join(name="stocked", input="priced", table=in_stock),
        Map(name="located", input="stocked", select=lambda order: order),
        Map(name="amounts", input="located", select=amount),
        Map(
            name="dear_orders",
            input="amounts",
            select=lambda order: {"product": order["product"], "amount": order["amount"]},
            where=lambda order: order["amount"] >= 100,
            key=("product",),
            identity=lambda order: str(order["amount"] // 100),
            rule="value_only",
        ),
        Sink(name="dear", input="dear_orders"),
        Repartition(name="by_region", input="amounts", key=("region",), columns=("product", "quantity", "amount")),
        Repartition(
            name="by_product", input="amounts", id="order_id", key=("product",), columns=("quantity", "amount")
        ),
    ]
    return Oracle(operators, batches)


def hop(name: str, pricing: Oracle) -> Hop:
    """Returns the source that reads the repartition *name* of `pricing`."""
    return Hop(name=f"{name}_source", handed=pricing[name].handed, watermarks=pricing.watermarks)


def regions_of(pricing: Oracle, batches: Iterable[Batch]) -> Oracle:
    """Computes `regions` after *batches* of rows that `pricing` handed on."""
    of_regions = {"input": "by_region_source", "key": ("region",), "size_ms": SIZE_MS}
    operators = [
        hop("by_region", pricing),
        FinalAggregate(
            name="revenue",
            **of_regions,
            every_ms=EVERY_MS,
            allowed_lateness_ms=ALLOWED_LATENESS_MS,
            result=lambda orders: {
                "n": len(orders),
                "revenue": rounded(sum(order["amount"] for order in orders), 2),
                "products": len({order["product"] for order in orders}),
            },
        ),
        Sink(name="revenue_board", input="revenue"),
        WindowedAggregate(
            name="best_sellers",
            **of_regions,
            every_ms=SIZE_MS,
            result=lambda orders: {
                "sold": sum(order["quantity"] for order in orders),
                "largest": max(order["amount"] for order in orders),
            },
        ),
        Sink(name="best_sellers_board", input="best_sellers"),
    ]
    return Oracle(operators, batches)


def total(orders: list[Fields]) -> Fields:
    if not orders:
        return {"orders": 0, "sold": None, "mean_amount": None}
    mean = rounded(sum(order["amount"] for order in orders) / len(orders), 6)
    return {"orders": len(orders), "sold": sum(order["quantity"] for order in orders), "mean_amount": mean}


def demand(orders: list[Fields]) -> Fields:
    sold = total(orders)["sold"] or 0
    return {"demand": "high" if sold >= 20 else "some" if sold >= 5 else "low"}


def products_of(pricing: Oracle, batches: Iterable[Batch]) -> Oracle:
    """Computes `products` after *batches* of rows that `pricing` handed on."""
    of_products = {"input": "by_product_source", "key": ("product",)}
    operators = [
        hop("by_product", pricing),
        PeriodicAggregate(name="product_totals", **of_products, interval_ms=INTERVAL_MS, result=total),
        Sink(name="product_board", input="product_totals", key=("product",)),
        Aggregate(name="demand", **of_products, result=demand),
        Sink(name="demand_changes", input="demand"),
    ]
    return Oracle(operators, batches)
