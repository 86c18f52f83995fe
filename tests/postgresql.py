"""A PostgreSQL of the tests' own: a server on a Unix socket in a temporary folder, a database for each test.

Tests that need it are skipped, with the reason, where PostgreSQL or its driver is not installed.
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import HANG

FOLDERS = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/pgsql/bin")]
USER = "postgres"
"""Who runs the server if root runs the tests, because PostgreSQL refuses to be run by root."""
INITDB = (
    "-U",
    "shoal",
    "--auth=trust",
    "--no-sync",
    "--data-checksums",
    "--encoding=UTF8",
    "--locale=C.UTF-8",
)
SETTINGS = ("listen_addresses=", "max_connections=40", "shared_buffers=16MB", "logging_collector=off")


def lacking() -> str:
    """Why there is no PostgreSQL here; "" if there is one."""
    if _program("postgres") is None or shutil.which("setpriv") is None:
        return "PostgreSQL is not installed"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed"
    if os.geteuid() == 0 and USER not in (each.pw_name for each in pwd.getpwall()):
        return f"root cannot run PostgreSQL, and there is no user {USER}"
    return ""


class Cluster:
    """A running server. folder: where its socket and its data are."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._data = folder, folder / "data"
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        folder.chmod(0o755)
        self._run("initdb", "-D", str(self._data), *INITDB)
        self._server = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the server, which ends with this process at the latest, and wait until it answers."""
        options = [part for setting in SETTINGS for part in ("-c", setting)]
        command = ["postgres", "-D", str(self._data), "-k", str(self.folder), *options]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(self._as_user(*command), stdout=log, stderr=log)
        deadline = time.monotonic() + HANG
        while subprocess.run(
            [_program("pg_isready"), "-q", "-h", self.folder], check=False, stdin=subprocess.DEVNULL
        ).returncode:
            assert self._server.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)
        return self._server

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End every session, and the server. how: SIGINT rolls back, SIGQUIT is like a crash."""
        self._server.send_signal(how)
        self._server.wait()

    def database(self) -> str:
        """The address of a new and empty database."""
        name = f"test_{secrets.token_hex(6)}"
        with self.session("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.url(name)

    def url(self, name: str) -> str:
        return f"postgresql://shoal@/{name}?host={self.folder}"

    @contextmanager
    def session(self, name: str = "postgres"):  # type: ignore[no-untyped-def]
        """A session of a test's own, by which it looks at a database or harms it."""
        import psycopg

        with psycopg.connect(name if "://" in name else self.url(name), autocommit=True) as connection:
            yield connection

    def _run(self, *command: str) -> None:
        done = subprocess.run(self._as_user(*command), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _as_user(self, program: str, *arguments: str) -> list[str]:
        become = []
        if os.geteuid() == 0:
            user = pwd.getpwnam(USER)
            become = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        return ["setpriv", "--pdeathsig", "INT", *become, str(_program(program)), *arguments]


@contextmanager
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="shoal-pg-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    made = None
    try:
        made = Cluster(folder)
        yield made
    finally:
        if made is not None:
            made.stop(signal.SIGQUIT)
        shutil.rmtree(folder)


def _program(name: str) -> Path | None:
    return next((folder / name for folder in FOLDERS if (folder / name).is_file()), None)
