"""A move is appended at its owner once, and its sender learns the outcome or that it is in doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shared.contract.errors import (
    IN_DOUBT,
    INTERNAL,
    INVALID_REQUEST,
    NOT_A_QUEUE,
    NOT_READY,
    NOT_SUPPORTED,
    TOPIC_NOT_FOUND,
    Refusal,
    not_ready,
)
from shared.ipc.board import WorkerState
from shared.ipc.link import NEVER_SENT, Link, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import Placement
from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.broker_stage import BrokerStage
from tests.harness.stage.one_connection import AWAY, HOME, SHARDS, ManualLinks
from tests.harness.stage.small_board import SmallBoard
from topicsd.engine.requests import AppendRequest, Reply
from topicsd.engine.transfer.move import (
    Move,
    MovedRecord,
    append_move,
    decode_move,
    decode_move_answer,
    encode_move,
    encode_move_answer,
)
from topicsd.service.handlers import FindShared
from topicsd.service.shards.limits import Caps
from topicsd.service.shards.moves import Moves
from topicsd.service.shards.peers import Peers

RECORD = MovedRecord(7, b'{"a":1}', "t", "n", b'{"k":1.0}')


def move_to(destination: str, *, needs_queue: bool = False) -> Move:
    return Move(destination, "\0source", None, [RECORD], not needs_queue, needs_queue)


class MovesOfOneShard:
    def __init__(self, peers: Peers | None = None, find_shared: FindShared | None = None) -> None:
        self.one = OneShard()
        self.links = ManualLinks()
        state = self.one.shard.state
        self.moves = Moves(state, Caps(state), self.links, 0, Placement(SHARDS), peers, find_shared)
        self.answers: list[Refusal | None] = []

    def send(self, move: Move) -> None:
        self.moves.send(move, self.answers.append)
        self.one.settle()

    def records(self, topic: str = HOME) -> list[tuple[bytes, bytes, bytes, bytes | None]]:
        return [(one.data, one.tag, one.node, one.meta) for one in self.one.read(topic).records]


class RecordingLink(Link):
    """The link of one request, whose answer is recorded."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def answer(self, number: int, answer: bytes) -> None:
        self.answers.append(answer)


def test_a_move_to_a_topic_of_this_shard_is_appended_here() -> None:
    subject = MovesOfOneShard()
    subject.send(move_to(HOME))
    assert (subject.answers, subject.links.requests) == ([None], [])
    assert subject.records() == [(RECORD.data, b"t", b"n", RECORD.meta)]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, IN_DOUBT),
        (NEVER_SENT, NOT_READY),
        (encode_move_answer(None), None),
        (encode_move_answer(Refusal(NOT_A_QUEUE, "a log")), NOT_A_QUEUE),
    ],
    ids=["lost", "never sent", "done", "refused"],
)
def test_the_sender_learns_the_outcome_at_the_other_shard(answer: bytes | None, code: str | None) -> None:
    subject = MovesOfOneShard()
    subject.send(move_to(AWAY))
    ((peer, kind, payload, done),) = subject.links.requests
    assert (peer, kind, decode_move(payload)) == ("1", LinkKind.MOVE, move_to(AWAY))
    assert subject.answers == []
    done(answer)
    (refusal,) = subject.answers
    assert (None if refusal is None else refusal.code) == code


def test_a_move_to_a_shard_that_is_not_ready_is_not_sent() -> None:
    one = OneShard()
    board = SmallBoard(SHARDS, one.clock).board
    board.slot(1).state = WorkerState.STARTING
    subject = MovesOfOneShard(Peers(board, one.clock, 0))
    subject.send(move_to(AWAY))
    (refusal,) = subject.answers
    assert refusal is not None
    assert (refusal.code, subject.links.requests) == (NOT_READY, [])


def test_a_move_that_arrives_twice_is_appended_once() -> None:
    subject, link = MovesOfOneShard(), RecordingLink()
    for number in range(2):
        subject.moves.answer_link(encode_move(move_to(HOME)), LinkReply(link, number))
        subject.one.settle()
    assert [decode_move_answer(answer) for answer in link.answers] == [None, None]
    assert len(subject.records()) == 1


