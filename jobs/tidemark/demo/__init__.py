"""Real flights as the feed of an airline, played into Kafka."""
