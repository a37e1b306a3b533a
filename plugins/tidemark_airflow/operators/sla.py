"""Delivers changes of incidents: an asset's event, and each channel once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import Asset, BaseNotifier, BaseOperator, Context, Variable
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped

from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.sla_events import Alert
from tidemark.model.slas.channel_spec import Channel, channels_of
from tidemark.model.tables.catalog import EXPECTATION_RESULTS
from tidemark.model.topology import Topology, of_jobs
from tidemark.model.topology import load as load_topology
from tidemark.selection import present
from tidemark.storage.location import is_missing
from tidemark_airflow.notifiers.receivers import ReceiverRefused
from tidemark_airflow.operators.assets import TopologyJob, table_asset, table_state, waiting_dags
from tidemark_airflow.operators.checks import asked_asset
from tidemark_airflow.operators.spark import BatchJob
from tidemark_airflow.operators.store import warehouse_at

if TYPE_CHECKING:
    from tidemark.sla.incidents.due import DueAlert

log = logging.getLogger(__name__)

CHANNELS = Project.here().channels
TOLD_WITHIN_S = 180.0
"""Longest wait for a channel, longer than the tries of Tidemark's own receivers take."""
PAGE = "/tidemark/pages/{topology}/slas#{incident}"
OPERATOR_PAGE = "/tidemark/pages/{topology}/operators/{operator}"
"""Pages of an incident and of an operator: see `tidemark_airflow.pages.api`."""


def sla_asset(topology: str) -> Asset:
    """Returns *topology*'s incidents as an asset: opened, escalated and resolved."""
    return Asset(name=f"tidemark_{topology}_sla")


def channels(topology: str) -> list[Channel]:
    """Returns the channels for incidents of *topology*, the log first."""
    return channels_of(CHANNELS, topology)


class CheckSlas(TopologyJob):
    """Checks SLAs, tells every channel, and skips following tasks that would find no work.

    Each of them would cost a process, and a person the seconds until it starts: the tasks `tell_CHANNEL` are for
    channels that fail here. In a run that the checker has asked for it checks nothing, because the checker has stored
    its check.
    """

    def __init__(self, *, topology: Topology, **kwargs: Any) -> None:
        super().__init__(job="check_sla", topology=topology, **kwargs)
        self.outlets.append(sla_asset(topology.name))

    def execute(self, context: Context) -> None:
        """Checks, tells, publishes and skips.

        Raises:
            AirflowException: an SLA is invalid, or the check failed. Nobody is told, and no task is skipped then.
        """
        if asked_checks(context):
            self.update_assets(context, {})
        else:
            super().execute(context)
        layout, run_ids = Layout(warehouse_at(self.warehouse)), _checks_of(context)
        following = self.get_direct_relatives(upstream=False)
        telling = {task.task_id: task for task in following if isinstance(task, DeliverChanges)}
        with_changes = {name: task.channel for name, task in telling.items() if task.has_work(layout)}
        failed = _tell_at_once(with_changes, layout, self.topology, context)
        if changes := _changes(layout, self.topology, run_ids):
            self.outlets.append(sla_asset(self.topology))
            _publish(changes, self.topology, context)
        suites = [task for task in following if isinstance(task, JudgeSuites)]
        without = [*(telling.keys() - failed), *(task.task_id for task in suites if not task.is_needed(layout))]
        if without:
            raise DownstreamTasksSkipped(tasks=without)  # type: ignore[no-untyped-call]


def _tell_at_once(
    channels: Mapping[str, Channel], layout: Layout, topology: str, context: Mapping[str, Any]
) -> set[str]:
    """Delivers to each of *channels* without waiting for another; returns the keys of those that failed.

    A channel that takes longer than TOLD_WITHIN_S counts as failed. With a warehouse in an object store channels are
    told one after the other.
    """
    if not channels:
        return set()
    pool = ThreadPoolExecutor(max_workers=len(channels))
    attempts = {
        pool.submit(_deliver, channel, layout, topology, context): task_id for task_id, channel in channels.items()
    }
    told, unfinished = wait(attempts, timeout=TOLD_WITHIN_S)
    pool.shutdown(wait=False)
    errors = {attempts[each]: str(each.exception()) for each in told if each.exception() is not None}
    errors |= {attempts[each]: f"no answer within {TOLD_WITHIN_S:g} s" for each in unfinished}
    for task_id, error in errors.items():
        log.warning("the channel of %s failed; that task tries it again: %s", task_id, error)
    return {*errors}


