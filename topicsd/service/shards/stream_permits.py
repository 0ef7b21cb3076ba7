"""Permits for streams: their caps over all shards, checked before a stream opens.

The supervisor counts the streams, so the caps are exact; the only worker of a server counts by itself. The
supervisor forgets the streams of a worker that died.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from shared.contract.errors import Refusal, cannot_check, limit_reached
from shared.ipc.link import SUPERVISOR, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.stream_count import StreamCount
from shared.settings.settings import Settings
from topicsd.service.shards.peers import Peers

_HERE: Final = 0

_encode = msgspec.msgpack.Encoder().encode
_decode_limit = msgspec.msgpack.Decoder(str).decode

PermitReply = Callable[[Refusal | None], None]


class StreamPermits:
    """The permits of one worker; `peers` and `links` exist on a server with a supervisor."""

    def __init__(self, settings: Settings, links: LinkPool, peers: Peers | None = None) -> None:
        self._count = StreamCount(settings.max_sse_connections, settings.max_sse_connections_per_key)
        self._links = links
        self._pid = peers.slot.pid if peers is not None and len(peers) > 1 else 0

    def enter(self, key_id: str, reply: PermitReply) -> None:
        """Request a permit; `reply` receives None if granted, and then `leave` must follow."""
        if not self._pid:
            reply(self._refusal(self._count.enter(_HERE, key_id)))
            return

        def on_answer(answer: bytes | None) -> None:
            if answer:
                reply(self._refusal(_decode_limit(answer)))
            else:
                reply(cannot_check("max_sse_connections", "the supervisor does not answer"))

        self._links.call(SUPERVISOR, LinkKind.ENTER_STREAM, _encode([self._pid, key_id]), on_answer)

    def leave(self, key_id: str) -> None:
        if not self._pid:
            self._count.leave(_HERE, key_id)
        else:
            self._links.call(SUPERVISOR, LinkKind.LEAVE_STREAM, _encode([self._pid, key_id]), _ignore_answer)

    def _refusal(self, limit: str) -> Refusal | None:
        if not limit:
            return None
        bound = self._count.bounds[limit]
        return limit_reached(limit, bound, f"{bound} streams are open")


def _ignore_answer(answer: bytes | None) -> None:
    """Ignore the answer: without the supervisor no count exists."""
