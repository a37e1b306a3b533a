from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemark.cli.main import _home
from tidemark.errors import InvalidArgument
from tidemark.model.project.files import CHECKOUT, VARIABLE, Project, user_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Creates the folders that `tidemark init` makes."""
    for name in ("topologies", "expectations"):
        (tmp_path / "mine" / name).mkdir(parents=True)
    return tmp_path / "mine"


def test_a_project_is_found_from_any_folder_in_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(folder / "topologies")
    assert Project.here() == Project(folder)
    monkeypatch.chdir(folder.parent)
    assert Project.here() == Project(CHECKOUT)


def test_the_variable_goes_before_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(folder))
    found = Project.here()
    places = [found.topologies, found.slas, found.channels, found.connections, found.state]
    assert [str(place.relative_to(folder)) for place in places] == [
        "topologies", "expectations/slas.toml", "channels.toml", "connections.toml", ".tidemark",
    ]  # fmt: skip


def test_a_variable_that_names_no_project_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(InvalidArgument, match=r"TIDEMARK_PROJECT must be a folder with topologies, got .*`tidemark in"):
        Project.here()


def test_a_checkout_is_the_project_of_the_demo() -> None:
    found = Project(CHECKOUT)
    places = [found.topologies / "flights.toml", found.slas, found.channels]
    assert [str(place.relative_to(CHECKOUT)) for place in places if place.is_file()] == [
        "jobs/topologies/flights.toml", "expectations/slas.toml", "expectations/channels.toml",
    ]  # fmt: skip


def test_the_local_stack_outside_of_a_project_names_its_owner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in (VARIABLE, "TIDEMARK_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for place, expected in (
        (folder, ""),
        (CHECKOUT / "docs", ""),
        (folder.parent, f"no project here (`tidemark init` creates one); using the demo's in {CHECKOUT}\n"),
    ):
        monkeypatch.chdir(place)
        _home("topic")
        assert capsys.readouterr().err == expected
    _home("sql")
    assert capsys.readouterr().err == ""


def test_a_user_without_a_home_learns_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/home/ann/.local/state/tidemark")
    # A container may run as a user that its system does not know.
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 3_000_000_000)
    with pytest.raises(InvalidArgument, match=r"user 3000000000 has no home folder; set HOME or XDG_STATE_HOME"):
        user_folder("XDG_STATE_HOME", ".local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/state/tidemark")