class JudgeSuites(TopologyJob):
    """Judges by great-expectations what the checker has stored, of all topologies.

    Judging takes seconds, in which alerts need the slots of Airflow. So one process of a host judges for all, and in a
    run that the checker has asked for the task is skipped while another process judges.

    With *asks* the task is one of the hourly DAG of reports. It is never skipped there, and if the checker makes no
    checks, the task makes one itself. If channels then have something to deliver, the task asks for a run of
    `sla_check`, which delivers it.
    """

    def __init__(self, *, topology: Topology, warehouse: str, asks: bool = False, **kwargs: Any) -> None:
        kwargs |= {"task_id": "judge_suites", "arguments": ["--run-id", "{{ run_id }}"]}
        super().__init__(job="check_sla", topology=topology, warehouse=warehouse, **kwargs)
        self.asks = asks
        if asks:
            self.outlets.append(asked_asset(topology.name))

    def execute(self, context: Context) -> None:
        """Judges, and updates the assets: the checker, which wrote the tables, cannot."""
        layout = Layout(warehouse_at(self.warehouse))
        if not self.asks and not self.is_needed(layout):
            msg = "another process judges now, or has judged"
            raise AirflowSkipException(msg)
        before = _judged(layout)
        BatchJob.execute(self, context)
        self.update_assets(context, {})
        for topology, version in _judged(layout).items():
            if topology != self.topology and version != before.get(topology):
                asset = table_asset(topology, EXPECTATION_RESULTS.name)
                self.outlets.append(asset)
                path = layout.report_table(topology, EXPECTATION_RESULTS.name)
                context["outlet_events"][asset].extra.update(table_state(path) or {})
        if self.asks and _has_pending(layout, self.topology):
            asset, run_id = asked_asset(self.topology), str(context["run_id"])
            self.outlets.append(asset)
            context["outlet_events"][asset].extra["payload"] = {"run_id": run_id}

    def is_needed(self, layout: Layout) -> bool:
        """Returns True if a stored check was not judged yet, and no process of this host judges."""
        from tidemark.control.shared_work import is_worked_on
        from tidemark.sla.asked_check import checks_of
        from tidemark.sla.unjudged import unjudged

        if not any(True for _ in unjudged(layout, self.topology)):
            return False
        return not is_worked_on(checks_of(layout.warehouse))


def _judged(layout: Layout) -> dict[str, int]:
    """Returns the version of `expectation_results` of each topology."""
    from tidemark.facts.versions import newest_version

    paths = layout.warehouse.glob(str(layout.report_table("*", EXPECTATION_RESULTS.name).relative_to(layout.warehouse)))
    return {path.parent.name: newest_version(path) for path in paths}


def asked_checks(context: Context) -> list[str | None]:
    """Returns the run of each check that asked for this run; None for a check whose run nobody knows any more."""
    events = context.get("triggering_asset_events") or {}
    return [event.extra.get("payload", {}).get("run_id") for of_asset in events.values() for event in of_asset]


def _checks_of(context: Context) -> set[str]:
    """Returns the runs whose changes this run publishes: its own, and those of the checks that asked for it."""
    return {str(context["run_id"]), *present(asked_checks(context))}


def _has_pending(layout: Layout, topology: str) -> bool:
    """Returns True if a channel has to deliver something."""
    from tidemark.sla.incidents.tables import pending_changes

    now_ms = wall_clock_ms()
    return any(pending_changes(layout, topology, channel, now_ms=now_ms) for channel in channels(topology))


def _changes(layout: Layout, topology: str, run_ids: Collection[str]) -> list[dict[str, Any]]:
    """Returns what the checks *run_ids* have changed in incidents."""
    from tidemark.sla.incidents.tables import made_by  # costs 1 s, and only tasks need it

    return [change for run_id in sorted(run_ids) for change in made_by(layout, topology, run_id)]


def _publish(changes: Sequence[dict[str, Any]], topology: str, context: Context) -> None:
    """Writes *changes* into the event of the incidents' asset."""
    context["outlet_events"][sla_asset(topology)].extra["changes"] = [*changes]


