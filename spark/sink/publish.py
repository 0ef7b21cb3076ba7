"""The move of a batch's chunks from staging to their topics, each exactly once.

Why it is exactly once:

* W1: a chunk is moved only when the decision that names it is on disk.
* W2: it is sent under a producer and number, or a key, that no other chunk ever has, so a topic accepts it
  once however often it is sent.
* W3: the chunks of a topic are sent one after the other, each after the one before it was acknowledged, so a
  topic that has number n has all below it.
* W4: when every chunk was acknowledged, the completed decision is stored in place of the first, and only then
  is the staged data deleted.

A driver that is killed at any moment and starts again therefore does the rest, and nothing twice.

A topic whose durability class promises less than the disk may lose acknowledged records in a crash of the
machine. Records lost from this batch are sent again, since the topic asks for their number. Records lost from
earlier batches stay lost, as the class allows: a warning is logged, and the batch continues under a new
producer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from spark.sink.decision import Decision, Decisions, with_new_producer, without_moves
from spark.sink.staging import StagedChunk, read_staged
from spark.view.server_client import ServerClient, ServerRefusal, in_path

PRODUCER_GAP = "producer_gap"
TOPICS_AT_ONCE = 4
"""The number of topics written at once."""

logger = logging.getLogger("topicsd.spark")

MakeClient = Callable[[], ServerClient]


def move_keyed(make_client: MakeClient, staging: str, chunks: Sequence[StagedChunk]) -> None:
    """Move the chunks of a batch that is never run again, under idempotency keys."""

    def move(topic: str, topic_chunks: list[StagedChunk]) -> None:
        with make_client() as client, _Prefetch(make_client, staging, topic_chunks) as prefetch:
            for index, chunk in enumerate(topic_chunks):
                key = b'"idempotency_key":"%b/%d"' % (staging.encode(), chunk.first_seq)
                _append(client, topic, prefetch.records(index), key)

    _by_topic(chunks, move)


def move_decided(
    make_client: MakeClient,
    staging: str,
    decision: Decision,
    decisions: Decisions,
    new_id: Callable[[], str],
) -> None:
    def move(topic: str, topic_chunks: list[StagedChunk]) -> None:
        with make_client() as client, _Prefetch(make_client, staging, topic_chunks) as prefetch:
            first = next(one.producer_seq for one in decision.moves if one.chunk.topic == topic)
            producer, index = decision.producers[topic].id, 0
            while index < len(topic_chunks):
                identity = b'"producer":{"id":"%b","seq":%d}' % (producer.encode(), first + index)
                try:
                    _append(client, topic, prefetch.records(index), identity)
                    index += 1
                except ServerRefusal as refusal:
                    if refusal.code != PRODUCER_GAP:
                        raise
                    index = int(refusal.detail["next_seq"]) - first
                    if index < 0:
                        raise _ProducerGap(topic, first + index) from None

    while True:
        chunks = [one.chunk for one in decision.moves]
        try:
            _by_topic(chunks, move)
            if chunks:
                decisions.store(without_moves(decision))
            return
        except _ProducerGap as gap:
            logger.warning(
                "sink: topic lost acknowledged chunks of earlier batches: a crash, as its durability class "
                "allows  topic=%s producer_seq=%d",
                gap.topic,
                gap.next_seq,
            )
            decision = decisions.store(with_new_producer(decision, gap.topic, new_id))


class _ProducerGap(Exception):
    def __init__(self, topic: str, next_seq: int) -> None:
        super().__init__(topic)
        self.topic = topic
        self.next_seq = next_seq


class _Prefetch:
    """A reader that fetches the next chunk while the current one is appended."""

    def __init__(self, make_client: MakeClient, staging: str, chunks: list[StagedChunk]) -> None:
        self._client = make_client()
        self._staging = staging
        self._chunks = chunks
        self._thread = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[bytes]] | None = None

    def __enter__(self) -> _Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._client.close()

    def records(self, index: int) -> bytes:
        following = self._next
        chunk_bytes = following[1] if following is not None and following[0] == index else self._read(index)
        self._next = (index + 1, self._read(index + 1)) if index + 1 < len(self._chunks) else None
        return chunk_bytes.result()

    def _read(self, index: int) -> Future[bytes]:
        return self._thread.submit(read_staged, self._client, self._staging, self._chunks[index])


def _append(client: ServerClient, topic: str, records: bytes, identity: bytes) -> None:
    client.ask(
        "POST", f"topics/{in_path(topic)}?return_seqs=false", b'{"records":%b,%b}' % (records, identity)
    )


def _by_topic(chunks: Sequence[StagedChunk], move: Callable[[str, list[StagedChunk]], None]) -> None:
    topics: dict[str, list[StagedChunk]] = {}
    for chunk in chunks:
        topics.setdefault(chunk.topic, []).append(chunk)
    with ThreadPoolExecutor(TOPICS_AT_ONCE) as pool:
        for future in _cancel_rest_on_failure(
            [pool.submit(move, topic, topic_chunks) for topic, topic_chunks in topics.items()]
        ):
            future.result()


def _cancel_rest_on_failure(futures: list[Future[None]]) -> Iterator[Future[None]]:
    """Yield the futures in order; after a failure, cancel those that have not begun."""
    try:
        yield from futures
    finally:
        for one in futures:
            one.cancel()
