"""Registers a warehouse in catalogs of other systems."""
