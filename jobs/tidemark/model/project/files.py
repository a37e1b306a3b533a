"""The files of a project: topologies, expectations, channels, and state.

| path in the project | content |
|---|---|
| `topologies/NAME.toml` | one topology each |
| `topologies/tests/` | files of tests, for `tidemark test` |
| `expectations/slas.toml` | its SLAs |
| `channels.toml` | channels for alerts |
| `connections.toml` | Kafka clusters that sources and sinks name |
| `dags/` | DAG files of one's own for the local Airflow |
| `.tidemark/` | state of the local stack, with the warehouse |

`tidemark init` makes such a folder. A checkout of Tidemark is the project of the demo; there topologies are in
`jobs/topologies`, and channels in `expectations`. An installation from a wheel has no checkout. The wheel has the
files of a checkout in `tidemark/checkout`, and state and jars are in folders of the user.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import InvalidArgument

# In a checkout this package is `jobs/tidemark`, so the checkout is two folders above it.
_PACKAGE, _BESIDE = Path(__file__).resolve().parents[2], Path(__file__).resolve().parents[4]
IS_WHEEL = not (_BESIDE / "jobs" / "tidemark").is_dir()
"""True if the package was installed from a wheel, without a checkout."""
CHECKOUT = _PACKAGE / "checkout" if IS_WHEEL else _BESIDE
"""The checkout, or the copy of its files in the wheel."""
VARIABLE = "TIDEMARK_PROJECT"
JARS_VARIABLE = "TIDEMARK_JARS"
TESTS = "tests"
"""The folder with files of tests, in a folder of topologies."""
WAREHOUSE = "warehouse"
"""The folder of all tables and control folders, in the state folder."""


@dataclass(frozen=True)
class Project:
    """The project in *folder*; nothing is read or created."""

    folder: Path

    @classmethod
    def here(cls) -> Project:
        """Returns the project of this process.

        That is the project of $TIDEMARK_PROJECT, or the nearest one at or above the working directory, or the checkout.

        Raises:
            InvalidArgument: $TIDEMARK_PROJECT names no project.
        """
        if named := os.environ.get(VARIABLE):
            project = cls(Path(named).resolve())
            if not project.topologies.is_dir():
                msg = f"{VARIABLE} must be a folder with topologies, got {named!r}; `tidemark init` makes one"
                raise InvalidArgument(msg)
            return project
        return cls.around(Path.cwd()) or cls(CHECKOUT)

    @classmethod
    def around(cls, folder: Path) -> Project | None:
        """Returns the nearest project at or above *folder*, or None."""
        return next((cls(each) for each in (folder, *folder.parents) if is_project(each)), None)

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
        if IS_WHEEL and self.folder == CHECKOUT:
            return user_folder("XDG_STATE_HOME", ".local/state")
        return self.folder / ".tidemark"

    @property
    def is_checkout(self) -> bool:
        """True if it is a checkout of Tidemark, and so the demo's."""
        return (self.folder / "jobs" / "topologies").is_dir()


def jars_folder(checkout: Path = CHECKOUT) -> Path:
    """Returns the folder of the JVM jars, which has a folder for each of their uses.

    That is $TIDEMARK_JARS, or `.jars` of the checkout, or, without a checkout, the folder that `tidemark jars` fills.
    """
    if named := os.environ.get(JARS_VARIABLE):
        return Path(named).resolve()
    return user_folder("XDG_DATA_HOME", ".local/share") / "jars" if IS_WHEEL else checkout / ".jars"


def user_folder(variable: str, otherwise: str) -> Path:
    """Returns Tidemark's folder in a folder of the user: the one that the environment variable *variable* names.

    Without the variable that is *otherwise* in the home folder.

    Raises:
        InvalidArgument: the user has no home folder, and the variable is not set.
    """
    if named := os.environ.get(variable):
        return Path(named) / "tidemark"
    try:
        return Path.home() / otherwise / "tidemark"
    except RuntimeError as error:
        msg = f"user {os.getuid()} has no home folder; set HOME or {variable}"
        raise InvalidArgument(msg) from error


def is_project(folder: Path) -> bool:
    """Returns True if *folder* has what `tidemark init` makes."""
    return (folder / "topologies").is_dir() and (folder / "expectations").is_dir()
