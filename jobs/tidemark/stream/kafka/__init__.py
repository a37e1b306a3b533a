"""Talks to Kafka brokers, beside Spark's own reading."""
