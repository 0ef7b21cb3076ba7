"""Replay: apply the frames of the log to the topics in memory.

Replay repeats what publishing did, in the same order: the frames of a topic are in the log in the order in
which they were published, so floors, counts and indexes are the same as before. Each batch was checked as a
whole before, so replay does not check the checksums of append frames again; it does check the records that
copies refer to (`routes/reference.py`).
"""

from __future__ import annotations

from topicsd.engine.bundle.bundle_format import BundleDamage
from topicsd.engine.bundle.load_bundle import note_adopted, replay_adopt
from topicsd.engine.ownership.departed import departed_by
from topicsd.engine.ownership.owned import owned_of
from topicsd.engine.queue.state import add_jobs, apply_lease
from topicsd.engine.read.cursors import apply_cursor
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.retention.delete import apply_delete
from topicsd.engine.retention.eviction_log import evict_over_caps
from topicsd.engine.retention.retention import replay_eviction
from topicsd.engine.routes.reference import Originals, UnknownOriginals
from topicsd.engine.routes.route import apply_route, apply_route_cursor, remove_route
from topicsd.engine.schedules.schedule import apply_schedule
from topicsd.engine.session_log import apply_session
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.engine.write.idempotency import KeyedWrite
from topicsd.engine.write.producer_write import store_producer_write
from topicsd.engine.write.producers import ProducerWrite
from topicsd.log import control_frame
from topicsd.log.control_frame import ControlPayload, ForwardCursor, decode_control
from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FRAME_LEN_MIN,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    FrameDamage,
    FrameType,
    parse_frame,
)
from topicsd.log.reader import WalBatch
from topicsd.log.walk import BatchRefused

_APPEND = int(FrameType.APPEND)
_unpack = HEADER.unpack_from


class ReplayError(BatchRefused):
    """An impossible change in the log, in the frame with this ordinal."""

    def __init__(self, ordinal: int, what: str) -> None:
        super().__init__(f"the frame with ordinal {ordinal} {what}")
        self.ordinal = ordinal
        self.what = what


