"""The command line as a user types it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support import command_line
from support.topologies import sink, source, table, topology_of
from tidemark.cli.explain import tables
from tidemark.cli.project.check import check
from tidemark.control.process import wait_until
from tidemark.errors import InvalidSpec
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.model.project.layout import Layout
from tidemark.storage.delta import data_files
from tidemark.storage.private_folder import private_folder


def tidemark(home: Path, *arguments: str) -> command_line.CommandOutput:
    """Runs the command in this process."""
    return command_line.tidemark(home, "--home", str(home), *arguments)


def new_process(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    code = "import sys; from tidemark.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--home", str(home), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": ""})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = Layout(tmp_path / "warehouse").stream_table("flights", "status", "operator_batches")
    write_deltalake(path, pa.table({"operator": ["weather", "flight_board"], "max_ms": [90, 1500]}))
    return tmp_path


@pytest.mark.parametrize(
    ("format_", "expected"),
    [
        ("table", "operator      max_ms\nflight_board   1,500\nweather           90\n"),
        ("csv", "operator,max_ms\nflight_board,1500\nweather,90\n"),
    ],
)
def test_a_query_answers_in_the_requested_format(home: Path, format_: str, expected: str) -> None:
    query = "select operator, max(max_ms) as max_ms from operator_batches group by 1 order by 1"
    assert new_process(home, "sql", query, "--format", format_).stdout == expected


def test_json_output_is_valid_json(home: Path) -> None:
    answer = tidemark(home, "sql", "select operator, max_ms from operator_batches order by max_ms", "--format", "json")
    assert json.loads(answer.stdout)[1] == {"operator": "flight_board", "max_ms": 1500}


def test_an_error_prints_one_message_and_no_traceback(home: Path) -> None:
    answer = tidemark(home, "sql", "select * from latency")
    assert answer.returncode == 1
    listed = answer.stderr.splitlines()[-1].strip().removeprefix("Tables and views: ").split(", ")
    assert {"operator_batches", "latest_state", "kafka_metrics"} <= set(listed)
    assert "Traceback" not in answer.stderr


ENDLESS = "select count(*) from range(1000000000000) where hash(range) % 7 = 3"
SPILLS = "select count(*) as n from (select distinct range as n, md5(range::varchar) as digest from range(3000000))"


def test_a_query_ends_at_its_time_limit(home: Path, tmp_path: Path) -> None:
    answer = asked(home, tmp_path, ENDLESS, "--timeout", "3").communicate(timeout=60)[1]
    assert answer == ("tidemark sql: the query took longer than 3 s; read less, or give more time with --timeout\n")
    assert not list(tmp_path.glob("tidemark-sql-*"))


def test_a_query_spills_into_a_folder_that_is_removed(home: Path, tmp_path: Path) -> None:
    query = asked(home, tmp_path, SPILLS, "--memory", "150MB", "--format", "csv")
    wait_until(lambda: any(tmp_path.glob("tidemark-sql-*/*")), "spilled rows", 60)
    (folder,) = tmp_path.glob("tidemark-sql-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert query.communicate(timeout=120) == ("n\n3000000\n", "")
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_query_and_leaves_no_file(home: Path, tmp_path: Path, number: signal.Signals) -> None:
    query = asked(home, tmp_path, ENDLESS)
    wait_until(lambda: any(tmp_path.glob("tidemark-sql-*")), "a connection", 60)
    query.send_signal(number)
    assert query.communicate(timeout=60) == ("", "tidemark sql: interrupted\n")
    assert query.returncode == 130
    assert not list(tmp_path.glob("tidemark-sql-*"))


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_a_store_that_does_not_answer_ends_with_the_limit(tmp_path: Path, number: signal.Signals | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        store = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "TIDEMARK_WAREHOUSE": "s3a://bucket/w"}
        limit = "1" if number is None else "600"
        query = asked(tmp_path, tmp_path, "select 1", "--timeout", limit, **store, **keys)
        server.settimeout(60)
        with server.accept()[0]:  # it never answers
            if number is not None:
                query.send_signal(number)
            error = query.communicate(timeout=60)[1]
    listed = "s3a://bucket/w: its tables could not be listed within 1 s; see if the store answers"
    assert error == f"tidemark sql: {listed if number is None else 'interrupted'}\n"
    assert query.returncode == (1 if number is None else 130)
    assert not list(tmp_path.glob("tidemark-sql-*"))


def test_a_pipe_in_the_place_of_a_table_ends_with_the_limit(home: Path, tmp_path: Path) -> None:
    """A file system that does not answer, after the tables were listed."""
    (log,) = home.rglob("00000000000000000000.json")
    log.unlink()
    os.mkfifo(log)
    query = asked(home, tmp_path, "select * from operator_batches", "--timeout", "1")
    assert "longer than 1 s" in query.communicate(timeout=60)[1]
    assert query.returncode == 1


def test_a_killed_query_leaves_no_folder_for_long(home: Path, tmp_path: Path) -> None:
    """Only folders of processes that have ended are removed."""
    killed, living = (asked(home, tmp_path, ENDLESS) for _ in range(2))
    wait_until(lambda: len([*tmp_path.glob("tidemark-sql-*")]) == 2, "two connections", 60)
    killed.kill()
    killed.communicate(timeout=60)
    assert asked(home, tmp_path, "select 1").communicate(timeout=60)[1] == ""
    (left,) = tmp_path.glob("tidemark-sql-*")
    held = [Path(os.readlink(entry)) for entry in Path(f"/proc/{living.pid}/fd").iterdir()]
    assert left in held
    living.terminate()
    living.communicate(timeout=60)
    assert not list(tmp_path.glob("tidemark-sql-*"))


def test_folders_and_links_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "tidemark-sql-link").symlink_to(elsewhere)
    (tmp_path / "tidemark-sql-file").touch()
    (tmp_path / "tidemark-sql-left").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = private_folder("tidemark-sql-")
    assert made.stat().st_mode & 0o777 == 0o700
    names = {"elsewhere", "tidemark-sql-link", "tidemark-sql-file", made.name}
    assert {entry.name for entry in tmp_path.iterdir()} == names


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--memory", "lots"), "'lots' is not a size; for example 512MB or 4GB"),
        (("--timeout", "0"), "'0' is not a number of seconds above 0; for example 60"),
    ],
)
def test_an_impossible_limit_of_a_query_is_refused(home: Path, option: tuple[str, str], message: str) -> None:
    answer = new_process(home, "sql", "select 1", *option)
    assert (answer.returncode, answer.stderr.splitlines()[-1].endswith(message)) == (2, True), answer.stderr


def asked(home: Path, folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts `tidemark sql`, whose temporary files are in *folder*."""
    code = "import sys; from tidemark.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--home", str(home), "sql", *arguments]
    env = {"PATH": "", "TMPDIR": str(folder), **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_a_variable_without_a_project_is_a_one_line_error(tmp_path: Path) -> None:
    code = "import sys; from tidemark.cli.main import main; sys.exit(main())"
    env = {"PATH": "", "TIDEMARK_PROJECT": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", code, "tables"], capture_output=True, text=True, check=False, env=env
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (
        1,
        "",
        f"tidemark tables: TIDEMARK_PROJECT must be a folder with topologies, got {str(tmp_path)!r}; "
        "`tidemark init` makes one\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["sql", "from range(100_000)", "--format", "csv"],
        ["sql", "--script"],
        ["tables"],
        ["check", "nothing.toml"],
        *(
            pytest.param(arguments, marks=pytest.mark.long)
            for arguments in (
                ["sql", "--help"],
                ["sql", "select * from latency"],
                ["check"],
                ["why", "flights"],
                ["replay", "--help"],
            )
        ),
    ],
)
def test_a_closed_pipe_prints_no_traceback(home: Path, arguments: list[str]) -> None:
    answer = into_closed_pipe(home, arguments)
    assert "Traceback" not in answer.stderr
    assert "BrokenPipe" not in answer.stderr
    assert answer.returncode in {0, 1}


def test_an_error_keeps_its_exit_status_when_stderr_is_closed(home: Path) -> None:
    assert into_closed_pipe(home, ["check", "nothing.toml"], errors_too=True).returncode == 1


def into_closed_pipe(home: Path, arguments: list[str], *, errors_too: bool = False) -> subprocess.CompletedProcess[str]:
    read_end, write_end = os.pipe()
    os.close(read_end)
    code = "import sys; from tidemark.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--home", str(home), *arguments]
    errors = write_end if errors_too else subprocess.PIPE
    try:
        return subprocess.run(command, stdout=write_end, stderr=errors, text=True, check=False, env={"PATH": ""})
    finally:
        os.close(write_end)


