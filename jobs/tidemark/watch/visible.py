"""The newest event time that readers of a table see, from version to version.

To know it after a commit that removes files, the times of the other files are needed. A table may have hundreds of
thousands of files, but only those with the newest times decide it. So of the others only a bound is kept, and if all
newest files are removed, the log has to be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from math import inf

from tidemark.watch.commits import Commit, FileTimes, Span
from tidemark.watch.statistics import newest_of


class ForgottenFilesError(Exception):
    """Raised if the newest event time depends on files whose times were not kept."""


class VisibleFiles:
    """The files of a version with an event time, by path.

    `others` are files without a path here: none of their times is beyond this span (None: there are none).
    """

    def __init__(self, files: Mapping[str, FileTimes | None], others: Span | None = None) -> None:
        self._times = {path: times for path, times in files.items() if times is not None}
        self._others = others
        self._newest: Span | None = None
        self._is_known = False

    @property
    def times(self) -> Mapping[str, FileTimes]:
        """The times of the files that are known by path."""
        return self._times

    @property
    def others(self) -> Span | None:
        """The bound of the times of all other files."""
        return self._others

    @property
    def newest(self) -> Span | None:
        """Between which instants the newest visible event time lies; None: no row has one.

        Raises:
            ForgottenFilesError: it depends on the other files.
        """
        # To look at all files takes long, and is needed only if one of them is gone.
        if not self._is_known:
            self._newest, self._is_known = self._look_at_all(), True
        return self._newest

    def _look_at_all(self) -> Span | None:
        newest = newest_of([*self._times.values()])
        if self._others is not None and not _decides(newest, self._others):
            raise ForgottenFilesError
        return newest

    def apply(self, commit: Commit) -> None:
        """Removes and adds the files of the next *commit*."""
        # A file without its deleted rows has the path of the one before, and is added as that one is removed.
        paths = (*commit.removed, *(file.path for file in commit.added))
        gone = [self._times.pop(path) for path in paths if path in self._times]
        added = {file.path: file.times for file in commit.added if file.times is not None}
        self._times |= added
        if gone:
            self._is_known = False
        elif self._is_known:
            self._newest = newest_of([*_as_files(self._newest), *added.values()])

    def with_newest_alone(self, most: int) -> VisibleFiles:
        """Returns the files with the newest times, *most* by either of their ends, and the bound of all others."""
        ends = (_high, _low)
        paths = {path for end in ends for path, _ in nlargest(most, self._times.items(), key=_of_times(end))}
        left_out = newest_of([times for path, times in self._times.items() if path not in paths])
        others = newest_of([*_as_files(self._others), *_as_files(left_out)])
        return VisibleFiles({path: self._times[path] for path in paths}, others)


def _decides(newest: Span | None, others: Span) -> bool:
    """Returns True if files within *others* change nothing of the *newest* time of some files."""
    return newest is not None and _high(newest) >= _high(others) and _low(newest) >= _low(others)


def _high(span: Span) -> float:
    return inf if span.high_ms is None else span.high_ms


def _low(span: Span) -> float:
    return -inf if span.low_ms is None else span.low_ms


def _of_times(end: Callable[[Span], float]) -> Callable[[tuple[str, FileTimes]], float]:
    return lambda file: end(file[1].newest)


def _as_files(newest: Span | None) -> Iterable[FileTimes]:
    return [] if newest is None else [FileTimes(None, newest)]
