"""A place in an object store answers like a path on disk."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from objectstore.lossy import lossy

from tidemark.errors import InvalidArgument
from tidemark.storage.location import location, new_file, put_once, remove_folder, replace
from tidemark.storage.object_path import _store


def test_a_place_has_names_of_a_path_and_sparks_scheme():
    place = location("s3://bucket/warehouse/") / "streams" / "a=1"
    assert str(place) == "s3a://bucket/warehouse/streams/a=1"
    assert (place.name, str(place.parent)) == ("a=1", "s3a://bucket/warehouse/streams")
    assert str(place.relative_to(location("s3a://bucket/warehouse"))) == "streams/a=1"
    sent = pickle.loads(pickle.dumps(place))
    assert (str(sent), type(sent)) == (str(place), type(place))
    assert location("/srv/warehouse") == Path("/srv/warehouse")


@pytest.mark.parametrize("text", ["az://bucket/warehouse", "s3a://", "http://bucket", "s3a://bucket/ware house"])
def test_a_place_of_another_kind_is_refused(text):
    with pytest.raises(
        InvalidArgument, match=r"a location is a path of this machine, s3:// or gs:// with a bucket, or abfss"
    ):
        location(text)


def test_functions_of_local_files_refuse_an_object():
    place = location("s3a://bucket/file")
    with pytest.raises(TypeError, match="without local files"):
        os.stat(place)
    with pytest.raises(ValueError, match="can only be opened to read bytes"):
        place.open("w")


def test_an_object_is_found_by_its_folders_and_by_patterns(warehouse):
    for name in ("a/x/1.json", "a/y/2.json", "b/x/3.txt"):
        replace(warehouse / name, name)
    assert sorted(path.name for path in warehouse.iterdir()) == ["a", "b"]
    assert sorted(str(path.relative_to(warehouse)) for path in warehouse.glob("*/x")) == ["a/x", "b/x"]
    assert sorted(path.name for path in warehouse.rglob("*.json")) == ["1.json", "2.json"]
    assert (warehouse / "a").is_dir()
    assert not (warehouse / "a").is_file()
    assert not (warehouse / "c").exists()
    assert list((warehouse / "c").iterdir()) == []
    remove_folder(warehouse / "a")
    assert [path.name for path in warehouse.rglob("*")] == ["3.txt"]


def test_requested_ranges_of_bytes_are_read(warehouse):
    place = warehouse / "numbers"
    place.write_bytes(bytes(range(100)))
    assert place.stat().st_size == 100
    with place.open("rb") as file:
        file.seek(-10, 2)
        assert file.read(3) == bytes([90, 91, 92])
        assert (file.tell(), file.read()) == (93, bytes(range(93, 100)))
    place.unlink()
    place.unlink()
    with pytest.raises(FileNotFoundError):
        place.read_text()


def test_of_several_writers_of_one_object_one_succeeds(warehouse):
    def makes(number: int) -> bool:
        try:
            put_once(warehouse / "epoch", str(number).encode())
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(makes, range(4)))
    assert made.count(True) == 1
    assert (warehouse / "epoch").read_text() == str(made.index(True))


def test_a_new_file_is_complete_or_absent(warehouse):
    with pytest.raises(ZeroDivisionError), new_file(warehouse / "half") as file:
        file.write(bytes(1 // 0))
    assert not (warehouse / "half").exists()
    with new_file(warehouse / "whole") as file:
        file.write(b"whole")
    with pytest.raises(FileExistsError), new_file(warehouse / "whole") as file:
        file.write(b"other")
    assert (warehouse / "whole").read_text() == "whole"


def test_a_failed_check_prevents_a_put(warehouse):
    def check() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        put_once(warehouse / "entry", b"entry", check=check)
    assert not (warehouse / "entry").exists()


@pytest.mark.parametrize("status", [None, 503])
def test_a_put_whose_response_was_lost_belongs_to_its_writer(store, warehouse, monkeypatch, status):
    """A driver must recognise its own journal entry in the store.

    Otherwise it would take the entry for that of another driver.
    """
    with lossy(store, status) as address, monkeypatch.context() as env:
        env.setenv("AWS_ENDPOINT_URL", address)
        _store.cache_clear()
        put_once(warehouse / "entry", b"ours")
        (warehouse / "other").create(b"theirs")
        with pytest.raises(FileExistsError):
            put_once(warehouse / "other", b"ours")
    _store.cache_clear()
    assert ((warehouse / "entry").read_text(), (warehouse / "other").read_text()) == ("ours", "theirs")
