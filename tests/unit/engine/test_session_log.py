"""Watch sessions in the log: answered when they are written, found again by replay and in snapshots."""

from __future__ import annotations

import errno

import msgspec
import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.engine.checkpoint.job import FILES_TO_DROP
from topicsd.engine.checkpoint.snapshot_format import decode_snapshot
from topicsd.engine.session_log import WATCH_SESSIONS, log_session, log_session_end, sessions_of
from topicsd.log.control_frame import SessionFrame


def session(number: int, *names: str) -> SessionFrame:
    columns = (list(names), list(range(len(names))), list(range(7, 7 + len(names))))
    return SessionFrame(number.to_bytes(16), f"key-{number % 3}", *columns, ["n"], 17, 4096, 2000, True)


def keep(one: OneShard, session_to_keep: SessionFrame) -> RecordedReply:
    reply = RecordedReply()
    log_session(one.shard.state, session_to_keep, reply)
    return reply


@pytest.fixture
def one() -> OneShard:
    return OneShard()


def test_a_session_is_there_when_it_is_answered_and_after_a_kill_as_it_was(one: OneShard) -> None:
    expected = session(1, "a", "b")
    reply = keep(one, expected)
    assert not reply.has_answer
    assert one.shard.state.watch_sessions == {}
    one.settle()
    assert reply.answer == expected
    one.kill()
    assert one.shard.state.watch_sessions == {expected.session: expected}


def test_one_that_ended_stays_so(one: OneShard) -> None:
    for number in (1, 2):
        keep(one, session(number, "a"))
    one.settle()
    log_session_end(one.shard.state, session(1).session)
    one.settle()
    one.kill()
    assert list(one.shard.state.watch_sessions) == [session(2).session]


def test_sessions_are_carried_over_checkpoints(one: OneShard) -> None:
    for number in range(250):
        keep(one, session(number, "a"))
    one.settle()
    one.shard.start_checkpoint()
    one.settle()
    # Behind the snapshot: one that comes, one of it that goes, one that does both.
    for number in (300, 301):
        keep(one, session(number, "a", "b"))
    one.settle()
    log_session_end(one.shard.state, session(7).session)
    log_session_end(one.shard.state, session(301).session)
    one.pass_time(60)
    expected = dict(one.shard.state.watch_sessions)
    assert len(expected) == 250
    one.kill()
    assert one.shard.state.watch_sessions == expected
    one.close()
    one.open(one.disk)
    assert one.shard.state.watch_sessions == expected


@pytest.mark.parametrize("step", range(5))
def test_what_ends_or_begins_while_a_checkpoint_is_made_is_as_the_log_says(one: OneShard, step: int) -> None:
    for number in range(3):
        keep(one, session(number, "a"))
    one.settle()
    one.shard.start_checkpoint()
    for _ in range(step):
        one.loop.run_until_idle()
        assert one.thread.run_one() or one.copy_thread.run_one()
    assert one.shard.checkpoints.count == 0
    log_session_end(one.shard.state, session(1).session)
    keep(one, session(9, "z"))
    one.settle()
    assert one.shard.checkpoints.count == 1
    one.kill()
    assert sorted(one.shard.state.watch_sessions) == [session(number).session for number in (0, 2, 9)]


def test_names_are_kept_once(one: OneShard) -> None:
    keep(one, msgspec.structs.replace(session(1, "orders.eu"), names=["".join(["orders", ".eu"])]))
    keep(one, msgspec.structs.replace(session(2, "orders.eu"), names=["".join(["orders.", "eu"])]))
    one.settle()
    for _ in range(2):
        first, second = one.shard.state.watch_sessions.values()
        assert first.names[0] is second.names[0]
        one.kill()


def test_a_disk_without_room_refuses_it_and_what_there_is_can_still_end(one: OneShard) -> None:
    keep(one, session(1, "a"))
    one.settle()
    one.disk.space_bytes = one.disk.used_bytes
    replies: list[RecordedReply] = []
    while not replies or replies[-1].code is None:
        replies.append(keep(one, session(len(replies) + 2, "a" * 200)))
        one.settle()
    assert replies[-1].code == "storage_full"
    kept = dict(one.shard.state.watch_sessions)
    assert len(kept) == len(replies) > 100
    log_session_end(one.shard.state, session(1).session)
    one.settle()
    one.kill()
    assert session(1).session not in one.shard.state.watch_sessions
    assert len(one.shard.state.watch_sessions) == len(kept) - 1


def test_a_log_that_is_shut_refuses_it(one: OneShard) -> None:
    one.shard.log.refuse_and_flush()
    assert keep(one, session(1, "a")).code == "shutting_down"
    assert one.shard.state.watch_sessions == {}


def test_a_snapshot_without_sessions_says_nothing_of_them(one: OneShard) -> None:
    one.append("a", 1)
    one.shard.start_checkpoint()
    one.settle()
    snapshots = [path for path in one.disk.all_files() if "snapshot" in path]
    head = decode_snapshot(one.disk.read_file(snapshots[-1])).head
    assert WATCH_SESSIONS not in head.sections
    assert sessions_of(head) == []
    assert FILES_TO_DROP not in head.sections


def test_a_snapshot_does_not_know_of_an_end_that_the_log_has_no_room_for(one: OneShard) -> None:
    keep(one, session(1, "a"))
    one.settle()
    log_session_end(one.shard.state, session(1).session)
    one.disk.fail("pwrite", error=errno.ENOSPC)
    one.settle()
    one.checkpoint()
    for _ in range(2):
        assert list(one.shard.state.watch_sessions) == [session(1).session]
        one.kill()
    log_session_end(one.shard.state, session(1).session)
    one.settle()
    one.checkpoint()
    assert one.shard.state.watch_sessions == {}
