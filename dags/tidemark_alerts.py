"""One Airflow DAG per topology: it tells people of the SLAs that do not hold."""

from __future__ import annotations

from airflow.sdk import DAG

from tidemark_dags import EVERY_DAG, WAREHOUSE, topologies
from tidemark_sla import DeliverAlerts, SlaNotifier, sla_asset

DOC = "Runs when a check of the topology `{name}` finds SLAs that do not hold, and delivers them to its notifiers."

for topology in topologies().values():
    with DAG(
        f"tidemark_{topology.name}_alerts",
        schedule=[sla_asset(topology.name)],
        tags=["tidemark", topology.name, "alerts"],
        doc_md=DOC.format(name=topology.name),
        **EVERY_DAG,
    ):
        DeliverAlerts(task_id="deliver", notifiers=[SlaNotifier(topology=topology.name, warehouse=WAREHOUSE)])
