from __future__ import annotations

from typing import Any

import pytest

from tests.harness.forward_stage import ForwardStage
from topicsd.stream.chunks import Piece, Wanted
from topicsd.stream.feed import LocalFeed
from topicsd.stream.route_runner import CHUNK_RECORDS_MAX, SOURCES_MAX


def piece(from_seq: int, records: bytes = b'{"$seq":1,"$ts":1,"data":1}') -> Piece:
    return Piece("a", 9, from_seq, from_seq + 1, 10, 1, 1, records, None)


def test_what_was_read_again_a_moment_later_is_taken_apart_once() -> None:
    made = ForwardStage(1)
    forwards = made.forwards[0]
    found = forwards.source(piece(0))
    assert forwards.source(piece(0)) is found
    changed = forwards.source(piece(0, b'{"$seq":1,"$ts":1,"data":2}'))
    assert changed is not found
    assert forwards.source(piece(0)) is not changed


def test_only_the_last_few_are_kept_and_those_for_a_moment() -> None:
    made = ForwardStage(1)
    forwards = made.forwards[0]
    first = forwards.source(piece(0))
    others = [forwards.source(piece(seq)) for seq in range(1, SOURCES_MAX + 1)]
    assert forwards.source(piece(SOURCES_MAX)) is others[-1]
    assert forwards.source(piece(0)) is not first
    made.pass_time(50)
    assert forwards.source(piece(SOURCES_MAX)) is not others[-1]


def test_forwards_that_began_at_other_places_come_by_the_same_ones_soon() -> None:
    made = ForwardStage(1)
    wanted = made.forwards[0].feed_of("a").wanted
    for seq in (0, 1, 100, CHUNK_RECORDS_MAX - 1, CHUNK_RECORDS_MAX, 5 * CHUNK_RECORDS_MAX + 7):
        assert (seq + wanted.request(seq, None).limit) % CHUNK_RECORDS_MAX == 0
    as_any = Wanted("a", frozenset(), 10, 100, True, True, True, False)
    assert as_any.request(7, None).limit == 10


def test_who_is_behind_has_nobody_look_who_is_at_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ForwardStage()
    one = made.shards[0]
    for name in ("a", "e", "late"):
        one.put(name)
    made.put_forward("r", "a", "e")
    for number in range(8):
        made.append("a", *[number] * CHUNK_RECORDS_MAX)
    head = one.topic("a").head
    looks: list[int] = []
    read = LocalFeed.read

    def noted(feed: LocalFeed, seq: int, *others: Any) -> None:
        looks.append(seq)
        read(feed, seq, *others)

    monkeypatch.setattr(LocalFeed, "read", noted)
    made.put_forward("late", "a", "late", is_from_start=True)
    assert one.topic("late").head == head
    assert looks == list(range(0, head, CHUNK_RECORDS_MAX))
