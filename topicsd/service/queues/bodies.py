"""Bodies of requests about jobs, and their bounds."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from shared.contract.errors import BATCH_TOO_LARGE, INVALID_REQUEST, Refusal
from shared.contract.json_bounds import may_hold_nul
from shared.contract.topic_config import NUMBER_MAX
from shared.settings.settings import Settings
from shared.text.units import duration_ms
from topicsd.engine.requests import ClaimRequest, SettleRequest
from topicsd.service.input.bodies import refuse_node, refuse_nul_in, refuse_number
from topicsd.service.input.json_body import JsonBody

SEQS_MAX: Final = 1000
REASON_BYTES_MAX: Final = 1024
_LEASE_ID: Final = re.compile(r"lease_([0-9a-f]{1,16})")


class ClaimBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    node: str
    max: int = 1
    lease_ms: int | str | None = None


class AckBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None


class NackBody(AckBody, gc=False):
    delay_ms: int | str = 0
    reason: str = ""


class ExtendBody(AckBody, kw_only=True, gc=False):
    lease_ms: int | str


_CLAIM: Final = JsonBody(
    ClaimBody,
    '{"node":"worker-1"}',
    {"wait_ms": "a claim answers at once; GET /v0/topics/:topic/work streams jobs as they become ready"},
)
_ACK: Final = JsonBody(AckBody, '{"node":"worker-1","seqs":[1]}')
_NACK: Final = JsonBody(NackBody, '{"node":"worker-1","seqs":[1]}')
_EXTEND: Final = JsonBody(ExtendBody, '{"node":"worker-1","seqs":[1],"lease_ms":30000}')


def decode_claim(body: bytes, limits: Settings) -> ClaimRequest | Refusal:
    asked = _CLAIM.decode(body)
    if isinstance(asked, Refusal):
        return asked
    return claim_request(asked.node, asked.max, asked.lease_ms, limits)


def claim_request(node: str, count: int, lease: int | str | None, limits: Settings) -> ClaimRequest | Refusal:
    lease_ms = None if lease is None else duration_ms("lease_ms", lease)
    if isinstance(lease_ms, Refusal):
        return lease_ms
    refusal = _refuse_holder(node, limits) or refuse_number("lease_ms", lease_ms)
    if refusal is None and count < 1:
        refusal = Refusal(INVALID_REQUEST, f"max: must be at least 1, got {count}", {"field": "max"})
    return refusal or ClaimRequest(node, count, lease_ms)


def decode_ack(body: bytes, limits: Settings) -> SettleRequest | Refusal:
    asked = _ACK.decode(body)
    return asked if isinstance(asked, Refusal) else _request(asked, limits)


def decode_nack(body: bytes, limits: Settings) -> SettleRequest | Refusal:
    asked = _NACK.decode(body)
    if isinstance(asked, Refusal):
        return asked
    delay_ms = _duration_ms("delay_ms", asked.delay_ms)
    if isinstance(delay_ms, Refusal):
        return delay_ms
    size = len(asked.reason.encode())
    if size > REASON_BYTES_MAX:
        message = f"reason: must be at most {REASON_BYTES_MAX} bytes, got {size}"
        return Refusal(INVALID_REQUEST, message, {"field": "reason", "max": REASON_BYTES_MAX})
    refusal = refuse_nul_in("reason", [asked.reason]) if may_hold_nul(body) else None
    return refusal or _request(asked, limits, delay_ms, asked.reason)


def decode_extend(body: bytes, limits: Settings) -> SettleRequest | Refusal:
    asked = _EXTEND.decode(body)
    if isinstance(asked, Refusal):
        return asked
    lease_ms = _duration_ms("lease_ms", asked.lease_ms)
    return lease_ms if isinstance(lease_ms, Refusal) else _request(asked, limits, lease_ms)


def _request(asked: AckBody, limits: Settings, ms: int = 0, reason: str = "") -> SettleRequest | Refusal:
    refusal = _refuse_holder(asked.node, limits)
    if refusal is not None:
        return refusal
    seqs = asked.seqs
    if len(seqs) > SEQS_MAX:
        message = f"seqs: must be at most {SEQS_MAX} in one call, got {len(seqs)}"
        return Refusal(BATCH_TOO_LARGE, message, {"field": "seqs", "max": SEQS_MAX})
    leases: list[int] | None = None
    if asked.lease_ids is not None:
        found = list(map(_LEASE_ID.fullmatch, asked.lease_ids))
        if len(found) != len(seqs) or None in found:
            message = "lease_ids: must be one lease_id of a claim for each of seqs"
            return Refusal(INVALID_REQUEST, message, {"field": "lease_ids"})
        leases = [int(one[1], 16) for one in found if one is not None]
    return SettleRequest(asked.node, seqs, leases, ms, reason)


def _duration_ms(field: str, given: int | str) -> int | Refusal:
    """Return a duration whose upper bound the engine clamps."""
    found = duration_ms(field, given)
    if isinstance(found, Refusal):
        return found
    found = min(found, NUMBER_MAX)
    return refuse_number(field, found) or found


def _refuse_holder(node: str, limits: Settings) -> Refusal | None:
    if not node:
        return Refusal(INVALID_REQUEST, "node: must not be empty", {"field": "node"})
    return refuse_node(node, limits.max_node_bytes) or refuse_nul_in("node", [node])
