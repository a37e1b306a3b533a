"""Tidemark: how late streams are, why, and which step to blame."""
