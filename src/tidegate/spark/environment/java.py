"""The Java that Spark runs on: its path and version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OLDEST_JAVA = 17
HOW_TO_GET_JAVA = (
    "install one (Debian, Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME to where"
    " it is"
)


@dataclass(frozen=True)
class Java:
    """An installed Java."""

    program: str
    version: int
    """The major version; 0 if unknown."""
    named_by: str
    """Where its path comes from: `JAVA_HOME` or `PATH`."""

    @property
    def new_enough(self) -> bool:
        """Whether Spark supports this version."""
        return self.version >= OLDEST_JAVA


def find_java() -> Java | None:
    """The Java that Spark would start: of JAVA_HOME if set, else the first on the PATH, if any."""
    home = os.environ.get("JAVA_HOME")
    if home:
        # Spark looks no further: a wrong JAVA_HOME is an error even if the PATH has a Java.
        program = Path(home) / "bin" / "java"
        return Java(str(program), _version(str(program)), "JAVA_HOME") if program.exists() else None
    found = shutil.which("java")
    return None if found is None else Java(found, _version(found), "PATH")


def _version(program: str) -> int:
    try:
        done = subprocess.run(  # noqa: S603 - the Java that Spark would start
            [program, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    # Before Java 9, the major version was the second number: 1.8 is Java 8.
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0
