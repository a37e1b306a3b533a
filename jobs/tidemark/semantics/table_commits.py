"""What commits of Delta tables do, and whose clock stamps them."""

from __future__ import annotations

from enum import StrEnum


class CommitClock(StrEnum):
    """Whose clock stamped a commit."""

    IN_COMMIT = "in_commit"
    """The writer's; the table makes sure that it never goes back (in-commit timestamps)."""
    WRITER = "writer"
    """The writer's, as it reports it in `commitInfo`."""
    FILE = "file"
    """That of the file system or object store: the commit has no time, and its file was written then."""


class DataChange(StrEnum):
    """What a commit did to the data of its table."""

    APPENDED = "appended"
    REPLACED = "replaced"
    """It removed rows, and may have added others: MERGE, UPDATE, DELETE, an overwrite."""
    NONE = "none"
    """OPTIMIZE, VACUUM, RESTORE, other properties or columns, or a commit without rows."""