def test_a_folder_without_tables_differs_from_empty_tables(home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "warehouse").mkdir(parents=True)
    answer = tidemark(tmp_path / "elsewhere", "sql", "from batches")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "no Delta tables yet" in answer.stderr
    assert tidemark(home, "sql", "select count(*) as n from batches", "--format", "csv").stdout == "n\n0\n"


READING = (
    "tables", "sql 1", "sql --script", "why flights", "topology flights", "path flights", "incidents flights",
    "incidents flights --acknowledge x", "whatif flights --operator flight_status --scale 0.5", "bound flights",
    "doctor flights", "requeue flights --dry-run",
    "accept-loss flights status --source weather --partition 0 --until 1 --by Ann --reason x",
)  # fmt: skip


@pytest.mark.parametrize("command", READING)
def test_a_missing_warehouse_is_not_an_empty_one(tmp_path: Path, command: str) -> None:
    absent = tmp_path / "nosuch"
    homes = (["--home", str(absent)], ["--home", str(tmp_path), "--warehouse", str(absent)])
    answers = [command_line.tidemark(tmp_path, *home, *command.split()) for home in homes]
    assert [(answer.returncode, answer.stdout) for answer in answers] == [(1, ""), (1, "")]
    for answer, place, home in zip(answers, (absent / "warehouse", absent), homes, strict=True):
        up = f"`tidemark --home {home[1]} up`"  # which starts streams in the warehouse of its state folder
        assert f"{place}: no such folder: nothing has run yet ({up} starts streams), or choose another" in answer.stderr
    assert not absent.exists()


