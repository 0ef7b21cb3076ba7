"""Watch sessions at their home: how they end, who takes over, what they hold, what is left after a start."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.harness.one_shard import OneShard, Told
from topicsd.log import control_frame
from topicsd.stream.sessions.sessions import (
    ENDED_PER_TURN_MAX,
    SESSION_TTL_SECONDS,
    WatchSession,
    WatchSessions,
)

TTL_MS = SESSION_TTL_SECONDS * 1000


class Stream:
    def __init__(self) -> None:
        self.is_taken_over = False

    def end_taken_over(self) -> None:
        self.is_taken_over = True


class Home:
    def __init__(self) -> None:
        self.one = OneShard()
        self.begin()

    def begin(self) -> None:
        self.sessions = WatchSessions(self.one.shard.state, self.one.loop)

    def make(self, number: int = 1, name: str = "orders") -> WatchSession:
        told = Told()
        definition = control_frame.WatchSession(
            number.to_bytes(16), "", [name], [5], [7], limit=256, heartbeat_ms=15_000
        )
        self.sessions.create(definition, told)
        self.one.settle()
        session = told.answer
        assert isinstance(session, WatchSession)
        return session

    def has(self, number: int = 1) -> bool:
        return self.sessions.find(number.to_bytes(16)) is not None


@pytest.fixture
def home() -> Home:
    return Home()


def test_a_session_that_nobody_opens_ends_after_its_time(home: Home) -> None:
    home.make()
    home.one.pass_time(TTL_MS - 1)
    assert home.has()
    home.one.pass_time(1)
    assert not home.has()
    home.one.kill()
    assert home.one.shard.state.watch_sessions == {}


def test_time_counts_from_when_the_stream_has_left(home: Home) -> None:
    session, stream = home.make(), Stream()
    home.one.pass_time(TTL_MS - 1)
    home.sessions.attach(session, stream)
    home.one.pass_time(5 * TTL_MS)
    assert home.has()
    assert home.sessions.detach(session, stream)
    home.one.pass_time(TTL_MS - 1)
    assert home.has()
    home.one.pass_time(1)
    assert not home.has()


def test_sessions_end_each_in_its_time(home: Home) -> None:
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


def test_of_many_that_are_due_some_end_in_one_turn(home: Home) -> None:
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


def test_a_second_stream_takes_over_and_the_end_of_the_first_means_nothing(home: Home) -> None:
    session, first, second = home.make(), Stream(), Stream()
    home.sessions.attach(session, first)
    assert (home.sessions.stream_count, first.is_taken_over) == (1, False)
    home.sessions.attach(session, second)
    assert (home.sessions.stream_count, first.is_taken_over, second.is_taken_over) == (1, True, False)
    assert not home.sessions.detach(session, first)
    assert (home.sessions.stream_count, session.stream) == (1, second)
    home.one.pass_time(2 * TTL_MS)
    assert home.has()
    assert home.sessions.detach(session, second)
    assert home.sessions.stream_count == 0


def test_a_new_session_remembers_and_one_that_was_restored_does_not(home: Home) -> None:
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


def test_changes_are_told(home: Home) -> None:
    told: list[tuple[int, int]] = []
    home.sessions.on_change = lambda: told.append((len(home.sessions), home.sessions.stream_count))
    session, stream = home.make(), Stream()
    home.sessions.attach(session, stream)
    home.sessions.attach(session, Stream())
    home.sessions.detach(session, stream)
    assert session.stream is not None
    home.sessions.detach(session, session.stream)
    home.one.pass_time(TTL_MS)
    assert told == [(1, 0), (1, 1), (1, 0), (0, 0)]


def test_a_session_is_small(home: Home) -> None:
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
    # With what the log in memory holds of its frames.
    assert size / count < 2500, size / count
