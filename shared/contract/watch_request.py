"""A request for a watch session, checked, as it crosses the link to the front process and to its home."""

from __future__ import annotations

import msgspec

from shared.contract.seek import Seek


class WatchRequest(msgspec.Struct, array_like=True, frozen=True):
    """`names`, `from_seqs` and `epochs` are columns: entry i of each is of the same topic."""

    names: list[str]
    """Within the prefixes of the key."""
    from_seqs: list[int | Seek | None]
    """None is from what comes next; a place by time or from the end is looked up where the topic is."""
    epochs: list[int | None]
    """Of an earlier reading that is gone on from."""
    key_id: str
    nodes: list[str]
    limit: int
    bytes_max: int
    heartbeat_ms: int
    with_tags: bool
    with_meta: bool
    with_data: bool
    is_strong: bool
    is_lenient: bool
    """Topics that do not exist are left out."""
    clamped: dict[str, int] = {}
    """Numbers over their bounds, with what is used in their place; the answer carries them."""


encode_watch_request = msgspec.msgpack.Encoder().encode
decode_watch_request = msgspec.msgpack.Decoder(WatchRequest).decode
