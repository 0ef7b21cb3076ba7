"""The endpoint that changes the number of shards: decode, and pass the request to the supervisor."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from shared.contract.errors import Refusal, no_answer
from shared.ipc.link import SUPERVISOR, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import decode_answer
from topicsd.engine.jobs import Background, BackgroundJob, operation
from topicsd.service.call import Call, start_job
from topicsd.service.input.json_body import JsonBody


class ReshardBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    count: int


_RESHARD: Final = JsonBody(ReshardBody, '{"count":4}')
_encode: Final = msgspec.msgpack.Encoder().encode


class ReshardHandler:
    def __init__(self, links: LinkPool, jobs: Background) -> None:
        self._links = links
        self._jobs = jobs

    def start(self, call: Call) -> None:
        body = _RESHARD.decode(call.body)
        if isinstance(body, Refusal):
            call.refuse(body)
        else:
            start_job(self._jobs, "reshard", call, self._reshard(call, body.count))

    def _reshard(self, call: Call, count: int) -> BackgroundJob[Refusal | None]:
        answer: bytes | None = yield from operation(
            partial(self._links.call, SUPERVISOR, LinkKind.RESHARD, _encode(count))
        )
        if not answer:
            return no_answer(None)
        status, fields, body = decode_answer(answer)
        call.send_parts([body], len(body), status, fields)
        return None
