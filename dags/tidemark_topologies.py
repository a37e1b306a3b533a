"""Has no DAG: makes Airflow show topology files and channels that cannot be used, as import errors of this file alone.

An import error takes all DAGs of its file away, so the other DAG files leave such a topology out and go on.
"""

from __future__ import annotations

from tidemark.errors import InvalidSpec
from tidemark.spec.channel_spec import load
from tidemark_dags import broken
from tidemark_sla import CHANNELS

if errors := broken():
    raise InvalidSpec("\n".join([*map(str, errors), "Until then their DAGs are not run, nor shown; drivers go on."]))
try:
    load(CHANNELS)
except InvalidSpec as error:
    msg = f"{error}\nUntil then people are told of incidents in logs alone."
    raise InvalidSpec(msg) from None
