"""Each command that a page or a `--help` shows can be typed, and is run by a test.

Those that only read are run here, over a day of flights, and repairs with `--dry-run`. The others need a broker,
Airflow, or a state of their own, and RUN_ELSEWHERE names the test that runs each.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from support.command_line import tidemark
from support.documented_commands import PLACEHOLDERS, refusal, shown_commands, unknown_words, variants
from support.flights_day import play_day
from support.reported_window import NOON, reported
from tidemark.cli import main
from tidemark.model.settings.intervals import iso

PROJECT = Path(__file__).parents[2]
SHOWN = shown_commands()
RUN_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "accept-loss": ("delta/test_unread.py", '"accept-loss"'),
    "begin": ("delta/test_begin.py", '"begin"'),
    "check --live": ("streaming/test_check_live.py", "look=True"),
    "demo": ("airflow/test_demo.py", '"demo"'),
    "docs": ("delta/test_dictionary.py", "project.docs import"),
    "down": ("unit/test_local_commands.py", '"down", "mine"'),
    "incidents flights --acknowledge": ("delta/test_incidents_cli.py", '"--acknowledge"'),
    "incidents flights --history": ("delta/test_incidents_cli.py", "history"),
    "incidents flights --snooze": ("delta/test_incidents_cli.py", "snooze"),
    "init": ("unit/test_init.py", '"init"'),
    "init --from-topic": ("streaming/test_from_topic.py", '"--from-topic"'),
    "jars": ("packages/test_extras.py", '"jars"'),
    "logs": ("unit/test_local_commands.py", '"logs"'),
    "plan orders": ("delta/test_begin.py", '"plan"'),
    "publish lineage --send": ("delta/test_lineage_runs.py", '"--send"'),
    "reconcile": ("streaming/test_requeue.py", '"reconcile"'),
    "replay": ("streaming/test_replay.py", "replay"),
    "restart": ("airflow/test_first_topology.py", "tidemark restart"),
    "run": ("delta/test_run.py", '"run"'),
    "run --application": ("delta/test_application.py", '"--application"'),
    "serve-metrics": ("delta/test_metrics.py", "serve_metrics"),
    "suggest slas watch": ("delta/test_suggest_watched.py", '"suggest", "slas", "watch"'),
    "topic": ("airflow/test_first_topology.py", "go_through"),
    "up": ("airflow/test_first_topology.py", "go_through"),
    "watch": ("delta/test_watch.py", "shown_commands"),
}
"""By the words that a command has, a file of tests that runs it, and what it has about the command."""
GUIDES: Mapping[str, tuple[str, str]] = {
    "readings": ("airflow/test_first_topology.py", "first-topology.md"),
    "shop": ("delta/test_recorded_queries.py", "shop"),
    "silver.orders": ("delta/test_watched_why.py", 'why("silver.orders"'),
    "s3a://bucket/warehouse": ("objectstore/test_engine.py", "s3"),
    "s3://lake/silver": ("delta/test_watch_ages.py", '"--warehouse", "warehouse", *words'),
}
"""By a topology or warehouse that is not here, a file of tests with such a one."""
ENDS_WITH_1 = {
    "complete flight_board --at 14:00": "not complete",  # the day ends at 13:18
    "doctor flights": "checkpoint_gone",  # it was played without Spark
    "doctor flights status": "checkpoint_gone",
    "suggest slas flights": "a proposal needs at least 20",
    "trace flights --row flight_board UA753-2013-06-27-EWR": "not verified: this record cannot be read again",
    """trace flights --row carrier_state '{"carrier":"UA","origin":"EWR"}'""": "not verified: ",
}
"""What a command says that finds something wrong, as it should here."""


def typed() -> dict[str, list[str]]:
    """The words of each command that is shown as a whole, by its text."""
    lines = [words for shown in SHOWN if not shown.in_text for words in variants(shown.text)]
    return {shlex.join(words): words for words in lines}


def run_by(words: list[str]) -> tuple[str, str] | None:
    """The test of another file that runs the command *words*; None: it is run here."""
    of_others = [test for name, test in GUIDES.items() if name in words]
    # The key with the most words is the one that is meant.
    of_command = [key for key in RUN_ELSEWHERE if words[0] == key.split()[0] and {*key.split()} <= {*words}]
    return RUN_ELSEWHERE[max(of_command, key=len)] if of_command else next(iter(of_others), None)


HERE = {text: words for text, words in typed().items() if run_by(words) is None}


@pytest.mark.parametrize("where", sorted({shown.where for shown in SHOWN}))
def test_a_shown_command_can_be_typed(where: str) -> None:
    refused = []
    for shown in SHOWN:
        for words in variants(shown.text) if shown.where == where else ():
            problem = refusal(words)
            # In a sentence a command may be named by some of its words.
            if problem and (unknown_words(words) or not shown.in_text):
                refused.append((shown.text, problem))
    assert refused == []


def test_no_example_asks_for_records_of_2013() -> None:
    """A replay gives records the times at which it runs, so only its own options name days of 2013."""
    of_replay = {"demo", "replay"}
    asked = {text: words for text, words in typed().items() if words[0] not in of_replay}
    days = [
        text
        for text, words in asked.items()
        for option, value in pairwise(words)
        if option in {"--at", "--before", "--day", "--from", "--to"} and value.startswith("2013")
    ]
    assert days == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tidemark why flights --colour", "unrecognized arguments: --colour"),
        ("tidemark wy flights", "invalid choice: 'wy'"),
        ("tidemark bound TOPOLOGY [--sorce S]", "unrecognized arguments: --sorce weather"),
        ("tidemark path TOPOLOGY (--at INSTANT | --newest N)", "unrecognized arguments: --newest 3"),
    ],
)
def test_a_command_that_cannot_be_typed_is_found(text: str, said: str) -> None:
    found = [(refusal(words) or "", unknown_words(words)) for words in variants(text)]
    assert [problem for problem, unknown in found if said in problem and unknown] != []


def test_every_command_is_shown() -> None:
    shown = {words[0] for words in typed().values()}
    mentioned = {word for shown in SHOWN for words in variants(shown.text) for word in words[:1]}
    names = {name for name, _, _ in main.COMMANDS}
    # `upgrade` says only whether there is something to do.
    assert (names - shown, names - mentioned) == ({"upgrade"}, set())


@pytest.mark.parametrize("text", sorted(text for text in typed() if text not in HERE))
def test_a_command_that_needs_more_is_run_by_another_test(text: str) -> None:
    file, about = run_by(typed()[text]) or ("", "")
    assert about in (PROJECT / "tests" / file).read_text(encoding="utf-8")


def test_no_test_is_named_for_a_command_that_is_not_shown() -> None:
    used = {run_by(words) for words in typed().values()}
    assert [key for key, test in {**RUN_ELSEWHERE, **GUIDES}.items() if test not in used] == []
    assert {*ENDS_WITH_1} - {*HERE} == set()


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with a day of flights, in which paths of the checkout exist."""
    home = tmp_path_factory.mktemp("day")
    play_day(home / "warehouse")
    (home / "jobs").symlink_to(PROJECT / "jobs")
    return home


@pytest.fixture(scope="module")
def with_reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with a reported window of flights, since reports are written by jobs of their own."""
    home = tmp_path_factory.mktemp("reported")
    reported(home / "warehouse")
    return home


@pytest.mark.parametrize("text", sorted(HERE))
def test_a_shown_command_runs(text: str, day: Path, with_reports: Path) -> None:
    home, words = day, HERE[text]
    if words[0] == "path":
        home, words = with_reports, [word.replace(PLACEHOLDERS["INSTANT"], iso(NOON)) for word in words]
    # The next command finds the same day.
    if refusal([*words, "--dry-run"]) is None:
        words = [*words, "--dry-run"]
    done = tidemark(home, "--home", str(home), *words)
    assert (done.returncode, done.stderr) == (1 if text in ENDS_WITH_1 else 0, "")
    assert ENDS_WITH_1.get(text, "") in done.stdout
