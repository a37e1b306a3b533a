"""Parses records in Avro and Protobuf by schemas of files and registries."""
