"""Requests to the catalog and the object store by the owner of a topic.

Each request shows the ownership. A refusal (`Fenced`) has the topic depart, and ends the job with `NotOwned`.
A request without an answer raises one of `AWAY`: the caller repeats it later (R9).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from shared.runtime.retries import Retries
from topicsd.catalog.catalog import (
    CatalogRefused,
    CatalogUnavailable,
    ChangeRefused,
    Extent,
    ExtentObject,
    Fenced,
    Ownership,
    TopicRow,
)
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.ownership.catalog_work import CatalogCall
from topicsd.engine.ownership.rounds import CatalogRounds
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.store.create_object import create_object
from topicsd.store.object_store import ObjectStore, StoreRefused, StoreUnavailable

AWAY: Final = (CatalogUnavailable, CatalogRefused, StoreUnavailable, StoreRefused)


class NotOwned(Exception):
    """The topic is not owned by this node any more; it has departed."""


class OwnerCalls:
    """The requests of one shard for the topics that it owns."""

    def __init__(
        self, shard: ShardState, rounds: CatalogRounds, store: ObjectStore, retries: Retries
    ) -> None:
        self._shard = shard
        self._rounds = rounds
        self._store = store
        self._retries = retries

    def row(self, topic: Topic) -> BackgroundJob[TopicRow]:
        return (yield from self.raise_ceiling(topic, 0))

    def raise_ceiling(self, topic: Topic, ceiling: int) -> BackgroundJob[TopicRow]:
        ownership = self._ownership(topic)
        return (yield from self._call(topic, lambda to: to.raise_ceiling(topic.name, ownership, ceiling)))

    def publish(
        self, topic: Topic, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> BackgroundJob[TopicRow]:
        ownership = self._ownership(topic)
        return (
            yield from self._call(topic, lambda to: to.publish_extents(topic.name, ownership, add, remove))
        )

    def extents(self, topic: Topic, seq: int, limit: int) -> BackgroundJob[list[Extent]]:
        calls = self._rounds.calls
        (present,) = yield partial(calls.run, [lambda to: to.extents_from(topic.name, seq, limit)], 0.0)
        return list(present)

    def put_object(self, key: str, data: bytes) -> BackgroundJob[ExtentObject]:
        yield partial(create_object, self._store, key, [data], self._retries)
        return ExtentObject(key, len(data), hashlib.sha256(data).hexdigest())

    def check_owned(self, topic: Topic) -> None:
        if self._shard.topics.get(topic.name) is not topic or topic.ownership is None:
            raise NotOwned

    def _ownership(self, topic: Topic) -> Ownership:
        self.check_owned(topic)
        assert topic.ownership is not None
        return Ownership(self._rounds.node_id, topic.epoch, topic.ownership.owner_epoch)

    def _call(self, topic: Topic, call: CatalogCall) -> BackgroundJob[TopicRow]:
        (outcome,) = yield partial(self._rounds.calls.run, [call], 0.0)
        if isinstance(outcome, Fenced):
            self._rounds.on_fenced(topic, outcome)
            raise NotOwned
        if isinstance(outcome, ChangeRefused):
            raise outcome
        assert isinstance(outcome, TopicRow)
        self.check_owned(topic)
        return outcome
