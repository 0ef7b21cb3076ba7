"""Routes at work in a shard that has no stage around it.

Promises: a shard that was opened again needs it again, with the rules that are not there yet.

What it must not know: what is copied.
"""

from __future__ import annotations

from shared.forward_rule import ForwardRule
from tests.harness.one_shard import OneShard, Told
from topicsd.engine.forwards import put_forward
from topicsd.live.feeds import Feeds
from topicsd.live.forwards import Forwards


def copy_along(one: OneShard, *rules: ForwardRule) -> None:
    state = one.shard.state
    Forwards(state, one.loop, Feeds(state, one.loop))
    for rule in rules:
        put_forward(state, rule, Told())
        one.settle()
