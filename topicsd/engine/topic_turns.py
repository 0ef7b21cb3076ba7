"""All topics of a shard, so many at a time as may be looked at in one turn of the loop."""

from __future__ import annotations

from collections.abc import Iterator

from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic

# Some microseconds each.
RUNS_A_TURN = 250


def topics_by_turns(shard: ShardState) -> Iterator[list[Topic]]:
    """Those that there are at the beginning; one may be gone when its turn comes."""
    topics: list[Topic] = []
    run_count = 0
    for topic in list(shard.topics.values()):
        topics.append(topic)
        run_count += len(topic.runs)
        if run_count >= RUNS_A_TURN:
            yield topics
            topics, run_count = [], 0
    yield topics
