"""What brokers of different nodes say to each other: signed JSON.

M1  A message begins with the HMAC-SHA256 of the rest under the secret of the cluster, which is in the
    catalog: who can read it there may commit anyway. An answer is signed together with the signature of its
    request, so it answers no other one.
M2  A request has a time of its home, after which the home refuses it. So a copy of one that is sent again is
    refused soon, and until then repeats append ids.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final, Literal, TypeVar

import msgspec

from topicsd.catalog.shared.shared_catalog import PartResult, Slice

SIGNATURE_BYTES: Final = 32
HomeOutcome = Literal["committed", "refused", "unknown"]
"""`refused`: nothing was and will be done for the request; `unknown`: it may have been, or may come."""

T = TypeVar("T", bound=msgspec.Struct)


class HomeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Slices of a blob that is in the store, to be committed."""

    run: str
    """The run of the home that `before` is a time of; empty when the sender knows none."""
    before: float
    """The time of the home before which the commit has to begin."""
    key: str
    encoding: str
    slices: Sequence[Slice]


class HomeAnswer(msgspec.Struct, frozen=True):
    outcome: HomeOutcome
    run: str
    time: float
    """Of the home, when it sent this."""
    results: list[list[PartResult]] = []


def sign(secret: bytes, message: msgspec.Struct, request: bytes = b"") -> bytes:
    """Return a message with its signature; `request` is what an answer answers."""
    text = msgspec.json.encode(message)
    return _signature(secret, text, request) + text


def check(secret: bytes, body: bytes, kind: type[T], request: bytes = b"") -> T | None:
    """Return a message, or None for what is not signed or is no message of this kind."""
    text = body[SIGNATURE_BYTES:]
    if not hmac.compare_digest(body[:SIGNATURE_BYTES], _signature(secret, text, request)):
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return None


def _signature(secret: bytes, text: bytes, request: bytes) -> bytes:
    return hmac.digest(secret, request[:SIGNATURE_BYTES] + text, "sha256")
