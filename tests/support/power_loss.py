"""Finds what a loss of power would leave of a folder, from the system calls of the process that wrote into it.

A file survives if its content was synced after the last write to it, and if each name on the way to it was synced after
it was given: by fsync of the folder that holds the name. Nothing else is promised by POSIX.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

WRITES = frozenset({"write", "writev", "pwrite64", "pwritev", "ftruncate", "copy_file_range", "sendfile"})
NAMES = frozenset({"link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat"})
OPENS, SYNCS = frozenset({"open", "openat"}), frozenset({"fsync", "fdatasync"})
CALLS = ",".join(sorted(WRITES | NAMES | OPENS | SYNCS | {"mkdir", "mkdirat"}))
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_OPENED = re.compile(r"= \d+<([^>]*)>")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FILE = re.compile(r"^\d+<([^>]*)>")


@dataclass(eq=False)
class Content:
    """A file or a folder."""

    is_synced: bool = False
    names: dict[str, Content] = field(default_factory=dict)
    """Of a folder: the names that were synced, and what they named then."""


def run_traced(program: Path, *arguments: str, trace: Path) -> None:
    """Runs a Python file with the paths of this process, and writes its system calls to *trace*."""
    command = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(trace)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, sys.executable, str(program), *arguments], check=True, timeout=300, env=environ)


def keep_survivors(trace: Path, folder: Path, target: Path, *, until: Path) -> list[str]:
    """Copies to *target* the files in *folder* that would survive a loss of power.

    The loss is at the instant at which the traced process made the folder *until*. Returns the files that
    would be lost, as paths in *folder*.
    """
    there = _state_at(trace, folder, until)
    lost: list[str] = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = file.relative_to(folder)
        if _survives(there, folder, place):
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target / place)
        else:
            lost.append(str(place))
    return lost


def _survives(there: dict[Path, Content], folder: Path, place: Path) -> bool:
    at = folder
    for name in place.parts:
        content = there.get(at / name)
        if content is None or there[at].names.get(name) is not content:
            return False
        at /= name
    return there[at].is_synced


def _state_at(trace: Path, folder: Path, until: Path) -> dict[Path, Content]:
    """Returns the files and folders below *folder*, itself included, by path."""
    there: dict[Path, Content] = {folder: Content()}
    for call, texts, file, text in _calls(trace):
        if call.startswith("mkdir"):
            if Path(texts[0]) == until:
                return there
            if folder in Path(texts[0]).parents:
                there[Path(texts[0])] = Content()
        elif call in NAMES:
            _rename(there, call, [Path(name) for name in texts])
        elif call in OPENS and "O_CREAT" in text and file and folder in file.parents:
            there.setdefault(file, Content())
        elif call in SYNCS and file in there:
            there[file].is_synced = True
            there[file].names = {path.name: of for path, of in there.items() if path.parent == file}
        elif call in WRITES and file in there:
            there[file].is_synced = False
    msg = f"{until} was never made"
    raise AssertionError(msg)


def _rename(there: dict[Path, Content], call: str, paths: list[Path]) -> None:
    """Changes the names in *there* as a call of NAMES does."""
    if paths[0] not in there:
        return
    if call.startswith("unlink"):
        del there[paths[0]]
    elif call.startswith("link"):
        there[paths[1]] = there[paths[0]]
    else:
        for path in [path for path in there if path == paths[0] or paths[0] in path.parents]:
            there[paths[1] / path.relative_to(paths[0])] = there.pop(path)


def _calls(trace: Path):
    """Yields name, texts, file and the whole text of each call that succeeded."""
    begun: dict[str, str] = {}
    for line in trace.read_text().splitlines():
        process = line.split(maxsplit=1)[0]
        if line.endswith("<unfinished ...>"):
            begun[process] = line.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"^\d+ +<\.\.\. \w+ resumed>(.*)", line):
            line = begun.pop(process) + resumed[1]
        found = _CALL.match(line)
        if found is None or int(found[3]) < 0:
            continue
        call, arguments, _ = found.groups()
        opened = _OPENED.search(line[found.end(2) :]) or _FILE.match(arguments)
        file = Path(opened[1].removesuffix("(deleted)")) if opened else None
        yield call, _TEXT.findall(arguments) if call not in WRITES else [], file, line
