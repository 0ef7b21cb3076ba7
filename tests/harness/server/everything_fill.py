"""Requests that leave one of everything in a data directory of two shards.

`fill` creates topics whose names begin with a prefix, so that it can run twice: the first run's data is in a
snapshot and segments, the second run's is in the log after it. A feature that adds a control frame, a
snapshot section or a field of one adds its request here.
"""

from __future__ import annotations

from tests.harness.clients.topic_client import TopicClient
from tests.harness.server.processes import wait_until
from tests.harness.server.whole_server import name_on

SHARDS = 2
SEGMENT_RECORDS = 20
WAIT_SECONDS = 20.0
# Longer than any run of the tests: nothing of the directory may expire before it is inspected.
LEASE_MS = 40_000_000
DAY_MS = 86_400_000
KEY = "the-key-of-this-test"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
WEBHOOK_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
# Records of bytes: none of them UTF-8, some with more than data, one that is empty.
BYTES_RECORDS: tuple[dict[str, object], ...] = (
    {"data_base64": "AP9hYgA="},
    {"data_base64": "", "tag": "red"},
    {"data_base64": "/w==", "tag": "red", "node": "n1", "meta": {"trace": "t-2"}},
)


class Names:
    """The topics of one `fill`."""

    def __init__(self, prefix: str) -> None:
        def on(shard: int, name: str) -> str:
            return name_on(shard, SHARDS, f"{prefix}-{name}")

        self.prefix = prefix
        self.plain, self.other = on(0, "plain"), on(1, "other")
        self.memory, self.fsync = on(0, "memory"), on(1, "fsync")
        self.ephemeral = on(0, "ephemeral")
        self.capped, self.capped_bytes, self.aging = on(0, "capped"), on(1, "bytes"), on(0, "aging")
        self.gone, self.rewritten, self.merged = on(1, "gone"), on(0, "rewritten"), on(0, "merged")
        self.doomed, self.doomed_too = on(0, "doomed"), on(1, "doomed-too")
        self.protected = on(1, "protected")
        self.jobs, self.leased, self.steps = on(0, "jobs"), on(1, "held"), on(0, "steps")
        self.paused, self.parked, self.former = on(1, "paused"), on(0, "parked"), on(1, "former")
        self.dead, self.full, self.full_too = on(1, "dead"), on(0, "full"), on(1, "full-too")
        self.same, self.across, self.once = on(0, "same"), on(1, "across"), on(0, "once")
        self.filtered, self.ended = on(0, "filtered"), on(0, "ended")
        self.adopted, self.adopted_late = on(0, "adopted"), name_on(1, SHARDS, f"late-{prefix}-adopted")
        self.sealed, self.sealed_late, self.taken = on(0, "sealed"), on(0, "sealed-late"), on(0, "taken")
        self.exported, self.moved = on(0, "exported"), on(0, "moved")
        self.ring, self.ring_too = on(0, "ring"), on(1, "ring-too")
        self.webhook = f"{prefix}-webhook"


def records(count: int, tag: str = "", first: int = 0) -> list[dict[str, object]]:
    return [
        {"data": {"n": n}, **({"tag": f"{tag}.{n % 3}"} if tag else {})} for n in range(first, first + count)
    ]


def fill(api: TopicClient, prefix: str) -> Names:
    names = Names(prefix)
    fill_logs(api, names)
    fill_losses(api, names)
    fill_writers(api, names)
    fill_queues(api, names)
    fill_dead_letters(api, names)
    fill_routes(api, names)
    watch(api, names)
    return names


