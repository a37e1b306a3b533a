"""The files of a project: topologies, expectations, channels, and state.

| path in the project | content |
|---|---|
| `topologies/NAME.toml` | one topology each |
| `expectations/slas.toml` | its SLAs |
| `channels.toml` | channels for alerts |
| `connections.toml` | Kafka clusters that sources and sinks name |
| `.tidemark/` | state of the local stack, with the warehouse |

`tidemark init` makes such a folder. A checkout of Tidemark is the project of the demo; there topologies are in
`jobs/topologies`, and channels in `expectations`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import InvalidArgument

CHECKOUT = Path(__file__).resolve().parents[4]
VARIABLE = "TIDEMARK_PROJECT"
WAREHOUSE = "warehouse"
"""The folder of all tables and control folders, in the state folder."""


@dataclass(frozen=True)
class Project:
    """The project in *folder*; nothing is read or created."""

    folder: Path

    @classmethod
    def here(cls) -> Project:
        """Returns the project of this process.

        It is that of $TIDEMARK_PROJECT, else the nearest at or above the working directory, else the checkout.

        Raises:
            InvalidArgument: $TIDEMARK_PROJECT names no project.
        """
        if named := os.environ.get(VARIABLE):
            project = cls(Path(named).resolve())
            if not project.topologies.is_dir():
                msg = f"{VARIABLE} must be a folder with topologies, got {named!r}; `tidemark init` makes one"
                raise InvalidArgument(msg)
            return project
        here = Path.cwd()
        of_user = (cls(folder) for folder in (here, *here.parents) if is_project(folder))
        return next(of_user, cls(CHECKOUT))

    @classmethod
    def of(cls, topologies: Path) -> Project | None:
        """Returns the project whose topologies lie in *topologies*, or None."""
        resolved = topologies.resolve()
        # Its topologies lie one folder below a project, and two below the checkout.
        candidates = (cls(folder) for folder in resolved.parents[:2])
        return next((project for project in candidates if project.topologies == resolved), None)

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
        """The folder of the local stack's state."""
        return self.folder / ".tidemark"

    @property
    def is_checkout(self) -> bool:
        """True if it is a checkout of Tidemark, and so the demo's."""
        return (self.folder / "jobs" / "topologies").is_dir()


def is_project(folder: Path) -> bool:
    """Returns True if *folder* has what `tidemark init` makes."""
    return (folder / "topologies").is_dir() and (folder / "expectations").is_dir()
