"""Prints objects as the models of Kubernetes' official client read them.

A model raises for a missing field, and drops an unknown one.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace


def main() -> None:
    """Reads a list of objects from the standard input."""
    from kubernetes.client import ApiClient  # the process of tests does not have it

    client, objects = ApiClient(), json.load(sys.stdin)
    read = [client.deserialize(SimpleNamespace(data=json.dumps(each)), f"V1{each['kind']}") for each in objects]
    sys.stdout.write(json.dumps(client.sanitize_for_serialization(read)))


if __name__ == "__main__":
    main()