def fill_logs(api: TopicClient, names: Names) -> None:
    """Use every durability class and kind of delete, and delete a topic."""
    api.put(names.fsync, durability="fsync", priority=5)
    api.put(names.memory, durability="memory", auto_priority=False, auto_create=False, dedupe_node=False)
    api.put(names.ephemeral, durability="ephemeral")
    tagged: dict[str, object] = {"data": "Grüße", "tag": "red", "node": "n1", "meta": {"trace": "t-1"}}
    for topic in (names.plain, names.other, names.memory, names.fsync, names.ephemeral):
        api.append(topic, *records(3 * SEGMENT_RECORDS, "k"), tagged)
        api.append(topic, {"data": None}, node="n2")
        api.append(topic, *BYTES_RECORDS)
    api.put(names.memory, schema=SCHEMA, schema_mode="warn")
    api.append(names.memory, {"data": "not an object"})
    api.put(names.other, schema={"type": ["string", "object", "null"]}, schema_mode="off")
    api.call(names.plain, "delete", before_seq=5)
    api.call(names.plain, "delete", match=["tag", "Eq", "k.1"])
    api.call(names.other, "delete", match=["tag", "Glob", "k.2*"])
    api.call(names.other, "delete", after_seq=3 * SEGMENT_RECORDS + 2)
    api.append(names.rewritten, *records(2 * SEGMENT_RECORDS))
    for topic in (names.doomed, names.doomed_too, names.sealed, names.sealed_late, names.taken):
        api.append(topic, *records(SEGMENT_RECORDS))
    api.append(names.exported, *records(2 * SEGMENT_RECORDS + 5, "k"))
    api.append(names.gone, *records(SEGMENT_RECORDS))
    api.ask("DELETE", f"topics/{names.gone}")


def fill_losses(api: TopicClient, names: Names) -> None:
    """Evict by each cap and by age; reads report it."""
    api.put(names.capped, cap_records=30)
    api.put(names.capped_bytes, cap_bytes=1500)
    api.put(names.aging, ttl_ms=300)
    for topic in (names.capped, names.capped_bytes, names.aging):
        api.append(topic, *records(2 * SEGMENT_RECORDS))
    wait_until(lambda: api.state(names.aging)["count"] == 0, "records expire")
    api.put(names.aging, ttl_ms=DAY_MS)
    api.append(names.aging, *records(5))


def fill_writers(api: TopicClient, names: Names) -> None:
    """Use idempotency keys, producers and cursors, one of which is deleted."""
    api.put(names.plain, idempotency_window_ms=DAY_MS)
    api.append(names.plain, *records(3), idempotency_key=f"{names.prefix}-once")
    api.append(names.fsync, *records(2), producer={"id": "job-7", "seq": 12})
    api.append(names.other, *records(2), producer={"id": "job-8", "seq": 1})
    api.put(names.protected, cap_records=10, protect_cursors=True)
    api.append(names.protected, *records(10))
    for topic in (names.plain, names.other, names.protected):
        api.ask("PUT", f"topics/{topic}/cursors/billing", {"from_seq": 7})
    api.ask("PUT", f"topics/{names.plain}/cursors/ended", {"from_seq": 1})
    api.ask("DELETE", f"topics/{names.plain}/cursors/ended")
    api.append(names.protected, *records(5))


def fill_queues(api: TopicClient, names: Names) -> None:
    """Leave jobs in every state but parked, with leases in memory and in the log."""
    api.put(names.jobs, type="queue", lease_ms=LEASE_MS)
    api.put(names.leased, type="queue", lease_ms=LEASE_MS, leases_durable=True)
    for topic in (names.jobs, names.leased):
        api.append(topic, *records(12))
        api.append(topic, {"data": "later"}, {"data": "later too"}, delay_ms=DAY_MS)
        assert api.claim(topic, 8) == [*range(1, 9)]
        api.call(topic, "ack", node="worker", seqs=[1, 2])
        api.call(topic, "nack", node="worker", seqs=[3], delay_ms=DAY_MS, reason="mailbox full")
        api.call(topic, "nack", node="worker", seqs=[4], reason="try again")
        api.call(topic, "extend", node="worker", seqs=[5], lease_ms=2 * LEASE_MS)
        api.call(topic, "delete", seqs=[12])
    api.append(names.jobs, {"data": "urgent"}, priority=9)
    yearly = {"cron": "0 3 1 jan *", "time_zone": "Europe/Berlin", "data": {"task": "report"}, "priority": 2}
    api.ask("PUT", f"topics/{names.leased}/schedules/yearly", yearly)
    api.ask("PUT", f"topics/{names.leased}/schedules/paused", {"cron": "* * * * *", "paused": True})
    api.ask("PUT", f"topics/{names.leased}/schedules/ended", {"cron": "@yearly"})
    api.ask("DELETE", f"topics/{names.leased}/schedules/ended")
    steps = {"order_by": "tag", "fair_by": "tag"}
    api.put(names.steps, type="queue", lease_ms=LEASE_MS, leases_durable=True, **steps)
    api.put(names.steps, claim_jitter_ms=1)
    api.append(names.steps, *[{"data": n, "tag": f"order-{n % 2}"} for n in range(6)])
    assert api.claim(names.steps, 10) == [1, 2]
    api.put(names.paused, type="queue")
    api.append(names.paused, *records(3))
    api.put(names.paused, paused=True)


