"""Lines such as `id=a;v=7`."""

import json

from tidemark.model.kinds.kafka_end import TOPIC_FORMATS, TopicFormat


def as_json(value):
    fields = dict(field.split("=") for field in value.decode().split(";"))
    return json.dumps({name: int(text) if text.isdigit() else text for name, text in fields.items()}).encode()


def of_json(value):
    fields = json.loads(value)
    if ";" in "".join(map(str, fields.values())):
        raise ValueError("a value has a semicolon")
    return ";".join(f"{name}={field}" for name, field in fields.items()).encode()


TOPIC_FORMATS.register("pairs", TopicFormat(as_json="my_package.pairs:as_json", of_json="my_package.pairs:of_json"))
