"""Keeps files and tables, on disks and in object stores."""
