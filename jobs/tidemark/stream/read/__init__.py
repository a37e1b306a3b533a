"""Makes what Spark plans for a stream's sources, and parses records."""
