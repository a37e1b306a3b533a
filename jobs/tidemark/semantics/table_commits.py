"""What commits of Delta tables do, and whose clock stamps them."""

from __future__ import annotations

from enum import StrEnum


class CommitClock(StrEnum):
    """Whose clock stamped a commit."""

    IN_COMMIT = "in_commit"
    """The clock of the writer; the table makes sure that it never goes back (in-commit timestamps)."""
    WRITER = "writer"
    """The clock of the writer, as `commitInfo` has it."""
    FILE = "file"
    """The clock of the file system or object store: the commit has no time, so the time of its file counts."""


class DataChange(StrEnum):
    """What a commit did to the data of its table."""

    APPENDED = "appended"
    REPLACED = "replaced"
    """The commit removed rows, and may have added others: MERGE, UPDATE, DELETE, an overwrite."""
    NONE = "none"
    """OPTIMIZE, VACUUM, RESTORE, other properties or columns, or a commit without rows."""
