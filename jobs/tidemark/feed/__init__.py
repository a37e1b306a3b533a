"""Real flights as the feed of an airline, and its way into Kafka."""
