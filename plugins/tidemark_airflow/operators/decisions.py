"""Asks people about repairs of streams, and makes those that they approve.

Purpose: some commands of `tidemark` lose records or change state, so a person decides about them. The person need not
be at a shell, and the wait may take hours.

How it works: `DecisionOperator` runs the command with `--dry-run`, shows its output as a human-in-the-loop request of
Airflow, and parks. A parked task holds no slot of a worker, of a pool or of a triggerer. After an approval it runs the
command with the plan that was shown, and the command refuses another one. Each answer is a row of `decisions`. A
stream that failed asks in a run of the DAG of its topology, and waits in the triggerer until that run has ended.

What it does not do: withdraw a question whose reason is gone. Its approval changes nothing then.

Known limitations: a channel of kind `alertmanager` forgets the question after its `valid_for`. An answer in the second
after a task parked may be lost: Airflow's scheduler can launch the task again before it has seen that the process of
the first launch ended, and takes that end for the loss of the second one. It retries the task then, which asks again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from airflow.sdk import BaseOperator, Context, Param
from airflow.sdk import exceptions as airflow_exceptions
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from tidemark.clock import wall_clock_ms
from tidemark.control.folder import Control
from tidemark.control.private_file import write_private
from tidemark.control.process import without_airflow
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.connections import flags
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import duration_ms
from tidemark.model.topology import Topology
from tidemark.safe_text import backticks_for, one_message
from tidemark.selection import names_in
from tidemark.semantics.repairs import RepairOutcome
from tidemark.storage.location import location
from tidemark.storage.private_folder import private_folder
from tidemark_airflow.operators.assets import task_state
from tidemark_airflow.operators.sla import channels, notify
from tidemark_airflow.operators.spark import airflow_secrets, kafka_clusters
from tidemark_airflow.operators.store import warehouse_at

CAN_ASK = hasattr(airflow_exceptions, "TaskAwaitingInput")
"""True if tasks can park; they cannot in Airflow 3.2."""
APPROVE, REJECT = "Approve", "Reject"
OPTIONS: Mapping[str, frozenset[str]] = {
    "accept-loss": frozenset({"--source", "--partition", "--until", "--topic-id", "--record"}),
    "requeue": frozenset({"--late", "--reopen", "--operator", "--source", "--reason", "--from", "--to"}),
    "reset-time": frozenset({"--source", "--partition", "--to"}),
    "doctor": frozenset({"--apply"}),
    "reshard": frozenset({"--shards"}),
    "begin": frozenset({"--drop-rows"}),
}
"""The commands that a person may approve, with their options.

Other options name a warehouse, a broker or a person: these come from Airflow.
"""
AUTHOR = ("--by", "--reason")
"""Options of printed remedies that the answer replaces.

`requeue` chooses records by `--reason`, and keeps it.
"""
NEEDS_APPLY = {"doctor": ("--apply", "remove-torn")}
TASK, OUTCOME = "decide", "outcome"
"""The task that asks, and the XCom with its RepairOutcome."""
ANSWERED_WITHIN = "24 h"
WAITS_MS = 25 * 3_600_000
"""Longest wait of a stream for an answer, ms: longer than ANSWERED_WITHIN."""
DRAINED, GONE, UNSCHEDULED = "drained", "gone", "unscheduled"
"""Answers without a person.

The stream was drained; its question was deleted or marked as a success; or Airflow runs neither the task that asks nor
the task that was answered.
"""
UNSCHEDULED_LOOKS = 24
"""After so many looks at an unscheduled task UNSCHEDULED is the answer."""
LOOKS_WITHIN_S, CHANGES_WITHIN_S = 600.0, 6 * 3_600.0
"""Time limits of a dry run and of a change, which may write a whole state."""
AGAIN_AFTER_S = (5.0, 20.0)
"""Waits before a command that failed is run again.

The storage may not answer for a moment, or a driver may be starting. With its plan a command makes a change once.
"""
_USAGE, _CHANGED, _KILLED = 2, 4, 124
"""Exit statuses after which a command is not run again; 124 is that of timeout(1)."""
NO_REASON = "no reason was given"
MOST_CHARACTERS, MOST_OF_EFFECT = 2_000, 500
"""Most characters of a reason, and of an effect in an alert."""
PAGE = "/dags/{dag}/runs/{run}/tasks/{task}/required_actions"
"""Airflow's page of a request."""
_REMEDY = re.compile(r"tidemark ((?:accept-loss|doctor) [^;\n]+)")
_CLI = "import sys; from tidemark.cli.main import main; sys.exit(main())"