class Replay:
    """The replay of a log onto the data of one shard."""

    def __init__(self, shard: ShardData, captured_to: int = 0) -> None:
        """Prepare a replay onto `shard`; its snapshot, if any, was complete at `captured_to`."""
        self._captured_to = captured_to
        self._shard = shard
        self._originals = Originals(shard.files)
        self._now_ms = shard.clock.now_ms()
        self.frames = 0
        self.deleted: set[tuple[int, int]] = set()
        """Deleted topics without known files. A crash may have left files that no snapshot names."""

    def batch(self, batch: WalBatch, position: int) -> None:
        """Apply the frames of one batch; `position` is the log position of its first byte."""
        buffer, at, end = batch.buffer, batch.start, batch.end
        to_position = position - at
        topics = self._shard.topics_by_id
        ordinal = batch.first_ordinal
        topic_id, topic = -1, None
        while at < end:
            frame_len, frame_type, _, frame_topic, seq, ts, node_len, tag_len, data_len = _unpack(buffer, at)
            size = LEN_BYTES + frame_len
            if FRAME_LEN_MIN + node_len + tag_len + data_len != frame_len or at + size > end:
                raise ReplayError(ordinal, "does not fit into its batch")
            if frame_type == _APPEND:
                if frame_topic != topic_id:
                    topic_id, topic = frame_topic, topics.get(frame_topic)
                if self._is_captured(topic, ordinal):
                    at += size
                    ordinal += 1
                    continue
                if topic is None or seq != topic.head + 1:
                    raise ReplayError(ordinal, _does_not_follow(topic, frame_topic, seq))
                topic.run.add(to_position + at, size, ts)
                topic.head = seq
                topic.last_ts = ts
                topic.add_live(1, size)
                if tag_len:
                    tag_at = at + HEADER_BYTES + node_len
                    topic.run.tags.add(buffer[tag_at : tag_at + tag_len], seq)
                if topic.queue is not None and topic.queue.needs_tags:
                    tag_at = at + HEADER_BYTES + node_len
                    topic.queue.add_record(seq, buffer[tag_at : tag_at + tag_len])
                if topic.can_evict:
                    evict_over_caps(self._shard, topic)
            else:
                try:
                    control = decode_control(parse_frame(buffer, at, at + size))
                except FrameDamage as damage:
                    raise ReplayError(ordinal, f"is damaged: {damage.what}") from None
                self._apply(control, frame_topic, ts, ordinal, to_position + at + size)
                topic_id = -1
            at += size
            ordinal += 1
        self.frames += ordinal - batch.first_ordinal
        if ordinal - batch.first_ordinal != batch.frame_count:
            raise ReplayError(
                batch.first_ordinal, f"begins a batch that does not hold its {batch.frame_count} frames"
            )

    def _is_captured(self, topic: Topic | None, ordinal: int) -> bool:
        """Return whether the snapshot already has the effect of the frame.

        It has it if the topic was captured after the frame, or was deleted while the snapshot was taken.
        """
        return ordinal < (self._captured_to if topic is None else topic.complete_to)

    def _apply(self, control: ControlPayload, topic_id: int, ts: int, ordinal: int, end: int) -> None:
        """Apply a control frame that ends at log position `end`."""
        shard = self._shard
        if isinstance(control, control_frame.SessionFrame):
            # Also frames that the snapshot has: the last frame of a session decides whether it exists.
            apply_session(shard, control)
            return
        known = shard.topics_by_id.get(topic_id)
        if isinstance(control, control_frame.TopicCreate):
            self._create(known, topic_id, control, ts, ordinal)
            return
        if isinstance(control, control_frame.Adopt):
            self._adopt(known, topic_id, control, ordinal)
            return
        if self._is_captured(known, ordinal):
            return
        topic = known
        if topic is None:
            raise ReplayError(ordinal, f"belongs to a topic that does not exist, id {topic_id:016x}")
        match control:
            case control_frame.TopicDelete():
                if not topic.has_files:
                    self.deleted.add((topic.topic_id, topic.epoch))
                shard.delete_topic(topic, control.has_moved)
            case control_frame.OwnershipFrame():
                topic.ownership = owned_of(control)
            case control_frame.DepartedFrame():
                shard.depart(topic, departed_by(topic, control, ts))
            case control_frame.ConfigUpdate():
                shard.set_config(topic, control.config)
                topic.next_config = topic.config
                topic.ceiling = control.ceiling
                if topic.can_evict:
                    evict_over_caps(shard, topic)
            case control_frame.Delete():
                apply_delete(topic, control)
            case control_frame.Lease():
                apply_lease(topic, control)
            case control_frame.EvictWatermark():
                for reason, last in control.evicted_to.items():
                    replay_eviction(topic, min(last, topic.head), reason)
                topic.ttl_logged = topic.evicted_to.get("ttl", 0)
            case control_frame.HeadWatermark():
                topic.ceiling = control.ceiling
            case control_frame.Idempotency():
                self._remember_key(topic, control, ts)
            case control_frame.Cursor():
                apply_cursor(shard, topic, control)
            case control_frame.Schedule():
                apply_schedule(shard, topic, control)
            case control_frame.ForwardCreate():
                apply_route(shard, topic, control)
            case control_frame.ForwardDelete():
                remove_route(shard, topic, control.name)
            case ForwardCursor():
                if control.offsets:
                    self._copy(topic, control, ts, ordinal, end)
                apply_route_cursor(topic, control)
            case control_frame.ProducerFrame():
                write = ProducerWrite(
                    control.producer_seq, control.first_seq, control.count, ts, control.moved
                )
                store_producer_write(shard, topic, control.producer, write)
            case control_frame.LostRangeFrame():
                if not topic.head + 1 == control.first <= control.last:
                    gap = f"{control.first} to {control.last}"
                    raise ReplayError(
                        ordinal, f'loses seqs {gap} of topic "{topic.name}", whose head is {topic.head}'
                    )
                lose_range(topic, LostRange(control.first, control.last, control.reason))

    def _create(
        self, known: Topic | None, topic_id: int, control: control_frame.TopicCreate, ts: int, ordinal: int
    ) -> None:
        shard = self._shard
        # Also of a captured topic: the floor of the snapshot may be older.
        shard.epoch_floor = max(shard.epoch_floor, control.epoch)
        if known is not None and self._is_captured(known, ordinal):
            return
        if known is not None:
            raise ReplayError(ordinal, f'creates topic "{control.name}", which already exists')
        epoch = control.epoch or ordinal
        new = Topic(control.name, topic_id, epoch, shard.intern_config(control.config))
        new.complete_to = ordinal
        new.visible = True
        new.ceiling = control.ceiling
        new.last_ts = ts
        # Of an earlier topic of the name, which was free again.
        shard.departed.pop(control.name, None)
        shard.add_topic(new)

    def _adopt(self, known: Topic | None, topic_id: int, control: control_frame.Adopt, ordinal: int) -> None:
        if known is not None and self._is_captured(known, ordinal):
            note_adopted(self._shard, topic_id, control.epoch)
            return
        if known is not None:
            raise ReplayError(ordinal, f'adopts topic "{control.name}", which already exists')
        try:
            replay_adopt(self._shard, topic_id, control, ordinal)
        except BundleDamage as damage:
            raise ReplayError(
                ordinal, f'adopts topic "{control.name}", whose bundle is damaged: {damage}'
            ) from None

    def _copy(self, topic: Topic, control: ForwardCursor, ts: int, ordinal: int, end: int) -> None:
        """Add the copies that the frame names to the topic."""
        if control.first_seq != topic.head + 1:
            raise ReplayError(ordinal, _does_not_follow(topic, topic.topic_id, control.first_seq))
        try:
            originals = self._originals.of(control)
        except UnknownOriginals as unknown:
            self.cannot_copy(topic, control, ordinal, str(unknown))
            return
        run = topic.run
        run.extend(end, originals.lengths, ts, originals.places)
        topic.head += control.count
        topic.last_ts = ts
        size = sum(originals.lengths)
        topic.add_live(control.count, size)
        self._shard.referred_bytes += size
        if originals.tags is not None:
            for seq, tag in enumerate(originals.tags, control.first_seq):
                if tag:
                    run.tags.add(tag, seq)
        if topic.queue is not None and topic.queue.needs_tags:
            add_jobs(topic.queue, control.first_seq, control.count, originals.tags)
        if topic.can_evict:
            evict_over_caps(self._shard, topic)

    def cannot_copy(self, topic: Topic, control: ForwardCursor, ordinal: int, what: str) -> None:
        """Refuse the log: originals are always before their copies, so they must have been replayed."""
        raise ReplayError(ordinal, f'copies unknown records into topic "{topic.name}": {what}')

    def _remember_key(self, topic: Topic, control: control_frame.Idempotency, used_ms: int) -> None:
        window_ms = topic.config.idempotency_window_ms
        if self._now_ms - used_ms <= window_ms:
            write = KeyedWrite(control.records, control.first_seq, control.count)
            self._shard.idempotency_keys.add(control.key, write, window_ms, used_ms, topic.topic_id)


def lose_range(topic: Topic, lost: LostRange) -> None:
    """Note a lost range directly after the head, and move the head to the end of the range."""
    assert lost.first == topic.head + 1
    topic.lost.add(lost)
    if not topic.live_count:
        topic.earliest_seq = lost.last + 1
    topic.head = lost.last
    topic.begin_run(lost.last + 1)


def _does_not_follow(topic: Topic | None, topic_id: int, seq: int) -> str:
    if topic is None:
        return f"is a record of a topic that does not exist, id {topic_id:016x}"
    return f'is seq {seq} of topic "{topic.name}", whose head is {topic.head}'


assert CHECKSUM_BYTES + HEADER_BYTES - LEN_BYTES == FRAME_LEN_MIN
