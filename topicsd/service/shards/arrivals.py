"""Topics on this shard that another shard owns: hidden and frozen until they are placed here or dropped.

H1  A topic that is being relocated to this shard is adopted and hidden. It is served from the turn of the
    loop on in which this shard learns that the placement gives it to this shard.
H2  It is dropped when its source cancels the relocation, or has ended. In the second case a change of the
    placement may be in progress, so the supervisor is asked first: it answers after that change, and makes no
    later one for a source that has ended. What was prepared for a topic that was not adopted is dropped too,
    without a question.
H3  At a start, a topic that an entry of the placement gives to another shard is a leftover of a relocation:
    of one that ended before the entry changed, or of one whose source ended after that. It is dropped without
    a question, since each relocation writes an entry before it leaves a second copy.
H4  A topic that the rule alone gives to another shard is no leftover: PLACEMENT.json was lost. It is hidden,
    and the log says how to repair the placement.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, NamedTuple

from shared.contract.errors import Refusal, relocated
from shared.ipc.link import SUPERVISOR, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement_change import PlacementChange, decode_placement_answer, encode_placement_message
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.log_setup import fields
from topicsd.engine.bundle.adopt import Adopter
from topicsd.engine.bundle.gather import depart, freeze, resume
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.service.shards.peers import Peers

logger = logging.getLogger("topicsd.relocation")

CHECK_SECONDS: Final = 0.2
NO_SOURCE: Final = (0, 0)
"""Shard and pid of a source that cancelled."""
_BARRIER: Final = encode_placement_message(PlacementChange({}, {}))


class Incarnation(NamedTuple):
    name: str
    epoch: int


class Arrivals:
    """The hidden topics of one shard; `peers` exist on a server with a supervisor."""

    def __init__(
        self,
        state: ShardState,
        adopter: Adopter,
        placement: SharedPlacement,
        links: LinkPool,
        peers: Peers | None,
    ) -> None:
        self._state = state
        self._adopter = adopter
        self._placement = placement
        self._links = links
        self._peers = peers
        self.hidden: dict[str, Topic] = {}
        """By name."""
        self._sources: dict[Topic, tuple[int, int]] = {}
        """Shard and pid of the source of topics that are being relocated here."""
        self._to_drop: dict[Topic, None] = {}
        self._expected: dict[Incarnation, tuple[int, int]] = {}
        """Shard and pid of the source of topics that are prepared here, and not adopted yet."""
        self._is_running = False
        placement.call_on_change(self._serve_placed)
        for topic in list(state.topics.values()):
            if placement.owner_of(topic.name) != state.number:
                self._hide_at_start(topic)

    def _hide_at_start(self, topic: Topic) -> None:
        freeze(self._state, topic)
        self.hidden[topic.name] = topic
        if topic.name in self._placement.current.exceptions:
            self._drop_soon(topic)
            return
        logger.error(
            "topic: not served: the placement gives it to another shard; "
            "stop the server and run `topicsd doctor`",
            extra=fields(topic=topic.name, shard=self._state.number),
        )

    def expect(self, incarnation: Incarnation, source: int, source_pid: int) -> None:
        """Drop what is prepared for a topic unless it is adopted before its source cancels or ends (H2)."""
        self._expected[incarnation] = (source, source_pid)
        self._run()

    def hide(self, topic: Topic, source: int, source_pid: int) -> None:
        """Keep a frozen topic until it is placed here or its source cancels or ends (H1, H2)."""
        assert topic.is_frozen
        self._expected.pop(Incarnation(topic.name, topic.epoch), None)
        self.hidden[topic.name] = topic
        self._sources[topic] = (source, source_pid)
        self._serve_placed()
        self._run()

    def cancel(self, incarnation: Incarnation) -> None:
        """Drop what is here of a topic whose source cancelled the relocation."""
        if incarnation in self._expected:
            self._expected[incarnation] = NO_SOURCE
            self._run()
        topic = self.hidden.get(incarnation.name)
        if topic is not None and topic.epoch == incarnation.epoch and topic in self._sources:
            self._drop_soon(topic)

    def _serve_placed(self) -> None:
        for name, topic in list(self.hidden.items()):
            is_placed = self._placement.owner_of(name) == self._state.number
            # The lookup may have noticed a change, and so have served topics already.
            if is_placed and self.hidden.get(name) is topic and topic not in self._to_drop:
                self._forget(topic)
                resume(self._state, topic)

    def _forget(self, topic: Topic) -> None:
        self.hidden.pop(topic.name, None)
        self._sources.pop(topic, None)
        self._to_drop.pop(topic, None)

    def _drop_soon(self, topic: Topic) -> None:
        self._sources.pop(topic, None)
        self._to_drop[topic] = None
        self._run()

    # -- the job -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._state.jobs.start(self._decide_all(), self._on_end)

    def _on_end(self, outcome: Exception | None) -> None:
        self._is_running = False
        if isinstance(outcome, Exception):
            logger.error("hidden topics: not decided: %s", outcome)

    def _decide_all(self) -> BackgroundJob[None]:
        while self._to_drop or self._sources or self._expected:
            for topic in list(self._to_drop):
                yield from self._drop(topic)
            for incarnation in [one for one, source in self._expected.items() if self._has_ended(source)]:
                yield from self._adopter.discard(*incarnation)
                if self._has_ended(self._expected.get(incarnation, NO_SOURCE)):
                    self._expected.pop(incarnation, None)
            if any(map(self._has_ended, self._sources.values())) and (
                yield from self._is_placement_settled()
            ):
                for topic in [one for one, source in self._sources.items() if self._has_ended(source)]:
                    self._drop_soon(topic)
                continue
            yield CHECK_SECONDS

    def _has_ended(self, source: tuple[int, int]) -> bool:
        shard, pid = source
        return not pid or (self._peers is not None and self._peers.pid(shard) != pid)

    def _is_placement_settled(self) -> BackgroundJob[bool]:
        """Wait for a change of the placement in progress; topics that it gives to this shard are served."""
        answer: bytes | None = yield from operation(
            partial(self._links.call, SUPERVISOR, LinkKind.PLACE, _BARRIER)
        )
        self._placement.refresh()
        return bool(answer) and decode_placement_answer(answer or b"") is None

    def _drop(self, topic: Topic) -> BackgroundJob[None]:
        outcome = yield from operation(partial(depart, self._state, topic, relocated(topic.name)))
        if isinstance(outcome, Refusal):
            yield CHECK_SECONDS
            return
        self._forget(topic)
        logger.info(
            "topic: dropped: another shard has it", extra=fields(topic=topic.name, shard=self._state.number)
        )
