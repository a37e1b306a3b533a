"""Carries out a decided batch: commits, facts, compaction."""
