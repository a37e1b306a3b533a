"""Reads the facts by which SLAs are judged."""
