"""Decides a batch: its records, outputs and closed windows."""
