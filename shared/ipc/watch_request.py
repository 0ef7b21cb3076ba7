"""A checked request for a watch session, as it is sent to the supervisor and the home shard."""

from __future__ import annotations

import msgspec

from shared.contract.names import is_topic_pattern
from shared.contract.reader_options import ReaderOptions
from shared.contract.seek import Seek


class WatchRequest(msgspec.Struct, array_like=True, frozen=True):
    """The topics and options of a new session. Entry i of `names`, `positions` and `epochs` is one topic."""

    names: list[str]
    """Names and patterns of topics, all within the prefixes of the key."""
    positions: list[int | Seek | None]
    """Start positions. None begins at the next record; the topic's shard resolves a `Seek`."""
    epochs: list[int | None]
    """Topic epochs of an earlier read that the session continues."""
    key_id: str
    options: ReaderOptions
    heartbeat_ms: int
    is_lenient: bool
    """Whether topics that do not exist are left out."""
    is_waiting: bool = False
    """Whether topics that do not exist are waited for."""
    within: tuple[str, ...] = ()
    """The prefixes of the key, for topics that patterns match."""

    @property
    def patterns(self) -> list[str]:
        return [word for word in self.names if is_topic_pattern(word)]

    @property
    def is_searching(self) -> bool:
        """Return whether the session looks for topics that are created later."""
        return self.is_waiting or any(map(is_topic_pattern, self.names))

    clamped: dict[str, int] = {}
    """Numbers over their bounds, with the values used instead; the response reports them."""


encode_watch_request = msgspec.msgpack.Encoder().encode
decode_watch_request = msgspec.msgpack.Decoder(WatchRequest).decode
