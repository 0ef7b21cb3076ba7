"""The link: how two processes of one server talk, each asking and each answering, over a Unix socket.

A frame is::

    off  size  field
      0    4   length   of the payload
      4    1   kind     0 is an answer, the others are what is asked (`LinkKind`)
      5    8   call     a number of the asker's, that the answer repeats
     13    L   payload

Frames of one loop turn leave in one write, and a large one is not cut: what a small one waits for behind it
is mostly the work on it at the other end, for which it would wait all the same. Addresses are abstract (no
file is left behind by a SIGKILL) and start with the namespace of the server, which is made of the device and
inode of the lock that it holds: a copy of its data directory has another. Only processes of the same user are
let in.

L1  What was asked is answered once, perhaps behind pieces of an answer that comes bit by bit. When the peer
    dies the answer is None: whether it was done is unknown.
L2  Who asked may hurry the other end, which then answers with what it has: a `HURRY` has the number of the
    call and no answer of its own. A link that is lost hurries all that it asked: nobody is there to hear it.
L3  Pieces are sent against credit: who asked says how many bytes of them it got rid of, and who answers has
    only so many under way. So an answer that nobody reads stands still at its source.
L4  What waits to be written is bounded. An end that asks takes no more questions while its peer does not
    read (`NEVER_SENT`); an end that answers reads no more of them. Each link is asked over from one end
    only, and that end always reads, so two processes never wait for each other.
L5  The body of a question may precede it, as a `BODY`, which neither end copies, or as a `SHARED_BODY`,
    which names memory of the asking process. The asking process keeps that memory until the answer. A peer
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
from enum import IntEnum
from typing import NamedTuple, cast

import msgspec

from shared.runtime.body_memory import SharedBody, open_body

logger = logging.getLogger("shared.ipc.link")

HEADER = struct.Struct("<IBQ")
pack_header = HEADER.pack
CREDIT = struct.Struct("<I")
PAYLOAD_BYTES_MAX = (1 << 30) - 1
# A payload from here on is gathered apart from its header: each copy of a large one holds the loop.
LARGE_PAYLOAD_BYTES = 256 << 10
# More than the largest body, which is to pass without refusing what comes beside it.
WAITING_BYTES_MAX = 96 << 20
FRONT = "front"


class LinkKind(IntEnum):
    ANSWER = 0
    REQUEST = 1
    """An HTTP request for the owner of its topic, or for the front process."""
    LIST_TOPICS = 2
    HURRY = 3
    """The call of that number is to be answered now, with what there is."""
    RESERVE_TOPIC = 4
    """Of the front process: whether there may be one more topic."""
    KEYS = 5
    """Of a worker: to go by these API keys from now on."""
    PIECE = 7
    """Of the answer to the call of that number, which is still to end."""
    CREDIT = 8
    """So many bytes of the pieces of that call, as a u32, have left."""
    FEED = 6
    """Of a worker: what stands behind a cursor of one of its topics."""
    MAKE_WATCH = 9
    """Of the front process: to find a home for a watch session; of a worker: to be it and to make it."""
    TOPIC_HEADS = 10
    """Of a worker: where some of its topics stand."""
    ENTER_STREAM = 11
    """Of the front process: whether there may be one more stream."""
    LEAVE_STREAM = 12
    """Of the front process: to know that a stream is over."""
    BODY = 13
    """What belongs to the question of that number, which comes next."""
    SHARED_BODY = 14
    """The same, as the ticket of a body in shared memory."""
    PUT_FORWARD = 20
    """Of the front process: to make a rule of a forward, or to change it; of a worker: to keep it."""
    DELETE_FORWARD = 21
    """Of a worker: to keep the rule of that name no longer."""
    LIST_FORWARDS = 22
    """Of a worker: what rules it keeps."""
    TOPIC_DELETED = 23
    """Of the front process: to end the rules from and into a topic."""


# As plain numbers: the members of an IntEnum are looked up and packed at several times the price.
_ANSWER = int(LinkKind.ANSWER)
_HURRY = int(LinkKind.HURRY)
_PIECE = int(LinkKind.PIECE)
_CREDIT = int(LinkKind.CREDIT)
_BODY = int(LinkKind.BODY)
_SHARED_BODY = int(LinkKind.SHARED_BODY)
_ABOUT_A_CALL = frozenset({_HURRY, _PIECE, _CREDIT, _BODY, _SHARED_BODY})

Done = Callable[[bytes | None], None]
"""Called once, with the answer; None when the peer is gone and may have done it, `NEVER_SENT` if not."""

NEVER_SENT = b""


class Asked(msgspec.Struct, eq=False):
    """What a peer asks, in the hands of who answers: called once, with the answer.

    A struct, as is a `Question`, because one is made for every request that crosses.
    """

    link: Link
    number: int
    hurry: Callable[[], None] | None = None
    """Set while there is something to wait for: called when nobody has time for it."""
    credit: Callable[[int], None] | None = None
    """Called with how many bytes of its pieces have left."""
    body: bytes = b""
    """What came apart from the payload."""

    def __call__(self, answer: bytes) -> None:
        self.hurry = self.credit = None
        self.link.answer(self.number, answer)

    def piece(self, data: bytes) -> None:
        """A part of an answer that is not over."""
        self.link.piece(self.number, data)


class Question(msgspec.Struct, eq=False):
    """What was asked of a peer, in the hands of who asked."""

    done: Done
    piece: Callable[[bytes], None] | None = None
    """Called with each piece in front of the answer, by who expects that there are some."""
    link: Link | None = None
    """Where it was sent, with the number that it has there."""
    number: int = 0
    is_hurried: bool = False
    body: bytes | SharedBody = b""
    """Precedes the question in a frame of its own (L5)."""

    def hurry(self) -> None:
        """Have it answered now, with what there is."""
        if not self.is_hurried:
            self.is_hurried = True
            if self.link is not None:
                self.link.hurry(self.number)

    def credit(self, size_bytes: int) -> None:
        """So much of its pieces has left."""
        if self.link is not None:
            self.link.credit(self.number, size_bytes)


Serve = Callable[[int, bytes, Asked], None]
"""Called with kind and payload of what is asked, and with what takes the answer."""


def address_of(namespace: str, name: str) -> str:
    """Of the front process (`FRONT`), or of a worker by the number of its shard."""
    return f"\0topicsd/{namespace}/{name}"


class _Large(NamedTuple):
    """A frame of which the payload is still to come."""

    kind: int
    number: int
    payload: io.BytesIO


class Link(asyncio.Protocol):
    """One end of a connection between two processes; `asks` says which."""

    def __init__(
        self, serve: Serve, on_lost: Callable[[Link], None] | None = None, *, asks: bool = False
    ) -> None:
        self._serve = serve
        self._on_lost = on_lost
        self._asks = asks
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._questions: dict[int, Question] = {}
        self._asked: dict[int, Asked] = {}
        self._bodies: dict[int, bytes | None] = {}
        """Of questions that come next; None for a shared body that could not be opened."""
        self._shares_bodies = True
        """The peer has not failed to open a shared body."""
        self._number = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._scheduled = False
        self._is_clogged = False
        self._pieces: list[bytes] = []
        self._large: _Large | None = None
        self._held = 0
        self._wanted = HEADER.size

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    # -- asyncio's side ------------------------------------------------------------------------------------

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
        questions, self._questions = self._questions, {}
        asked, self._asked = self._asked, {}
        self._bodies.clear()
        for question in questions.values():
            question.done(None)
        for one in asked.values():
            if one.hurry is not None:
                one.hurry()
        if self._on_lost is not None:
            self._on_lost(self)

    def pause_writing(self) -> None:
        self._is_clogged = True
        if not self._asks and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_clogged = False
        if not self._asks and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._large is not None:
            missing = self._wanted - self._held
            self._large.payload.write(data if len(data) <= missing else data[:missing])
            self._held += len(data)
            if len(data) < missing:
                return
            large, self._large = self._large, None
            self._held = 0
            # A BytesIO that is read whole gives its own bytes away; nothing is copied.
            self._take(large.kind, large.number, large.payload.getvalue())
            data = data[missing:]
        elif self._held:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._held = 0
        at, size = 0, len(data)
        self._wanted = HEADER.size
        while size - at >= HEADER.size:
            length, kind, number = HEADER.unpack_from(data, at)
            if length > PAYLOAD_BYTES_MAX:
                self.close()
                return
            end = at + HEADER.size + length
            if end > size:
                if length >= LARGE_PAYLOAD_BYTES:
                    self._large = _Large(kind, number, io.BytesIO())
                    self._held = self._large.payload.write(data[at + HEADER.size :])
                    self._wanted = length
                    return
                self._wanted = end - at
                break
            self._take(kind, number, data[at + HEADER.size : end])
            at = end
        if at < size:
            self._pieces.append(data[at:])
            self._held = size - at

    # -- asking --------------------------------------------------------------------------------------------

    def call(self, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b"") -> Question:
        """Ask; `done` gets the answer, or what stands for one (`Done`)."""
        question = Question(done, body=body)
        self.ask(kind, payload, question)
        return question

    def ask(self, kind: LinkKind, payload: bytes, question: Question) -> None:
        if self._transport is None or self._is_clogged or self._out_bytes > WAITING_BYTES_MAX:
            question.done(NEVER_SENT)
            return
        self._number = number = self._number + 1
        self._questions[number] = question
        question.link, question.number = self, number
        if question.body:
            self._send_body(question.body, question)
        self._send(kind, number, payload)
        if question.is_hurried:
            self.hurry(number)

    def _send_body(self, body: bytes | SharedBody, question: Question) -> None:
        if isinstance(body, bytes):
            self._send(_BODY, question.number, body)
            question.body = b""
        elif self._shares_bodies:
            self._send(_SHARED_BODY, question.number, body.ticket())
        else:
            self._send(_BODY, question.number, body.content())

    def hurry(self, number: int) -> None:
        if number in self._questions:
            self._send(_HURRY, number, b"")

    # -- answering -----------------------------------------------------------------------------------------

    def answer(self, number: int, answer: bytes) -> None:
        if self._asked.pop(number, None) is not None:
            self._send(_ANSWER, number, answer)

    def piece(self, number: int, data: bytes) -> None:
        if number in self._asked:
            self._send(_PIECE, number, data)

    def credit(self, number: int, size_bytes: int) -> None:
        if number in self._questions:
            self._send(_CREDIT, number, CREDIT.pack(size_bytes))

    def close(self) -> None:
        """What was sent before still leaves."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind != _ANSWER and kind not in _ABOUT_A_CALL:
            asked = self._asked[number] = Asked(self, number)
            if self._bodies:
                body = self._bodies.pop(number, b"")
                if body is None:
                    self.answer(number, NEVER_SENT)
                    return
                asked.body = body
            self._serve(kind, payload, asked)
            return
        try:
            if kind == _ANSWER:
                question = self._questions.pop(number, None)
                if question is not None:
                    if payload == NEVER_SENT and isinstance(question.body, SharedBody):
                        self._shares_bodies = False
                    question.done(payload)
            else:
                self._take_word(kind, number, payload)
        except Exception:
            # A mistake of ours in what becomes of one call is no reason to lose all others of the link.
            logger.exception("what was said of a call over a link could not be taken")

    def _take_word(self, kind: int, number: int, payload: bytes) -> None:
        """About a call that is under way."""
        if kind == _PIECE:
            question = self._questions.get(number)
            if question is not None and question.piece is not None:
                question.piece(payload)
            return
        if kind == _BODY:
            self._bodies[number] = payload
            return
        if kind == _SHARED_BODY:
            self._bodies[number] = open_body(payload)
            return
        asked = self._asked.get(number)
        if asked is None:
            return
        if kind == _CREDIT and asked.credit is not None:
            asked.credit(CREDIT.unpack(payload)[0])
        elif kind == _HURRY and asked.hurry is not None:
            asked.hurry()

    def _send(self, kind: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._out.append(pack_header(size, kind, number))
        self._out.append(payload)
        self._out_bytes += size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if not out or self._transport is None:
            return
        if size < LARGE_PAYLOAD_BYTES:
            # To the kernel each of many small pieces would cost more than a copy of it.
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)


