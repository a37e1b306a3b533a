"""Keeps a driver's tables in few files while it runs: a commit takes delta-rs longer with each file that the table has.

How it works: once a table has had EVERY commits, the oldest of its small files, those of one folder and UTC day, become
one, which is small, too, until it has enough rows. One table at most after each batch, before the next one begins.
Nothing fails with it: where it cannot be done now, it is tried again EVERY commits later. Files of a hop stay as they
are: a driver that has not read them would not find its rows in another one. They are left to `maintenance/`, which
knows what was read.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tidemark.delta import NEEDED, SUPERSEDED, Committer
from tidemark.errors import Contradiction
from tidemark.table_files import Busy, DataFile, alike, files_of, put_together

log = logging.getLogger(__name__)

EVERY = 100
"""Commits, and so many small files at least are put together."""
AT_ONCE = 2 * EVERY
SMALL_BYTES = 128 * 1_024
"""A larger file stays as it is: to write it again would cost more than it saves."""


class Tidying:
    """Puts small files together in the tables into which *committer* commits, under its lease."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._commits: Counter[Path] = Counter()

    def committed(self, path: Path) -> None:
        """Be told that the table at *path* has got a commit; the first time it is as good as EVERY: a driver began."""
        self._commits[path] += 1 if path in self._commits else EVERY

    def tidy(self) -> Path | None:
        """Put small files of a table together, if one is due; which that was.

        Raises Contradiction as `Committer.open_anew` does, and LeaseLost when another driver may write now.
        """
        path, commits = max(self._commits.items(), key=lambda item: item[1], default=(None, 0))
        if path is None or commits < EVERY:
            return None
        self._commits[path] = 0
        try:
            return path if self._put_together(path) else None
        except Contradiction:
            raise
        except Busy as busy:
            log.info("%s", busy)
        except Exception as error:
            log.warning("%s: its small files stay as they are for now: %r", path, error)
        return None

    def _put_together(self, path: Path) -> bool:
        small = _small(files_of(path))
        if not small:
            return False
        self._committer.open_anew(path)  # after the files were seen: nobody's rows are put together unseen
        put_together(path, small, check=self._committer.check_lease)
        self._committer.open_anew(path, own=1)
        return True


def _small(files: Sequence[DataFile]) -> list[DataFile]:
    """The oldest EVERY to AT_ONCE small ones of one folder and UTC day that maintenance has not parted; else none."""
    small = [file for file in files if file.bytes < SMALL_BYTES and not file.name.startswith((NEEDED, SUPERSEDED))]
    return next((files[:AT_ONCE] for files in alike(small) if len(files) >= EVERY), [])
