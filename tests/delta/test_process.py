"""Processes are found by (pid, start time) and stopped with children."""

import json
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.control import process
from tidemark.errors import InvalidArgument, TidemarkError

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for pid_file in tmp_path.glob("*.pid.json"):
        process.stop(tmp_path, pid_file.name.removesuffix(".pid.json"), grace_s=0)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def said(home: Path, name: str, word: str) -> str:
    log = home / f"{name}.log"
    process.wait_until(lambda: word in log.read_text(), f"{word!r} in the log of {name}", 10)
    return log.read_text()


def runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_launched_process_is_found_again_by_its_name(home: Path) -> None:
    launched = process.launch("sleeper", SLEEP, home=home, env=ENV)
    assert process.find(home, "sleeper") == launched
    assert process.find(home, "another") is None
    assert os.getsid(launched.pid) == launched.pid != os.getsid(0)


def test_launching_a_name_that_lives_returns_the_same_process(home: Path) -> None:
    first = process.launch("sleeper", SLEEP, home=home, env=ENV)
    assert process.launch("sleeper", SLEEP, home=home, env=ENV) == first


def test_output_goes_to_the_log_and_the_environment_is_as_given(home: Path) -> None:
    talker = python("""
        import os, sys
        print(os.environ.get('HOME'), os.environ['COLOUR'], flush=True)
        print('err', file=sys.stderr)
    """)
    process.launch("talker", talker, home=home, env=ENV | {"COLOUR": "blue"})
    assert said(home, "talker", "err") == "None blue\nerr\n"


def test_a_reused_pid_is_not_the_process(home: Path) -> None:
    stranger = process.launch("stranger", SLEEP, home=home, env=ENV)
    ours = {"pid": stranger.pid, "started": stranger.started - 1}
    (home / "ours.pid.json").write_text(json.dumps(ours))
    assert process.find(home, "ours") is None
    process.stop(home, "ours")
    assert process.is_alive(stranger)
    assert not (home / "ours.pid.json").exists()


def test_an_ended_process_is_not_alive_and_can_be_relaunched(home: Path) -> None:
    first = process.launch("sleeper", SLEEP, home=home, env=ENV)
    os.kill(first.pid, signal.SIGKILL)
    process.wait_until(lambda: not process.is_alive(first), "its end", 5)
    assert process.find(home, "sleeper") is None
    assert process.launch("sleeper", SLEEP, home=home, env=ENV).pid != first.pid


def test_stopping_twice_or_what_never_ran_is_no_error(home: Path) -> None:
    launched = process.launch("sleeper", SLEEP, home=home, env=ENV)
    process.stop(home, "sleeper")
    process.stop(home, "sleeper")
    process.stop(home / "nowhere", "nothing")
    assert not runs(launched.pid)


def test_stopping_is_as_quick_as_the_process(home: Path) -> None:
    process.launch("sleeper", SLEEP, home=home, env=ENV)
    said(home, "sleeper", "up")
    before = time.monotonic()
    process.stop(home, "sleeper", grace_s=60)
    assert time.monotonic() - before < 30


def test_a_process_that_ignores_sigterm_is_killed_after_grace(home: Path) -> None:
    deaf = python("""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print('up', flush=True)
        time.sleep(60)
    """)
    launched = process.launch("deaf", deaf, home=home, env=ENV)
    said(home, "deaf", "up")
    process.stop(home, "deaf", grace_s=0.3)
    assert not runs(launched.pid)