def fill_dead_letters(api: TopicClient, names: Names) -> None:
    """Leave jobs that are parked, dead letters, and dead letters that wait for a full topic."""
    for topic in (names.full, names.full_too):
        api.put(topic, cap_records=1, discard="reject")
        api.append(topic, {"data": "full"})
    api.put(names.parked, type="queue", max_deliveries=1, retry={"base_ms": 1000})
    api.put(names.former, type="queue", max_deliveries=1, dead_letter=names.full)
    api.put(names.dead)
    api.put(names.paused, max_deliveries=1, dead_letter=names.dead, paused=False)
    for topic in (names.parked, names.former):
        api.append(topic, *records(4))
    for topic, count in ((names.parked, 2), (names.former, 2), (names.paused, 2)):
        seqs = api.claim(topic, count)
        assert len(seqs) == count
        api.call(topic, "nack", node="worker", seqs=seqs, reason="broken")
        api.claim(topic, 1)
    api.wait_for_rows(names.dead, 2)
    wait_until(
        lambda: api.state(names.former)["queue"].get("parked") == 2, "jobs wait for the dead-letter topic"
    )
    api.put(names.former, dead_letter=names.full_too)
    api.put(names.paused, paused=True)


def fill_routes(api: TopicClient, names: Names) -> None:
    """Create routes: local and remote, exactly once, filtered, in a cycle; delete one of them."""
    for topic in (names.once, names.ring, names.ring_too):
        api.put(topic)
    api.ask("PUT", f"routers/{names.ring}", {"source": names.ring_too, "dest": names.ring})
    circle = {"source": names.ring, "dest": names.ring_too, "allow_cycle": True}
    api.ask("PUT", f"routers/{names.ring_too}", circle)
    for dest, options in (
        (names.same, {"from": "earliest"}),
        (names.across, {"from": "earliest"}),
        (
            names.once,
            {
                "guarantee": "exactly_once",
                "allow_cycle": True,
                "preserve_tag": False,
                "preserve_node": False,
                "create_dest": False,
            },
        ),
        (names.filtered, {"filter": ["tag", "Glob", "k.1*"]}),
        (names.ended, {}),
    ):
        api.ask("PUT", f"routers/{dest}", {"source": names.plain, "dest": dest, **options})
    # It is never delivered: the address is not public.
    webhook = {
        "source": names.plain,
        "dest": "http://127.0.0.1/",
        "secret": WEBHOOK_SECRET,
        "format": "ndjson",
    }
    api.ask("PUT", f"routers/{names.webhook}", webhook)
    api.ask("DELETE", f"routers/{names.ended}")
    api.append(names.plain, *records(9, "k", first=100))
    copied = len(api.rows(names.plain))
    for topic, count in ((names.same, copied), (names.across, copied), (names.once, 9), (names.filtered, 3)):
        api.wait_for_rows(topic, count)


def move(api: TopicClient, name: str) -> None:
    """Move a topic to the other shard, which the placement notes as an exception, and continue it there.

    Its checkpoint captures all topics of its shard, so no `fill` does this.
    """
    api.append(name, *records(2 * SEGMENT_RECORDS, "k"))
    api.call(name, "delete", seqs=[3, 4, 30])
    assert api.call(name, "move", shard=1)["moved"]
    api.append(name, *records(5, "k"))


def watch(api: TopicClient, names: Names) -> None:
    strong = {"consistency": "strong", "node": "n1", "limit": 50, "include_tags": True}
    match = ["any", "k1", ["tag", "In", ["k2", "k3"]], ["tag", "Glob", "k1?"], ["tag", "Glob", "k2*"]]
    for options in ({}, strong, {"match": match}):
        topics = {names.plain: {"from_seq": 3}, names.other: {"tail": True}}
        api.ask(
            "POST", "watch", {"topics": topics, "heartbeat_ms": 20_000, "max_batch_bytes": 50_000, **options}
        )
    api.ask("POST", "watch", {"topics": {names.plain: {}, "found.*": {}, "later": {}}, "missing": "wait"})
    api.ask("POST", "watch", {"topics": {"nothing-is-found.*": {}}})