def words_of(command: str, topology: str) -> list[str]:
    """Returns the words of a *command* about *topology*, without `tidemark`.

    Args:
        command: as `tidemark why` or an error prints it; person and reason are left out.
        topology: its name.

    Raises:
        InvalidArgument: it is not a command that a person may approve here.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        msg = f"command: {error}, got {command!r}"
        raise InvalidArgument(msg) from None
    words = words[1:] if words[:1] == ["tidemark"] else words
    name = words[0] if words else ""
    if name not in OPTIONS:
        msg = f"command: must be one of {', '.join(OPTIONS)}, got {command!r}"
        raise InvalidArgument(msg)
    if words[1:2] != [topology]:
        msg = f"command: must be about {topology}, got {command!r}; write tidemark {name} {topology} …"
        raise InvalidArgument(msg)
    kept, rest = words[:2], iter(words[2:])
    for word in rest:
        option = word.partition("=")[0]
        if option in AUTHOR and option not in OPTIONS[name]:
            if "=" not in word:
                next(rest, None)
            continue
        # Abbreviations are refused, too: argparse would accept them.
        if word.startswith("-") and option not in OPTIONS[name]:
            allowed = ", ".join(sorted(OPTIONS[name]))
            msg = f"command: {name} has no option {option} here, got {command!r}; use {allowed}"
            raise InvalidArgument(msg)
        kept.append(word)
    given = {word.partition("=")[0] for word in kept}
    if (needed := NEEDS_APPLY.get(name)) and needed[0] not in given:
        msg = f"command: {name} changes nothing, got {command!r}; add {' '.join(needed)}"
        raise InvalidArgument(msg)
    return kept


def command_in(why: str, topology: str) -> str | None:
    """Returns the first command in *why* that a person may approve, or None if there is none.

    The word `tidemark`, the person and the reason are left out.
    """
    for remedy in _REMEDY.finditer(why):
        try:
            return shlex.join(words_of(remedy[1], topology))
        except InvalidArgument:
            continue
    return None


def ask(dag_id: str, question: str, params: Mapping[str, str]) -> None:
    """Triggers the run *question* of the DAG that asks people, once.

    Args:
        dag_id: the DAG.
        question: the id of its run. If there is one, nothing is done.
        params: parameters of the run.
    """
    # A running task has these modules.
    from airflow.sdk.execution_time.comms import TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=question, conf=dict(params)))


def is_paused(dag_id: str) -> bool:
    """Returns True if the DAG *dag_id* is paused. Only a task of Airflow can ask this."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # a running task has this module

    return bool(RuntimeTaskInstance.get_dag(dag_id).is_paused)


def answer_to(question: str, dag_id: str) -> str | None:
    """Returns the outcome that the task of the run with the id *question* left, or None while there is none.

    Without one it is GONE if the run was deleted or marked as a success, FAILED if it failed or was marked so, and
    UNSCHEDULED if its task neither runs nor is parked.
    """
    from airflow.sdk.execution_time.xcom import XCom  # triggerers need it, and parsers of DAGs do not

    state = task_state(dag_id, TASK, question) or "removed"
    has_ended = state in {"success", "failed", "skipped", "upstream_failed", "removed"}
    if not has_ended and state != "running":
        return None if state == "awaiting_input" else UNSCHEDULED
    # A running task may have an outcome already: it tells the channels last.
    outcome: str | None = XCom.get_one(key=OUTCOME, dag_id=dag_id, task_id=TASK, run_id=question)
    without = RepairOutcome.FAILED.value if state == "failed" else GONE
    return outcome or (without if has_ended else None)


