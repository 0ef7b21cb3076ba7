"""One open shard under the control of a test, with a fake disk, clock, loop and threads.

Promises: nothing happens until the test asks for it. `send_*` submits a request and returns the
`RecordedReply` that will hold its answer; the same method without `send_` runs until every request is
answered. `restart`, `kill`, `cut_power` and `reboot` continue with the same clock on the disk that such an
end leaves.
"""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

import msgspec

from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.topic_config import TopicConfigPatch
from shared.runtime.disk_thread import Threads
from shared.settings.settings import Settings
from tests.harness.manual_clock import ManualClock
from tests.harness.manual_loop import ManualLoop, StepThread
from tests.harness.memory_disk import MemoryDisk
from tests.harness.shard_reader import read_now
from topicsd.disk.layout import create_data_dir, shard_paths
from topicsd.engine.queue.claim import claim
from topicsd.engine.queue.settle import Settle, ack, extend, nack
from topicsd.engine.requests import (
    NO_META,
    AppendAnswer,
    AppendRequest,
    ClaimAnswer,
    ClaimRequest,
    DeleteAnswer,
    DeleteRequest,
    NewRecord,
    ReadAnswer,
    ReadRequest,
    SettleAnswer,
    SettleRequest,
    TopicDeleted,
    TopicPut,
    TopicState,
)
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import Shard
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import delete_topic, put_topic, topic_state
from topicsd.engine.write.append import append
from topicsd.log.writer import Identity

T = TypeVar("T")

DATA_DIR = "/data"
INSTANCE = b"one-shard-------"
PATHS = shard_paths(DATA_DIR, 0)
IDENTITY = Identity(INSTANCE, 0)
SMALL = {"wal_file_bytes": 1 << 20, "background_bytes_per_second": 16 << 30}


class RecordedReply:
    """The reply callback of one request; a second answer is an error."""

    def __init__(self) -> None:
        self._answers: list[Any] = []

    def __call__(self, answer: Any) -> None:
        self._answers.append(answer)
        assert len(self._answers) == 1, f"answered twice: {self._answers}"

    @property
    def has_answer(self) -> bool:
        return bool(self._answers)

    @property
    def answer(self) -> Any:
        assert self._answers, "no answer came"
        return self._answers[0]

    @property
    def code(self) -> str | None:
        """Return the code of a refusal, None for any other answer."""
        return self.answer.code if isinstance(self.answer, Refusal) else None


def record(data: object = 1, tag: str | None = None, node: str | None = None, meta: Any = None) -> NewRecord:
    """Return a record as a client sends it; bytes are kept, other values become JSON."""
    raw = data if isinstance(data, bytes) else msgspec.json.encode(data)
    meta_raw = NO_META if meta is None else msgspec.Raw(msgspec.json.encode(meta))
    return NewRecord(msgspec.Raw(raw), tag, node, meta_raw)


