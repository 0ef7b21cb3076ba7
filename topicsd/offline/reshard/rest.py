"""Old shards at rest: every record in a segment, everything else in the newest snapshot.

A shard is opened as a server opens it, and closed after a checkpoint. Opening it repairs what a start repairs
and reports what a start reports: torn tails, lost ranges, a shard that refuses to start. It can be repeated
at any time, so an interrupted reshard has lost nothing by it.

Frames that follow the snapshot's log place are in the snapshot, or note a floor or a ceiling that it has: the
replay of them must change no topic, or the shard is refused.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

from shared.runtime.clock import Clock
from topicsd.disk.layout import doctor_command
from topicsd.engine.checkpoint.job import (
    FILES_TO_DROP,
    OBJECTS_TO_DELETE,
    FilesToDrop,
    files_to_drop_of,
    objects_to_delete_of,
)
from topicsd.engine.checkpoint.snapshot_format import (
    EPOCH_FLOOR,
    KeyGeneration,
    Snapshot,
    SnapshotTopic,
    epoch_floor_of,
)
from topicsd.engine.ownership.departed import (
    DEPARTED,
    TO_FORGET,
    Departed,
    ToForget,
    departed_of,
    to_forget_of,
)
from topicsd.engine.session_log import WATCH_SESSIONS, sessions_of
from topicsd.engine.shard import Shard
from topicsd.engine.write.seq_ceiling import lower_all_ceilings
from topicsd.log.control_frame import SessionFrame
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import LoadedShard

_KNOWN_SECTIONS: Final = frozenset(
    (FILES_TO_DROP, OBJECTS_TO_DELETE, WATCH_SESSIONS, EPOCH_FLOOR, DEPARTED, TO_FORGET)
)


class ReshardRefused(Exception):
    """The reason why a data directory cannot be resharded, as a sentence."""


class RestedShard(NamedTuple):
    """The content of a shard at rest."""

    number: int
    next_ordinal: int
    """Above the ordinal of every frame that the shard ever wrote."""
    topics: list[SnapshotTopic]
    """All topics that have files here, also departed ones."""
    keys: list[KeyGeneration]
    sessions: list[SessionFrame]
    files_to_drop: list[FilesToDrop]
    objects_to_delete: dict[str, int]
    epoch_floor: int
    departed: list[Departed]
    to_forget: list[ToForget]


def bring_to_rest(shard: Shard) -> None:
    """Checkpoint and close an open shard; OSError when the disk fails."""
    try:
        lower_all_ceilings(shard.state)
        shard.checkpoints.run_now()
    finally:
        shard.close(checkpoint=False)


def read_rested(data_dir: DataDir, number: int, clock: Clock) -> RestedShard:
    """Return the content of a shard at rest; raise ReshardRefused for any other."""
    where = data_dir.paths(number).root
    with closing(LoadedShard(data_dir, number, clock)) as loaded:
        loaded.walk()
        problem = loaded.problem or loaded.log.problem
        if problem:
            raise ReshardRefused(f"{where}: {problem}; run: {doctor_command(data_dir.path)}")
        snapshot, walk = loaded.chosen.snapshot, loaded.log.walked
        assert walk is not None
        topics = [] if snapshot is None else snapshot.topics
        if loaded.chosen.complaints:
            raise ReshardRefused(f"{where}: {loaded.chosen.complaints[0]}")
        captured = {topic.topic_id: (topic.epoch, topic.head) for topic in topics if not _is_ephemeral(topic)}
        replayed = {
            topic.topic_id: (topic.epoch, topic.head)
            for topic in loaded.state.topics_by_id.values()
            if not topic.is_ephemeral
        }
        if captured != replayed or loaded.state.topics_by_id.keys() != {topic.topic_id for topic in topics}:
            raise ReshardRefused(f"{where}: another process wrote to the shard; stop it and run this again")
        if snapshot is None:
            return RestedShard(number, walk.ordinal, [], [], [], [], {}, 0, [], [])
        unknown = sorted(snapshot.head.sections.keys() - _KNOWN_SECTIONS)
        if unknown:
            raise ReshardRefused(f"{where}: a newer program wrote its snapshot, with {', '.join(unknown)}")
        return _content_of(number, walk.ordinal, snapshot)


def _content_of(number: int, next_ordinal: int, snapshot: Snapshot) -> RestedShard:
    head = snapshot.head
    return RestedShard(
        number,
        next_ordinal,
        snapshot.topics,
        snapshot.keys,
        sessions_of(head),
        files_to_drop_of(head),
        objects_to_delete_of(head),
        epoch_floor_of(head),
        departed_of(head),
        to_forget_of(head),
    )


def _is_ephemeral(topic: SnapshotTopic) -> bool:
    return topic.config.durability == "ephemeral"
