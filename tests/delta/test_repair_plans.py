"""Repairs show what they would change, and change that or nothing."""

from __future__ import annotations

import os
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandOutput, tidemark
from support.repairable import COMMANDS, LOSS, REMOVAL, REOPENING, RESET, RESHARDING, Repairable
from tidemark.cli.shared.plan import RepairPlan, carry_out
from tidemark.control.folder import Control
from tidemark.model.project.layout import Layout
from tidemark.reports.repairs import split_plan
from tidemark.storage.delta.tables import scan
from tidemark.storage.locks import open_lock, take_lock

EFFECTS = {
    LOSS: "play/events skips records of events that it has not read: partition 0 from offset 4 until 9 (5) "
    "(of a hop these are batches)",
    RESET: "events, partition 1: time goes back from 2014-06-05T15:33:20.000Z to 2014-05-13T12:00:30.000Z with the "
    "next batch; the watermark is 2014-05-13T12:00:23.999Z then\nno window stays closed",
    REOPENING: "counts: 1 of 1 late records would be taken in again with the next batch of events",
    RESHARDING: "play/events: its state after batch 2 goes from 1 shard to 2 shards; its file has shards = 1",
}
ANN = {
    LOSS: ("--by", "Ann", "--reason", "retention"),
    RESET: ("--by", "Ann", "--reason", "a clock in 2014"),
    REMOVAL: ("--by", "Ann", "--note", "power cut"),
    REOPENING: ("--by", "Ann", "--note", "late feed"),
    RESHARDING: ("--by", "Ann", "--note", "too slow"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Repairable:
    return Repairable(tmp_path_factory.mktemp("project") / "project")


@pytest.fixture
def stopped(project: Repairable, tmp_path: Path) -> Repairable:
    return project.copy(tmp_path / "project")


def run(stopped: Repairable, command: str, *more: str) -> CommandOutput:
    return tidemark(stopped.home, "--warehouse", str(stopped.warehouse), *command.split(), *more)


def shown(stopped: Repairable, command: str) -> tuple[str, str | None]:
    """Returns effect and plan of a dry run."""
    answer = run(stopped, command, "--dry-run")
    assert (answer.returncode, answer.stderr) == (0, "")
    return split_plan(answer.stdout)


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "repair.lock")
    return {str(path): path.read_bytes() for path in files}


def decisions(stopped: Repairable) -> list[dict[str, Any]]:
    path = Layout(stopped.warehouse).report_table("play", "decisions")
    return scan(path).sort("decided_at").collect().to_dicts() if path.exists() else []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_dry_run_shows_a_change_that_a_plan_makes_once(stopped: Repairable, command: str) -> None:
    before = content(stopped.warehouse)
    effect, plan = shown(stopped, command)
    assert content(stopped.warehouse) == before
    if command == REMOVAL:
        assert (
            effect.splitlines()[0] == f"play/events: checkpoint_torn: {stopped.torn} is incomplete; it is not used yet"
        )
        assert effect.splitlines()[-1] == f"it removes {stopped.torn}"
    else:
        assert effect == EFFECTS[command]
    assert plan is not None

    refused = run(stopped, command, "--plan", "0123456789ab", *ANN[command])
    assert refused.returncode == 4
    assert (
        f"this is not what plan 0123456789ab showed, and nothing was changed; now it is plan {plan}" in refused.stderr
    )
    assert content(stopped.warehouse) == before

    done = run(stopped, command, "--plan", plan, *ANN[command], "--asked-in", "decisions run try 1")
    assert (done.returncode, done.stderr) == (0, "")
    assert content(stopped.warehouse) != before
    (row,) = decisions(stopped)
    decided_at = row.pop("decided_at")
    assert abs((datetime.now(UTC) - decided_at).total_seconds()) < 600
    assert row.pop("result").splitlines()[0] in done.stdout
    assert row == {
        "topology": "play",
        "decision": command.split()[0],
        "subject_kind": "topology" if command == REOPENING else "sub_topology",
        "subject": "play" if command == REOPENING else "events",
        "effect": effect,
        "outcome": "applied",
        "decided_by": "Ann",
        "ends_at": None,
        "note": ANN[command][-1],
        "asked_in": "decisions run try 1",
    }
    again = run(stopped, command, "--plan", plan, *ANN[command])
    assert (again.returncode, "nothing was changed" in again.stderr) == (4, True)
    assert len(decisions(stopped)) == 1


def test_no_repair_comes_between_a_plan_and_its_row(tmp_path: Path) -> None:
    layout, locked = Layout(tmp_path), []

    def look(result: Any) -> Any:
        lock = open_lock(layout.repair_control("play") / "repair.lock")
        locked.append(not take_lock(lock, within_s=0))
        os.close(lock)
        return result

    plan = RepairPlan(topology="play", sub_topology=None, effect="e", state=1, apply=lambda: look("done"))
    options = Namespace(dry_run=False, plan=plan.id, command="reshard", by="Ann", asked_in=None)
    assert carry_out(lambda: look(plan), options, layout, "play", note=None) == "done"
    assert locked == [True, True]
    look(None)
    assert locked[-1] is False


def test_a_plan_ends_when_the_stream_has_gone_on(stopped: Repairable) -> None:
    loss, reset, resharding = (shown(stopped, command)[1] for command in (LOSS, RESET, RESHARDING))
    stopped.batch((0, 26))
    assert shown(stopped, LOSS)[1] != loss
    assert shown(stopped, RESHARDING)[1] != resharding
    assert shown(stopped, RESET)[1] == reset, "no window was closed, and the other partition is where it was"
    refused = run(stopped, LOSS, "--plan", str(loss), *ANN[LOSS])
    assert (refused.returncode, "partition 0 from offset 5 until 9 (4)" in refused.stderr) == (4, True)
    assert Control(stopped.play.control.home).accepted_loss() == {}
    stopped.batch((1, 3_000_000))
    assert shown(stopped, RESET)[1] != reset


def test_what_is_done_already_needs_no_plan(stopped: Repairable) -> None:
    run(stopped, LOSS, *ANN[LOSS])
    effect, plan = shown(stopped, LOSS)
    assert (effect.endswith("; this is accepted already: start the stream"), plan) == (True, None)
    run(stopped, REMOVAL)
    assert shown(stopped, REMOVAL) == ("play: sound", None)
    run(stopped, REOPENING)
    assert shown(stopped, REOPENING)[1] is None
    assert [row["decision"] for row in decisions(stopped)] == ["accept-loss", "doctor", "requeue"]


def test_a_loss_is_accepted_by_a_person_with_a_reason(stopped: Repairable) -> None:
    for given, missing in (("--reason=x", "--by"), ("--by=Ann", "--reason")):
        refused = run(stopped, LOSS, given)
        assert (refused.returncode, f"{missing}: is missing" in refused.stderr) == (1, True)
    assert decisions(stopped) == []
