"""Which tags the jobs of a queue have that goes by them, as a start finds them in segments.

The tags stand in the segments already, so a snapshot need not repeat them, and none has to be written while
requests wait. Of a segment whose tags cannot be read the records cannot either, but for those a repair gets
back: they go as if they had none.
"""

from __future__ import annotations

import logging

from topicsd.engine.records.run import Run
from topicsd.engine.topic import Topic
from topicsd.segment.entry import SegmentDamage

logger = logging.getLogger("topicsd.engine")


def order_jobs(topic: Topic) -> None:
    """Tell the queue what is alive, in the order of seqs."""
    queue = topic.queue
    if queue is None or queue.order is None:
        return
    for run in topic.runs:
        tags = {seq: tag for tag, seqs in _tags(topic, run).items() for seq in seqs}
        seq = run.next_live(max(run.first_seq, topic.earliest_seq))
        while seq < run.next_seq:
            queue.came(seq, tags.get(seq, b""))
            seq = run.next_live(seq + 1)


def _tags(topic: Topic, run: Run) -> dict[bytes, list[int]]:
    try:
        return run.all_tags()
    except (SegmentDamage, OSError) as error:
        logger.error(
            'topic "%s": jobs from seq %d on are not kept in order, their tags cannot be read: %s',
            topic.name,
            run.first_seq,
            error,
        )
        return {}
