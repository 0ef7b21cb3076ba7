"""Which names are shared topics, as a broker answers it, and their creation.

N1  A name that is being created is a shared topic for all requests after the one that creates it.
N2  That a name is no shared topic is remembered for a moment, for requests that create nothing. One that may
    create a local topic asks the catalog, so that no name gets two topics.
    It also asks when the row is older than ROW_SECONDS, so that a change at another broker is followed.
N3  A shared topic is created only when this node has no local topic of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shared.contract.errors import TOPIC_EXISTS_INCOMPATIBLE, Refusal
from shared.runtime.clock import Clock
from topicsd.broker.broker import Broker
from topicsd.broker.read.reader import ROW_SECONDS
from topicsd.broker.refusals import no_catalog
from topicsd.broker.shared_config import SharedTopicConfig, encode_shared_config
from topicsd.broker.steps import Steps, Wait, run
from topicsd.broker.topic_table import ANY_AGE, new_incarnation
from topicsd.catalog.shared.shared_catalog import SharedTopic

MISSING_SECONDS: Final = 1.0
MISSING_MAX: Final = 10_000
NO_AGE: Final = -1.0
"""No row is as recent: the catalog is asked."""

LocalLookup = Callable[[str, Callable[[bool | Refusal], object]], object]
"""Reports whether this node has a local topic of a name."""
OnTopic = Callable[[SharedTopic | Refusal | None], object]


def no_local_topics(name: str, reply: Callable[[bool | Refusal], object]) -> None:
    """Answer for a node that has none, or for a name that was looked up already."""
    reply(False)


class SharedNames:
    def __init__(self, broker: Broker, clock: Clock, find_local: LocalLookup = no_local_topics) -> None:
        self._broker = broker
        self._clock = clock
        self._find_local = find_local
        self._missing: dict[str, float] = {}
        """Names of which the catalog said that they are no shared topics, and when it was asked."""
        self._creating: dict[str, list[OnTopic]] = {}
        """The requests that wait for a creation, in their order."""

    def find(self, name: str, on_topic: OnTopic, *, may_create: bool) -> None:
        """Find the topic, as it is known here; `may_create` is of requests that may create one (N2)."""
        topics, seconds_max = self._broker.topics, ROW_SECONDS if may_create else ANY_AGE
        topic = topics.recent(name, ROW_SECONDS) if may_create else topics.known(name)
        if topic is not None:
            on_topic(topic)
        elif name in self._creating:
            self._creating[name].append(on_topic)
        elif not may_create and self._is_missing(name):
            on_topic(None)
        else:
            asked_at = self._clock.monotonic()
            topics.find(name, seconds_max)(partial(self._on_found, name, asked_at, on_topic))

    def _is_missing(self, name: str) -> bool:
        asked_at = self._missing.get(name)
        return asked_at is not None and self._clock.monotonic() - asked_at <= MISSING_SECONDS

    def _on_found(
        self, name: str, asked_at: float, on_topic: OnTopic, outcome: SharedTopic | OSError | None
    ) -> None:
        if isinstance(outcome, OSError):
            on_topic(no_catalog(outcome))
            return
        if outcome is None:
            if name in self._creating:
                self._creating[name].append(on_topic)
                return
            if len(self._missing) >= MISSING_MAX:
                self._missing.clear()
            self._missing[name] = asked_at
        on_topic(outcome)

    def current(self, name: str) -> Wait:
        """Wait for the row of the catalog as it is now; the result is None when there is no such topic."""
        return self._broker.topics.find(name, NO_AGE)

    # -- creation

    def create(
        self, name: str, config: SharedTopicConfig, on_topic: OnTopic, *, is_local_known: bool
    ) -> None:
        """Find the topic, or create it; `is_local_known` says that its shard does not have it (N3)."""
        if name in self._creating:
            self._creating[name].append(on_topic)
            return
        waiting = [on_topic]
        self._creating[name] = waiting

        def end(outcome: SharedTopic | Refusal | OSError | None) -> None:
            del self._creating[name]
            self._missing.pop(name, None)
            result = no_catalog(outcome) if isinstance(outcome, OSError) else outcome
            for resume in waiting:
                resume(result)

        run(self._create(name, config, is_local_known), end)

    def _create(
        self, name: str, config: SharedTopicConfig, is_local_known: bool
    ) -> Steps[SharedTopic | Refusal | None]:
        if not is_local_known:
            is_local: bool | Refusal = yield partial(self._find_local, name)
            if isinstance(is_local, Refusal):
                return is_local
            if is_local:
                return local_exists(name)
        incarnation = new_incarnation(self._clock.now_ms())
        topic: Any = yield self._broker.create(name, incarnation, encode_shared_config(config))
        return topic  # type: ignore[no-any-return]


def local_exists(name: str) -> Refusal:
    message = f'topic "{name}" is a local topic of this server'
    return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"field": "placement"})
