"""A process that writes to a shard on the real disk and reports its answers until SIGKILL.

Promises: `start` forks it. It opens the shard with a real loop (asyncio's, or uvloop by the seed) and a real
disk thread, says `ready`, and then keeps a few requests in flight at any time. Each line in the pipe is
written before (`sent`, `deleting`) or after (`acked`, `deleted`) the event, so that the reader of the pipe
knows what a client knows, whenever the process dies. On SIGTERM it closes the shard and ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
from random import Random
from typing import Any, NamedTuple

import msgspec
import uvloop

from shared.contract.errors import Refusal
from shared.contract.topic_config import TopicConfigPatch
from shared.settings.settings import Settings
from tests.harness.books.ledger_entries import Durability
from topicsd.engine.requests import AppendRequest, DeleteRequest, NewRecord
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import Shard, open_shard
from topicsd.engine.topic_admin import put_topic, topic_state
from topicsd.engine.write.append import append

TOPICS: dict[str, Durability] = {"f": "fsync", "d": "disk", "m": "memory", "e": "ephemeral"}
# Files small enough to rotate in most rounds.
SETTINGS = Settings(shards=1, wal_file_bytes=128 << 10, sync_interval_ms=5)
ON_THEIR_WAY = 8
KEPT_RECORDS = 50
_SIZES = (1, 30, 30, 200, 2000, 9000)


class Sent(NamedTuple):
    """A request as both ends know it: its contents follow from these fields."""

    generation: int
    number: int
    topic: str
    record_count: int
    size: int
    is_keyed: bool

    @property
    def key(self) -> str | None:
        return f"{self.generation}-{self.number}" if self.is_keyed else None

    def payloads(self) -> list[bytes]:
        return [
            b'{"at":[%d,%d,%d],"x":"%s"}' % (self.generation, self.number, index, b"x" * self.size)
            for index in range(self.record_count)
        ]


class Task(NamedTuple):
    """The task of one process. It may delete if the checker also knows every existing record."""

    generation: int
    seed: str
    retries: list[Sent]
    may_delete: bool


class Writer:
    def __init__(self, shard: Shard, task: Task, rng: Random, pipe: int) -> None:
        self._shard = shard
        self._task = task
        self._rng = rng
        self._pipe = pipe
        self._count = 0
        self._waiting = 0
        self._is_refused = False

    def say(self, *words: object) -> None:
        os.write(self._pipe, msgspec.json.encode(words) + b"\n")

    def make_topics(self) -> None:
        for name, durability in TOPICS.items():
            put_topic(self._shard.state, name, TopicConfigPatch(durability=durability), lambda answer: None)

    def retry(self, sent: Sent) -> None:
        self.say("retried", sent.generation, sent.number)
        self._send(sent)

    def write(self) -> None:
        """Keep enough requests in flight; also called for every answer."""
        while self._waiting < ON_THEIR_WAY and not self._is_refused:
            if self._task.may_delete and self._rng.random() < 0.03:
                self._delete(self._rng.choice(("f", "d", "m")))
                continue
            self._count += 1
            rng = self._rng
            count, size = rng.choice((1, 1, 1, 2, 5)), rng.choice(_SIZES)
            name = rng.choice(list(TOPICS))
            sent = Sent(self._task.generation, self._count, name, count, size, rng.random() < 0.2)
            self.say("sent", *sent)
            self._send(sent)

    def _send(self, sent: Sent) -> None:
        self._waiting += 1
        records = [NewRecord(msgspec.Raw(payload)) for payload in sent.payloads()]
        request = AppendRequest(records, idempotency_key=sent.key)
        append(self._shard.state, sent.topic, request, lambda answer: self._answered(sent, answer))

    def _answered(self, sent: Sent, answer: Any) -> None:
        self._waiting -= 1
        if isinstance(answer, Refusal):
            self._is_refused = True
            self.say("refused", sent.generation, sent.number, answer.code)
        else:
            self.say("acked", sent.generation, sent.number, answer.first_seq)
        # Deferred: an ephemeral topic answers before the call returns.
        asyncio.get_running_loop().call_soon(self.write)

    def _delete(self, name: str) -> None:
        state = topic_state(self._shard.state, name)
        if isinstance(state, Refusal) or state.head_seq <= KEPT_RECORDS:
            return
        before_seq = state.head_seq - KEPT_RECORDS
        self._waiting += 1
        self.say("deleting", name, before_seq)
        delete_records(
            self._shard.state,
            name,
            DeleteRequest(before_seq),
            lambda answer: self._deleted(name, before_seq, answer),
        )

    def _deleted(self, name: str, before_seq: int, answer: Any) -> None:
        self._waiting -= 1
        if isinstance(answer, Refusal):
            self._is_refused = True
            self.say("not deleted", name, before_seq, answer.code)
        else:
            self.say("deleted", name, before_seq)


def start(data_dir: str, task: Task) -> tuple[int, int]:
    """Fork the process; return its pid and the read end of its pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.close(reading)
        rng = Random(task.seed)
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if rng.random() < 0.5 else None)
        with runner:
            runner.run(_serve(data_dir, task, rng, writing))
        os._exit(0)
    except BaseException as error:
        os.write(writing, msgspec.json.encode(("died", repr(error))) + b"\n")
    finally:
        os._exit(1)


async def _serve(data_dir: str, task: Task, rng: Random, pipe: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    shard = open_shard(data_dir, settings=SETTINGS)
    writer = Writer(shard, task, rng, pipe)
    writer.make_topics()
    writer.say("ready")
    for sent in task.retries:
        writer.retry(sent)
    writer.write()
    await stopped.wait()
    shard.close()
    writer.say("closed")
