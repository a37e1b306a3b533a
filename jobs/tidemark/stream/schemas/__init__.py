"""Gets the schemas of records from schema registries, and keeps them."""
