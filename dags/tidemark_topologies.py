"""Shows unusable topologies, SLAs and channels as an import error in Airflow.

It has no DAG. An import error removes all DAGs of its file, so the other DAG files leave such a topology out and stay.
"""

# Airflow reads only files whose text has both words, DAG and Airflow.
from __future__ import annotations

from tidemark.collecting import names_in
from tidemark.errors import InvalidSpec
from tidemark.model import channel_spec, sla_spec
from tidemark_dags import TOPOLOGIES, broken, topologies
from tidemark_sla import CHANNELS, SLAS

usable = topologies().values()
# A file that cannot be used may have SLAs, too: it is known by its name alone.
names = {file.stem for file in TOPOLOGIES.glob("*.toml")}
names |= {*names_in(usable)}
mistakes = (
    ([*broken().values()], "Until then their DAGs do not run and are not listed; drivers continue."),
    (
        sla_spec.mistakes(SLAS, usable, names),
        "Until then these SLAs are not checked, and check_sla of their topologies fails.",
    ),
    (channel_spec.mistakes(CHANNELS), "Until then alerts go to logs alone."),
)
lines: list[str] = []
for errors, consequence in mistakes:
    if errors:
        lines += [*map(str, errors), consequence]
if lines:
    raise InvalidSpec("\n".join(lines))
