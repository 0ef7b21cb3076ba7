"""The tags of the jobs of an ordered or fair queue, read from its segments at a start.

The segments have the tags already, so a snapshot does not repeat them, and none are encoded while requests
wait. If the tags of a segment are unreadable, so are its records, except those that a repair recovers: these
are treated as jobs without a tag.
"""

from __future__ import annotations

import logging

from topicsd.engine.records.run import Run
from topicsd.engine.topic import Topic
from topicsd.segment.entry import SegmentDamage

logger = logging.getLogger("topicsd.engine")


def rebuild_tag_order(topic: Topic) -> None:
    """Enter the live records of a topic in its ordered or fair queue, in the order of seqs."""
    queue = topic.queue
    if queue is None or not queue.needs_tags:
        return
    for run in topic.runs:
        tags = {seq: tag for tag, seqs in _tags(topic, run).items() for seq in seqs}
        seq = run.next_live(max(run.first_seq, topic.earliest_seq))
        while seq < run.next_seq:
            queue.add_record(seq, tags.get(seq, b""))
            seq = run.next_live(seq + 1)


def _tags(topic: Topic, run: Run) -> dict[bytes, list[int]]:
    try:
        return run.all_tags()
    except (SegmentDamage, OSError) as error:
        logger.error(
            'topic "%s": jobs from seq %d on lose their tag order, tags unreadable: %s',
            topic.name,
            run.first_seq,
            error,
        )
        return {}
