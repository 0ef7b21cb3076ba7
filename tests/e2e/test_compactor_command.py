"""`topicsd compactor` and the vacuum of shared objects on a real store and catalog, also when killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.runtime.clock import SystemClock
from tests.e2e.test_store_vacuum import SOLE, LeftStore
from tests.harness.brokers.written_topics import WrittenTopics, old_topics_in
from tests.harness.output.command_run import PROJECT, command_line, environment, run_here
from topicsd.broker.frames_v1 import SEGMENT_V1
from topicsd.catalog.shared.shared_catalog import REPEATED_MS
from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX

WAIT_SECONDS = 60.0
DAY_SECONDS = 24 * 3600
LISTENING = re.compile(rb'port"?[=:] ?(\d+)')


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenTopics:
    for name in ("TOPICS_STORE_URL", "TOPICS_CATALOG_URL"):
        monkeypatch.delenv(name, raising=False)
    return old_topics_in(tmp_path / "store", SystemClock().now_ms())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


class RunningCompactor:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.port = int(wait_for(lambda: LISTENING.search(log.read_bytes()), "the compactor listens")[1])

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            body: bytes = answer.read()
            return body

    def upkeep(self) -> dict[str, Any]:
        counts: dict[str, Any] = json.loads(self.get("/metrics"))["upkeep"]
        return counts

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=WAIT_SECONDS)


def wait_for(condition: Any, what: str) -> Any:
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        if result := condition():
            return result
        time.sleep(0.05)
    pytest.fail(f"after {WAIT_SECONDS} s not: {what}")


@contextmanager
def compactor(url: str, log: Path, *more: object) -> Iterator[RunningCompactor]:
    arguments = (
        "compactor",
        "--store-url",
        url,
        "--port",
        0,
        "--pass-seconds",
        1,
        "--wait-minutes",
        0,
        *more,
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            command_line(*arguments), env=environment(), stdout=output, stderr=output, cwd=PROJECT
        )
    try:
        yield RunningCompactor(process, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def is_compacted(topics: WrittenTopics) -> bool:
    return all({one.type for one in topics.extents(name)} == {"COMPACTED"} for name in topics.topics)


def age(topics: WrittenTopics, folder: Path, keep: int = 0) -> None:
    """Make all objects a day old, but the last ones."""
    for path in sorted(folder.rglob("llog/*/*"))[: -keep or None]:
        os.utime(path, (time.time() - DAY_SECONDS - 60,) * 2)


# -- once


def test_once_compacts_all_topics_and_says_what_it_did(topics: WrittenTopics, url: str) -> None:
    topics.write(blobs=5, records=4)
    ran = run_here("compactor", "--once", "--store-url", url)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert [re.sub(r", .*", "", line) for line in lines] == [
        f"t{number}: merged 5 slices into 1 object" for number in range(3)
    ]
    assert {one.encoding for one in topics.extents("t0")} == {SEGMENT_V1}
    topics.check()
    again = run_here("compactor", "--once", "--store-url", url)
    assert again.out.splitlines() == [f"t{number}: nothing to merge" for number in range(3)]


def test_once_visits_only_the_topics_that_are_given(
    topics: WrittenTopics, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.write(blobs=3)
    monkeypatch.setenv("TOPICS_STORE_URL", url)
    ran = run_here("compactor", "--once", "--json", "--topic", "t1", "--topic", "absent")
    assert [(one["topic"], one["outcome"], one["extents"]) for one in ran.json] == [
        ("t1", "merged", 3),
        ("absent", "no topic", 0),
    ]
    assert [len(topics.extents(f"t{number}")) for number in range(3)] == [3, 1, 3]


def test_young_slices_and_claimed_topics_are_left(topics: WrittenTopics, url: str, tmp_path: Path) -> None:
    topics.write(blobs=3)
    young = old_topics_in(tmp_path / "store", SystemClock().now_ms() + REPEATED_MS, topics=0)
    claim = young.catalog.claim("t2", "another", 600_000)
    assert claim is not None
    ran = run_here("compactor", "--once", "--store-url", url)
    assert ran.out.splitlines()[2] == "t2: busy: another process has claimed it"
    young.catalog.release(claim)
    assert run_here("compactor", "--once", "--store-url", url).out.splitlines()[2].startswith("t2: merged 3")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "--store-url: must be given, or TOPICS_STORE_URL set"),
        (("--store-url", "ftp://x"), "--store-url: "),
        (("--store-url", "s3://bucket"), "--catalog-url: must be given"),
        (("--store-url", "file:///nowhere/at/all"), "--store-url: there is no directory /nowhere/at/all"),
        (("--store-url", "file:///tmp", "--catalog-url", "mysql://x"), "--catalog-url: "),
        (("--store-url", "file:///tmp", "--host", "0.0.0.0"), "--host: 0.0.0.0 can be reached"),
        (("--store-url", "file:///tmp", "--workers", "0"), "--workers: must be from 1 to 64, got 0"),
    ],
)
def test_what_cannot_work_is_refused(
    arguments: tuple[str, ...], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOPICS_STORE_URL", "TOPICS_CATALOG_URL"):
        monkeypatch.delenv(name, raising=False)
    ran = run_here("compactor", *arguments)
    assert ran.code == 2
    assert ran.err.startswith(f"topicsd: {problem}")


# -- as a service


def test_the_service_compacts_and_reports(topics: WrittenTopics, url: str, tmp_path: Path) -> None:
    topics.write(blobs=6)
    with compactor(url, tmp_path / "log", "--topic", "t0") as running:
        wait_for(lambda: running.upkeep()["merged"] == 3, "all topics are merged")
        assert json.loads(running.get("/health"))["status"] == "ok"
        upkeep = running.upkeep()
        assert (upkeep["merged_extents"], upkeep["failed"]) == (18, 0)
        assert upkeep["stage_seconds"]["put"] > 0
        store = json.loads(running.get("/metrics"))["store"]
        assert (store["creates"] >= 3, store["lists"]) >= (True, 0)
        text = running.get("/metrics/prometheus").decode()
        assert "\ntopics_compactor_merged_total 3\n" in text
        assert 'topics_compactor_stage_seconds_total{stage="read"}' in text
        assert running.end(signal.SIGTERM) == 0
    topics.check()


def test_ctrl_c_ends_it_in_the_middle_without_a_claim(
    topics: WrittenTopics, url: str, tmp_path: Path
) -> None:
    topics.write(blobs=150, records=2)
    with compactor(url, tmp_path / "log", "--workers", 1) as running:
        assert running.end(signal.SIGINT) == 0
    assert b"Traceback" not in (tmp_path / "log").read_bytes()
    for name in topics.topics:
        claim = topics.catalog.claim(name, "another", 1)
        assert claim is not None
        topics.catalog.release(claim)
    topics.check()
    assert run_here("compactor", "--once", "--store-url", url).code == 0
    assert is_compacted(topics)
    topics.check()


def test_compactors_that_are_killed_lose_nothing(topics: WrittenTopics, url: str, tmp_path: Path) -> None:
    """Two compactors over the same topics; one is killed again and again, and claims of the dead expire."""
    topics.write(blobs=40)
    with compactor(url, tmp_path / "log", "--object-mib", 1) as running:
        for number in range(3):
            with compactor(url, tmp_path / f"log-{number}", "--object-mib", 1) as other:
                topics.write(blobs=5)
                time.sleep(0.05 * number)
                other.end(signal.SIGKILL)
            topics.check()
        topics.write(blobs=2)
        wait_for(lambda: running.upkeep()["merged"] >= 1, "something is merged")
        assert running.end(signal.SIGTERM) == 0
    topics.check()


# -- vacuum


def vacuum(*arguments: object) -> Any:
    ran = run_here("store", "vacuum", *arguments, "--json")
    assert (ran.err, ran.code) == ("", 0)
    return ran.json


def test_vacuum_deletes_the_objects_that_no_shared_topic_names(
    topics: WrittenTopics, url: str, tmp_path: Path
) -> None:
    topics.write(blobs=4)
    store = tmp_path / "store"
    orphan = store / "llog/wal-shared" / ("0" * 32)
    orphan.write_bytes(b"never committed")
    run_here("compactor", "--once", "--store-url", url, "--topic", "t0", "--topic", "t1")
    age(topics, store)
    dry = vacuum("--store-url", url, "--dry-run")
    # The blobs still have the records of t2.
    assert (dry["shared"]["objects"], dry["shared"]["orphans"], dry["is_deleted"]) == (7, 1, False)
    assert [one["key"] for one in dry["shared"]["examples"]] == [f"llog/wal-shared/{'0' * 32}"]
    assert orphan.exists()
    run_here("compactor", "--once", "--store-url", url)
    age(topics, store)
    text = run_here("store", "vacuum", "--store-url", url)
    assert "5 objects" in text.out.splitlines()[-1]
    assert "can be deleted with --apply" in text.out.splitlines()[-1]
    done = vacuum("--store-url", url, "--apply")
    assert (done["shared"]["orphans"], done["is_deleted"]) == (5, True)
    assert not list((store / "llog/wal-shared").iterdir())
    topics.check()
    assert "nothing to delete" in run_here("store", "vacuum", "--store-url", url).out


def test_vacuum_leaves_young_objects(topics: WrittenTopics, url: str, tmp_path: Path) -> None:
    (tmp_path / "store/llog/wal-shared").mkdir(parents=True)
    (tmp_path / "store/llog/wal-shared" / ("0" * 32)).write_bytes(b"on its way")
    report = vacuum("--store-url", url, "--apply", "--grace-hours", 1)
    assert (report["shared"]["young"], report["shared"]["orphans"]) == (1, 0)


def test_vacuum_of_a_data_directory_also_takes_shared_objects(tmp_path: Path) -> None:
    left = LeftStore(tmp_path)
    url = f"file://{left.cold}"
    topics = old_topics_in(left.cold, SystemClock().now_ms())
    topics.write(blobs=3)
    ran = run_here("compactor", "--once", "--store-url", url)
    assert ran.code == 0
    for path in left.cold.rglob("llog/*/*"):
        left.age(path, hours=7 * 24)
    killed = left.cold / "llog/wal-shared" / f"{'1' * 32}{TEMPORARY_SUFFIX}"
    killed.write_bytes(b"half")
    left.age(killed, hours=7 * 24)
    report = left.report(SOLE)
    assert (report["shared"]["orphans"], report["shared"]["temporary"]) == (3, 1)
    assert report["orphans"] == []
    done = left.report(SOLE, "--apply")
    assert (done["is_deleted"], done["shared"]["orphans"]) == (True, 3)
    assert not list((left.cold / "llog/wal-shared").iterdir())
    assert sorted(left.cold.glob("segments/*/*")) == left.named
    topics.check()


def test_without_a_catalog_shared_objects_are_mentioned_and_left(tmp_path: Path) -> None:
    left = LeftStore(tmp_path)
    orphan = left.leave("0" * 32, 7 * 24, left.cold / "llog/wal-shared")
    ran = left.vacuum(SOLE, "--apply")
    assert "objects of shared topics were not looked at: they need --catalog-url" in ran.out
    assert orphan.exists()


def test_vacuum_makes_no_catalog(tmp_path: Path) -> None:
    catalog = f"sqlite://{tmp_path}/catalog"
    ran = run_here("store", "vacuum", "--store-url", "s3://bucket", "--catalog-url", catalog, "--apply")
    assert ran.code == 2
    assert f"there is no file {tmp_path}/catalog; a broker creates it" in ran.err
