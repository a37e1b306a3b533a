"""`tidemark start-over` deletes what a topology has written, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandOutput, tidemark
from support.play import Play, ms
from support.topologies import NEWEST
from tidemark.model.project.layout import Layout
from tidemark.reports.repairs import split_plan
from tidemark.storage.delta.tables import scan

READER = """name = "reader"
[operators.board]
kind = "source"
delta = "streams/play/flights/board"
fields = "id string, v int, event_time bigint"
timestamp = "event_time"
bound = "1 s"
[operators.out]
kind = "sink"
input = "board"
table = "out"
"""


class Project:
    """A project whose topology `play` has written, beside a topology that reads one of its tables."""

    def __init__(self, home: Path) -> None:
        self.home, self.play = home, Play(NEWEST, home / "warehouse")
        self.layout = Layout(self.play.home)
        for folder in ("topologies", "expectations"):
            (home / folder).mkdir()
        (home / "topologies" / "play.toml").write_text(NEWEST, encoding="utf-8")
        reads = READER.replace("flights", self.play.sub)
        (home / "topologies" / "reader.toml").write_text(reads, encoding="utf-8")
        self.batches(self.play)

    @staticmethod
    def batches(play: Play) -> None:
        for k in range(3):
            play.batch([play.row("events", ms(k), key="a", id="a", v=k)], at_ms=ms(k + 1))

    def run(self, *words: str) -> CommandOutput:
        return tidemark(self.home, "--warehouse", str(self.play.home), "start-over", "play", *words)

    def decisions(self) -> list[dict[str, Any]]:
        path = self.layout.report_table("play", "decisions")
        return scan(path).collect().to_dicts() if path.exists() else []

    def content(self) -> set[str]:
        return {str(path) for path in self.play.home.rglob("*") if path.is_file()}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_dry_run_names_tables_and_readers_and_deletes_nothing(project: Project) -> None:
    (project.play.home / "tidemark.duckdb").touch()
    before = project.content()
    answer = project.run("--dry-run")
    effect, plan = split_plan(answer.stdout)
    lines = effect.splitlines()
    assert lines[0].startswith("play starts over: ")
    another = 'give the source another name and starting_offsets = "earliest"'
    assert f"reader.board reads board, and refuses the new one: {another}" in lines
    assert "views of tidemark.duckdb read its tables: publish them again once it runs" in lines
    assert lines[-1] == "topics stay, and are read from where starting_offsets says"
    board = next(line.split() for line in lines if " board " in line)
    assert board[:3] == [project.play.sub, "board", "1"]
    assert (answer.returncode, plan is not None, project.content()) == (0, True, before)


def test_a_fresh_start_gives_the_results_of_a_new_topology(project: Project, tmp_path: Path) -> None:
    kept = project.layout.stream_table("other", "sub", "changes")
    kept.mkdir(parents=True)
    (kept / "file").write_text("another topology's", encoding="utf-8")
    rows = project.play.rows("changes")

    answer = project.run("--yes", "--by", "Ann", "--note", "another key")

    assert (answer.returncode, answer.stderr) == (0, "")
    assert "no stream of play runs in" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "`tidemark up play` starts it here; elsewhere its DAG of streams does"
    (decision,) = project.decisions()
    assert {name: decision[name] for name in ("decision", "decided_by", "note", "outcome")} == {
        "decision": "start-over", "decided_by": "Ann", "note": "another key", "outcome": "applied",
    }  # fmt: skip
    assert not project.layout.stream_table("play", project.play.sub, "changes").exists()
    assert (kept / "file").exists()
    again = Play(NEWEST, project.play.home)
    project.batches(again)
    same = ("batch_id", "operator", "key", "value")
    assert [[row[name] for name in same] for row in again.rows("changes")] == [[r[n] for n in same] for r in rows]


def test_nothing_is_deleted_without_an_answer_or_with_a_stale_plan(project: Project) -> None:
    before = project.content()
    asked = project.run()
    assert asked.returncode == 1
    assert "nothing was deleted, since nobody can be asked here; add --yes" in asked.stderr
    stale = project.run("--plan", "0123456789ab")
    assert (stale.returncode, "this is not what plan 0123456789ab showed" in stale.stderr) == (4, True)
    assert {path for path in project.content() if not path.endswith("repair.lock")} == before
