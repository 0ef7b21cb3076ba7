"""The head of a topic after a restart, and the lost range before it.

The log does not show which records of a class below fsync were lost in a crash of the machine. So unless the
end of the last run proves that nothing is missing, the head resumes at the ceiling: no seq is used twice.
"""

from __future__ import annotations

from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.retention.retention import note_evicted
from topicsd.engine.topic import Topic
from topicsd.engine.write.seq_ceiling import needs_ceiling


def lost_tail(topic: Topic, heads_exact: bool) -> LostRange | None:
    """Return the seqs after the head that may have been given out and lost, or None."""
    if heads_exact or not needs_ceiling(topic.config) or topic.ceiling <= topic.head:
        return None
    return LostRange(topic.head + 1, topic.ceiling, "crash")


def resume_ephemeral(topic: Topic) -> None:
    """Resume the head of an ephemeral topic, whose records are lost, at its ceiling."""
    if topic.ceiling > topic.head:
        topic.head = topic.ceiling
        topic.earliest_seq = topic.head + 1
        topic.run.first_seq = topic.head + 1
        note_evicted(topic, topic.head, "crash")
