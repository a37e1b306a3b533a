"""Every error that Tidemark raises on purpose.

TidemarkError
├── InvalidSpec       a topology, SLA or suite file says something that cannot be meant
├── InvalidArgument   a call or a command line does
├── InvalidRow        a row of a report does
├── InvalidTimestamp  a record's timestamp is not usable and the policy is to fail
└── Contradiction     checkpoint, journal and tables tell different stories, or another driver writes them
"""

from __future__ import annotations

from tidemark.inert import one_line


class TidemarkError(Exception):
    """Root of the tree; its message says the rule, then what was seen, then the remedy."""


class InvalidSpec(TidemarkError, ValueError):
    """Raised when a file that describes a topology or an SLA cannot be used; *key* is the dotted one that is wrong.

    *beside* names the keys on which the mistake depends: it is none where one of them is wrong itself.
    """

    key = ""
    beside: tuple[str, ...] = ()

    @classmethod
    def at(cls, file: str, key: str, problem: str, remedy: str) -> InvalidSpec:
        """The message names *file* and the dotted *key*, says the *problem* and the *remedy*."""
        error = cls(f"{one_line(f'{file}: {key}')}: {problem}; {one_line(remedy)}")
        error.key = key
        return error


class InvalidArgument(TidemarkError, ValueError):
    """Raised when an argument is outside of what a function or a command accepts."""


class InvalidRow(TidemarkError, ValueError):
    """Raised when a row is not what the table that it is for promises of its rows."""


class InvalidTimestamp(TidemarkError, ValueError):
    """Raised when a record has no usable timestamp and the policy is to fail."""


class Contradiction(TidemarkError):
    """Raised when checkpoint, journal and tables cannot all be right; nothing is skipped in silence."""
