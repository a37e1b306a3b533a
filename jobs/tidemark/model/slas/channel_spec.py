"""Reads the channels for alerts, and refuses unusable ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.graph import cycle_in, inverted, reached
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import TableForm, TableKind, Values, optional, refuse_mistakes, required
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.settings.toml_files import read_toml
from tidemark.model.settings.value_types import IDENTIFIER, suggestion_of
from tidemark.model.sla_events import Alert
from tidemark.model.slas.channel_kinds import KINDS
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.selection import names_in, outside
from tidemark.semantics.incidents import CHECKS, Change
from tidemark.semantics.sla import Severity

LOG = "log"
"""The channel of every topology: the log of the task that delivers."""
LOG_NOTIFIER = "tidemark_airflow.operators.sla.LogNotifier"


KIND = required(
    "kind",
    value_types.word([*KINDS]),
    example='"mail"',
    meaning=f"one of {', '.join(f'`{name}`' for name in KINDS)}; each kind has keys of its own",
)
TOPOLOGIES = optional(
    "topologies", value_types.texts(), example='["flights"]', without="all", meaning="filter: topologies"
)
OWNERS = optional(
    "owners", value_types.texts(), example='["orders team"]', without="all", meaning="filter: owners of SLAs"
)
SEVERITIES = optional(
    "severities",
    value_types.words([*Severity]),
    example='["critical"]',
    without="all",
    meaning="filter: severities of SLAs",
)
CHANGES = optional(
    "changes",
    value_types.words([*Change]),
    example='["opened", "resolved"]',
    without="all",
    meaning=(
        f"filter: {', '.join(f'`{change}`' for change in Change)}. Receivers that keep an alert open "
        f"({', '.join(f'`{kind.name}`' for kind in KINDS.values() if kind.keeps_state)}) need `resolved`"
    ),
)
RENOTIFY_AFTER = optional(
    "renotify_after",
    value_types.length(),
    example='"30 min"',
    without="never",
    meaning=(
        "an open alert that is not acknowledged is sent again by the first check that is so long after its last "
        "message; not with `alertmanager`, to which each check sends it"
    ),
)
ESCALATE_AFTER = optional(
    "escalate_after",
    value_types.length(),
    example='"15 min"',
    without="never",
    meaning=(
        "an alert that this channel got so long ago, and that is not acknowledged, goes to the channels of "
        "`escalate_to`"
    ),
)
ESCALATE_TO = optional(
    "escalate_to",
    value_types.texts(),
    example='["lead"]',
    meaning=(
        "required with `escalate_after`: other channels of this file. They get only alerts that are escalated to them"
    ),
)
FORM = TableForm(
    keys=(KIND, TOPOLOGIES, OWNERS, SEVERITIES, CHANGES, RENOTIFY_AFTER, ESCALATE_AFTER, ESCALATE_TO),
    kinds=tuple(TableKind(name=name, key=KIND.name, word=name, keys=kind.keys) for name, kind in KINDS.items()),
    together=((ESCALATE_AFTER, ESCALATE_TO),),
)
"""The table of a channel."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A destination of changes of alerts: an Airflow notifier.

    It has the notifier's class and its *arguments*. Their texts may have `{{ alert.subject }}`, `{{ alert.text }}` and
    so on (docs/channels.md). It receives changes that match every filter that is set (None matches all), and always
    `checks_are_made`.

    A channel that *keeps_state* gets the end of each alert that it opened, however late. One that *sends_again* gets
    open alerts again at each delivery. It gets an alert that is not acknowledged again every *renotify_after_ms* (None:
    never). A channel that is *escalated_by* others, by name, gets only alerts that one of them got so many ms before,
    and that are not acknowledged.
    """

    name: str
    notifier: str
    arguments: Mapping[str, Any]
    topologies: tuple[str, ...] | None = None
    owners: tuple[str, ...] | None = None
    severities: tuple[str, ...] | None = None
    changes: tuple[str, ...] | None = None
    keeps_state: bool = False
    sends_again: bool = False
    renotify_after_ms: int | None = None
    escalated_by: Mapping[str, int] = field(default_factory=dict)

    def takes(self, change: Change) -> bool:
        """Returns True if its filter of changes has *change*."""
        return self.changes is None or change in self.changes

    def tells(self, alert: Alert) -> bool:
        """Returns True if a change of an *alert* matches its filters."""
        wanted = [(alert.topology, self.topologies), (alert.change, self.changes)]
        if alert.audience is not None:
            # Only a channel that names this owner, and does not get the alert itself.
            owners = self.owners or ()
            if alert.audience not in owners or alert.owner in owners:
                return False
            wanted.append((alert.severity, self.severities))
        elif alert.sla != CHECKS:  # missed checks concern every owner
            wanted += [(alert.owner or "", self.owners), (alert.severity, self.severities)]
        return all(words is None or word in words for word, words in wanted)

    def has_opened(self, delivered: Collection[Change]) -> bool:
        """Returns True if the receiver has an alert by the changes *delivered*.

        A receiver that keeps state opens it at a filter's first match, which may be its escalation.
        """
        return self.keeps_state and not {Change.OPENED, Change.ESCALATED}.isdisjoint(delivered)

    def must_get(self, alert: Alert, delivered: Collection[Change]) -> bool:
        """Returns True if a change of an *alert* matches its filters, or ends it.

        An alert may end with another severity than it was opened with. *delivered* are the changes of the alert that
        this channel has delivered.
        """
        return self.tells(alert) or (alert.change is Change.RESOLVED and self.has_opened(delivered))


def load(path: Path) -> tuple[Channel, ...]:
    """Returns the channels in the file at *path*; none without a file.

    Raises:
        InvalidSpec: with file, key and remedy.
    """
    if not path.exists():
        return ()
    return parse(read_toml(path), file=path.name)


def channels_of(path: Path, topology: str) -> list[Channel]:
    """Returns the channels for incidents of *topology* by the file at *path*, the log first.

    A file that cannot be used has none: SLAs are checked nevertheless, and a DAG file shows the mistake.
    """
    try:
        configured = load(path)
    except InvalidSpec:
        configured = ()
    matching = [channel for channel in configured if channel.topologies is None or topology in channel.topologies]
    return [Channel(name=LOG, notifier=LOG_NOTIFIER, arguments={"text": "{{ alert.text }}"}), *matching]


def mistakes(path: Path) -> list[InvalidSpec]:
    """Returns all mistakes of the file at *path*."""
    try:
        load(path)
    except InvalidSpec as error:
        return [error]
    return []


def warnings(channels: Iterable[Channel], promised: Sequence[tuple[Topology, Sequence[SlaSpec]]]) -> Iterator[str]:
    """Yields a line for each filter or time without effect.

    Args:
        channels: those of the file.
        promised: all topologies with their SLAs.
    """
    names = names_in(topology for topology, _ in promised)
    for channel in channels:
        chosen = [pair for pair in promised if channel.topologies is None or pair[0].name in channel.topologies]
        specs = [spec for _, of_topology in chosen for spec in of_topology]
        owners = [*(topology.owner for topology, _ in chosen), *(spec.owner for spec in specs)]
        severities = [spec.severity.value for spec in specs]
        yield from _unmatched(f"{channel.name}.topologies", channel.topologies, names)
        # Without a topology no other filter matches anything.
        if chosen:
            yield from _unmatched(f"{channel.name}.owners", channel.owners, owners)
            yield from _without_slas(channel, severities)
        yield from _shorter_than_checks(channel, [topology for topology, _ in chosen])


def _unmatched(key: str, words: Collection[str] | None, values: Collection[str]) -> Iterator[str]:
    for word in outside(words or (), values):
        remedy = suggestion_of(word, {*values}, key.rpartition(".")[2])
        yield f"{key}: warning: has {word!r}, which no alert has; {remedy}"


def _without_slas(channel: Channel, severities: Collection[str]) -> Iterator[str]:
    """Yields a line if no SLA has one of the channel's severities."""
    # A list may name severities that only later SLAs have.
    if channel.severities and {*severities}.isdisjoint(channel.severities):
        problem = f"at present no SLA has severity {' or '.join(channel.severities)}"
        present = ", ".join(dict.fromkeys(severities)) or "none"
        yield f"{channel.name}.severities: warning: {problem}; SLAs have {present}"


