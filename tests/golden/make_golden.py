"""The golden data directories of the running WAL format, and what a shard opened on them has to show.

`.venv/bin/python -m tests.golden.make_golden` writes those of new format versions and of new kinds of frames;
what is there stays as it is. The input is fixed. It has every kind of frame that the version began with,
several files, a torn batch of a killed process, a machine that went down, and a clean end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest.mock import patch

import msgspec

from shared.contract.route_rule import RouteRule, WebhookOptions
from shared.contract.schedule_rule import ScheduleRule
from shared.contract.tag_filter import TagFilter
from shared.contract.topic_config import RetryPatch
from tests.golden.descriptions import describe, describe_routes, describe_schedules, describe_sessions
from tests.harness.machine.faults import ProcessKilled
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from tests.harness.shard.shard_driver import DATA_DIR
from tests.harness.stage.route_shards import start_routes
from topicsd.engine.requests import BytesRecord
from topicsd.engine.routes.route import delete_route, put_route
from topicsd.engine.routes.step import note_delivered
from topicsd.engine.schedules.change import delete_schedule, put_schedule
from topicsd.engine.session_log import log_session, log_session_end
from topicsd.log.control_frame import SessionFrame
from topicsd.log.file_header import VERSION

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


def make_sessions(one: OneShard) -> None:
    """Watch sessions, two that stay and one that ends."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    plain = SessionFrame(
        b"first session---", "", ["orders"], [3], [1], limit=256, bytes_max=262_144, heartbeat_ms=15_000
    )
    fussy = SessionFrame(
        b"second session--",
        "0a1b2c3d",
        ["orders", "nobody"],
        [0, 1],
        [5, 6],
        ["shop-1", "shop-2"],
        limit=1,
        bytes_max=1,
        heartbeat_ms=1000,
        with_tags=True,
        with_meta=False,
        with_data=False,
        is_strong=True,
    )
    ended = msgspec.structs.replace(plain, session=b"ended session---")
    for session in (plain, fussy, ended):
        log_session(one.shard.state, session, RecordedReply())
        one.settle()
    log_session_end(one.shard.state, ended.session)
    one.settle()
    one.disk.kill_process_after(0, torn=True)
    try:
        log_session(
            one.shard.state, msgspec.structs.replace(plain, session=b"torn session----"), RecordedReply()
        )
        one.settle()
    except ProcessKilled:
        one.kill()
    one.append("orders", record({"id": 2}))
    one.close(checkpoint=False)


def make_filters(one: OneShard) -> None:
    """Watch sessions with filters by tag, and records that they select."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    filters = [
        TagFilter(frozenset(["order/1"])),
        TagFilter(frozenset(["paid"]), ("order/", "x"), ("*.e?",)),
    ]
    for number, match in enumerate(filters):
        session = SessionFrame(b"session %d-------" % number, "", ["orders"], [0], [1], match=match)
        log_session(one.shard.state, session, RecordedReply())
        one.settle()
    one.append("orders", record({"id": 2}, tag="x.eu"))
    one.close(checkpoint=False)


def make_searches(one: OneShard) -> None:
    """Watch sessions that look for topics: with topics, within prefixes, and without any topic yet."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    plain = SessionFrame(
        b"search with topic", "", ["orders"], [1], [1], limit=256, bytes_max=262_144, heartbeat_ms=15_000
    )
    searches = [
        msgspec.structs.replace(plain, topic_filter=TagFilter(frozenset(["orders", "later"]))),
        msgspec.structs.replace(
            plain,
            session=b"search of nothing",
            names=[],
            from_seqs=[],
            epochs=[],
            topic_filter=TagFilter(frozenset(), ("shop.",), ("*.e?",)),
            within=("shop.", "x.eu"),
        ),
    ]
    ended = msgspec.structs.replace(searches[1], session=b"ended search-----")
    for session in (*searches, ended):
        log_session(one.shard.state, session, RecordedReply())
        one.settle()
    log_session_end(one.shard.state, ended.session)
    one.append("orders", record({"id": 2}))
    one.close(checkpoint=False)


