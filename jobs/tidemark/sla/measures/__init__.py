"""Measures what SLAs promise."""
