"""The heads of topics as this broker knows them, and the readers that wait for records after them.

H1  A known head never falls, and never exceeds the committed one. It may be outdated: another broker may have
    committed since `checked_at`.
H2  A commit of this broker wakes its readers at once. Those of others are reported by notices of the catalog
    (C10), and a notice that is lost costs no more than the time of a poll: there is one for all topics that
    have waiting readers, every `poll_seconds`, of up to TOPICS_AT_ONCE topics a request. Without waiting
    readers there is no poll, and after LISTEN_SECONDS no listener.
H3  A waiting reader asks neither the catalog nor the store; what it costs is its share of the poll.
H4  Readers that begin at a tail share requests too: one is on its way at a time, with the topics of all that
    wait. What it says is at least as new as the start of each of them, so one that comes meanwhile is for the
    next request.
H5  A head that fell, or a topic that is missing or was created again, wakes the readers too: they look it up.
H6  A notice with the known incarnation advances its head without a request. Any other is a reason to ask for
    the head: one without an incarnation may be of an earlier topic of the name, whose head was higher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.broker.steps import Pool, Resume, Wait, call_reply
from topicsd.catalog.shared.shared_catalog import TOPICS_AT_ONCE, HeadListener, HeadNotice, SharedCatalog

logger = logging.getLogger("topicsd.broker")

TOPICS_MAX: Final = 200_000
"""Topics whose heads are kept without a waiting reader."""
LISTEN_SECONDS: Final = 10.0
"""How long a broker listens to commits after its last reader has waited."""
NEVER: Final = float("-inf")


class TailPosition(NamedTuple):
    """What a waiting reader wants: a record of `topic` with at least this seq."""

    topic: str
    seq: int


class HeadsWait:
    """One wait at the tails of its topics; it ends once."""

    __slots__ = ("has_ended", "positions", "resume", "timer")

    def __init__(self, positions: Sequence[TailPosition], resume: Resume) -> None:
        self.positions = positions
        self.resume: Resume | None = resume
        """None once the wait is cancelled."""
        self.timer: Any = None
        self.has_ended = False


class _Head:
    __slots__ = ("checked_at", "grown_at", "incarnation", "seq", "waiters")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.seq = 0
        self.checked_at = NEVER
        self.grown_at = NEVER
        self.waiters: dict[HeadsWait, int] = {}
        """The seqs that they wait for."""


class Heads:
    def __init__(
        self, clock: Clock, loop: Loop, pool: Pool, catalog: SharedCatalog, poll_seconds: float
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._pool = pool
        self._catalog = catalog
        self._poll_seconds = poll_seconds
        self._heads: dict[str, _Head] = {}
        self._waited_for: dict[str, None] = {}
        """The topics with waiting readers."""
        self._is_polling = False
        self._timer: Any = None
        self._unchecked: dict[tuple[str, int], list[Resume]] = {}
        """By topic and incarnation: the readers that the next check answers."""
        self._is_checking = False
        self._listener: HeadListener | None = None
        self._followed: set[str] = set()
        """What the listener reports: the topics that had waiting readers since the poll before the last."""
        self._new_followed: set[str] = set()
        """Those that had one since the last poll."""
        self._is_following = False
        self._waited_at = NEVER
        self._is_closed = False
        self.polls = 0
        self.notices = 0

    # -- what is known

    def head(self, name: str, incarnation: int) -> int:
        one = self._heads.get(name)
        return one.seq if one is not None and one.incarnation == incarnation else 0

    def is_current(self, name: str, incarnation: int) -> bool:
        """Return whether the head was compared with the catalog within the time of a poll."""
        one = self._heads.get(name)
        if one is None or one.incarnation != incarnation:
            return False
        return self._clock.monotonic() - one.checked_at <= self._poll_seconds

    def advance(self, name: str, incarnation: int, seq: int, checked_at: float | None = None) -> None:
        """Learn that records up to `seq` are committed, and wake the readers that wait for them.

        `checked_at` is before the request of the catalog from which this is known; None for a commit, after
        which an earlier seq of another broker may be unknown here, but none that is missing.
        """
        one = self._heads.get(name)
        if one is None or one.incarnation != incarnation:
            waiters = {} if one is None else one.waiters
            one = self._heads[name] = _Head(incarnation)
            for waiter in list(waiters):
                self._end(waiter, True)
            self._forget_some()
        if checked_at is not None:
            one.checked_at = max(one.checked_at, checked_at)
        if seq > one.seq:
            one.seq = seq
            one.grown_at = self._clock.monotonic()
            for waiter in [waiter for waiter, seq_needed in one.waiters.items() if seq_needed <= seq]:
                self._end(waiter, True)

    def _forget_some(self) -> None:
        if len(self._heads) > TOPICS_MAX:
            for name in [name for name, one in self._heads.items() if not one.waiters][: TOPICS_MAX // 10]:
                del self._heads[name]

    def forget(self, name: str) -> None:
        """Forget a topic that was deleted; its readers look it up."""
        one = self._heads.pop(name, None)
        for waiter in list(one.waiters) if one is not None else []:
            self._end(waiter, True)

    # -- waits

    def wait(self, positions: Sequence[TailPosition], seconds: float) -> Wait:
        """Wait until one of the positions may have a record; the result is False when the time has passed."""
        return lambda resume: self.begin_wait(positions, seconds, resume)

    def begin_wait(self, positions: Sequence[TailPosition], seconds: float, resume: Resume) -> HeadsWait:
        """Begin a wait as `wait` describes it, which can be cancelled."""
        waiter = HeadsWait(positions, resume)
        for name, seq in positions:
            one = self._heads.get(name)
            if one is None or seq <= one.seq:
                # It was forgotten, or it grew since the reader has read.
                self._end(waiter, True)
                return waiter
            one.waiters[waiter] = seq
            self._waited_for.setdefault(name)
            self._follow(name)
        waiter.timer = self._loop.call_later(seconds, self._end, waiter, False)
        self._poll_later()
        return waiter

    def cancel(self, waiter: HeadsWait) -> None:
        """End a wait whose result is not needed any more."""
        waiter.resume = None
        self._end(waiter, False)

    def _end(self, waiter: HeadsWait, has_grown: bool) -> None:
        if waiter.has_ended:
            return
        waiter.has_ended = True
        for name, _ in waiter.positions:
            one = self._heads.get(name)
            if one is not None:
                one.waiters.pop(waiter, None)
            if one is None or not one.waiters:
                self._waited_for.pop(name, None)
        if waiter.timer is not None:
            waiter.timer.cancel()
        # In a turn of its own: a commit that wakes a thousand readers is acknowledged first.
        self._loop.call_soon(self._resume, waiter, has_grown)

    def _resume(self, waiter: HeadsWait, has_grown: bool) -> None:
        if waiter.resume is not None:
            call_reply(waiter.resume, has_grown)

    @property
    def waiting(self) -> int:
        """The number of topics with waiting readers."""
        return len(self._waited_for)

    # -- notices

    def _follow(self, name: str) -> None:
        self._new_followed.add(name)
        if name not in self._followed and not self._is_following:
            self._is_following = True
            # In a turn of its own: readers that begin together are one change.
            self._loop.call_soon(self._follow_new)

    def _follow_new(self) -> None:
        self._is_following = False
        if self._is_closed:
            return
        if self._listener is None:
            self._listener = self._catalog.listen(self._on_reported)
        self._followed |= self._new_followed
        self._listener.follow(self._followed)

    def _unfollow(self) -> None:
        """Follow no longer what had no reader since the poll before the last."""
        now = self._clock.monotonic()
        followed = self._new_followed.union(self._waited_for)
        self._new_followed = set(self._waited_for)
        if followed:
            self._waited_at = now
        if self._listener is None or self._is_following:
            return
        if now - self._waited_at > LISTEN_SECONDS:
            self.close_listener()
        elif followed != self._followed:
            self._followed = followed
            self._listener.follow(followed)

    def _on_reported(self, notices: Sequence[HeadNotice]) -> None:
        """Take notices on any thread."""
        # The loop may be closed in between, when the process ends.
        with suppress(RuntimeError):
            if not self._is_closed:
                self._loop.call_soon_threadsafe(self.take_notices, notices)

    def take_notices(self, notices: Sequence[HeadNotice]) -> None:
        """Learn what the catalog has reported (H6)."""
        self.notices += len(notices)
        for name, incarnation, seq in notices:
            one = self._heads.get(name)
            if one is None or self._is_closed:
                continue
            if seq is not None and incarnation == one.incarnation:
                self.advance(name, incarnation, seq)
            elif one.waiters and (incarnation is not None or seq is None or seq > one.seq):
                self._check((name, one.incarnation), _ignore)

    def close_listener(self) -> None:
        listener, self._listener = self._listener, None
        self._followed = set()
        if listener is not None:
            listener.close()

    def close(self) -> None:
        """End with the process: notices that are still on their way are ignored."""
        self._is_closed = True
        self.close_listener()

    # -- the poll

    def _poll_later(self) -> None:
        has_reason = self._waited_for or self._listener is not None
        if self._timer is None and not self._is_polling and has_reason:
            self._timer = self._loop.call_later(self._poll_seconds, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self._is_polling = True
        self._unfollow()
        self._poll_some(list(self._waited_for))

    def _poll_some(self, names: list[str], outcome: OSError | None = None) -> None:
        """Ask for the heads of `names`, one request after the other."""
        if outcome is not None:
            logger.warning("heads: poll failed, records of other nodes are late: %s", outcome)
        now, later = names[:TOPICS_AT_ONCE], names[TOPICS_AT_ONCE:]
        if not now or outcome is not None:
            self._is_polling = False
            self._poll_later()
            return
        self.polls += 1
        incarnations = [self._heads[name].incarnation if name in self._heads else 0 for name in now]
        self._ask(now, incarnations, partial(self._poll_some, later))

    # -- checks

    def check(self, name: str, incarnation: int) -> Wait:
        """Wait for the head of this topic from the catalog; the result is None, or the OSError."""
        return partial(self._check, (name, incarnation))

    def _check(self, topic: tuple[str, int], resume: Resume) -> None:
        self._unchecked.setdefault(topic, []).append(resume)
        if not self._is_checking:
            self._is_checking = True
            # In a turn of its own: a reader of several topics has them in one request.
            self._loop.call_soon(self._check_some)

    def _check_some(self) -> None:
        if not self._unchecked:
            self._is_checking = False
            return
        topics = list(islice(self._unchecked, TOPICS_AT_ONCE))
        waiting = [self._unchecked.pop(topic) for topic in topics]
        names, incarnations = [name for name, _ in topics], [incarnation for _, incarnation in topics]
        self._ask(names, incarnations, partial(self._on_checked, waiting))

    def _on_checked(self, waiting: list[list[Resume]], outcome: OSError | None) -> None:
        for resumes in waiting:
            for resume in resumes:
                call_reply(resume, outcome)
        self._check_some()

    def _ask(
        self, names: Sequence[str], incarnations: Sequence[int], reply: Callable[[OSError | None], object]
    ) -> None:
        asked_at = self._clock.monotonic()

        def end(outcome: list[int] | OSError) -> None:
            if isinstance(outcome, OSError):
                reply(outcome)
                return
            for name, incarnation, seq in zip(names, incarnations, outcome, strict=True):
                one = self._heads.get(name)
                # A commit that was answered since the question explains a higher known head.
                has_fallen = one is not None and seq < one.seq and one.grown_at < asked_at
                if seq < 0 or has_fallen:
                    self.forget(name)
                else:
                    self.advance(name, incarnation, seq, asked_at)
            reply(None)

        self._pool.call(partial(self._catalog.heads, [*zip(names, incarnations, strict=True)]))(end)


def _ignore(outcome: OSError | None) -> None:
    """Take the outcome of a check that no reader waits for: the poll follows."""
