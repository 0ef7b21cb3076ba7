"""The golden data directory of the running WAL format, and what a shard opened on it has to show.

Run it once for each format version that is released, and commit what it writes; never again for the
same version, whatever the code does by then::

    .venv/bin/python -m tests.golden.make_golden

The input is fixed: clock, names, payloads, epochs. It takes every kind of frame that is written today,
several files, a batch that a killed process left torn, a machine that went down without a clean end, and
ends cleanly.

What it must not know: formats.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from tests.harness.faults import ProcessKilled
from tests.harness.manual_clock import ManualClock
from tests.harness.one_shard import DATA_DIR, OneShard, record
from topicsd.engine.fetch import read_now
from topicsd.engine.requests import ReadAnswer, ReadRequest, TopicState
from topicsd.engine.shard import Shard
from topicsd.wal.file_header import VERSION

GOLDEN = Path(__file__).parent
STARTED_MS = 1_750_000_000_000
WAL_FILE_BYTES = 2048
KEY = "order-1:created"


def write_history(one: OneShard) -> None:
    """A bit of everything."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    one.append("orders", *[record({"id": number}, tag=f"order/{number}") for number in range(2, 8)])
    one.delete("orders", before_seq=3)
    one.delete("orders", tag="order/5")
    one.put("capped", cap_records=3, cap_bytes=100_000)
    one.append("capped", *[record(number, tag="n" if number % 2 else None) for number in range(10)])
    one.delete("capped", tag="n", is_prefix=True)
    one.put("young", ttl_ms=60_000, durability="memory")
    one.append("young", "old", "older")
    one.pass_time(60_001)
    one.append("young", "fresh")
    one.read("young")
    one.append("gone", 1, 2, 3)
    one.delete_topic("gone")
    one.append("gone", "created again")
    one.put("cache", durability="ephemeral", dedupe_node=False)
    one.append("cache", "forgotten")
    one.put("orders", cap_records=1000, priority=7)
    one.append("large", record(b'"' + b"x" * (2 * WAL_FILE_BYTES) + b'"', node="nä"))
    one.append("busy", *range(40))
    one.pass_time(2500)
    one.append("busy", "moves its ceiling")


def make(one: OneShard) -> None:
    write_history(one)
    one.disk.kill_process_after(0, torn=True)
    try:
        one.append("orders", record({"id": "torn"}, tag="never"))
    except ProcessKilled:
        one.kill()
    one.append("orders", record({"id": 8}, tag="order/8"))
    one.append("lossy", "synced")
    one.pass_time(60)
    one.append("lossy", "written")
    one.reboot()
    one.append("lossy", "behind the loss")
    one.pass_time(2500)
    one.close()


def describe(shard: Shard) -> dict[str, Any]:
    """What clients see: states, and the answers that lead a reader from the start to the head."""
    found: dict[str, Any] = {}
    for name in shard.topic_names():
        state = shard.topic_state(name)
        assert isinstance(state, TopicState)
        answers, cursor = [], 0
        while not answers or not answers[-1]["caught_up"]:
            answer = read_now(shard.state, name, ReadRequest(cursor, limit=100))
            assert isinstance(answer, ReadAnswer)
            answers.append(described(answer))
            cursor = answer.next_from_seq
        told = {field: getattr(state, field) for field in state.__struct_fields__ if field != "config"}
        config = {field: getattr(state.config, field) for field in state.config.__struct_fields__}
        found[name] = {"state": told, "config": config, "answers": answers}
    return found


def described(answer: ReadAnswer) -> dict[str, Any]:
    tombstone = answer.tombstone
    return {
        "tombstone": tombstone and {name: getattr(tombstone, name) for name in tombstone.__struct_fields__},
        "next_from_seq": answer.next_from_seq,
        "caught_up": answer.caught_up,
        "records": [
            [one.seq, one.ts, *map(text_of, (one.data, one.tag, one.node, one.meta))]
            for one in answer.records
        ],
    }


def text_of(part: bytes | None) -> str | None:
    return None if part is None else part.decode()


def main() -> int:
    target = GOLDEN / f"wal-format-{VERSION}"
    if target.exists():
        print(f"{target} is there: a released version stays as it was", file=sys.stderr)
        return 1
    with patch("os.urandom", Random(VERSION).randbytes):
        one = OneShard(clock=ManualClock(now_ms=STARTED_MS), wal_file_bytes=WAL_FILE_BYTES)
        make(one)
    for path in one.disk.all_files():
        if not path.endswith("LOCK"):
            copy = target / "data" / os.path.relpath(path, DATA_DIR)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(one.disk.read_file(path))
    one.open(one.disk)
    expected = {
        "now_ms": one.clock.now_ms(),
        "topics": describe(one.shard),
        "files": [os.path.relpath(path, DATA_DIR) for path in one.wal_files()],
    }
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (target / "expected.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
