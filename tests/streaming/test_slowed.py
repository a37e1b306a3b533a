"""A slowed stream sends one alert and later one resolution.

The number of checks does not matter. `tidemark up` of an installation of its own, real flights, a mail server that is
down at first.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streaming.drivers import PROJECT

from support.mail_and_webhook import Inbox
from tidemark.control import process
from tidemark.local import airflow, stack
from tidemark.local.airflow_api import ENDED
from tidemark.local.conductor import Conductor
from tidemark.local.stack import Home
from tidemark.model.project.files import VARIABLE
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import INCIDENTS, SLA_RESULTS
from tidemark.model.topology import load
from tidemark.storage.delta.report_tables import open_report

SLAS = """
[flights.carrier_state_is_quick]
subject = "carrier_state"
measure = "operator_latency_p50"
error_after = "300 ms"
over = "1 min"
resolve_after = "20 s"
owner = "data platform"
runbook = "https://wiki.example.org/slow"
"""
CHANNELS = """
[desk]
kind = "mail"
to = ["desk@example.org"]
from = "tidemark@example.org"
"""
CHECKS = "tidemark_flights_sla_check"
TIMES = 10
WITHIN_S = 240.0

pytestmark = pytest.mark.long


class Installation:
    """An installation in *home* with own SLAs, channels and *inbox*.

    *inbox* is its mail server.
    """

    def __init__(self, home: Path, inbox: Inbox, patch: pytest.MonkeyPatch) -> None:
        root, self.home = home / "root", Home(home / "home")
        for name in ("dags", "plugins", "jobs", "docker", "expectations"):
            shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        (root / ".jars").symlink_to(PROJECT / ".jars")
        (root / "expectations" / "slas.toml").write_text(SLAS)
        (root / "expectations" / "channels.toml").write_text(CHANNELS)
        patch.setattr(stack, "CHECKOUT", root)
        patch.setenv(VARIABLE, str(root))
        made = airflow.environment
        mail = {"AIRFLOW_CONN_SMTP_DEFAULT": inbox.connection()}
        patch.setattr(airflow, "environment", lambda *args, **how: {**made(*args, **how), **mail})
        self.conductor = Conductor(self.home, load(root / "jobs" / "topologies" / "flights.toml"), print)
        self.address, self.api = self.conductor.start()

    def launch(self, *slow: str) -> None:
        """Have the streams run, with these operators slowed."""
        if any(control.is_held() for control in self.conductor.controls()):
            self.conductor.drain(self.api, by="test")
        self.conductor.launch_streams(self.api, slow)

    def play(self) -> None:
        """Have flights come, two days of them in half an hour."""
        how = ["--from", "2013-06-27", "--to", "2013-06-29", "--speed", "100", "--weather-first", "--seed", "7"]
        command = [sys.executable, str(PROJECT / "jobs" / "replay.py"), "--bootstrap", self.address, *how]
        process.launch("replay", command, home=self.home.path, env={})

    def check(self) -> dict[str, str | None]:
        """Checks the SLAs, sends notifications, and returns the tasks' states."""
        run_id = self.api.trigger(CHECKS, {})
        process.wait_until(lambda: self.api.run_state(CHECKS, run_id) in ENDED, "the end of the check", WITHIN_S)
        return self.api.task_states(CHECKS, run_id)

    def rows(self, table: Any) -> list[dict[str, Any]]:
        path = Layout(self.home.warehouse).report_table("flights", table.name)
        return sorted(
            open_report(table, path).to_pyarrow_table().to_pylist(), key=lambda row: str(row.get("changed_at"))
        )

    def changes(self) -> list[tuple[str, str]]:
        """Returns SLA and change of operators' incidents."""
        return [(row["sla"], row["change"]) for row in self.rows(INCIDENTS)]

    def end(self) -> None:
        """Leave nothing of it."""
        process.stop(self.home.path, "replay")
        airflow.stop(self.home.airflow)
        for driver in self.home.drivers():
            process.stop(driver, stack.DRIVER, grace_s=0)
        process.stop(self.home.broker, "broker", grace_s=0)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.down()


@pytest.fixture
def installation(tmp_path: Path, inbox: Inbox) -> Iterator[Installation]:
    with pytest.MonkeyPatch.context() as patch:
        found = None
        try:
            found = Installation(tmp_path, inbox, patch)
            yield found
        finally:
            if found is not None:
                found.end()


def test_a_slowed_stream_is_alerted_once_and_resolved_once(installation: Installation, inbox: Inbox) -> None:
    installation.launch("carrier_state=400")
    installation.play()
    installation.api.unpause(CHECKS)
    told = checked_until(installation, lambda: bool(installation.changes()))
    assert installation.changes() == [("carrier_state_is_quick", "opened")]
    assert told["tell_desk"] == "failed"  # the mail server is down

    for _ in range(TIMES - 1):
        assert installation.check()["tell_desk"] == "failed"
    assert inbox.mails == []
    inbox.up()
    assert installation.check()["tell_desk"] == "skipped"  # `check_sla` has told the desk
    (opened_mail,) = inbox.mails
    assert opened_mail["Subject"] == "[critical] flights: carrier_state_is_quick is broken (error)"
    assert "Look at: carrier_state<br>" in opened_mail.get_body().get_content()

    installation.launch()
    checked_until(installation, lambda: len(installation.changes()) > 1)
    for _ in range(3):
        assert installation.check()["tell_desk"] == "skipped"
    assert installation.changes() == [("carrier_state_is_quick", "opened"), ("carrier_state_is_quick", "resolved")]
    assert [mail["Subject"].partition(": ")[2] for mail in inbox.mails] == [
        "carrier_state_is_quick is broken (error)",
        "carrier_state_is_quick is met again",
    ]


def checked_until(installation: Installation, is_told: Callable[[], bool]) -> dict[str, str | None]:
    """Check until *is_told*; how the tasks of the last check ended."""
    for _ in range(2 * TIMES):
        ended = installation.check()
        if is_told():
            return ended
    verdicts = [(row["verdict"], row["message"]) for row in installation.rows(SLA_RESULTS)]
    msg = f"no verdict after {2 * TIMES} checks: {verdicts}"
    raise AssertionError(msg)