def _shorter_than_checks(channel: Channel, topologies: Iterable[Topology]) -> Iterator[str]:
    """Yields a line for each time shorter than that between checks."""
    lengths_ms: dict[str, int | None] = {
        **{f"{name}.escalate_after": after_ms for name, after_ms in channel.escalated_by.items()},
        f"{channel.name}.renotify_after": channel.renotify_after_ms,
        f"{channel.name}.valid_for": channel.arguments.get("valid_for_ms"),
    }
    for topology in topologies:
        every_ms = topology.check_every_ms
        for key, length_ms in lengths_ms.items():
            if length_ms is not None and length_ms < every_ms:
                problem = f"is {for_people(length_ms)}, but only checks send alerts"
                every = f"{topology.name} has one every {for_people(every_ms)}"
                remedy = f'write "{length_in_toml(every_ms)}" or more, or a shorter check_every'
                yield f"{key}: warning: {problem}, and {every}; {remedy}"


def parse(content: Mapping[str, Any], *, file: str) -> tuple[Channel, ...]:
    """Returns the channels in *content*, a parsed TOML file.

    Raises:
        InvalidSpec: with a line for each mistake, which names *file*.
    """
    tables = [FORM.read(file, name, table) for name, table in content.items()]
    for values in tables:
        others = outside(content, [values.at])
        values.judge(
            _refuse_name, _refuse_reminders, _refuse_open_for_ever, partial(_refuse_unknown_channels, others=others)
        )
    refuse_mistakes(tables)
    escalated_by: dict[str, dict[str, int]] = defaultdict(dict)
    for values in tables:
        if (after_ms := values[ESCALATE_AFTER]) is not None:
            for other in values[ESCALATE_TO] or ():
                escalated_by[other][values.at] = after_ms
    _refuse_circles(escalated_by, content, file)
    return tuple(_channel(values, escalated_by[values.at]) for values in tables)


