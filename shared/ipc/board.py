"""The board: shared memory in which each worker publishes its state for the supervisor.

B1  Each shard has one slot, and each slot has one writer: the worker while it lives, the supervisor before
    the worker is started and after it ended. The head, before all slots, has the supervisor as its only
    writer. So no lock is needed, and none remains held when a writer is killed.
B2  Each number is one aligned machine word, stored as a whole: a reader sees the old or the new
    value. Two numbers are two reads, so no reader may draw a conclusion from their combination.
B3  The length of the reason is set to 0 before the text changes and written after it. A reader may see a
    truncated or mixed text during a change; decoding it never fails.
B4  The memory has no name: it is unlinked first, and exists while a process maps it or holds its descriptor,
    which only those children inherit to which it is passed. It is allocated in full before it is mapped, so a
    lack of memory is an error here and not a bus error later.
B5  The memory is as large as the most slots need, so a mapping stays valid when the number of slots changes.
    Only the slots in use are allocated. Their number is in the head; each process sees a change at its next
    use of the board.
B6  The slots of brokers follow those of all shards that the board has room for, so the number of a broker
    does not change when the number of shards does. The number of a slot is the *owner number*, by which
    links, watch ids and hand-overs name the process.

The head has 64 bytes; its words are the version of the placement (`shared/ipc/shared_placement.py`), the
number of shards, the number of shards of the rule that a reshard introduces, the number of brokers, the owner
number of the first one, and the version of the keys. A slot, 12288 bytes, numbers in
native byte order (both sides run on one machine)::

    0     8       16            24       32        40       512          2816    3072     3080  3328   4096
    +-----+-------+-------------+--------+---------+--------+------------+-------+--------+-----+------+----+
    | pid | state | replay_done | _total | beat_ms | `Slot` | histograms | store | length | why | node | by |
    +-----+-------+-------------+--------+---------+--------+------------+-------+--------+-----+------+----+

`store` has the numbers of the object store and of moves of topics, `node` those of exports and the catalog.
A histogram has 256 bytes; `why`, the reason, has at most 200; `by` has one number for each place of a key
(`shared/contract/api_keys.py`).

A board of zeroes means that every worker has ended. The supervisor and the workers are always of one release,
so a new field takes the next free word and needs no version.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

import posix_ipc

from shared.contract.api_keys import KEY_PLACES
from shared.runtime.histogram import WORDS as HISTOGRAM_WORDS

HEAD_BYTES: Final = 64
PLACEMENT_VERSION: Final = 0
"""The word of the head that has the version of the placement."""
SLOT_COUNT: Final = 1
"""The word of the head that has the number of slots of shards in use."""
NEXT_RULE: Final = 2
"""The word of the head that has the number of shards of the next rule while topics are surveyed, else 0."""
BROKER_COUNT: Final = 3
"""The word of the head that has the number of brokers, which does not change."""
FIRST_BROKER: Final = 4
"""The word of the head that has the owner number of the first broker."""
KEYS_VERSION: Final = 5
"""The word of the head that counts the changes of the keys, which a worker compares before it serves."""
SLOTS_MAX: Final = 256
"""The shards that a board has room for, unless it starts with more."""
_BY_KEY_AT_WORD: Final = 512
SLOT_BYTES: Final = 8 * (_BY_KEY_AT_WORD + KEY_PLACES)
REASON_BYTES_MAX: Final = 200
_WORD_BYTES: Final = 8
_SLOT_WORDS: Final = SLOT_BYTES // _WORD_BYTES
_HISTOGRAMS_AT_WORD: Final = 64
_STORE_AT_WORD: Final = 352
_REASON_LENGTH_WORD: Final = 384
_NODE_AT_WORD: Final = 416
_REASON_AT: Final = (_REASON_LENGTH_WORD + 1) * _WORD_BYTES

# The problem with /dev/shm by errno, and the fix.
_SHARED_MEMORY_ERRORS: Final = {
    errno.ENOENT: ("is missing", "mount a tmpfs (docker: not --ipc=none)"),
    errno.EROFS: ("is read-only", "mount it writable"),
    errno.ENOSPC: ("is full", "make it larger (docker: --shm-size=64m)"),
    errno.EFBIG: ("is limited", "raise the limit of file sizes (ulimit -f)"),
    errno.ENOMEM: ("has no memory left", "free some memory"),
    errno.EACCES: ("is not writable for this user", "give it mode 1777"),
}


class WorkerState(IntEnum):
    GONE = 0
    STARTING = 1
    REPLAYING = 2
    READY = 3
    DRAINING = 4
    REFUSED = 5
    """The worker refuses to serve the data on its disk, and a restart cannot change that."""
    FAILED = 6
    """A write or a sync failed. The worker exits, and recovery determines what was saved."""


# Looking up the member of a number in the enum is several times slower.
_STATES: Final = tuple(WorkerState)


class _Word:
    """A descriptor for one number of a slot."""

    def __init__(self, index: int) -> None:
        assert (
            0 <= index < _HISTOGRAMS_AT_WORD
            or _STORE_AT_WORD <= index < _REASON_LENGTH_WORD
            or _NODE_AT_WORD <= index < _BY_KEY_AT_WORD
        )
        self._index = index

    def __get__(self, slot: Slot, owner: type[Slot]) -> int:
        return slot.words[self._index]

    def __set__(self, slot: Slot, value: int) -> None:
        slot.words[self._index] = value


class _Histogram:
    """A descriptor for the words of a `shared.runtime.histogram.Histogram` (B2)."""

    def __init__(self, number: int) -> None:
        self._first = _HISTOGRAMS_AT_WORD + number * HISTOGRAM_WORDS
        self._end = self._first + HISTOGRAM_WORDS
        assert self._end <= _STORE_AT_WORD

    def __get__(self, slot: Slot, owner: type[Slot]) -> list[int]:
        return slot.words[self._first : self._end].tolist()

    def __set__(self, slot: Slot, values: Sequence[int]) -> None:
        assert len(values) == HISTOGRAM_WORDS
        words = slot.words
        # One by one: a slice assignment may copy byte by byte.
        for index, value in enumerate(values, self._first):
            words[index] = value


class Slot:
    """The numbers of one worker. Each `_total` only grows, and restarts at 0 with the worker."""

    __slots__ = ("_bytes", "in_flight_by_key", "words")

    pid = _Word(0)
    # Word 1 is the state.
    replay_done = _Word(2)
    """Log positions that recovery has read, of `replay_total`."""
    replay_total = _Word(3)
    beat_ms = _Word(4)
    """Monotonic time of the last heartbeat; one clock for all processes of a machine."""
    topics = _Word(5)
    records_live = _Word(6)
    bytes_live = _Word(7)
    connections = _Word(8)
    appends_total = _Word(9)
    records_total = _Word(10)
    reads_total = _Word(11)
    forwarded_total = _Word(12)
    misplaced_total = _Word(13)
    """Connections closed to be placed anew."""
    frames_total = _Word(14)
    batches_total = _Word(15)
    syncs_total = _Word(16)
    sync_us_total = _Word(17)
    bytes_written_total = _Word(18)
    throttled_total = _Word(19)
    unsynced_bytes = _Word(20)
    waiting_writes = _Word(21)
    """Writes that wait for a sync."""
    waiting_writes_max = _Word(22)
    """The largest number of waiting writes seen at a heartbeat."""
    log_files = _Word(23)
    rotations_total = _Word(24)
    is_rejecting_writes = _Word(25)
    """1 while writes are rejected because the disk is full or has failed."""
    loop_late_us = _Word(26)
    """Delay of the last heartbeat: an estimate of how long a request waits for the event loop."""
    loop_late_us_max = _Word(27)
    receiver_pauses_total = _Word(28)
    """Number of times the worker stopped accepting connections because descriptors ran short."""
    idempotency_keys = _Word(29)
    evicted_total = _Word(31)
    tombstones_total = _Word(32)
    checkpoints_total = _Word(33)
    checkpoint_has_failed = _Word(34)
    """1 if the last checkpoint failed. The log then keeps the records that it would have moved."""
    damaged_segments = _Word(35)
    """Damaged segments found since the worker started."""
    ready_count = _Word(52)
    """Changed topics that wait for delivery, without those that a pause holds back."""
    held_count = _Word(53)
    pressure_millionths = _Word(54)
    """Pressure, from 0 to one million, and its three parts."""
    pressure_depth_millionths = _Word(55)
    pressure_delay_millionths = _Word(56)
    pressure_busy_millionths = _Word(57)
    refused_under_pressure_total = _Word(58)
    topics_ephemeral = _Word(44)
    """Counts of `topics` by durability class, as the next three."""
    topics_memory = _Word(45)
    topics_disk = _Word(46)
    topics_fsync = _Word(47)
    topic_grants_total = _Word(30)
    """Topic creations that the supervisor permitted; stored after `topics`."""
    watch_sessions = _Word(36)
    watch_session_grants_total = _Word(37)
    """Session creations that the supervisor permitted; stored after `watch_sessions`."""
    sse_connections = _Word(38)
    lagging_streams = _Word(51)
    """Open streams whose clients have not read for a while."""

    queue_topics = _Word(39)
    leases_in_flight = _Word(40)
    """Leases of all queues. An expired lease counts until the queue is next examined."""
    waiting_claims = _Word(41)
    """Claims that wait for a job."""
    topic_streams = _Word(42)
    """Open streams of topics without a session."""
    topic_searches = _Word(43)
    """Streams and WebSockets of the process that wait for topics which do not exist yet."""
    uploads_total = _Word(48)
    """Uploads of lines of JSON that wrote a batch, and what they wrote, as the next two."""
    upload_lines_total = _Word(49)
    upload_records_total = _Word(50)

    routes = _Word(59)
    """Routes into topics of the shard."""

    accepted_total = _Word(62)
    """Counters of an acceptor, as the next."""
    refused_total = _Word(63)
    handed_over_total = _Word(61)
    channels = _Word(60)
    """The workers to which an acceptor has a channel."""

    is_store_away = _Word(352)
    """1 while exports pause because the object store is not usable."""
    exported_segments = _Word(353)
    """Segments that have objects in the store, and the bytes of their records, as of the last minute."""
    exported_bytes = _Word(354)
    objects_to_delete = _Word(355)
    """Segments whose objects are still to be deleted."""
    store_creates_total = _Word(356)
    """Requests to the object store by kind, as the next five, and failed ones among them."""
    store_reads_total = _Word(357)
    store_infos_total = _Word(358)
    store_lists_total = _Word(359)
    store_deletes_total = _Word(360)
    store_failures_total = _Word(361)
    store_bytes_read_total = _Word(362)
    store_bytes_written_total = _Word(363)
    store_cache_hits_total = _Word(364)
    store_cache_misses_total = _Word(365)
    store_cache_bytes = _Word(366)

    topics_moved_total = _Word(370)
    """Topics that were moved to another shard, and attempts that failed."""
    topic_moves_failed_total = _Word(371)
    move_pause_us = _Word(372)
    """The pause of writes in the last move."""
    webhook_requests_total = _Word(380)
    webhook_failures_total = _Word(381)
    webhook_dead_batches_total = _Word(382)
    webhooks_open = _Word(383)
    is_export_away = _Word(416)
    """1 while nothing is exported because the store or the catalog does not answer."""
    export_waiting_segments = _Word(417)
    """Sealed segments that are not exported, as of the last round, and their bytes."""
    export_waiting_bytes = _Word(418)
    export_oldest_seconds = _Word(419)
    export_segments_total = _Word(420)
    """Segments that were exported, and their bytes."""
    export_bytes_total = _Word(421)
    export_failures_total = _Word(422)
    export_failed_ms = _Word(423)
    """The time of the last failed round; 0 when there was none."""
    has_catalog = _Word(424)
    catalog_away_seconds = _Word(425)
    """The seconds since which the catalog does not answer; at least 1 then."""
    catalog_requests_total = _Word(426)
    catalog_failures_total = _Word(427)
    catalog_waiting = _Word(428)
    """Topics whose rows have to be created, changed or removed."""
    topics_near_ceiling = _Word(429)
    """Topics that have used most of the seqs that the catalog granted."""
    topics_departed = _Word(430)
    """Topics that this node must not serve."""
    merged_segments_total = _Word(431)
    """Small segments that were merged into others."""
    scheduled_queues = _Word(432)
    """Queues with schedules, and the jobs that schedules added."""
    scheduled_jobs_total = _Word(433)

    schema_refused_total = _Word(434)
    """Writes refused because a record broke its topic's schema, and such records that `warn` accepted."""
    schema_accepted_total = _Word(435)

    broker_records_in_total = _Word(440)
    """Records and bytes that a broker took for shared topics and committed, as the next."""
    broker_bytes_in_total = _Word(441)
    broker_records_out_total = _Word(442)
    broker_bytes_out_total = _Word(443)
    broker_refused_total = _Word(444)
    """Groups of records that were refused, for one topic each."""
    broker_blobs_total = _Word(445)
    broker_blob_bytes_total = _Word(446)
    broker_pending_bytes = _Word(447)
    """Bytes of records that wait for store and catalog, and the age of the oldest of them."""
    broker_pending_ms = _Word(448)
    broker_tail_hits_total = _Word(449)
    """Reads of a topic that the tail cache answered, and those that it did not."""
    broker_tail_misses_total = _Word(450)
    broker_waiting_topics = _Word(451)

    append_us = _Histogram(0)
    read_us = _Histogram(1)
    waited_read_us = _Histogram(2)
    other_us = _Histogram(3)
    sync_us = _Histogram(4)
    batch_frames = _Histogram(5)
    waited_claim_us = _Histogram(6)
    scheduler_us = _Histogram(8)

    def __init__(self, memory: memoryview) -> None:
        assert memory.nbytes == SLOT_BYTES
        self._bytes = memory
        # `struct.pack_into` is unsuitable: it stores byte by byte.
        self.words = memory.cast("Q")
        self.in_flight_by_key = self.words[_BY_KEY_AT_WORD:]
        """Requests in flight, by the place of their key."""

    @property
    def state(self) -> WorkerState:
        return _STATES[self.words[1]]

    @state.setter
    def state(self, state: WorkerState) -> None:
        self.words[1] = state

    @property
    def reason(self) -> str:
        """Return the reason of the state, for a person; empty without one."""
        length = min(self.words[_REASON_LENGTH_WORD], REASON_BYTES_MAX)
        return bytes(self._bytes[_REASON_AT : _REASON_AT + length]).decode(errors="replace")

    @reason.setter
    def reason(self, text: str) -> None:
        # A character that the length limit cuts in two is dropped.
        encoded = text.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore").encode()
        self.words[_REASON_LENGTH_WORD] = 0
        self._bytes[_REASON_AT : _REASON_AT + len(encoded)] = encoded
        self.words[_REASON_LENGTH_WORD] = len(encoded)

    def clear(self) -> None:
        """Set every word to 0, which means that the worker has ended. Only for the writer (B1)."""
        for index in range(_SLOT_WORDS):
            self.words[index] = 0

    def release(self) -> None:
        self.in_flight_by_key.release()
        self.words.release()
        self._bytes.release()


