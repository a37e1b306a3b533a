"""One Airflow DAG per topology: it tells people of the SLAs that do not hold."""

from __future__ import annotations

from tidemark_dags import WAREHOUSE, dag, topologies
from tidemark_sla import DeliverAlerts, SlaNotifier, sla_asset

DOC = "Runs when a check of the topology `{name}` finds SLAs that do not hold, and delivers them to its notifiers."

for topology in topologies().values():
    with dag(topology, "alerts", doc=DOC, schedule=[sla_asset(topology.name)]):
        DeliverAlerts(task_id="deliver", notifiers=[SlaNotifier(topology=topology.name, warehouse=WAREHOUSE)])
