"""Renders pages about topologies."""