class PublishChanges(BaseOperator):
    """Publishes the changes of incidents to the asset of *topology* where `check_sla` has failed, and cannot.

    These are the changes of this run's check, or of the checks that have asked for this run. Without changes the task
    is skipped.
    """

    template_fields: Sequence[str] = ("warehouse",)

    def __init__(self, *, topology: str, warehouse: str, **kwargs: Any) -> None:
        super().__init__(outlets=[sla_asset(topology)], **kwargs)
        self.topology = topology
        self.warehouse = warehouse

    def execute(self, context: Context) -> None:
        """Publishes the changes, or skips."""
        changes = _changes(Layout(warehouse_at(self.warehouse)), self.topology, _checks_of(context))
        if not changes:
            msg = "no incident changed"
            raise AirflowSkipException(msg)
        _publish(changes, self.topology, context)


class DeliverChanges(BaseOperator):
    """Delivers changes of *topology*'s incidents that *channel* did not get yet, not even from `check_sla`.

    Without such changes the task is skipped. Each delivery is recorded. A channel that fails fails the task, and gets
    the changes in a later try or run. A change that was delivered just before a task was killed is delivered again,
    with the same Message-ID.
    """

    template_fields: Sequence[str] = ("warehouse",)

    def __init__(self, *, channel: Channel, topology: str, warehouse: str, **kwargs: Any) -> None:
        super().__init__(task_id=f"tell_{channel.name}", **kwargs)
        self.channel = channel
        self.topology = topology
        self.warehouse = warehouse

    def execute(self, context: Context) -> None:
        """Delivers the changes, the oldest first."""
        if not _deliver(self.channel, Layout(warehouse_at(self.warehouse)), self.topology, context):
            msg = "every change was delivered before"
            raise AirflowSkipException(msg)

    def has_work(self, layout: Layout) -> bool:
        """Returns True if the channel did not get a change yet."""
        from tidemark.sla.incidents.tables import pending_changes

        return bool(pending_changes(layout, self.topology, self.channel, now_ms=wall_clock_ms()))


def _deliver(channel: Channel, layout: Layout, topology: str, context: Mapping[str, Any]) -> int:
    """Delivers pending changes of *topology* to *channel* in a task; returns their number."""
    dags_of = cache(partial(waiting_dags, layout))
    return tell(channel, layout, topology, context, run_id=str(context["run_id"]), dags_of=dags_of)


def tell(
    channel: Channel,
    layout: Layout,
    topology: str,
    context: Mapping[str, Any],
    *,
    run_id: str,
    dags_of: Callable[[str, str], Collection[str]] = lambda *_: (),
) -> int:
    """Delivers pending changes of *topology* to *channel*; returns their number.

    Each delivery is recorded, unless the channel only sends an open alert again.

    Args:
        channel: the channel.
        layout: paths of the tables of incidents.
        topology: name of the topology.
        context: the context of the Airflow task.
        run_id: the run that is recorded with each delivery.
        dags_of: returns the DAGs that wait for the stream of a topology; by default none, since only a task can ask
            Airflow for them.

    Raises:
        ReceiverRefused: the receiver did not accept an alert. All other alerts were delivered.
    """
    # Parsers of DAGs import this module, and need no polars.
    from tidemark.sla.incidents.tables import channel_lock, pending_changes, record_delivery

    if is_missing(layout.warehouse):  # the lock would make the folder, and nobody would see that its name is mistyped
        return 0
    refusals: dict[str, ReceiverRefused] = {}
    with channel_lock(layout, topology, channel):
        due = pending_changes(layout, topology, channel, now_ms=wall_clock_ms())
        for each in due:
            # A refused alert does not delay others; its later changes wait for it.
            if each.name in refusals:
                continue
            try:
                notify(channel, each, context, dags=_waiting_dags(each.alert, layout, dags_of))
            except ReceiverRefused as error:
                refusals[each.name] = error
                continue
            if not each.is_repeat:
                record_delivery(layout, each, channel, at_ms=wall_clock_ms(), run_id=run_id)
    if refusals:
        raise next(iter(refusals.values()))
    return len(due)


