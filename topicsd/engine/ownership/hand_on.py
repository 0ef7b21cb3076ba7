"""Seal and adopt: the end of the ownership of a topic on this node, and its beginning on another one.

S1  A seal exports what it can while the topic is in use. Then the topic is frozen: its requests wait, the
    rest is exported, and the complete state object is put.
S2  The key of that object is logged and synced before the seal is sent (K5 of `catalog.py`). From then on the
    topic gives out no seq: it stays frozen until the answer, also after a restart, which repeats the seal.
    The object goes with the newest extent too, so the topic can be adopted if its node is lost before that.
S3  After the answer the topic departs: its files here are dropped, since the store has all of them.
S4  An adopt changes the row first, then reads the state object, then logs the topic. A crash in between
    leaves a row that names this node and no topic here. The next start finishes it if all seqs up to the
    ceiling are exported: then nothing can be lost, since the first write of an owner comes after a higher
    ceiling. Otherwise it is up to the operator, as it is when a data directory was lost.
S5  The adopted topic resumes above the ceiling of the row. With `accept_loss` the seqs from the last exported
    one up to there are a lost range, with the reason `node_lost`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from shared.contract.errors import (
    CATALOG_UNAVAILABLE,
    CORRUPT_SEGMENT,
    RETRY_AFTER_MS,
    TOPIC_MOVED,
    TOPIC_NOT_EMPTY,
    TOPIC_NOT_FOUND,
    Refusal,
    throttled,
)
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    Catalog,
    ChangeRefused,
    Extent,
    Fenced,
    Ownership,
    TopicRow,
)
from topicsd.disk.atomic_replace import recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.engine.bundle.adopt import Adopter
from topicsd.engine.bundle.bundle_format import Bundle, decode_bundle, encode_bundle
from topicsd.engine.bundle.contents import end_at
from topicsd.engine.bundle.gather import Gatherer, depart, freeze, resume
from topicsd.engine.bundle.segment_source import suffixes_of
from topicsd.engine.jobs import SYNCED, BackgroundJob, operation
from topicsd.engine.ownership.departed import SEALED, departure, refuse_departed
from topicsd.engine.ownership.exporter import Exporter
from topicsd.engine.ownership.extents import unexported, unexported_count
from topicsd.engine.ownership.owned import OWNERSHIP, encode_ownership, next_ceiling
from topicsd.engine.ownership.owner_calls import AWAY, NotOwned
from topicsd.engine.ownership.rounds import CatalogRounds, is_without_loss, set_aside
from topicsd.engine.ownership.state_object import state_keys, state_stem
from topicsd.engine.ownership.verdict import verdict
from topicsd.engine.pending import PendingFrame
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import Reply, TopicDeleted
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import join_deletion, missing_topic
from topicsd.log.control_frame import OwnershipFrame, encode_control
from topicsd.segment.entry import COLD, STATE, SegmentEntry, SegmentName
from topicsd.store.object_store import ObjectStore

logger = logging.getLogger("topicsd.engine")

T = TypeVar("T")

READ_BYTES: Final = 8 << 20
RETRY_SECONDS: Final = 1.0


class StoreSource:
    """The segment files of a topic that comes from another node: in the store."""

    def __init__(self, store: ObjectStore, fs: Fs) -> None:
        self._store = store
        self._fs = fs

    def stays(self, entry: SegmentEntry) -> bool:
        return False

    def fetch(self, name: SegmentName, entry: SegmentEntry, path: str) -> list[str]:
        """Write the index and the tags, which the event loop reads; `.data` stays in the store."""
        for suffix in suffixes_of(entry):
            fd = recreate_file(self._fs, path + suffix)
            try:
                offset = 0
                while part := self._store.read(entry.object_stem + suffix, offset, READ_BYTES):
                    write_all(self._fs, fd, part, offset)
                    offset += len(part)
            finally:
                self._fs.close(fd)
        return [path + suffix for suffix in suffixes_of(entry)]


class HandOn:
    """Seals and adopts topics of one shard. Its jobs run where those of the exporter do."""

    def __init__(
        self,
        shard: ShardState,
        rounds: CatalogRounds,
        exporter: Exporter,
        gatherer: Gatherer,
        adopter: Adopter,
        store: ObjectStore,
        fs: Fs,
    ) -> None:
        self._fs = fs
        self._shard = shard
        self._rounds = rounds
        self._exporter = exporter
        self._gatherer = gatherer
        self._adopter = adopter
        self._store = store
        self._names: set[str] = set()
        """Topics that are being sealed or adopted."""

    def start(self) -> None:
        """Repeat the seals that are in doubt (S2), and finish the adopts that a crash interrupted (S4)."""
        for topic in list(self._shard.topics.values()):
            if topic.ownership is not None and topic.ownership.seal_key:
                freeze(self._shard, topic)
                job = self._once(topic.name, self._send_seal(topic))
                self._exporter.run(job, partial(_log_failure, topic))
        self._rounds.on_unfinished = lambda rows: self._exporter.run(self._adopt_all(rows), _log_end)

    def run(self, job: BackgroundJob[T | Refusal], reply: Reply[T]) -> None:
        """Run a seal, an adopt or a lookup for a request."""

        def on_end(outcome: T | Refusal | Exception) -> None:
            if isinstance(outcome, Exception):
                outcome = refuse_unexpected_error(logger, "a change of ownership", outcome)
            reply(outcome)

        self._exporter.run(job, on_end)

    def where(self, name: str) -> BackgroundJob[TopicRow | Refusal]:
        """Return the row of a topic, wherever the topic is."""
        try:
            row = yield from self._row(name)
        except AWAY as error:
            return catalog_away(str(error))
        return row or _not_in_catalog(name)

    def _once(self, name: str, job: BackgroundJob[T | Refusal]) -> BackgroundJob[T | Refusal]:
        """Run a job, unless another one seals or adopts the topic of this name."""
        if name in self._names:
            return throttled(f'topic "{name}" is being sealed or adopted')
        self._names.add(name)
        try:
            return (yield from job)
        finally:
            self._names.discard(name)

    # -- seal ------------------------------------------------------------------------------------------------

    def seal(self, name: str) -> BackgroundJob[TopicRow | Refusal]:
        """End the ownership of a topic; return its row, or a refusal that leaves it in use."""
        return self._once(name, self._seal(name))

    def _seal(self, name: str) -> BackgroundJob[TopicRow | Refusal]:
        shard = self._shard
        topic = shard.visible_topic(name)
        if topic is None:
            return missing_topic(shard, name)
        if topic.ownership is None or not topic.ownership.owner_epoch:
            return catalog_away("the topic has no row in the catalog yet")
        try:
            refusal = yield from self._gatherer.prepare(name)
            if refusal is not None:
                return refusal
            # From here on, so that the frozen topic waits for no other export.
            return (yield from self._exporter.alone(topic, self._end(topic)))
        except AWAY as error:
            return catalog_away(str(error))
        except NotOwned:
            return missing_topic(shard, name)

    def _end(self, topic: Topic) -> BackgroundJob[TopicRow | Refusal]:
        yield from self._exporter.topic_export.export(topic)
        if self._shard.visible_topic(topic.name) is not topic:
            return missing_topic(self._shard, topic.name)
        gathered = yield from self._gatherer.gather(topic.name)
        if isinstance(gathered, Refusal):
            return gathered
        refusal = yield from self._export_rest(topic, gathered.bundle)
        if refusal is not None:
            return refusal
        return (yield from self._send_seal(topic))

    def _export_rest(self, topic: Topic, bundle: Bundle) -> BackgroundJob[Refusal | None]:
        """Export the rest and the state of a frozen topic, and log the seal. A refusal ends the freeze."""
        shard, exporter = self._shard, self._exporter
        is_logged = False
        try:
            yield from exporter.topic_export.export(topic)
            if any(unexported(topic)):
                message = f'topic "{topic.name}" cannot be sealed: a segment is damaged and not exported'
                return Refusal(CORRUPT_SEGMENT, message)
            row = yield from exporter.calls.raise_ceiling(topic, topic.head)
            in_store = _in_store(topic, bundle)
            if in_store is None:
                return throttled(f'topic "{topic.name}": records expired while it was being sealed')
            data = encode_bundle(in_store)
            key = state_stem(topic, row.owner_epoch, topic.head) + STATE
            state = yield from exporter.calls.put_object(key, data)
            if row.exported_to < topic.head:
                # Of the seqs after the last record, none has one.
                ts = topic.last_ts
                end = [Extent(row.exported_to + 1, topic.head, (), ts, ts, row.owner_epoch)]
                yield from exporter.topic_export.publish_state(topic, row, end, state=state)
            elif row.has_extents:
                yield from exporter.topic_export.publish_state(topic, row, state=state)
            assert topic.ownership is not None
            topic.ownership.seal_key = key
            is_logged = True
            self._log_ownership(topic)
            yield SYNCED
            return None
        except AWAY as error:
            return catalog_away(str(error))
        except NotOwned:
            return missing_topic(shard, topic.name)
        finally:
            if not is_logged and topic.is_frozen:
                resume(shard, topic)

    def _log_ownership(self, topic: Topic) -> None:
        assert topic.ownership is not None
        frame = encode_control(topic.ownership.frame, topic_id=topic.topic_id, ts=topic.last_ts)
        self._shard.log.join_control_frame(frame, PendingFrame(topic), is_urgent=True)

    def _send_seal(self, topic: Topic) -> BackgroundJob[TopicRow | Refusal]:
        """Send the seal until it is answered, and end the freeze accordingly."""
        shard = self._shard
        owned = topic.ownership
        assert owned is not None
        ownership = Ownership(self._rounds.node_id, topic.epoch, owned.owner_epoch)
        outcome = yield from self._ask_until_answered(
            partial(_seal, name=topic.name, ownership=ownership, key=owned.seal_key)
        )
        if isinstance(outcome, ChangeRefused):
            # A definite answer: the topic may continue (K5).
            owned.seal_key = ""
            self._log_ownership(topic)
            resume(shard, topic)
            raise outcome
        if isinstance(outcome, Fenced):
            set_aside(shard, topic, departure(outcome.row), outcome.row)
            resume(shard, topic)
            return shard.departure_of(topic.name) or missing_topic(shard, topic.name)
        row: TopicRow = outcome
        set_aside(shard, topic, SEALED, row)
        refusal = refuse_departed(shard.departed[topic.name])
        answer: TopicDeleted | Refusal = yield from operation(partial(depart, shard, topic, refusal))
        if isinstance(answer, Refusal):
            logger.warning('topic "%s": sealed; its files are kept: %s', topic.name, answer.message)
        return row

    # -- adopt -----------------------------------------------------------------------------------------------

    def adopt(self, name: str, accept_loss: bool) -> BackgroundJob[Topic | Refusal]:
        """Become the owner of a topic, and continue it here."""
        return self._once(name, self._adopt(name, accept_loss))

    def _adopt_all(self, rows: list[TopicRow]) -> BackgroundJob[None]:
        """Finish the adopts of these topics, of which nothing can be lost (S4)."""
        for row in rows:
            while True:
                outcome = yield from self.adopt(row.name, accept_loss=False)
                if isinstance(outcome, Topic):
                    logger.info('catalog: topic "%s": rule catalog: its adopt is finished', row.name)
                elif outcome.code == CATALOG_UNAVAILABLE:
                    yield RETRY_SECONDS
                    continue
                else:
                    logger.warning('catalog: topic "%s": not adopted: %s', row.name, outcome.message)
                break

    def _adopt(self, name: str, accept_loss: bool) -> BackgroundJob[Topic | Refusal]:
        shard, node_id = self._shard, self._rounds.node_id
        try:
            row = yield from self._row(name)
            if row is None:
                return _not_in_catalog(name)
            here = shard.visible_topic(name)
            if here is not None:
                if verdict(here, row, node_id).state is None:
                    return here
                if here.is_frozen:
                    return catalog_away("the topic is being sealed here")
                # This node has not noticed that another one took the topic over. What it has is outdated.
                set_aside(shard, here, departure(row), row)
            is_unfinished = row.owner == node_id and is_without_loss(row)
            if row.state == "owned" and not accept_loss and not is_unfinished:
                message = (
                    f'topic "{name}" must be sealed before it is adopted: it is owned by node {row.owner} '
                    f"with owner epoch {row.owner_epoch}; if that node is lost, set accept_loss"
                )
                return Refusal(TOPIC_MOVED, message, _detail(row))
            if not accept_loss and not is_unfinished:
                refusal = self._refuse_to_drop(name)
                if refusal is not None:
                    return refusal
            if not (yield from self._state_key(row)):
                return Refusal(TOPIC_NOT_FOUND, f'topic "{name}" was never exported: nothing can be adopted')
            if not is_unfinished:
                verb = partial(_adopt, row=row, node_id=node_id, accept_loss=accept_loss)
                outcome = yield from self._ask(verb)
                if isinstance(outcome, Fenced):
                    return Refusal(TOPIC_MOVED, f"{outcome}; look again", _detail(outcome.row))
                row = outcome
            key = yield from self._state_key(row)
            bundle = yield partial(self._read_bundle, key)
            return (yield from self._arrive(row, bundle))
        except AWAY as error:
            return catalog_away(str(error))

    def _refuse_to_drop(self, name: str) -> Refusal | None:
        """Refuse an adopt that would delete acknowledged records which are nowhere else."""
        departed = self._shard.departed.get(name)
        earlier = None if departed is None else self._shard.topics_by_id.get(departed.topic_id)
        # What was sealed here was exported whole.
        if departed is None or earlier is None or departed.state == SEALED:
            return None
        count = unexported_count(earlier)
        if not count:
            return None
        message = (
            f'topic "{name}" has an earlier copy on this node with {count} records that were never exported, '
            "which an adopt deletes: copy the data directory to keep them, then set accept_loss"
        )
        return Refusal(TOPIC_NOT_EMPTY, message, {"count": count})

    def _arrive(self, row: TopicRow, bundle: Bundle) -> BackgroundJob[Topic | Refusal]:
        shard = self._shard
        entry = bundle.topic
        if entry.config.durability == "ephemeral":
            entry = msgspec.structs.replace(entry, ceiling=row.ceiling)
        else:
            entry = end_at(entry, row.ceiling, "node_lost")
        owned = OwnershipFrame(row.owner_epoch, row.ceiling)
        sections = {**entry.sections, OWNERSHIP: encode_ownership(owned)}
        bundle = bundle._replace(topic=msgspec.structs.replace(entry, sections=sections))
        earlier = shard.topics_by_id.get(entry.topic_id)
        if earlier is not None and earlier.name in shard.departed:
            if earlier.deferred_requests is not None and not earlier.is_frozen:
                return throttled(f'topic "{earlier.name}" is being deleted')
            if not earlier.is_frozen:
                freeze(shard, earlier)
            answer = yield from operation(partial(join_deletion, shard, earlier, has_moved=True))
            if isinstance(answer, Refusal):
                return answer
            shard.frozen.pop(earlier, None)
        source = StoreSource(self._store, self._fs)
        topic = yield from self._adopter.adopt(bundle, source, stays_frozen=True)
        if isinstance(topic, Refusal):
            return topic
        yield from self._raise_ceiling(topic, row)
        resume(shard, topic)
        logger.info('topic "%s": adopted: owner_epoch=%d head=%d', topic.name, row.owner_epoch, topic.head)
        return topic

    def _raise_ceiling(self, topic: Topic, row: TopicRow) -> BackgroundJob[None]:
        """Raise the ceiling before the first write; without an answer now, writes wait for one."""
        ceiling = next_ceiling(topic, self._shard.clock.now_ms())
        try:
            outcome = yield from self._ask(lambda to: to.raise_ceiling(row.name, row.ownership, ceiling))
        except AWAY:
            self._shard.catalog_work.add(topic)
            return
        if isinstance(outcome, TopicRow):
            self._rounds.note_row(topic, outcome)
        else:
            self._shard.catalog_work.add(topic)

    def _state_key(self, row: TopicRow) -> BackgroundJob[str]:
        """Return the key of the newest state object; empty when there is none."""
        newest: list[Extent] = []
        if row.has_extents:
            newest = yield from self._ask(
                lambda to: to.extents_from(row.name, row.exported_to, EXTENTS_AT_ONCE)
            )
        keys = state_keys(row, newest)
        return keys[0] if keys else ""

    def _read_bundle(self, key: str) -> Bundle:
        parts: list[bytes] = []
        size = 0
        while part := self._store.read(key, size, READ_BYTES):
            parts.append(part)
            size += len(part)
        return decode_bundle(b"".join(parts))

    # -- requests --------------------------------------------------------------------------------------------

    def _row(self, name: str) -> BackgroundJob[TopicRow | None]:
        no_owner = Ownership("", 0, 0)
        lookup = yield from self._ask(lambda to: to.own(name, no_owner))
        row: TopicRow | None = lookup.row
        return row

    def _ask(self, call: Callable[[Catalog], Any]) -> BackgroundJob[Any]:
        (outcome,) = yield partial(self._rounds.calls.run, [call], 0.0)
        return outcome

    def _ask_until_answered(self, call: Callable[[Catalog], Any]) -> BackgroundJob[Any]:
        """Repeat a request until it is answered (R9)."""
        while True:
            try:
                return (yield from self._ask(call))
            except AWAY as error:
                logger.warning("catalog: no answer, retrying: %s", error)
            yield RETRY_SECONDS


def _not_in_catalog(name: str) -> Refusal:
    return Refusal(TOPIC_NOT_FOUND, f'topic "{name}" is not in the catalog')


def catalog_away(cause: str) -> Refusal:
    message = f"the catalog or the object store does not answer, retry after 1 s: {cause}"
    return Refusal(CATALOG_UNAVAILABLE, message, None, RETRY_AFTER_MS)


def _detail(row: TopicRow | None) -> dict[str, object] | None:
    return None if row is None else {"state": row.state, "node": row.owner, "owner_epoch": row.owner_epoch}


def _in_store(topic: Topic, bundle: Bundle) -> Bundle | None:
    """Return the bundle with its segments in the store only.

    None when a segment is gone: reads of a frozen topic still evict by age, and the bundle is from before.
    """
    stems = {run.first_seq: run.entry.object_stem for run in topic.runs if isinstance(run, SealedRun)}
    if any(entry.first_seq not in stems for entry in bundle.topic.segments):
        return None
    segments = [
        msgspec.structs.replace(entry, tier=COLD, object_stem=stems[entry.first_seq])
        for entry in bundle.topic.segments
    ]
    return bundle._replace(topic=msgspec.structs.replace(bundle.topic, segments=segments))


def _log_end(outcome: object) -> None:
    if isinstance(outcome, Exception):
        logger.error("catalog: topics of this node not adopted: %s", outcome, exc_info=outcome)


def _log_failure(topic: Topic, outcome: object) -> None:
    if isinstance(outcome, Exception):
        logger.error('topic "%s": seal not repeated: %s', topic.name, outcome, exc_info=outcome)


def _seal(catalog: Catalog, name: str, ownership: Ownership, key: str) -> TopicRow:
    """Seal at the last exported seq: all of the topic was exported before the key was logged (S2)."""
    row = catalog.own(name, ownership).row
    return catalog.seal(name, ownership, 0 if row is None else row.exported_to, key)


def _adopt(catalog: Catalog, row: TopicRow, node_id: str, accept_loss: bool) -> TopicRow:
    return catalog.adopt(row.name, node_id, row.incarnation, row.owner_epoch, accept_loss)
