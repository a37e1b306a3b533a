"""A client of Airflow's REST API, with the standard library alone."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from tidemark.bounded_http import WITHIN_S, NoAnswer, ask
from tidemark.errors import TidemarkError

NOT_FOUND, SERVER_ERROR = 404, 500
REPEATABLE = frozenset({"GET", "PATCH"})
"""Methods of requests that may be sent again.

Airflow's SQLite may be locked for longer than it waits for it, and then it answers with an error.
"""
PAUSES_S = (0.5, 2.0)
PAGE = 100
"""Most runs that Airflow lists in one answer, unless its settings say otherwise."""
SUCCESS = "success"
ENDED = frozenset({SUCCESS, "failed"})
"""States of a DAG run that has ended."""
FAILED = frozenset({"failed", "upstream_failed"})
"""States of a task that keep its run from success."""
HERE = frozenset({"127.0.0.1", "localhost"})


class AirflowError(TidemarkError):
    """Raised when Airflow answers a request with an HTTP error *status*."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class TaskInstance:
    """A task in a run of its DAG, as Airflow knows it now; instants are epoch ms.

    Of a mapped task it is the instance that failed or has not ended, if there is one, else the last one to end. `state`
    is None before the task is scheduled.
    """

    dag_id: str
    task_id: str
    run_id: str
    state: str | None
    started_ms: int | None
    ended_ms: int | None

    @property
    def has_ended(self) -> bool:
        """True if Airflow will not run it again by itself."""
        return self.state in {SUCCESS, "skipped", "removed", *FAILED}


