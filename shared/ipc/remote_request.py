"""A remote request and its answer, as they cross the link between two processes.

The receiving process has checked the key of the request and removed its framing. An answer is its status and
the length of its further header fields as two u16, those fields as lines, and the body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

_HEAD: Final = struct.Struct("<HH")

NOT_SHARED: Final = 0
"""The status of an answer of a broker: no shared topic has the name, and nothing was done."""


class RemoteRequest(msgspec.Struct, array_like=True):
    """A request for the process that owns its topic.

    `prefixes` are those of the key, for answers about several names. `retried_after_ms` is the time since the
    first attempt when that attempt may have been applied; 0 for the first attempt.
    """

    operation: str
    name: str
    query: str
    content_type: str
    accept: str
    idempotency_key: str
    body: bytes
    prefixes: tuple[str, ...] = ()
    retried_after_ms: int = 0
    key_id: str = ""
    """Id of the key; empty when there are no keys."""
    last_event_id: str = ""
    is_head: bool = False
    item: str = ""
    """Second name of the path."""
    is_admin: bool = True
    """Whether the key has the scope `admin`."""
    is_unshared: bool = False
    """Whether a broker sends it since no shared topic has the name; it does not come back."""
    event_attributes: tuple[tuple[str, str], ...] = ()
    """As in the `Fields` of the request."""


encode_remote_request = msgspec.msgpack.Encoder().encode
decode_remote_request = msgspec.msgpack.Decoder(RemoteRequest).decode


def encode_answer(status: int, fields: bytes, parts: Sequence[bytes | memoryview]) -> bytes:
    return b"".join([_HEAD.pack(status, len(fields)), fields, *parts])


def decode_answer(answer: bytes) -> tuple[int, bytes, bytes]:
    """Return the status, the fields and the body of an answer."""
    status, length = _HEAD.unpack_from(answer)
    body_at = _HEAD.size + length
    return status, answer[_HEAD.size : body_at], answer[body_at:]
