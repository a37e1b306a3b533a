"""The keys that say when the updates of an operator are sent on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tidemark.model.settings import value_types
from tidemark.model.settings.conditions import Needs, has_word, needs
from tidemark.model.settings.declared_tables import Key, Values, defaulted, optional
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


STRATEGY = defaulted(
    "strategy",
    value_types.choice(Strategy),
    example='"on_change"',
    default=Strategy.ON_CHANGE.value,
    meaning="one of the four below; a `map` has none by default",
)
RULE = defaulted(
    "rule",
    value_types.choice(Rule),
    example='"value_only"',
    default=Rule.STRICTLY_NEWER.value,
    meaning=(
        "when an update with an equal value is suppressed: `strictly_newer` if its event time is later (Kafka's "
        "rule); `same_instant`, the default of an `aggregate`, if its event time is the same (KIP-557's rule for "
        "aggregations); `value_only` always. The event time is compared with that of the update that was sent on last"
    ),
)
DECIDE = defaulted(
    "decide",
    value_types.choice(DecisionRate),
    example='"record"',
    default=DecisionRate.RECORD.value,
    meaning=(
        "`record` decides after each record in the order of offsets; `batch` once per key and batch, which skips "
        "intermediate values"
    ),
)
INTERVAL = optional("interval", value_types.length(), example='"10 s"', meaning="the interval of `periodic`")
HOW_TO_SEND = "[see below](#when-an-operator-sends-on), with `rule`, `decide` and `interval`"
"""What the pages say of the key `strategy` of a kind."""


@dataclass(frozen=True, kw_only=True)
class EmissionKeys:
    """The keys of one kind of operator."""

    strategy: Key[Any]
    rule: Key[Rule]
    decide: Key[DecisionRate]
    interval: Key[int | None]

    @property
    def all(self) -> tuple[Key[Any], ...]:
        """Returns all of them."""
        return self.strategy, self.rule, self.decide, self.interval

    def refuse_window_close(self, values: Values) -> None:
        """Refuses the strategy `on_window_close` for an operator without windows. This is a rule."""
        if values[self.strategy] is Strategy.ON_WINDOW_CLOSE:
            problem = 'is "on_window_close", but there is no window'
            values.fail(self.strategy, problem, "give the aggregate a window, or use another strategy")

    def emission(self, values: Values) -> Emission | None:
        """Returns the emission of an operator; None without a strategy."""
        if values[self.strategy] is None:
            return None
        return Emission(
            strategy=values[self.strategy],
            rule=values[self.rule],
            decide=values[self.decide],
            interval_ms=values[self.interval],
        )


def emission_keys(
    strategy: Key[Any], *, rule: Rule = Rule.STRICTLY_NEWER, others_need: Iterable[Needs] = ()
) -> EmissionKeys:
    """Returns the keys of a kind with this *strategy*.

    Args:
        strategy: its key `strategy`.
        rule: the default of its key `rule`.
        others_need: what the other keys need.
    """
    needed = tuple(others_need)
    periodic = needs(has_word(strategy, Strategy.PERIODIC.value))
    return EmissionKeys(
        strategy=strategy,
        rule=replace(RULE, default=rule.value, needs=needed),
        decide=replace(DECIDE, needs=needed),
        interval=replace(INTERVAL, needs=(*needed, periodic), required_if=periodic),
    )


PAGE = emission_keys(STRATEGY)
"""The keys as their page shows them."""
