"""From a change of an incident to somebody who knows of it: an asset's event, and each channel told once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import Asset, BaseNotifier, BaseOperator, Context, Variable
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidSpec
from tidemark.place import location
from tidemark.spec.channel_spec import LOG, Channel, load
from tidemark.spec.layout import Layout
from tidemark.spec.project import Project
from tidemark.spec.topology import load as load_topology

log = logging.getLogger(__name__)

CHANNELS = Project.here().channels
SLAS = Project.here().slas
PAGE = "/tidemark/pages/{topology}/slas#{incident}"
"""Of an incident: see tidemark_api."""


def sla_asset(topology: str) -> Asset:
    """The asset that is updated when an incident of *topology* is opened, gets worse, or ends."""
    return Asset(name=f"tidemark_{topology}_sla")


def channels(topology: str) -> list[Channel]:
    """Those that are told of incidents of *topology*, the log first; it alone where their file cannot be used.

    Then SLAs are checked all the same, and `dags/tidemark_topologies.py` shows the mistake.
    """
    try:
        found = load(CHANNELS)
    except InvalidSpec:
        found = ()
    told = [channel for channel in found if channel.topologies is None or topology in channel.topologies]
    return [Channel(name=LOG, notifier="tidemark_sla.LogNotifier", arguments={"text": "{{ alert.text }}"}), *told]


class PublishChanges(BaseOperator):
    """Updates the asset of *topology* with the changes of incidents that this run's check made; skips without one."""

    template_fields: Sequence[str] = ("warehouse",)

    def __init__(self, *, topology: str, warehouse: str, **kwargs: Any) -> None:
        super().__init__(outlets=[sla_asset(topology)], **kwargs)
        self.topology = topology
        self.warehouse = warehouse

    def execute(self, context: Context) -> None:
        """Publish, or skip."""
        from tidemark.sla.incident_tables import made_by  # costs 1 s, and only tasks need it

        found = made_by(Layout(location(self.warehouse)), self.topology, str(context["run_id"]))
        if not found:
            msg = "no incident changed"
            raise AirflowSkipException(msg)
        context["outlet_events"][sla_asset(self.topology)].extra["changes"] = [*found]


class Tell(BaseOperator):
    """Tells *channel* of the changes of incidents of *topology* that it has not taken yet; skips where there is none.

    Each is written down once it is taken. A channel that fails fails the task, and is told by a later try or run: with
    what was taken just before a task was killed, again, with the same Message-ID.
    """

    template_fields: Sequence[str] = ("warehouse",)

    def __init__(self, *, channel: Channel, topology: str, warehouse: str, **kwargs: Any) -> None:
        super().__init__(task_id=f"tell_{channel.name}", **kwargs)
        self.channel = channel
        self.topology = topology
        self.warehouse = warehouse

    def execute(self, context: Context) -> None:
        """Tell, the oldest change first."""
        layout = Layout(location(self.warehouse))
        if not tell(self.channel, layout, self.topology, context, run_id=str(context["run_id"])):
            msg = "there is nothing that it was not told"
            raise AirflowSkipException(msg)


def tell(channel: Channel, layout: Layout, topology: str, context: Mapping[str, Any], *, run_id: str) -> int:
    """Tell *channel* what it was not told of *topology*, and write down that it was; of how many changes."""
    from tidemark.sla.incident_tables import telling, told, untold

    with telling(layout, topology, channel):
        waiting = untold(layout, topology, channel, now_ms=wall_clock_ms())
        for change in waiting:
            _notify(channel, change, context)
            told(layout, change, channel, at_ms=wall_clock_ms(), run_id=run_id)
    return len(waiting)


def _notify(channel: Channel, change: Mapping[str, Any], context: Mapping[str, Any]) -> None:
    from tidemark.sla.alert_text import alert

    place = PAGE.format(**{name: quote(str(change[name]), safe="") for name in ("topology", "incident")})
    link = conf.get("api", "base_url", fallback="").rstrip("/") + place
    said = alert(change, told_ms=wall_clock_ms(), link=link)
    resolve_name(channel.notifier)(**channel.arguments)({**context, "alert": said})


def tell_of_missed_checks(topology_file: str, context: Mapping[str, Any] | None = None) -> None:
    """Tell every channel if the SLAs of a topology have not been checked for long: what Airflow calls at a deadline.

    The next check ends that incident. A channel that fails is left to it. Where the warehouse does not answer, which
    may be why nobody checks, they are told without it, and at each deadline again.
    """
    from tidemark.report.batch_job import writing
    from tidemark.sla.incident_facts import checks_missed
    from tidemark.sla.incident_tables import miss

    topology = load_topology(Path(topology_file))
    told_without = None
    try:
        layout = Layout(location(Variable.get("tidemark_warehouse")))
        with writing(layout, topology.name):
            miss(layout, topology, at_ms=wall_clock_ms())
    except Exception as error:
        log.exception("nobody can say whether the SLAs of %s are checked", topology.name)
        (row,) = checks_missed(topology, None, [], at_ms=wall_clock_ms(), is_due=True)
        told_without = {**row, "said": f"{row['said']}; the warehouse does not answer: {error}"}
    for channel in channels(topology.name):
        try:
            if told_without is None:
                tell(channel, layout, topology.name, context or {}, run_id="deadline")
            elif channel.tells(told_without):
                _notify(channel, told_without, context or {})
        except Exception:
            log.exception("channel %s was not told", channel.name)


class LogNotifier(BaseNotifier):
    """Writes *text* to the task's log."""

    template_fields: Sequence[str] = ("text",)

    def __init__(self, *, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Context) -> None:
        """Write it."""
        log.warning("%s", self.text)
