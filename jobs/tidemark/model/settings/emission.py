"""Reads when the updates of an operator are sent on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidemark.model.settings.toml_keys import Keys
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy


class DecisionRate(StrEnum):
    """How often an operator decides about a key.

    After each record in offset order, or once per key and batch.
    """

    RECORD = "record"
    BATCH = "batch"


@dataclass(frozen=True, kw_only=True)
class Emission:
    """When the updates of an operator are sent on.

    `interval_ms` is set for `periodic` alone.
    """

    strategy: Strategy = Strategy.ON_CHANGE
    rule: Rule = Rule.STRICTLY_NEWER
    decide: DecisionRate = DecisionRate.RECORD
    interval_ms: int | None = None

    @property
    def holds(self) -> bool:
        """True if updates wait for a window's or an interval's end."""
        return self.strategy in {Strategy.ON_WINDOW_CLOSE, Strategy.PERIODIC}


ON_CHANGE = Emission()
"""The default emission of a table."""


def read_emission(keys: Keys, rule: Rule, *, windowed: bool = False) -> Emission:
    """Reads the emission of one operator; *rule* is its kind's default."""
    emission = Emission(
        strategy=keys.choice("strategy", Strategy, Strategy.ON_CHANGE),
        rule=keys.choice("rule", Rule, rule),
        decide=keys.choice("decide", DecisionRate, DecisionRate.RECORD),
        interval_ms=keys.duration("interval", "10 s", None),
    )
    if (emission.strategy is Strategy.PERIODIC) != (emission.interval_ms is not None):
        problem = f"is {keys.content.get('interval')!r} but strategy is {emission.strategy.value!r}"
        remedy = 'write an interval, such as "10 s", with the strategy "periodic" and no other'
        keys.fail("interval", problem, remedy, beside="strategy")
    if emission.strategy is Strategy.ON_WINDOW_CLOSE and not windowed:
        problem = 'is "on_window_close", but there is no window'
        keys.fail("strategy", problem, "give the aggregate a window, or use another strategy", beside="window")
    return emission
