"""Everything that clients can find out about a topic, as a value to compare before and after a move."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.harness.shard.one_shard import OneShard
from topicsd.engine.queue.state import QUEUE, QueueSection, queue_section
from topicsd.engine.routes.route import route_section
from topicsd.engine.schedules.schedule import schedule_section
from topicsd.engine.topic import Topic
from topicsd.engine.write.idempotency import DIGEST_BYTES


def topic_view(one: OneShard, name: str) -> dict[str, Any]:
    state, topic = one.state(name), one.topic(name)
    records: list[Any] = []
    cursor, is_at_end = 0, False
    while not is_at_end:
        answer = one.read(name, cursor, limit=100_000)
        records += [(r.seq, r.ts, bytes(r.data), r.tag, r.node) for r in answer.records]
        if answer.tombstone is not None:
            records.append(answer.tombstone)
        cursor, is_at_end = answer.next_from_seq, answer.caught_up
    own = [
        column
        for part in one.shard.state.idempotency_keys.columns()
        if (column := part.of_topic(topic.topic_id)) is not None
    ]
    digests = b"".join(column.digests for column in own)
    return {
        "epoch": state.epoch,
        "head": state.head_seq,
        "earliest": state.earliest_seq,
        "floor": state.evict_floor,
        "live": (state.count, state.bytes),
        "config": state.config,
        "counts": state.queue,
        "jobs": _jobs(topic),
        "records": records,
        "cursors": dict(topic.cursors),
        "schedules": schedule_section(topic),
        "producers": {} if topic.producers is None else topic.producers.section(),
        "routes": route_section(topic),
        "keys": {digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)},
    }


def _jobs(topic: Topic) -> Any:
    """Return what is known of the jobs, in the order of seqs."""
    encoded = queue_section(topic, with_leases=True).get(QUEUE)
    if encoded is None:
        return None
    section = msgspec.msgpack.decode(encoded, type=QueueSection)
    fields = msgspec.structs.asdict(section)
    return {name: sorted(value) if isinstance(value, list) else value for name, value in fields.items()}