@dataclass
class AirflowApi:
    """A login at *url*.

    The token is requested when it is first needed. Without a user and a token, requests name nobody.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)

    def is_healthy(self) -> bool:
        """Returns True if scheduler, DAG processor and triggerer beat, and APIs answer."""
        try:
            self._call("GET", "/execution/health", authorised=False)  # tasks use it; its first answer takes seconds
            health = self._call("GET", "/api/v2/monitor/health", authorised=False)
        except TidemarkError:
            return False
        return all(health[part].get("status") == "healthy" for part in ("scheduler", "dag_processor", "triggerer"))

    def has_dag(self, dag_id: str) -> bool:
        """Returns True if *dag_id* has been parsed."""
        return self.is_paused(dag_id) is not None

    def is_paused(self, dag_id: str) -> bool | None:
        """Returns True if *dag_id* is paused; None: it has not been parsed."""
        try:
            return bool(self._get(f"/api/v2/dags/{dag_id}")["is_paused"])
        except AirflowError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def import_errors(self) -> dict[str, str]:
        """Returns the traceback of each DAG file that could not be imported."""
        errors = self._get("/api/v2/importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in errors}

    def topologies(self) -> list[str]:
        """Returns the names of the topologies on Tidemark's pages."""
        return list(self._get("/tidemark/topologies")["topologies"])

    def pause(self, dag_id: str) -> None:
        """Pauses *dag_id*: no further run and no task starts."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": True})

    def unpause(self, dag_id: str) -> None:
        """Unpauses *dag_id*."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id: str, conf: dict[str, Any]) -> str:
        """Triggers a run of *dag_id* with the params *conf*; returns its id."""
        run = self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        return str(run["dag_run_id"])

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clears a task of a run, so that it starts again."""
        body = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": [task_id]}
        self._call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Marks a task of a run as `success` or `failed`."""
        self._call("PATCH", f"{_run(dag_id, run_id)}/taskInstances/{task_id}", {"new_state": state})

    def runs(self, dag_id: str) -> dict[str, str]:
        """Returns states of *dag_id*'s newest runs by run id, newest first."""
        runs = self._get(f"/api/v2/dags/{dag_id}/dagRuns?order_by=-run_after")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in runs}

    def succeeded_partitions(self, dag_id: str) -> dict[str, datetime]:
        """Returns when the newest run of *dag_id* that succeeded was queued, by partition key."""
        newest: dict[str, datetime] = {}
        for offset in count(0, PAGE):
            runs = self._get(f"/api/v2/dags/{dag_id}/dagRuns?state={SUCCESS}&limit={PAGE}&offset={offset}")["dag_runs"]
            for run in runs:
                key, queued_at = run["partition_key"], datetime.fromisoformat(run["queued_at"])
                newest[key] = max(queued_at, newest.get(key, queued_at))
            if len(runs) < PAGE:
                break
        return newest

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Returns `queued`, `running`, `success` or `failed`."""
        return str(self._get(_run(dag_id, run_id))["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Returns the states of a run's tasks; None: not scheduled yet."""
        tasks = self._get(f"{_run(dag_id, run_id)}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in tasks}

    def newest_run_of(self, dag_id: str, task_id: str) -> TaskInstance | None:
        """Returns the task in the newest run of its DAG; None: Airflow does not know it."""
        return self._first_run(dag_id, "~", task_id)

    def run_of(self, dag_id: str, task_id: str, run_id: str) -> TaskInstance | None:
        """Returns the task in the run *run_id*; None: Airflow does not know it, or not any more."""
        return self._first_run(dag_id, run_id, task_id)

    def some_that_ran_at(self, at_ms: int) -> list[TaskInstance]:
        """Returns two of the tasks that ran at *at_ms*, epoch ms, or all if there are fewer.

        Airflow lists a task with its newest try, so one that ran then in an earlier try is not found.
        """
        at = datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        # A task without an end date is one that still runs.
        wanted = urllib.parse.urlencode({"start_date_lte": at, "end_date_gte": at, "limit": 2})
        found = self._get(f"/api/v2/dags/~/dagRuns/~/taskInstances?{wanted}")["task_instances"]
        return [_task_run(each) for each in found]

    def inlets_of(self, dag_id: str, task_id: str) -> list[str]:
        """Returns the URIs of the assets that the task declares to read."""
        wanted = urllib.parse.urlencode({"dag_ids": dag_id, "limit": PAGE})
        assets = self._get(f"/api/v2/assets?{wanted}")["assets"]
        task = {"dag_id": dag_id, "task_id": task_id}
        return [each["uri"] for each in assets if any(task.items() <= of.items() for of in each["consuming_tasks"])]

    def assets_that_triggered(self, dag_id: str, run_id: str) -> list[str]:
        """Returns the URIs of the assets whose events triggered the run."""
        events = self._get(f"{_run(dag_id, run_id)}/upstreamAssetEvents")["asset_events"]
        return [event["uri"] for event in events if event["uri"]]

    def _first_run(self, dag_id: str, run_id: str, task_id: str) -> TaskInstance | None:
        wanted = urllib.parse.urlencode({"task_id": task_id, "order_by": "-run_after", "limit": PAGE})
        try:
            found = self._get(f"{_run(dag_id, run_id)}/taskInstances?{wanted}")["task_instances"]
        except AirflowError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        runs = [_task_run(each) for each in found]
        # A mapped task has several instances in a run.
        of_first = [each for each in runs if each.run_id == runs[0].run_id]
        return max(of_first, key=lambda run: (run.state in FAILED, not run.has_ended, run.ended_ms or 0), default=None)

    def log(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """Returns the lines that the newest try of a task has logged."""
        task = f"{_run(dag_id, run_id)}/taskInstances/{task_id}"
        number = max(1, self._get(task)["try_number"])
        content = self._get(f"{task}/logs/{number}?full_content=true")["content"]
        return [line if isinstance(line, str) else _line(line) for line in content]

    def _get(self, path: str) -> Any:
        return self._call("GET", path)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, *, authorised: bool = True) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if authorised and (self.user or self.token):
            headers["Authorization"] = f"Bearer {self._login()}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # the URL is our own
        # A proxy that the environment names cannot reach 127.0.0.1 of this machine.
        is_here = urllib.parse.urlsplit(self.url).hostname in HERE
        without_proxy = [urllib.request.ProxyHandler({})] if is_here else []
        for pause_s in (*PAUSES_S, None):
            try:
                answer = ask(request, *without_proxy, silent_for_s=WITHIN_S)
            except NoAnswer as error:
                msg = f"Airflow does not answer at {self.url} ({error}); if it was stopped, start it with `tidemark up`"
                raise TidemarkError(msg) from error
            if pause_s is None or answer.status < SERVER_ERROR or method not in REPEATABLE:
                break
            time.sleep(pause_s)
        if not 200 <= answer.status < 300:
            msg = f"Airflow refused {method} {path}: {answer.status} {answer.content.decode(errors='replace')[:500]}"
            raise AirflowError(msg, answer.status)
        return json.loads(answer.content or b"{}")

    def _login(self) -> str:
        if self.token is None:
            login = {"username": self.user, "password": self.password}
            self.token = str(self._call("POST", "/auth/token", login, authorised=False)["access_token"])
        return self.token


def _line(entry: Mapping[str, Any]) -> str:
    """Returns the text of a log *entry*, with its exception, if any."""
    raised = [f"{error['exc_type']}: {error['exc_value']}" for error in entry.get("error_detail") or []]
    return "\n".join([str(entry.get("event", "")), *raised])


def _task_run(task: Mapping[str, Any]) -> TaskInstance:
    names = {"dag_id": task["dag_id"], "task_id": task["task_id"], "run_id": task["dag_run_id"]}
    return TaskInstance(
        **names, state=task["state"], started_ms=_at_ms(task["start_date"]), ended_ms=_at_ms(task["end_date"])
    )


def _at_ms(instant: str | None) -> int | None:
    return None if instant is None else round(datetime.fromisoformat(instant).timestamp() * 1_000)


def _run(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{urllib.parse.quote(dag_id, safe='')}/dagRuns/{urllib.parse.quote(run_id, safe='')}"
