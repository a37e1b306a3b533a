"""Feed of a shop over 30 s with all kinds of faults.

It has orders, prices and stock, and depends only on the seed. Orders are corrected and repeated, and some come seconds
late; prices and stock change between orders; `eggs` and `figs` have no price at first. Prices are multiples of 0.25, so
that sums of them are exact.

Instants are epoch ms; constants are ms since the feed's start, which is a multiple of SIZE.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from streaming.sending import WriterPosition

ORDERS, PRICES, STOCK = "orders", "prices", "stock"
SIZE = 4_000  # of the largest window
CUSTOMERS = {"ann": "north", "bob": "north", "cem": "south", "dot": "west", "eve": "west", "fay": None}
STRANGER = "zoe"  # a customer of whom nothing is known
FIRST_PRICE = {"apples": 1.25, "bread": 2.5, "cheese": 17.75, "dates": 40.5}
LATER_PRICE = {"eggs": (8_000, 3.0), "figs": (15_000, 55.25)}
FIRST_STOCK = {"apples": 3, "bread": 100, "dates": 4}
PRODUCTS = (*FIRST_PRICE, *LATER_PRICE)
LENGTH, EVERY = 30_000, 150
SETTLED = 37_000
"""Final time of every partition, which closes a window exactly.

The watermark, 1,001 ms less, is the last ms of a window.
"""
ALL_CLOSED = 60_000


def feed(start_ms: int, *, seed: int = 7) -> list[WriterPosition]:
    """Returns the feed in sending order.

    Records for STOCK are rows of that table.
    """
    chance = Random(seed)
    found = [*_prices(start_ms, chance), *_stock(start_ms, chance), *_orders(start_ms, chance), *_faults(start_ms)]
    found += [_alive(start_ms + 10_000, start_ms + 10_000, 0)]
    found += [_alive(start_ms + SETTLED, start_ms + SETTLED + 2_000, partition) for partition in range(2)]
    return sorted(found, key=lambda sent: sent.at_ms)


def edge(watermark_ms: int) -> list[WriterPosition]:
    """Returns orders where the rules change, at *watermark_ms*.

    The watermark is the last ms of a window of 4 s.

    Late at the source; late in every window, as early and as late as can be; in one of the two windows of `revenue`
    that are open for 2 s more; late in the window of `best_sellers` that has just closed; in the next one.
    """
    ages = (6_000, 5_999, 4_000, 3_999, 0, -1)
    return [_order(2 * n, watermark_ms - age, watermark_ms, product="apples") for n, age in enumerate(ages, 500)]


def closing(start_ms: int) -> list[WriterPosition]:
    """Returns records that bring all partitions to ALL_CLOSED.

    Every window has closed then.
    """
    return [_alive(start_ms + ALL_CLOSED, start_ms + ALL_CLOSED, partition) for partition in range(2)]


def _prices(start_ms: int, chance: Random) -> Iterator[WriterPosition]:
    """Generates first prices, then one every 750 ms.

    It is new or the same, and some are overtaken by a newer one.
    """
    for product, price in FIRST_PRICE.items():
        yield _price(product, price, start_ms - 10_000, start_ms)
    for product, (at, price) in LATER_PRICE.items():
        yield _price(product, price, start_ms + at, start_ms + at)
    now = {**FIRST_PRICE, **{product: price for product, (_, price) in LATER_PRICE.items()}}
    for at in range(1_000, LENGTH, 750):
        product = chance.choice(PRODUCTS)
        if at <= LATER_PRICE.get(product, (0, 0))[0]:
            continue
        now[product] += chance.choice((0, 0, 0.25, 0.5, -0.25))
        yield _price(product, now[product], start_ms + at, start_ms + at + chance.choice((0, 100, 2_500)))
    # The watermark passes this one before the orders on the edge ask for the price that it replaces.
    yield _price("apples", 9.75, start_ms + LENGTH + 1_000, start_ms + LENGTH + 1_000)


def _stock(start_ms: int, chance: Random) -> Iterator[WriterPosition]:
    for product, in_stock in FIRST_STOCK.items():
        yield _count(product, in_stock, start_ms - 10_000, start_ms)
    for at in range(3_000, LENGTH, 4_000):
        yield _count(chance.choice(PRODUCTS), chance.randrange(10), start_ms + at, start_ms + at + 200)


def _orders(start_ms: int, chance: Random) -> Iterator[WriterPosition]:
    """Generates orders; a fifth is repeated up to 4 s later.

    The same, with another quantity, or of another product.
    """
    for number, at in enumerate(range(0, LENGTH, EVERY)):
        happened_at_ms = start_ms + at + chance.randrange(EVERY)
        order: dict[str, Any] = {
            "product": chance.choice((*PRODUCTS, "apples", "bread", "a novelty")),
            "customer": chance.choice((*CUSTOMERS, STRANGER)),
            "quantity": chance.randrange(1, 7),
        }
        is_slow = chance.random() < 0.08
        delay = chance.randrange(2_000, 7_000) if is_slow else chance.randrange(900)
        yield _order(number, happened_at_ms, happened_at_ms + delay, **order)
        if chance.random() < 0.2 and number > 40:
            changed = chance.choice(({}, {}, {"quantity": order["quantity"] + 1}, {"product": "bread"}))
            again_at_ms = happened_at_ms + chance.choice((0, 1_000, 4_000))
            yield _order(number, again_at_ms, again_at_ms + delay, **{**order, **changed})


def _faults(start_ms: int) -> list[WriterPosition]:
    """Returns unusable records for each reason, and one without a key.

    There are two for the last reason; and a price.
    """
    at_ms = start_ms + 6_000
    sound = _order(900, at_ms, at_ms, product="apples")
    value = sound.value or b""
    return [
        sound._replace(key=None),
        sound._replace(value=None),
        sound._replace(value=value.replace(b"{", b'{"note":"\xff",')),
        sound._replace(value=value[: len(value) // 2]),
        _order(900, at_ms, at_ms, product="apples", quantity="two"),
        sound._replace(value=b'{"order_id":"900","product":"apples"}'),
        _order(900, 0, at_ms, product="apples"),
        _order(900, at_ms // 1_000, at_ms, product="apples"),
        _price("apples", "a lot", at_ms, at_ms),
    ]


def _order(number: int, happened_at_ms: int, sent_at_ms: int, **fields: Any) -> WriterPosition:
    content = {"order_id": str(number), "customer": "ann", "quantity": 1, **fields, "event_time": happened_at_ms}
    return WriterPosition(
        sent_at_ms, ORDERS, number % 2, str(number).encode(), json.dumps(content).encode(), happened_at_ms
    )


def _price(product: str, price: object, happened_at_ms: int, sent_at_ms: int) -> WriterPosition:
    content = {"product": product, "price": price, "event_time": happened_at_ms}
    return WriterPosition(sent_at_ms, PRICES, 0, product.encode(), json.dumps(content).encode(), happened_at_ms)


def _count(product: str, in_stock: int, happened_at_ms: int, sent_at_ms: int) -> WriterPosition:
    content = {"product": product, "in_stock": in_stock, "event_time": happened_at_ms}
    return WriterPosition(sent_at_ms, STOCK, 0, None, json.dumps(content).encode(), happened_at_ms)


def _alive(happened_at_ms: int, sent_at_ms: int, partition: int) -> WriterPosition:
    value = json.dumps({"event_time": happened_at_ms}).encode()
    return WriterPosition(sent_at_ms, ORDERS, partition, None, value, happened_at_ms)
