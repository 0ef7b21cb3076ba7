"""Iteration over all topics of a shard in groups, each small enough for one turn of the loop."""

from __future__ import annotations

from collections.abc import Iterator

from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic

# A caller spends a few microseconds on each run.
RUNS_A_TURN = 250


def topics_by_turns(shard: ShardState) -> Iterator[list[Topic]]:
    """Yield the topics that exist now, in groups; some may be deleted before their group."""
    topics: list[Topic] = []
    run_count = 0
    for topic in list(shard.topics.values()):
        topics.append(topic)
        run_count += len(topic.runs)
        if run_count >= RUNS_A_TURN:
            yield topics
            topics, run_count = [], 0
    yield topics
