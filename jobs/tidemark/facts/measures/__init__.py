"""Reads the measurements by which SLAs are judged."""
