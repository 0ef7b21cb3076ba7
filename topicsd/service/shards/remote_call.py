"""A request whose topic another shard owns: it is asked there, and answered as if it had been asked here.

F1  What the owner never got is 503, at once: the client asks again.
F2  What it got and did not answer is in doubt when it changes something. An append with an idempotency key
    or a producer is asked again until the owner is back, and that finds out what became of it; so it has
    one answer, and no 504 unless the owner stays away. The owner is told how long ago it was asked first:
    where its window has gone by, or is off, the key protects nothing and the answer is 504.
F3  Other writes are 504 then. To ask them again is not the same: another client's write may lie between,
    and they say how much they did. Reads are 503.
F4  A client that leaves, or a process that ends, hurries what waits at the owner.
F5  An answer that is a stream is passed on as it comes (`link_stream.py`), and ends with the owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from shared.contract.api_keys import Key
from shared.contract.errors import IN_DOUBT, NOT_READY, Refusal
from shared.http.answer import CLOSE
from shared.ipc.link import FRONT, LARGE_PAYLOAD_BYTES, NEVER_SENT, LinkKind, LinkPool
from shared.ipc.remote_request import Forwarded, decode_answer, encode_forwarded
from shared.runtime.body_memory import SharedBody
from shared.runtime.disk_thread import Loop
from topicsd.service.call import Call
from topicsd.service.shards.link_stream import PassedOn
from topicsd.service.shards.peers import Peers

AGAIN_SECONDS: Final = 0.1
# Longer than a worker that hangs is waited for, and its restart.
AGAIN_SECONDS_MAX: Final = 20.0
RETRY_AFTER_MS: Final = 1000

# A claim whose answer is lost says nothing for sure, but changes nothing that does not come back by itself.
WRITES: Final = frozenset(
    {
        "append",
        "publish",
        "put_topic",
        "delete_topic",
        "delete_records",
        "put_cursor",
        "delete_cursor",
        "ack",
        "nack",
        "extend",
        "dead_letter",
        "bring_back",
        "redrive",
        "delete_router",
    }
)
APPENDS: Final = frozenset({"append", "publish"})
STREAMS: Final = frozenset({"watch", "work"})
WAITS: Final = frozenset({"diff", "redrive", "claim"}) | STREAMS


class _Keyed(msgspec.Struct, gc=False):
    idempotency_key: str | None = None
    producer: msgspec.Raw = msgspec.Raw(b"null")


_decode_key = msgspec.json.Decoder(_Keyed).decode


class Forwarder:
    def __init__(
        self,
        links: LinkPool,
        peers: Peers | None,
        loop: Loop,
        monotonic: Callable[[], float],
        is_ending: Callable[[], bool],
    ) -> None:
        self.links = links
        self.peers = peers
        self.loop = loop
        self.monotonic = monotonic
        self.is_ending = is_ending
        self.count = 0

    def start(self, operation: str, owner: int | None, call: Call, key: Key | None) -> None:
        """Have it answered by the shard, or by the front process (None)."""
        if owner is not None and self.peers is not None:
            refusal = self.peers.refusal(owner)
            if refusal is not None:
                call.refuse(refusal)
                return
        self.count += 1
        fields = call.fields
        asked = Forwarded(
            operation,
            call.name,
            call.query,
            fields.content_type,
            fields.accept,
            fields.idempotency_key,
            # What the front process answers means nothing by its body.
            b"" if owner is None or len(call.body) >= LARGE_PAYLOAD_BYTES else call.body,
            call.prefixes,
            0,
            "" if key is None else key.id,
            fields.last_event_id,
            call.is_head,
            call.item,
            call.is_admin,
        )
        Foreign(self, owner, call, asked).ask()


class Foreign(msgspec.Struct, eq=False):
    """One request on its way to its owner and back."""

    forwarder: Forwarder
    owner: int | None
    call: Call
    asked: Forwarded
    since: float = -1.0
    """When it was sent first, once that is in doubt."""
    passed_on: PassedOn | None = None
    timer: Any = None
    """Of the time when it is asked again."""

    def ask(self) -> None:
        asked, call = self.asked, self.call
        peer = FRONT if self.owner is None else str(self.owner)
        apart: bytes | SharedBody = b""
        if self.owner is not None and not asked.body:
            apart = call.shared_body or call.body
        payload = encode_forwarded(asked)
        question = self.forwarder.links.call(peer, LinkKind.REQUEST, payload, self._answered, apart)
        if asked.operation in WAITS:
            call.hurry = question.hurry
        if asked.operation in STREAMS:
            self.passed_on = PassedOn(question, call.open_stream)

    def _answered(self, answer: bytes | None) -> None:
        call = self.call
        call.hurry = None
        if self.passed_on is not None and self.passed_on.is_open:
            self.passed_on.close()
        elif answer:
            status, fields, body = decode_answer(answer)
            if fields.endswith(CLOSE):
                call.closes, fields = True, fields.removesuffix(CLOSE)
            call.send_parts([body], len(body), status, fields)
        elif (answer == NEVER_SENT and self.since < 0) or self.asked.operation not in WRITES:
            call.refuse(self._not_reached())
        elif self._is_keyed():
            self._ask_later()
        else:
            call.refuse(self._in_doubt())

    # -- asking again --------------------------------------------------------------------------------------

    def _is_keyed(self) -> bool:
        asked = self.asked
        if asked.operation not in APPENDS:
            return False
        if asked.idempotency_key:
            return True
        try:
            shared = self.call.shared_body
            keyed = _decode_key(self.call.body if shared is None else shared.mapped())
            return bool(keyed.idempotency_key) or bytes(keyed.producer) != b"null"
        except (msgspec.DecodeError, RecursionError):
            return False

    def _ask_later(self) -> None:
        forwarder, call = self.forwarder, self.call
        now = forwarder.monotonic()
        if self.since < 0:
            self.since = call.started
        if now - self.since > AGAIN_SECONDS_MAX or forwarder.is_ending():
            call.refuse(self._in_doubt())
            return
        self.timer = forwarder.loop.call_later(AGAIN_SECONDS, self._ask_again)
        call.hurry = self._give_up

    def _ask_again(self) -> None:
        forwarder = self.forwarder
        peers = forwarder.peers
        if peers is not None and self.owner is not None and peers.refusal(self.owner) is not None:
            self._ask_later()
            return
        self.call.hurry = None
        self.asked.asked_ms = int((forwarder.monotonic() - self.since) * 1000) + 1
        self.ask()

    def _give_up(self) -> None:
        self.timer.cancel()
        self.call.hurry = None
        self.call.refuse(self._in_doubt())

    # -- what the client is told ---------------------------------------------------------------------------

    def _not_reached(self) -> Refusal:
        return Refusal(NOT_READY, f"{_named(self.owner)} does not answer", _shard(self.owner), RETRY_AFTER_MS)

    def _in_doubt(self) -> Refusal:
        return in_doubt(self.asked.operation, self.owner, self._is_keyed())


def in_doubt(operation: str, owner: int | None, is_keyed: bool) -> Refusal:
    message = f"{_named(owner)} ended before it answered: the change may or may not have been made"
    if is_keyed:
        message += "; retry with the same idempotency key"
    elif operation in APPENDS:
        message += "; with an idempotency key a retry is safe"
    return Refusal(IN_DOUBT, message, _shard(owner), RETRY_AFTER_MS)


def _named(owner: int | None) -> str:
    return "the front process" if owner is None else f"shard {owner}"


def _shard(owner: int | None) -> dict[str, object] | None:
    return None if owner is None else {"shard": owner}