class Board:
    """The memory with all slots. Its descriptor is not inheritable: pass it with `pass_fds`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, 0)
        self._view = memoryview(self._memory)
        self.head = self._view[:HEAD_BYTES].cast("Q")
        self.broker_count = self.head[BROKER_COUNT]
        self.slots_max = self.head[FIRST_BROKER]
        """The largest possible number of shards."""
        self._slots: dict[int, Slot] = {}
        """The slots that this process has used; possibly more than are in use now."""
        self._in_use: list[Slot] = []

    @classmethod
    def create(cls, slot_count: int, broker_count: int = 0) -> Board:
        """Create a board of zeroes; OSError names the problem with shared memory, and the fix."""
        assert slot_count + broker_count >= 1
        slots_max = max(slot_count, SLOTS_MAX)
        size = _board_bytes(slot_count + broker_count)
        try:
            memory = posix_ipc.SharedMemory(
                None, posix_ipc.O_CREX, size=_board_bytes(slots_max + broker_count), mode=0o600
            )
            memory.unlink()
            try:
                os.posix_fallocate(memory.fd, 0, _board_bytes(slot_count))
                if broker_count:
                    os.posix_fallocate(memory.fd, _board_bytes(slots_max), broker_count * SLOT_BYTES)
                # Before the board reads them: they say where the slots of brokers begin.
                with mmap.mmap(memory.fd, HEAD_BYTES) as head, memoryview(head).cast("Q") as words:
                    words[BROKER_COUNT], words[FIRST_BROKER] = broker_count, slots_max
                board = cls(memory.fd)
                board.head[SLOT_COUNT] = slot_count
                return board
            except BaseException:
                os.close(memory.fd)
                raise
        except posix_ipc.ExistentialError:
            number = errno.ENOENT
        except posix_ipc.PermissionsError:
            number = errno.EACCES
        except ValueError:  # larger than the file size limit of this process
            number = errno.EFBIG
        except OSError as error:
            number = error.errno or errno.EIO
        raise OSError(number, shared_memory_sentence(number, size))

    @classmethod
    def attach(cls, fd: int) -> Board:
        return cls(fd)

    def allocate(self, slot_count: int) -> None:
        """Allocate the memory of so many slots, which are not in use yet; OSError as in `create`."""
        assert slot_count <= self.slots_max
        size = _board_bytes(slot_count)
        try:
            os.posix_fallocate(self.fd, 0, size)
        except OSError as error:
            number = error.errno or errno.EIO
            raise OSError(number, shared_memory_sentence(number, size)) from None

    def set_slot_count(self, slot_count: int) -> None:
        """Change the number of slots in use, which are allocated. Only for the supervisor (B1)."""
        assert 0 <= slot_count <= self.slots_max
        self.head[SLOT_COUNT] = slot_count

    def slot(self, index: int) -> Slot:
        """Return the slot of an owner number, also one that is not in use."""
        slot = self._slots.get(index)
        if slot is None:
            assert 0 <= index < self.slots_max + self.broker_count
            start = _board_bytes(index)
            slot = self._slots[index] = Slot(self._view[start : start + SLOT_BYTES])
        return slot

    def broker_number(self, broker: int) -> int:
        """Return the owner number of a broker, which begin at 0."""
        assert 0 <= broker < self.broker_count
        return self.slots_max + broker

    def is_broker(self, owner: int) -> bool:
        """Return whether the owner number is that of a broker."""
        return owner >= self.slots_max

    @property
    def broker_numbers(self) -> range:
        """Return the owner numbers of all brokers."""
        return range(self.slots_max, self.slots_max + self.broker_count)

    @property
    def brokers(self) -> list[Slot]:
        return [self.slot(number) for number in self.broker_numbers]

    def owners(self) -> Iterator[tuple[int, Slot]]:
        """Return the owner numbers and slots of all shards, then of all brokers."""
        yield from enumerate(self)
        for number in self.broker_numbers:
            yield number, self.slot(number)

    def __len__(self) -> int:
        """Return the number of shards."""
        return self.head[SLOT_COUNT]

    def __iter__(self) -> Iterator[Slot]:
        """Return the slots of the shards."""
        count = self.head[SLOT_COUNT]
        if len(self._in_use) != count:
            self._in_use = [self.slot(index) for index in range(count)]
        return iter(self._in_use)

    def close(self) -> None:
        """Unmap the memory. The descriptor belongs to the code that opened it."""
        for slot in self._slots.values():
            slot.release()
        self.head.release()
        self._view.release()
        self._memory.close()


def _board_bytes(slot_count: int) -> int:
    return HEAD_BYTES + slot_count * SLOT_BYTES


def shared_memory_sentence(number: int, size: int) -> str:
    """Return the message for a failure to allocate shared memory.

    >>> shared_memory_sentence(errno.EROFS, 49152)
    'shared memory: /dev/shm is read-only; the server needs 48 KiB there: mount it writable'
    """
    what, fix = _SHARED_MEMORY_ERRORS.get(number, (f"failed: {os.strerror(number)}", "see df /dev/shm"))
    return f"shared memory: /dev/shm {what}; the server needs {size >> 10} KiB there: {fix}"