class AnswerTrigger(BaseTrigger):
    """Fires once, when the run *question* of the DAG *dag_id* has ended.

    A drain request in the control folder *home* is an answer, too.
    """

    def __init__(
        self, *, home: str, dag_id: str, question: str, poll_s: float, first_look_s: float, until_ms: int | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers have no types
        until_ms = until_ms or wall_clock_ms() + WAITS_MS
        looks = {"poll_s": poll_s, "first_look_s": first_look_s, "until_ms": until_ms}
        self._kwargs = {"home": home, "dag_id": dag_id, "question": question, **looks}
        self._home, self._dag_id, self._question, self._until_ms = home, dag_id, question, until_ms
        self._poll_s, self._first_look_s = poll_s, first_look_s
        self._unscheduled_looks = 0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns how the triggerer creates this trigger again."""
        return "tidemark_airflow.operators.decisions.AnswerTrigger", self._kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event: the answer."""
        await sync_to_async(warehouse_at)(self._home)
        await asyncio.sleep(self._first_look_s)
        while (answer := await asyncio.to_thread(self._answer)) is None:
            await asyncio.sleep(self._poll_s)
        event = {"answer": answer, "until_ms": self._until_ms}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]  # as above

    def _answer(self) -> str | None:
        if wall_clock_ms() > self._until_ms:
            return f"missing ({self._question} of the DAG {self._dag_id} has not ended)"
        try:
            if Control(location(self._home)).drain_requested():
                return DRAINED
            answer = answer_to(self._question, self._dag_id)
        except Exception as error:  # of the storage, or of Airflow's interface
            self.log.warning("%s: the look at its answer failed: %s; it is repeated", self._question, error)
            return None
        self._unscheduled_looks = self._unscheduled_looks + 1 if answer == UNSCHEDULED else 0
        # Airflow's scheduler needs a while, and a trigger cannot ask whether the DAG is paused.
        is_late = self._unscheduled_looks >= UNSCHEDULED_LOOKS
        return answer if answer != UNSCHEDULED or is_late else None


