from __future__ import annotations

from typing import Any

import pytest

from shared.contract.reader_options import ReaderOptions
from tests.harness.stage.route_shards import RouteShards
from topicsd.stream.chunks import Chunk, FeedSpec
from topicsd.stream.feed import LocalFeed
from topicsd.stream.route_runner import CHUNK_RECORDS_MAX, SOURCES_MAX


def chunk(from_seq: int, records: bytes = b'{"$seq":1,"$ts":1,"data":1}') -> Chunk:
    return Chunk("a", 9, from_seq, from_seq + 1, 10, 1, 1, records, None)


def test_a_chunk_read_again_soon_is_decoded_once() -> None:
    stage = RouteShards(1)
    runners = stage.routes[0]
    source = runners.source(chunk(0))
    assert runners.source(chunk(0)) is source
    changed = runners.source(chunk(0, b'{"$seq":1,"$ts":1,"data":2}'))
    assert changed is not source
    assert runners.source(chunk(0)) is not changed


def test_a_few_decoded_chunks_are_kept_for_a_short_time() -> None:
    stage = RouteShards(1)
    runners = stage.routes[0]
    first = runners.source(chunk(0))
    others = [runners.source(chunk(seq)) for seq in range(1, SOURCES_MAX + 1)]
    assert runners.source(chunk(SOURCES_MAX)) is others[-1]
    assert runners.source(chunk(0)) is not first
    stage.pass_time(50)
    assert runners.source(chunk(SOURCES_MAX)) is not others[-1]


def test_routes_with_different_cursors_align_their_chunks() -> None:
    stage = RouteShards(1)
    spec = stage.routes[0].feed_of("a").spec
    for seq in (0, 1, 100, CHUNK_RECORDS_MAX - 1, CHUNK_RECORDS_MAX, 5 * CHUNK_RECORDS_MAX + 7):
        assert (seq + spec.request(seq, None).options.limit) % CHUNK_RECORDS_MAX == 0
    as_any = FeedSpec("a", ReaderOptions(limit=10))
    assert as_any.request(7, None).options.limit == 10


def test_a_lagging_route_does_not_wake_routes_at_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = RouteShards()
    one = stage.shards[0]
    for name in ("a", "e", "late"):
        one.put(name)
    stage.put_route("r", "a", "e")
    for number in range(8):
        stage.append("a", *[number] * CHUNK_RECORDS_MAX)
    head = one.topic("a").head
    read_seqs: list[int] = []
    read = LocalFeed.read

    def note_read(feed: LocalFeed, seq: int, *others: Any) -> None:
        read_seqs.append(seq)
        read(feed, seq, *others)

    monkeypatch.setattr(LocalFeed, "read", note_read)
    stage.put_route("late", "a", "late", is_from_start=True)
    assert one.topic("late").head == head
    assert read_seqs == list(range(0, head, CHUNK_RECORDS_MAX))
