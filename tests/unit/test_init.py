"""`tidemark init` lays out a project in which every other command works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from support.command_line import tidemark
from tidemark.cli.project.init import init
from tidemark.errors import InvalidArgument
from tidemark.model.project.files import is_project
from tidemark.model.slas import channel_spec, sla_spec
from tidemark.model.topology import load


def test_a_new_project_is_checked_without_a_mistake(tmp_path: Path) -> None:
    made = tidemark(tmp_path, "init", "mine")
    steps = [line.split("  ")[1] for line in made.stdout.splitlines() if line.startswith("  ")]
    assert (made.returncode, made.stderr) == (0, "")
    create = "tidemark topic create TOPIC --partitions 3"
    assert steps == ["cd mine", "tidemark check", "tidemark test", create, "tidemark up"]
    checked = tidemark(tmp_path / "mine" / "topologies", "check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert (tmp_path / "mine" / ".gitignore").read_text() == ".tidemark/\n"


def test_what_is_written_as_an_example_can_be_used(tmp_path: Path) -> None:
    project = init(tmp_path / "mine")
    example = re.search(r"```toml\n(.*?)```", (project.topologies / "README.md").read_text(), re.DOTALL)
    assert example
    file = project.topologies / "readings.toml"
    file.write_text(example[1])
    for path in (project.slas, project.channels):
        lines = path.read_text().splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("# ["))
        path.write_text("\n".join(line.removeprefix("# ") for line in lines[first:]))
    readings = load(file)
    fresh, *objective = slas = sla_spec.load(project.slas, readings)
    assert (fresh.name, fresh.severity, fresh.while_catching_up) == ("fresh", "warning", "excuse")
    assert (len(fresh.maintenance_windows), fresh.calendar is None) == (1, False)
    assert [sla.name for sla in objective] == ["in_time_1h", "in_time_6h", "in_time_3d"]
    team, lead = channels = channel_spec.load(project.channels)
    assert (team.renotify_after_ms, lead.escalated_by) == (1_800_000, {"sensor_team": 900_000})
    assert [*channel_spec.warnings(channels, [(readings, slas)])] == []


@pytest.mark.parametrize("there", ["topologies", "expectations", "channels.toml", "connections.toml", ".tidemark"])
def test_a_folder_that_has_such_files_is_left_as_it_is(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir()
    with pytest.raises(
        InvalidArgument, match=rf"init changes no file, but the folder has {re.escape(there)}; name another"
    ):
        init(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_a_gitignore_that_is_there_keeps_its_lines(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log")
    init(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "*.log\n.tidemark/\n"
    assert is_project(tmp_path)
    for name in ("topologies", "expectations"):
        shutil.rmtree(tmp_path / name)
    for name in ("channels.toml", "connections.toml"):
        (tmp_path / name).unlink()
    init(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "*.log\n.tidemark/\n"
