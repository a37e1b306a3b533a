"""Requests of a batch are bounded, however long its logs are."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest
from bench.commits import TOPOLOGY, batches
from deltalake import DeltaTable
from objectstore.counting import GET, LIST, PUT, Requests

from support.play import Play
from tidemark.control.folder import Control
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.compactor import OUTPUTS_EVERY, Compactor
from tidemark.storage.delta.log import checkpoint_if_due
from tidemark.storage.delta.tables import Committer, create
from tidemark.storage.fence import Fence

EARLY = range(5, 15)


@pytest.mark.parametrize("late", [range(20, 30), pytest.param(range(55, 155), marks=pytest.mark.long)], ids=len)
def test_requests_of_a_batch_do_not_grow_with_the_log(warehouse: Path, server_log: Path, late: range) -> None:
    play = Play(TOPOLOGY, warehouse, facts_every_ms=10_000)
    play.broker._partitions = {"flight_events": 3, "weather": 1}
    control = Control(Layout(warehouse).control("flights", "status"))
    epoch = control.acquire()
    play.start("status", epoch=epoch, check_lease=partial(control.check_lease, epoch))
    requests = Requests(server_log, warehouse)
    of_batches: list[Counter[str]] = []
    for number in range(late.stop):
        requests.since_last()
        batches(play, range(number, number + 1))
        of_batches.append(requests.since_last())

    def typical(numbers: range) -> dict[str, float]:
        return {kind: median(of_batches[number][kind] for number in numbers) for kind in (PUT, LIST, GET)}

    def mean(numbers: range) -> dict[str, float]:
        return {kind: sum(of_batches[number][kind] for number in numbers) / len(numbers) for kind in (PUT, LIST, GET)}

    # The journal entry, and for changes, board and hop a file and a commit.
    assert typical(EARLY) == typical(late) == {PUT: 7, LIST: 0, GET: 0}
    assert mean(EARLY) == typical(EARLY)
    if len(late) < OUTPUTS_EVERY:
        return
    # In a hundred batches there are two flushes of facts, and a checkpoint and a compaction of each of the outputs.
    of_late = mean(late)
    assert (of_late[PUT] <= 8, of_late[LIST] <= 1, of_late[GET] <= 11) == (True, True, True), of_late
    compactions = 1
    assert DeltaTable(str(play.table("changes", "status"))).version() == late.stop + compactions


def test_compactions_read_each_commit_and_file_once(warehouse: Path, server_log: Path) -> None:
    path = warehouse / "streams" / "numbers"
    create(path, pa.schema([("batch_id", pa.int64()), ("n", pa.int64())]), description="a row for each batch")
    committer = Committer("play/0", Fence())
    compactor, requests = Compactor(committer, every=OUTPUTS_EVERY), Requests(server_log, warehouse)
    counted = []
    for number in range(2 * OUTPUTS_EVERY):
        committer.commit(path, pa.table({"batch_id": [number], "n": [number * number]}), number)
        compactor.committed(path)
        compactor.compact()
        counted.append(requests.since_last()[GET])
    # Each commit for the checkpoint and for a look at those of others; each file; a few to open the table.
    requested = [sum(counted[:OUTPUTS_EVERY]), sum(counted[OUTPUTS_EVERY:])]
    assert max(requested) <= 3 * OUTPUTS_EVERY + 25, counted
    rows = DeltaTable(str(path)).to_pyarrow_table().sort_by("batch_id")
    assert rows.to_pydict() == {"batch_id": [*range(2 * OUTPUTS_EVERY)], "n": [n * n for n in range(2 * OUTPUTS_EVERY)]}
    assert len(DeltaTable(str(path)).file_uris()) < OUTPUTS_EVERY


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_torn_mark_of_the_last_checkpoint_is_replaced(warehouse: Path, content: str) -> None:
    path = warehouse / "streams" / "torn"
    create(path, pa.schema([("n", pa.int64())]), description="a row")
    last = path / "_delta_log" / "_last_checkpoint"
    last.write_text(content)
    checkpoint_if_due(path, 0, every=1)
    assert json.loads(last.read_text())["version"] == 0
