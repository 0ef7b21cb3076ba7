"""Route runners for a shard without a stage around it.

Promises: after the shard is reopened, call it again with the rules that do not exist yet.
"""

from __future__ import annotations

from shared.contract.route_rule import RouteRule
from tests.harness.one_shard import OneShard, RecordedReply
from topicsd.engine.routes.route import put_route
from topicsd.stream.feeds import Feeds
from topicsd.stream.route_runner import RouteRunners


def start_routes(one: OneShard, *rules: RouteRule) -> None:
    state = one.shard.state
    RouteRunners(state, one.loop, Feeds(state, one.loop))
    for rule in rules:
        put_route(state, rule, RecordedReply())
        one.settle()
