"""Where the head of a topic goes on when its shard starts again, and what is lost in front of that.

What a class below fsync lost with its machine cannot be seen in the log, so unless the end of the last run
proves that nothing is missing, the head goes on at the ceiling: a seq is never used twice.
"""

from __future__ import annotations

from shared.contract.errors import Refusal
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.retention.retention import note_evicted
from topicsd.engine.topic import Topic
from topicsd.engine.write.seq_ceiling import needs_ceiling


def lost_tail(topic: Topic, heads_exact: bool) -> LostRange | None:
    """The seqs behind the end of the log that may have been given out and lost."""
    if heads_exact or not needs_ceiling(topic.config) or topic.ceiling <= topic.head:
        return None
    return LostRange(topic.head + 1, topic.ceiling, "crash")


class LossNotes:
    """All frames that say what may be lost; without them on the disk the shard may not go on behind it."""

    def __init__(self) -> None:
        self.ordinal = 0
        self.refusal: Refusal | None = None

    def publish(self) -> None:
        pass  # Readers are told from the memory.

    def undo(self) -> None:
        pass

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal


def resume_ephemeral(topic: Topic) -> None:
    """Nothing of it survives a restart; its head does not go back."""
    if topic.ceiling > topic.head:
        topic.head = topic.ceiling
        topic.earliest_seq = topic.head + 1
        topic.run.first_seq = topic.head + 1
        note_evicted(topic, topic.head, "crash")
