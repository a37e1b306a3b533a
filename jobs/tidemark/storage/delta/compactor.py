"""Compacts a driver's tables while it runs.

A commit takes delta-rs longer with each file of the table.

How it works: after some commits of a table, the oldest of its small files, those of one folder and UTC day, become
one, which is small, too, until it has enough rows. At most one table is compacted after each batch, before the next one
begins. A failure fails nothing else: it is tried again as many commits later. Files of a hop stay as they are: a driver
that has not read them would not find its rows in another one. They are left to `maintenance/`, which knows what was
read.
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
from tidemark.storage.delta.compaction import DataFile, TableBusy, files_of, mergeable_groups, put_together
from tidemark.storage.delta.tables import NEEDED, SUPERSEDED
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger(__name__)

OUTPUTS_EVERY = 100
"""Commits of an output between two tries, and the fewest of its files that are compacted.

Its replaced files stay for a day, and who reads it commit by commit reads each compaction, too.
"""
FACTS_EVERY = 20
"""The same of a table of facts: the commits of ten minutes, with one each `facts_every`.

A table has so many small files, and those that were replaced within REPLACED_FOR_S.
"""
SMALL_BYTES = 128 * 1_024
"""A larger file stays as it is.

Writing it again would cost more than it saves.
"""


REPLACED_FOR_S = 900.0
"""How long files of facts stay after they were replaced.

Only who opened the table before reads them, and `tidemark sql` ends after five minutes. No reader follows these tables
commit by commit, unlike those of outputs. What a driver leaves when it ends is left to `maintenance/`.
"""


class Writes(Protocol):
    """What commits to the tables that are compacted."""

    @property
    def check_lease(self) -> Callable[[], None]:
        """Raises LeaseLost if another driver may write now."""

    def open_anew(self, path: Path, *, own: int = 0) -> object:
        """Opens the table at *path* as it is now.

        *own* is the number of commits that this process made elsewhere since the last look.
        """


class Compactor:
    """Compacts small files of a table each time *committer* has made *every* commits to it.

    It does so under the lease of *committer*. Replaced files stay for *replaced_for_s* seconds; None: maintenance
    removes them.
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
            Contradiction: As in `Committer.open_anew`.
            LeaseLost: Another driver may write now.
        """
        self._remove_replaced()
        path, commits = max(self._commits.items(), key=lambda item: item[1], default=(None, 0))
        if path is None or commits < self._every:
            return None
        # A failed try counts as one: the next is as many commits later.
        self._commits[path] = 0
        try:
            return path if self._put_together(path) else None
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

    def _put_together(self, path: Path) -> bool:
        small = _small(files_of(path), self._every)
        if not small:
            return False
        # After the files were seen, so that rows of other writers are noticed before they are compacted.
        self._committer.open_anew(path)
        put_together(path, small, check=self._committer.check_lease)
        # In an object store a removal is a request.
        if self._replaced_for_s is not None and not isinstance(path, ObjectPath):
            self._replaced.extend((self._clock_s(), path / file.place) for file in small)
        # The compaction was a commit of this driver, which the table has to know as its own.
        self._committer.open_anew(path, own=1)
        return True


def _small(files: Sequence[DataFile], least: int) -> list[DataFile]:
    """Returns small files to compact; none if there are fewer than *least*.

    They are the oldest ones of one folder and UTC day that maintenance has not parted, at most twice *least*.
    """
    small = [file for file in files if file.bytes < SMALL_BYTES and not file.name.startswith((NEEDED, SUPERSEDED))]
    return next((files[: 2 * least] for files in mergeable_groups(small) if len(files) >= least), [])
