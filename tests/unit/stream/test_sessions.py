"""Watch sessions at their home shard: idle times, takeovers, memory and restarts."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.log import control_frame
from topicsd.stream.event_stream import TAKEN_OVER
from topicsd.stream.feeds import Feeds
from topicsd.stream.sessions import (
    ENDED_PER_TURN_MAX,
    SESSION_TTL_SECONDS,
    Session,
    Sessions,
)

TTL_MS = SESSION_TTL_SECONDS * 1000


class Stream:
    def __init__(self) -> None:
        self.is_taken_over = False

    def end(self, code: str, message: str) -> None:
        self.is_taken_over = code == TAKEN_OVER


class Home:
    def __init__(self) -> None:
        self.one = OneShard()
        self.begin()

    def begin(self) -> None:
        state = self.one.shard.state
        self.counts: list[tuple[int, int]] = []
        """The numbers of sessions and streams at each change."""
        self.sessions = Sessions(state, Feeds(state, self.one.loop), self._on_change)

    def _on_change(self) -> None:
        self.counts.append((len(self.sessions), self.sessions.stream_count))

    def make(self, number: int = 1, name: str = "orders") -> Session:
        reply = RecordedReply()
        definition = control_frame.SessionFrame(
            number.to_bytes(16), "", [name], [5], [7], limit=256, heartbeat_ms=15_000
        )
        self.sessions.create(definition, reply)
        self.one.settle()
        session = reply.answer
        assert isinstance(session, Session)
        return session

    def has(self, number: int = 1) -> bool:
        return self.sessions.find(number.to_bytes(16)) is not None


@pytest.fixture
def home() -> Home:
    return Home()


def test_an_unopened_session_ends_after_its_idle_time(home: Home) -> None:
    home.make()
    home.one.pass_time(TTL_MS - 1)
    assert home.has()
    home.one.pass_time(1)
    assert not home.has()
    home.one.kill()
    assert home.one.shard.state.watch_sessions == {}


def test_idle_time_starts_when_the_stream_ends(home: Home) -> None:
    session, stream = home.make(), Stream()
    home.one.pass_time(TTL_MS - 1)
    home.sessions.attach(session, stream)
    home.one.pass_time(5 * TTL_MS)
    assert home.has()
    home.sessions.detach(session, stream)
    home.one.pass_time(TTL_MS - 1)
    assert home.has()
    home.one.pass_time(1)
    assert not home.has()


def test_each_session_ends_after_its_own_idle_time(home: Home) -> None:
    for number in range(6):
        home.make(number)
        home.one.pass_time(TTL_MS / 10)
    stream, first = Stream(), home.sessions.find((0).to_bytes(16))
    assert first is not None
    home.sessions.attach(first, stream)
    home.sessions.detach(first, stream)
    for gone in range(1, 6):
        home.one.pass_time(TTL_MS / 2 if gone == 1 else TTL_MS / 10)
        assert [home.has(number) for number in range(1, 6)] == [number > gone for number in range(1, 6)]
        assert home.has(0)
    home.one.pass_time(TTL_MS / 10)
    assert len(home.sessions) == 0


def test_a_bounded_number_of_idle_sessions_ends_in_each_turn(home: Home) -> None:
    for number in range(ENDED_PER_TURN_MAX * 2 + 1):
        home.make(number)
    home.one.clock.advance(TTL_MS * 2)
    left = [len(home.sessions)]
    while left[-1]:
        home.one.loop.run_turn()
        if len(home.sessions) != left[-1]:
            left.append(len(home.sessions))
    assert left == [201, 101, 1, 0]
    home.one.pass_time(100)
    assert home.one.shard.state.watch_sessions == {}


def test_a_second_stream_takes_over_and_the_end_of_the_first_is_ignored(home: Home) -> None:
    session, first, second = home.make(), Stream(), Stream()
    home.sessions.attach(session, first)
    assert (home.sessions.stream_count, first.is_taken_over) == (1, False)
    home.sessions.attach(session, second)
    assert (home.sessions.stream_count, first.is_taken_over, second.is_taken_over) == (1, True, False)
    home.sessions.detach(session, first)
    assert (home.sessions.stream_count, session.stream) == (1, second)
    home.one.pass_time(2 * TTL_MS)
    assert home.has()
    home.sessions.detach(session, second)
    assert home.sessions.stream_count == 0


def test_a_new_session_has_memory_and_a_restored_one_has_none(home: Home) -> None:
    session = home.make()
    assert (session.has_memory, session.seqs, session.epochs) == (True, [5], [7])
    session.seqs[0], session.epochs[0] = 9, 8
    assert (session.definition.from_seqs, session.first_epochs) == ([5], [7])
    home.one.kill()
    home.begin()
    restored = home.sessions.find((1).to_bytes(16))
    assert restored is not None
    assert (restored.has_memory, restored.seqs, restored.epochs) == (False, [5], [7])
    home.one.pass_time(TTL_MS)
    assert not home.has()


def test_changes_of_the_counts_are_reported(home: Home) -> None:
    session, stream = home.make(), Stream()
    home.sessions.attach(session, stream)
    home.sessions.attach(session, Stream())
    home.sessions.detach(session, stream)
    assert session.stream is not None
    home.sessions.detach(session, session.stream)
    home.one.pass_time(TTL_MS)
    assert home.counts == [(1, 0), (1, 1), (1, 0), (0, 0)]


def test_a_session_needs_little_memory(home: Home) -> None:
    count = 2000
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            home.make(number, f"topic-{number % 100}")
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Includes the frames that the log keeps in memory.
    assert size / count < 2500, size / count
