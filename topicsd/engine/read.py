"""Reading behind a cursor: what is missing is said first, then come the records.

The order of the questions, for a cursor: is it of another incarnation; is it behind the floor (loss that
readers are told); is a lost range next; and then, record by record: deleted, own node, deliver. What is
skipped on purpose moves the cursor silently. One answer carries one tombstone: a read stops in front of a
lost range, and the next one, which stands at its edge, reports it and goes on behind it.

Must not know: HTTP, JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

from shared.errors import CORRUPT_SEGMENT, INVALID_REQUEST, Refusal
from topicsd.disk.layout import wal_name
from topicsd.engine.requests import ReadAnswer, ReadRequest, Tombstone
from topicsd.engine.shard_state import ShardState
from topicsd.engine.tail_run import TailRun
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import topic_not_found
from topicsd.engine.trim_report import log_expired
from topicsd.wal.frame import FrameDamage, Record, parse_frame, record_of

# Frames that stand this close to each other are read in one call, with what is between them.
READ_GAP_BYTES = 4096
READ_SPAN_BYTES = 1 << 20


class Damaged(Exception):
    """The bytes of one record are not what was written."""

    def __init__(self, seq: int, position: int, what: str) -> None:
        super().__init__(what)
        self.seq = seq
        self.position = position


def read(shard: ShardState, name: str, request: ReadRequest) -> ReadAnswer | Refusal:
    if request.from_seq < 0:
        return Refusal(INVALID_REQUEST, "from_seq: must be at least 0", {"field": "from_seq"})
    topic = shard.visible_topic(name)
    if topic is None:
        return topic_not_found(name)
    log_expired(shard, topic, shard.clock.now_ms())
    cursor, tombstone = _missed(topic, request)
    lost = topic.lost.next_after(cursor)
    if lost is not None and lost.first <= cursor + 1 and tombstone is None:
        tombstone = _tombstone(topic, cursor + 1, lost.last, lost.reason)
        cursor = lost.last
        lost = topic.lost.next_after(cursor)
    stop = topic.head if lost is None else max(cursor, lost.first - 1)
    try:
        records, cursor = _collect(shard, topic, cursor, stop, request)
    except Damaged as damage:
        if tombstone is None:
            return _corrupt(shard, topic, damage)
        # A reader that steps over the damage would never learn what it missed: that is said first.
        records = []
    return ReadAnswer(
        topic=topic.name,
        epoch=topic.epoch,
        records=records,
        next_from_seq=cursor,
        head_seq=topic.head,
        earliest_seq=topic.earliest_seq,
        tombstone=tombstone,
    )


def _missed(topic: Topic, request: ReadRequest) -> tuple[int, Tombstone | None]:
    """Where to read on from, and what the cursor has to be told was lost in front of that."""
    cursor = request.from_seq
    if cursor > topic.head or request.epoch not in (None, topic.epoch):
        return topic.evict_floor - 1, _tombstone(topic, 1, topic.head, "recreated")
    if cursor + 1 < topic.evict_floor:
        reason = topic.reason_for(cursor + 1)
        return topic.evict_floor - 1, _tombstone(topic, cursor + 1, topic.evict_floor - 1, reason)
    return cursor, None


def _tombstone(topic: Topic, gap_from: int, gap_to: int, reason: str) -> Tombstone:
    return Tombstone(gap_from, gap_to, reason, max(0, gap_to - gap_from + 1), topic.earliest_seq, topic.head)


def _collect(
    shard: ShardState, topic: Topic, cursor: int, stop: int, request: ReadRequest
) -> tuple[list[Record], int]:
    """Records behind the cursor up to `stop`, and the last seq that was looked at."""
    records: list[Record] = []
    room = request.bytes_max
    while cursor < stop and len(records) < request.limit and room > 0:
        run = topic.run_of(cursor + 1)
        if run is None:
            return records, stop
        first = run.next_live(max(cursor + 1, topic.earliest_seq, run.first_seq))
        last = min(stop, run.next_seq - 1)
        if first > last:
            cursor = last if run is not topic.run else stop
            continue
        seqs = _live_seqs(run, first, last, request.limit - len(records), room)
        try:
            for seq, record in _fetch(shard, topic, run, seqs):
                # The first record of an answer is taken whatever its size.
                if run.lengths[seq - run.first_seq] > room and room < request.bytes_max:
                    return records, cursor
                room -= run.lengths[seq - run.first_seq]
                cursor = seq
                if not _is_own(record, request.nodes, topic):
                    records.append(record)
        except Damaged:
            # What is good before it is answered first; the next read begins at the damage.
            if not records:
                raise
            break
    return records, cursor


def _live_seqs(run: TailRun, first: int, last: int, count_max: int, room: int) -> list[int]:
    """The next live seqs of the run that may fit into `room` bytes, at least the first."""
    if run.dead is None and last - first < count_max:
        return list(range(first, last + 1))
    seqs = [first]
    while len(seqs) < count_max:
        room -= run.lengths[seqs[-1] - run.first_seq]
        seq = run.next_live(seqs[-1] + 1)
        if seq > last or room <= 0:
            break
        seqs.append(seq)
    return seqs


def _fetch(shard: ShardState, topic: Topic, run: TailRun, seqs: list[int]) -> Iterator[tuple[int, Record]]:
    """The records of these seqs, each checked whole; those that stand close together in one read."""
    base = run.first_seq
    if run.frames is not None:
        for seq in seqs:
            frame = run.frames[seq - base]
            yield seq, record_of(parse_frame(frame, 0, len(frame)))
        return
    at = 0
    while at < len(seqs):
        start = run.positions[seqs[at] - base]
        end = start + run.lengths[seqs[at] - base]
        upto = at + 1
        while upto < len(seqs):
            position = run.positions[seqs[upto] - base]
            if position - end > READ_GAP_BYTES or position - start > READ_SPAN_BYTES:
                break
            end = position + run.lengths[seqs[upto] - base]
            upto += 1
        try:
            piece = shard.files.read(start, end)
        except OSError:
            # One of them cannot be read: each by itself, so that it does not take the others with it.
            for seq in seqs[at:upto]:
                position, length = run.positions[seq - base], run.lengths[seq - base]
                yield seq, _record(topic, seq, position, _read_alone(shard, seq, position, length), 0, length)
        else:
            for seq in seqs[at:upto]:
                position, length = run.positions[seq - base], run.lengths[seq - base]
                yield seq, _record(topic, seq, position, piece, position - start, length)
        at = upto


def _read_alone(shard: ShardState, seq: int, position: int, length: int) -> bytes:
    try:
        return shard.files.read(position, position + length)
    except OSError as error:
        raise Damaged(seq, position, str(error)) from None


def _record(topic: Topic, seq: int, position: int, piece: bytes, at: int, length: int) -> Record:
    try:
        frame = parse_frame(piece, at, min(len(piece), at + length))
        if (frame.topic_id, frame.seq) != (topic.topic_id, seq):
            raise FrameDamage(at, f"holds seq {frame.seq} of topic id {frame.topic_id:016x}")
        return record_of(frame)
    except FrameDamage as damage:
        raise Damaged(seq, position, damage.what) from None


def _is_own(record: Record, nodes: frozenset[str], topic: Topic) -> bool:
    """The reader wrote it itself, and does not want to see that. What has no node is nobody's own."""
    if not nodes or not record.node:
        return False
    return topic.config.dedupe_node and record.node.decode() in nodes


def _corrupt(shard: ShardState, topic: Topic, damage: Damaged) -> Refusal:
    file, offset = shard.files.place_of(damage.position)
    place = f"offset {offset} of {wal_name(file)}"
    message = f'seq {damage.seq} of topic "{topic.name}" is damaged at {place}: {damage}'
    detail: dict[str, object] = {
        "segment": wal_name(file),
        "first_seq": damage.seq,
        "last_seq": damage.seq,
        "next_from_seq": damage.seq,
    }
    return Refusal(CORRUPT_SEGMENT, message, detail)