class LinkPool:
    """The links of one process to its peers, opened when they are needed and again when they were lost."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._links: dict[str, Link] = {}
        self._opening: dict[str, list[tuple[LinkKind, bytes, Question]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Held, because the loop does not."""

    def call(
        self, name: str, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b""
    ) -> Question:
        link = self._links.get(name)
        if link is not None and link.is_open:
            return link.call(kind, payload, done, body)
        question = Question(done, body=body)
        waiting = self._opening.get(name)
        if waiting is not None:
            waiting.append((kind, payload, question))
            return question
        self._opening[name] = [(kind, payload, question)]
        task = asyncio.get_running_loop().create_task(self._open(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return question

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    async def _open(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        # Connected here, at once or not at all: uvloop knows no abstract address.
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.connect(address_of(self._namespace, name))
            _, link = await loop.create_unix_connection(lambda: Link(_serve_nobody, asks=True), sock=peer)
        except OSError:
            peer.close()
            for _, _, question in self._opening.pop(name):
                question.done(NEVER_SENT)
            return
        if not link.is_open:
            # uvloop has closed the descriptor, and of a link that was refused at once it says nothing.
            peer.detach()
        self._links[name] = link
        for kind, payload, question in self._opening.pop(name):
            link.ask(kind, payload, question)


class LinkServer:
    """The links that other processes have opened to this one."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._links: set[Link] = set()
        self.listener: asyncio.AbstractServer

    def make_link(self) -> Link:
        link = Link(self._serve, self._links.discard)
        self._links.add(link)
        return link

    def close(self) -> None:
        """Take no more links, and end those there are behind what was answered."""
        self.listener.close()
        for link in list(self._links):
            link.close()


async def serve_links(namespace: str, name: str, serve: Serve) -> LinkServer:
    """Take links from the other processes of this server."""
    server = LinkServer(serve)
    server.listener = await asyncio.get_running_loop().create_unix_server(
        server.make_link, address_of(namespace, name)
    )
    return server


def _serve_nobody(kind: int, payload: bytes, asked: Asked) -> None:
    raise AssertionError("a link is asked over from one end only")


def _uid_of(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
