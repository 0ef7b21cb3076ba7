"""Reading behind a cursor over HTTP, at once or as soon as there is something to deliver.

A reader that finds nothing registers in the same turn of the loop, so nothing comes in between; it is called
once, looks, and registers again. What is skipped on purpose while it waits moves its cursor and does not wake
it.

Must not know: sockets.
"""

from __future__ import annotations

from functools import partial

import msgspec

from shared.config import Settings
from shared.errors import Refusal
from shared.histogram import Histogram
from shared.seek import Seek
from topicsd.engine.fetch import WaitingRead, read_through
from topicsd.engine.fill_page import Unfetched
from topicsd.engine.read import read
from topicsd.engine.requests import ReadAnswer, ReadRequest
from topicsd.engine.seek import seek
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.http.bodies import DiffBody, decode_diff
from topicsd.http.call import Call
from topicsd.http.render import render_read
from topicsd.http.request_counts import RequestCounts
from topicsd.wal.sync_thread import Loop

LIMIT_DEFAULT = 256
NO_NODES: frozenset[str] = frozenset()
WAIT_MS_MAX = 30_000


class Diff:
    def __init__(self, shard: ShardState, settings: Settings, loop: Loop, counts: RequestCounts) -> None:
        self.counts = counts
        self._shard = shard
        self._settings = settings
        self._loop = loop

    def start(self, call: Call) -> None:
        body = decode_diff(call.body)
        if isinstance(body, Refusal):
            call.refuse(body)
            return
        if body.from_ts is not None or body.last is not None:
            place = Seek(body.from_ts, body.last)
            seek(self._shard, call.name, place, partial(self._placed, call, body))
            return
        self._read(call, body, self._request(body))

    def _placed(self, call: Call, body: DiffBody, cursor: int | Refusal) -> None:
        try:
            if isinstance(cursor, Refusal):
                call.refuse(cursor)
            else:
                body.from_seq = cursor
                self._read(call, body, self._request(body))
        except Exception as error:
            call.fail("diff", error)

    def _read(self, call: Call, body: DiffBody, request: ReadRequest) -> None:
        answer = read(self._shard, call.name, request)
        if isinstance(answer, Unfetched):
            waiting = WaitingRead(
                self._shard, call.name, request, partial(self._read_later, call, body, request)
            )
            waiting.wait_for(answer)
        else:
            self._answer(call, body, request, answer)

    def _read_later(
        self, call: Call, body: DiffBody, request: ReadRequest, answer: ReadAnswer | Refusal
    ) -> None:
        """In a turn of its own, where nobody else catches what is not foreseen."""
        try:
            self._answer(call, body, request, answer)
        except Exception as error:
            call.fail("diff", error)

    def _answer(self, call: Call, body: DiffBody, request: ReadRequest, answer: ReadAnswer | Refusal) -> None:
        if isinstance(answer, Refusal):
            call.refuse(answer)
            return
        topic = self._shard.topics[call.name]
        topic.last_read_ms = self._shard.clock.now_ms()
        if body.wait_ms and not answer.count and answer.tombstone is None:
            WaitingDiff(self, call, topic, body, request, answer).wait(min(body.wait_ms, WAIT_MS_MAX))
        else:
            self.send(call, body, answer, self.counts.reads)

    def send(self, call: Call, body: DiffBody, answer: ReadAnswer, counted: Histogram) -> None:
        elapsed_us = int((self._shard.clock.monotonic() - call.started) * 1e6)
        counted.counts[elapsed_us.bit_length()] += 1
        counted.total += elapsed_us
        if answer.tombstone is not None:
            self.counts.tombstones += 1
        parts = render_read(answer, elapsed_us)
        call.send_parts(parts, sum(map(len, parts)))

    @property
    def shard(self) -> ShardState:
        return self._shard

    @property
    def loop(self) -> Loop:
        return self._loop

    def _request(self, body: DiffBody) -> ReadRequest:
        node, limit = body.node, body.limit or LIMIT_DEFAULT
        return ReadRequest(
            body.from_seq,
            min(limit, self._settings.max_limit),
            NO_NODES if node is None else frozenset([node] if isinstance(node, str) else node),
            body.epoch,
            self._settings.max_response_bytes,
            body.include_tags,
            body.include_meta,
        )


class WaitingDiff:
    """A reader with nothing to deliver yet."""

    def __init__(
        self, diff: Diff, call: Call, topic: Topic, body: DiffBody, request: ReadRequest, answer: ReadAnswer
    ) -> None:
        self._diff = diff
        self._call = call
        self._topic = topic
        self._body = body
        self._request = request
        self._answer = answer
        self._is_over = False

    def wait(self, wait_ms: int) -> None:
        self._diff.shard.watch.add(self._topic, self._look)
        self._timer = self._diff.loop.call_later(wait_ms / 1000, self._look, True)
        self._call.hurry = partial(self._look, True)
        self._go_on_reading()

    def _look(self, is_last: bool = False) -> None:
        if self._is_over:
            return
        try:
            self._look_once(is_last)
        except Exception as error:
            self._finish(answers=False)
            self._call.fail("diff", error)

    def _look_once(self, is_last: bool) -> None:
        request = msgspec.structs.replace(self._request, from_seq=self._answer.next_from_seq)
        read_through(self._diff.shard, self._call.name, request, partial(self._came, is_last))

    def _came(self, is_last: bool, answer: ReadAnswer | Refusal) -> None:
        if self._is_over:
            return
        try:
            self._take(is_last, answer)
        except Exception as error:
            self._finish(answers=False)
            self._call.fail("diff", error)

    def _take(self, is_last: bool, answer: ReadAnswer | Refusal) -> None:
        if isinstance(answer, Refusal):
            self._finish(answers=False)
            self._call.refuse(answer)
            return
        self._answer = answer
        if is_last or answer.count or answer.tombstone is not None:
            self._finish(answers=True)
        else:
            self._diff.shard.watch.add(self._topic, self._look)
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        """One read looks only so far; where it skipped all it saw there may be something behind that."""
        if not self._answer.caught_up:
            self._diff.loop.call_soon(self._look)

    def _finish(self, answers: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._timer.cancel()
        self._diff.shard.watch.remove(self._topic, self._look)
        self._call.hurry = None
        if answers:
            self._diff.send(self._call, self._body, self._answer, self._diff.counts.waited_reads)
