"""The endpoint that streams jobs: check the queue and the caps, then open a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shared.contract.api_keys import READ, WRITE, ApiKey, ApiKeys
from shared.contract.errors import NOT_ACCEPTABLE, Refusal, invalid, shutting_down
from shared.contract.names import refuse_topic_name
from shared.contract.query import query_number, query_text
from shared.runtime.disk_thread import Loop
from shared.settings.settings import Settings
from shared.text.units import number_in
from topicsd.engine.queue.claim import queue_of
from topicsd.engine.requests import ClaimRequest
from topicsd.engine.state import ShardState
from topicsd.service.call import Call
from topicsd.service.input.clamped import clamped_lease, clamped_to
from topicsd.service.queues.bodies import claim_request
from topicsd.service.render import encode
from topicsd.service.shards.limits import StreamPermits
from topicsd.service.watch.accept import accepts_events
from topicsd.stream.event_stream import FIELDS
from topicsd.stream.work_stream import WorkStreams

READ_AND_WRITE: Final = frozenset({READ, WRITE})


class WorkOpener:
    """The opener of job streams; calls `count` with 1 for each start of one and -1 for each end."""

    def __init__(
        self,
        shard: ShardState,
        settings: Settings,
        loop: Loop,
        permits: StreamPermits,
        count: Callable[[int], None],
    ) -> None:
        self._shard = shard
        self._settings = settings
        self._permits = permits
        self._streams = WorkStreams(shard, loop, count)
        self._is_draining = False

    def open(self, call: Call, key: ApiKey | None) -> None:
        request = self._request(call)
        if isinstance(request, Refusal):
            call.refuse(request)
        elif call.is_head:
            call.send_parts([], 0, 200, FIELDS)
        else:
            key_id = "" if key is None else key.id
            self._permits.enter(key_id, call, partial(self._on_permit, call, request, key_id))

    def _request(self, call: Call) -> ClaimRequest | Refusal:
        refusal = refuse_topic_name(call.name)
        if refusal is not None:
            return refusal
        queue = queue_of(self._shard, call.name)
        if isinstance(queue, Refusal):
            return queue
        if not accepts_events(call.fields.accept):
            return Refusal(NOT_ACCEPTABLE, "accept: must allow text/event-stream")
        count, text = query_number(call.query, "max"), query_text(call.query, "lease_ms")
        lease = None if text is None else number_in(text)
        if isinstance(count, Refusal):
            return count
        node = query_text(call.query, "node")
        if node is None:
            return invalid("node", "is required, as in work?node=worker-1")
        count = min(1 if count is None else count, self._settings.max_claim)
        return claim_request(node, count, lease, self._settings)

    def _on_permit(self, call: Call, request: ClaimRequest, key_id: str, refusal: Refusal | None) -> None:
        try:
            if refusal is not None:
                call.refuse(refusal)
                return
            queue = shutting_down() if self._is_draining else queue_of(self._shard, call.name)
            if isinstance(queue, Refusal):
                self._permits.leave(key_id)
                call.refuse(queue)
                return
            on_end = partial(self._permits.leave, key_id)
            stream = call.open_stream(FIELDS)
            clamped = {**_clamped_max(call.query, request.count), **clamped_lease(request.lease_ms)}
            self._streams.open(queue[0], request, stream, on_end, key_id)
            if clamped:
                stream.write(b": clamped %b\n\n" % encode(clamped))
        except Exception as error:
            call.fail("work", error)

    def check_keys(self, keys: ApiKeys) -> None:
        """End the streams whose key was removed or no longer covers them."""
        self._streams.end_revoked(lambda key_id, name: keys.allow(key_id, READ_AND_WRITE, [name]))

    @property
    def lagging_count(self) -> int:
        return self._streams.lagging_count

    def drain(self) -> None:
        """End all streams with a final event, and refuse new ones."""
        self._is_draining = True
        self._streams.drain()


def _clamped_max(query: str, used: int) -> dict[str, int]:
    given = query_number(query, "max")
    return clamped_to(max=(given, used)) if isinstance(given, int) else {}
