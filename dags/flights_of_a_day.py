"""A DAG as another team has it: it counts the flights of each complete day."""

from airflow.sdk import DAG, PartitionedAssetTimetable, task

from tidemark.airflow import complete_table

BOARD = complete_table("flights", "status", "flight_board")
DOC = "Runs once for each day of `flights` that is complete in `flight_board`, and once more if that day is reopened."

with DAG("flights_of_a_day", schedule=PartitionedAssetTimetable(assets=BOARD), tags=["example", "flights"], doc_md=DOC):

    @task
    def count(dag_run=None, triggering_asset_events=None):
        """Returns the day with the number of its records."""
        start = dag_run.partition_key
        day = triggering_asset_events[BOARD][-1].extra["intervals"][start]
        print(f"from {start} to {day['end']}: {day['records']} records, reopened {day['reopenings']} times")
        return {"start": start, **day}

    count()
