"""Clusters of PostgreSQL on Unix sockets. A test may stop, continue, kill or promote one.

The programs are those of the newest version below /usr/lib/postgresql, where Debian has them, or those on PATH. PostgreSQL refuses to run
as root: a test as root runs it as the user postgres or nobody.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
from gavel_server.log.postgresql.schema import schema_sql

from tests.support.missing import report_missing

PORT: Final = 5432  # names the socket only
DATABASE: Final = "gavel"
START_SECONDS_MAX: Final = 60
_DEBIAN: Final = Path("/usr/lib/postgresql")
# Small, but as durable as a real one.
_SETTINGS: Final = (
    "listen_addresses=",
    "shared_buffers=16MB",
    # In files of the cluster: a killed server would leave its segments in /dev/shm.
    "dynamic_shared_memory_type=mmap",
    "max_connections=150",
    "lc_messages=C",
    "max_wal_senders=5",
    "wal_keep_size=64MB",
)


def find_programs() -> Path:
    """Return the folder with PostgreSQL's programs. Ends the test if there is none (`report_missing`)."""
    versions = [path for path in _DEBIAN.glob("*/bin") if (path / "initdb").exists()]
    if versions:
        return max(versions, key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    if on_path is None:
        report_missing("PostgreSQL is not installed: no initdb below /usr/lib/postgresql or on PATH (Debian: apt-get install postgresql)")
    return Path(on_path).resolve().parent


class Cluster:
    """A running PostgreSQL with the database `gavel`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment: Mapping[str, str] = {}
        """Variables of its processes besides those of the test."""
        self.data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL for a server: its role may append and trim."""
        return self.url_of("gavel_server")

    def url_of(self, user: str, database: str = DATABASE) -> str:
        """Return the URL for a user; `postgres` is the superuser."""
        return f"postgresql://{user}@/{database}?host={self.directory}&port={PORT}"

    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return self.directory / f".s.PGSQL.{PORT}"

    def process_ids(self) -> list[int]:
        """Return the ids of all its processes, the parent's first."""
        assert self._process is not None
        pid = self._process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def initialize(self) -> None:
        """Create the files."""
        options = ("-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "--encoding=UTF8")
        _run([find_programs() / "initdb", "-D", self.data, *options], self.directory)

    def start(self, *settings: str) -> None:
        """Start, and wait until it answers. The files of a killed one recover."""
        options = [part for setting in (*_SETTINGS, f"unix_socket_directories={self.directory}", *settings) for part in ("-c", setting)]
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                # Soon after a kill, its shared memory may still be in use.
                with (self.directory / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        [find_programs() / "postgres", "-D", self.data, "-p", str(PORT), *options],
                        cwd=self.directory,
                        stdout=log,
                        stderr=log,
                        env={**os.environ, **self.environment},
                        start_new_session=True,
                        **_identity(),
                    )
            with suppress(psycopg.OperationalError), psycopg.connect(self.url_of("postgres", "postgres")):
                return
            time.sleep(0.05)
        raise AssertionError(f"PostgreSQL does not start: {(self.directory / 'log').read_text()[-2000:]}")

    def reset(self) -> None:
        """Change all settings back."""
        self.execute("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")

    def execute(self, *statements: str, database: str = DATABASE) -> list[tuple[Any, ...]]:
        """Run statements as the superuser; return the rows of the last one."""
        with psycopg.connect(self.url_of("postgres", database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def install(self, database: str = DATABASE) -> None:
        """Create a database with the schema of logs; a server may also trim."""
        self.execute(f"CREATE DATABASE {database}", database="postgres")
        self.execute(schema_sql(), "GRANT gavel_archiver TO gavel_server", database=database)

    def set(self, setting: str, value: str) -> None:
        """Change a setting of the running server."""
        self.execute(f"ALTER SYSTEM SET {setting} = '{value}'", "SELECT pg_reload_conf()")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes, to the parent first: each of them has a process group of its own."""
        for process in self.process_ids():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self) -> None:
        """End all its processes at once, as a crash of the machine does."""
        assert self._process is not None
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Shut down: connections end, everything is on disk."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(START_SECONDS_MAX)

    def copy_to(self, standby: Cluster, *, slot: str = "") -> None:
        """Make another cluster a streaming standby, which is not started yet."""
        options = ["-C", "-S", slot] if slot else []
        _run(
            [
                find_programs() / "pg_basebackup",
                "-d",
                self.url_of("postgres", "postgres"),
                "-D",
                standby.data,
                "-R",
                "-c",
                "fast",
                *options,
            ],
            self.directory,
        )

    def promote(self) -> None:
        """Make a standby a primary of its own."""
        self.execute("SELECT pg_promote()", database="postgres")


@contextmanager
def directories() -> Iterator[Path]:
    """Yield a directory that the user of PostgreSQL may use; the path is short enough for a socket."""
    # Folders for the temporary files of root are often closed to others.
    directory = Path(tempfile.mkdtemp(prefix="gavel-postgresql-", dir="/tmp" if os.getuid() == 0 else None))  # noqa: S108
    try:
        _hand_over(directory)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def new_cluster(directory: Path, *settings: str) -> Iterator[Cluster]:
    """Run a cluster with the schema of logs in a folder of `directories`."""
    cluster = prepare(directory)
    cluster.initialize()
    with running(cluster, *settings):
        cluster.install()
        yield cluster


@contextmanager
def running(cluster: Cluster, *settings: str) -> Iterator[None]:
    """Run a cluster that has its files."""
    cluster.start(*settings)
    try:
        yield
    finally:
        cluster.kill()


def prepare(directory: Path) -> Cluster:
    """Return a cluster without files in a new folder."""
    directory.mkdir()
    _hand_over(directory)
    return Cluster(directory)


def _hand_over(directory: Path) -> None:
    identity = _identity()
    if identity:
        os.chown(directory, identity["user"], identity["group"])


def _identity() -> dict[str, Any]:
    """Return the arguments of Popen that make root another user."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise AssertionError("root cannot run PostgreSQL, and there is neither a user postgres nor nobody")


def _run(command: list[str | Path], directory: Path) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=START_SECONDS_MAX,
        check=False,
        **_identity(),
    )
    assert 0 == done.returncode, f"{command[0]}: {done.stdout}"
