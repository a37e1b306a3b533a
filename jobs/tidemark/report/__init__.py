"""The batch jobs: rollups, critical paths and SLA checks over the tables of the streams."""