@pytest.mark.parametrize(
    ("destination", "code"), [(HOME, NOT_A_QUEUE), ("", INVALID_REQUEST), ("a\nb", INVALID_REQUEST)]
)
def test_a_redrive_appends_only_to_a_queue(destination: str, code: str) -> None:
    subject = MovesOfOneShard()
    subject.one.append(HOME, 1)
    append: Any = Caps(subject.one.shard.state).append
    move = move_to(destination, needs_queue=True)
    append_move(subject.one.shard.state, append, move, subject.answers.append)
    (refusal,) = subject.answers
    assert refusal is not None
    assert refusal.code == code


def test_an_unexpected_error_is_an_answer(quiet_log: None) -> None:
    class BrokenCaps(Caps):
        def append(self, name: str, request: AppendRequest, body_bytes: int, reply: Reply) -> None:
            raise RuntimeError

    state = OneShard().shard.state
    answers: list[Refusal | None] = []
    moves = Moves(state, BrokenCaps(state), ManualLinks(), 0, Placement(SHARDS), None)
    moves.send(move_to(HOME), answers.append)
    (refusal,) = answers
    assert refusal is not None
    assert refusal.code == INTERNAL


class SharedNamesDouble:
    """Knows which names are shared topics; its answer arrives when the test says."""

    def __init__(self, answer: bool | Refusal) -> None:
        self.answer = answer
        self.requests: list[tuple[str, Callable[[bool | Refusal], object]]] = []

    def find(self, name: str, reply: Callable[[bool | Refusal], object]) -> None:
        self.requests.append((name, reply))

    def reply(self) -> None:
        for _, reply in self.requests:
            reply(self.answer)


@pytest.mark.parametrize(
    ("answer", "code"),
    [(True, NOT_SUPPORTED), (not_ready("the broker is away"), NOT_READY)],
    ids=["shared", "unknown"],
)
def test_a_move_creates_no_local_topic_beside_a_shared_one(answer: bool | Refusal, code: str) -> None:
    names = SharedNamesDouble(answer)
    subject = MovesOfOneShard(find_shared=names.find)
    subject.send(move_to(HOME))
    assert ([name for name, _ in names.requests], subject.answers) == ([HOME], [])
    names.reply()
    subject.one.settle()
    (refusal,) = subject.answers
    assert refusal is not None
    assert refusal.code == code
    assert HOME not in subject.one.shard.state.topics


def test_a_move_creates_a_topic_whose_name_is_not_shared_and_asks_once() -> None:
    names = SharedNamesDouble(False)
    subject = MovesOfOneShard(find_shared=names.find)
    subject.send(move_to(HOME))
    names.reply()
    subject.one.settle()
    assert subject.answers == [None]
    subject.send(Move(HOME, "\0other", None, [RECORD], creates=True, needs_queue=False))
    assert subject.answers == [None, None]
    assert len(names.requests) == 1


def test_a_move_that_creates_nothing_or_has_a_wrong_name_does_not_ask() -> None:
    names = SharedNamesDouble(True)
    subject = MovesOfOneShard(find_shared=names.find)
    subject.send(move_to(HOME, needs_queue=True))
    link = RecordingLink()
    subject.moves.answer_link(encode_move(move_to("a\nb")), LinkReply(link, 1))
    subject.one.settle()
    wrong = decode_move_answer(link.answers[0])
    codes = [one.code for one in (*subject.answers, wrong) if one is not None]
    assert (codes, names.requests) == ([TOPIC_NOT_FOUND, INVALID_REQUEST], [])


def test_a_dead_letter_for_the_name_of_a_shared_topic_stays_parked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = BrokerStage()
    shard = stage.shards[stage.number_of(HOME)]
    shard.put(HOME, type="queue", max_deliveries=1, dead_letter=AWAY)
    shard.append(HOME, 1)
    stage.create_shared(AWAY)
    shard.nack(HOME, "w", *shard.claimed(HOME, "w", 1))
    assert shard.claimed(HOME, "w", 1) == []
    stage.settle()
    calls_before = stage.catalog.calls["topics"]
    stage.pass_time(60_000)
    assert AWAY not in stage.shards[stage.number_of(AWAY)].shard.state.topics
    assert shard.state(HOME).queue.parked == 1
    (message,) = [one for one in caplog.messages if one.startswith("dead letters: ")]
    assert "a shared topic does not support dead_letter" in message
    assert stage.catalog.calls["topics"] - calls_before < 30
    stage.delete_shared(AWAY)
    stage.pass_time(60_000)
    assert [one.data for one in stage.shards[stage.number_of(AWAY)].read(AWAY).records] == [b"1"]
