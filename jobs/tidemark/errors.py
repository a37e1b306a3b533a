"""The errors that Tidemark raises on purpose.

TidemarkError
├── InvalidSpec       a topology, SLA or suite file is invalid
├── InvalidArgument   an argument of a call or a command line is invalid
├── InvalidRow        a row of a report is invalid
├── InvalidTimestamp  a record's timestamp is not usable and the policy is to fail
└── Contradiction     checkpoint, journal and tables are not consistent, or another driver writes them
    └── UnreadableFile  a file that Tidemark or Spark wrote is damaged, and nothing can go on without it
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from tidemark.safe_text import one_line

T = TypeVar("T")


class TidemarkError(Exception):
    """Root of Tidemark's own errors; messages have rule, observation and remedy."""

    exit_status = 1
    """Exit status of a command that ends with the error."""


class InvalidSpec(TidemarkError, ValueError):
    """Raised when a topology, SLA or suite file is invalid.

    `key` is the dotted key that is wrong.
    """

    key = ""

    @classmethod
    def at(cls, file: str, key: str, problem: str, remedy: str) -> InvalidSpec:
        """Makes the error of a *key* in a *file*.

        Args:
            file: the file's name, for the message.
            key: the dotted key that is wrong.
            problem: the rule, and the value that was seen.
            remedy: the way to correct it.
        """
        error = cls(f"{one_line(f'{file}: {key}')}: {problem}; {one_line(remedy)}")
        error.key = key
        return error


class InvalidArgument(TidemarkError, ValueError):
    """Raised when a function or a command does not accept an argument."""


class InvalidRow(TidemarkError, ValueError):
    """Raised when a row breaks a promise of its table."""


class InvalidTimestamp(TidemarkError, ValueError):
    """Raised for an unusable timestamp, if the policy is to fail."""


class Contradiction(TidemarkError):
    """Raised when checkpoint, journal and tables cannot all be right."""


# The name opens the reason in heartbeats, where the DAGs find it: it is never renamed.
class UnreadableFile(Contradiction):
    """Raised when a file is damaged without which nothing can go on.

    `file` is its path, `found` what is wrong with it, and `remedy` what a person can do.
    """

    def __init__(self, file: object, found: str, remedy: str) -> None:
        # All three are arguments of the exception, so that one of an executor can be pickled.
        super().__init__(file, found, remedy)
        self.file, self.found, self.remedy = file, found, remedy

    def __str__(self) -> str:
        """Returns file, observation and remedy."""
        return f"{self.file}: {self.found}; {self.remedy}"


def argument_type(read: Callable[[str], T]) -> Callable[[str], T]:
    """Makes *read* raise an error that argparse shows."""

    def read_text(text: str) -> T:
        try:
            return read(text)
        except TidemarkError as error:
            # argparse hides the message of any other error.
            raise argparse.ArgumentTypeError(str(error)) from error

    return read_text
