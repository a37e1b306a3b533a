"""Every vector of every file, through the public functions.

`TIDEMARK_VECTORS=dir pytest tests/vectors` runs the files of another folder, whose vectors have the same forms. A file
or a kind that is not known fails; deliberate differences are in `differences.py`.
"""

import json
import os
from pathlib import Path

import pytest
from vectors import apex, flink, kafka, spark
from vectors.differences import DIFFERENCES

FOLDER = Path(os.environ.get("TIDEMARK_VECTORS") or Path(__file__).parent / "data")
RUNNERS = {**apex.RUNNERS, **flink.RUNNERS, **kafka.RUNNERS, **spark.RUNNERS}


def vectors():
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        name = document.get("file", path.name)
        found += [pytest.param(name, v, id=f"{path.stem}:{v['id']}") for v in document["vectors"]]
    return found


def runner(name, vector):
    """Returns the runner of *vector* of the file *name*.

    Fails for an unknown file or kind.
    """
    if name not in RUNNERS:
        pytest.fail(f"unknown file {name!r}: no runner; known: {', '.join(sorted(RUNNERS))}")
    differs = (value for file, field, value in DIFFERENCES if file == name and vector.get(field) == value)
    kinds, kind = RUNNERS[name], next(differs, vector.get("kind"))
    if kind not in kinds:
        pytest.fail(f"unknown kind {kind!r} in {name}: no runner; known: {', '.join(map(str, kinds))}")
    return kinds[kind]


@pytest.mark.parametrize(("name", "vector"), vectors())
def test_vector(name, vector):
    runner(name, vector)(vector)


def test_the_folder_has_vectors():
    assert vectors(), f"no vectors in {FOLDER}"


@pytest.mark.parametrize(("name", "kind"), [("new.json", None), ("kafka_e2e_latency.json", "new")])
def test_an_unknown_key_of_a_vector_fails(name, kind):
    with pytest.raises(pytest.fail.Exception, match="unknown"):
        runner(name, {"id": "x", "kind": kind})


def test_each_difference_names_the_vectors_it_is_about():
    for (file, field, value), difference in DIFFERENCES.items():
        document = json.loads((Path(__file__).parent / "data" / file).read_text(encoding="utf-8"))
        assert tuple(v["id"] for v in document["vectors"] if v.get(field) == value) == difference.ids
        assert difference.reason
