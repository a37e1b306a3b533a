"""Commands that show what became of records."""
