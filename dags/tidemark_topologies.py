"""Has no DAG: makes Airflow show topology files, SLAs and channels that cannot be used, as an import error of its own.

An import error takes all DAGs of its file away, so the other DAG files leave such a topology out and go on.
"""

from __future__ import annotations

from tidemark.errors import InvalidSpec
from tidemark.spec import channel_spec, sla_spec
from tidemark_dags import TOPOLOGIES, broken, topologies
from tidemark_sla import CHANNELS, SLAS

known = topologies().values()
names = {*(topology.name for topology in known), *(file.stem for file in TOPOLOGIES.glob("*.toml"))}
found = (
    ([*broken().values()], "Until then their DAGs are not run, nor shown; drivers go on."),
    (
        sla_spec.mistakes(SLAS, known, names),
        "Until then what these promise is not checked; check_sla of a topology that has such fails.",
    ),
    (channel_spec.mistakes(CHANNELS), "Until then people are told of incidents in logs alone."),
)
if lines := [str(line) for errors, until_then in found if errors for line in (*errors, until_then)]:
    raise InvalidSpec("\n".join(lines))
