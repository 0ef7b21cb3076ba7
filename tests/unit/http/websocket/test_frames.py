"""What sockets are told of a piece: the bytes are made once, and a newcomer hears that it came too late."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.one_socket import texts_in
from topicsd.engine.requests import Tombstone
from topicsd.http.websocket.frames import caught_up, frames_of
from topicsd.stream.chunks import Piece

RECORDS = b'{"$seq":3,"$ts":1,"data":1},{"$seq":4,"$ts":1,"data":2}'


def _piece(tombstone: Tombstone | None = None, count: int = 2, to_seq: int = 4, head_seq: int = 4) -> Piece:
    return Piece("t", 9, 0, to_seq, head_seq, 3, count, RECORDS if count else b"", tombstone)


def _lost(reason: str) -> Tombstone:
    return Tombstone(1, 2, reason, 2, 3, 4)


def _kinds(frames: bytes) -> list[Any]:
    return [one["op"] for one in texts_in(frames)]


def test_the_bytes_of_a_piece_are_made_once() -> None:
    piece = _piece()
    assert frames_of(piece) is frames_of(piece)
    assert _kinds(frames_of(piece)) == ["record", "caught_up"]


def test_a_piece_that_is_not_at_the_head_does_not_say_so() -> None:
    assert _kinds(frames_of(_piece(head_seq=5))) == ["record"]


def test_an_empty_piece_says_nothing() -> None:
    assert frames_of(_piece(count=0)) == b""
    assert texts_in(caught_up(_piece(count=0))) == [
        {"op": "caught_up", "topic": "t", "epoch": 9, "head_seq": 4}
    ]


@pytest.mark.parametrize("reason", ["cap", "ttl", "mixed", "crash", "source_trim"])
def test_a_loss_has_the_reason_that_a_read_gives(reason: str) -> None:
    first = texts_in(frames_of(_piece(_lost(reason))))[0]
    assert (first["reason"], first["gap_from"], first["gap_to"], first["to_seq"]) == (reason, 1, 2, 2)
