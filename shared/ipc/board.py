"""The board: a small shared memory in which each worker says how it is, and the front process reads it.

B1  One slot a shard, one writer a slot: the worker while it lives, the front process before it is spawned and
    after it is gone. So nothing is locked, and nothing stays locked when a writer is killed.
B2  Each number is a machine word of its own, aligned and stored in one piece: a reader sees the old one or
    the new one. Two numbers are two readings, so no reader may conclude from one to the other.
B3  The reason has its length written last, and 0 before it is changed; what a reader finds in the middle of a
    change is short or mixed, and never fails to decode.
B4  The memory has no name: it is unlinked first, and exists while a process maps it or holds its descriptor,
    which goes only to children to which it is passed. It is allocated in full before it is mapped, so that a
    lack of memory is an error here and no bus error later.

A slot, 12288 bytes, numbers in the order of the machine (both sides run on it)::

    0      8       16            24             32       40           512          3072     3080   4096
    +------+-------+-------------+--------------+---------+-----------+------------+--------+------+---------+
    | pid  | state | replay_done | replay_total | beat_ms | as `Slot` | histograms | length | why  | by key  |
    +------+-------+-------------+--------------+---------+-----------+------------+--------+------+---------+

A histogram has 256 bytes, `why`, the reason, at most 200, and there is a number for each place of a key
(`shared/contract/api_keys.py`).

A board of all zeroes says that every worker is gone. Front process and workers are always of one release, so
a new field takes the next free word and needs no version.
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

_BY_KEY_AT_WORD: Final = 512
SLOT_BYTES: Final = 8 * (_BY_KEY_AT_WORD + KEY_PLACES)
REASON_BYTES_MAX: Final = 200
_WORD_BYTES: Final = 8
_SLOT_WORDS: Final = SLOT_BYTES // _WORD_BYTES
_HISTOGRAMS_AT_WORD: Final = 64
_REASON_LENGTH_WORD: Final = 384
_REASON_AT: Final = (_REASON_LENGTH_WORD + 1) * _WORD_BYTES

# What is wrong with /dev/shm, and the fix.
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
    """It will not serve what it found on the disk, and no restart changes that."""
    FAILED = 6
    """A write or a sync failed; it ends, and recovery decides what there is."""


# To ask the enum for the member of a number costs several times as much.
_STATES: Final = tuple(WorkerState)


class _Word:
    """One number of a slot."""

    def __init__(self, index: int) -> None:
        assert 0 <= index < _HISTOGRAMS_AT_WORD
        self._index = index

    def __get__(self, slot: Slot, owner: type[Slot]) -> int:
        return slot.words[self._index]

    def __set__(self, slot: Slot, value: int) -> None:
        slot.words[self._index] = value


class _Histogram:
    """The words of a `shared.runtime.histogram.Histogram`: each is a reading of its own (B2)."""

    def __init__(self, number: int) -> None:
        self._first = _HISTOGRAMS_AT_WORD + number * HISTOGRAM_WORDS
        self._end = self._first + HISTOGRAM_WORDS
        assert self._end <= _REASON_LENGTH_WORD

    def __get__(self, slot: Slot, owner: type[Slot]) -> list[int]:
        return slot.words[self._first : self._end].tolist()

    def __set__(self, slot: Slot, values: Sequence[int]) -> None:
        assert len(values) == HISTOGRAM_WORDS
        words = slot.words
        # One by one: a copy of memory may be made of bytes.
        for index, value in enumerate(values, self._first):
            words[index] = value


class Slot:
    """What one worker says. `_total` only grows while the worker lives, and begins at 0 with the next."""

    __slots__ = ("_bytes", "in_flight_by_key", "words")

    pid = _Word(0)
    # Word 1 is the state.
    replay_done = _Word(2)
    """Positions of the log that recovery has read, of `replay_total`."""
    replay_total = _Word(3)
    beat_ms = _Word(4)
    """The monotonic clock, which is one for all processes of a machine."""
    topics = _Word(5)
    records_live = _Word(6)
    bytes_live = _Word(7)
    connections = _Word(8)
    appends_total = _Word(9)
    records_total = _Word(10)
    reads_total = _Word(11)
    forwarded_total = _Word(12)
    handed_over_total = _Word(13)
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
    """The most that were seen waiting at a beat."""
    log_files = _Word(23)
    rotations_total = _Word(24)
    takes_no_writes = _Word(25)
    """1 while nothing can be written: the disk is full or has failed."""
    loop_late_us = _Word(26)
    """By how much the last beat came late: what a request may have waited for its turn."""
    loop_late_us_max = _Word(27)
    adoption_pauses_total = _Word(28)
    """How often it stopped taking connections because descriptors ran short."""
    idempotency_keys = _Word(29)
    evicted_total = _Word(31)
    tombstones_total = _Word(32)
    checkpoints_total = _Word(33)
    checkpoint_has_failed = _Word(34)
    """The last one did; the log keeps what it would have moved."""
    damaged_segments = _Word(35)
    """What was found when nobody asked for it."""
    ready_count = _Word(52)
    """What changed and waits for its turn to be delivered; without what a pause holds back."""
    held_count = _Word(53)
    pressure_millionths = _Word(54)
    """From none to all there is, and its three parts."""
    pressure_depth_millionths = _Word(55)
    pressure_delay_millionths = _Word(56)
    pressure_busy_millionths = _Word(57)
    refused_under_pressure_total = _Word(58)
    topics_ephemeral = _Word(44)
    """Of `topics`, as the next: by durability class."""
    topics_memory = _Word(45)
    topics_disk = _Word(46)
    topics_fsync = _Word(47)
    topic_grants_total = _Word(30)
    """Topics that the front process allowed it to make; stored behind `topics`."""
    watch_sessions = _Word(36)
    watch_session_grants_total = _Word(37)
    """Sessions that the front process allowed it to make; stored behind `watch_sessions`."""
    sse_connections = _Word(38)
    lagging_streams = _Word(51)
    """Sessions that a stream is on."""

    queue_topics = _Word(39)
    leases_in_flight = _Word(40)
    """Of all queues; a lease that ran out counts until somebody looks."""

    forwards = _Word(59)
    """Rules by which records are copied into topics of the shard."""

    accepted_total = _Word(62)
    """Of an acceptor, as the next."""
    refused_total = _Word(63)

    append_us = _Histogram(0)
    read_us = _Histogram(1)
    waited_read_us = _Histogram(2)
    other_us = _Histogram(3)
    sync_us = _Histogram(4)
    batch_frames = _Histogram(5)
    scheduler_us = _Histogram(8)

    def __init__(self, memory: memoryview) -> None:
        assert memory.nbytes == SLOT_BYTES
        self._bytes = memory
        # Not `struct.pack_into`, which stores byte by byte.
        self.words = memory.cast("Q")
        self.in_flight_by_key = self.words[_BY_KEY_AT_WORD:]
        """Requests that are in flight, by the place of their key."""

    @property
    def state(self) -> WorkerState:
        return _STATES[self.words[1]]

    @state.setter
    def state(self, state: WorkerState) -> None:
        self.words[1] = state

    @property
    def reason(self) -> str:
        """Why the state is what it is, for a person; empty when there is nothing to say."""
        length = min(self.words[_REASON_LENGTH_WORD], REASON_BYTES_MAX)
        return bytes(self._bytes[_REASON_AT : _REASON_AT + length]).decode(errors="replace")

    @reason.setter
    def reason(self, text: str) -> None:
        # A character that is cut in two at the bound is dropped.
        encoded = text.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore").encode()
        self.words[_REASON_LENGTH_WORD] = 0
        self._bytes[_REASON_AT : _REASON_AT + len(encoded)] = encoded
        self.words[_REASON_LENGTH_WORD] = len(encoded)

    def clear(self) -> None:
        """All zeroes: the worker is gone. Only for who writes the slot now (B1)."""
        for index in range(_SLOT_WORDS):
            self.words[index] = 0

    def release(self) -> None:
        self.in_flight_by_key.release()
        self.words.release()
        self._bytes.release()


class Board:
    """The memory with all slots. The descriptor is not inheritable: it goes to children by `pass_fds`."""

    def __init__(self, fd: int, slot_count: int) -> None:
        assert slot_count >= 1
        self.fd = fd
        self._memory = mmap.mmap(fd, slot_count * SLOT_BYTES)
        view = memoryview(self._memory)
        self._slots = [
            Slot(view[index * SLOT_BYTES : (index + 1) * SLOT_BYTES]) for index in range(slot_count)
        ]
        view.release()

    @classmethod
    def create(cls, slot_count: int) -> Board:
        """Make a board of zeroes; OSError says what is wrong with shared memory, and the fix."""
        size = slot_count * SLOT_BYTES
        try:
            memory = posix_ipc.SharedMemory(None, posix_ipc.O_CREX, size=size, mode=0o600)
            memory.unlink()
            try:
                os.posix_fallocate(memory.fd, 0, size)
                return cls(memory.fd, slot_count)
            except BaseException:
                os.close(memory.fd)
                raise
        except posix_ipc.ExistentialError:
            number = errno.ENOENT
        except posix_ipc.PermissionsError:
            number = errno.EACCES
        except ValueError:  # larger than a file of this process may be
            number = errno.EFBIG
        except OSError as error:
            number = error.errno or errno.EIO
        raise OSError(number, shared_memory_sentence(number, size))

    @classmethod
    def attach(cls, fd: int, slot_count: int) -> Board:
        return cls(fd, slot_count)

    def slot(self, index: int) -> Slot:
        return self._slots[index]

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def close(self) -> None:
        """Unmap. The descriptor belongs to who opened it."""
        for slot in self._slots:
            slot.release()
        self._memory.close()


def shared_memory_sentence(number: int, size: int) -> str:
    """
    >>> shared_memory_sentence(errno.EROFS, 49152)
    'shared memory: /dev/shm is read-only; the server needs 48 KiB there: mount it writable'
    """
    what, fix = _SHARED_MEMORY_ERRORS.get(number, (f"failed: {os.strerror(number)}", "see df /dev/shm"))
    return f"shared memory: /dev/shm {what}; the server needs {size >> 10} KiB there: {fix}"
