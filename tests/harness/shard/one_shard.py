"""One open shard under the control of a test, with requests and their answers.

Promises: `send_*` submits a request and returns the `RecordedReply` that will hold its answer; the same
method without `send_` runs until every request is answered. `OneShard` has a disk in memory: `restart`,
`kill`, `cut_power` and `reboot` continue with the same clock on the disk that such an end leaves. `RealShard`
has a real directory, which is as a server leaves it, file for file, with times of the manual clock.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.topic_config import TopicConfigPatch
from shared.settings.settings import Settings
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import DATA_DIR, INSTANCE, ShardDriver, make_store_folder
from tests.harness.shard.shard_reader import read_now
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import LAYOUT_NAME, create_data_dir, shard_paths
from topicsd.engine.ownership.catalog_work import Node
from topicsd.engine.queue.claim import claim
from topicsd.engine.queue.settle import Settle, ack, extend, nack
from topicsd.engine.requests import (
    NO_META,
    AppendAnswer,
    AppendRequest,
    BytesRecord,
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
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import delete_topic, put_topic, topic_state
from topicsd.engine.write.append import append
from topicsd.log.writer import Identity
from topicsd.store.object_store import ObjectStore

T = TypeVar("T")

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


def bytes_record(
    data: bytes, tag: str | None = None, node: str | None = None, meta: Any = None
) -> BytesRecord:
    """Return a record of bytes."""
    return BytesRecord(msgspec.Raw(data), tag, node, record(0, meta=meta).meta)


class OneShard(ShardDriver):
    def __init__(
        self,
        *,
        shard: int = 0,
        shards: int = 1,
        disk: MemoryDisk | None = None,
        clock: ManualClock | None = None,
        node: Node | None = None,
        store: ObjectStore | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            clock or ManualClock(),
            Settings(**{**SMALL, **settings}),
            shard_paths(DATA_DIR, shard),
            Identity(INSTANCE, shard),
            node,
            store,
        )
        self.store = store
        if disk is None:
            disk = MemoryDisk(traced=True)
            create_data_dir(disk, DATA_DIR, shards, INSTANCE)
            make_store_folder(disk, self.settings)
        self.open(disk)

    def open(self, disk: MemoryDisk) -> None:
        """Start a shard on this disk, as another process would."""
        self.disk = disk
        self.start(disk)

    # Progress.

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

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.close()
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
        return [path for path in self.disk.all_files() if path.startswith(f"{self.paths.wal}/wal-")]

    def _finished(self, reply: RecordedReply, kind: type[T]) -> T:
        self.settle()
        answer = reply.answer
        assert isinstance(answer, kind), answer
        return answer


class RealShard(OneShard):
    def __init__(
        self,
        data_dir: Path,
        *,
        shard: int = 0,
        shards: int = 1,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        ShardDriver.__init__(
            self,
            clock or ManualClock(),
            Settings(**{"wal_file_bytes": 1 << 16, **settings}),
            shard_paths(str(data_dir), shard),
            Identity(INSTANCE, shard),
        )
        self.fs = ProcessFs()
        if not os.path.exists(data_dir / LAYOUT_NAME):
            create_data_dir(self.fs, str(data_dir), shards, INSTANCE)
            make_store_folder(self.fs, self.settings)
        self.reopen()

    def reopen(self) -> None:
        """Start on the existing directory, as another process would."""
        self.start(self.fs)

    def restart(self) -> None:
        self.close()
        self.reopen()

    def stop_dead(self) -> None:
        """End as by SIGKILL, without a note in CURRENT: write nothing more and free the lock."""
        self.fs.close_all()

    def kill(self) -> None:
        self.stop_dead()
        self.reopen()

    def wal_files(self) -> list[str]:
        names = sorted(os.listdir(self.paths.wal))
        return [os.path.join(self.paths.wal, name) for name in names if name.startswith("wal-")]


class ProcessFs(RealFs):
    """The real disk with the open files of one process, which closes them when it ends."""

    def __init__(self) -> None:
        self._fds: set[int] = set()

    def _opened(self, fd: int) -> int:
        self._fds.add(fd)
        return fd

    def create(self, path: str) -> int:
        return self._opened(super().create(path))

    def open_write(self, path: str) -> int:
        return self._opened(super().open_write(path))

    def open_read(self, path: str) -> int:
        return self._opened(super().open_read(path))

    def lock(self, path: str) -> int:
        return self._opened(super().lock(path))

    def close(self, fd: int) -> None:
        self._fds.remove(fd)
        super().close(fd)

    def close_all(self) -> None:
        for fd in list(self._fds):
            self.close(fd)
