"""The mover: jobs that were delivered too often go from their queue to its dead-letter topic.

D1  A parked job is in the log, synced, before it is read here: nobody gets it any more, also after a restart.
D2  It is appended to the dead-letter topic, wherever that is, under a key that is always the same; what
    became of an append that was not answered the key finds out. It is created like any topic.
D3  Only when that is acked in its class the job is deleted here, and counted.
D4  What does not work is tried again, later and later: a destination that is full, missing or away keeps the
    job parked. One that is not named keeps it too, until the queue is given one.

Must not know: what makes a job parked, how another shard is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from shared.errors import Refusal
from shared.http_head import Fields
from topicsd.engine.job_texts import Texts, read_texts
from topicsd.engine.queue_settle import end_jobs
from topicsd.engine.requests import RenderedRecord
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.http.call import Call
from topicsd.leases.dead_letter import dead_letter_key, stamped_meta
from topicsd.leases.lease_queue import LeaseQueue
from topicsd.wal.sync_thread import Loop

AGAIN_SECONDS: Final = 0.5
AGAIN_SECONDS_MAX: Final = 30.0
OPERATION: Final = "dead_letter"
_FIELDS: Final = Fields(content_type="application/json")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RenderedRecord).decode

Ask = Callable[[str, Call], None]


class DeadLetters:
    """`ask` has an operation on a topic done by its owner."""

    def __init__(self, shard: ShardState, loop: Loop, ask: Ask) -> None:
        self._shard = shard
        self._loop = loop
        self._ask = ask
        self._moving: dict[Topic, float] = {}
        """How long the next wait of each would be."""
        shard.on_parked = self.wake
        for topic in shard.topics.values():
            if topic.queue is not None and topic.queue.parked:
                loop.call_later(AGAIN_SECONDS, self.wake, topic)

    def wake(self, topic: Topic) -> None:
        """It has parked jobs."""
        if topic not in self._moving:
            self._moving[topic] = AGAIN_SECONDS
            self._next(topic)

    def _next(self, topic: Topic) -> None:
        shard, queue = self._shard, topic.queue
        is_there = shard.topics.get(topic.name) is topic and topic.leaving is None
        if queue is None or not is_there or topic.config.dead_letter is None:
            del self._moving[topic]
            return
        seq = next((seq for seq in queue.parked if not queue.jobs[seq].is_leaving), 0)
        if not seq:
            del self._moving[topic]
            return
        read_texts(shard, topic, [seq], partial(self._read, topic, queue, seq))

    def _read(self, topic: Topic, queue: LeaseQueue, seq: int, texts: Texts) -> None:
        job, dead_letter = queue.jobs.get(seq), topic.config.dead_letter
        text = texts.by_seq.get(seq)
        if job is None or text is None or dead_letter is None:
            self._later(topic)
            return
        found = _decode(text)
        meta = stamped_meta(bytes(found.meta), topic.name, seq, job.deliveries, job.reason)
        record: dict[str, object] = {"data": found.data, "meta": msgspec.Raw(meta)}
        if found.tag:
            record["tag"] = found.tag
        if found.node:
            record["node"] = found.node
        key = dead_letter_key(topic.name, topic.epoch, seq)
        body = _encode({"records": [record], "idempotency_key": key})
        answered = partial(self._answered, topic, queue, seq)
        started = self._shard.clock.monotonic()
        self._ask(OPERATION, _Append(dead_letter, "", _FIELDS, body, started, answered=answered))

    def _answered(self, topic: Topic, queue: LeaseQueue, seq: int, is_there: bool) -> None:
        shard = self._shard
        if not is_there or topic.leaving is not None or shard.topics.get(topic.name) is not topic:
            self._later(topic)
        elif seq not in queue.jobs:
            self._next(topic)
        else:
            moved, failed = partial(self._moved, topic), partial(self._failed, topic)
            end_jobs(shard, topic, queue, [seq], moved, failed, is_dead_letter=True)

    def _moved(self, topic: Topic) -> None:
        self._moving[topic] = AGAIN_SECONDS
        # In a turn of its own: thousands may follow each other.
        self._loop.call_soon(self._next, topic)

    def _failed(self, topic: Topic, refusal: Refusal) -> None:
        self._later(topic)

    def _later(self, topic: Topic) -> None:
        seconds = self._moving[topic]
        self._moving[topic] = min(2 * seconds, AGAIN_SECONDS_MAX)
        self._loop.call_later(seconds, self._next, topic)


class _Append(Call, kw_only=True, eq=False):
    """The append to the dead-letter topic, as a request of ours."""

    answered: Any

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self.answered(status in (200, 201))
