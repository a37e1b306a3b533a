"""The batch jobs: rollups, critical paths and pages, of what the streams have written."""
