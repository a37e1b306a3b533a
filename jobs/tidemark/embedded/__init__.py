"""The local stack of `tidemark up` and `tidemark demo`.

It runs processes on one machine, among them a real Kafka broker.
"""
