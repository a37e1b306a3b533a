"""Commands that show and explain results, and what became of records."""
