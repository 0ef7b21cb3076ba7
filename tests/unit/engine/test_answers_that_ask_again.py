"""What a reply sets off: another request, an error, or both while the shard is ending."""

import logging

import pytest

from shared.contract.errors import SHUTTING_DOWN
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.requests import AppendAnswer, AppendRequest
from topicsd.engine.write.append import append


def chain(shard: OneShard, topic: str, answers: list[object], length: int) -> None:
    """A writer whose next request goes out with the answer to the last."""

    def answered(answer: object) -> None:
        answers.append(answer)
        if len(answers) < length:
            append(shard.shard.state, topic, AppendRequest([record(len(answers))]), answered)

    append(shard.shard.state, topic, AppendRequest([record(0)]), answered)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_writer_that_continues_from_its_replies_gets_every_seq(durability: str) -> None:
    shard = OneShard()
    shard.put("a", durability=durability)
    answers: list[object] = []
    chain(shard, "a", answers, 300)
    shard.settle()
    assert [answer.first_seq for answer in answers if isinstance(answer, AppendAnswer)] == list(range(1, 301))
    assert shard.seqs("a") == list(range(1, 301))


def test_one_write_behind_a_sync_does_not_make_those_after_it_wait() -> None:
    shard = OneShard()
    shard.put("a")
    shard.append("a", 1)
    syncs = shard.shard.log.counters.syncs
    answers: list[object] = []
    chain(shard, "a", answers, 100)
    shard.settle()
    assert len(answers) == 100
    assert shard.shard.log.counters.syncs - syncs <= 1


def test_a_reply_that_fails_leaves_the_others_answered(caplog: pytest.LogCaptureFixture) -> None:
    shard = OneShard()
    shard.put("a", durable=True)

    def broken(answer: object) -> None:
        raise ConnectionResetError("the client went away")

    with caplog.at_level(logging.CRITICAL):
        for _ in range(60):  # Also when the loop does the sync itself, as it comes to do.
            append(shard.shard.state, "a", AppendRequest([record(1)]), broken)
            shard.settle()
    after = shard.append("a", 2)
    assert after.first_seq == 61
    assert not shard.failures
    assert shard.seqs("a") == list(range(1, 62))


def test_everything_that_joined_before_the_end_is_answered_and_kept() -> None:
    shard = OneShard()
    shard.put("a", durable=True)
    first = shard.send_append("a", 1)
    shard.loop.run_until_idle()  # The sync of the first is on its way, the second waits behind it.
    second = shard.send_append("a", 2)
    shard.loop.run_until_idle()
    shard.restart()
    assert first.answer.first_seq == 1
    assert second.answer.first_seq == 2
    assert shard.seqs("a") == [1, 2]


def test_what_an_answer_asks_for_at_the_end_is_refused() -> None:
    shard = OneShard()
    shard.put("a", durable=True)
    late = RecordedReply()
    append(
        shard.shard.state,
        "a",
        AppendRequest([record(1)]),
        lambda _: append(shard.shard.state, "a", AppendRequest([record(2)]), late),
    )
    shard.restart()
    assert late.code == SHUTTING_DOWN
    assert shard.seqs("a") == [1]
