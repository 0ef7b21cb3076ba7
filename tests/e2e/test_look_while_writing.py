"""Both commands beside a process that writes all the time: never a false alarm, never a step back."""

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

from tests.harness.command_run import environment, run_command, run_here

ROUNDS = 200 if os.environ.get("TOPICS_TEST_DEEP") else 25

# Batches of one record and of half a file, and a pause that keeps the whole small enough to read again.
WRITER = """
import asyncio, sys
import msgspec
from random import Random
from shared.config import Settings
from topicsd.engine.open_shard import open_shard
from topicsd.engine.requests import AppendRequest, NewRecord

async def main():
    loop = asyncio.get_running_loop()
    rng = Random(int(sys.argv[2]))
    settings = Settings(shards=1, wal_file_bytes=1 << 18)
    shard = open_shard(sys.argv[1], settings=settings)
    while True:
        topic = rng.choice(["orders", "bills"])
        size, count = rng.choice([(10, 1), (100, 10), (300, 50)]) if rng.random() < 0.98 else (100_000, 3)
        data = msgspec.Raw(msgspec.json.encode("x" * size))
        done = loop.create_future()
        shard.append(topic, AppendRequest([NewRecord(data) for _ in range(count)]), done.set_result)
        answer = await done
        print(answer.topic, answer.last_seq, flush=True)
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
            assert process.poll() is None, "the writer must have gone on all the time"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def acked(path: Path) -> dict[str, int]:
    lines = path.with_suffix(".acks").read_text().split("\n")[:-1]
    return {topic: int(seq) for topic, seq in (line.split() for line in lines)}


@pytest.mark.slow
def test_looking_while_somebody_writes(tmp_path: Path) -> None:
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
                assert head >= max(seen[topic], before.get(topic, 0)), "what was acked is there"
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
def test_listing_frames_while_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with writer(path, 1):
        rows = run_here("inspect", path, "--frames", "--json").json_lines
    ordinals = [row["ordinal"] for row in rows if "ordinal" in row]
    assert ordinals == list(range(1, len(ordinals) + 1))
    seqs = [row["seq"] for row in rows if row["type"] == "append" and row["topic"] == "orders"]
    assert seqs == list(range(1, len(seqs) + 1))
