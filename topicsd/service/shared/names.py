"""Which names are shared topics, as a broker answers it, and their creation.

N1  A name that is being created is a shared topic for all requests after the one that creates it.
N2  That a name is no shared topic is remembered for a moment, for requests that create nothing. One that may
    create a local topic asks the catalog, so that no name gets two topics.
    It also asks when the row is older than ROW_SECONDS, so that a change at another broker is followed.
N3  A shared topic is created only when this node has no local topic of its name, and no queue whose
    dead-letter topic it would be.
N4  A request waits for a creation at most CREATION_SECONDS. The creation continues, and is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shared.contract.errors import TOPIC_EXISTS_INCOMPATIBLE, Refusal, not_ready
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
CREATION_SECONDS: Final = 10.0
NO_AGE: Final = -1.0
"""No row is as recent: the catalog is asked."""

LocalLookup = Callable[[str, Callable[[bool | Refusal], object]], object]
"""Reports whether this node has a local topic of a name, or a queue with that dead-letter topic."""
OnTopic = Callable[[SharedTopic | Refusal | None], object]


def no_local_topics(name: str, reply: Callable[[bool | Refusal], object]) -> None:
    """Answer for a node that has none, or for a name that was looked up already."""
    reply(False)


class SharedNames:
    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        find_local: LocalLookup = no_local_topics,
        find_queue: LocalLookup = no_local_topics,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._find_local = find_local
        self._find_queue = find_queue
        self._missing: dict[str, float] = {}
        """Names of which the catalog said that they are no shared topics, and when it was asked."""
        self._creating: dict[str, list[OnTopic]] = {}
        """The requests that wait for a creation, in their order."""
        self._finding: dict[str, int] = {}
        """How many requests for a name wait for the catalog; later ones do not overtake them."""

    def find(self, name: str, on_topic: OnTopic, *, may_create: bool, seconds_max: float = ANY_AGE) -> None:
        """Find the topic, as it was known here in the last `seconds_max`.

        `may_create` is of requests that may create one (N2).
        """
        topics = self._broker.topics
        is_creating = name in self._creating
        topic: SharedTopic | None = None
        if may_create:
            seconds_max = min(seconds_max, ROW_SECONDS)
        if not is_creating:
            topic = topics.recent(name, seconds_max) if may_create else topics.known(name, seconds_max)
        if topic is not None:
            on_topic(topic)
        elif is_creating and name not in self._finding:
            self._wait(name, on_topic)
        elif not may_create and not is_creating and self._is_missing(name):
            on_topic(None)
        else:
            asked_at = self._clock.monotonic()
            self._finding[name] = self._finding.get(name, 0) + 1
            topics.find(name, seconds_max)(partial(self._on_found, name, asked_at, on_topic))

    def _is_missing(self, name: str) -> bool:
        asked_at = self._missing.get(name)
        return asked_at is not None and self._clock.monotonic() - asked_at <= MISSING_SECONDS

    def _on_found(
        self, name: str, asked_at: float, on_topic: OnTopic, outcome: SharedTopic | OSError | None
    ) -> None:
        count = self._finding.pop(name) - 1
        if count:
            self._finding[name] = count
        if isinstance(outcome, OSError):
            on_topic(no_catalog(outcome))
            return
        if name in self._creating:
            self._wait(name, on_topic)
            return
        if outcome is None:
            if len(self._missing) >= MISSING_MAX:
                self._missing.clear()
            self._missing[name] = asked_at
        on_topic(outcome)

    def current(self, name: str) -> Wait:
        """Wait for the row of the catalog as it is now; the result is None when there is no such topic."""
        return self._broker.topics.find(name, NO_AGE)

    # -- creation

    def create(self, name: str, config: SharedTopicConfig, on_topic: OnTopic) -> None:
        """Find the topic, or create it, if no local topic has the name (N3)."""
        if name in self._creating:
            self._wait(name, on_topic)
            return
        waiting = self._creating[name] = []
        self._wait(name, on_topic)

        def end(outcome: SharedTopic | Refusal | OSError | None) -> None:
            del self._creating[name]
            self._missing.pop(name, None)
            result = no_catalog(outcome) if isinstance(outcome, OSError) else outcome
            resumes = waiting[:]
            waiting.clear()
            for resume in resumes:
                resume(result)

        run(self._create(name, config), end)

    def _wait(self, name: str, on_topic: OnTopic) -> None:
        """Wait for the creation of the topic, for a bounded time (N4)."""
        waiting = self._creating[name]
        waiting.append(on_topic)
        self._broker.call_later(CREATION_SECONDS, self._give_up, name, waiting, on_topic)

    def _give_up(self, name: str, waiting: list[OnTopic], on_topic: OnTopic) -> None:
        if on_topic in waiting:
            waiting.remove(on_topic)
            on_topic(not_ready(f'topic "{name}" is being created; nothing was appended'))

    def _create(self, name: str, config: SharedTopicConfig) -> Steps[SharedTopic | Refusal | None]:
        # Also for a shard that has asked, and may have created it since.
        is_local: bool | Refusal = yield partial(self._find_local, name)
        if is_local:
            return is_local if isinstance(is_local, Refusal) else local_exists(name)
        gets_dead_letters: bool | Refusal = yield partial(self._find_queue, name)
        if gets_dead_letters:
            return gets_dead_letters if isinstance(gets_dead_letters, Refusal) else dead_letters_end(name)
        incarnation = new_incarnation(self._clock.now_ms())
        topic: Any = yield self._broker.create(name, incarnation, encode_shared_config(config))
        return topic  # type: ignore[no-any-return]


def is_local_name(outcome: SharedTopic | Refusal | None) -> bool:
    """Return whether no shared topic has the name; its creation may have ended with that (N3)."""
    return outcome is None or (isinstance(outcome, Refusal) and outcome.code == TOPIC_EXISTS_INCOMPATIBLE)


def local_exists(name: str) -> Refusal:
    message = f'topic "{name}" is a local topic of this server'
    return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"field": "placement"})


def dead_letters_end(name: str) -> Refusal:
    message = f'topic "{name}" gets the dead letters of a queue of this server, so it must be local'
    return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"field": "placement"})
