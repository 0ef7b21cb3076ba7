"""The home: commits slices of other brokers to the topics that this node is the home of.

A home removes the conflicts of brokers that write to one topic of a key-value catalog: it makes their commits
one after the other. It decides nothing, and two brokers that take themselves for the home are correct.

H1  The verb is that of any commit: append ids, fences, and marks of condemned blobs are checked by it.
H2  A request has a time of this run of the home, from an earlier answer. A commit begins only before that
    time, compared on the thread that makes it, and again between the read of a topic and its change. So a
    home that was stopped makes no late commit, which the catalog might not recognise as a repetition (C2).
H3  A time too far ahead is refused, too: the clock of the home stood still, or that of the sender ran ahead.
H4  Requests with a common topic are committed in the order of their arrival, and so are the blobs of this
    broker.
H5  A home that ends refuses requests, and finishes those that it has taken.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from shared.runtime.clock import Clock
from topicsd.broker.home.messages import HomeAnswer, HomeOutcome, HomeRequest, check, sign
from topicsd.broker.steps import Pool, Steps, run
from topicsd.broker.turns import TopicTurns
from topicsd.catalog.shared.shared_catalog import PartResult, Slice

TAKE_SECONDS: Final = 2.0
"""How long a broker waits for a home, and the farthest time ahead that a request may have."""
AHEAD_SECONDS: Final = 0.5
"""By how much the clocks of two machines may run apart between an answer and the next request."""

HomeCommit = Callable[[str, str, Sequence[Slice], Callable[[], bool]], list[list[PartResult]]]
"""The verb `commit`, which asks its last argument between the read of a topic and its change."""


class HomeTooLate(OSError):
    """A commit was not begun (H2)."""


class Home:
    def __init__(self, clock: Clock, commits: Pool, commit: HomeCommit, secret: bytes) -> None:
        self._clock = clock
        self._commits = commits
        self._commit = commit
        self._secret = secret
        self.run: Final = secrets.token_hex(8)
        """Times of this process are of no use to another one."""
        self._started = clock.monotonic()
        self.turns = TopicTurns()
        self._taken = 0
        self._is_ending = False
        self.taken_count = self.refused_count = 0

    @property
    def in_flight(self) -> int:
        return self._taken

    def time(self) -> float:
        """Return the time of this run."""
        return self._clock.monotonic() - self._started

    def close(self) -> None:
        """Refuse what comes from now on (H5)."""
        self._is_ending = True

    def take(self, body: bytes, reply: Callable[[bytes | None], object]) -> None:
        """Commit what a broker has sent; `reply` gets the answer, or None when the request is not signed."""
        request = check(self._secret, body, HomeRequest)
        if request is None:
            reply(None)
            return

        def answer(outcome: HomeOutcome, results: list[list[PartResult]]) -> None:
            reply(sign(self._secret, HomeAnswer(outcome, self.run, self.time(), results), body))

        if self._is_ending or not self.is_in_time(request):
            self.refused_count += 1
            answer("refused", [])
            return

        def end(outcome: list[list[PartResult]] | OSError) -> None:
            self._taken -= 1
            if not isinstance(outcome, OSError):
                self.taken_count += 1
                answer("committed", outcome)
                return
            # What the catalog refuses may have been done in part.
            is_refused = isinstance(outcome, HomeTooLate)
            self.refused_count += is_refused
            answer("refused" if is_refused else "unknown", [])

        self._taken += 1
        run(self._steps(request), end)

    def is_in_time(self, request: HomeRequest) -> bool:
        """Return whether a commit of the request may begin (H2, H3)."""
        ahead = request.before - self.time()
        return request.run == self.run and 0 < ahead <= TAKE_SECONDS + AHEAD_SECONDS

    def _steps(self, request: HomeRequest) -> Steps[list[list[PartResult]]]:
        turn = self.turns.enter([one.topic for one in request.slices])
        try:
            yield partial(self.turns.wait, turn)
            results: list[list[PartResult]] = yield self._commits.call(partial(self._commit_now, request))
            return results
        finally:
            self.turns.leave(turn)

    def _commit_now(self, request: HomeRequest) -> list[list[PartResult]]:
        """Make the commit, on a thread."""
        is_in_time = partial(self.is_in_time, request)
        if not is_in_time():
            raise HomeTooLate(errno.ETIMEDOUT, "the request is too old")
        return self._commit(request.key, request.encoding, request.slices, is_in_time)
