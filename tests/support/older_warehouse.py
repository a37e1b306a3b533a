"""Provides the streams that an older version has stopped.

tests/delta/test_upgrade.py describes them.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from support.play import Play

WAREHOUSES = Path(__file__).parents[1] / "delta" / "warehouses"
START = 1_795_168_800_000  # 2026-11-20 10:00 UTC
STOPPED = START + 226_300_000
BATCHES = {"devices": 14, "sites": 24, "sites/hop": 9, "regions": 18, "regions/hop": 9}
OFFSETS = {("readings", 0): 5, ("readings", 1): 4, ("site_names", 0): 2}


def stopped(home: Path) -> Play:
    """The streams as they were stopped."""
    with tarfile.open(WAREHOUSES / "before_issue_18.tar.xz") as archive:
        archive.extractall(home, filter="data")
    play = Play((home / "shop.toml").read_text(), home / "warehouse", partitions=2)
    play.resume(BATCHES, OFFSETS)
    return play


def reading(play: Play, device: str, temp_c: float, site: str, second: int) -> dict[str, Any]:
    at_ms = START + second * 1_000
    return play.row("readings", at_ms, key=device, device=device, temp_c=temp_c, site=site)
