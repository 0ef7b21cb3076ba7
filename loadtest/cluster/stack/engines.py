"""The store and the catalog of a run: real servers from `.stack`, on 127.0.0.1 and a free port each."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from loadtest.cluster.run_folder import RunFolder
from loadtest.cluster.scenario import Scenario
from loadtest.cluster.stack.programs import (
    GO_PROGRAMS,
    INITDB,
    S3_PROGRAM,
    STACK,
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
from loadtest.cluster.stack.tracked import Tracked, log_tail, start

BUCKET: Final = "load"

Started = Callable[[Tracked], None]


class NotAvailable(Exception):
    """A program of the stack is missing or does not start; the text says which and why."""


def start_store(scenario: Scenario, folder: RunFolder, environ: Mapping[str, str], on_start: Started) -> str:
    """Start the object store of a scenario and return its URL."""
    if scenario.store == "file":
        objects = folder.data / "store"
        objects.mkdir(exist_ok=True)
        return f"file://{objects}"
    if not S3_PROGRAM.exists():
        raise NotAvailable(f"store s3: {S3_PROGRAM} does not exist; run `make stack`")
    home = folder.data / "s3"
    home.mkdir(exist_ok=True)
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    tracked = start(
        "store",
        [str(S3_PROGRAM)],
        folder.logs / "store.log",
        {**environ, **s3_environment(home, port)},
        port=port,
        url=endpoint,
        cwd=home,
    )
    on_start(tracked)
    wait_until(tracked, lambda: _answers_http(endpoint))
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        return s3_url(BUCKET, endpoint)


def start_catalog(
    scenario: Scenario, folder: RunFolder, environ: Mapping[str, str], on_start: Started
) -> str:
    """Start the catalog of a scenario and return its URL."""
    if scenario.catalog == "sqlite":
        return f"sqlite://{folder.data}/catalog.db"
    if scenario.catalog == "postgresql":
        return _start_postgresql(folder, environ, on_start)
    name = scenario.catalog
    program = GO_PROGRAMS / name
    if not program.exists():
        raise NotAvailable(f"catalog {name}: {program} does not exist; run `make stack-go`, which needs Go")
    home = folder.data / name
    home.mkdir(exist_ok=True)
    port, other = free_port(), free_port()
    tracked = start(
        "catalog",
        [str(program), *key_value_arguments(name, home, port, other)],
        folder.logs / "catalog.log",
        environ,
        port=port,
        url=f"{name}://127.0.0.1:{port}",
        cwd=home,
    )
    on_start(tracked)
    wait_until(tracked, lambda: accepts(port))
    return tracked.url


def _start_postgresql(folder: RunFolder, environ: Mapping[str, str], on_start: Started) -> str:
    present = postgresql_programs()
    if present is None:
        raise NotAvailable(f"catalog postgresql: no PostgreSQL in {STACK}; run `make stack`")
    programs, home, user = _postgresql_home(present, folder)
    log = folder.logs / "catalog.log"
    _run_once(programs / INITDB[0], log, home, user, *INITDB[1:])
    port = free_port()
    options = [f"-cport={port}", "-clisten_addresses=127.0.0.1", "-cunix_socket_directories="]
    tracked = start(
        "catalog",
        [str(programs / "postgres"), "-D", "data", *options],
        log,
        environ,
        port=port,
        url=postgresql_url(port, "load"),
        cwd=home,
        user=user,
    )
    on_start(tracked)
    address = ("-h", "127.0.0.1", "-p", str(port))
    wait_until(tracked, lambda: _succeeds(programs / "pg_isready", home, user, *address))
    _run_once(programs / "createdb", log, home, user, *address, "-U", "topicsd", "load")
    return tracked.url


def _postgresql_home(programs: Path, folder: RunFolder) -> tuple[Path, Path, int | None]:
    """Return the programs, a folder for the data, and the user that both are for.

    An unprivileged user may neither enter the folder of a run that is below the home of root, nor the
    programs there; both are then below the temporary directory, and the run has a link to them.
    """
    home = folder.data / "postgresql"
    if os.geteuid() != 0:
        home.mkdir(exist_ok=True)
        return programs, home, None
    outside = Path("/tmp") / f"loadtest-postgresql-{folder.path.name}-{os.getpid()}"
    outside.mkdir(mode=0o755)
    home.symlink_to(outside)
    copied = copy_programs(programs, outside)
    os.chown(outside, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    return copied, outside, UNPRIVILEGED_UID


def remove_outside(folder: RunFolder) -> None:
    """Remove what a run has below the temporary directory."""
    home = folder.data / "postgresql"
    if home.is_symlink():
        shutil.rmtree(home.resolve(), ignore_errors=True)
        home.unlink()


def _run_once(program: Path, log: Path, home: Path, user: int | None, *arguments: str) -> None:
    with open(log, "ab") as output:
        done = subprocess.run(
            [program, *arguments], cwd=home, user=user, stdout=output, stderr=output, check=False
        )
    if done.returncode:
        raise NotAvailable(f"{program.name}: ended with {done.returncode}; see {log}")


def _succeeds(program: Path, home: Path, user: int | None, *arguments: str) -> bool:
    command = [str(program), *arguments]
    return subprocess.run(command, cwd=home, user=user, capture_output=True, check=False).returncode == 0


def _answers_http(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def wait_until(tracked: Tracked, is_ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Wait until a process answers; raise NotAvailable when it ends or takes too long."""
    until = time.monotonic() + seconds
    while not is_ready():
        if not tracked.is_alive:
            raise NotAvailable(f"{tracked.name}: ended at its start: {log_tail(tracked)}")
        if time.monotonic() > until:
            raise NotAvailable(f"{tracked.name}: no answer within {seconds:.0f} s: {log_tail(tracked)}")
        time.sleep(0.05)
