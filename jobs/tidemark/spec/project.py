"""Where the files of a project are: its topologies, what is expected of them, whom to tell, and its state.

<project>/topologies/NAME.toml       one topology each
<project>/expectations/slas.toml     its SLAs
<project>/channels.toml              who is told of incidents
<project>/connections.toml           Kafka clusters that sources name
<project>/.tidemark/                 what the local stack keeps; the warehouse is in it

`tidemark init` makes such a folder. A checkout of Tidemark is the project of the demo; there topologies are in
`jobs/topologies`, and channels in `expectations`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import InvalidArgument

CHECKOUT = Path(__file__).resolve().parents[3]
VARIABLE = "TIDEMARK_PROJECT"
WAREHOUSE = "warehouse"
"""The folder of all Delta tables and control folders, in the state folder."""


@dataclass(frozen=True)
class Project:
    """The project in *folder*; nothing is read or created."""

    folder: Path

    @classmethod
    def here(cls) -> Project:
        """That of $TIDEMARK_PROJECT, else the nearest at or above the working directory, else the checkout.

        Raises:
            InvalidArgument: $TIDEMARK_PROJECT names no project.
        """
        if named := os.environ.get(VARIABLE):
            found = cls(Path(named).resolve())
            if not found.topologies.is_dir():
                msg = f"{VARIABLE} must be a folder with topologies, got {named!r}; `tidemark init` makes one"
                raise InvalidArgument(msg)
            return found
        here = Path.cwd()
        of_user = (cls(folder) for folder in (here, *here.parents) if is_project(folder))
        return next(of_user, cls(CHECKOUT))

    @classmethod
    def of(cls, topologies: Path) -> Project | None:
        """The project whose topologies lie in the folder *topologies*; None where it is no project's."""
        resolved = topologies.resolve()
        candidates = (cls(folder) for folder in resolved.parents[:2])
        return next((found for found in candidates if found.topologies == resolved), None)

    @property
    def topologies(self) -> Path:
        """The folder of its topologies' files."""
        return self.folder / ("jobs/topologies" if self.is_checkout else "topologies")

    @property
    def expectations(self) -> Path:
        """The folder of its SLAs."""
        return self.folder / "expectations"

    @property
    def slas(self) -> Path:
        """The file of its SLAs."""
        return self.expectations / "slas.toml"

    @property
    def channels(self) -> Path:
        """The file of its channels."""
        return (self.expectations if self.is_checkout else self.folder) / "channels.toml"

    @property
    def connections(self) -> Path:
        """The file of Kafka clusters that its sources name."""
        return self.folder / "connections.toml"

    @property
    def state(self) -> Path:
        """The folder of what the local stack keeps."""
        return self.folder / ".tidemark"

    @property
    def is_checkout(self) -> bool:
        """Whether it is a checkout of Tidemark, and so the demo's."""
        return (self.folder / "jobs" / "topologies").is_dir()


def is_project(folder: Path) -> bool:
    """Whether *folder* is what `tidemark init` makes."""
    return (folder / "topologies").is_dir() and (folder / "expectations").is_dir()
