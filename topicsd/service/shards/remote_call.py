"""Remote requests: a request for another shard's topic, answered as if it had arrived there.

F1  A request that the owner never received is 503 at once: the client retries.
F2  A change that the owner received and did not answer is in doubt. An append with an idempotency key or a
    producer is retried until the owner is back, and the retry finds out whether the first attempt was
    applied. So it gets one response, and no 504 unless the owner stays away. A retry carries the time since
    the first attempt: when the owner's window is shorter or off, the key protects nothing and the response is
    504.
F3  Other changes are 504 in that case. Retrying them is not equivalent: another client's write may have been
    applied in between, and their responses report counts. Reads are 503.
F4  A client that disconnects, or a process that ends, cancels the wait at the owner.
F5  A streamed response is passed on part by part (`link_stream.py`), and ends with the owner.
F6  A broker is asked for topics that this shard does not have. It answers, or says that no shared topic has
    the name; then this shard continues. F1 to F4 hold for it as for an owner. Any broker of the node that is
    ready may be asked, also by a retry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from shared.contract.api_keys import ApiKey
from shared.contract.errors import Refusal, in_doubt, no_answer
from shared.http.answer import CLOSE
from shared.ipc.link import LARGE_PAYLOAD_BYTES, NEVER_SENT, SUPERVISOR, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import OwnerLookup
from shared.ipc.remote_request import (
    NOT_SHARED,
    RemoteRequest,
    decode_answer,
    encode_remote_request,
)
from shared.runtime.body_memory import SharedBody
from shared.runtime.disk_thread import Loop
from topicsd.service.call import Call
from topicsd.service.shards.link_stream import StreamRelay
from topicsd.service.shards.peers import Peers

RETRY_SECONDS: Final = 0.1
# Longer than the time after which a hanging worker is killed, plus its restart.
RETRY_SECONDS_MAX: Final = 20.0

# A claim is no write here: a lost answer leaves its effect unknown, but its leases expire by themselves.
WRITES: Final = frozenset(
    {
        "append",
        "append_record",
        "publish",
        "put_topic",
        "delete_topic",
        "delete_records",
        "put_cursor",
        "delete_cursor",
        "ack",
        "nack",
        "extend",
        "redrive",
        "move",
        "restore",
        "delete_router",
        "fence",
        "unfence",
        "produce",
    }
)
APPENDS: Final = frozenset({"append", "append_record", "publish"})
STREAMS: Final = frozenset({"watch", "work", "stream"})
WAITS: Final = frozenset({"diff", "redrive", "claim", "consume"}) | STREAMS


OnAsked = Callable[[bool], object]
"""Called once: with True when a broker says that no shared topic has the name, which leaves the call without
an answer, and with False just before any other answer."""


class _Keyed(msgspec.Struct, gc=False):
    idempotency_key: str | None = None
    producer: msgspec.Raw = msgspec.Raw(b"null")


_decode_key = msgspec.json.Decoder(_Keyed).decode


class RemoteCaller:
    def __init__(
        self,
        links: LinkPool,
        peers: Peers | None,
        placement: OwnerLookup,
        loop: Loop,
        monotonic: Callable[[], float],
        is_ending: Callable[[], bool],
        broker_number: int | None = None,
    ) -> None:
        self.links = links
        self.peers = peers
        self.placement = placement
        self.loop = loop
        self.monotonic = monotonic
        self.is_ending = is_ending
        self.broker_number = broker_number
        self.count = 0

    def start(
        self,
        operation: str,
        owner: int | None,
        call: Call,
        key: ApiKey | None,
        *,
        on_asked: OnAsked | None = None,
    ) -> None:
        """Send the request to the owner, or to the supervisor for None, and answer the call.

        A broker that is asked whether it has the topic has `on_asked`.
        """
        if owner is not None and owner == self.broker_number:
            owner = self.ready_broker(owner)
        if owner is not None and self.peers is not None:
            refusal = self.peers.refusal(owner)
            if refusal is not None:
                if on_asked is not None:
                    on_asked(False)
                call.refuse(refusal)
                return
        self.count += 1
        fields = call.fields
        request = RemoteRequest(
            operation,
            call.name,
            call.query,
            fields.content_type,
            fields.accept,
            fields.idempotency_key,
            # The supervisor's endpoints ignore the body.
            b"" if owner is None or len(call.body) >= LARGE_PAYLOAD_BYTES else call.body,
            call.prefixes,
            call.retried_after_ms,
            "" if key is None else key.id,
            fields.last_event_id,
            call.is_head,
            call.item,
            call.is_admin,
            call.is_unshared,
            fields.event_attributes,
        )
        RemoteCall(self, owner, call, request, on_asked).send()

    def ready_broker(self, present: int) -> int:
        """Return the broker of this node for a request, which is the present one as long as it is ready."""
        return present if self.peers is None else self.peers.ready_broker(present)

    def is_broker(self, owner: int) -> bool:
        return owner == self.broker_number or (self.peers is not None and self.peers.is_broker(owner))


class RemoteCall(msgspec.Struct, eq=False):
    """One remote request from its first attempt to its answer."""

    caller: RemoteCaller
    owner: int | None
    call: Call
    request: RemoteRequest
    on_asked: OnAsked | None = None
    first_sent: float = -1.0
    """Time of the first attempt, once that is in doubt; negative before."""
    relay: StreamRelay | None = None
    timer: Any = None
    """Timer of the next attempt."""

    def send(self) -> None:
        request, call = self.request, self.call
        peer = SUPERVISOR if self.owner is None else str(self.owner)
        separate_body: bytes | SharedBody = b""
        if self.owner is not None and not request.body:
            separate_body = call.shared_body or call.body
        payload = encode_remote_request(request)
        link_call = self.caller.links.call(peer, LinkKind.REQUEST, payload, self._on_answer, separate_body)
        if request.operation in WAITS:
            call.cancel_wait = link_call.cancel_wait
        if request.operation in STREAMS:
            self.relay = StreamRelay(link_call, call.open_stream)

    def _on_answer(self, answer: bytes | None) -> None:
        call = self.call
        call.cancel_wait = None
        if self.relay is not None and self.relay.is_open:
            self.relay.close()
        elif answer:
            status, fields, body = decode_answer(answer)
            if status == NOT_SHARED:
                assert self.on_asked is not None
                self.on_asked(True)
                return
            self._end_question()
            if fields.endswith(CLOSE):
                call.is_last, fields = True, fields.removesuffix(CLOSE)
            call.send_parts([body], len(body), status, fields)
        elif (answer == NEVER_SENT and self.first_sent < 0) or self.request.operation not in WRITES:
            self._refuse(no_answer(self.owner, is_broker=self._is_broker))
        elif self._is_keyed():
            self._retry_later()
        else:
            self._refuse(self._in_doubt())

    def _refuse(self, refusal: Refusal) -> None:
        self._end_question()
        self.call.refuse(refusal)

    def _end_question(self) -> None:
        if self.on_asked is not None:
            self.on_asked(False)

    @property
    def _is_broker(self) -> bool:
        return self.owner is not None and self.caller.is_broker(self.owner)

    # -- retries -------------------------------------------------------------------------------------------

    def _is_keyed(self) -> bool:
        request = self.request
        if request.operation not in APPENDS:
            return False
        if request.idempotency_key:
            return True
        if request.operation == "append_record":
            return False
        try:
            shared = self.call.shared_body
            keyed = _decode_key(self.call.body if shared is None else shared.mapped())
            return bool(keyed.idempotency_key) or bytes(keyed.producer) != b"null"
        except (msgspec.DecodeError, RecursionError):
            return False

    def _retry_later(self) -> None:
        caller, call = self.caller, self.call
        now = caller.monotonic()
        if self.first_sent < 0:
            self.first_sent = call.started
        if now - self.first_sent > RETRY_SECONDS_MAX or caller.is_ending():
            self._refuse(self._in_doubt())
            return
        self.timer = caller.loop.call_later(RETRY_SECONDS, self._retry)
        call.cancel_wait = self._cancel_retry

    def _retry(self) -> None:
        caller = self.caller
        peers = caller.peers
        # The topic may have been moved since the last attempt, with what it remembers of it.
        if self.owner is not None and self._is_broker:
            self.owner = caller.ready_broker(self.owner)
        else:
            self.owner = caller.placement.owner_of(self.request.name)
        assert self.owner is not None
        if peers is not None and peers.refusal(self.owner) is not None:
            self._retry_later()
            return
        self.call.cancel_wait = None
        self.request.retried_after_ms = int((caller.monotonic() - self.first_sent) * 1000) + 1
        self.send()

    def _cancel_retry(self) -> None:
        self.timer.cancel()
        self.call.cancel_wait = None
        self._refuse(self._in_doubt())

    # -- refusals ------------------------------------------------------------------------------------------

    def _in_doubt(self) -> Refusal:
        advice = retry_advice(self.request.operation, self._is_keyed())
        return in_doubt(self.owner, advice, is_broker=self._is_broker)


def retry_advice(operation: str, is_keyed: bool) -> str:
    """Return how a client retries a change that is in doubt; empty when nothing makes it safe."""
    if is_keyed:
        return "; retry with the same idempotency key"
    return "; send an idempotency key to make retries safe" if operation in APPENDS else ""
