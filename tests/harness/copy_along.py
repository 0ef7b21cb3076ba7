"""Routes at work in a shard that has no stage around it.

Promises: a shard that was opened again needs it again, with the rules that are not there yet.
"""

from __future__ import annotations

from shared.contract.route_rule import ForwardRule
from tests.harness.one_shard import OneShard, Told
from topicsd.engine.routes.route import put_forward
from topicsd.stream.feeds import Feeds
from topicsd.stream.route_runner import Forwards


def copy_along(one: OneShard, *rules: ForwardRule) -> None:
    state = one.shard.state
    Forwards(state, one.loop, Feeds(state, one.loop))
    for rule in rules:
        put_forward(state, rule, Told())
        one.settle()
