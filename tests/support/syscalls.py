"""A model of a disk that keeps only what was synced, fed with the system calls of a real process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STRACE = shutil.which("strace")
TRACED = (
    "openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,fsync,fdatasync,"
    "rename,renameat,renameat2,mkdir,mkdirat,link,linkat,unlink,unlinkat,rmdir"
)
_CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_UNFINISHED = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DESCRIPTOR = re.compile(r"^(\d+|AT_FDCWD)<([^>]*)>")


@dataclass
class Disk:
    """The files below a folder, and what of them a power failure at this moment would not leave."""

    root: str
    files: set[str] = field(default_factory=set)
    dirty: set[str] = field(default_factory=set)
    """Files whose content is not synced, by their current path."""
    unnamed: set[str] = field(default_factory=set)
    """Files and folders that the synced state of their folder does not have."""

    def lost(self) -> list[str]:
        """The files that would be lost or damaged, relative to the folder."""
        return sorted(
            os.path.relpath(path, self.root)
            for path in self.files
            if path in self.dirty
            or any(path == one or path.startswith(f"{one}/") for one in self.unnamed - {self.root})
        )

    def apply(self, name: str, paths: list[str], arguments: str) -> None:
        """Follow a system call."""
        if not any(f"{path}/".startswith(f"{self.root}/") for path in paths):
            return
        if name in {"fsync", "fdatasync"}:
            self.dirty.discard(paths[0])
            self.unnamed -= {path for path in self.unnamed if str(Path(path).parent) == paths[0]}
        elif name in {"open", "openat", "creat"}:
            if "O_CREAT" in arguments or name == "creat":
                self._create(paths[-1])
            if "O_TRUNC" in arguments or name == "creat":
                self.dirty.add(paths[-1])
        elif name in {"mkdir", "mkdirat"}:
            self.unnamed.add(paths[-1])
        elif name.startswith("rename"):
            self._move(paths[0], paths[1])
        elif name.startswith("link"):
            self._create(paths[1])
            if paths[0] in self.dirty:
                self.dirty.add(paths[1])
        elif name in {"unlink", "unlinkat", "rmdir"}:
            for names in (self.files, self.dirty, self.unnamed):
                names.discard(paths[-1])
        else:
            self.dirty.add(paths[0])

    def _create(self, path: str) -> None:
        if path not in self.files:
            self.files.add(path)
            self.unnamed.add(path)

    def _move(self, old: str, new: str) -> None:
        for names in (self.files, self.dirty, self.unnamed):
            inside = {path for path in names if path == old or path.startswith(f"{old}/")}
            names.discard(new)
            names.difference_update(inside)
            names.update(new + path[len(old) :] for path in inside)
        self.unnamed.add(new)


def trace(script: Path, arguments: Sequence[str], log: Path) -> None:
    """Run a script of Python under strace."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run(
        [
            *(STRACE or "", "-f", "-y", "-s", "200", "-e", f"trace={TRACED}", "-o", str(log)),
            *(sys.executable, str(script), *arguments),
        ],
        env=environment,
        check=True,
        timeout=300,
    )


def calls(log: Path) -> Iterator[tuple[str, list[str], str]]:
    """The successful system calls of a trace in order: name, absolute paths, and all arguments."""
    started: dict[str, str] = {}
    for raw in log.read_text("utf-8", "replace").splitlines():
        line = raw
        if unfinished := _UNFINISHED.match(line):
            started[unfinished[1]] = unfinished[2]
            continue
        if resumed := _RESUMED.match(line):
            line = f"{resumed[1]} {started.pop(resumed[1], '')}{resumed[3]}"
        found = _CALL.match(line)
        if found is not None and int(found[3]) >= 0:
            yield found[1], _paths(found[1], found[2]), found[2]


def _paths(name: str, arguments: str) -> list[str]:
    """The paths of a call: of its descriptor, or the names in its arguments."""
    first = _DESCRIPTOR.match(arguments)
    if (
        name in {"write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate"}
        or "sync" in name
    ):
        return [first[2] if first else ""]
    base = first[2] if first else ""
    return [os.path.normpath(Path(base, text)) for text in _TEXT.findall(arguments)]