CHILD = """
    import subprocess, sys, time
    child = subprocess.Popen(['sleep', '60'], start_new_session={own_session})
    print('child', child.pid, 'up', flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("own_session", [False, True])
def test_children_are_stopped_too_even_in_a_session_of_their_own(home: Path, own_session: bool) -> None:  # noqa: FBT001 - a parameter of the table
    process.launch("parent", python(CHILD.format(own_session=own_session)), home=home, env=ENV)
    child = int(said(home, "parent", "up").split()[1])
    assert runs(child)
    process.stop(home, "parent")
    assert not runs(child)


def test_the_session_of_a_leader_that_died_is_stopped(home: Path) -> None:
    leader = process.launch("parent", python(CHILD.format(own_session=False)), home=home, env=ENV)
    child = int(said(home, "parent", "up").split()[1])
    os.kill(leader.pid, signal.SIGKILL)
    process.wait_until(lambda: not process.is_alive(leader), "its end", 5)
    assert runs(child)
    process.stop(home, "parent")
    assert not runs(child)


def test_launching_after_the_leader_died_stops_what_it_left(home: Path) -> None:
    leader = process.launch("parent", python(CHILD.format(own_session=False)), home=home, env=ENV)
    child = int(said(home, "parent", "up").split()[1])
    os.kill(leader.pid, signal.SIGKILL)
    process.wait_until(lambda: not process.is_alive(leader), "its end", 5)
    process.launch("parent", SLEEP, home=home, env=ENV)
    assert not runs(child)


def test_signals_that_the_launcher_ignores_reach_the_process(home: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        process.launch("sleeper", SLEEP, home=home, env=ENV)
    finally:
        signal.signal(signal.SIGTERM, before)
    said(home, "sleeper", "up")
    started = time.monotonic()
    process.stop(home, "sleeper", grace_s=60)
    assert time.monotonic() - started < 30


def test_a_missing_program_is_named(home: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"broker cannot start: program 'no-such-java' not found"):
        process.launch("broker", ["no-such-java"], home=home, env=ENV)


def test_waiting_too_long_names_the_cause_and_shows_the_log(home: Path) -> None:
    launched = process.launch("sleeper", SLEEP, home=home, env=ENV)
    said(home, "sleeper", "up")
    with pytest.raises(TidemarkError, match=r"(?s)^waiting for an answer: timeout after 0.2 s; the end of .*up$"):
        process.wait_until(lambda: False, "an answer", 0.2, by=[launched])


def test_waiting_ends_soon_after_the_process_has_died(home: Path) -> None:
    launched = process.launch("failing", python("raise SystemExit('no such port')"), home=home, env=ENV)
    before = time.monotonic()
    with pytest.raises(TidemarkError, match=r"(?s)failing has died; start it again; the end of .*no such port"):
        process.wait_until(lambda: False, "an answer", 60, by=[launched])
    assert time.monotonic() - before < 30


def test_a_long_wait_polls_less_often_and_ends_2_s_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, polls = [0.0], []

    def holds() -> bool:
        polls.append(now_s[0])
        return now_s[0] >= 60

    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now_s.__setitem__(0, now_s[0] + seconds))
    process.wait_until(holds, "a minute", 600)
    # 20 times in the first 2 s, then each 1.05 times as late as the one before (log(20) / log(1.05) = 61.4), and each 2
    # s from 40 s on.
    assert 20 + 61 + 10 <= len(polls) <= 20 + 63 + 11
    assert polls[:3] == [0, 0.1, 0.2]
    assert 60 <= polls[-1] < 60 + 2

    now_s[0], polls[:] = 0.0, []
    process.wait_until(holds, "a minute", 600, poll_s=2)
    assert polls[:3] == [0, 2, 4]


def test_a_death_late_in_a_long_wait_is_noticed_soon(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, now_s = process.launch("sleeper", SLEEP, home=home, env=ENV), [0.0]

    def pause(seconds: float) -> None:
        now_s[0] += seconds
        if now_s[0] >= 100:
            os.kill(launched.pid, signal.SIGKILL)
            os.waitid(os.P_PID, launched.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("time.sleep", pause)
    with pytest.raises(TidemarkError, match="sleeper has died"):
        process.wait_until(lambda: False, "an answer", 600, by=[launched])
    # A twentieth of 100 s would be a pause of 5 s.
    assert 100 <= now_s[0] <= 102


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", process.free_port()))