class DecisionOperator(BaseOperator):
    """Asks a person about *command*, and runs it if that person approves.

    The task parks for *answer_within*, a length of time, after which the command counts as rejected. *why* is the
    reason for the question. *stream* is the sub-topology whose task waits for the answer, or empty if none does. Only
    the users *deciders*, ids with commas between them, may answer; if it is empty, all who may edit the DAG.

    The task succeeds if the command has been run, is skipped if the command was rejected or nothing had to be done, and
    fails otherwise.
    """

    template_fields: Sequence[str] = (
        "command", "answer_within", "why", "stream", "warehouse", "bootstrap", "deciders",
    )  # fmt: skip

    def __init__(
        self,
        *,
        topology: Topology,
        command: str,
        warehouse: str,
        bootstrap: str = "",
        answer_within: str = ANSWERED_WITHIN,
        why: str = "",
        stream: str = "",
        deciders: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology = topology
        self.command = command
        self.warehouse = warehouse
        self.bootstrap = bootstrap
        self.answer_within = answer_within
        self.why = why
        self.stream = stream
        self.deciders = deciders

    def execute(self, context: Context) -> None:
        """Shows what the command would do, and parks."""
        now_ms = wall_clock_ms()
        try:
            self._refuse_unknown_stream()
            words, within_ms = words_of(self.command, self.topology.name), _within_ms(self.answer_within)
        except InvalidArgument as error:
            raise AirflowFailException(str(error)) from None
        if words[0] == "requeue" and "--to" not in words:
            # Records that are set aside later are not part of what is shown.
            words += ["--to", iso(now_ms)]
        from tidemark.reports.repairs import split_plan  # parsers of DAGs do not need it

        status, output = self._tidemark([*words, "--dry-run"], within_s=LOOKS_WITHIN_S)
        if status:
            # Only wrong usage stays wrong; after anything else Airflow tries again.
            raise AirflowFailException(output) if status == _USAGE else TidemarkError(output)
        effect, plan = split_plan(output)
        if plan is None:
            context["ti"].xcom_push(OUTCOME, RepairOutcome.CHANGED.value)
            self.log.info("there is nothing to decide: %s", effect)
            raise AirflowSkipException(effect)
        asked = {"words": words, "effect": effect, "plan": plan, "asked_ms": now_ms}
        self._park(context, asked, within_ms)

    def answered(
        self, context: Context, event: Mapping[str, Any], words: list[str], effect: str, plan: str, asked_ms: int
    ) -> None:
        """Runs the command if it was approved and does what was shown."""
        user = event.get("responded_by_user") or {}
        by, note = user.get("name") or user.get("id"), _note(event)
        outcome, result = RepairOutcome.TIMED_OUT, None
        if by is not None:
            outcome = RepairOutcome.REJECTED
        if by is not None and list(event.get("chosen_options") or ()) == [APPROVE]:
            outcome, result = self._apply_plan(context, words, plan, by, note)
        if outcome is not RepairOutcome.APPLIED:  # the command has recorded that
            from tidemark.reports.repairs import RepairDecision, record_repair  # parsers of DAGs do not need it

            made = RepairDecision(
                topology=self.topology.name,
                sub_topology=_sub_topology(words),
                command=words[0],
                effect=effect,
                outcome=outcome,
                by=by,
                note=note,
                result=result,
                asked_in=_asked_in(context),
            )
            record_repair(Layout(warehouse_at(self.warehouse)), made, at_ms=wall_clock_ms())
        context["ti"].xcom_push(OUTCOME, outcome.value)  # a stream may wait for it
        ended = f"{outcome.value} by {by}" if by else outcome.value
        self._tell(context, words, effect, asked_ms, ended=ended, by=by)
        text = f"{ended}: {result or effect}"
        # Airflow does not log the text of a skip.
        self.log.info("%s", text)
        if outcome in {RepairOutcome.REJECTED, RepairOutcome.TIMED_OUT}:
            raise AirflowSkipException(text)
        if outcome is not RepairOutcome.APPLIED:
            raise AirflowFailException(text)

    def _apply_plan(
        self, context: Context, words: Sequence[str], plan: str, by: str, note: str
    ) -> tuple[RepairOutcome, str]:
        """Makes the change that *plan* showed; returns outcome and output."""
        reason = "--reason" if words[0] in {"accept-loss", "reset-time"} else "--note"
        author = [f"--by={by}", f"{reason}={note or NO_REASON}", f"--asked-in={_asked_in(context)}"]
        status, output = self._tidemark([*words, f"--plan={plan}", *author], within_s=CHANGES_WITHIN_S)
        return {0: RepairOutcome.APPLIED, _CHANGED: RepairOutcome.CHANGED}.get(status, RepairOutcome.FAILED), output

    def _park(self, context: Context, asked: Mapping[str, Any], within_ms: int) -> NoReturn:
        """Publishes the request, tells the channels, and parks."""
        # A running task has these modules.
        from airflow.sdk.exceptions import TaskAwaitingInput  # not in Airflow 3.2
        from airflow.sdk.execution_time.hitl import HITLUser, upsert_hitl_detail

        words, effect = asked["words"], asked["effect"]
        users = [user.strip() for user in self.deciders.split(",") if user.strip()]
        note = Param("", type="string", maxLength=MOST_CHARACTERS, title="Reason", description="kept with the decision")
        upsert_hitl_detail(
            ti_id=context["ti"].id,
            options=[APPROVE, REJECT],
            subject=f"{shlex.join(['tidemark', *words])}?",
            body=_body(self.why, words, effect, until_ms=asked["asked_ms"] + within_ms),
            defaults=[REJECT],
            params={"note": note.serialize()},
            assigned_users=[HITLUser(id=user, name=user) for user in users],
        )
        self._tell(context, words, effect, asked["asked_ms"])
        within = timedelta(milliseconds=within_ms)
        raise TaskAwaitingInput(method_name="answered", kwargs=dict(asked), timeout=within)

    def _tell(
        self,
        context: Context,
        words: Sequence[str],
        effect: str,
        asked_ms: int,
        *,
        ended: str | None = None,
        by: str | None = None,
    ) -> None:
        """Tells the channels of the question, or that it has *ended*."""
        # Parsers of DAGs do not need these.
        from tidemark.sla.incidents.changes import answered_decision, asked_decision
        from tidemark.sla.incidents.due import DueAlert

        ti = context["ti"]
        alert = asked_decision(
            self.topology,
            name=f"decision/{ti.run_id}",
            command=words[0],
            place=_sub_topology(words),
            text=_in_short(effect),
            is_waited_for=bool(self.stream),
            at_ms=asked_ms,
        )
        if ended is not None:
            alert = answered_decision(alert, text=ended, by=by, at_ms=wall_clock_ms())
        page = _page(ti)
        for channel in channels(self.topology.name):
            # Escalation follows from recorded deliveries, and those of a question are not recorded.
            if channel.escalated_by or not channel.tells(alert):
                continue
            try:
                notify(channel, DueAlert(alert=alert), context, page=page)
            except Exception:
                self.log.exception("channel %s did not accept the question", channel.name)

    def _refuse_unknown_stream(self) -> None:
        if self.stream and self.stream not in (names := names_in(self.topology.sub_topologies)):
            msg = f"stream: must be one of {', '.join(names)}, or empty, got {self.stream!r}"
            raise InvalidArgument(msg)

    def _tidemark(self, words: Sequence[str], *, within_s: float) -> tuple[int, str]:
        """Runs `tidemark` with *words*; returns exit status and output.

        If it fails, it is run again AGAIN_AFTER_S. *within_s* is the time limit of one run.
        """
        warehouse_at(self.warehouse)  # the process inherits the credentials of the store
        more: list[str] = []
        if words[0] == "requeue" and "--reopen" not in words:
            clusters = kafka_clusters(self.topology, self.bootstrap)
            more = flags(clusters)
            if secrets := airflow_secrets(self.topology, clusters):
                file = private_folder("tidemark-decision-") / "secrets.json"
                write_private(file, json.dumps(secrets))
                more += ["--secrets", str(file)]
        command = [sys.executable, "-c", _CLI, "--warehouse", self.warehouse, *words, *more]
        failed: list[str] = []
        for again_after_s in (*AGAIN_AFTER_S, None):
            self.log.info("running: tidemark %s", shlex.join(words))
            status, output = _run(command, within_s)
            self.log.info("it ended with status %s:\n%s", status, one_message(output))
            if status == _CHANGED and failed:
                status = 1  # a part of the change may have been made before the failure
            if status in {0, _USAGE, _CHANGED, _KILLED} or again_after_s is None:
                break
            failed.append(output)
            time.sleep(again_after_s)
        return status, output if status == 0 else "\n".join(dict.fromkeys([*failed, output]))


def _run(command: Sequence[str], within_s: float) -> tuple[int, str]:
    """Returns exit status and output of *command*, killed after *within_s*."""
    env = without_airflow(os.environ)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=within_s)
    except subprocess.TimeoutExpired:
        return _KILLED, f"it did not end within {within_s:g} s, and was killed; what it has changed stays"
    return done.returncode, (done.stdout + done.stderr if done.returncode else done.stdout).strip()


