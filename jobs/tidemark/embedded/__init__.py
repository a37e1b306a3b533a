"""What `tidemark demo` runs beside itself on one machine: processes, and a real Kafka broker."""
