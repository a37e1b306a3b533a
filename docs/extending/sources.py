"""Folders of ORC files."""

from tidemark.model.kinds.source_place import RecordPlace, register
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import optional

ORC = optional("orc", value_types.text(), example='"incoming/readings"', meaning="a folder of ORC files")


def rows(spark, source, warehouse):
    from tidemark.stream.read.table_rows import in_files, table_rows

    columns = ", ".join(f"`{name}` {word}" for name, word in source.types_of_fields.items())
    return table_rows(in_files(spark.readStream.schema(columns).orc(str(warehouse / source.read_from))), source)


register(RecordPlace(key=ORC, noun="folder of ORC files", rows="my_package.orc:rows"))
