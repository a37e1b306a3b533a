"""Counts rows that break the contracts of tables."""
