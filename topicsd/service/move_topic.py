"""The endpoint that moves a topic to another shard: decode, start the relocation, render."""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.errors import Refusal
from topicsd.engine.jobs import Background, BackgroundJob
from topicsd.service.call import Call, Performance, start_job
from topicsd.service.input.json_body import JsonBody
from topicsd.service.render import encode
from topicsd.service.shards.relocation import Relocations


class MoveBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    shard: int


_MOVE: Final = JsonBody(MoveBody, '{"shard":1}')


class MoveHandler:
    def __init__(self, relocations: Relocations, jobs: Background, performance: Performance) -> None:
        self._relocations = relocations
        self._jobs = jobs
        self._performance = performance

    def start(self, call: Call) -> None:
        body = _MOVE.decode(call.body)
        if isinstance(body, Refusal):
            call.refuse(body)
            return
        start_job(self._jobs, "move", call, self._move(call, body.shard))

    def _move(self, call: Call, shard: int) -> BackgroundJob[Refusal | None]:
        result = yield from self._relocations.relocate(call.name, shard)
        if isinstance(result, Refusal):
            return result
        body = {
            "topic": call.name,
            "shard": result.target,
            "moved": result.target != result.source,
            "frozen_ms": round(result.frozen_ms, 3),
            "performance": self._performance(call),
        }
        call.send(encode(body))
        return None
