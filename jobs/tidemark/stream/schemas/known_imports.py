"""Files of Protobuf that schemas import and registries do not have.

Confluent's serializers register no references to these: every client has them. Kafka Connect and ksqlDB write them for
decimals, dates and times. The texts have the fields and numbers of the published files.
"""

from __future__ import annotations

from collections.abc import Mapping

_META = """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
# Schemas of ksqlDB use options of `meta.proto` with this import alone, so it hands them on.
_DECIMAL = """
syntax = "proto3";
package confluent.type;
import public "confluent/meta.proto";
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""
_DATE = """
syntax = "proto3";
package google.type;
message Date {
  int32 year = 1;
  int32 month = 2;
  int32 day = 3;
}
"""
_TIME_OF_DAY = """
syntax = "proto3";
package google.type;
message TimeOfDay {
  int32 hours = 1;
  int32 minutes = 2;
  int32 seconds = 3;
  int32 nanos = 4;
}
"""
KNOWN_IMPORTS: Mapping[str, str] = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _DECIMAL,
    "google/type/date.proto": _DATE,
    "google/type/timeofday.proto": _TIME_OF_DAY,
}
"""Texts by the names with which they are imported."""
