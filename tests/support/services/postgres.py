"""A private PostgreSQL server."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.services.processes import Process, ServiceUnavailable, free_ports

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "40",
    "shared_buffers": "64MB",
}


@dataclass
class PostgresServer:
    """A running server."""

    port: int
    process: Process

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=tidegate dbname=postgres"

    @property
    def url(self) -> str:
        return f"postgresql://tidegate@127.0.0.1:{self.port}/postgres"

    def query(self, statement: str, *values: Any) -> list[tuple]:
        """The rows of one statement, which is committed."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []


def _program(name: str) -> Path:
    """A program of the newest PostgreSQL that is installed."""
    folders = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        *Path("/usr/local/opt").glob("postgresql*/bin"),
    ]
    versions = sorted(
        folders,
        key=lambda folder: [int(part) for part in folder.parent.name.split(".") if part.isdigit()],
        reverse=True,
    )
    found = next(
        (folder / name for folder in versions if (folder / name).exists()), None
    ) or shutil.which(name)
    if found is None:
        raise ServiceUnavailable(
            f"PostgreSQL is not installed: no `{name}` (Debian, Ubuntu: apt-get install postgresql)"
        )
    return Path(found)


def _account() -> int | None:
    """PostgreSQL refuses to run as root: the account to use instead."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise ServiceUnavailable(
        "PostgreSQL does not run as root, and there is neither an account `postgres` nor `nobody`"
    )


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Make a cluster in a temporary folder and run it until the end of the block."""
    import psycopg

    initdb, postgres, account = _program("initdb"), _program("postgres"), _account()
    # Not below the folder of pytest: nobody but its owner may enter that one.
    folder = Path(tempfile.mkdtemp(prefix="tidegate-postgres-"))
    process = None
    try:
        if account is not None:
            os.chown(folder, account, -1)
        made = subprocess.run(
            [
                initdb,
                "-D",
                folder / "data",
                "-U",
                "tidegate",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ],
            user=account,
            extra_groups=None if account is None else [],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{made.stdout}\n{made.stderr}")
        (port,) = free_ports(1)
        settings = {**SETTINGS, "port": port, "unix_socket_directories": folder}
        options = [f"--{name}={value}" for name, value in settings.items()]
        process = Process(
            "PostgreSQL",
            [postgres, "-D", folder / "data", *options],
            folder / "server.log",
            user=account,
        )
        server = PostgresServer(port, process)

        def ready() -> bool:
            try:
                server.query("SELECT 1")
            except psycopg.OperationalError:
                return False
            return True

        process.wait_until(ready, 60)
        yield server
    finally:
        if process is not None:
            process.stop(signal.SIGINT)
        shutil.rmtree(folder, ignore_errors=True)
