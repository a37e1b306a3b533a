"""Parses the records of sources and sorts them by usability."""
