"""Java on this machine: where it is, and whether Spark can run on it."""

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
    """A Java that was found: its program, its major version (0 where it cannot say), and what named
    it.
    """

    program: str
    version: int
    named_by: str

    @property
    def new_enough(self) -> bool:
        """Whether Spark runs on it."""
        return self.version >= OLDEST_JAVA


def find_java() -> Java | None:
    """The Java that Spark would start: that of JAVA_HOME where it is set, else the first on the
    PATH; None where there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        # Spark does not look further, so neither do we: a wrong JAVA_HOME is a problem even where
        # the PATH has a Java.
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
    # Before Java 9 the major version stood second: 1.8 is Java 8.
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0