class OneShard:
    def __init__(
        self, *, disk: MemoryDisk | None = None, clock: ManualClock | None = None, **settings: Any
    ) -> None:
        self.clock = clock or ManualClock()
        self.settings = Settings(**{**SMALL, **settings})
        self.failures: list[OSError] = []
        if disk is None:
            disk = MemoryDisk(traced=True)
            create_data_dir(disk, DATA_DIR, 1, INSTANCE)
        self.disk = disk
        self.open(disk)

    def open(self, disk: MemoryDisk) -> None:
        """Start a shard on this disk, as another process would."""
        self.disk = disk
        self.loop = ManualLoop(self.clock)
        self.thread = StepThread(self.loop)
        self.copy_thread = StepThread(self.loop)
        self.shard = Shard(
            disk,
            self.clock,
            self.loop,
            Threads(self.thread, *[self.copy_thread] * 4),
            PATHS,
            IDENTITY,
            self.settings,
            self.failures.append,
        )

    # Progress.

    def settle(self) -> None:
        """Run until every request is answered; no time passes."""
        self.loop.run_until_idle()
        while self.thread.run_one() or self.copy_thread.run_one():
            self.loop.run_until_idle()

    def turn(self) -> None:
        """Run one turn of the loop and one job of each thread."""
        self.loop.run_turn()
        self.thread.run_one()
        self.copy_thread.run_one()

    def checkpoint(self) -> None:
        """Run a whole checkpoint."""
        self.shard.start_checkpoint()
        self.settle()

    def pass_time(self, ms: float) -> None:
        """Advance time and run the background work that becomes due."""
        end = self.clock.monotonic_ns() + round(ms * 1e6)
        self.settle()
        while (due := self.loop.next_timer_ns()) is not None and due <= end:
            self.loop.advance((due - self.clock.monotonic_ns()) / 1e6)
            self.settle()
        self.clock.advance_ns(end - self.clock.monotonic_ns())

    def close(self, checkpoint: bool = True) -> None:
        self.shard.close(checkpoint)

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.shard.close()
        self.open(self.disk)

    def kill(self) -> None:
        """Kill the process with SIGKILL and start on the same machine."""
        self.open(self.disk.after_process_kill())

    def cut_power(self, seed: int = 0) -> None:
        self.open(self.disk.after_power_cut(Random(seed)))

    def reboot(self) -> None:
        """Kill the process with SIGKILL, then shut the machine down cleanly."""
        self.open(self.disk.after_reboot())

    # Requests.

    def send_append(self, topic: str, *records: object, **request: Any) -> RecordedReply:
        reply = RecordedReply()
        given = [one if isinstance(one, NewRecord) else record(one) for one in records]
        append(self.shard.state, topic, AppendRequest(given, **request), reply)
        return reply

    def append(self, topic: str, *records: object, **request: Any) -> AppendAnswer:
        return self._finished(self.send_append(topic, *records, **request), AppendAnswer)

    def refused_append(self, topic: str, *records: object, **request: Any) -> Refusal:
        return self._finished(self.send_append(topic, *records, **request), Refusal)

    def send_delete(self, topic: str, **request: Any) -> RecordedReply:
        reply = RecordedReply()
        delete_records(self.shard.state, topic, DeleteRequest(**request), reply)
        return reply

    def delete(self, topic: str, **request: Any) -> DeleteAnswer:
        return self._finished(self.send_delete(topic, **request), DeleteAnswer)

    def send_claim(self, topic: str, node: str, count: int = 1, lease_ms: int | None = None) -> RecordedReply:
        reply = RecordedReply()
        claim(self.shard.state, topic, ClaimRequest(node, count, lease_ms), reply)
        return reply

    def claim(self, topic: str, node: str, count: int = 1, lease_ms: int | None = None) -> ClaimAnswer:
        return self._finished(self.send_claim(topic, node, count, lease_ms), ClaimAnswer)

    def claimed(self, topic: str, node: str, count: int = 1, lease_ms: int | None = None) -> list[int]:
        """Claim jobs and return their seqs."""
        return [one.seq for one in self.claim(topic, node, count, lease_ms).claimed]

    def send_settle(self, settle: Settle, topic: str, node: str, *seqs: int, **request: Any) -> RecordedReply:
        reply = RecordedReply()
        settle(self.shard.state, topic, SettleRequest(node, list(seqs), **request), reply)
        return reply

    def ack(self, topic: str, node: str, *seqs: int, **request: Any) -> SettleAnswer:
        return self._finished(self.send_settle(ack, topic, node, *seqs, **request), SettleAnswer)

    def nack(self, topic: str, node: str, *seqs: int, **request: Any) -> SettleAnswer:
        return self._finished(self.send_settle(nack, topic, node, *seqs, **request), SettleAnswer)

    def extend(self, topic: str, node: str, *seqs: int, **request: Any) -> SettleAnswer:
        return self._finished(self.send_settle(extend, topic, node, *seqs, **request), SettleAnswer)

    def send_put(self, topic: str, **patch: Any) -> RecordedReply:
        reply = RecordedReply()
        put_topic(self.shard.state, topic, TopicConfigPatch(**patch), reply)
        return reply

    def put(self, topic: str, **patch: Any) -> TopicPut:
        return self._finished(self.send_put(topic, **patch), TopicPut)

    def send_delete_topic(self, topic: str, *, if_empty: bool = False) -> RecordedReply:
        reply = RecordedReply()
        delete_topic(self.shard.state, topic, if_empty, reply)
        return reply

    def delete_topic(self, topic: str, *, if_empty: bool = False) -> TopicDeleted:
        return self._finished(self.send_delete_topic(topic, if_empty=if_empty), TopicDeleted)

    def _read(
        self, topic: str, from_seq: int, epoch: int | None = None, **options: Any
    ) -> ReadAnswer | Refusal:
        return read_now(self.shard.state, topic, ReadRequest(from_seq, ReaderOptions(**options), epoch))

    def read(self, topic: str, from_seq: int = 0, **request: Any) -> ReadAnswer:
        answer = self._read(topic, from_seq, **request)
        assert isinstance(answer, ReadAnswer), answer
        return answer

    def refused_read(self, topic: str, from_seq: int = 0, **request: Any) -> Refusal:
        answer = self._read(topic, from_seq, **request)
        assert isinstance(answer, Refusal), answer
        return answer

    def seqs(self, topic: str, from_seq: int = 0, **request: Any) -> list[int]:
        """Return the seqs that one read delivers."""
        return [one.seq for one in self.read(topic, from_seq, **{"limit": 100_000, **request}).records]

    def state(self, topic: str) -> TopicState:
        answer = topic_state(self.shard.state, topic)
        assert isinstance(answer, TopicState), answer
        return answer

    def topic(self, name: str) -> Topic:
        return self.shard.state.topics[name]

    def wal_files(self) -> list[str]:
        """Return the paths of the WAL files, in order."""
        return [path for path in self.disk.all_files() if path.startswith(f"{PATHS.wal}/wal-")]

    def _finished(self, reply: RecordedReply, kind: type[T]) -> T:
        self.settle()
        answer = reply.answer
        assert isinstance(answer, kind), answer
        return answer
