"""A request about keys, as a worker passes it to the supervisor, which alone owns them."""

from __future__ import annotations

from typing import Final

import msgspec


class KeyRequest(msgspec.Struct, array_like=True, frozen=True):
    """A decoded and checked request. `key_id` is the key of the request, empty without keys."""

    operation: str
    name: str
    key_id: str
    address: str
    """The client, as `host:port`."""
    scopes: tuple[str, ...] | None = None
    """None keeps those of an existing key, and is all of the caller for a new one."""
    prefixes: tuple[str, ...] | None = None
    expires_ms: int | None = None
    """0 is never, None keeps what is."""
    overlap_ms: int = 0
    requires_keys: bool = False
    """The client agrees that every request needs a key from now on."""


encode_key_request: Final = msgspec.msgpack.Encoder().encode
decode_key_request: Final = msgspec.msgpack.Decoder(KeyRequest).decode
encode_keys_message: Final = msgspec.msgpack.Encoder().encode
decode_keys_message: Final = msgspec.msgpack.Decoder(tuple[int, str]).decode
"""The version of the keys, and all of them in the form of the setting."""
