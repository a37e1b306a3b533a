"""Rows in existing files are read alike from store and disk."""

from __future__ import annotations

import pyarrow as pa

from tidemark.storage.files import Files, files_written_for, lazy, write_file


def test_rows_in_files_of_an_object_store_come_file_by_file(warehouse):
    table = warehouse / "table"
    files = Files(tuple(write_file(table, pa.table({"v": values}), batch_id=7) for values in ([1, 2], [3])))
    assert files.num_rows == 3
    assert [part.to_pydict() for part in files.stream()] == [{"v": [1, 2]}, {"v": [3]}]
    assert lazy(files).collect()["v"].to_list() == [1, 2, 3]
    assert {str(path) for path in files_written_for(warehouse, 7)} == {file.path for file in files.files}
    assert files_written_for(warehouse, 8) == []