def _refuse_name(values: Values) -> None:
    """Refuses a name of a channel that cannot be used."""
    name = values.at
    if name == LOG or not IDENTIFIER.fullmatch(name):
        problem = "is the built-in channel" if name == LOG else "is not a valid channel name"
        raise InvalidSpec.at(values.file, name, problem, "use another name: lower-case letters, digits and _")


def _refuse_reminders(values: Values) -> None:
    """Refuses reminders of alerts that each check sends again."""
    kind = KINDS[values[KIND]]
    if kind.sends_again and values[RENOTIFY_AFTER] is not None:
        problem = f"is set, but each check sends open alerts to an {kind.name} again"
        remedy = "leave it out; repeat_interval of its route decides when it tells again"
        values.fail(RENOTIFY_AFTER, problem, remedy)


def _refuse_open_for_ever(values: Values) -> None:
    """Refuses changes without the end of alerts, where a receiver waits for it."""
    kind, changes = KINDS[values[KIND]], values[CHANGES]
    if kind.keeps_state and changes is not None and Change.RESOLVED not in changes:
        problem = f"leaves out 'resolved', so that alerts of kind {kind.name} would stay open for ever"
        values.fail(CHANGES, problem, 'write changes = ["opened", "resolved"], or leave it out')


def _refuse_unknown_channels(values: Values, others: Collection[str]) -> None:
    """Refuses an escalation to what is none of the *others* of the file."""
    escalated_to = values[ESCALATE_TO] or ()
    if unknown := outside(escalated_to, others):
        remedy = f"use other channels of this file: {', '.join(others) or 'there are none'}"
        values.fail(ESCALATE_TO, f"has {unknown[0]!r}", remedy)


def _refuse_circles(escalated_by: Mapping[str, Mapping[str, int]], names: Collection[str], file: str) -> None:
    """Refuses channels that get alerts only from each other, so from none.

    *escalated_by* has for each channel those that escalate to it, with the time after which they do (ms).
    """
    alerted = reached(outside(names, escalated_by), inverted(escalated_by))
    if silent := outside(names, alerted):
        # The order of `escalated_by` is against the flow of alerts: a circle begins with who is told last.
        *circle, first = reversed(cycle_in({name: [*escalated_by[name]] for name in silent}))
        problem = f"makes a circle, {' → '.join([*circle, first])}, so that no alert comes to {', '.join(silent)}"
        remedy = f"leave out {first!r}, or let a channel outside of the circle escalate to one of it"
        raise InvalidSpec.at(file, f"{circle[-1]}.escalate_to", problem, remedy)


def _channel(values: Values, escalated_by: Mapping[str, int]) -> Channel:
    kind = KINDS[values[KIND]]
    notifier, arguments = kind.notifier(values)
    return Channel(
        name=values.at,
        notifier=notifier,
        arguments=arguments,
        topologies=values[TOPOLOGIES],
        owners=values[OWNERS],
        severities=values[SEVERITIES],
        changes=values[CHANGES],
        keeps_state=kind.keeps_state,
        sends_again=kind.sends_again,
        renotify_after_ms=values[RENOTIFY_AFTER],
        escalated_by=escalated_by,
    )
