"""Reports on each complete day of flights, as another team would."""

import logging

from airflow.sdk import DAG, PartitionedAssetTimetable, task

from tidemark.airflow import complete_table

log = logging.getLogger(__name__)
BOARD = complete_table("flights", "status", "flight_board")
DOC = "Runs once for each day of `flights` that is complete in `flight_board`, and once more if that day is reopened."

with DAG("flights_of_a_day", schedule=PartitionedAssetTimetable(assets=BOARD), tags=["example", "flights"], doc_md=DOC):

    @task
    def count(dag_run=None, triggering_asset_events=None):
        """Returns the day with the number of its records."""
        start = dag_run.partition_key
        day = triggering_asset_events[BOARD][-1].extra["intervals"][start]
        log.info("from %s to %s: %s records, reopened %s times", start, day["end"], day["records"], day["reopenings"])
        return {"start": start, **day}

    count()
