"""Every format version that was ever released stays readable: what was in it then is found in it now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shared.runtime.disk_thread import Threads
from shared.settings.settings import Settings
from tests.golden.descriptions import describe, describe_routes, describe_schedules, describe_sessions
from tests.golden.make_golden import GOLDEN, KEY
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from tests.harness.shard.one_shard import RecordedReply, record
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import read_layout, shard_paths
from topicsd.engine.requests import AppendRequest
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import topic_state
from topicsd.engine.write.append import append
from topicsd.log.file_header import VERSION
from topicsd.log.frame import FrameType, parse_frame
from topicsd.log.reader import WalBatch
from topicsd.log.walk import open_wal_files, walk_log
from topicsd.log.writer import Identity

VERSIONS = sorted(path.name for path in GOLDEN.glob("wal-format-*"))
LATER_TYPES = {
    FrameType.WATCH_SESSION: "watch",
    FrameType.FORWARD_CREATE: "forwards",
    FrameType.FORWARD_DELETE: "forwards",
    FrameType.FORWARD_CURSOR: "forwards",
    FrameType.SCHEDULE: "schedules",
}
FIRST_TYPES = {
    FrameType.APPEND,
    FrameType.TOPIC_CREATE,
    FrameType.TOPIC_DELETE,
    FrameType.DELETE,
    FrameType.EVICT_WATERMARK,
    FrameType.CONFIG_UPDATE,
    FrameType.HEAD_WATERMARK,
    FrameType.IDEMPOTENCY,
    FrameType.LOST_RANGE,
}

SETTINGS = Settings(wal_file_bytes=1 << 16)

Opened = tuple[Shard, ManualLoop, StepThread]


def copy_of(version: str, tmp_path: Path) -> Path:
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / version / "data", data)
    return data


def expected_of(version: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / version / "expected.json").read_text(encoding="utf-8"))
    return content


def opened(data: Path, now_ms: int) -> Opened:
    fs, clock = RealFs(), ManualClock(now_ms=now_ms)
    layout = read_layout(fs, str(data))
    assert layout is not None
    loop = ManualLoop(clock)
    thread = StepThread(loop)
    identity = Identity(layout.instance_bytes, 0)
    failures: list[OSError] = []
    threads = Threads(*[thread] * len(Threads._fields))
    shard = Shard(fs, clock, loop, threads, shard_paths(str(data), 0), identity, SETTINGS, failures.append)
    return shard, loop, thread


def bytes_of(data: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }


def assert_has(actual: Any, expected: Any, place: str) -> None:
    """A later release may know more about the same topic; what was known then has to be the same."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_has(actual[name], value, f"{place}.{name}")
    else:
        assert actual == expected, place


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_in_it_is_found_in_it(version: str, tmp_path: Path) -> None:
    expected = expected_of(version)
    shard, _, _ = opened(copy_of(version, tmp_path), expected["now_ms"])
    topics = json.loads(json.dumps(describe(shard)))
    assert topics.keys() == expected["topics"].keys()
    for name, topic in expected["topics"].items():
        assert_has(topics[name], topic, name)
    sessions = json.loads(json.dumps(describe_sessions(shard)))
    assert sessions.keys() == expected.get("sessions", {}).keys()
    assert_has(sessions, expected.get("sessions", {}), "sessions")
    routes = json.loads(json.dumps(describe_routes(shard)))
    assert routes.keys() == expected.get("forwards", {}).keys()
    assert_has(routes, expected.get("forwards", {}), "forwards")
    schedules = json.loads(json.dumps(describe_schedules(shard)))
    assert schedules.keys() == expected.get("schedules", {}).keys()
    assert_has(schedules, expected.get("schedules", {}), "schedules")
    shard.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_start_that_only_reads_leaves_every_byte_as_it_is(version: str, tmp_path: Path) -> None:
    data = copy_of(version, tmp_path)
    before = bytes_of(data)
    shard, _, _ = opened(data, expected_of(version)["now_ms"])
    # With one it would have moved what the log holds into segments.
    shard.close(checkpoint=False)
    assert bytes_of(data) == before
    assert before == bytes_of(GOLDEN / version / "data")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_key_is_still_known_and_the_log_continues(version: str, tmp_path: Path) -> None:
    expected = expected_of(version)
    data = copy_of(version, tmp_path)
    shard, loop, thread = opened(data, expected["now_ms"])
    again = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    repeated, new = RecordedReply(), RecordedReply()
    append(shard.state, "orders", AppendRequest([again], idempotency_key=KEY), repeated)
    append(shard.state, "orders", AppendRequest([record("new")]), new)
    loop.run_until_idle()
    while thread.run_one():
        loop.run_until_idle()
    assert (repeated.answer.first_seq, repeated.answer.deduped) == (1, True)
    assert new.answer.first_seq == expected["topics"]["orders"]["state"]["head_seq"] + 1
    shard.close()
    shard, _, _ = opened(data, expected["now_ms"])
    state: Any = topic_state(shard.state, "orders")
    assert state.head_seq == new.answer.first_seq
    shard.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_it_lies_in_the_files_it_was_written_to(version: str) -> None:
    data = GOLDEN / version / "data"
    names = [str(path.relative_to(data)) for path in sorted(data.rglob("wal-*.log"))]
    assert names == expected_of(version)["files"]


def test_the_running_version_has_a_golden_file_with_every_frame_that_is_written() -> None:
    version = f"wal-format-{VERSION}"
    assert version in VERSIONS
    assert types_of(version) == FIRST_TYPES
    for kind, name in LATER_TYPES.items():
        assert kind in types_of(f"{version}-{name}")


def types_of(version: str) -> set[FrameType]:
    types = set()

    def note(batch: WalBatch, position: int) -> None:
        at = batch.start
        while at < batch.end:
            frame = parse_frame(batch.buffer, at, batch.end)
            types.add(FrameType(frame.type))
            at += frame.size

    fs = RealFs()
    files = open_wal_files(fs, shard_paths(str(GOLDEN / version / "data"), 0))
    walk_log(fs, files, None, note)
    for file in files:
        fs.close(file.fd)
    return types
