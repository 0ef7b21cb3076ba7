"""Servers of other projects that the tests start, on 127.0.0.1 and a free port each.

`make stack` installs them below `.stack/`; `make test` depends on it, so their tests are never skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest.cluster.stack.programs import (
    CREDENTIALS,
    GO_PROGRAMS,
    INITDB,
    REGION,
    S3_PROGRAM,
    START_SECONDS,
    UNPRIVILEGED_UID,
    accepts,
    copy_programs,
    free_port,
    key_value_arguments,
    postgresql_programs,
    postgresql_url,
    s3_environment,
    s3_url,
)
from tests.harness.server.processes import Process, descendants, kill, processes_of

__all__ = ["CREDENTIALS", "GO_PROGRAMS", "REGION", "free_port"]


class S3Server:
    """A server that speaks S3, with its objects in a folder; `url` names a bucket of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, bucket: str) -> str:
        """Return the URL of a bucket, which is created when it does not exist."""
        request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        return s3_url(bucket, self.endpoint)

    def start(self) -> None:
        assert S3_PROGRAM.exists(), "run: make stack"
        environment = {**os.environ, **s3_environment(self._folder, self.port)}
        with open(self._folder / "s3.log", "ab") as log:
            self._process = subprocess.Popen(
                [S3_PROGRAM], env=environment, cwd=self._folder, stdout=log, stderr=log
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "s3.log").read_text()
            assert time.monotonic() < until, "the S3 server does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint, timeout=5):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class KeyValueServer:
    """A server of `.stack/bin`, which `make stack-go` builds where there is Go."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self.port = free_port()
        self._arguments = key_value_arguments(name, folder, self.port, free_port())
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.name}://127.0.0.1:{self.port}"

    def start(self) -> None:
        with open(self._folder / "log", "ab") as log:
            program = GO_PROGRAMS / self.name
            self._process = subprocess.Popen(
                [program, *self._arguments], cwd=self._folder, stdout=log, stderr=log
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < until, f"{self.name} does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        return accepts(self.port)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def key_value_server(name: str, folder: Path) -> Iterator[KeyValueServer]:
    server = KeyValueServer(name, folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class PostgresServer:
    """PostgreSQL; `new_database` names a database of its own for a test.

    It refuses to run as root, so a root process starts it as an unprivileged user, with the programs and the
    data in a folder that this user may enter.
    """

    def __init__(self, settings: Sequence[str] = ()) -> None:
        """`settings` of PostgreSQL, such as `fsync=off`."""
        self._settings = settings
        self._user = UNPRIVILEGED_UID if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="topicsd-postgresql-"))
        programs = postgresql_programs()
        assert programs is not None, "run: make stack"
        self._programs = programs
        if self._user is not None:
            os.chown(self._folder, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
            if not self._may_run():
                self._programs = copy_programs(self._programs, self._folder)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[Process] = []
        self._run(*INITDB)

    def url(self, database: str) -> str:
        return postgresql_url(self.port, database)

    def new_database(self, name: str) -> str:
        """Create a database and return its URL."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "topicsd", name)
        return self.url(name)

    def _may_run(self) -> bool:
        try:
            self._run("postgres", "--version")
        except PermissionError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            user=self._user,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr

    def start(self) -> None:
        options = [
            f"-cport={self.port}",
            "-clisten_addresses=127.0.0.1",
            f"-cunix_socket_directories={self._folder}",
            *(f"-c{one}" for one in self._settings),
        ]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", "data", *options],
                cwd=self._folder,
                user=self._user,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < until, "PostgreSQL does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port))
        except AssertionError:
            return False
        return True

    def freeze(self) -> None:
        """Stop all its processes, as a machine that hangs: connections stay open, and nothing answers."""
        assert self._process is not None
        self._frozen = [Process(self._process.pid), *processes_of(descendants(self._process.pid))]
        for one in self._frozen:
            one.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        for one in self._frozen:
            one.signal(signal.SIGCONT)
            one.close()

    def kill_frozen(self) -> None:
        assert self._process is not None
        kill(self._frozen)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """Stop at once, as a crash would: the children end with the server."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)


@contextmanager
def postgres_server(settings: Sequence[str] = ()) -> Iterator[PostgresServer]:
    server = PostgresServer(settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
