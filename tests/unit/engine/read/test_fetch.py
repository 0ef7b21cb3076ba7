"""A read of sealed records waits for the disk on its own, and says what cannot be had."""

from __future__ import annotations

import pytest

from shared.contract.errors import INTERNAL, Refusal
from shared.contract.reader_options import ReaderOptions
from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.engine.read.read import read
from topicsd.engine.requests import ReadAnswer, ReadRequest

NEVER_MS = 1 << 40


def sealed(count: int = 12) -> OneShard:
    """All but the last record are in segments of four; no page is in the cache."""
    one = OneShard(checkpoint_interval_ms=NEVER_MS, segment_max_events=4)
    one.append("t", *range(count))
    one.checkpoint()
    one.restart()
    return one


def send_read(one: OneShard, from_seq: int = 0, limit: int = 100) -> RecordedReply:
    reply = RecordedReply()
    read(one.shard.state, "t", ReadRequest(from_seq, ReaderOptions(limit=limit)), reply)
    return reply


def seqs(answer: ReadAnswer) -> list[int]:
    return [record.seq for record in answer.records]


def test_a_reader_of_a_segment_is_answered_when_the_thread_has_read_it() -> None:
    one = sealed()
    reply = send_read(one)
    assert not reply.has_answer
    one.settle()
    assert seqs(reply.answer) == list(range(1, 13))


def test_what_is_in_a_page_is_answered_at_once() -> None:
    one = sealed()
    send_read(one)
    one.settle()
    assert seqs(send_read(one, 2, 5).answer) == [3, 4, 5, 6, 7]


def test_a_topic_that_is_deleted_while_its_reader_waits_is_not_found() -> None:
    one = sealed()
    reply = send_read(one)
    one.send_delete_topic("t")
    one.loop.run_until_idle()
    while one.thread.run_one():
        one.loop.run_until_idle()
    one.settle()
    assert isinstance(reply.answer, Refusal)
    assert reply.code == "topic_not_found"


def test_what_is_deleted_while_its_reader_waits_is_not_delivered() -> None:
    one = sealed()
    reply = send_read(one)
    one.send_delete("t", before_seq=6)
    one.loop.run_until_idle()
    one.settle()
    assert seqs(reply.answer) == list(range(6, 13))


def test_an_unreadable_segment_is_reported_and_the_next_one_is_read() -> None:
    one = sealed()
    (first, *_) = [path for path in one.disk.all_files() if path.endswith(".data")]
    one.disk.unlink(first)
    reply = send_read(one)
    one.settle()
    assert reply.code == "corrupt_segment"
    assert reply.answer.detail["next_from_seq"] == 4
    reply = send_read(one, 4)
    one.settle()
    assert seqs(reply.answer) == list(range(5, 13))


def test_an_unexpected_error_is_reported_to_requests_that_wait_for_the_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = sealed()
    reply = send_read(one)

    def broken(*_: object) -> None:
        raise RuntimeError("a secret of ours")

    monkeypatch.setattr("topicsd.engine.read.read.try_read", broken)
    one.settle()
    assert reply.code == INTERNAL
    assert send_read(one).code == INTERNAL
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == 2 * [
        "a secret of ours"
    ]
