"""Compiles schemas of Protobuf, which registries have as text."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from tidemark.errors import TidemarkError
from tidemark.model.project.extras import require
from tidemark.stream.schemas.known_imports import KNOWN_IMPORTS

WITHIN_S = 60.0
MAIN = "schema.proto"
_LONGEST = 500


class DoesNotCompile(TidemarkError):
    """Raised for a text that is no valid schema of Protobuf."""


def compiled(text: str, imports: Mapping[str, str]) -> bytes:
    """Returns the descriptors of the schema *text* and of all its *imports*.

    The result is a FileDescriptorSet whose last file is the schema. Google's own files (`google/protobuf/…`) and
    KNOWN_IMPORTS need not be among the *imports*, texts by the names with which they are imported.

    Raises:
        DoesNotCompile: the schema is not valid.
        InvalidArgument: Google's compiler is not installed.
    """
    require("grpc_tools")
    main = MAIN
    while main in imports:
        main = f"_{main}"
    with TemporaryDirectory(prefix="tidemark-protoc-") as name:
        folder = Path(name)
        _write(folder, {**KNOWN_IMPORTS, **imports, main: text})
        output = folder / "_descriptors"
        # Its own folder of Google's files comes after this one.
        program = "import sys; from grpc_tools import protoc; from importlib.resources import files; "
        program += "sys.exit(protoc.main([*sys.argv, f\"-I{files('grpc_tools') / '_proto'}\"]))"
        # With -P, and not in the folder: Python would import modules from there, and a registry names the files.
        command = [sys.executable, "-P", "-c", program, f"-I{folder}", "--include_imports"]
        command += [f"--descriptor_set_out={output}", str(folder / main)]
        try:
            # In a process of its own: Google's compiler writes to standard error, and a fault of it must not end a
            # driver.
            done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        except subprocess.TimeoutExpired:
            msg = f"cannot be compiled within {WITHIN_S:g} s"
            raise DoesNotCompile(msg) from None
        if done.returncode != 0:
            # Warnings about the compiler's own logging come before its errors.
            errors = [
                line.removeprefix(f"{folder}/") for line in done.stderr.splitlines() if ".proto:" in line[:_LONGEST]
            ]
            msg = f"cannot be compiled: {' '.join(errors)[:_LONGEST] or f'status {done.returncode}'}"
            raise DoesNotCompile(msg)
        return output.read_bytes()


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes *files* into *folder*, texts by their names.

    Raises:
        DoesNotCompile: names or texts are no files.
    """
    for file, content in files.items():
        path = folder / _inside(file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except (FileExistsError, NotADirectoryError, IsADirectoryError, UnicodeError) as error:
            raise _not_written(error) from None
        except OSError as error:
            # A full disk, for example, is not the fault of the schema.
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise _not_written(error) from None


def _not_written(error: Exception) -> DoesNotCompile:
    return DoesNotCompile(f"cannot be written as files: {type(error).__name__}")


def _inside(file: str) -> PurePosixPath:
    """Returns the path of an imported *file*, which stays in its folder."""
    path = PurePosixPath(file)
    # The registry chooses these names, and they must not lead to other folders. A file system refuses a zero byte.
    if path.is_absolute() or ".." in path.parts or not path.name or "\0" in file:
        msg = f"imports {file!r}, which is not a relative path"
        raise DoesNotCompile(msg)
    return path
