"""A short chaos run with its warehouse in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.__main__ import run
from chaos.faults import Draw, copies_harmed, killed_again_at_recovery, killed_at_random, second_driver, taken_over
from chaos.stage import Stage

SEED = 7
KINDS = (taken_over, killed_again_at_recovery, second_driver, killed_at_random, copies_harmed)


@pytest.mark.long
def test_faults_lose_double_and_hide_nothing(warehouse: Path, tmp_path: Path) -> None:
    with Stage(tmp_path, SEED, warehouse=warehouse) as stage:
        draw = Draw(SEED)
        assert run(stage, [kind(draw) for kind in KINDS]) == 0
