"""A client's knowledge of a shard's topics across crashes: ledger and configurations.

Promises: a name may be deleted and created again. Each incarnation is another page of the ledger (`name#2`),
and the epoch, which is never reused, decides which one a recovery shows. Configuration changes are kept with
their topic: a recovery may show the last acknowledged one or one that was in flight, and may evict only what
a cap or TTL that was ever requested allows.

A book is plain data: `copied` makes one for each outcome of a crash.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

from shared.contract.topic_config import TopicConfig, TopicConfigPatch, merge_config
from tests.harness.books.ledger import Ledger
from tests.harness.books.ledger_entries import Request, TopicContents
from tests.harness.books.session_book import SessionBook
from topicsd.engine.requests import TopicState

# The bytes of a frame besides tag, node and payload.
FRAME_OVERHEAD = 50


@dataclass(eq=False)
class Incarnation:
    """One topic from its creation to its deletion. `epoch` is None until an answer shows it."""

    name: str
    page: str
    config: TopicConfig
    epoch: int | None = None
    leaving: bool = False
    has_shown_config: bool = False
    # The highest floor that was ever shown.
    floor: int = 0
    # Unanswered changes, oldest first.
    coming: list[TopicConfig] = field(default_factory=list)
    # Every configuration that was ever requested.
    requested: list[TopicConfig] = field(default_factory=list)
    # Results of changes that were sent before the topic was created: writes before them may fail.
    either: list[TopicConfig] = field(default_factory=list)

    @property
    def is_born(self) -> bool:
        return self.epoch is not None

    @property
    def next_config(self) -> TopicConfig:
        return self.coming[-1] if self.coming else self.config

    @property
    def is_always_fsync(self) -> bool:
        return all(config.durability == "fsync" for config in self.requested)


class ShardBook:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.sessions = SessionBook()
        self.topics: list[Incarnation] = []
        """Topics that may exist, in the order of their creation."""
        self.sent_ms: dict[bytes, int] = {}
        self.latest_ms = 0
        self._page_count: dict[str, int] = {}
        self._payload_count = 0

    def copied(self) -> ShardBook:
        twin: ShardBook = pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        return twin

    # Requests.

    def payload(self, size: int) -> bytes:
        """Return a unique JSON payload of at least that size."""
        self._payload_count += 1
        text = b'{"n":%d,"x":""}' % self._payload_count
        return b'{"n":%d,"x":"%s"}' % (self._payload_count, b"x" * max(0, size - len(text)))

    def target(self, name: str, patch: TopicConfigPatch | None = None) -> Incarnation:
        """Return the topic that a write to the name reaches; create one if none takes writes."""
        for topic in reversed(self.topics):
            if topic.name == name and not topic.leaving:
                if not topic.is_born:
                    # The first write that is accepted creates the topic.
                    topic.requested.append(first_config(name, patch))
                return topic
        config = first_config(name, patch)
        number = self._page_count[name] = self._page_count.get(name, 0) + 1
        topic = Incarnation(name, f"{name}#{number}", config, requested=[config])
        self.ledger.topic(topic.page, config.durability, evicts=_evicts(config))
        self.topics.append(topic)
        return topic

    def of_name(self, name: str) -> Incarnation | None:
        """Return the topic that readers of the name see, or None."""
        return next((topic for topic in self.topics if topic.name == name), None)

    def ask_config(self, topic: Incarnation, patch: TopicConfigPatch) -> None:
        """Note a change in flight, if it is valid for the topic."""
        if not topic.is_born:
            # Any of the earlier writes may have created the topic.
            merged = [merge_config(earlier, patch, topic.name) for earlier in topic.requested]
            topic.either += [config for config in merged if isinstance(config, TopicConfig)]
            topic.requested += topic.either
        config = merge_config(topic.next_config, patch, topic.name)
        if isinstance(config, TopicConfig):
            topic.coming.append(config)
            topic.requested.append(config)

    # Answers.

    def born(self, topic: Incarnation, epoch: int) -> None:
        others = {other.epoch for other in self.topics if other is not topic}
        assert epoch not in others, f"epoch {epoch} was assigned twice"
        topic.epoch = epoch

    def has_config(self, topic: Incarnation, config: TopicConfig) -> None:
        """Note the topic's configuration; earlier changes were applied too, or replaced by it."""
        if config in topic.coming:
            del topic.coming[: topic.coming.index(config) + 1]
        elif config not in topic.either:
            known = (topic.config,) if topic.has_shown_config else topic.requested
            assert config in known, f"{topic.page}: {config} was never requested"
        topic.has_shown_config = True
        topic.config = config
        page = self.ledger.page(topic.page)
        page.durability = config.durability
        # An unacknowledged change may have been in effect for a while, too.
        page.evicts = any(_evicts(one) for one in topic.requested)

    def gone(self, topic: Incarnation) -> None:
        self.topics.remove(topic)
        self.ledger.forget(topic.page)

    def stays(self, topic: Incarnation, requests: list[Request]) -> None:
        """Note a refused deletion: requests for the next topic of the name belong to this one."""
        topic.leaving = False
        next_topics = [other for other in self.topics if other.name == topic.name and other is not topic]
        for after in next_topics:
            for request in requests:
                if request.topic == after.page:
                    self.ledger.rehome(request, topic.page)
            self.gone(after)

    # Results of a recovery.

    def check(
        self,
        contents: dict[str, TopicContents],
        states: dict[str, TopicState],
        *,
        exact: bool,
        clean: bool = False,
    ) -> None:
        """Judge what exists. `exact`: only the process ended; `clean`: it also closed the log."""
        pages: dict[str, TopicContents] = {}
        for topic in list(self.topics):
            state = states.get(topic.name)
            if state is not None and self._is_shown(topic, state):
                if not topic.is_born:
                    self.born(topic, state.epoch)
                topic.leaving = False
                self.has_config(topic, state.config)
                topic.coming.clear()
                pages[topic.page] = contents[topic.name]
            else:
                assert not topic.is_born or topic.leaving, f"{topic.page} is missing and was not deleted"
                self.gone(topic)
        strangers = states.keys() - {topic.name for topic in self.topics}
        assert not strangers, f"topics that returned or were never created: {sorted(strangers)}"
        for topic in self.topics:
            self._check_floor(topic, pages[topic.page].evict_floor, exact or clean)
        exact_pages = [topic.page for topic in self.topics if self._is_exact(topic, exact, clean)]
        self.ledger.check(pages, exact=exact_pages)
        for topic in self.topics:
            self._check_evicted(topic, pages[topic.page])

    def _is_shown(self, topic: Incarnation, state: TopicState) -> bool:
        if topic.is_born:
            return topic.epoch == state.epoch
        taken = any(other.epoch == state.epoch for other in self.topics)
        first = next(other for other in self.topics if other.name == topic.name and not other.is_born)
        return not taken and first is topic

    def _is_exact(self, topic: Incarnation, exact: bool, clean: bool) -> bool:
        if topic.config.durability == "ephemeral":
            return clean
        return exact or clean or topic.is_always_fsync

    def _check_floor(self, topic: Incarnation, floor: int, exact: bool) -> None:
        """Check that a floor only rises, unless the machine may have lost what raised it.

        Floors by age are not synced, nor are records below class fsync.
        """
        has_ttl = any(config.ttl_ms for config in topic.requested)
        if exact or (topic.is_always_fsync and not has_ttl):
            assert floor >= topic.floor, f"{topic.page}: the floor fell from {topic.floor} to {floor}"
        topic.floor = floor

    def _check_evicted(self, topic: Incarnation, contents: TopicContents) -> None:
        """Check that evicted records were too old or over a cap at some time."""
        last = contents.evict_floor - 1
        if last < 1 or topic.config.durability == "ephemeral":
            return
        owners = self.ledger.page(topic.page).owners
        over_cap = any(
            (config.cap_records and contents.head_seq - last >= config.cap_records)
            or (config.cap_bytes and self._bytes_from(topic, last) > config.cap_bytes)
            for config in topic.requested
        )
        ttl = min((config.ttl_ms for config in topic.requested if config.ttl_ms), default=None)
        if over_cap:
            return
        young = [
            seq
            for seq, payload in owners.items()
            if seq <= last and (ttl is None or self.latest_ms - self.sent_ms[payload] <= ttl)
        ]
        complaint = f"{topic.page}: seqs {sorted(young)} were evicted without a cap or TTL"
        assert not young, f"{complaint}: {contents}"

    def _bytes_from(self, topic: Incarnation, first: int) -> int:
        """Return the minimal bytes of the records from `first` on in the log; unseen ones count."""
        return sum(
            len(payload) + 2 * FRAME_OVERHEAD
            for request in self.ledger.page(topic.page).requests
            if request.first_seq is None or request.seqs()[-1] >= first
            for payload in request.payloads
        )


def first_config(name: str, patch: TopicConfigPatch | None) -> TopicConfig:
    config = merge_config(None, patch or TopicConfigPatch(), name)
    assert isinstance(config, TopicConfig)
    return config


def _evicts(config: TopicConfig) -> bool:
    return bool(config.ttl_ms or config.cap_records or config.cap_bytes)