def test_an_empty_warehouse_has_no_tables_and_no_errors(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    assert tidemark(tmp_path, "tables").returncode == 0


@pytest.mark.parametrize("arguments", [[], ["select 1", "--script"]], ids=["neither", "both"])
def test_a_query_and_the_script_option_exclude_each_other(home: Path, arguments: list[str]) -> None:
    answer = tidemark(home, "sql", *arguments)
    assert answer.returncode == 1
    assert "either a query or --script" in answer.stderr


def test_tables_are_listed_with_their_size(home: Path) -> None:
    heading, table = tidemark(home, "tables").stdout.splitlines()
    assert heading.split() == ["table", "where", "rows", "files", "bytes", "version"]
    assert table.split()[:4] == ["operator_batches", "streams/flights/status", "2", "1"]


def test_a_search_for_damage_that_fails_hides_no_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(message: str) -> Callable[..., NoReturn]:
        def raise_it(*_: object, **__: object) -> NoReturn:
            raise ValueError(message)

        return raise_it

    monkeypatch.setattr(tables, "inventory", fail("what the command met"))
    monkeypatch.setattr(data_files, "damage_of_table", fail("what the search met"))
    with pytest.raises(ValueError, match="what the command met"):
        tidemark(home, "tables")


def test_replay_has_the_options_of_its_job(home: Path) -> None:
    assert "--offline-share" in new_process(home, "replay", "--help").stdout


def test_an_unknown_option_is_refused(home: Path) -> None:
    assert new_process(home, "tables", "--colour").returncode == 2


def test_down_succeeds_when_nothing_runs(home: Path) -> None:
    answer = tidemark(home, "down")
    assert (answer.returncode, answer.stdout) == (0, f"nothing runs in {home}\n")


def test_why_prints_a_line_or_an_object_per_finding(home: Path) -> None:
    none = "has never run: there is no heartbeat and no batch"
    dag = "tidemark_flights_streams"
    in_airflow = f"(in another Airflow `airflow dags unpause {dag} && airflow dags trigger {dag}`)"
    # People type the commands as they are printed. A program that reads JSON knows itself which folder it named.
    typed, begin = f"`tidemark --home {home} up flights` {in_airflow}", f"`tidemark up flights` {in_airflow}"
    line = (
        f"never_started: flight_board: status {none}; start the driver of status: {typed}\n"
        f"never_started: carrier_delays: carriers {none}; start the driver of carriers: {typed}\n"
    )
    assert tidemark(home, "why", "flights").stdout == line
    told = tidemark(home, "why", "flights", "flight_status", "--at", "2026-01-01T12:00Z", "--format", "json")
    assert json.loads(told.stdout) == [
        {"cause": "never_started", "sub_topology": "status", "operator": "flight_status", "input": None}
        | {"partition": None, "since": None, "seen": "status has never run: there is no heartbeat and no batch"}
        | {"remedy": f"start the driver of status: {begin}"}
        | dict.fromkeys(("owner", "detail", "amount_ms", "records", "share"))
    ]


def test_check_lists_valid_topologies_and_refuses_invalid_ones(tmp_path: Path) -> None:
    topologies = Path(__file__).parents[1] / "streaming" / "topologies"
    good = tidemark(tmp_path, "check", str(topologies / "sensors.toml"))
    assert good.returncode == 0
    assert good.stdout.startswith("sensors.toml: sensors/readings: readings, ")
    parts = ("streams", "reports", "sla_check", "daily", "decisions")
    assert good.stdout.splitlines()[-5:] == [
        "sensors: streams: readings",
        "sensors: topics: reads readings at the broker that `tidemark up` starts",
        "sensors: tables: devices, sessions",
        "sensors: SLAs: nothing_gets_lost (completeness of outcomes)",
        f"sensors: DAGs: {', '.join(f'tidemark_sensors_{part}' for part in parts)}",
    ]
    bad = tmp_path / "bad.toml"
    bad.write_text((topologies / "sensors.toml").read_text().replace("temp_c between", "temp_k between"))
    refused = tidemark(tmp_path, "check", str(bad))
    assert refused.returncode == 1
    assert "bad.toml: operators.valid_readings.where: is " in refused.stderr
    assert 'Referenced column "temp_k" not found; it reads the columns ' in refused.stderr
    assert all(internal not in refused.stderr for internal in ("_deleted", "_key", "SELECT", "FROM"))


def test_check_shows_shards_and_a_shared_driver(tmp_path: Path) -> None:
    file = tmp_path / "play.toml"
    head = {"name": "play", "shards": 2, "driver": "small"}
    file.write_text(topology_of(head, events=source(key="id"), latest=table(), out=sink("latest", table="out")))
    lines = tidemark(tmp_path, "check", str(file)).stdout.splitlines()
    assert {"play: streams: events (2 shards)", "play: driver: small"} < {*lines}


def project_of_flights(folder: Path) -> Project:
    """A project in *folder* with the demo's topology and no expectations."""
    project = Project(folder)
    project.expectations.mkdir()
    shutil.copytree(Project(CHECKOUT).topologies, project.topologies)
    return project


def test_check_reports_errors_of_topologies_slas_and_channels(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('name = "bad"\nlevel = "loud"\n')
    project = project_of_flights(tmp_path)
    project.slas.write_text('[flihgts.mine]\n[flights.late]\nownr = "me"\n[flights.slow]\nover = "soon"\n')
    project.channels.write_text('[desk]\nkind = "fax"\n[log]\n')
    with pytest.raises(InvalidSpec) as refused:
        check([bad], tmp_path / "warehouse", project)
    assert [line.partition(":")[2].partition(":")[0].strip() for line in str(refused.value).splitlines()] == [
        "level", "operators", "flihgts", "flights.late.ownr", "flights.late.subject", "flights.late.warn_after",
        "flights.slow.over", "flights.slow.subject", "flights.slow.owner", "flights.slow.warn_after",
        "desk.kind", "log.kind", "log",
    ]  # fmt: skip
    assert "slas.toml: flihgts: is not a topology; did you mean flights?" in str(refused.value)


def test_check_judges_slas_by_the_given_topology_file(tmp_path: Path) -> None:
    sensors = Path(__file__).parents[1] / "streaming" / "topologies" / "sensors.toml"
    project = project_of_flights(tmp_path)
    project.slas.write_text('[sensors.mine]\nsubject = "flight_board"\nowner = "o"\nerror_after = "1 s"\n')
    with pytest.raises(
        InvalidSpec, match=r"^slas\.toml: sensors\.mine\.subject: is 'flight_board', which has no staleness"
    ):
        check([sensors], tmp_path / "warehouse", project)
    with pytest.raises(InvalidSpec, match=r"^slas\.toml: sensors: is not a topology; known topologies: flights$"):
        check([], tmp_path / "warehouse", project)
