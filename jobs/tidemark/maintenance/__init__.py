"""Keeps a warehouse small beside the streams that write it."""
