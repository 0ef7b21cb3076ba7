"""Model nodes that break one rule each: what the judgement of a history has to find."""

from __future__ import annotations

import secrets
from functools import partial

from tests.harness.cluster.answers import Appended, Refused, Reply
from tests.harness.cluster.models.model_node import BLOCK, ModelNode
from tests.harness.cluster.models.model_topic import DeferredRequest, ModelTopic, Segment
from topicsd.catalog.catalog import CatalogUnavailable, ChangeRefused, Fenced, TopicRow
from topicsd.store.object_store import StoreUnavailable


class IgnoresFences(ModelNode):
    """A fenced node still serves, and raises the ceiling in its memory alone."""

    def on_fenced(self, topic: ModelTopic, fenced: Fenced) -> None:
        self._write_and_wait(topic.name, "grant", topic.owner_epoch, topic.head + 1000)


class IgnoresCeilings(ModelNode):
    """A node gives out seqs that the catalog has not granted."""

    def refuse_above_ceiling(self, topic: ModelTopic, last_seq: int) -> Refused | None:
        return None


class PublishesBeforePut(ModelNode):
    def put_and_publish(self, topic: ModelTopic, segment: Segment, data: bytes) -> None:
        extent = self.extent(topic, segment, data)
        self.publish(topic, extent)
        self.put(topic, segment, data)


class DropsBeforePublish(ModelNode):
    """A node drops its local copy with the objects in the store, before the catalog has the extent."""

    def put_and_publish(self, topic: ModelTopic, segment: Segment, data: bytes) -> None:
        extent = self.put(topic, segment, data)
        self._write_and_wait(topic.name, "dropped", segment)
        self.publish(topic, extent)


class RetriesWithNewKey(ModelNode):
    """A node takes its first request for undone when it got no answer, and deletes its objects."""

    def put_and_publish(self, topic: ModelTopic, segment: Segment, data: bytes) -> None:
        try:
            super().put_and_publish(topic, segment, data)
        except CatalogUnavailable:
            for suffix in (".data", ".state"):
                self._store.delete(segment.stem + suffix)
            other = segment._replace(stem=f"{segment.stem}-{secrets.token_hex(2)}")
            try:
                super().put_and_publish(topic, other, data)
            except ChangeRefused:
                raise StoreUnavailable("published before") from None


class DeletesBeforeTrim(ModelNode):
    """A node deletes objects before the catalog has forgotten the extent."""

    def remove_extent(self, topic: ModelTopic, segment: Segment) -> None:
        self._store.delete(segment.stem + ".data")
        super().remove_extent(topic, segment)


class AcknowledgesBeforeSync(ModelNode):
    """A node with a slow disk acknowledges a write before its sync (M1)."""

    sync_ms = 2_000.0

    def _append(
        self, name: str, payloads: list[bytes], key: str | None, may_create: bool, reply: Reply
    ) -> None:
        topic = self.topics.get(name)
        head = 0 if topic is None else topic.head
        super()._append(name, payloads, key, may_create, lambda answer: None)
        topic = self.topics.get(name)
        if topic is not None and topic.head > head:
            reply(Appended(head + 1, topic.head))


class ResumesAfterSeal(ModelNode):
    """A node that gets no answer to its seal serves the topic again (K5)."""

    def _finish_seal(self, topic: ModelTopic) -> None:
        try:
            super()._finish_seal(topic)
        except CatalogUnavailable:
            self._write_and_wait(topic.name, "sealing", "")
            raise


class AdoptsAtItsHead(ModelNode):
    """A node that takes a topic over resumes after the last exported seq, not above the ceiling."""

    def resume_after(self, row: TopicRow) -> int:
        return row.exported_to


class HidesLostRanges(ModelNode):
    def lost_range(self, row: TopicRow) -> list[tuple[int, int]]:
        return []


class ForgetsKeys(ModelNode):
    """A node adopts a topic without its idempotency keys."""

    def _load(self, row: TopicRow) -> None:
        super()._load(row)
        self.topics[row.name].keys.clear()


class ForgetsDeletes(ModelNode):
    """A node adopts a topic without the deletes of its records."""

    def _load(self, row: TopicRow) -> None:
        super()._load(row)
        self.topics[row.name].deleted.clear()


class ServesAtOnce(ModelNode):
    """A node serves a topic that it has read nothing of yet, so it repeats seqs."""

    def _adopt(self, name: str, accept_loss: bool, reply: Reply) -> None:
        if name not in self.topics:
            self._write(name, "create", len(self._log) + 1)
        super()._adopt(name, accept_loss, partial(reply))


class CreatesBeforeTheGrant(ModelNode):
    """A node creates a topic at once, and its row in the catalog later."""

    def create(self, name: str, request: DeferredRequest) -> None:
        self._write(name, "create", len(self._log) + 1)
        request.retry()

    def _care_for(self, topic: ModelTopic) -> None:
        try:
            if topic.is_served and not topic.owner_epoch:
                row = self._catalog.create(topic.name, 1, topic.incarnation, self.name, topic.head + BLOCK)
                self._write_and_wait(topic.name, "grant", 1, row.ceiling)
        except Fenced as fenced:
            self.on_fenced(topic, fenced)
        else:
            super()._care_for(topic)


BROKEN: list[type[ModelNode]] = [
    IgnoresFences,
    IgnoresCeilings,
    PublishesBeforePut,
    DropsBeforePublish,
    RetriesWithNewKey,
    DeletesBeforeTrim,
    AcknowledgesBeforeSync,
    ResumesAfterSeal,
    AdoptsAtItsHead,
    HidesLostRanges,
    ForgetsKeys,
    ForgetsDeletes,
    ServesAtOnce,
    CreatesBeforeTheGrant,
]