def _within_ms(text: str) -> int:
    within_ms = duration_ms(text)
    if not within_ms:
        msg = f'answer_within: must be a length of time, such as "24 h", got {text!r}'
        raise InvalidArgument(msg)
    return within_ms


def _note(event: Mapping[str, Any]) -> str:
    """Returns the reason in an answer, or empty if it has none."""
    # Users of the REST API may send anything.
    note = (event.get("params_input") or {}).get("note")
    return note.strip()[:MOST_CHARACTERS] if isinstance(note, str) else ""


def _sub_topology(words: Sequence[str]) -> str | None:
    """Returns the sub-topology that a command is about, or None if it is about all."""
    return words[2] if len(words) > 2 and not words[2].startswith("-") else None


def _body(why: str, words: Sequence[str], effect: str, *, until_ms: int) -> str:
    """Returns the text of a request, in Markdown."""
    parts = [_fenced(why)] if why else []
    parts += [
        _fenced(shlex.join(["tidemark", *words])),
        "This command would do the following:",
        _fenced(effect),
        f"**{APPROVE}**: this is done, and nothing else. If it has changed meanwhile, nothing is done.",
        f"**{REJECT}**: nothing is done. Without an answer until {iso(until_ms)} it counts as rejected.",
    ]
    return "\n\n".join(parts)


def _in_short(effect: str) -> str:
    """Returns the lines of *effect* as one, of at most MOST_OF_EFFECT characters."""
    text = "; ".join(line.strip() for line in effect.splitlines())
    return text if len(text) <= MOST_OF_EFFECT else f"{text[: MOST_OF_EFFECT - 1]}…"


def _fenced(text: str) -> str:
    """Returns *text* as a block of code, in which markup is inert."""
    fence = backticks_for(text, at_least=3)
    return f"{fence}\n{text}\n{fence}"


def _asked_in(context: Context) -> str:
    ti = context["ti"]
    return f"{ti.dag_id} {ti.run_id} try {ti.try_number}"


def _page(ti: Any) -> str:
    from urllib.parse import quote

    return PAGE.format(dag=ti.dag_id, run=quote(ti.run_id, safe=""), task=ti.task_id)
