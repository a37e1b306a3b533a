"""Shows unusable topologies, SLAs and channels as an import error in Airflow.

It has no DAG. An import error removes all DAGs of its file, so the other DAG files leave such a topology out and stay.
"""

from tidemark_airflow import refuse_mistakes

refuse_mistakes()
