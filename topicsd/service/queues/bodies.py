"""Bodies of requests about jobs, and their bounds."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from shared.contract.errors import BATCH_TOO_LARGE, Refusal, invalid
from shared.contract.json_bounds import may_hold_nul
from shared.contract.topic_config import NUMBER_MAX
from shared.settings.settings import Settings
from shared.text.units import duration_ms
from topicsd.engine.requests import ClaimRequest, SettleRequest
from topicsd.service.input.bodies import refuse_node, refuse_nul_in, refuse_number, refuse_seqs
from topicsd.service.input.json_body import JsonBody

SEQS_MAX: Final = 1000
REASON_BYTES_MAX: Final = 1024
_LEASE_ID: Final = re.compile(r"lease_([0-9a-f]{1,16})")


class ClaimBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    node: str
    max: int = 1
    lease_ms: int | str | None = None
    wait_ms: int | str = 0


class AckBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None


class NackBody(AckBody, gc=False):
    delay_ms: int | str | UnsetType = UNSET
    reason: str = ""


class ExtendBody(AckBody, kw_only=True, gc=False):
    lease_ms: int | str


_CLAIM: Final = JsonBody(ClaimBody, '{"node":"worker-1"}')
_ACK: Final = JsonBody(AckBody, '{"node":"worker-1","seqs":[1]}')
_NACK: Final = JsonBody(NackBody, '{"node":"worker-1","seqs":[1]}')
_EXTEND: Final = JsonBody(ExtendBody, '{"node":"worker-1","seqs":[1],"lease_ms":30000}')


def decode_claim(body: bytes, limits: Settings) -> ClaimRequest | Refusal:
    claim = _CLAIM.decode(body)
    if isinstance(claim, Refusal):
        return claim
    request = claim_request(claim.node, claim.max, claim.lease_ms, limits)
    if claim.wait_ms == 0 or isinstance(request, Refusal):
        return request
    wait_ms = _duration_ms("wait_ms", claim.wait_ms)
    return wait_ms if isinstance(wait_ms, Refusal) else msgspec.structs.replace(request, wait_ms=wait_ms)


def claim_request(node: str, count: int, lease: int | str | None, limits: Settings) -> ClaimRequest | Refusal:
    lease_ms = None if lease is None else duration_ms("lease_ms", lease)
    if isinstance(lease_ms, Refusal):
        return lease_ms
    refusal = _refuse_holder(node, limits) or refuse_number("lease_ms", lease_ms)
    if refusal is None and count < 1:
        refusal = invalid("max", f"must be at least 1, got {count}")
    return refusal or ClaimRequest(node, count, lease_ms)


def decode_ack(body: bytes, limits: Settings) -> SettleRequest | Refusal:
    ack = _ACK.decode(body)
    return ack if isinstance(ack, Refusal) else _request(ack, limits)


def decode_nack(body: bytes, limits: Settings) -> SettleRequest | Refusal:
    nack = _NACK.decode(body)
    if isinstance(nack, Refusal):
        return nack
    delay_ms = None if nack.delay_ms is UNSET else _duration_ms("delay_ms", nack.delay_ms)
    if isinstance(delay_ms, Refusal):
        return delay_ms
    size = len(nack.reason.encode())
    if size > REASON_BYTES_MAX:
        return invalid("reason", f"must be at most {REASON_BYTES_MAX} bytes, got {size}", REASON_BYTES_MAX)
    refusal = refuse_nul_in("reason", [nack.reason]) if may_hold_nul(body) else None
    return refusal or _request(nack, limits, delay_ms, nack.reason)


def decode_extend(body: bytes, limits: Settings) -> SettleRequest | Refusal:
    extension = _EXTEND.decode(body)
    if isinstance(extension, Refusal):
        return extension
    lease_ms = _duration_ms("lease_ms", extension.lease_ms)
    return lease_ms if isinstance(lease_ms, Refusal) else _request(extension, limits, lease_ms)


def _request(ack: AckBody, limits: Settings, ms: int | None = 0, reason: str = "") -> SettleRequest | Refusal:
    refusal = _refuse_holder(ack.node, limits)
    if refusal is not None:
        return refusal
    seqs = ack.seqs
    if len(seqs) > SEQS_MAX:
        message = f"seqs: must have at most {SEQS_MAX} entries, got {len(seqs)}"
        return Refusal(BATCH_TOO_LARGE, message, {"field": "seqs", "max": SEQS_MAX})
    refusal = refuse_seqs(seqs)
    if refusal is not None:
        return refusal
    leases: list[int] | None = None
    if ack.lease_ids is not None:
        matches = list(map(_LEASE_ID.fullmatch, ack.lease_ids))
        if len(matches) != len(seqs) or None in matches:
            return invalid("lease_ids", "must have one lease_id from a claim for each seq in seqs")
        leases = [int(match[1], 16) for match in matches if match is not None]
    return SettleRequest(ack.node, seqs, leases, ms, reason)


def _duration_ms(field: str, given: int | str) -> int | Refusal:
    """Return a duration whose upper bound the engine clamps."""
    ms = duration_ms(field, given)
    if isinstance(ms, Refusal):
        return ms
    ms = min(ms, NUMBER_MAX)
    return refuse_number(field, ms) or ms


def _refuse_holder(node: str, limits: Settings) -> Refusal | None:
    if not node:
        return invalid("node", "must not be empty")
    return refuse_node(node, limits.max_node_bytes) or refuse_nul_in("node", [node])