def make_routes(one: OneShard) -> None:
    """Write routes: one that stays, one that changes, one that ends, and one whose source evicted records."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    one.put("copies", durability="fsync")
    one.put("last", durability="ephemeral")
    one.put("small", cap_records=2)
    one.put("full", cap_records=1, discard="reject", durability="fsync")
    rules = [
        RouteRule("orders>copies", "orders", "copies", keeps_node=False),
        RouteRule(
            "tagged", "orders", "last", ["tag", "Glob", "order/*"], True, False, True, True, True, True
        ),
        RouteRule("ends", "orders", "last"),
        RouteRule("trimmed", "small", "full"),
    ]
    start_routes(one, *rules, msgspec.structs.replace(rules[1], keeps_node=False))
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    for number in range(1, 6):
        one.append("small", number)
    one.put("full", cap_records=0)
    one.pass_time(1000)
    delete_route(one.shard.state, "ends", RecordedReply())
    one.settle()
    one.append("orders", record({"id": 2}))
    one.disk.kill_process_after(0, torn=True)
    try:
        one.append("orders", record({"id": 3}, tag="order/3"))
    except ProcessKilled:
        one.kill()
    start_routes(one)
    one.append("orders", record({"id": 4}, tag="order/4"))
    one.close(checkpoint=False)


def make_references(one: OneShard) -> None:
    """Copies that say where their originals stand: of several records at once, of some of them, of copies."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    for name in ("copies", "some", "chained"):
        one.put(name)
    start_routes(
        one,
        RouteRule("orders>copies", "orders", "copies"),
        RouteRule("orders>some", "orders", "some", ["tag", "Eq", "odd"]),
        RouteRule("copies>chained", "copies", "chained"),
    )
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    for first in (1, 8):
        records = [record(number, tag="odd" if number % 2 else None) for number in range(first, first + 7)]
        one.append("orders", *records)
        one.append("copies", record("its own"))
        one.pass_time(3)
    one.disk.kill_process_after(0, torn=True)
    try:
        one.append("orders", record(15, tag="odd"))
    except ProcessKilled:
        one.kill()
    one.close(checkpoint=False)


def make_bytes(one: OneShard) -> None:
    """Write records of bytes, beside records of JSON, in memory of their key, and as a copy by reference."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    one.put("images", idempotency_window_ms=3_600_000)
    one.put("copies")
    start_routes(one, RouteRule("images>copies", "images", "copies"))
    octets = msgspec.Raw(bytes(range(256)))
    tagged = BytesRecord(octets, "logo", "shop-1", msgspec.Raw(b'{"size":256}'))
    one.append("images", BytesRecord(octets), record(1), tagged, idempotency_key="images-1")
    one.append("images", BytesRecord(msgspec.Raw(b"")), BytesRecord(msgspec.Raw(b"{}")), record({}))
    one.append("images", BytesRecord(msgspec.Raw(bytes(3000))))
    one.pass_time(3)
    one.close(checkpoint=False)


def make_ranges(one: OneShard) -> None:
    """Truncate a log and a queue, delete a range in the middle, and append after each."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    one.append("orders", *[record({"id": number}, tag=f"order/{number}") for number in range(2, 12)])
    one.delete("orders", after_seq=8)
    one.delete("orders", after_seq=3, before_seq=6)
    one.append("orders", record({"id": 12}))
    one.put("jobs", type="queue")
    one.append("jobs", *range(6))
    one.delete("jobs", after_seq=2)
    one.append("jobs", 6)
    one.close(checkpoint=False)


def make_queues(one: OneShard) -> None:
    """Write jobs with priorities, delays and a back-off, and parked ones with their reasons."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    one.put("fair", type="queue", fair_by="tag", leases_durable=True, retry=RetryPatch(1000, 2.0, 5000))
    one.put("parking", type="queue", leases_durable=True, max_deliveries=1)
    for topic in ("fair", "parking"):
        one.append(topic, *[record(number, tag="n" if number % 2 else None) for number in range(6)])
        one.append(topic, record("urgent"), priority=9)
        one.append(topic, record("later"), priority=3, delay_ms=86_400_000)
        assert one.claimed(topic, "worker", 3, 500)[0] == 7
        one.nack(topic, "worker", 7, ms=None, reason="no disk")
        one.pass_time(600)
        one.claim(topic, "worker", 2, 86_400_000)
    one.close(checkpoint=False)


def make_schemas(one: OneShard) -> None:
    """Write topics with a schema of each mode, and one whose schema changed."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    one.put("checked", schema=schema)
    one.append("checked", {"id": 1})
    one.put("warned", schema=schema, schema_mode="warn")
    one.append("warned", "no order")
    one.put("off", schema=schema, schema_mode="off")
    one.put("off", schema={**schema, "required": ["id", "total"]}, force=True)
    one.put("free", schema=schema)
    one.put("free", schema=None)
    one.close(checkpoint=False)


