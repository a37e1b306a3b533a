"""Compacts a driver's tables while it runs, because a commit takes delta-rs longer with each file of the table.

How it works: after some commits of a table, the oldest of its small files, those of one folder and UTC day, are merged
into one. That file counts as small, too, until it has enough rows. At most one table is compacted after each batch,
before the next one begins. If that fails, nothing else does, and it is tried again as many commits later. Files that
another stream reads (those of a hop) stay as they are, because a driver that has not read them would not find its rows
in another file. They are left to `maintenance/`, which knows what was read.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tidemark.errors import Contradiction
from tidemark.storage.delta.compaction import DataFile, TableBusy, data_files_of, merge_files, mergeable_groups
from tidemark.storage.delta.tables import NEEDED, SUPERSEDED
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger(__name__)

OUTPUTS_EVERY = 100
"""An output table is compacted after so many commits, if it has as many small files or more.

Replaced files of an output stay for a day, and a reader that follows its commits reads each compaction, too.
"""
FACTS_EVERY = 20
"""The same number for a table of facts, which gets so many commits in ten minutes, one each `facts_every`."""
SMALL_BYTES = 128 * 1_024
"""A larger file stays as it is: writing it again would cost more than it saves."""
REPLACED_FOR_S = 900.0
"""Seconds for which files of facts stay after they were replaced.

Only a reader that opened the table before needs them, and `tidemark sql` ends after five minutes. No reader follows
these tables commit by commit, as readers of outputs do. Files that remain when a driver ends are left to
`maintenance/`.
"""


class Writes(Protocol):
    """The object that commits to the tables which are compacted."""

    @property
    def check_lease(self) -> Callable[[], None]:
        """Raises LeaseLost if another driver may write now."""

    def open_anew(self, path: Path, *, own_commits: int = 0) -> object:
        """Opens the table at *path* as it is now.

        *own_commits* is how many commits this process has made by other means since the table was opened.
        """


class Compactor:
    """Compacts small files of a table each time a driver has made some commits to it.

    Args:
        committer: the object that makes these commits, under whose lease tables are compacted.
        every: after so many commits of a table.
        replaced_for_s: seconds for which replaced files stay, or None if they are left to maintenance.
        clock_s: a monotonic clock.
    """

    def __init__(
        self,
        committer: Writes,
        *,
        every: int,
        replaced_for_s: float | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._committer, self._every = committer, every
        self._replaced_for_s, self._clock_s = replaced_for_s, clock_s
        self._replaced: deque[tuple[float, Path]] = deque()  # oldest first, with the time of the replacement
        self._commits: Counter[Path] = Counter()

    def committed(self, path: Path) -> None:
        """Counts a commit of the table at *path*."""
        # The first commit of a driver makes a try due: the table may have had many before. In an object store a look
        # at a table costs requests.
        self._commits[path] += 1 if path in self._commits or isinstance(path, ObjectPath) else self._every

    def compact(self) -> Path | None:
        """Compacts a table, if one is due, and returns its path.

        Raises:
            Contradiction: as in `Committer.open_anew`.
            LeaseLost: another driver may write now.
        """
        self._remove_replaced()
        path, commits = max(self._commits.items(), key=lambda item: item[1], default=(None, 0))
        if path is None or commits < self._every:
            return None
        # The next try is as many commits later, also if this one fails.
        self._commits[path] = 0
        try:
            return path if self._merge_small_files(path) else None
        except Contradiction:
            raise
        except TableBusy as busy:
            log.info("%s", busy)
        except Exception as error:
            log.warning("%s: cannot merge its small files for now: %r", path, error)
        return None

    def _remove_replaced(self) -> None:
        """Removes the files that were replaced long enough ago."""
        while self._replaced and self._clock_s() - self._replaced[0][0] >= (self._replaced_for_s or 0):
            _, file = self._replaced.popleft()
            with suppress(OSError):  # maintenance finds it later
                file.unlink(missing_ok=True)

    def _merge_small_files(self, path: Path) -> bool:
        small = _small(data_files_of(path), self._every)
        if not small:
            return False
        # After the files were seen, so that rows of other writers are noticed before they are compacted.
        self._committer.open_anew(path)
        merge_files(path, small, check=self._committer.check_lease)
        # In an object store a removal is a request.
        if self._replaced_for_s is not None and not isinstance(path, ObjectPath):
            self._replaced.extend((self._clock_s(), path / file.relative_path) for file in small)
        # The compaction was a commit of this driver, not of another writer.
        self._committer.open_anew(path, own_commits=1)
        return True


def _small(files: Sequence[DataFile], least: int) -> list[DataFile]:
    """Returns the small files to compact; none if there are fewer than *least*.

    These are the oldest ones of one folder and UTC day, at most twice *least*, without those that maintenance has set
    apart.
    """
    small = [file for file in files if file.bytes < SMALL_BYTES and not file.name.startswith((NEEDED, SUPERSEDED))]
    return next((files[: 2 * least] for files in mergeable_groups(small) if len(files) >= least), [])
