"""Lines of JSON between the checker and its parent; cheap to import."""

from __future__ import annotations

from dataclasses import dataclass

EVERY_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the parent says first.

    Attributes:
        warehouse: folder or URL of the tables.
        every_s: seconds from round to round.
        alive_url: gets a request each minute while checks are made; empty for none.
    """

    warehouse: str
    every_s: float = EVERY_S
    alive_url: str = ""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the checker says when Airflow has to run for a topology.

    Attributes:
        topology: its name.
        at_ms: the instant of the check that found why, epoch ms.
        run_id: the run of that check; None if the reason is that what an earlier process found is not delivered yet.
        why: the reasons, in words.
    """

    topology: str
    at_ms: int
    run_id: str | None
    why: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What the checker says after each round.

    Attributes:
        cpu_s: CPU seconds of the round.
        failed: topologies whose SLAs could not be judged.
    """

    cpu_s: float
    failed: tuple[str, ...]
