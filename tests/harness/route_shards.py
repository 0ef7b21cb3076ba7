"""A few shards with routes running between their topics, without a socket.

Promises: the shards share a clock; topics are placed as a server places them. A shard may end in any way and
start again while the others continue: its links are lost with it, and it is unreachable until `settle`
returns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from shared.contract.errors import NOT_READY, Refusal
from shared.contract.names import topic_id
from shared.contract.route_rule import RouteRule
from shared.ipc.link import Done, LinkCall, LinkPool, LinkRequest
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import shard_of
from shared.runtime.body_memory import SharedBody
from tests.harness.fake_link import FakeLink
from tests.harness.manual_clock import ManualClock
from tests.harness.manual_loop import ManualLoop
from tests.harness.memory_disk import MemoryDisk
from tests.harness.one_shard import OneShard, RecordedReply
from topicsd.engine.routes.route import RouteState, SourcePosition, delete_route, put_route
from topicsd.engine.topic_admin import topic_not_found, topic_state
from topicsd.stream.feed import GATHER_SECONDS
from topicsd.stream.feeds import Feeds
from topicsd.stream.remote_feed import RemoteShards
from topicsd.stream.route_runner import RouteRunners

GATHER_NS = round(GATHER_SECONDS * 1e9)


class FakeLinks(LinkPool):
    """The links of one shard to the others."""

    def __init__(self, links: dict[str, FakeLink]) -> None:
        self.links = links

    def call(
        self, name: str, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b""
    ) -> LinkCall:
        return self.links[name].call(name, kind, payload, done, body)


class RouteShards:
    def __init__(
        self,
        shard_count: int = 1,
        *,
        disk: MemoryDisk | None = None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        """Open the shards; `disk` is that of the first one."""
        self.clock = clock or ManualClock()
        self.count = shard_count
        self.shards = [OneShard(disk=disk, clock=self.clock, **settings)]
        self.shards += [OneShard(clock=self.clock, **settings) for _ in range(1, shard_count)]
        self.feeds: list[Feeds] = []
        self.routes: list[RouteRunners] = []
        self._links = [
            FakeLinks(
                {
                    str(other): FakeLink(partial(self._loop, number), partial(self._answer, other))
                    for other in range(shard_count)
                }
            )
            for number in range(shard_count)
        ]
        for number in range(shard_count):
            feeds, runners = self._start_worker(number)
            self.feeds.append(feeds)
            self.routes.append(runners)
        self.settle()

    def _loop(self, number: int) -> ManualLoop:
        return self.shards[number].loop

    def _start_worker(self, number: int) -> tuple[Feeds, RouteRunners]:
        one = self.shards[number]
        state = one.shard.state
        ways = RemoteShards(self._links[number], partial(self._refusal, number), state.wake_queue, one.loop)
        feeds = Feeds(state, one.loop, number, self.count, ways)
        return feeds, RouteRunners(state, one.loop, feeds)

    def _refusal(self, number: int, other: int) -> Refusal | None:
        is_cut = self._links[number].links[str(other)].is_cut
        return Refusal(NOT_READY, f"shard {other} is gone", {"shard": other}, 1000) if is_cut else None

    def _answer(self, number: int, kind: LinkKind, payload: bytes, request: LinkRequest) -> None:
        assert kind == LinkKind.FEED
        self.feeds[number].answer(payload, request)

    def _source_position(self, name: str, reply: Callable[[SourcePosition | Refusal], object]) -> None:
        state = topic_state(self.owner(name).shard.state, name)
        if isinstance(state, Refusal):
            reply(topic_not_found(name))
        else:
            reply(SourcePosition(state.epoch, state.head_seq, state.earliest_seq))

    # -- state ---------------------------------------------------------------------------------------------

    def number_of(self, topic: str) -> int:
        return shard_of(topic_id(topic), self.count)

    def owner(self, topic: str) -> OneShard:
        return self.shards[self.number_of(topic)]

    def route(self, name: str) -> RouteState | None:
        routes = (one.shard.state.routes.get(name) for one in self.shards)
        return next(filter(None, routes), None)

    # -- progress ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run until all shards are idle; time passes only for the gathering of copies."""
        self._settle_now()
        while (due := self._next_timer_ns()) <= self.clock.monotonic_ns() + GATHER_NS:
            self.clock.advance_ns(max(0, round(due) - self.clock.monotonic_ns()))
            self._settle_now()

    def _next_timer_ns(self) -> float:
        timers = (one.loop.next_timer_ns() for one in self.shards)
        return min((ns for ns in timers if ns is not None), default=inf)

    def _settle_now(self) -> None:
        quiet = 0
        while quiet < 2:
            was_busy = [one.loop.ready_count for one in self.shards]
            for one in self.shards:
                one.settle()
            is_busy = any(was_busy) or any(one.loop.ready_count for one in self.shards)
            quiet = 0 if is_busy else quiet + 1

    def pass_time(self, ms: float) -> None:
        end = self.clock.monotonic_ns() + round(ms * 1e6)
        self._settle_now()
        while (due := self._next_timer_ns()) <= end:
            self.clock.advance_ns(max(0, round(due) - self.clock.monotonic_ns()))
            self._settle_now()
        self.clock.advance_ns(max(0, end - self.clock.monotonic_ns()))

    def cut_off(self, number: int) -> None:
        """Cut all links from and to a shard."""
        for asker, links in enumerate(self._links):
            for other, link in links.links.items():
                if (asker == number) != (int(other) == number):
                    link.cut()

    def reconnect(self) -> None:
        for links in self._links:
            for link in links.links.values():
                link.is_cut = False

    def end(self, number: int, how: Callable[[OneShard], object]) -> None:
        """End one of the shards, and start it again."""
        self.cut_off(number)
        how(self.shards[number])
        self.feeds[number], self.routes[number] = self._start_worker(number)
        self.reconnect()

    # -- requests ------------------------------------------------------------------------------------------

    def send_put_route(self, rule: RouteRule) -> RecordedReply:
        reply = RecordedReply()
        put_route(self.owner(rule.dest).shard.state, rule, reply, self._source_position)
        return reply

    def put_route(self, name: str, source: str, dest: str, **options: Any) -> Any:
        reply = self.send_put_route(RouteRule(name, source, dest, **options))
        self.settle()
        return reply.answer

    def delete_route(self, name: str) -> Any:
        forward = self.route(name)
        assert forward is not None
        reply = RecordedReply()
        delete_route(self.owner(forward.rule.dest).shard.state, name, reply)
        self.settle()
        return reply.answer

    def append(self, topic: str, *records: object, **request: Any) -> Any:
        answer = self.owner(topic).append(topic, *records, **request)
        self.settle()
        return answer

    def data(self, topic: str) -> list[Any]:
        """Return the data of all live records of a topic."""
        values, cursor, is_at_end = [], 0, False
        while not is_at_end:
            answer = self.owner(topic).read(topic, cursor, limit=100_000)
            values += [int(one.data) for one in answer.records]
            cursor, is_at_end = answer.next_from_seq, answer.caught_up
        return values
