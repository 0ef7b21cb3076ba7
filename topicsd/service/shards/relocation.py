"""Relocation: moving a topic to another shard of a running server. The worker of the source drives it.

The order of the steps is the guarantee that a topic has one owner at any time:

M1  The placement gets an entry for the topic with its present shard, unless it has one. From here on a copy
    on any other shard is a leftover, which that shard drops by itself (`arrivals.py`, H3).
M2  The target links the sealed segments. The source seals what was written since in a checkpoint, and the
    target links that too, until the tail is short. Requests are served.
M3  The source freezes the topic and gathers its bundle, with the tail in memory. Requests are deferred, and
    reads continue.
M4  The target writes the tail and adopts the bundle durably. The topic is hidden there.
M5  The supervisor replaces the placement. This is the commit point. It refuses when the source or the target
    has ended since M4.
M6  The target serves the topic as soon as it learns of the placement. The source logs the departure, and its
    deferred requests are sent to the target.
M7  When the departure is durable, an entry that says the same as the rule is removed. The supervisor does so
    only if the topic has no later change of the placement: the next relocation begins with one (M1).

A freeze takes as long as these syncs: each file of the tail, their names, the bundle, the frame of M4, and
the placement with its name. The source waits for a sync only when a request of the topic does.

A refusal before M5 cancels: the source resumes the topic and the target drops its copy. When the supervisor
does not answer M5, it has died, and all workers end: the topic stays frozen until then, and the next start
decides by the placement. A crash of the source or the target needs no step of the other one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from shared.contract.errors import (
    IN_DOUBT,
    NOT_IMPLEMENTED,
    THROTTLED,
    Refusal,
    in_doubt,
    invalid,
    no_answer,
    relocated,
    throttled,
)
from shared.ipc.link import NEVER_SENT, SUPERVISOR, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement_change import PlacementChange, decode_placement_answer, encode_placement_message
from shared.runtime.clock import Clock
from shared.runtime.log_setup import fields
from topicsd.engine.bundle.bundle_format import encode_bundle
from topicsd.engine.bundle.gather import (
    Gathered,
    depart,
    refuse_deferred,
    resume,
    sealed_part,
    tail_bytes,
)
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.shard import Shard
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import missing_topic
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.relocation_messages import (
    AdoptAnswer,
    AdoptRequest,
    CancelRequest,
    PrepareRequest,
    decode_adopt_answer,
    encode_message,
)

logger = logging.getLogger("topicsd.relocation")

DEPART_RETRY_SECONDS: Final = 0.2
ROUNDS_MAX: Final = 3
"""Checkpoints before a freeze: each takes less time than the one before, and leaves a shorter tail."""
TAIL_BYTES: Final = 256 << 10
TAIL_BYTES_MAX: Final = 64 << 20
"""The longest tail that moves through memory and over the link."""

T = TypeVar("T")


class Relocated(NamedTuple):
    """A finished relocation."""

    source: int
    target: int
    frozen_ms: float


class Relocations:
    """The relocations from one shard; `peers` exist on a server with a supervisor."""

    def __init__(self, shard: Shard, links: LinkPool, peers: Peers | None) -> None:
        self._shard = shard
        self._state = shard.state
        self._links = links
        self._peers = peers
        self._clock: Clock = shard.state.clock
        self._moving: set[str] = set()
        """Topics that have a relocation, from its beginning to its end."""
        self.moved_count = self.failed_count = 0
        self.last_pause_ms = 0.0

    def relocate(self, name: str, target: int) -> BackgroundJob[Relocated | Refusal]:
        """Move a topic of this shard to another one; a refusal leaves it here."""
        source = self._state.number
        refusal = self._refuse(name, target)
        if refusal is not None:
            return refusal
        if target == source:
            return Relocated(source, target, 0.0)
        self._moving.add(name)
        frozen_ms: float | Refusal | None = None
        try:
            frozen_ms = yield from self._relocate(self._state.topics[name], target)
        finally:
            self._moving.discard(name)
            self._note(name, target, frozen_ms)
        return frozen_ms if isinstance(frozen_ms, Refusal) else Relocated(source, target, frozen_ms)

    def _note(self, name: str, target: int, outcome: float | Refusal | None) -> None:
        """Count and log the end of a relocation; the outcome of an error is None."""
        about = {"topic": name, "shard": self._state.number, "target": target}
        if isinstance(outcome, float):
            self.moved_count += 1
            self.last_pause_ms = outcome
            logger.info("topic: moved to another shard", extra=fields(**about, frozen_ms=round(outcome, 1)))
            return
        self.failed_count += 1
        reason = "an error" if outcome is None else outcome.message
        logger.warning("topic: not moved to another shard: %s", reason, extra=fields(**about))

    @property
    def _pid(self) -> int:
        assert self._peers is not None
        return self._peers.slot.pid

    def _refuse(self, name: str, target: int) -> Refusal | None:
        if self._peers is None or self._state.settings.memory:
            return Refusal(NOT_IMPLEMENTED, "a server without a data directory cannot move topics")
        if not 0 <= target < len(self._peers):
            return invalid("shard", f"must be a shard from 0 to {len(self._peers) - 1}, got {target}")
        if name not in self._state.topics:
            return missing_topic(self._state, name)
        if name in self._moving:
            return throttled(f'topic "{name}" is being moved already')
        return None if target == self._state.number else self._peers.refusal(target)

    def _relocate(self, topic: Topic, target: int) -> BackgroundJob[float | Refusal]:
        """Move a topic; return for how many milliseconds it was frozen."""
        source = self._state.number
        refusal = yield from self._place(PlacementChange({topic.name: source}, {source: self._pid}))
        if refusal is not None:
            return refusal
        cancel = partial(self._cancel, topic, target)
        gathered = yield from _or_undo(self._gather(topic, target), cancel)
        if isinstance(gathered, Refusal):
            return gathered

        def resume_here() -> None:
            cancel()
            resume(self._state, topic)

        change = yield from _or_undo(self._hand_over(gathered, topic, target), resume_here)
        if isinstance(change, Refusal):
            return change
        frozen_ms = (self._clock.monotonic() - gathered.frozen_at) * 1000
        if (yield from self._depart(topic)):
            yield from self._place(msgspec.structs.replace(change, is_over=True))
        return frozen_ms

    def _gather(self, topic: Topic, target: int) -> BackgroundJob[Gathered | Refusal]:
        """Freeze a topic once the target has all of it but a short tail (M2, M3)."""
        gatherer, name = self._shard.gatherer, topic.name
        refusal = yield from self._prepare(topic, target)
        for _ in range(ROUNDS_MAX):
            if refusal is None:
                refusal = yield from gatherer.prepare(name)
            if refusal is None:
                refusal = yield from self._prepare(topic, target)
            if refusal is not None or tail_bytes(topic) <= TAIL_BYTES:
                break
        if refusal is None and tail_bytes(topic) > TAIL_BYTES_MAX:
            refusal = throttled(f'topic "{name}" is written to faster than it can be moved')
        if refusal is not None:
            return refusal
        gathered = yield from gatherer.gather_apart(name)
        if not isinstance(gathered, Refusal) and gathered.bundle.topic.epoch != topic.epoch:
            resume(self._state, self._state.topics[name])
            return throttled(f'topic "{name}" was deleted and created again meanwhile')
        return gathered

    def _prepare(self, topic: Topic, target: int) -> BackgroundJob[Refusal | None]:
        """Have the target fetch the sealed segments."""
        message = PrepareRequest(self._state.number, self._pid, sealed_part(topic))
        answer = yield from self._ask(target, LinkKind.PREPARE_ADOPT, encode_message(message), b"")
        return answer if isinstance(answer, Refusal) else None

    def _hand_over(
        self, gathered: Gathered, topic: Topic, target: int
    ) -> BackgroundJob[PlacementChange | Refusal]:
        """Have a frozen topic adopted and placed (M4, M5); return the change of the placement."""
        bundle = encode_bundle(gathered.bundle)
        sizes = {key: len(data) for key, data in gathered.tail.items()}
        message = AdoptRequest(self._state.number, self._pid, len(bundle), sizes)
        body = b"".join([bundle, *gathered.tail.values()])
        answer = yield from self._ask(target, LinkKind.ADOPT, encode_message(message), body)
        if isinstance(answer, Refusal):
            return answer
        pids = {self._state.number: self._pid, target: answer.pid}
        change = PlacementChange({topic.name: target}, pids)
        refusal = yield from self._place(change)
        return change if refusal is None else refusal

    def _ask(
        self, target: int, kind: LinkKind, message: bytes, body: bytes
    ) -> BackgroundJob[AdoptAnswer | Refusal]:
        answer: bytes | None = yield from operation(
            partial(self._links.call, str(target), kind, message, body=body)
        )
        if not answer:
            return no_answer(target)
        decoded = decode_adopt_answer(answer)
        return decoded.refusal or decoded

    def _cancel(self, topic: Topic, target: int) -> None:
        payload = encode_message(CancelRequest(topic.name, topic.epoch))
        # A target that does not answer has ended, and its next start drops the topic.
        self._links.call(str(target), LinkKind.CANCEL_ADOPT, payload, lambda answer: None)

    def _place(self, change: PlacementChange) -> BackgroundJob[Refusal | None]:
        answer: bytes | None = yield from operation(
            partial(self._links.call, SUPERVISOR, LinkKind.PLACE, encode_placement_message(change))
        )
        if answer is None:
            return in_doubt(None)
        return no_answer(None) if answer == NEVER_SENT else decode_placement_answer(answer)

    def _depart(self, topic: Topic) -> BackgroundJob[bool]:
        """Remove a topic that was placed elsewhere, and return whether that is durable.

        Its requests do not wait for that.
        """
        refusal = relocated(topic.name)
        while True:
            refuse_deferred(topic, refusal)
            outcome = yield from operation(partial(depart, self._state, topic, refusal))
            if not isinstance(outcome, Refusal):
                return True
            if outcome.code != THROTTLED:
                logger.error("topic: not removed after its move, the next start does it: %s", outcome.message)
                return False
            yield DEPART_RETRY_SECONDS


def _or_undo(job: BackgroundJob[T | Refusal], undo: Callable[[], object]) -> BackgroundJob[T | Refusal]:
    """Run a job; call `undo` after an error or a refusal, unless the supervisor has died."""
    try:
        outcome = yield from job
    except Exception:
        undo()
        raise
    # Not in a `finally`: a job that is stopped in the middle must leave the topic frozen.
    if isinstance(outcome, Refusal) and outcome.code != IN_DOUBT:
        undo()
    return outcome
