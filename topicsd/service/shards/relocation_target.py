"""The target of relocations: prepares, adopts and hides the topics of other shards (`relocation.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from shared.contract.errors import Refusal, throttled
from shared.ipc.link import LinkReply
from shared.ipc.link_kind import LinkKind
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.bundle.bundle_format import Bundle, decode_bundle
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.shard import Shard
from topicsd.service.shards.arrivals import Arrivals, Incarnation
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.relocation_messages import (
    AdoptAnswer,
    AdoptRequest,
    PrepareRequest,
    decode_adopt,
    decode_cancel,
    decode_prepare,
    encode_message,
)

logger = logging.getLogger("topicsd.relocation")

RELOCATION_REQUESTS: Final = frozenset({LinkKind.PREPARE_ADOPT, LinkKind.ADOPT, LinkKind.CANCEL_ADOPT})


class RelocationTarget:
    def __init__(self, shard: Shard, arrivals: Arrivals, peers: Peers | None) -> None:
        self._shard = shard
        self._arrivals = arrivals
        self._pid = 0 if peers is None else peers.slot.pid
        self._running: dict[Incarnation, bool] = {}
        """Topics for which a job runs; False after their source cancelled."""

    def answer_link(self, kind: int, payload: bytes, reply: LinkReply) -> None:
        if kind == LinkKind.CANCEL_ADOPT:
            cancelled = decode_cancel(payload)
            incarnation = Incarnation(cancelled.topic, cancelled.epoch)
            if incarnation in self._running:
                self._running[incarnation] = False
            self._arrivals.cancel(incarnation)
            reply(b"taken")
            return
        if kind == LinkKind.PREPARE_ADOPT:
            job = self._prepare(decode_prepare(payload))
        else:
            job = self._adopt(decode_adopt(payload), reply.body)
        self._shard.state.jobs.start(job, partial(self._respond, reply))

    def _respond(self, reply: Callable[[bytes], object], outcome: Refusal | Exception | None) -> None:
        if isinstance(outcome, Exception):
            outcome = refuse_unexpected_error(logger, "adopt", outcome)
        reply(encode_message(AdoptAnswer(self._pid, outcome)))

    def _prepare(self, request: PrepareRequest) -> BackgroundJob[Refusal | None]:
        incarnation = Incarnation(request.part.topic, request.part.epoch)
        return (yield from self._run(incarnation, self._fetch(request, incarnation)))

    def _fetch(self, request: PrepareRequest, incarnation: Incarnation) -> BackgroundJob[Refusal | None]:
        # Before the first file: what a failure leaves is dropped.
        self._arrivals.expect(incarnation, request.source, request.source_pid)
        files = self._shard.segments_of(request.source, {})
        return (yield from self._shard.adopter.prepare(request.part, files))

    def _adopt(self, request: AdoptRequest, body: bytes) -> BackgroundJob[Refusal | None]:
        bundle = decode_bundle(body[: request.bundle_bytes])
        incarnation = Incarnation(bundle.topic.name, bundle.topic.epoch)
        return (yield from self._run(incarnation, self._adopt_hidden(request, bundle, body)))

    def _adopt_hidden(
        self, request: AdoptRequest, bundle: Bundle, body: bytes
    ) -> BackgroundJob[Refusal | None]:
        files = self._shard.segments_of(request.source, request.files(body))
        adopted = yield from self._shard.adopter.adopt(bundle, files, stays_frozen=True)
        if isinstance(adopted, Refusal):
            return adopted
        self._arrivals.hide(adopted, request.source, request.source_pid)
        return None

    def _run(
        self, incarnation: Incarnation, job: BackgroundJob[Refusal | None]
    ) -> BackgroundJob[Refusal | None]:
        """Run a job for a topic; a cancellation that arrives meanwhile follows it."""
        if incarnation in self._running:
            return throttled(f'topic "{incarnation.name}" is being moved here already')
        self._running[incarnation] = True
        try:
            return (yield from job)
        finally:
            if not self._running.pop(incarnation):
                self._arrivals.cancel(incarnation)
