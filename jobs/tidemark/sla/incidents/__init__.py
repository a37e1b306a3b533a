"""Opens, resolves and reports incidents."""
