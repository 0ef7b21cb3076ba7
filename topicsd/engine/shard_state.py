"""What one shard holds in memory, for the modules that act on it.

A topic is found by its name and by its id. From the moment its creation joins the log it is here, and
`visible` from the moment that is published.

Must not know: how anything is done with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.clock import Clock
from shared.config import Settings
from shared.contract import TopicConfig
from topicsd.engine.dedupe import Dedupe
from topicsd.engine.topic import Topic
from topicsd.wal.group_commit import GroupCommit
from topicsd.wal.log_files import LogFiles

if TYPE_CHECKING:
    from topicsd.engine.append import PendingAppend


class ShardState:
    def __init__(self, clock: Clock, settings: Settings, files: LogFiles) -> None:
        self.clock = clock
        self.settings = settings
        self.files = files
        self.log: GroupCommit
        self._configs: dict[TopicConfig, TopicConfig] = {}
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self.dedupe = Dedupe(settings.max_idempotency_keys)
        self.keyed: dict[bytes, PendingAppend] = {}
        """Keyed writes that are on their way, by the digest of their key."""
        self.raised: dict[Topic, None] = {}
        """Topics whose ceiling stands above their head, the longest untouched first."""

    def one_config(self, config: TopicConfig) -> TopicConfig:
        """Topics that are configured alike share one object: most of 100,000 are."""
        return self._configs.setdefault(config, config)

    def add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic

    def remove_topic(self, topic: Topic) -> None:
        del self.topics[topic.name]
        del self.topics_by_id[topic.topic_id]
        self.raised.pop(topic, None)

    def visible_topic(self, name: str) -> Topic | None:
        topic = self.topics.get(name)
        return topic if topic is not None and topic.visible else None

    def must_wait(self, topic: Topic) -> bool:
        """Whether what joins now is published by a sync, whatever its class."""
        return topic.waiting_count > 0 or self.log.behind
