"""The link: requests and answers between two processes of one server, over a Unix socket.

A frame is::

    off  size  field
      0    4   length   of the payload
      4    1   kind     0 is an answer, the others are requests (`LinkKind`)
      5    8   call     a number chosen by the calling end, repeated by the answer
     13    L   payload

Frames of one turn of the event loop leave in one write. A large frame is not split: a small frame after it
would mostly wait for the processing of the large one at the other end, which splitting does not avoid.
Addresses are abstract, so a SIGKILL leaves no socket file. They start with the namespace of the server, which
is made of the device and inode of the lock that it holds, so a copy of its data directory has another
namespace. Only processes of the same user may connect.

L1  A request is answered once, possibly after parts of an answer that is sent incrementally. When the peer
    dies the answer is None: whether the request was applied is unknown.
L2  The calling end may cancel the wait of the other end, which then answers with what it has. A `CANCEL_WAIT`
    has the number of the call and no answer of its own. A lost link cancels the waits of all its requests,
    because no peer is left to receive the answers.
L3  Parts are sent against credit: the calling end reports how many bytes of them it has passed on, and the
    answering end has a bounded number of bytes in flight. An answer that its client does not read therefore
    stops at its source.
L4  Data waiting to be written is bounded. While its peer does not read, a calling end rejects new requests
    (`NEVER_SENT`), and an answering end reads no more of them. Requests cross each link in one direction
    only, and the calling end always reads, so two processes never wait for each other.
L5  The body of a request may precede it, as a `BODY`, which neither end copies, or as a `SHARED_BODY`,
    which names memory of the calling process. The calling process keeps that memory until the answer. A peer
    that cannot open it answers `NEVER_SENT`; later bodies then cross this link as a `BODY`.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from shared.ipc.link_kind import LinkKind
from shared.runtime.body_memory import SharedBody, open_body

logger = logging.getLogger("shared.ipc.link")

HEADER = struct.Struct("<IBQ")
pack_header = HEADER.pack
CREDIT = struct.Struct("<I")
PAYLOAD_BYTES_MAX = (1 << 30) - 1
# A payload of this size is collected apart from its header: each copy of a large payload blocks the loop.
LARGE_PAYLOAD_BYTES = 256 << 10
# More than the largest body, so that one such body does not cause requests beside it to be rejected.
WAITING_BYTES_MAX = 96 << 20
SUPERVISOR = "front"


# Plain numbers: looking up and packing members of an IntEnum is several times slower.
_ANSWER = int(LinkKind.ANSWER)
_CANCEL_WAIT = int(LinkKind.CANCEL_WAIT)
_PART = int(LinkKind.PART)
_CREDIT = int(LinkKind.CREDIT)
_BODY = int(LinkKind.BODY)
_SHARED_BODY = int(LinkKind.SHARED_BODY)
_CALL_FRAMES = frozenset({_CANCEL_WAIT, _PART, _CREDIT, _BODY, _SHARED_BODY})

Done = Callable[[bytes | None], object]
"""Called once: with the answer, None if a lost peer may have acted, or `NEVER_SENT`."""

NEVER_SENT = b""


class LinkReply(msgspec.Struct, eq=False):
    """The reply to a request of the peer, called once with the answer.

    A struct, as `LinkCall` is, because one is created for every request on a link.
    """

    link: Link
    number: int
    cancel_wait: Callable[[], None] | None = None
    """Cancels the wait of the handler, which then answers with what it has; set while it waits."""
    on_credit: Callable[[int], None] | None = None
    """Called with the number of bytes of parts that the peer has passed on."""
    body: bytes = b""
    """The body that preceded the request."""

    def __call__(self, answer: bytes) -> None:
        self.cancel_wait = self.on_credit = None
        self.link.answer(self.number, answer)

    def cancel(self) -> None:
        """Cancel the wait of the handler, if it waits."""
        if self.cancel_wait is not None:
            self.cancel_wait()

    def send_part(self, data: bytes) -> None:
        """Send a part of an unfinished answer."""
        self.link.send_part(self.number, data)


class LinkCall(msgspec.Struct, eq=False):
    """A request to a peer, as the calling end holds it."""

    done: Done
    on_part: Callable[[bytes], None] | None = None
    """Called with each part that precedes the answer, if parts are expected."""
    link: Link | None = None
    """The link that carries the request under `number`."""
    number: int = 0
    is_wait_cancelled: bool = False
    body: bytes | SharedBody = b""
    """Body that precedes the request in a frame of its own (L5)."""

    def cancel_wait(self) -> None:
        """Request the answer now, as far as it is available (L2)."""
        if not self.is_wait_cancelled:
            self.is_wait_cancelled = True
            if self.link is not None:
                self.link.cancel_wait(self.number)

    def credit(self, size_bytes: int) -> None:
        """Report that `size_bytes` of the parts were passed on (L3)."""
        if self.link is not None:
            self.link.credit(self.number, size_bytes)


Serve = Callable[[int, bytes, LinkReply], None]
"""Called with the kind and payload of a request, and the callable for its answer."""


def address_of(namespace: str, name: str) -> str:
    """Return the address of the supervisor (`SUPERVISOR`), or of a worker by its shard number."""
    return f"\0topicsd/{namespace}/{name}"


class _Large(NamedTuple):
    """A frame whose payload is incomplete."""

    kind: int
    number: int
    payload: io.BytesIO


class Link(asyncio.Protocol):
    """One end of a connection between two processes; `is_caller` selects the calling end."""

    def __init__(
        self, serve: Serve, on_lost: Callable[[Link], None] | None = None, *, is_caller: bool = False
    ) -> None:
        self._serve = serve
        self._on_lost = on_lost
        self._is_caller = is_caller
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, LinkCall] = {}
        self._replies: dict[int, LinkReply] = {}
        self._bodies: dict[int, bytes | None] = {}
        """Bodies of the requests that follow; None for a shared body that could not be opened."""
        self._shares_bodies = True
        """Whether the peer could open every shared body so far."""
        self._number = 0
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._is_flush_scheduled = False
        self._is_paused = False
        self._parts: list[bytes] = []
        self._large: _Large | None = None
        self._pending_bytes = 0
        self._needed_bytes = HEADER.size

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    # -- callbacks of asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast(asyncio.Transport, transport)
        peer = opened.get_extra_info("socket")
        if peer is not None and _uid_of(peer) != os.getuid():
            opened.abort()
            return
        opened.set_write_buffer_limits(high=WAITING_BYTES_MAX)
        self._transport = opened

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        calls, self._calls = self._calls, {}
        replies, self._replies = self._replies, {}
        self._bodies.clear()
        for call in calls.values():
            _end_call(call, None)
        for reply in replies.values():
            reply.cancel()
        if self._on_lost is not None:
            self._on_lost(self)

    def pause_writing(self) -> None:
        self._is_paused = True
        if not self._is_caller and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        if not self._is_caller and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._large is not None:
            missing = self._needed_bytes - self._pending_bytes
            self._large.payload.write(data if len(data) <= missing else data[:missing])
            self._pending_bytes += len(data)
            if len(data) < missing:
                return
            large, self._large = self._large, None
            self._pending_bytes = 0
            # A BytesIO that is read whole returns its own buffer without a copy.
            self._handle_frame(large.kind, large.number, large.payload.getvalue())
            data = data[missing:]
        elif self._pending_bytes:
            self._parts.append(data)
            self._pending_bytes += len(data)
            if self._pending_bytes < self._needed_bytes:
                return
            data = b"".join(self._parts)
            self._parts.clear()
            self._pending_bytes = 0
        at, size = 0, len(data)
        self._needed_bytes = HEADER.size
        while size - at >= HEADER.size:
            length, kind, number = HEADER.unpack_from(data, at)
            if length > PAYLOAD_BYTES_MAX:
                self.close()
                return
            end = at + HEADER.size + length
            if end > size:
                if length >= LARGE_PAYLOAD_BYTES:
                    self._large = _Large(kind, number, io.BytesIO())
                    self._pending_bytes = self._large.payload.write(data[at + HEADER.size :])
                    self._needed_bytes = length
                    return
                self._needed_bytes = end - at
                break
            self._handle_frame(kind, number, data[at + HEADER.size : end])
            at = end
        if at < size:
            self._parts.append(data[at:])
            self._pending_bytes = size - at

    # -- asking --------------------------------------------------------------------------------------------

    def call(self, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b"") -> LinkCall:
        """Send a request; `done` receives the answer, or the value of `Done` that replaces it."""
        call = LinkCall(done, body=body)
        self.send_request(kind, payload, call)
        return call

    def send_request(self, kind: LinkKind, payload: bytes, call: LinkCall) -> None:
        if self._transport is None or self._is_paused or self._out_bytes > WAITING_BYTES_MAX:
            call.done(NEVER_SENT)
            return
        self._number = number = self._number + 1
        if call.body:
            self._send_body(call.body, number, call)
        self._calls[number] = call
        call.link, call.number = self, number
        self._send(kind, number, payload)
        if call.is_wait_cancelled:
            self.cancel_wait(number)

    def _send_body(self, body: bytes | SharedBody, number: int, call: LinkCall) -> None:
        if not isinstance(body, SharedBody):
            # A view: another process may have shared the body with this one, which mapped it.
            self._send(_BODY, number, body if type(body) is bytes else memoryview(body))
            call.body = b""
        elif self._shares_bodies:
            self._send(_SHARED_BODY, number, body.ticket())
        else:
            self._send(_BODY, number, body.content())

    def cancel_wait(self, number: int) -> None:
        if number in self._calls:
            self._send(_CANCEL_WAIT, number, b"")

    # -- answering -----------------------------------------------------------------------------------------

    def answer(self, number: int, answer: bytes) -> None:
        if self._replies.pop(number, None) is not None:
            self._send(_ANSWER, number, answer)

    def send_part(self, number: int, data: bytes) -> None:
        if number in self._replies:
            self._send(_PART, number, data)

    def credit(self, number: int, size_bytes: int) -> None:
        if number in self._calls:
            self._send(_CREDIT, number, CREDIT.pack(size_bytes))

    def close(self) -> None:
        """Close the link after everything sent before has left."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _handle_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind != _ANSWER and kind not in _CALL_FRAMES:
            reply = self._replies[number] = LinkReply(self, number)
            if self._bodies:
                body = self._bodies.pop(number, b"")
                if body is None:
                    self.answer(number, NEVER_SENT)
                    return
                reply.body = body
            self._serve(kind, payload, reply)
            return
        try:
            if kind == _ANSWER:
                call = self._calls.pop(number, None)
                if call is not None:
                    if payload == NEVER_SENT and isinstance(call.body, SharedBody):
                        self._shares_bodies = False
                    call.done(payload)
            else:
                self._handle_call_frame(kind, number, payload)
        except Exception:
            # A bug in the callback of one call must not lose all others of the link.
            logger.exception("link: callback failed: unexpected error")

    def _handle_call_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame about a call in flight."""
        if kind == _PART:
            call = self._calls.get(number)
            if call is not None and call.on_part is not None:
                call.on_part(payload)
            return
        if kind == _BODY:
            self._bodies[number] = payload
            return
        if kind == _SHARED_BODY:
            self._bodies[number] = open_body(payload)
            return
        reply = self._replies.get(number)
        if reply is None:
            return
        if kind == _CREDIT and reply.on_credit is not None:
            reply.on_credit(CREDIT.unpack(payload)[0])
        elif kind == _CANCEL_WAIT:
            reply.cancel()

    def _send(self, kind: int, number: int, payload: bytes | memoryview) -> None:
        size = len(payload)
        self._out.append(pack_header(size, kind, number))
        self._out.append(payload)
        self._out_bytes += size
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if not out or self._transport is None:
            return
        if size < LARGE_PAYLOAD_BYTES:
            # Passing many small buffers to the kernel costs more than joining them.
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)


class LinkPool:
    """The links of one process to its peers, opened on demand and reopened after a loss."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._links: dict[str, Link] = {}
        self._opening: dict[str, list[tuple[LinkKind, bytes, LinkCall]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Strong references; the event loop holds none."""

    def call(
        self, name: str, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b""
    ) -> LinkCall:
        link = self._links.get(name)
        if link is not None and link.is_open:
            return link.call(kind, payload, done, body)
        call = LinkCall(done, body=body)
        waiting = self._opening.get(name)
        if waiting is not None:
            waiting.append((kind, payload, call))
            return call
        self._opening[name] = [(kind, payload, call)]
        task = asyncio.get_running_loop().create_task(self._open(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return call

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    async def _open(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        # Connected here, which succeeds or fails at once: uvloop does not support abstract addresses.
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.connect(address_of(self._namespace, name))
            _, link = await loop.create_unix_connection(lambda: Link(reject, is_caller=True), sock=peer)
        except OSError:
            peer.close()
            for _, _, call in self._opening.pop(name):
                _end_call(call, NEVER_SENT)
            return
        if not link.is_open:
            # uvloop has closed the descriptor, and does not report a link that was refused at once.
            peer.detach()
        self._links[name] = link
        for kind, payload, call in self._opening.pop(name):
            try:
                link.send_request(kind, payload, call)
            except Exception:
                # The calls behind it are sent all the same.
                logger.exception("link: request not sent: unexpected error")
                if call.link is None:
                    _end_call(call, NEVER_SENT)


class LinkServer:
    """The links that other processes opened to this one."""

    def __init__(self, listener: asyncio.AbstractServer, links: set[Link]) -> None:
        """Keep the listener and the set that has its open links."""
        self._listener = listener
        self._links = links

    def close(self) -> None:
        """Accept no more links, and close the existing ones after the answers already sent."""
        self._listener.close()
        for link in list(self._links):
            link.close()


async def serve_links(namespace: str, name: str, serve: Serve) -> LinkServer:
    """Accept links from the other processes of this server."""
    links: set[Link] = set()

    def make_link() -> Link:
        link = Link(serve, links.discard)
        links.add(link)
        return link

    loop = asyncio.get_running_loop()
    return LinkServer(await loop.create_unix_server(make_link, address_of(namespace, name)), links)


def reject(kind: int, payload: bytes, reply: LinkReply) -> None:
    """Answer a request of a kind that this end does not serve as one that was never sent."""
    logger.error("link: request rejected: unknown kind  kind=%d bytes=%d", kind, len(payload))
    reply(NEVER_SENT)


def _end_call(call: LinkCall, answer: bytes | None) -> None:
    """Answer a call that has no other answer; a bug in its callback must not lose the next ones."""
    try:
        call.done(answer)
    except Exception:
        logger.exception("link: callback failed: unexpected error")


def _uid_of(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
