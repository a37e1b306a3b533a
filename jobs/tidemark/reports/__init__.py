"""The batch jobs, which make rollups, critical paths and pages from what the streams have written."""
