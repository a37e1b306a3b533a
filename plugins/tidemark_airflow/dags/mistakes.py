"""Finds unusable topologies, SLAs and channels."""

from __future__ import annotations

from tidemark.errors import InvalidSpec
from tidemark.model.slas import channel_spec, sla_spec
from tidemark.model.topology import name_in
from tidemark_airflow.dags import settings
from tidemark_airflow.operators import sla


def refuse_mistakes() -> None:
    """Raises InvalidSpec with the mistakes of all topologies, SLAs and channels.

    Called in a DAG file without DAGs, this becomes an import error in Airflow, which removes all DAGs of its file. The
    other files leave out a topology that cannot be used.
    """
    usable = settings.topologies_and_jobs().values()
    # A file that cannot be used may have SLAs, too: it is known by its name alone.
    names = {name_in(file) for file in settings.TOPOLOGIES.glob("*.toml")}
    mistakes = (
        ([*settings.broken().values()], "Until then their DAGs do not run and are not listed; drivers continue."),
        (
            sla_spec.mistakes(settings.SLAS, usable, names),
            "Until then these SLAs are not checked, and check_sla of their topologies fails.",
        ),
        (channel_spec.mistakes(sla.CHANNELS), "Until then alerts go to logs alone."),
    )
    lines: list[str] = []
    for errors, consequence in mistakes:
        if errors:
            lines += [*map(str, errors), consequence]
    if lines:
        raise InvalidSpec("\n".join(lines))