def make_webhooks(one: OneShard) -> None:
    """Write webhooks: one that changes and delivers, one with all options, and one that ends."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    state, secret = one.shard.state, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    options = WebhookOptions(secret, True, 7, 500, "dead", 3)
    rules = [
        RouteRule("hook", "orders", "https://shop.example/in", webhook=WebhookOptions(secret)),
        RouteRule("all", "orders", "https://shop.example/", ["tag", "Eq", "paid"], webhook=options),
        RouteRule("ends", "orders", "https://shop.example/in", webhook=options),
    ]
    for rule in (*rules, msgspec.structs.replace(rules[0], dest="https://shop.example/new")):
        put_route(state, rule, RecordedReply())
        one.settle()
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    one.append("orders", record({"id": 2}, tag="paid"))
    for seq in (1, 2):
        assert note_delivered(state, state.routes["hook"], 1, seq) is None
        one.settle()
    delete_route(state, "ends", RecordedReply())
    one.settle()
    one.close(checkpoint=False)


def make_schedules(one: OneShard) -> None:
    """Schedules with jobs, of which one is paused and one ends."""
    one.put("orders", durability="fsync", idempotency_window_ms=3_600_000)
    created = record(b'{ "id":1, "total":10.50 }', tag="order/1", node="shop-1", meta={"trace": "4bf92f"})
    one.append("orders", created, idempotency_key=KEY)
    one.put("reports", type="queue")
    rules = {
        "often": ScheduleRule("*/5 * * * *", "Europe/Berlin", b'{"a":1}', b'{"b":2}', "report", 7, "all"),
        "paused": ScheduleRule("@daily", is_paused=True),
        "ended": ScheduleRule("* * * * *"),
    }
    for name, rule in rules.items():
        put_schedule(one.shard.state, "reports", name, rule, RecordedReply())
        one.settle()
    one.pass_time(600_000)
    delete_schedule(one.shard.state, "reports", "ended", RecordedReply())
    one.settle()
    one.close(checkpoint=False)


MAKERS = {
    f"wal-format-{VERSION}": make,
    f"wal-format-{VERSION}-watch": make_sessions,
    "wal-format-1-forwards": make_routes,
    f"wal-format-{VERSION}-references": make_references,
    f"wal-format-{VERSION}-bytes": make_bytes,
    f"wal-format-{VERSION}-ranges": make_ranges,
    f"wal-format-{VERSION}-filters": make_filters,
    f"wal-format-{VERSION}-queues": make_queues,
    f"wal-format-{VERSION}-schemas": make_schemas,
    f"wal-format-{VERSION}-webhooks": make_webhooks,
    f"wal-format-{VERSION}-searches": make_searches,
    f"wal-format-{VERSION}-schedules": make_schedules,
}
# With files of the first size the others would have been checkpointed into segments.
FILE_BYTES = {
    make: WAL_FILE_BYTES,
    make_sessions: 8192,
    make_routes: 16384,
    make_references: 16384,
    make_bytes: 16384,
    make_ranges: 16384,
    make_filters: 16384,
    make_queues: 16384,
    make_schemas: 16384,
    make_webhooks: 16384,
    make_searches: 8192,
    make_schedules: 16384,
}


def main() -> int:
    missing = [name for name in MAKERS if not (GOLDEN / name).exists()]
    for name in missing:
        write(GOLDEN / name, MAKERS[name])
    if not missing:
        print("all golden files exist and stay unchanged", file=sys.stderr)
    return not missing


def write(target: Path, maker: Callable[[OneShard], None]) -> None:
    with patch("os.urandom", Random(VERSION).randbytes):
        one = OneShard(clock=ManualClock(now_ms=STARTED_MS), wal_file_bytes=FILE_BYTES[maker])
        maker(one)
    for path in one.disk.all_files():
        if not path.endswith("LOCK"):
            copy = target / "data" / os.path.relpath(path, DATA_DIR)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(one.disk.read_file(path))
    one.open(one.disk)
    expected = {
        "now_ms": one.clock.now_ms(),
        "topics": describe(one.shard),
        "sessions": describe_sessions(one.shard),
        "forwards": describe_routes(one.shard),
        **({"schedules": schedules} if (schedules := describe_schedules(one.shard)) else {}),
        "files": [os.path.relpath(path, DATA_DIR) for path in one.wal_files()],
    }
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (target / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
