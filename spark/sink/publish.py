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

from spark.sink.decision import Decision, Decisions, begun_anew, done
from spark.sink.staging import Staged, read_staged
from spark.view.server_client import ServerClient, ServerRefusal, in_path

GAP = "producer_gap"
LANES = 4
"""The number of topics written at once."""

logger = logging.getLogger("topicsd.spark")

MakeClient = Callable[[], ServerClient]


def move_keyed(make_client: MakeClient, staging: str, chunks: Sequence[Staged]) -> None:
    """Move the chunks of a batch that is never run again, under idempotency keys."""

    def move(topic: str, mine: list[Staged]) -> None:
        with make_client() as client, _Ahead(make_client, staging, mine) as ahead:
            for place, chunk in enumerate(mine):
                key = b'"idempotency_key":"%b/%d"' % (staging.encode(), chunk.first_seq)
                _append(client, topic, ahead.records(place), key)

    _by_topic(chunks, move)


def move_decided(
    make_client: MakeClient,
    staging: str,
    decision: Decision,
    decisions: Decisions,
    new_id: Callable[[], str],
) -> None:
    def move(topic: str, mine: list[Staged]) -> None:
        with make_client() as client, _Ahead(make_client, staging, mine) as ahead:
            first = next(one.producer_seq for one in decision.moves if one.chunk.topic == topic)
            producer, place = decision.producers[topic].id, 0
            while place < len(mine):
                known = b'"producer":{"id":"%b","seq":%d}' % (producer.encode(), first + place)
                try:
                    _append(client, topic, ahead.records(place), known)
                    place += 1
                except ServerRefusal as refusal:
                    if refusal.code != GAP:
                        raise
                    place = int(refusal.detail["next_seq"]) - first
                    if place < 0:
                        raise _Forgot(topic, first + place) from None

    while True:
        chunks = [one.chunk for one in decision.moves]
        try:
            _by_topic(chunks, move)
            if chunks:
                decisions.keep(done(decision))
            return
        except _Forgot as forgot:
            logger.warning(
                "topic %s has lost what it took from this query as number %d and up, in a crash; its class "
                "allows that",
                forgot.topic,
                forgot.next_seq,
            )
            decision = decisions.keep(begun_anew(decision, forgot.topic, new_id))


class _Forgot(Exception):
    def __init__(self, topic: str, next_seq: int) -> None:
        super().__init__(topic)
        self.topic = topic
        self.next_seq = next_seq


class _Ahead:
    """A reader that fetches the next chunk while the current one is appended."""

    def __init__(self, make_client: MakeClient, staging: str, chunks: list[Staged]) -> None:
        self._client = make_client()
        self._staging = staging
        self._chunks = chunks
        self._thread = ThreadPoolExecutor(1)
        self._coming: tuple[int, Future[bytes]] | None = None

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._client.close()

    def records(self, place: int) -> bytes:
        coming = self._coming
        found = coming[1] if coming is not None and coming[0] == place else self._read(place)
        self._coming = (place + 1, self._read(place + 1)) if place + 1 < len(self._chunks) else None
        return found.result()

    def _read(self, place: int) -> Future[bytes]:
        return self._thread.submit(read_staged, self._client, self._staging, self._chunks[place])


def _append(client: ServerClient, topic: str, records: bytes, known_by: bytes) -> None:
    client.ask(
        "POST", f"topics/{in_path(topic)}?return_seqs=false", b'{"records":%b,%b}' % (records, known_by)
    )


def _by_topic(chunks: Sequence[Staged], move: Callable[[str, list[Staged]], None]) -> None:
    topics: dict[str, list[Staged]] = {}
    for chunk in chunks:
        topics.setdefault(chunk.topic, []).append(chunk)
    with ThreadPoolExecutor(LANES) as lanes:
        for done in _each_done([lanes.submit(move, topic, mine) for topic, mine in topics.items()]):
            done.result()


def _each_done(futures: list[Future[None]]) -> Iterator[Future[None]]:
    """Yield the futures in order; after a failure, cancel those that have not begun."""
    try:
        yield from futures
    finally:
        for one in futures:
            one.cancel()
