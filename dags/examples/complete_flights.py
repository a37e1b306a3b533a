"""Counts the flights of each complete interval, as another team would."""

import logging

from airflow.sdk import DAG, PartitionedAssetTimetable, task

from tidemark_airflow import complete_table

log = logging.getLogger(__name__)
BOARD = complete_table("flights", "status", "flight_board")
DOC = "Runs for each interval of `flight_board` that the watermark has passed, and again if a late record reopens it."

with DAG("complete_flights", schedule=PartitionedAssetTimetable(assets=BOARD), tags=["example", "flights"], doc_md=DOC):

    @task(retries=3)
    def count(dag_run=None, triggering_asset_events=None):
        """Returns the interval with the number of its records."""
        start = dag_run.partition_key
        interval = triggering_asset_events[BOARD][-1].extra["intervals"][start]
        log.info(
            "from %s to %s: %s records; number of times that late records reopened it: %s",
            start,
            interval["end"],
            interval["records"],
            interval["reopenings"],
        )
        return {"start": start, **interval}

    count()
