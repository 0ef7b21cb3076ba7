"""The endpoint of redrive: decode, start the job, render."""

from __future__ import annotations

from functools import partial

from shared.contract.errors import Refusal
from shared.runtime.clock import Clock
from topicsd.engine.transfer.redrive import RedriveAnswer, Redrives
from topicsd.service.call import Call, Performance, reply_of
from topicsd.service.input.bound_names import is_within
from topicsd.service.input.clamped import member
from topicsd.service.queues.redrive_body import decode_redrive
from topicsd.service.render import encode


class RedriveHandler:
    def __init__(self, redrives: Redrives, clock: Clock, performance: Performance) -> None:
        self._redrives = redrives
        self._clock = clock
        self._performance = performance

    def start(self, call: Call) -> None:
        decoded = decode_redrive(call.body, self._clock.now_ms())
        if isinstance(decoded, Refusal):
            call.refuse(decoded)
            return
        request, clamped = decoded

        def respond(answer: RedriveAnswer) -> None:
            body: dict[str, object] = {
                "topic": call.name,
                "matched": answer.matched,
                "redriven": 0 if request.is_dry else sum(answer.queues.values()),
                "queues": answer.queues,
                "stayed": sum(answer.reasons.values()),
                "reasons": answer.reasons,
                "stopped_by": answer.stopped_by,
                "next_from_seq": answer.next_from_seq,
                "done": answer.is_done,
                **member(clamped),
                "performance": self._performance(call),
            }
            call.send(encode(body))

        covers = partial(is_within, call.prefixes)
        call.cancel_wait = self._redrives.start(call.name, request, covers, reply_of(call, respond))
