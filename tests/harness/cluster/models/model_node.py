"""A small node that follows the rules of ownership, export, seal and adopt, written to be read.

It shows that the rules are enough, and that the harness finds a node that breaks one: each rule is a method
that a test replaces. Its log survives a kill whole and a power cut up to its last sync, or a little more.

M1  A write is acknowledged after its sync, and not above the ceiling that the catalog has granted.
M2  Objects first, then the extent in the catalog, then the entry in the log, then the local copy is dropped.
M3  A request without an answer is resolved before anything that depends on it: the extents of the catalog say
    what was published, a row says what was adopted, and a seal is repeated until it is answered.
M4  A node that is fenced serves the topic no more.
M5  A topic is created when the catalog has its row.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from shared.runtime.retries import Retries
from tests.harness.books.ledger_entries import TopicContents
from tests.harness.cluster.answers import (
    Adopt,
    Append,
    Appended,
    Delete,
    Done,
    ReadAll,
    Refused,
    Reply,
    Request,
    Seal,
)
from tests.harness.cluster.histories.book import Book
from tests.harness.cluster.histories.plans import Plan
from tests.harness.cluster.machine import Cluster, Machine
from tests.harness.cluster.models.model_topic import DeferredRequest, ModelTopic, Segment, State, is_granted
from tests.harness.cluster.virtual_time import Process
from tests.harness.machine.faults import MachineGoneError, PowerCut, ProcessKilled
from topicsd.catalog.catalog import (
    CatalogUnavailable,
    ChangeRefused,
    Extent,
    ExtentObject,
    Fenced,
    TopicRow,
)
from topicsd.store.create_object import create_object
from topicsd.store.object_store import StoreUnavailable

BLOCK: Final = 40
ROUND_SECONDS: Final = 2.0
GRACE_SECONDS: Final = 20.0

_encode = msgspec.msgpack.Encoder().encode
_decode_records = msgspec.msgpack.Decoder(dict[int, bytes]).decode
_decode_state = msgspec.msgpack.Decoder(State).decode


Entry = tuple[str, str, tuple[Any, ...]]
"""One entry of the log: topic, kind, arguments."""


class ModelNode(Machine):
    supported = frozenset({Append, Delete, ReadAll, Seal, Adopt})
    sync_ms = 20.0

    def __init__(self, cluster: Cluster, name: str, book: Book, plans: Sequence[Plan]) -> None:
        super().__init__(cluster, name)
        self._book = book
        self._log: list[Entry] = []
        self._synced = 0
        self._ends_after = 0
        self._ends_with: type[MachineGoneError] = ProcessKilled
        self._export_ms = self.world.rng.choice((0, 5_000, 30_000))
        self._exported_ms = 0

    # -- the log ---------------------------------------------------------------------------------------------

    def boot(self, process: Process) -> None:
        self._process = process
        self.topics: dict[str, ModelTopic] = {}
        for topic, kind, args in self._log:
            self._apply(topic, kind, args)
        self._synced = len(self._log)
        self._is_syncing = False
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._work: list[Callable[[], object]] = []
        self._to_delete: list[tuple[float, str]] = []
        self._creating: dict[str, list[DeferredRequest]] = {}
        process.run_fiber(self._rounds, lambda outcome: None)

    def on_kill(self) -> None:
        pass

    def on_power_cut(self) -> None:
        del self._log[self.world.rng.randint(self._synced, len(self._log)) :]

    def _apply(self, name: str, kind: str, args: tuple[Any, ...]) -> None:
        if kind == "create":
            self.topics[name] = ModelTopic(name, *args)
        else:
            self.topics[name].apply(kind, *args)

    def _write(self, name: str, kind: str, *args: Any, then: Callable[[], object] = lambda: None) -> None:
        """Add an entry to the log; `then` is called after its sync."""
        self._log.append((name, kind, args))
        if self._ends_after == 1:
            # The acknowledgement of an earlier entry may still be on its way.
            self.world.after(self.world.rng.random() * self.sync_ms, self._end_now, process=self._process)
        self._ends_after = max(0, self._ends_after - 1)
        self._apply(name, kind, args)
        self._waiting.append((len(self._log), then))
        self._sync()

    def end_in_write(self, writes: int, is_power_cut: bool) -> None:
        self._ends_after = writes
        self._ends_with = PowerCut if is_power_cut else ProcessKilled

    def clear_endings(self) -> None:
        self._ends_after = 0

    def _end_now(self) -> None:
        raise self._ends_with("in a write")

    def _sync(self) -> None:
        if not self._is_syncing and self._waiting:
            self._is_syncing = True
            end, ms = len(self._log), self.world.rng.random() * self.sync_ms
            self.world.after(ms, self._on_synced, end, process=self._process)

    def _on_synced(self, end: int) -> None:
        self._is_syncing = False
        self._synced = end
        ready = [then for position, then in self._waiting if position <= end]
        self._waiting = [one for one in self._waiting if one[0] > end]
        for then in ready:
            then()
        self._sync()

    def _write_and_wait(self, name: str, kind: str, *args: Any) -> None:
        """Add an entry in the agent's fiber, and wait for its sync."""
        self._write(name, kind, *args)
        while self._synced < len(self._log):
            self._process.sleep(self.sync_ms / 1000)

    # -- requests of clients ---------------------------------------------------------------------------------

    def handle(self, topic: str, request: Request, reply: Reply) -> None:
        match request:
            case Append():
                self._append(topic, request.payloads, request.key, request.may_create, reply)
            case Delete():
                self._delete(topic, request.seqs, reply)
            case ReadAll():
                self._process.run_fiber(partial(self._contents, topic), partial(_answer_read, reply))
            case Seal():
                self._work.append(partial(self._seal, topic, reply))
            case Adopt():
                self._work.append(partial(self._adopt, topic, request.accept_loss, reply))
            case _:
                raise AssertionError(request)

    def _append(
        self, name: str, payloads: list[bytes], key: str | None, may_create: bool, reply: Reply
    ) -> None:
        if name not in self.topics:
            if may_create:
                retry = partial(self._append, name, payloads, key, may_create, reply)
                self.create(name, DeferredRequest(retry, reply))
            else:
                reply(Refused("topic_not_found", "nothing done"))
            return
        topic = self.topics[name]
        refusal = self._refuse(topic)
        if refusal is not None:
            reply(refusal)
            return
        if key is not None and key in topic.keys:
            # The entry makes the answer wait until the first write is synced.
            self._write(name, "delete", [], then=partial(reply, Appended(*topic.keys[key])))
            return
        first = topic.head + 1
        last = topic.head + len(payloads)
        refusal = self.refuse_above_ceiling(topic, last)
        if refusal is not None:
            reply(refusal)
            return
        self._write(
            name, "append", first, payloads, key, then=partial(self._acknowledge, topic, first, last, reply)
        )

    def create(self, name: str, request: DeferredRequest) -> None:
        """Have the catalog grant a name, and run the request then (M5)."""
        requests = self._creating.setdefault(name, [])
        requests.append(request)
        if len(requests) == 1:
            self._work.append(partial(self._create_granted, name))

    def _create_granted(self, name: str) -> None:
        outcome = Refused("catalog_unavailable", "nothing done")
        try:
            row = self._granted_row(name, len(self._log) + 1)
            self._write(name, "create", row.incarnation, 1, row.ceiling)
        except Fenced as fenced:
            outcome = Refused("topic_moved", "nothing done", "" if fenced.row is None else fenced.row.owner)
        finally:
            for retry, refuse in self._creating.pop(name):
                if name in self.topics:
                    retry()
                else:
                    refuse(outcome)

    def _granted_row(self, name: str, incarnation: int) -> TopicRow:
        try:
            return self._catalog.create(name, 1, incarnation, self.name, BLOCK)
        except Fenced as fenced:
            if fenced.row is not None and is_granted(fenced.row, self.name):
                return fenced.row  # Of an earlier request, whose answer was lost.
            raise

    def _acknowledge(self, topic: ModelTopic, first: int, last: int, reply: Reply) -> None:
        if not topic.is_served:
            reply(Refused("topic_moved", "unknown", topic.where))
            return
        assert self.process is not None
        self._book.given_out(self.name, self.process, topic.name, first, last)
        reply(Appended(first, last))

    def refuse_above_ceiling(self, topic: ModelTopic, last_seq: int) -> Refused | None:
        """M1"""
        if topic.ceiling and last_seq > topic.ceiling:
            return Refused("catalog_unavailable", "nothing done")
        return None

    def _refuse(self, topic: ModelTopic) -> Refused | None:
        if not topic.is_served:
            return Refused("topic_moved", "nothing done", topic.where)
        if topic.seal_key:
            return Refused("topic_sealed", "nothing done")
        return None

    def _delete(self, name: str, seqs: list[int], reply: Reply) -> None:
        topic = self.topics.get(name)
        refusal = Refused("topic_not_found", "nothing done") if topic is None else self._refuse(topic)
        if refusal is not None:
            reply(refusal)
            return
        self._write(name, "delete", seqs, then=partial(reply, Done()))

    def _contents(self, name: str) -> TopicContents | Refused:
        topic = self.topics.get(name)
        if topic is None:
            return Refused("topic_not_found", "nothing done")
        if not topic.is_served:
            return Refused("topic_moved", "nothing done", topic.where)
        # Writes that are not synced are not shown: this waits for them, as nothing joins in between.
        records = dict(topic.records)
        head = topic.head
        while self._synced < len(self._log):
            self._process.sleep(self.sync_ms / 1000)
        store = self.store_client(self._process)
        for segment in list(topic.segments):
            if not records.keys() & set(range(segment.first_seq, segment.last_seq + 1)):
                records.update(_decode_records(store.read(f"{segment.stem}.data", 0, 1 << 30)))
        shown: list[tuple[int, bytes, str | None]] = [
            (seq, records[seq], None) for seq in sorted(records) if seq not in topic.deleted and seq <= head
        ]
        return TopicContents(head, 0, 1, [(first, last, "node_lost") for first, last in topic.lost], shown)

    def is_exported(self, topic: str) -> bool:
        state = None if self.process is None else self.topics.get(topic)
        return state is not None and state.is_served and state.head == state.exported_to

    # -- the agent -------------------------------------------------------------------------------------------

    def _rounds(self) -> None:
        self._store, self._catalog = self.store_client(self._process), self.catalog_client(self._process)
        self._try(self._look_up)
        while True:
            work, self._work = self._work, []
            for one in work:
                self._try(one)
            for topic in list(self.topics.values()):
                self._try(partial(self._care_for, topic))
            if self.world.clock.now_ms() >= self._exported_ms + self._export_ms:
                self._exported_ms = self.world.clock.now_ms()
            self._try(self._delete_objects)
            self._process.sleep(ROUND_SECONDS * self.world.rng.random())

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (StoreUnavailable, CatalogUnavailable):
            self._process.sleep(0.5)

    @property
    def _retries(self) -> Retries:
        return self._process.retries(30.0)

    def _look_up(self) -> None:
        """Compare the topics with their rows at a start."""
        for topic in list(self.topics.values()):
            if topic.is_served and topic.owner_epoch:
                lookup = self._catalog.own(topic.name, topic.ownership(self.name))
                if not lookup.is_owner and not topic.seal_key:
                    self._depart(topic, lookup.row)

    def _care_for(self, topic: ModelTopic) -> None:
        if not topic.is_served:
            return
        try:
            if topic.seal_key:
                self._finish_seal(topic)
                return
            if topic.head > topic.ceiling - BLOCK // 2:
                row = self._catalog.raise_ceiling(topic.name, topic.ownership(self.name), topic.head + BLOCK)
                self._write_and_wait(topic.name, "grant", row.owner_epoch, row.ceiling)
            if self.world.clock.now_ms() >= self._exported_ms + self._export_ms:
                self._export(topic)
                self._trim(topic)
        except Fenced as fenced:
            self.on_fenced(topic, fenced)

    def on_fenced(self, topic: ModelTopic, fenced: Fenced) -> None:
        """M4"""
        self._depart(topic, fenced.row)

    def _depart(self, topic: ModelTopic, row: TopicRow | None) -> None:
        self._write_and_wait(topic.name, "departed", "" if row is None else row.owner)

    # -- export ----------------------------------------------------------------------------------------------

    def _export(self, topic: ModelTopic) -> None:
        if topic.head == topic.exported_to:
            return
        self._note_published(topic)
        head = topic.head
        if head == topic.exported_to:
            return
        while self._synced < len(self._log):
            self._process.sleep(self.sync_ms / 1000)
        first = topic.exported_to + 1
        stem = f"segments/{topic.name}/{topic.owner_epoch}-{first}-{secrets.token_hex(4)}"
        records = {seq: topic.records[seq] for seq in range(first, head + 1) if seq in topic.records}
        segment = Segment(first, head, stem)
        self.put_and_publish(topic, segment, _encode(records))
        self._write_and_wait(topic.name, "exported", segment)
        self._write_and_wait(topic.name, "dropped", segment)

    def _note_published(self, topic: ModelTopic) -> None:
        """Note the extents of requests whose answers were lost (M3)."""
        # The extents of another owner are not ours to note, and a lookup is what says so.
        lookup = self._catalog.own(topic.name, topic.ownership(self.name))
        if not lookup.is_owner:
            raise Fenced(topic.name, lookup.row)
        for extent in self._catalog.extents_from(topic.name, topic.exported_to + 1, 256):
            if extent.owner_epoch != topic.owner_epoch:
                # Another node took the topic over since the lookup; the next change is fenced.
                break
            segment = Segment.of(extent)
            self._write_and_wait(topic.name, "exported", segment)
            self._write_and_wait(topic.name, "dropped", segment)

    def put_and_publish(self, topic: ModelTopic, segment: Segment, data: bytes) -> None:
        """M2"""
        extent = self.put(topic, segment, data)
        self.publish(topic, extent)

    def put(self, topic: ModelTopic, segment: Segment, data: bytes) -> Extent:
        extent = self.extent(topic, segment, data)
        for one, content in zip(extent.objects, (data, _encode(topic.state)), strict=True):
            create_object(self._store, one.key, [content], self._retries)
        return extent

    def extent(self, topic: ModelTopic, segment: Segment, data: bytes) -> Extent:
        objects = (
            ExtentObject(f"{segment.stem}.data", len(data), ""),
            ExtentObject(f"{segment.stem}.state", len(_encode(topic.state)), ""),
        )
        return Extent(segment.first_seq, segment.last_seq, objects, 0, 0, topic.owner_epoch)

    def publish(self, topic: ModelTopic, extent: Extent) -> None:
        self._catalog.publish_extents(topic.name, topic.ownership(self.name), [extent], [])

    def _trim(self, topic: ModelTopic) -> None:
        """Remove the first extent when none of its records is live: catalog, log, and later the objects."""
        if len(topic.segments) < 2:
            return
        segment = topic.segments[0]
        lost = {seq for first, last in topic.lost for seq in range(first, last + 1)}
        if not set(range(segment.first_seq, segment.last_seq + 1)) <= topic.deleted | lost:
            return
        self.remove_extent(topic, segment)
        self._write_and_wait(topic.name, "trimmed", segment)
        due = self.world.clock.monotonic() + GRACE_SECONDS
        self._to_delete += [(due, segment.stem + suffix) for suffix in (".data", ".state")]

    def remove_extent(self, topic: ModelTopic, segment: Segment) -> None:
        extents = self._catalog.extents_from(topic.name, segment.first_seq, 1)
        if extents and extents[0].last_seq == segment.last_seq:
            self._catalog.publish_extents(topic.name, topic.ownership(self.name), [], extents)

    def _delete_objects(self) -> None:
        now = self.world.clock.monotonic()
        while self._to_delete and self._to_delete[0][0] <= now:
            self._store.delete(self._to_delete[0][1])
            del self._to_delete[0]

    # -- seal and adopt --------------------------------------------------------------------------------------

    def _seal(self, name: str, reply: Reply) -> None:
        topic = self.topics.get(name)
        if topic is None or not topic.is_served or not topic.owner_epoch:
            reply(Refused("topic_not_found", "nothing done"))
            return
        if not topic.seal_key:
            key = f"entries/{name}/{topic.owner_epoch}-{secrets.token_hex(4)}"
            self._write_and_wait(name, "sealing", key)
        self._care_for(topic)
        reply(Done() if self.topics[name].where else Refused("not_ready", "unknown"))

    def _finish_seal(self, topic: ModelTopic) -> None:
        """Repeat until it is answered (K5)."""
        try:
            self._export(topic)
            # It exists if an earlier try made it, since the key is used once.
            with suppress(FileExistsError):
                create_object(self._store, topic.seal_key, [_encode(topic.state)], self._retries)
            ownership = topic.ownership(self.name)
            row = self._catalog.seal(topic.name, ownership, topic.head, topic.seal_key)
        except ChangeRefused:
            return
        self._write_and_wait(topic.name, "departed", row.owner)

    def _adopt(self, name: str, accept_loss: bool, reply: Reply) -> None:
        topic = self.topics.get(name)
        row = next(iter(self._catalog.list(name, "", 1)), None)
        is_here = topic is not None and topic.is_served
        if topic is not None and is_here and row is not None and row.owner_epoch > topic.owner_epoch:
            # Another node took it over, and this one has not noticed.
            self._depart(topic, row)
            is_here = False
        if row is None or row.name != name or is_here or is_granted(row, self.name):
            reply(Refused("not_sealed", "nothing done"))
            return
        epoch = row.owner_epoch
        if (row.owner, row.state) == (self.name, "owned") and (topic is None or topic.owner_epoch < epoch):
            epoch -= 1  # Adopted before a crash.
        try:
            row = self._catalog.adopt(name, self.name, row.incarnation, epoch, accept_loss)
        except Fenced as fenced:
            reply(Refused("not_sealed", "nothing done", "" if fenced.row is None else fenced.row.owner))
            return
        self._load(row)
        reply(Done())

    def _load(self, row: TopicRow) -> None:
        extents: list[Extent] = []
        while page := self._catalog.extents_from(row.name, extents[-1].last_seq + 1 if extents else 0, 256):
            extents += page
        state = self._newest_state(row, extents)
        state.lost += self.lost_range(row)
        if row.name not in self.topics:
            self._write(row.name, "create", row.incarnation)
        segments = [Segment.of(extent) for extent in extents]
        self._write_and_wait(
            row.name,
            "adopted",
            row.owner_epoch,
            self.resume_after(row),
            row.exported_to,
            row.ceiling,
            segments,
            state,
        )

    def resume_after(self, row: TopicRow) -> int:
        return row.ceiling

    def lost_range(self, row: TopicRow) -> list[tuple[int, int]]:
        return [(row.exported_to + 1, row.ceiling)] if row.exported_to < row.ceiling else []

    def _newest_state(self, row: TopicRow, extents: Iterable[Extent]) -> State:
        """Return the state of the last seal, or of the last extent if that was written later."""
        last = [*extents][-1:]
        sealed_by = -1 if row.sealed_key is None else int(row.sealed_key.split("/")[-1].split("-")[0])
        if row.sealed_key is not None and (not last or last[0].owner_epoch <= sealed_by):
            return _decode_state(self._store.read(row.sealed_key, 0, 1 << 30))
        if last:
            return _decode_state(self._store.read(Segment.of(last[0]).stem + ".state", 0, 1 << 30))
        return State([], [], {})


def _answer_read(reply: Reply, outcome: TopicContents | Refused | OSError) -> None:
    reply(Refused("not_ready", "nothing done") if isinstance(outcome, OSError) else outcome)
