"""Finds the files, connections and settings of a project."""
