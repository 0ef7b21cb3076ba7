"""The messages of a chunk: rendered once, and with the tombstone of lost records."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.stage.one_socket import texts_in
from topicsd.engine.requests import Tombstone
from topicsd.http.websocket.frames import caught_up, frames_of
from topicsd.stream.chunks import Chunk

RECORDS = b'{"$seq":3,"$ts":1,"data":1},{"$seq":4,"$ts":1,"data":2}'


def _chunk(tombstone: Tombstone | None = None, count: int = 2, to_seq: int = 4, head_seq: int = 4) -> Chunk:
    return Chunk("t", 9, 0, to_seq, head_seq, 3, count, RECORDS if count else b"", tombstone)


def _lost(reason: str) -> Tombstone:
    return Tombstone(1, 2, reason, 2, 3, 4)


def _kinds(frames: bytes) -> list[Any]:
    return [one["op"] for one in texts_in(frames)]


def test_a_chunk_is_rendered_once() -> None:
    chunk = _chunk()
    assert frames_of(chunk) is frames_of(chunk)
    assert _kinds(frames_of(chunk)) == ["record", "caught_up"]


def test_a_chunk_before_the_head_has_no_caught_up_message() -> None:
    assert _kinds(frames_of(_chunk(head_seq=5))) == ["record"]


def test_an_empty_chunk_has_no_messages() -> None:
    assert frames_of(_chunk(count=0)) == b""
    assert texts_in(caught_up(_chunk(count=0))) == [
        {"op": "caught_up", "topic": "t", "epoch": 9, "head_seq": 4}
    ]


@pytest.mark.parametrize("reason", ["cap", "ttl", "mixed", "crash", "source_trim"])
def test_a_tombstone_has_the_reason_of_a_read(reason: str) -> None:
    first = texts_in(frames_of(_chunk(_lost(reason))))[0]
    assert (first["reason"], first["gap_from"], first["gap_to"], first["to_seq"]) == (reason, 1, 2, 2)
