"""Handlers of the endpoints of jobs: decode, call the engine, render."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.contract.errors import Refusal, invalid
from shared.contract.query import query_number
from shared.settings.settings import Settings
from topicsd.engine.queue.claim import claim
from topicsd.engine.queue.explain import explain
from topicsd.engine.queue.settle import NACK_DELAY_MS_MAX, Settle, ack, extend, nack
from topicsd.engine.queue.waiting_claims import WAIT_MS_MAX, claim_with_wait
from topicsd.engine.requests import ClaimAnswer, SettleAnswer, SettleRequest
from topicsd.engine.state import ShardState
from topicsd.service.call import Call, reply_of
from topicsd.service.input.clamped import clamped_lease, clamped_to, member
from topicsd.service.queues.bodies import decode_ack, decode_claim, decode_extend, decode_nack
from topicsd.service.render import encode
from topicsd.service.request_counts import RequestCounts

Decode = Callable[[bytes, Settings], SettleRequest | Refusal]
_SETTLEMENTS: Final[dict[str, tuple[Decode, Settle]]] = {
    "ack": (decode_ack, ack),
    "nack": (decode_nack, nack),
    "extend": (decode_extend, extend),
}


class QueueHandlers:
    def __init__(self, shard: ShardState, settings: Settings, counts: RequestCounts) -> None:
        self._shard = shard
        self._settings = settings
        self._counts = counts
        self._performance = counts.performance
        self.table: dict[str, Callable[[Call], None]] = {
            "claim": self._claim,
            "ack": lambda call: self._settle("ack", call),
            "nack": lambda call: self._settle("nack", call),
            "extend": lambda call: self._settle("extend", call),
            "explain": self._explain,
        }

    def _claim(self, call: Call) -> None:
        request = decode_claim(call.body, self._settings)
        if isinstance(request, Refusal):
            call.refuse(request)
            return

        count = min(request.count, self._settings.max_claim)
        limits = {**clamped_to(max=(request.count, count)), **clamped_lease(request.lease_ms)}
        if request.wait_ms > WAIT_MS_MAX:
            limits["wait_ms"] = WAIT_MS_MAX
        clamped = member(limits)

        def respond(answer: ClaimAnswer) -> None:
            end = {
                "count": len(answer.jobs),
                "ready": answer.ready,
                **clamped,
                "performance": (self._counts.waited_claim if answer.has_waited else self._performance)(call),
            }
            parts = [
                b'{"topic":"%b","claimed":[%b],' % (answer.topic.encode(), b",".join(answer.jobs.values())),
                encode(end)[1:],
            ]
            call.send_parts(parts, sum(map(len, parts)))

        claim_now_or_later = claim_with_wait if request.wait_ms else claim
        call.cancel_wait = claim_now_or_later(self._shard, call.name, request, reply_of(call, respond))

    def _explain(self, call: Call) -> None:
        seq = query_number(call.query, "seq")
        if seq is None:
            seq = invalid("seq", "is required, as in explain?seq=17")
        answer = seq if isinstance(seq, Refusal) else explain(self._shard, call.name, seq)
        if isinstance(answer, Refusal):
            call.refuse(answer)
        else:
            call.send(encode({**answer, "performance": self._performance(call)}))

    def _settle(self, operation: str, call: Call) -> None:
        decode, settle = _SETTLEMENTS[operation]
        request = decode(call.body, self._settings)
        if isinstance(request, Refusal):
            call.refuse(request)
            return

        def respond(answer: SettleAnswer) -> None:
            body: dict[str, object] = {
                "topic": answer.topic,
                f"{operation}ed": len(answer.done),
                "skipped": answer.skipped,
            }
            if answer.reasons:
                body["skipped_reasons"] = answer.reasons
            if operation == "extend":
                body["deadlines"] = dict.fromkeys(answer.done, answer.deadline)
            else:
                body["ready"], body["in_flight"] = answer.counts.ready, answer.counts.in_flight
            if operation == "nack":
                body |= member(clamped_to(delay_ms=(request.ms, min(request.ms or 0, NACK_DELAY_MS_MAX))))
            elif operation == "extend":
                body |= member(clamped_lease(request.ms))
            body["performance"] = self._performance(call)
            call.send(encode(body))

        settle(self._shard, call.name, request, reply_of(call, respond))
