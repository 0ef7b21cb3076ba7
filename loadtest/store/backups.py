"""Backup, restore, and changes of the number of shards, of a directory of about a gigabyte.

The commands run as a person runs them. A backup of a running server also gives the pause of its writes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack

from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench
from loadtest.bench.subjects import environ
from loadtest.clients.processes import Running
from loadtest.clients.traffic import NotMeasured, create_topics
from loadtest.store.nodes import DATA_1000, FollowingWriter, ask, fill, timed, wait_until

GIGABYTE = 1e9
TOPICS = 8
RECORDS = 1_000_000
NAMES = [f"t{number}" for number in range(TOPICS)]
POINTS = 20
SHARDS_BEFORE, SHARDS_AFTER = 1, 2
WITHOUT_LINKS = """
import errno, os, sys
def refuse(*given, **more):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))
os.link = refuse
from topicsd.__main__ import main
sys.exit(main())
"""


def command(*given: str, program: tuple[str, ...] = ("-m", "topicsd")) -> float:
    """Run a command of topicsd; return its seconds."""

    def work() -> None:
        done = subprocess.run(
            [sys.executable, *program, *given], env=environ(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotMeasured(f"{' '.join(given)}: {done.returncode} {done.stderr[-500:]}")

    return timed(work)[0]


def copy(source: str, target: str) -> None:
    """Copy a directory and sync each file: what a backup to a folder cannot do without."""
    for at, _, names in os.walk(source):
        folder = os.path.join(target, os.path.relpath(at, source))
        os.makedirs(folder)
        for name in names:
            with open(os.path.join(at, name), "rb") as read, open(os.path.join(folder, name), "wb") as write:
                shutil.copyfileobj(read, write, 1 << 20)
                write.flush()
                os.fsync(write.fileno())


def fill_all(server: Running, records: int) -> None:
    for name in NAMES:
        fill(server.port, name, records // TOPICS, DATA_1000)


def directory_bytes(path: str) -> int:
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(path) for name in names)


def backups(bench: Bench) -> Result:
    """Measure a full backup of a running server, one of 1 % more, the restore, and the pause of a point."""
    target, restored = os.path.join(bench.home, "backups"), os.path.join(bench.home, "restored")
    os.mkdir(target)
    with bench.subjects.server(2) as server:
        create_topics(server.port, bench.home, NAMES)
        fill_all(server, RECORDS)
        data = os.path.join(server.home, "data")
        full = command("backup", "create", data, "--to", target)
        size = directory_bytes(target)
        fill_all(server, RECORDS // 100)
        more = command("backup", "create", data, "--to", target)
        added = directory_bytes(target) - size
        with FollowingWriter(NAMES[0], server) as writer:
            pauses = [ask(server.port, "POST", "/v0/backup-points")["pause_ms"] for _ in range(POINTS)]
    bare = timed(lambda: copy(os.path.join(server.home, "data"), os.path.join(bench.home, "copy")))[0]
    restore = command("backup", "restore", target, restored)
    note = (
        f"{size / 1e6:,.0f} MB in {full:.1f} s; 1 % more: {more:.1f} s and {added / 1e6:,.0f} MB; "
        f"restore {restore / directory_bytes(restored) * GIGABYTE:.1f} s a GB; pause of a point "
        f"{statistics.median(pauses):.1f} ms, at most {max(pauses):.1f} ms of {POINTS} under load; "
        f"longest write {writer.longest_pause * 1000:.0f} ms"
    )
    rate, ceiling = size / full / 1e6, size / bare / 1e6
    return Result(
        line="", title="", unit="MB/s", value=rate, ceiling=ceiling, ratio=rate / ceiling, note=note
    )


def reshard_offline(has_links: bool) -> Callable[[Bench], Result]:
    """Measure `topicsd reshard` after a clean stop, beside a copy of the directory; per gigabyte."""

    def measure(bench: Bench) -> Result:
        with bench.subjects.server(SHARDS_BEFORE) as server:
            create_topics(server.port, bench.home, NAMES)
            fill_all(server, RECORDS)
            data = os.path.join(server.home, "data")
        size = directory_bytes(data)
        bare = timed(lambda: copy(data, os.path.join(bench.home, "copy")))[0]
        program = ("-m", "topicsd") if has_links else ("-c", WITHOUT_LINKS)
        took = command("reshard", data, "--shards", str(SHARDS_AFTER), program=program)
        value, ceiling = took / size * GIGABYTE, bare / size * GIGABYTE
        note = f"{size / 1e6:,.0f} MB, {SHARDS_BEFORE} to {SHARDS_AFTER} shards in {took:.1f} s"
        return Result(
            line="", title="", unit="s a GB", value=value, ceiling=ceiling, ratio=value / ceiling, note=note
        )

    return measure


def reshard_online(bench: Bench) -> Result:
    """Change the number of shards while a client writes to each topic; the longest pause of one."""
    with bench.subjects.server(SHARDS_BEFORE) as server, ExitStack() as clients:
        create_topics(server.port, bench.home, NAMES)
        fill_all(server, RECORDS)
        size = directory_bytes(os.path.join(server.home, "data"))
        writers = [clients.enter_context(FollowingWriter(name, server)) for name in NAMES]

        def is_steady() -> bool:
            state = ask(server.port, "GET", "/v0/shards")
            return bool(state["state"] == "steady" and state["rule"] == SHARDS_AFTER)

        def reshard() -> None:
            ask(server.port, "POST", "/v0/shards", b'{"count":%d}' % SHARDS_AFTER)
            wait_until(is_steady, "reshard")

        took = timed(reshard)[0]
    note = f"{size / 1e6:,.0f} MB, {SHARDS_BEFORE} to {SHARDS_AFTER} shards in {took:.1f} s, {TOPICS} writers"
    pause = max(writer.longest_pause for writer in writers)
    return Result(line="", title="", unit="s of pause", value=pause, note=note)
