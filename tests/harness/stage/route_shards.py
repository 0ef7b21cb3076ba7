"""Shards with routes running between their topics, without a socket."""

from __future__ import annotations

from typing import Any

from shared.contract.route_rule import RouteRule
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, RecordedReply
from tests.harness.stage.shard_stage import ShardStage
from topicsd.engine.routes.route import RouteState, delete_route, put_route
from topicsd.stream.feed import GATHER_SECONDS
from topicsd.stream.feeds import Feeds
from topicsd.stream.route_runner import RouteRunners

GATHER_NS = round(GATHER_SECONDS * 1e9)


class RouteShards(ShardStage):
    def __init__(
        self,
        shard_count: int = 1,
        *,
        disk: MemoryDisk | None = None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(shard_count, disk=disk, clock=clock, **settings)
        self.settle()

    @property
    def routes(self) -> list[RouteRunners]:
        return [worker.streams.route_runners for worker in self.workers]

    def route(self, name: str) -> RouteState | None:
        routes = (one.shard.state.routes.get(name) for one in self.shards)
        return next(filter(None, routes), None)

    def settle(self) -> None:
        """Run until all shards are idle; time passes only for the gathering of copies."""
        self.run_until_idle()
        while self.run_next_timer(self.clock.monotonic_ns() + GATHER_NS):
            pass

    def send_put_route(self, rule: RouteRule) -> RecordedReply:
        reply = RecordedReply()
        number = self.number_of(rule.dest)
        find_source = self.workers[number].streams.locate_source
        put_route(self.shards[number].shard.state, rule, reply, find_source)
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


def start_routes(one: OneShard, *rules: RouteRule) -> None:
    """Run the routes of a shard without a stage around it, and put those that do not exist yet."""
    state = one.shard.state
    RouteRunners(state, one.loop, Feeds(state, one.loop))
    for rule in rules:
        put_route(state, rule, RecordedReply())
        one.settle()