def notify(
    channel: Channel,
    due: DueAlert,
    context: Mapping[str, Any],
    *,
    page: str | None = None,
    dags: Iterable[str] = (),
) -> None:
    """Sends the change of an alert that is *due* to *channel*.

    Args:
        channel: the channel.
        due: the change.
        context: the context of the Airflow task.
        page: path of the page to look at, or None for the page of its incident.
        dags: the DAGs that wait for the late streams.
    """
    from tidemark.account.owners.registry import is_at_operator
    from tidemark.sla.incidents.alert_message import message_of
    from tidemark.sla.incidents.alert_text import alert_texts

    change = due.alert
    cause = change.cause
    operator = cause.place[0] if cause and is_at_operator(cause.owner) else None
    topology = quote(change.topology, safe="")
    if page is None:
        incident = (change.incidents or (change.alert,))[0]
        page = PAGE.format(topology=topology, incident=quote(incident, safe=""))
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    operator_link = None
    if operator is not None:
        operator_link = base + OPERATOR_PAGE.format(topology=topology, operator=quote(operator, safe=""))
    alert = message_of(due, link=base + page, operator_link=operator_link, dags=dags)
    message = {**alert_texts(alert, notified_ms=wall_clock_ms()), "value": alert}
    resolve_name(channel.notifier)(**channel.arguments)({**context, "alert": message})


def _waiting_dags(alert: Alert, layout: Layout, dags_of: Callable[[str, str], Collection[str]]) -> list[str]:
    """Returns the DAGs that wait for the streams that are late by *alert*.

    These are the stream that the cause names, and the streams that write the affected tables.

    *dags_of* returns the DAGs of a stream, by its topology and name.
    """
    from tidemark.storage.warehouse import stream_tables

    topology, stream = alert.topology, alert.cause.stream if alert.cause else None
    # One of another topology is TOPOLOGY/STREAM.
    origin, _, sub = (stream or "").rpartition("/")
    streams = {(origin or topology, sub)} if stream is not None else set()
    try:
        for name in present((*alert.tables, alert.subject)):
            # A table of another topology is TOPOLOGY/TABLE.
            other, _, table = name.rpartition("/")
            paths = stream_tables(layout, other or topology, table)
            streams |= {(other or topology, path.parent.name) for path in paths}
        return sorted({dag for late in streams for dag in dags_of(*late)})
    except Exception:
        # An alert that does not name the DAGs is better than none.
        log.warning("the DAGs that wait for %s are not known", topology, exc_info=True)
        return []


def tell_of_missed_checks(topology_file: str, context: Mapping[str, Any] | None = None) -> None:
    """Alerts every channel if checks of SLAs were missed; Airflow calls this at a deadline.

    The next check ends that incident. A channel that fails gets the alert from that check. If checks cannot be read,
    for example because the warehouse does not answer, channels are alerted all the same, and again at each deadline.
    *topology_file* is the name of a topology of jobs, which has no file.
    """
    from tidemark.reports.batch_job import missing_warehouse_message, report_lock
    from tidemark.sla.incidents.changes import alert_of, missed_check
    from tidemark.sla.incidents.due import DueAlert
    from tidemark.sla.incidents.tables import open_missed_checks

    file = Path(topology_file)
    topology = load_topology(file) if file.suffix else of_jobs(topology_file)
    unrecorded = None
    try:
        layout = Layout(warehouse_at(Variable.get("tidemark_warehouse")))
        if not file.suffix and is_missing(layout.warehouse):
            raise InvalidArgument(missing_warehouse_message(layout.warehouse, topology.name))
        with report_lock(layout, topology.name):
            open_missed_checks(layout, topology, at_ms=wall_clock_ms())
    except Exception as error:
        log.exception("it is unknown if the SLAs of %s are checked", topology.name)
        (missed,) = missed_check(topology, None, [], at_ms=wall_clock_ms(), is_due=True)
        # Why they cannot be read may be why checks are missing.
        unrecorded = alert_of(replace(missed, message=f"{missed.message}; checks could not be read: {error}"))
    for channel in channels(topology.name):
        try:
            if unrecorded is None:
                tell(channel, layout, topology.name, context or {}, run_id="deadline")
            elif channel.tells(unrecorded):
                notify(channel, DueAlert(alert=unrecorded), context or {})
        except Exception:
            log.exception("channel %s did not accept the alert", channel.name)


class LogNotifier(BaseNotifier):
    """Writes *text* to the task's log."""

    template_fields: Sequence[str] = ("text",)

    def __init__(self, *, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Context) -> None:
        """Writes the text."""
        log.warning("%s", self.text)
