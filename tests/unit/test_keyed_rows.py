"""Rows by key, in memory and in files, against a dict."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pytest

from tidemark.stream.state import keyed_rows, sorted_rows
from tidemark.stream.state.key_hashes import MULTIPLIER, text_hashes
from tidemark.stream.state.keyed_rows import KeyedRows
from tidemark.stream.state.runs import RunContent, RunTorn, open_run
from tidemark.stream.state.sorted_rows import RunMerge, SortedRows

SCHEMA = {"key": pl.String(), "group": pl.String(), "at": pl.Int64()}


def published(text: str) -> int:
    """The hash of *text*, by the words of its definition."""
    content = text.encode()
    number = len(content)
    for start in range(0, len(content), 8):
        word = int.from_bytes(content[start : start + 8].ljust(8, b"\0"), "little")
        mixed = ((number ^ word) * int(MULTIPLIER)) % 2**64
        number = mixed ^ (mixed >> 32)
    return number


def test_keys_are_hashed_as_published() -> None:
    draw = Random(1)
    texts = ["", "x" * 8, "y" * 16, *("".join(draw.choices("ab0é☃", k=draw.randrange(40))) for _ in range(500))]
    assert text_hashes(pl.Series(texts)).tolist() == [published(text) for text in texts]
    assert text_hashes(pl.Series(texts)[3:9]).tolist() == [published(text) for text in texts[3:9]]


def test_more_runs_are_merged_than_a_byte_can_count() -> None:
    schema = {"key": pl.String(), "at": pl.Int64()}
    none_gone = pl.Series(dtype=pl.String)
    runs = [SortedRows.of("key", pl.DataFrame([(f"k{n}", n)], schema, orient="row"), none_gone) for n in range(257)]
    merged = RunMerge(schema, runs, keeps_gone=False)
    _, source, place = merged.sources()
    rows = pl.concat([pl.DataFrame(block) for block in merged.blocks(source, place)])
    assert sorted(rows["at"].to_list()) == list(range(257))


def written(path: Path, rows: KeyedRows, runs: list[SortedRows], *, merging: int) -> list[SortedRows]:
    """Rests *rows* on *runs* and a new one, with *merging* merged.

    The new one has the rows in memory and of the last *merging* runs.
    """
    kept, merged = runs[: len(runs) - merging], runs[len(runs) - merging :]
    pending = rows.pending()
    newest = SortedRows.of("key", pending.rows, pending.gone)
    file = path / f"{len([*path.iterdir()])}.run"
    tables = {"rows": RunMerge(rows.stored_schema, (*merged, newest), keeps_gone=bool(kept))}
    with file.open("wb") as out:
        RunContent(file.name, tables, {"rows": rows.puts}, {}).write(out)
    run = open_run(file, {"rows": "key"})
    found = [*kept, run.tables["rows"]]
    rows.replace_by(found, puts=run.puts["rows"])
    return found


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_the_newest_of_each_key_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sorted_rows, "BLOCK", 8)
    draw, rows, runs, expected = Random(seed), KeyedRows(SCHEMA, by=("at", "group")), list[SortedRows](), {}
    for step in range(25):
        ids = [f"key-{draw.randrange(60)}" for _ in range(draw.randrange(25))]
        if step % 4 == 3:
            rows.drop(ids)
            expected = {key: row for key, row in expected.items() if key not in ids}
        else:
            put = [(id_, draw.choice("xyz"), draw.randrange(9)) for id_ in ids]
            rows.put(pl.DataFrame(put, schema=SCHEMA, orient="row"))
            for row in put:
                expected.pop(row[0], None)
                expected[row[0]] = row
        if step % 3 == 2:
            runs = written(tmp_path, rows, runs, merging=draw.randint(0, len(runs)))
        asked = pl.Series([f"key-{n}" for n in draw.sample(range(70), 20)])
        assert rows.look_up(asked).rows() == [expected[key] for key in asked if key in expected]
        assert sorted(rows.all().rows()) == sorted(expected.values())
        assert sorted(rows.where_at_most("at", 3).rows()) == sorted(row for row in expected.values() if row[2] <= 3)
        assert sorted(rows.where_in("group", pl.Series(["x", "y"])).rows()) == sorted(
            row for row in expected.values() if row[1] in "xy"
        )
        assert (len(rows), rows.is_empty) == (len(expected), not expected)
    rows.drop([*expected])
    assert rows.is_empty
    assert rows.pending_n >= len(expected)


def test_keys_of_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (keyed_rows, sorted_rows):
        monkeypatch.setattr(module, "hashes_of", lambda values: np.full(len(values), 7, np.uint64))
    rows = KeyedRows(SCHEMA)
    rows.put(pl.DataFrame([(key, "x", n) for n, key in enumerate("abc")], schema=SCHEMA, orient="row"))
    written(tmp_path, rows, [], merging=0)
    assert rows.look_up(pl.Series(["c", "d", "a"])).rows() == [("c", "x", 2), ("a", "x", 0)]


def test_rows_lie_in_files_in_the_order_in_which_they_were_put(tmp_path: Path) -> None:
    rows, runs = KeyedRows(SCHEMA, by=("at",)), list[SortedRows]()
    for number in range(20):
        rows.put(pl.DataFrame([(f"key-{number * 7 % 20}", "x", 5)], schema=SCHEMA, orient="row"))
        if number % 6 == 5:
            runs = written(tmp_path, rows, runs, merging=number % 2)
    assert rows.where_at_most("at", 5)["key"].to_list() == [f"key-{number * 7 % 20}" for number in range(20)]


@pytest.mark.parametrize("harm", ["cut", "renamed"])
def test_a_file_that_is_torn_or_another_is_not_read(tmp_path: Path, harm: str) -> None:
    rows = KeyedRows(SCHEMA)
    rows.put(pl.DataFrame([("a", "x", 1)], schema=SCHEMA, orient="row"))
    written(tmp_path, rows, [], merging=0)
    (file,) = tmp_path.iterdir()
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    else:
        file = file.rename(tmp_path / "other.run")
    with pytest.raises(RunTorn):
        open_run(file, {"rows": "key"})
