"""The endpoint that adopts a topic which `topicsd backup restore` has put into the data directory."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from shared.contract.errors import NOT_IMPLEMENTED, Refusal
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.shard import Shard
from topicsd.service.call import Call, Performance, start_job
from topicsd.service.input.json_body import JsonBody
from topicsd.service.render import encode
from topicsd.service.shards.limits import Caps


class RestoreBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    folder: str


_RESTORE: Final = JsonBody(RestoreBody, '{"folder":"5f9a01c2b3d4e5f6"}')


class RestoreHandler:
    def __init__(self, shard: Shard, caps: Caps, performance: Performance) -> None:
        self._shard = shard
        self._caps = caps
        self._performance = performance

    def start(self, call: Call) -> None:
        if self._shard.state.settings.memory:
            call.refuse(Refusal(NOT_IMPLEMENTED, "a server without a data directory cannot restore a topic"))
            return
        body = _RESTORE.decode(call.body)
        if isinstance(body, Refusal):
            call.refuse(body)
            return
        start = partial(self._start, call, body.folder)
        if self._caps.has_shared_topic_cap and call.name not in self._shard.state.topics:
            self._caps.create_topic(call.name, start, call.refuse)
        else:
            start()

    def _start(self, call: Call, folder: str) -> None:
        start_job(self._shard.state.jobs, "restore", call, self._restore(call, folder))

    def _restore(self, call: Call, folder: str) -> BackgroundJob[Refusal | None]:
        topic = yield from self._shard.staged_topics.adopt(call.name, folder)
        if isinstance(topic, Refusal):
            return topic
        body = {
            "topic": topic.name,
            "shard": self._shard.state.number,
            "head_seq": topic.head,
            "performance": self._performance(call),
        }
        call.send(encode(body))
        return None
