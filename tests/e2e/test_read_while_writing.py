"""`inspect` and `verify` beside a continuous writer: no false alarm, and no number decreases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.harness.output.command_run import environment, run_command, run_here
from tests.harness.shard.data_dirs import being_used
from tests.harness.shard.one_shard import record
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import ShardPaths
from topicsd.log.reader import WINDOW_BYTES
from topicsd.log.writer import Identity
from topicsd.offline import loaded_shard
from topicsd.segment.reader import SegmentReader

ROUNDS = 200 if os.environ.get("TOPICS_TEST_DEEP") else 25

# Batches of one record and of half a file; the pause keeps the log small enough to read again.
WRITER = """
import asyncio, sys
import msgspec
from random import Random
from shared.settings.settings import Settings
from topicsd.engine.shard import open_shard
from topicsd.engine.requests import AppendRequest, DeleteRequest, NewRecord
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.write.append import append

async def main():
    loop = asyncio.get_running_loop()
    rng = Random(int(sys.argv[2]))
    settings = Settings(
        shards=1, wal_file_bytes=1 << 18, checkpoint_interval_ms=300, segment_max_events=200,
        reader_grace_ms=0
    )
    shard = open_shard(sys.argv[1], settings=settings)
    while True:
        topic = rng.choice(["orders", "bills"])
        size, count = rng.choice([(10, 1), (100, 10), (300, 50)]) if rng.random() < 0.98 else (100_000, 3)
        data = msgspec.Raw(msgspec.json.encode("x" * size))
        records = [NewRecord(data, "odd" if number % 7 == 3 else None) for number in range(count)]
        done = loop.create_future()
        append(shard.state, topic, AppendRequest(records), done.set_result)
        answer = await done
        print(answer.topic, answer.last_seq, flush=True)
        if rng.random() < 0.1:
            below = rng.randrange(answer.last_seq) if rng.random() < 0.5 else None
            delete = DeleteRequest(before_seq=below, tag=None if below else "odd")
            done = loop.create_future()
            delete_records(shard.state, topic, delete, done.set_result)
            await done
        await asyncio.sleep(0.01)

asyncio.run(main())
"""


@contextmanager
def writer(path: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    log = path.with_suffix(".acks")
    with open(log, "w") as acks:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(seed)], stdout=acks, text=True, env=environment()
        )
        try:
            while not log.stat().st_size:
                assert process.poll() is None
            yield process
            assert process.poll() is None, "the writer must have written all the time"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def acked(path: Path) -> dict[str, int]:
    lines = path.with_suffix(".acks").read_text().split("\n")[:-1]
    return {topic: int(seq) for topic, seq in (line.split() for line in lines)}


@pytest.mark.slow
def test_inspect_and_verify_work_beside_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "data"
    seed = Random().randrange(1 << 30)
    print("seed", seed)
    seen = {"orders": 0, "bills": 0}
    with writer(path, seed) as process:
        for _ in range(ROUNDS):
            before = acked(path)
            ran = run_here("inspect", path, "--json")
            (shard,) = ran.json["shards"]
            assert (ran.code, shard["problems"]) == (0, [])
            assert (shard["in_use_by"], shard["starts"], shard["heads_exact"]) == (process.pid, True, True)
            heads = {topic["topic"]: topic["head_seq"] for topic in shard["topics"]}
            for topic, head in heads.items():
                assert head >= max(seen[topic], before.get(topic, 0)), "acked records are present"
            seen.update(heads)
            verdict = run_here("verify", path, "--json")
            assert verdict.code == 0, verdict.out
    ran = run_command("verify", path)
    assert (ran.code, ran.err) == (0, "")
    (shard,) = run_here("inspect", path, "--json").json["shards"]
    assert (shard["last_run"], shard["heads_exact"]) == ("process_died", True)
    heads = {topic["topic"]: topic["head_seq"] for topic in shard["topics"]}
    assert all(heads[topic] >= seq for topic, seq in acked(path).items())


@pytest.mark.slow
def test_frames_can_be_listed_beside_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with writer(path, 1):
        rows = run_here("inspect", path, "--frames", "--json").json_lines
    ordinals = [row["ordinal"] for row in rows if "ordinal" in row]
    assert ordinals == list(range(1, len(ordinals) + 1))
    seqs = [row["seq"] for row in rows if row["type"] == "append" and row["topic"] == "orders"]
    assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.parametrize("is_locked", [True, False])
@pytest.mark.parametrize("seen", [0, 1, 40, 100])
def test_a_batch_that_is_being_written_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_locked: bool, seen: int
) -> None:
    """The first read returns only `seen` bytes of the last two batches; later reads return them whole."""
    shard = being_used(tmp_path)
    shard.pass_time(200)
    rows = run_here("inspect", tmp_path, "--frames", "--json").json_lines
    ends = [row["offset"] + row["size"] for row in rows if row["type"] == "batch_end"]
    stop = ends[-3] + seen
    if not is_locked:
        shard.stop_dead()
    pread = RealFs.pread
    # The walk resumes where it stopped, and searches the end of a batch larger than its window.
    early_reads = 4 if seen else 2
    reads = 0

    def early(self: RealFs, fd: int, size: int, offset: int) -> bytes:
        nonlocal reads
        data = pread(self, fd, size, offset)
        reads += size >= WINDOW_BYTES
        if size < WINDOW_BYTES or reads > early_reads:
            return data
        return data[: max(0, stop - offset)].ljust(len(data), b"\0")

    for command in ("inspect", "verify"):
        reads = 0
        monkeypatch.setattr(RealFs, "pread", early)
        ran = run_here(command, tmp_path, "--json")
        monkeypatch.setattr(RealFs, "pread", pread)
        assert ran.code == 0
        (note,) = ran.json["shards"][0]["notes"]
        assert note.startswith("the log is being written: read up to its last whole batch, which ends at ")
        assert f" offset {ends[-3]} " in note
        if command == "inspect":
            assert ran.json["shards"][0]["heads_exact"]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_checkpoint_between_two_reads_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The first checkpoint drops the beginning of the log after the read saw no snapshot."""
    shard = being_used(tmp_path)
    for _ in range(4):
        shard.append("orders", record("x" * 30_000))
    first, choose = shard.wal_files()[0], loaded_shard.choose_snapshot

    def before_the_checkpoint(
        fs: Fs, paths: ShardPaths, identity: Identity, segments: SegmentReader
    ) -> loaded_shard.ChosenSnapshot:
        chosen = choose(fs, paths, identity, segments)
        if chosen.snapshot is None:
            shard.checkpoint()
        return chosen

    monkeypatch.setattr(loaded_shard, "choose_snapshot", before_the_checkpoint)
    ran = run_here(command, tmp_path, "--json")
    assert not os.path.exists(first)
    assert (ran.code, ran.json["shards"][0]["problems"]) == (0, [])
