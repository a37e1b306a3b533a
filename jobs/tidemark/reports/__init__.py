"""Implements the batch jobs: rollups, critical paths and pages.

They read what the streams have written.
"""
