"""Creation of a topic: checks, the TopicCreate frame, and registration in the shard."""

from __future__ import annotations

from typing import cast

from msgspec import UNSET

from shared.contract.errors import TOPIC_EXISTS_INCOMPATIBLE, Refusal, limit_reached
from shared.contract.names import refuse_topic_name, topic_id
from shared.contract.topic_config import (
    Durability,
    TopicConfig,
    TopicConfigPatch,
    merge_config,
    refuse_durable,
)
from topicsd.engine.schema.record_schema import refuse_schema
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.write.seq_ceiling import Ceiling, begin_ceiling, first_ceiling
from topicsd.log.control_frame import ControlPayload, TopicCreate, encode_control


def new_topic(
    shard: ShardState, name: str, patch: TopicConfigPatch | None, first_records: int, config_field: str = ""
) -> Topic | Refusal:
    """Return a new topic, not registered yet, or a refusal.

    `config_field` is the field of the request that holds `patch`; empty when `patch` is the request.
    """
    refusal = refuse_topic_name(name) or shard.departure_of(name) or shard.refuse_creation(name)
    if refusal is not None:
        return refusal
    number = topic_id(name)
    other = shard.topics_by_id.get(number)
    if other is not None:
        message = f'topic "{name}" has the same id as topic "{other.name}", choose another name'
        return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"reason": "id_collision"})
    bound = shard.settings.max_topics
    if bound and shard.topic_count - (name in shard.new_names) >= bound:
        return limit_reached("max_topics", bound, "no more topics can be created")
    config = config_after(shard, None, patch if patch is not None else TopicConfigPatch(), name)
    if isinstance(config, Refusal):
        return config.inside(config_field)
    topic = Topic(name, number, 0, shard.intern_config(config))
    # Without a catalog the creation takes this ordinal: no other frame can join before it.
    topic.epoch = shard.next_epoch()
    shard.new_names.apply_grant(topic)
    topic.last_ts = shard.clock.now_ms()
    ceiling = first_ceiling(config, 0, first_records)
    topic.ceiling, topic.ceiling_mark = ceiling.value, ceiling.mark
    return topic


def config_after(
    shard: ShardState, existing: TopicConfig | None, patch: TopicConfigPatch, name: str
) -> TopicConfig | Refusal:
    """Return the configuration of a topic after a patch, or a refusal if the settings forbid it."""
    settings = shard.settings
    refusal = refuse_durable(patch) if settings.memory else None
    if refusal is not None:
        return refusal
    config = merge_config(existing, patch, name, cast(Durability, settings.default_durability))
    if isinstance(config, Refusal) or config.schema is None or patch.schema is UNSET:
        return config
    before = None if existing is None or patch.force is True else existing.schema
    return refuse_schema(before, config.schema) or config


def register_topic(shard: ShardState, topic: Topic) -> None:
    """Add a new topic to the shard; the caller logs its creation in the same turn of the loop."""
    if topic.epoch != shard.log.batch.next_ordinal:
        shard.raise_epoch_floor(topic.epoch)
    shard.add_topic(topic)
    begin_ceiling(shard, topic, Ceiling(topic.ceiling, topic.ceiling_mark))
    if topic.ownership is not None:
        shard.new_names.use_grant(topic)
    shard.catalog_work.observe(topic, shard.clock.now_ms())


def creation_frames(shard: ShardState, topic: Topic) -> list[bytes]:
    """Return the frame of a creation, and that of its row in the catalog; call it before the registration."""
    epoch = 0 if topic.epoch == shard.log.batch.next_ordinal else topic.epoch
    controls: list[ControlPayload] = [TopicCreate(topic.name, topic.config, topic.ceiling, epoch)]
    if topic.ownership is not None:
        controls.append(topic.ownership.frame)
    return [
        encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=True)
        for control in controls
    ]
