"""Runs a short, repeatable chaos run and checks its list of steps.

The list must have every step at which a driver can end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos.__main__ import run
from chaos.faults import STEPS, Draw, broker_killed, killed_again_at_recovery
from chaos.stage import Stage
from streaming.drivers import PROJECT

from support.play import Play, Row

SEED = 4
KINDS = (killed_again_at_recovery, broker_killed)
"""Faults that no other test has; `make chaos` draws from all."""
NOON = 1_400_000_000_000
ONLY_UNDER_SPARK = {"planned", "reading", "done"}


def test_faults_lose_double_and_hide_nothing(tmp_path: Path) -> None:
    with Stage(tmp_path, SEED) as stage:
        draw = Draw(SEED)
        assert run(stage, [kind(draw) for kind in KINDS]) == 0


def test_a_driver_can_crash_at_every_step_between_two_writes(tmp_path: Path) -> None:
    play = Play((PROJECT / "tests" / "chaos" / "chaos.toml").read_text(), tmp_path)

    def scored(at: int, player: str, score: int, team: str = "red") -> Row:
        return play.row("events", NOON + at, key=player, player=player, n=at, team=team, score=score)

    play.batch([scored(0, "ann", 1), scored(2_000, "bob", 1)], at_ms=NOON + 2_000)
    play.hop("teams", at_ms=NOON + 2_000)
    steps: dict[str, list[str]] = {"players": [], "teams": []}
    for sub, reached in steps.items():
        play.start(sub, reached=reached.append, epoch=2)
    of_no_use: dict[str, Any] = {**scored(5_000, "cut off", 1), "reason": "malformed_json", "events": None}
    # The first window closes. One player changes and one does not; the red team keeps its two members and few points.
    play.batch([scored(9_000, "ann", 2), scored(9_001, "bob", 1), scored(1, "ann", 1), of_no_use], at_ms=NOON + 10_000)
    play.hop("teams", at_ms=NOON + 10_000)
    assert "committed changes" not in steps["teams"]
    play.batch([scored(9_002, "cy", 2)], at_ms=NOON + 11_000)
    play.hop("teams", at_ms=NOON + 11_000)
    for sub, reached in steps.items():
        assert set(STEPS[sub]) == {*reached, *ONLY_UNDER_SPARK}, sub
